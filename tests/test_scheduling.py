"""Tests of the distribution of tests over processes.

Each test runs once, and the run ends even if a process crashes.
"""

from argparse import ArgumentTypeError
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from course.bootstrap import ROOT

FILES = {
    "test_a.py": 3,
    "test_b.py": 1,
    "test_ptx.py": 4,
    "test_c.py": 2,
}  # The tests of test_ptx.py are distributed one by one.
TESTS = [f"{file}::test_{place}" for file, number in FILES.items() for place in range(number)]


class Process:
    """A fake pytest-xdist process, as its scheduler sees it.

    It begins a test only after it has received the next test, or the message that there is none.
    """

    def __init__(self):
        self.gateway = SimpleNamespace(id="a process")
        self.queue, self.shutting_down = [], False

    def send_runtest_some(self, places):
        self.queue += places

    def shutdown(self):
        self.shutting_down = True

    def may_run(self):
        return len(self.queue) > 1 or self.queue and self.shutting_down


def finished(scheduler, crashing):
    """Simulate pytest-xdist's controller with two processes. Return the tests that were begun, in order.

    A crashed process is replaced. The simulation ends when all processes have ended or wait.
    """
    processes, begun = [Process(), Process()], []
    for process in processes:
        scheduler.add_node(process)
    for process in processes:
        scheduler.add_node_collection(process, TESTS)
    scheduler.schedule()
    while ready := [process for process in processes if process.may_run()]:
        process = ready[len(begun) % len(ready)]
        place = process.queue.pop(0)
        begun.append(TESTS[place])
        if TESTS[place] in crashing:
            assert scheduler.remove_node(process) == TESTS[place]
            processes[processes.index(process)] = another = Process()
            scheduler.add_node(another)
            scheduler.add_node_collection(another, TESTS)
            scheduler.schedule()
        else:
            scheduler.mark_test_complete(process, place)
        if scheduler.tests_finished:
            for process in processes:
                process.shutdown()
    return begun


@pytest.fixture
def conftest(pytestconfig):
    return pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))


@pytest.fixture
def scheduler(conftest):
    options = SimpleNamespace(
        getvalue=lambda name: ["2*popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    return lambda: conftest.ByFile(options)


def test_parts_are_all_tests_and_a_notebook_is_whole(conftest):
    tests = [*TESTS, *(f"solutions/{lesson}.ipynb::Cell {cell}" for lesson in range(9) for cell in range(9))]
    parts = [[test for test in tests if conftest.is_in(conftest.part_of(f"{k}/3"), test)] for k in (1, 2, 3)]
    assert sorted(chain(*parts)) == sorted(tests) and all(parts)
    notebooks = [{test.partition("::")[0] for test in part if ".ipynb" in test} for part in parts]
    assert sum(map(len, notebooks)) == 9
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(ArgumentTypeError, match="wanted K/N"):
            conftest.part_of(wrong)


def test_each_test_runs_once(scheduler):
    assert sorted(finished(scheduler(), crashing=())) == sorted(TESTS)


@pytest.mark.parametrize("first", TESTS)
def test_each_test_runs_once_where_one_or_two_crash(scheduler, first):
    for second in TESTS:
        assert sorted(finished(scheduler(), crashing=(first, second))) == sorted(TESTS)


def item_with(*markers):
    """Return a fake pytest item with these markers."""
    return SimpleNamespace(
        path=Path("test_a.py"),
        nodeid=f"test_a.py::{markers}",
        user_properties=[],
        get_closest_marker=lambda name: name in markers or None,
    )


@pytest.mark.parametrize("everything", [False, True])
def test_tests_that_cannot_run_are_deselected_and_counted(conftest, monkeypatch, everything):
    """Run the hook in a process of pytest-xdist. The controller, which collects no tests, gets the counts."""
    monkeypatch.setattr(conftest, "GPUS", [])
    monkeypatch.setattr(conftest, "TRITON", False)
    items = [
        item_with(),
        item_with("nightly"),
        item_with("gpu"),
        item_with("gpu", "nightly"),
        item_with("triton"),
    ]
    dropped, options = [], {"all": everything, "part": None}
    worker = SimpleNamespace(
        getoption=options.get,
        hook=SimpleNamespace(pytest_deselected=lambda items: dropped.extend(items)),
        stash={},
        workeroutput={},
    )
    before = list(items)
    conftest.pytest_collection_modifyitems(worker, items)
    assert items == before[: 2 if everything else 1] and dropped == before[len(items) :]

    controller = SimpleNamespace(stash={})
    crashed = SimpleNamespace(config=controller)
    ended = SimpleNamespace(config=controller, workeroutput=worker.workeroutput)
    for node in (ended, crashed):
        conftest.pytest_testnodedown(node, None)
    wanted = {"gpu": 2, "triton": 1} | ({} if everything else {"left out": 2})
    assert controller.stash[conftest.omitted] == wanted

    for status, ends in ((5, 0), (1, 1)):
        session = SimpleNamespace(config=controller, exitstatus=status)
        conftest.pytest_sessionfinish(session, status)
        assert session.exitstatus == ends
