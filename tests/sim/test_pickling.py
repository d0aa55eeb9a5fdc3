"""Tests that reports, findings and exceptions survive the transfer between processes unchanged."""

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest

import remote
import sim
from sim import KernelBug, LaunchError, ThreadError, simulate
from sim.errors import Stuck
from sim.events import SITES, Site
from sim.isa.invalid import InvalidOperand
from sim.native.lower.module import CannotLower

TRITON = find_spec("triton") is not None
NEED_TRITON = {f"sim.triton_host.{name}" for name in ("driver", "launcher", "tuning")}

CASES = [(make, engine) for make in ("python", "ptx", "cuda_cpp") for engine in ("fibers", "native")]
SITE = Site("load", "kernel", 3, 4, "y = x[i]")


def carried(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture(scope="module")
def pool():
    """Return a worker process that has not imported this project, and numbers sites independently."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def executor():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("make, engine", CASES)
def test_a_report_from_another_process(pool, make, engine):
    SITES.add(Site("load", f"only here, for {make} by {engine}", 1, 0, "so that numbers differ"))
    report, said = pool.apply(remote.shown, (getattr(remote, make), engine))
    assert report.findings and remote.pictures(report) == said
    here = remote.report(getattr(remote, make), engine)
    assert report == here and (report.findings, str(report)) == (here.findings, str(here))
    assert report.trace is not None and list(report.trace) == list(here.trace)
    assert report.timeline().text == here.timeline().text


@pytest.mark.parametrize("make, engine", CASES)
@pytest.mark.parametrize("send", ["multiprocessing", "concurrent.futures"])
def test_a_kernel_bug_from_another_process(pool, executor, send, make, engine):
    given = getattr(remote, make), engine
    call = pool.apply_async if send == "multiprocessing" else lambda f, given: executor.submit(f, *given)
    wait = (lambda found: found.get(60)) if send == "multiprocessing" else lambda found: found.result(60)
    with pytest.raises(KernelBug) as caught:
        wait(call(remote.bug, given))
    bug, said = wait(call(remote.bug_and_text, given))
    assert str(caught.value) == str(bug) == said
    assert caught.value.findings == bug.findings == bug.report.errors and bug.findings[0].message in said


def test_what_refuses_a_launch_and_what_a_thread_raises_come_from_another_process(pool, executor):
    with pytest.raises(LaunchError, match="a block of|block.x"):
        pool.apply(remote.refused)
    with pytest.raises(ThreadError, match="of block 0 raised AssertionError"):
        executor.submit(remote.failing).result(60)


@pytest.mark.parametrize("make, engine", CASES)
@pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, carried])
def test_copies(carry, make, engine):
    report = remote.report(getattr(remote, make), engine)
    bug = KernelBug(report)
    bug.add_note("seen by the caller")
    again = carry(bug)
    assert carry(report) == report and remote.pictures(carry(report)) == remote.pictures(report)
    assert str(again) == str(bug) and again.findings == bug.findings and again.report == report
    assert again.__notes__ == ["seen by the caller"]


def exceptions():
    """Return every exception class in the package."""
    for found in pkgutil.walk_packages(sim.__path__, "sim."):
        if not found.name.endswith("__main__") and (TRITON or found.name not in NEED_TRITON):
            importlib.import_module(found.name)
    classes, waiting = set(), [BaseException]
    while waiting:
        below = waiting.pop().__subclasses__()
        classes |= {each for each in below if each.__module__.startswith("sim.")}
        waiting += below
    return classes


def test_every_exception_of_the_package():
    """Send every exception of the package. A new class with different parameters must be added here."""
    report = remote.report(remote.python, "fibers")
    own = {KernelBug: (report,), CannotLower: ("a lambda", SITE), Stuck: (SITE, True)}
    own[InvalidOperand] = "a rank of 4", "A cluster has 2 blocks.", "use a rank below 2"
    classes = exceptions()
    assert classes >= {*own, LaunchError, ThreadError}
    for each in classes:
        error = each(*own.get(each, ("what is wrong",)))
        again = carried(error)
        assert (type(again), str(again), again.args) == (each, str(error), error.args)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, carried])
def test_memory_that_nobody_has_written_stays_so(carry):
    def sums(x, out):
        out[0] = x[0] + x[1]

    x = sim.empty(2)
    x[0] = 1
    assert [f.index for f in simulate(sums, on_finding="report")[1, 1](carry(x), np.zeros(1)).findings] == [
        (1,)
    ]
    x[1] = 1
    assert simulate(sums)[1, 1](carry(x), np.zeros(1)).findings == ()
