"""Explanation of the errors that compiled code has detected: the interpreter reruns the blocks concerned."""

import time
from dataclasses import replace

import numpy as np

from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.hooks import observer_class
from sim.interpreted import AFTER_ERROR, Interpreted, format_ended_early
from sim.native.codegen.shadow import BLOCK_RACE, BOUNDS, DIVERGED, ERROR_FLAGS, EXHAUSTED, OF_LAUNCH
from sim.native.run.error_records import recorded_findings
from sim.nouns import plural
from sim.observers import DEFAULT

# The maximum number of threads that a rerun interprets. In a larger launch, only selected blocks are rerun.
MAX_RERUN_THREADS = 1 << 13
# The CPU seconds in which the interpreter has to reach the first error. Afterwards, compiled code records
# errors. The limit is EXPLAIN_SECONDS if the interpreter can run the first block with an error in this time,
# and otherwise FIRST_EXPLAIN_SECONDS, which suffice for an error near the beginning of the block.
EXPLAIN_SECONDS, FIRST_EXPLAIN_SECONDS = 6.0, 1.5
SLOWDOWN = 40  # the interpreter takes at least this many times as long as compiled code
UNEXPLAINED = (
    "the interpreter needs too much time to reach these errors, so the findings come from"
    " compiled code: only the first errors of the first block are described, and the launch is incomplete. A"
    " launch with shorter loops is described completely; simulate(kernel, max_steps=10**9) lets the"
    " interpreter continue"
)
SMALL = "compiled, then explained by the interpreter"
SMALL_WITHOUT_FINDING = "compiled; the interpreter also ran this launch, and found no error"
# Limits on the CPU seconds of the interpreter while it looks for an endless loop: for a loop in which
# something still changes, and for the whole run
PROBE_SECONDS, MOST_PROBE_SECONDS = 4.0, 6.0
ENDLESS_LOOP = {"no-progress", "undecided"}  # kinds of findings that end a launch
INCOMPLETE = BOUNDS | DIVERGED  # the flags of blocks whose results in compiled code are incomplete


class Unexplained(Exception):
    """Raised if the time limit ends the interpreter before it has found an error."""


def interpret(launch, note, make_grid=Grid):
    """Run a launch in the interpreter, and put `note` before the notes of its Outcome."""
    outcome = Interpreted(Fiber).run(launch, make_grid)
    outcome.notes = note, *outcome.notes
    return outcome


def find_endless_loop(attempt):
    """Return the Outcome of the block that exceeded a limit of iterations, or of all blocks of a cooperative
    launch, if the interpreter finds a loop there that is endless, or that does not end within PROBE_SECONDS.
    Otherwise, return None.

    attempt: the Attempt, after its `run`. Memory is not restored.
    """
    block = attempt.state.position
    blocks = [*range(attempt.launch.blocks)] if attempt.is_cooperative else [block]
    with attempt.results_kept():
        attempt.stop = blocks[-1] + 1
        outcome = interpret_blocks(attempt, blocks, MOST_PROBE_SECONDS, loop_seconds=PROBE_SECONDS)
    if not any(finding.kind in ENDLESS_LOOP for finding in outcome.findings):
        return None
    outcome.notes = f"compiled; block {block:,} is explained by the interpreter", *outcome.notes
    return outcome


def is_decided(outcome):
    """Return whether `find_endless_loop` has found a loop in which nothing changes any more."""
    return outcome is not None and all(finding.kind != "undecided" for finding in outcome.findings)


def ends_alone(attempt):
    """Return whether no other block can end a loop of the block that exceeded a limit of iterations."""
    return not attempt.program.lowered.synchronizes and not attempt.is_cooperative


def remains_undecided(attempt, position):
    """Return whether the block at linear index `position` has exceeded the last limit of iterations, too, and
    no block has another error.

    attempt: the Attempt of the launch with this limit, after its `run`.
    """
    flagged = np.flatnonzero(attempt.block_errors)
    exhausted = attempt.state.stopped == OF_LAUNCH and attempt.block_errors[flagged] == EXHAUSTED
    return flagged.tolist() == [position] and exhausted.all() and ends_alone(attempt)


def undecided_outcome(attempt, outcome):
    """Return the result of `find_endless_loop` for a loop that has also exceeded the last limit."""
    reason = (
        "Something still changes, but the threads of this block ran"
        f" {plural(attempt.certain_iterations, 'iteration')} of loops in compiled code, and have not ended."
    )
    findings = [replace(f, reason=reason) if f.kind == "undecided" else f for f in outcome.findings]
    return replace(outcome, findings=findings)


def explain(attempt):
    """Return the Outcome of a launch with error flags.

    The interpreter explains the errors. If it reaches none of them within a limit of time, compiled code
    records the errors of the first block. If the observers do not report them, the interpreter continues
    without a limit. If compiled code cannot record errors of the kernel, there is no limit from the start.

    attempt: the Attempt, after its `run`.
    """
    unlimited = attempt.launch.max_steps or not attempt.can_record
    seconds = None if unlimited else seconds_to_explain(attempt)
    try:
        if seconds != 0:
            with attempt.results_kept():
                return explain_by_interpreter(attempt, seconds)
    except Unexplained:
        attempt.restore()
    findings = recorded_findings(attempt)
    if any(finding.severity == "error" for finding in findings):
        return recorded_outcome(attempt, findings)
    return explain_by_interpreter(attempt)


def seconds_to_explain(attempt):
    """Return the CPU seconds in which the interpreter has to reach the first error, or 0 if it cannot."""
    # The interpreter runs all blocks of a small launch, and only the blocks with errors of a large one.
    first = int(np.flatnonzero(attempt.block_errors)[0])
    blocks = first + 1 if attempt.is_small else 1
    if SLOWDOWN * blocks * attempt.seconds_per_block < EXPLAIN_SECONDS:
        return EXPLAIN_SECONDS
    # It cannot reach the first block with an error if the blocks before it take longer than the limit.
    if SLOWDOWN * (blocks - 1) * attempt.seconds_per_block > FIRST_EXPLAIN_SECONDS:
        return 0
    # Threads that disagree end their block, so they disagreed when the block had run for `seconds_per_block`.
    ends_block = attempt.block_errors[first] == DIVERGED and not attempt.is_cooperative
    return 0 if ends_block else min(FIRST_EXPLAIN_SECONDS, EXPLAIN_SECONDS)


def recorded_outcome(attempt, findings):
    """Return the Outcome of a launch whose errors compiled code has recorded."""
    count = int(np.count_nonzero(flagged_blocks(attempt)))
    notes = f"compiled; {format_errors(attempt.launch, count)}", UNEXPLAINED, *attempt.logged.notes
    outcome = replace(attempt.outcome(), findings=[*findings, *attempt.unassigned, *attempt.logged.findings])
    return replace(outcome, notes=notes)


def format_errors(launch, count):
    """Return the number of blocks with errors, as a clause."""
    return f"{count:,} of {plural(launch.blocks, 'block')} {'has' if count == 1 else 'have'} errors"


def explain_by_interpreter(attempt, seconds=None):
    """Return the Outcome of a launch with error flags, with findings of the interpreter.

    The interpreter reruns a small launch from the start. In a large launch, it reruns only selected blocks.

    seconds: the CPU seconds after which it raises Unexplained if it has found no error, or None.
    """
    launch, blocks = attempt.launch, choose_blocks(attempt)
    if attempt.is_small:
        attempt.restore()
        limited = LimitedGrids(seconds)
        outcome = interpret(launch, SMALL, limited.make)
        limited.check(outcome)
        if not outcome.findings:
            outcome.notes = SMALL_WITHOUT_FINDING, *outcome.notes[1:]
        return outcome
    count = int(np.count_nonzero(flagged_blocks(attempt)))  # the rerun resets the flags
    incomplete = np.flatnonzero(attempt.block_errors & INCOMPLETE).tolist()
    exhausted = attempt.state.stopped == OF_LAUNCH
    outcome = interpret_blocks(attempt, blocks, seconds, must_find=True)
    if exhausted and not any(finding.kind in ENDLESS_LOOP for finding in outcome.findings):
        # The loop that exceeded the iteration limit is not endless, but compiled code did not run the blocks
        # after it.
        attempt.restore()
        return interpret(launch, "interpreted: its loops have too many iterations for compiled code")
    no_error = not any(finding.severity == "error" for finding in outcome.findings)
    if attempt.stop < launch.blocks and no_error:
        attempt.run_without_limit()  # the flags that ended the launch were false positives
        return attempt.outcome() if attempt.is_clean else explain(attempt)
    if (no_error or passes_divergent_barrier(outcome)) and not set(incomplete) <= set(blocks):
        # The interpreter lets the threads continue where compiled code stopped, for example at a shuffle of
        # some lanes in a branch. Interpret all blocks whose results are incomplete.
        blocks = sorted({*blocks, *incomplete})
        outcome = interpret_blocks(attempt, blocks)
    explained = sum(block < attempt.stop for block in blocks)
    outcome.notes = format_explained(launch, count, explained, bool(outcome.findings)), *outcome.notes
    return outcome


def format_explained(launch, count, explained, found):
    """Return the note about the blocks that the interpreter has rerun.

    count: the number of blocks with an error flag.
    explained: the number of blocks that the interpreter has rerun.
    found: whether there is a finding.
    """
    if not found:
        of = plural(launch.blocks, "block")
        return f"compiled; the interpreter also ran {explained:,} of {of}, and found no error"
    if count > explained:
        these = f"the interpreter explained {explained:,} of them, and the findings count only these blocks"
        return f"compiled; {format_errors(launch, count)}; {these}"
    return f"compiled; {format_errors(launch, count)}, explained by the interpreter"


class LimitedGrids:
    """A factory of grids, the first of which ends after some CPU time.

    seconds: the CPU seconds, or None.
    make_grid: a function with Grid's parameters.
    loop_seconds: the CPU seconds for which a loop may run while something changes, or None for the usual
        limits.
    """

    def __init__(self, seconds, make_grid=Grid, loop_seconds=None):
        self.seconds, self.make_grid, self.loop_seconds, self.grids = seconds, make_grid, loop_seconds, []

    def make(self, *given):
        self.grids.append(self.make_grid(*given))
        self.grids[-1].context.loops.given_limit = self.loop_seconds
        if self.seconds is not None and len(self.grids) == 1:
            self.grids[0].context.error_limit.end_after(self.seconds)
        return self.grids[-1]

    @property
    def ended_early(self):
        return self.grids[0].context.ended_early

    def check(self, outcome):
        """Raise Unexplained if the first run was ended before it had found an error."""
        found = any(finding.severity == "error" for finding in outcome.findings)
        if self.seconds is not None and self.ended_early and not found:
            raise Unexplained


def passes_divergent_barrier(outcome):
    """Return whether some barrier opened although its threads arrived from different sites in the code."""
    return any(f.kind == "barrier-divergence" and f.severity == "warning" for f in outcome.findings)


def interpret_blocks(attempt, blocks, seconds=None, must_find=False, loop_seconds=None):
    """Return the Outcome of a rerun in which the interpreter runs some blocks and compiled code all others.

    blocks: the linear indices of the blocks to interpret.
    seconds: CPU seconds after which the rerun ends, or None.
    must_find: whether to raise Unexplained if it ends in this way, and has found no error.
    loop_seconds: as in LimitedGrids.
    """
    launch = attempt.launch
    attempt.restore()
    attempt.lift_time_limit()  # `stop` already ends the launch, if necessary
    watching = replace(
        launch,
        observers=tuple(observer for observer in launch.observers if observer_class(observer) in DEFAULT),
    )
    grids = LimitedGrids(
        seconds, lambda *given: MixedGrid(attempt, blocks, not grids.grids, *given), loop_seconds
    )
    outcome = Interpreted(Fiber).run(watching, grids.make)
    if must_find:
        grids.check(outcome)
    if grids.ended_early:
        attempt.stop = attempt.next
    # An endless loop ends the launch. Otherwise, run the blocks after the last interpreted block.
    if not any(finding.kind in ENDLESS_LOOP for finding in outcome.findings):
        if attempt.stop < launch.blocks and not grids.ended_early:
            outcome.notes = *outcome.notes, format_ended_early(AFTER_ERROR, attempt.stop, launch.blocks)
        attempt.advance(attempt.stop)
    outcome.findings = [
        finding for finding in outcome.findings if finding.kind != "unassigned-variable"
    ] + attempt.unassigned  # compiled code finds unassigned variables in all blocks
    outcome.findings += attempt.logged.findings
    outcome.notes, outcome.trace = (*outcome.notes, *attempt.logged.notes), attempt.logged.trace
    outcome.watched, outcome.columns = attempt.logged.watched, attempt.logged.columns
    counted = attempt.counters()
    outcome.counters |= counted | {"barriers": counted["barriers"] + outcome.counters["barriers"]}
    return outcome


class MixedGrid(Grid):
    """A grid of which only some blocks are interpreted.

    Before an interpreted block, compiled code runs all blocks that precede it. The interpreted block then
    finds the same contents of memory as in the compiled launch. A rerun does not repeat the compiled blocks.

    is_first: whether this is the grid of the first run.
    """

    def __init__(self, attempt, blocks, is_first, *given):
        super().__init__(*given)
        self.is_first, self.attempt = is_first, attempt
        self.positions = dict(zip(map(attempt.index_of, blocks), blocks))
        self.order = [(index,) for index in self.positions]  # kernels with clusters are not compiled
        self.context.wrote = attempt.wrote

    def new_block(self, index):
        if self.is_first:
            self.run_compiled_before(index)
        return super().new_block(index)

    def run_compiled_before(self, index):
        """Run the blocks between the last interpreted block and the block with this index."""
        self.context.runs_compiled, began = True, time.process_time()
        self.attempt.advance(self.positions[index])
        self.context.error_limit.exclude(time.process_time() - began)
        self.ended = self.positions[index]
        self.context.runs_compiled, self.attempt.next = False, self.positions[index] + 1
        self.context.loops.restart()


# --- selection of blocks ------------------------------------------------------------------------------------


def races(attempt):
    """Return the recorded races between blocks, as an (n, 2) array. Each row contains the linear indices of a
    block and of the earlier block that it races with."""
    pairs = np.unique(attempt.pairs[: attempt.state.pair_count], axis=0)
    # Shadow memory identifies a block by an epoch. Epochs increase from block to block, so a binary search
    # finds the block.
    starts = attempt.first_epochs[: attempt.state.position + 1]
    pairs[:, 1] = np.searchsorted(starts, pairs[:, 1], side="right") - 1
    return pairs


def flagged_blocks(attempt):
    """Return a mask over blocks. It is True for a block that has an error flag, or races with such a
    block."""
    found = attempt.block_errors != 0
    found[races(attempt)[:, 1]] = True
    return found


def choose_blocks(attempt):
    """Return the sorted linear indices of the blocks to explain.

    For each kind of error, a few blocks are chosen, and the blocks that race with them. The remaining room is
    filled with other flagged blocks. Together, the blocks have at most MAX_RERUN_THREADS threads, unless two
    blocks alone have more.
    """
    partners, most = dict(races(attempt)[::-1].tolist()), max(MAX_RERUN_THREADS // attempt.launch.threads, 2)
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
