"""Explanation of errors that compiled checks have detected: the interpreter runs the affected blocks
again."""

from dataclasses import replace
from functools import partial

import numpy as np

from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.hooks import observer_class
from sim.interpreted import Interpreted
from sim.native.codegen.shadow import BLOCK_RACE, DIVERGED, ERROR_FLAGS
from sim.nouns import plural
from sim.observers import DEFAULT

FEW = (
    1 << 13
)  # threads: a launch up to this size is interpreted as a whole; of a larger one, that many threads


def interpret(launch, note, make_grid=Grid):
    outcome = Interpreted(Fiber).run(launch, make_grid)
    outcome.notes = note, *outcome.notes
    return outcome


def explain(attempt):
    """Return the Outcome of a launch with error flags. The interpreter runs a small launch again as a
    whole, and of a large launch the chosen blocks."""
    launch, blocks = attempt.launch, choose_blocks(attempt)
    if attempt.is_small:
        attempt.restore()
        return interpret(launch, "compiled, then explained by the interpreter")
    count = int(np.count_nonzero(flagged_blocks(attempt)))
    diverged = np.flatnonzero(attempt.block_errors & DIVERGED).tolist()
    outcome = interpret_blocks(attempt, blocks)
    if passes_divergent_barrier(outcome) and not set(diverged) <= set(
        blocks
    ):  # compiled code stopped in the other diverged blocks
        blocks = sorted({*blocks, *diverged})
        outcome = interpret_blocks(attempt, blocks)
    note = f"compiled; {count:,} of {plural(launch.blocks, 'block')} {'has' if count == 1 else 'have'} errors"
    note += (
        f", and {len(blocks):,} of them are explained by the interpreter: findings are counted in those"
        if count > len(blocks)
        else ", explained by the interpreter"
    )
    outcome.notes = note, *outcome.notes
    return outcome


def passes_divergent_barrier(outcome):
    """Return whether threads met at one barrier from several sites, and the barrier opened."""
    return any(f.kind == "barrier-divergence" and f.severity == "warning" for f in outcome.findings)


def interpret_blocks(attempt, blocks):
    """Return the Outcome of a launch in which the blocks at these positions are interpreted and the others
    compiled."""
    launch = attempt.launch
    attempt.restore()
    watching = replace(
        launch,
        observers=tuple(observer for observer in launch.observers if observer_class(observer) in DEFAULT),
    )
    outcome = Interpreted(Fiber).run(watching, partial(MixedGrid, attempt, blocks))
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


class MixedGrid(Grid):
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
    starts = attempt.first_epochs[: attempt.state.position + 1]
    pairs[:, 1] = np.searchsorted(starts, pairs[:, 1], side="right") - 1
    return pairs


def flagged_blocks(attempt):
    """Return for each block whether it has an error flag, or races with a block that has one."""
    found = attempt.block_errors != 0
    found[races(attempt)[:, 1]] = True
    return found


def choose_blocks(attempt):
    """Return the positions of the blocks to explain: a few for each kind of error, each with a block that it
    races with, then any others. Together they have at most FEW threads."""
    partners, most = dict(races(attempt)[::-1].tolist()), max(FEW // attempt.launch.threads, 2)
    blocks_of = [np.flatnonzero(attempt.block_errors & flag)[:most].tolist() for flag in ERROR_FLAGS]
    chosen = set()
    for rank in range(most):
        for flag, blocks in zip(ERROR_FLAGS, blocks_of):
            if rank < len(blocks) and len(chosen) < most:
                chosen.add(blocks[rank])
                if flag == BLOCK_RACE and blocks[rank] in partners:
                    chosen.add(partners[blocks[rank]])
    others = [block for block in np.flatnonzero(flagged_blocks(attempt)).tolist() if block not in chosen]
    return sorted({*chosen, *others[: max(most - len(chosen), 0)]})
