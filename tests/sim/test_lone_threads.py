"""Tests of blocks with one thread, whose barriers order nothing."""

import numpy as np
import pytest
from numba import cuda, int32

from sim import simulate
from sim.events import Observer
from sim.observers import DEFAULT, Trace

BLOCKS, STEPS = 3, 4
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
