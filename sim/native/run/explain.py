"""Explanation of errors that compiled checks have detected: the interpreter runs the affected blocks
again."""

from dataclasses import replace
from functools import partial

import numpy as np

from sim.context import observer_class
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.interpreted import Interpreted
from sim.native.codegen.shadow import BETWEEN, PARTED, TROUBLES
from sim.observers import DEFAULT

FEW = (
    1 << 13
)  # threads: a launch up to this size is interpreted as a whole; of a larger one, that many threads


def by_fibers(launch, note, make_grid=Grid):
    outcome = Interpreted(Fiber).run(launch, make_grid)
    outcome.notes = note, *outcome.notes
    return outcome


def explained(attempt):
    """Return the Outcome of a launch with error flags. The interpreter runs a small launch again as a
    whole, and of a large launch the chosen blocks."""
    launch, blocks = attempt.launch, chosen(attempt)
    if attempt.is_small:
        attempt.go_back()
        return by_fibers(launch, "by fission, then explained by fibers")
    count = int(np.count_nonzero(concerned(attempt)))
    parted = np.flatnonzero(attempt.found & PARTED).tolist()
    outcome = of_blocks(attempt, blocks)
    if runs_on(outcome) and not set(parted) <= set(
        blocks
    ):  # compiled code stopped in the other diverged blocks
        blocks = sorted({*blocks, *parted})
        outcome = of_blocks(attempt, blocks)
    note = f"by fission; of {launch.blocks:,} blocks {count:,} {'is' if count == 1 else 'are'} not in order"
    note += (
        f", and {len(blocks):,} of them explained by fibers: counts of findings are of those"
        if count > len(blocks)
        else ", explained by fibers"
    )
    outcome.notes = note, *outcome.notes
    return outcome


def runs_on(outcome):
    """Return whether threads met at one barrier from several sites, and the barrier opened."""
    return any(f.kind == "barrier-divergence" and f.severity == "warning" for f in outcome.findings)


def of_blocks(attempt, blocks):
    """Return the Outcome of a launch in which the blocks at these positions are interpreted and the others
    compiled."""
    launch = attempt.launch
    attempt.go_back()
    watching = replace(
        launch,
        observers=tuple(observer for observer in launch.observers if observer_class(observer) in DEFAULT),
    )
    outcome = Interpreted(Fiber).run(watching, partial(Chosen, attempt, blocks))
    if not any(finding.kind == "no-progress" for finding in outcome.findings):
        attempt.advance(launch.blocks)
    outcome.findings = [
        finding for finding in outcome.findings if finding.kind != "unassigned-variable"
    ] + attempt.unassigned  # compiled code found these in all blocks
    outcome.findings += attempt.logged.findings
    outcome.notes, outcome.trace = (*outcome.notes, *attempt.logged.notes), attempt.logged.trace
    outcome.watched, outcome.columns = attempt.logged.watched, attempt.logged.columns
    counted = attempt.counters()
    outcome.counters |= counted | {"barriers": counted["barriers"] + outcome.counters["barriers"]}
    return outcome


class Chosen(Grid):
    """A grid that interprets some blocks of a launch. Compiled code runs the blocks between them, so each
    block finds the memory that the blocks before it left."""

    def __init__(self, attempt, blocks, *given):
        super().__init__(*given)
        self.attempt, self.positions = attempt, dict(zip(map(attempt.index_of, blocks), blocks))
        self.order = list(self.positions)
        self.context.wrote = attempt.wrote

    def new_block(self, index):
        self.context.runs_compiled = True
        self.attempt.advance(self.positions[index])
        self.context.runs_compiled, self.attempt.next = False, self.positions[index] + 1
        self.context.restart_progress()
        return super().new_block(index)


# --- which blocks -------------------------------------------------------------------------------------------


def races(attempt):
    """Return rows (position of a block, position of another block that it races with), as far as the
    launch recorded them."""
    pairs = np.unique(attempt.pairs[: attempt.state.pair_count], axis=0)
    pairs = pairs[pairs[:, 1] > 0]
    starts = attempt.starts[: attempt.state.position + 1]
    pairs[:, 1] = np.searchsorted(starts, pairs[:, 1], side="right") - 1
    return pairs


def concerned(attempt):
    """Return for each block whether it has an error flag, or races with a block that has one."""
    found = attempt.found != 0
    found[races(attempt)[:, 1]] = True
    return found


def chosen(attempt):
    """Return the positions of the blocks to explain: a few for each kind of error, capped by the total
    number of threads (FEW)."""
    partners, most = dict(races(attempt)[::-1].tolist()), max(FEW // attempt.launch.threads, 2)
    blocks_of = [np.flatnonzero(attempt.found & trouble)[:most].tolist() for trouble in TROUBLES]
    chosen = set()
    for rank in range(most):
        for trouble, blocks in zip(TROUBLES, blocks_of):
            if rank < len(blocks) and len(chosen) < most:
                chosen.add(blocks[rank])
                if trouble == BETWEEN and blocks[rank] in partners:
                    chosen.add(partners[blocks[rank]])
    return sorted(chosen)
