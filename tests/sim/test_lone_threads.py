"""Tests of blocks with one thread, whose barriers order nothing."""

import numpy as np
import pytest
from numba import cuda, int32

from sim import ThreadError, simulate
from sim.context import Context
from sim.events import Observer
from sim.observers import DEFAULT, Trace

BLOCKS, STEPS = 3, 4
LAST = 1  # the last block to run under the default seed
ENGINES = pytest.mark.parametrize("engine", ["fibers", "threads"])


def passes(x, out):
    held = cuda.shared.array(STEPS, int32)
    for step in range(STEPS):
        held[step] = x[cuda.blockIdx.x]
        cuda.syncthreads()
    for step in range(STEPS):
        out[cuda.blockIdx.x] += held[step]


def reads_too_early(x, out):
    held = cuda.shared.array(2, int32)
    held[0] = x[cuda.blockIdx.x]
    cuda.syncthreads()
    out[cuda.blockIdx.x] = held[1]
    cuda.syncthreads()
    held[1] = held[0]


def races_with_the_next_block(x, out):
    out[cuda.blockIdx.x] = x[cuda.blockIdx.x]
    cuda.syncthreads()
    out[(cuda.blockIdx.x + 1) % BLOCKS] += 1


class Epochs(Observer):
    """Observer that counts batches and barriers."""

    def __init__(self):
        self.batches = self.barriers = 0

    def accesses(self, batch):
        self.batches += 1

    def barrier_opened(self, block, epoch):
        self.barriers += 1


class Merged(Epochs):
    """Observer that counts the same, but needs no barriers of blocks with one thread."""

    lone_barriers = False


def launch(kernel, engine, observers):
    out = np.zeros(BLOCKS, np.int32)
    report = simulate(kernel, engine=engine, observers=observers, on_finding="report")[BLOCKS, 1](
        np.arange(1, BLOCKS + 1, dtype=np.int32), out
    )
    return report, out


@ENGINES
def test_barriers_end_epochs_only_if_an_observer_needs_them(engine):
    for others, counts in ((DEFAULT, (3, 0)), ((*DEFAULT, Epochs), (15, 12))):
        counter = Merged()
        report, out = launch(passes, engine, (*others, counter))
        assert (counter.batches, counter.barriers) == counts
        assert report.counters["barriers"] == BLOCKS * STEPS and out.tolist() == [4, 8, 12]


@ENGINES
@pytest.mark.parametrize(
    "kernel, kinds",
    [
        (passes, set()),
        (reads_too_early, {"uninitialized-read"}),
        (races_with_the_next_block, {"race-global"}),
    ],
)
def test_merged_epochs_have_the_same_findings(engine, kernel, kinds):
    found = []
    for observers in (DEFAULT, (*DEFAULT, Trace)):
        report, _ = launch(kernel, engine, observers)
        found.append([finding.message for finding in report.findings])
        assert {finding.kind for finding in report.findings} == kinds
    assert found[0] == found[1]


def raises_in_the_last_block(x, out, count):
    held = cuda.shared.array(2, int32)
    held[0] = x[cuda.blockIdx.x]
    cuda.syncthreads()
    if cuda.atomic.add(count, 0, 1) == BLOCKS - 1:
        held[0] += out.missing
    out[cuda.blockIdx.x] = held[0] + held[1]


def raises_without_a_barrier(x, out, count):
    held = cuda.shared.array(2, int32)
    if cuda.atomic.add(count, 0, 1) == BLOCKS - 1:
        held[0] = out.missing
    out[cuda.blockIdx.x] = x[cuda.blockIdx.x] + held[1]


def writes_one_element(x, out, count):
    held = cuda.shared.array(2, int32)
    held[0] = x[cuda.blockIdx.x]
    cuda.syncthreads()
    out[0] = held[0]
    while cuda.atomic.add(count, 0, 1) >= BLOCKS - 1:
        pass


def loops_in_the_last_block(x, out, count):
    block = cuda.blockIdx.x
    out[block] = x[block]
    if block == LAST:
        out[(block + 1) % BLOCKS] = x[(block + 1) % BLOCKS]
        while x[0] == 1:
            pass


def doubles(x, out):
    out[cuda.blockIdx.x] = 2 * x[cuda.blockIdx.x]


def arguments():
    return np.arange(1, BLOCKS + 1, dtype=np.int32), np.zeros(BLOCKS, np.int32), np.zeros(1, np.int32)


@ENGINES
@pytest.mark.parametrize("kernel", [raises_in_the_last_block, raises_without_a_barrier])
def test_an_exception_mentions_the_findings_of_ended_blocks(engine, kernel):
    """Raise an exception in the last block. The accesses of the first blocks are still in the log then."""
    with pytest.raises(ThreadError, match=r"missing(.|\n)*Before that: held\[1\] is read"):
        simulate(kernel, engine=engine)[BLOCKS, 1](*arguments())


@ENGINES
def test_ended_blocks_are_checked_if_the_last_one_does_not_end(engine):
    run = simulate(writes_one_element, engine=engine, on_finding="report", max_steps=100)
    kinds = [finding.kind for finding in run[BLOCKS, 1](*arguments()).findings]
    assert sorted(kinds) == ["no-progress", "race-global"]


@ENGINES
def test_the_accesses_of_a_block_that_loops_are_checked(engine):
    """Let the last block store the same value as a block that has ended, and then loop."""
    run = simulate(loops_in_the_last_block, engine=engine, on_finding="report", max_steps=100)
    found = [(f.kind, f.severity) for f in run[BLOCKS, 1](*arguments()).findings]
    assert sorted(found) == [("no-progress", "error"), ("race-global", "warning")]


@ENGINES
@pytest.mark.parametrize("kernel", [passes, doubles])
def test_blocks_are_passed_to_the_observers_together(engine, monkeypatch, kernel):
    flushes, batches = [], Context.batches
    monkeypatch.setattr(Context, "batches", lambda self: flushes.append(self) or batches(self))
    launch(kernel, engine, DEFAULT)
    assert len(flushes) == 1
