"""Tests of the columns of `report.by_line()`.

Observers declare them, and no counter is displayed under another counter's name.
"""

import numpy as np
import pytest
from numba import cuda

from sim import LaunchError, simulate
from sim.events import LOAD, Column, Observer
from sim.observers import COUNTERS, DEFAULT
from sim.observers.epochs import EpochCounter


class WarpLoads(EpochCounter):
    """Observer that counts the loads of each warp."""

    title = "loads of mine"
    names = ("warp_loads",)

    def accesses(self, batch):
        mine = batch.action == LOAD
        if mine.any():
            self.keep(batch.block, batch.thread[mine], batch.site[mine])

    def epochs(self, lane, site):
        order, request = self.spec.requests(lane, site)
        self.count(site[order], request)


class Shown(WarpLoads):
    columns = (Column("loads of warps", ("warp_loads",), order=1, meaning="loads of warps: mine."),)


class Undeclared(Observer):
    """Observer that counts the stores on each line, without declaring a column."""

    def accesses(self, batch):
        self.sites = batch.site[batch.action != LOAD].tolist()

    def launch_finished(self, context):
        for site in self.sites:
            line = context.line(site)
            line["my stores"] = line.get("my stores", 0) + 1


@cuda.jit
def scaled(x, out):
    i = cuda.grid(1)
    value = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
    out[i] = value


def report(*observers, engine="fibers"):
    launch = simulate(scaled, engine=engine, observers=[*DEFAULT, *observers])
    return launch[1, 64](np.ones(64, np.float32), np.zeros(64, np.float32))


def headings(found):
    return found.by_line().text.splitlines()[0].rsplit("line", 1)[0].split()


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_a_counter_of_somebody_else_has_its_own_column_and_line(engine):
    found = report(*COUNTERS, WarpLoads, engine=engine)
    assert found.counters["loads of mine"] == {"warp_loads": 2}
    assert "loads of mine: warp_loads 2" in str(found)
    assert headings(found)[-1] == "warp_loads"
    (shuffles,) = [line for line in found.by_line().text.splitlines() if "shfl" in line]
    assert shuffles.split()[:6] == [
        "64",
        "256",
        "8",
        "(8)",
        "2",
        "2",
    ]  # These are loads, bytes, sectors, warp operations and the observer's own counter.


def test_an_observer_says_how_its_counters_are_shown():
    found = report(*COUNTERS, Shown)
    assert headings(found)[:3] == ["loads", "of", "warps"]
    assert "loads of warps: mine." in found.by_line().body
    assert "sectors: pieces of 32 bytes" in found.by_line().body


def test_a_counter_that_no_column_has_is_shown_under_its_own_name():
    found = report(*COUNTERS, Undeclared)
    assert headings(found)[-2:] == ["my", "stores"]
    assert "sectors" not in report(Undeclared).by_line().body


class AlsoLoads(WarpLoads):
    names = ("loads",)


def test_two_observers_do_not_count_under_one_name():
    with pytest.raises(LaunchError, match="Traffic and AlsoLoads both count 'loads' for source lines"):
        report(*COUNTERS, AlsoLoads)


def test_a_device_function_that_is_called_twice_is_shown_once():
    @cuda.jit(device=True)
    def element(x, i):
        return x[i]

    @cuda.jit
    def kernel(x, out):
        out[cuda.threadIdx.x] = element(x, cuda.threadIdx.x) + element(x, 0)

    for engine in ("fibers", "native"):
        report = simulate(kernel, engine=engine, observers=COUNTERS)[1, 4](np.ones(4), np.zeros(4))
        assert str(report.by_line()).count("def element(") == 1
