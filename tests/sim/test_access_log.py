"""Tests of the access log of compiled code.

An observer receives the same events as from interpreted threads.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import complex64, cuda, float32, float64, int32

from example_kernels import tiled_matmul
from sim import simulate
from sim.access_batches import split_by_block
from sim.errors import KernelBug
from sim.events import ATOMIC, LOAD, LOCAL, SITES, STORE, Access, Finding, Observer
from sim.native.run import launch as native_launch
from sim.observers import COUNTERS, DEFAULT, Trace


class Everything(Observer):
    """Observer that records everything in the log, block by block."""

    def __init__(self):
        self.blocks, self.started, self.finished = {}, 0, 0

    def launch_started(self, context):
        self.space, self.started = context.space, self.started + 1

    def accesses(self, batch):
        values = iter(batch.values)
        for thread, site, address, size in zip(batch.thread, batch.site, batch.address, batch.size):
            what, value = site & 3, None if site & 3 == LOAD else next(values)
            self.keep(
                batch.block,
                batch.epoch,
                int(thread),
                what,
                int(site),
                self.space.element(address),
                size,
                value,
            )
        assert next(values, None) is None
        assert (batch.space == batch.address >> 34).all() and (np.diff(batch.position) == 1).all()
        assert len(np.unique(batch.segment)) >= len(np.unique(batch.thread))

    def branches(self, decisions):
        for thread, site, taken in zip(decisions.thread, decisions.site, decisions.taken):
            self.keep(decisions.block, decisions.epoch, int(thread), "branch", int(site), bool(taken))

    def collective(self, name, block, site):
        self.keep(block, None, None, name, site)

    def barrier_opened(self, block, epoch):
        self.keep(block, epoch, None, "barrier")

    def block_ended(self, block, epoch):
        self.keep(block, epoch, None, "end")

    def keep(self, block, epoch, thread, what, *facts):
        self.blocks.setdefault(block, {}).setdefault((epoch, thread, what), []).append(facts)

    def launch_finished(self, context):
        self.finished += 1


def kept(kernel, engine, grid, block, *arguments, observers=()):
    everything = Everything()
    launch = simulate(kernel, engine=engine, observers=[*observers, everything], on_finding="report")
    report = launch[grid, block](*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    assert everything.started == everything.finished == 1
    return report, everything.blocks


TILE = 8
matmul = tiled_matmul(TILE)


@cuda.jit
def warp_sums(x, out, bins):
    mine = cuda.local.array(3, float64)
    i = cuda.grid(1)
    mine[0] = x[i]
    mine[1] = mine[0] + 1
    value = mine[1] if i % 3 else mine[0]
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
    if cuda.threadIdx.x % 32 == 0:
        cuda.atomic.add(out, i // 32, value)
    cuda.atomic.max(bins, i, i)


@cuda.jit
def of_all_types(flags, bytes_, words, wide, halves, brains, complexes):
    parts = cuda.shared.array(4, complex64)
    i = cuda.threadIdx.x
    flags[i] = i % 2 == 0
    bytes_[i] = i - 2
    words[i] = -i
    wide[i] = (1 << 62) + i
    halves[i] = i / 2
    brains[i] = i
    complexes[i] = complex(i, -0.5)
    parts[i] = complex(1, i)


def arguments_of_all_types():
    dtypes = bool, np.int8, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16, np.complex128
    return [np.zeros(4, dtype) for dtype in dtypes]


ones = np.ones((16, 16), np.float32)
CASES = {
    "barriers": (matmul, (2, 2), (TILE, TILE), ones, ones * 3, ones * 0),
    "warps, local memory, atomics": (
        warp_sums,
        3,
        64,
        np.arange(192.0),
        np.zeros(6),
        np.zeros(192, np.int32),
    ),
    "a value of each type": (of_all_types, 1, 4, *arguments_of_all_types()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("checked", [False, True])
def test_an_observer_of_somebody_else_gets_the_same_from_compiled_code(case, checked):
    kernel, grid, block, *arguments = CASES[case]
    wanted_report, wanted = kept(kernel, "fibers", grid, block, *arguments)
    report, found = kept(kernel, "native", grid, block, *arguments, observers=DEFAULT if checked else ())
    assert report.notes[0] == "compiled"
    assert found.keys() == wanted.keys()
    for index, moments in wanted.items():
        assert found[index] == moments, index
    assert report.counters == wanted_report.counters


def test_a_trace_of_compiled_code_has_the_same_events():
    def events(engine):
        report = simulate(matmul, engine=engine, observers=[Trace])[(2, 2), (TILE, TILE)](
            ones, ones, ones * 0
        )
        trace = report.trace
        return sorted(map(str, (trace[i] for i in range(len(trace))))), report

    (fibers, _), (native, report) = events("fibers"), events("native")
    assert native == fibers and report.notes[0] == "compiled"
    assert str(report.timeline()) and str(report.memory_map("c"))


def local_sums(x, out):
    i = cuda.grid(1)
    mine = cuda.local.array(4, int32)
    for k in range(4):
        mine[k] = x[i] + k
    out[i] = mine[0] + mine[3]


class WithoutLocal(Observer):
    """Observer that does not subscribe to local memory."""

    local = False

    def __init__(self):
        self.values, self.spaces = [], set()

    def accesses(self, batch):
        self.values += batch.values
        self.spaces |= set(batch.space.tolist())


def test_accesses_to_local_memory_come_only_where_an_observer_wants_them():
    for engine in ("fibers", "native"):
        observer = WithoutLocal()
        report = simulate(local_sums, engine=engine, observers=[observer])[2, 4](
            np.arange(8), np.zeros(8, int)
        )
        assert LOCAL not in observer.spaces
        assert sorted(observer.values) == [2 * i + 3 for i in range(8)], engine
    assert report.notes == ("compiled",)


# --- regression tests ---------------------------------------------------------------------------------------


@cuda.jit
def racy(x):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    x[i] = s[31 - i]


def test_an_observer_hears_only_once_of_a_launch_that_is_run_again():
    counts = []
    for engine in ("fibers", "native"):
        report, blocks = kept(racy, engine, 1, 32, np.ones(32, np.float32), observers=DEFAULT)
        assert [finding.kind for finding in report.findings] == ["race-shared"]
        counts.append({moment: len(facts) for moment, facts in blocks[0, 0, 0].items()})
    assert counts[0] == counts[1]


@cuda.jit
def one_block_races(x):
    s = cuda.shared.array(64, float32)
    i, block = cuda.threadIdx.x, cuda.blockIdx.x
    s[i] = x[64 * block + i]
    if block == 700:
        s[63] = 1
    x[64 * block + i] = s[i]


def test_a_large_launch_is_observed_whole_and_once_while_some_blocks_are_explained(monkeypatch):
    # The 300 blocks after the error run to their end also on a slow machine.
    monkeypatch.setattr("sim.native.run.launch.SECONDS_AFTER_ERROR", 600.0)
    report, blocks = kept(one_block_races, "native", 1000, 64, np.ones(64_000, np.float32), observers=DEFAULT)
    assert {finding.kind for finding in report.findings} == {"race-shared"}
    assert len(blocks) == 1000
    assert all(len(moments[0, None, "end"]) == 1 for moments in blocks.values())


class Finder(Observer):
    """Observer that reports an error for each atomic."""

    def accesses(self, batch):
        for site in batch.site[batch.action == ATOMIC]:
            yield Finding(
                "atomic", "error", "atomics are slow", (Access("read", batch.block, (0, 0, 0), SITES[site]),)
            )


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_what_an_observer_finds_is_in_the_report(engine):
    with pytest.raises(KernelBug, match="atomics are slow"):
        simulate(warp_sums, engine=engine, observers=[Finder])[1, 32](
            np.ones(32), np.zeros(1), np.zeros(32, np.int32)
        )


class Broken(Observer):
    def accesses(self, batch):
        raise ZeroDivisionError("of the observer")


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_error_of_an_observer_is_raised_as_it_is(engine):
    with pytest.raises(ZeroDivisionError, match="of the observer"):
        simulate(warp_sums, engine=engine, observers=[Broken])[1, 32](
            np.ones(32), np.zeros(1), np.zeros(32, np.int32)
        )


class Fences(Observer):
    def fenced(self, at, reach):
        pass


def test_an_observer_of_something_that_no_log_has_gets_interpreted_threads():
    report = simulate(racy, engine="native", observers=[Fences])[1, 32](np.ones(32, np.float32))
    assert report.notes[0] == "interpreted, as Fences observes fenced, which compiled code does not log"


@cuda.jit
def last_block_is_long(x):
    for _ in range(2_000 if cuda.blockIdx.x == cuda.gridDim.x - 1 else 1):
        x[cuda.grid(1)] += 1


def test_a_block_whose_log_has_no_room_is_said_not_to_be_watched(monkeypatch):
    monkeypatch.setattr(native_launch, "LOG_CAPACITY", 70_000)
    launch = simulate(last_block_is_long, engine="native", observers=[*DEFAULT, *COUNTERS])
    report = launch[600, 32](np.zeros(600 * 32))
    assert report.notes[1:] == (
        "Banks, Branches, Coalescing, Traffic watched 599 of 600 blocks: the accesses of the others did not fit"
        " into the log",
    )
    assert report.counters["loads"] == 599 * 32
    small = simulate(last_block_is_long, engine="native", observers=COUNTERS)[1, 32](np.zeros(32))
    assert small.notes[0] == "interpreted: one block has more than 70,000 accesses to log"
    assert small.counters["loads"] == 2_000 * 32


def test_a_store_without_its_value_gets_none():
    """Split a log whose thread was ended before it could log the value of its last store."""
    block = type("Block", (), {"index": (0, 0, 0), "epoch": 0})()
    site = np.array([STORE, LOAD, STORE], np.int32)
    columns = [np.zeros(3, np.int64), np.zeros(3, np.int64), np.arange(3), site, np.zeros(3), np.ones(3)]
    (batch,) = split_by_block([block], np.array([3]), columns, [5])
    assert batch.values == [5, None]
