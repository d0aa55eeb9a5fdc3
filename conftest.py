"""Configuration of pytest for the tests and the stored notebooks.

Progress bars are off, and the learner's own progress file is not used. The longest tests run with a sample of
their cases, unless --all is given. The summary counts the tests that do not run, for example because there is
no GPU.
"""

import gc
import os
import sys
from argparse import ArgumentTypeError
from collections import Counter
from importlib.util import find_spec
from itertools import chain, compress
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import settings
from nbval.plugin import IPyNbCell
from xdist.scheduler import LoadFileScheduling

import forked_kernels
from course.doctor import gpu_names

GPUS = gpu_names()
TRITON = find_spec("triton") is not None
# The tests of these files share nothing, so they are distributed one by one.
ALONE = {"test_mutants.py", "test_corpus.py", "test_ptx.py", "test_notebooks.py"}
# Files whose names begin alike share compiled kernels, so one process runs all of them.
TOGETHER = ("test_conv_", "test_distributed"), ("test_latent_",), ("test_multi_token_",)
state = pytest.StashKey[Path]()
omitted = pytest.StashKey[Counter]()  # {reason: number of tests deselected}


def pytest_addoption(parser):
    parser.addoption(
        "--all",
        action="store_true",
        help=(
            "run every seed, shape and architecture (make test-all); without it, the longest tests run a"
            " sample of them"
        ),
    )
    parser.addoption(
        "--part",
        type=part_of,
        metavar="K/N",
        help="run the K-th of N parts of the tests; the N parts together are all tests",
    )


def part_of(text):
    """Parse "K/N" and return (K, N)."""
    try:
        number, parts = map(int, text.split("/"))
    except ValueError:
        number, parts = 0, 0
    if not 1 <= number <= parts:
        raise ArgumentTypeError(f"{text!r}; wanted K/N, such as 2/8, with K from 1 to N")
    return number, parts


def pytest_configure(config):
    # CI draws the same examples in every run. No example fails because it is slow on a busy machine.
    settings.register_profile("course", derandomize="CI" in os.environ, deadline=None)
    settings.load_profile("course")
    folder = TemporaryDirectory(prefix="course-tests-")
    config.add_cleanup(folder.cleanup)
    config.stash[state] = Path(folder.name)
    os.environ |= {
        "COURSE_QUIET": "1",
        "COURSE_STATE_DIR": folder.name,
        "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0",
        "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY": "0",
    }
    # Tests start some hundred processes. Containers often set this variable, and then each process compiles
    # all modules that it imports from their source, which takes about 0.5 s of CPU time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # there is one worker per core
    if sys.platform == "linux" and not GPUS and not config.getoption("--all"):
        forked_kernels.install()


def is_in(part, nodeid):
    """Return whether a test is in the part (K, N).

    All cells of a notebook are in the same part. The tests of a file, some of which take hours in total, are
    divided among the parts.
    """
    (number, parts), (file, _, _) = part, nodeid.partition("::")
    return crc32((file if file.endswith(".ipynb") else nodeid).encode()) % parts == number - 1


class ByFile(LoadFileScheduling):
    """A scheduler that gives each process one file at a time.

    Files that share compiled kernels go to the same process. The tests of the longest files are distributed
    one by one, so that all processes end at about the same time.

    A process that crashes fails one test. pytest-xdist 3.8 would distribute that test and all finished files
    again, so that the next process crashes too, or waits forever for another test.
    """

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        name = Path(file).name
        return nodeid if name in ALONE else next(filter(name.startswith, TOGETHER), file)

    def remove_node(self, node):
        """Return the test in which this process crashed, or None.

        The tests that it had not begun go to other processes.
        """
        units = self.assigned_work.pop(node).values()
        crashed, *left = [test for unit in units for test, done in unit.items() if not done] or [None]
        for test in left:
            self.workqueue.setdefault(self._split_scope(test), {})[test] = False
        for other in self.nodes if left else ():
            self._reschedule(other)
        return crashed

    def _reschedule(self, node):
        """Give a process at least two tests, or announce that there are no more.

        A process begins a test only when it has received the next one or that announcement.
        """
        if node in self.registered_collections:  # otherwise, it replaces a crashed process
            super()._reschedule(node)
            while self._pending_of(self.assigned_work[node]) < 2 and not node.shutting_down:
                super()._reschedule(node)


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection():
    """Pause the garbage collector while pytest collects the tests.

    It took a third of the time, and the objects of the collection live until the end anyway.
    """
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000)


@pytest.fixture
def few(request):
    """Return the function few(cases, n), which returns the first n cases of a test, or with --all every case.

    The summary counts the cases that were left out.
    """

    def choose(cases, n):
        chosen = list(cases) if request.config.getoption("all") else list(cases)[:n]
        request.node.user_properties.append(("left out", len(cases) - len(chosen)))
        return chosen

    return choose


def pytest_collection_modifyitems(config, items):
    """Select, sort and mark the tests.

    Tests marked nightly are deselected without --all. Tests marked triton or gpu are deselected if Triton or
    a GPU is missing. These are almost half of all tests, and reporting each of them as skipped would take
    4 ms of CPU time. The summary counts them. Cells tagged gpu show their recorded output if there is no GPU.
    Notebooks, which one process runs as a whole, come first, and the files whose tests are distributed one by
    one come last, so that all processes end at about the same time.
    """
    if config.getoption("part"):
        chosen = [is_in(config.getoption("part"), item.nodeid) for item in items]
        deselect(config, items, chosen)
    reasons = [list_missing(config, item) for item in items]
    deselect(config, items, [not reason for reason in reasons])
    config.stash[omitted] = Counter(chain(*reasons))
    if hasattr(config, "workeroutput"):  # in a process of pytest-xdist
        config.workeroutput["omitted"] = dict(config.stash[omitted])
    items.sort(key=lambda item: (item.path.suffix != ".ipynb") + (item.path.name in ALONE))
    for item in items:
        if item.get_closest_marker("triton"):
            item.user_properties.append(("triton", 1))
        if wants_gpu(item):
            if isinstance(item, IPyNbCell):
                item.options["check"] &= not GPUS  # with a GPU, outputs differ, and only errors fail
            if GPUS:
                item.user_properties.append(("gpu", 1))


def deselect(config, items, chosen):
    """Keep the items whose entry in `chosen` is true."""
    config.hook.pytest_deselected(items=[item for item, here in zip(items, chosen) if not here])
    items[:] = compress(items, chosen)


def list_missing(config, item):
    """Return the reasons why a test does not run: "left out", "triton" and "gpu"."""
    reasons = []
    if item.get_closest_marker("nightly") and not config.getoption("all"):
        reasons.append("left out")
    if item.get_closest_marker("triton") and not TRITON:
        reasons.append("triton")
    if wants_gpu(item) and not GPUS and not isinstance(item, IPyNbCell):
        reasons.append("gpu")
    return reasons


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Receive the numbers of deselected tests from a process. All processes collect the same tests."""
    if counts := getattr(node, "workeroutput", {}).get("omitted"):
        node.config.stash[omitted] = Counter(counts)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Return exit code 0 if all tests were deselected because of a missing GPU, Triton or --all.

    pytest regards a run without tests as an error.
    """
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(omitted, None):
        session.exitstatus = pytest.ExitCode.OK


def wants_gpu(item) -> bool:
    """Return whether a test needs a GPU, or whether the output of a notebook's cell differs with a GPU."""
    if isinstance(item, IPyNbCell):
        return "gpu" in item.cell.metadata.get("tags", [])
    return item.get_closest_marker("gpu") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Give each stored notebook an empty progress folder before its kernel starts, as the build does."""
    if isinstance(item, IPyNbCell):
        folder = item.config.stash[state] / item.path.stem
        folder.mkdir(exist_ok=True)
        os.environ["COURSE_STATE_DIR"] = str(folder)


def pytest_terminal_summary(terminalreporter):
    properties = [
        item
        for outcome in ("passed", "failed", "skipped")
        for report in terminalreporter.stats.get(outcome, [])
        for item in getattr(report, "user_properties", [])
    ]
    for name, line in properties:
        if name == "summary":
            terminalreporter.write_line(line)
    counts = Counter(terminalreporter.config.stash.get(omitted, {}))
    for name, number in properties:
        if name in ("left out", "triton", "gpu"):
            counts[name] += number
    further = f"{counts['left out']:,} further seeds, shapes and architectures; make test-all has them"
    terminalreporter.write_line(f"left out: {further if counts['left out'] else 'nothing'}")
    gpu = "run" if GPUS else "not run, no CUDA GPU here"
    triton = "run" if TRITON else "not run, no Triton here: pip install triton"
    terminalreporter.write_line(f"GPU tests: {counts['gpu']} {gpu}")
    terminalreporter.write_line(f"Triton tests: {counts['triton']} {triton}")
