"""Tests of the counts and options of pytest --cuda-sim.

The last line counts every launch, including exceptions and repeated attempts. Invalid options and marks are
rejected.
"""

import ast
import re
from pathlib import Path

import pytest

import sim
from plugin_project import PROJECT, RACE, parts, total
from sim.events import KINDS

pytest_plugins = ["pytester"]

RAISES = (
    PROJECT
    + """
from sim import LaunchError

def fails(x):
    assert x[cuda.threadIdx.x] > 1, "too small"

def one_line(x):
    if x[0] < 2: raise ValueError("one")

silent, told, oneline = cuda.jit(fails), cuda.jit(debug=True, opt=False)(fails), cuda.jit(one_line)
ONES = np.ones(32)

def race():
    tree_sum[1, 64](np.ones(64, np.float32), np.zeros(1, np.float32))

def test_every_thread_fails():
    silent[1, 32](ONES)
    silent[1, 32](ONES)

def test_raise_behind_an_if():
    oneline[1, 32](ONES)

@pytest.mark.cuda_sim(allow="exception")
def test_exceptions_are_allowed():
    silent[1, 32](ONES)

def test_a_debugging_kernel_tells_the_host():
    with pytest.raises(AssertionError, match="too small"):
        told[1, 32](ONES)

def test_a_debugging_kernel_fails_its_test():
    told[1, 32](ONES)

def test_refused():
    with pytest.raises(LaunchError):
        tree_sum[1, 2048](X, X)
    with pytest.raises(TypeError):
        scale[1, 32](X.astype(np.float64), 2)

@pytest.mark.cuda_sim(tools=[])
def test_nobody_watches():
    race()

def test_clean():
    add[2, 64](X, X, X.copy())

@pytest.mark.cuda_sim(allow=["race-shared"])
def test_allowed():
    race()

@pytest.mark.xfail(strict=True)
def test_fails_as_expected():
    race()
    assert 0

def test_skipped_after_a_race():
    race()
    pytest.skip("changed its mind")

def test_skipped_after_nothing():
    pytest.skip("before any launch")
"""
)


@pytest.mark.parametrize("engine", ["native", pytest.param("fibers", marks=pytest.mark.nightly)])
def test_exceptions_refusals_and_launches_nobody_watched_are_counted(pytester, run, engine):
    pytester.makepyfile(test_raises=RAISES)
    result = run("--cuda-sim", f"--cuda-sim-engine={engine}", "-rfE", "--cuda-sim-report=pages")
    result.assert_outcomes(passed=6, failed=3, errors=1, skipped=2, xfailed=1)
    said = result.stdout.str()
    assert "exception: a thread raised AssertionError: too small · block 0 · thread " in said
    assert re.search(
        r"^  thread \d+ of block 0 raised AssertionError  fails line 2  assert x\[cuda", said, re.M
    )
    assert re.search(r"^  Launched from .*test_raises.py:\d+; 1 further launch with the same.", said, re.M)
    assert re.search(r"^  Likely fix: .*--cuda-sim-allow=exception\.$", said, re.M)
    failed = re.findall(r"^(FAILED|ERROR) test_raises.py::(\w+)", said, re.M)
    assert sorted(failed) == [
        ("ERROR", "test_skipped_after_a_race"),
        ("FAILED", "test_a_debugging_kernel_fails_its_test"),
        ("FAILED", "test_every_thread_fails"),
        ("FAILED", "test_raise_behind_an_if"),
    ]
    counts = (
        "cuda-sim: 13 launches = 1 clean + 3 with findings + 6 raised + 2 refused + 1 unwatched, in 11 tests"
    )
    assert counts in said and total(result) == sum(parts(result)) == 13
    index = (pytester.path / "pages" / "index.html").read_text(encoding="utf-8")
    assert "test_every_thread_fails</a></td><td>2</td><td>1 exception</td>" in index


def test_the_launches_of_several_processes_are_added_up(pytester, run):
    pytest.importorskip("xdist")
    pytester.makepyfile(test_raises=RAISES)
    result = run("-p", "xdist.plugin", "-n", "2", "--cuda-sim")
    counts = "13 launches = 1 clean + 3 with findings + 6 raised + 2 refused + 1 unwatched, in 11 tests"
    assert f"cuda-sim: {counts}" in result.stdout.str()


MEASURES = """
import numpy as np, pytest
from numba import cuda

@cuda.jit
def racy(x):
    x[0] = cuda.threadIdx.x

def launch():
    racy[1, 32](np.zeros(1))

@pytest.mark.cuda_sim(tools=["counters"])
def test_counters():
    launch()

@pytest.mark.cuda_sim(tools=["trace"])
def test_trace():
    launch()

@pytest.mark.cuda_sim(tools=["counters", "misuse"])
def test_counters_and_a_check():
    launch()
"""


def test_launches_that_are_only_measured_are_unwatched(pytester, run):
    pytester.makepyfile(test_measures=MEASURES)
    counts = "cuda-sim: 3 launches = 1 clean + 2 unwatched, in 3 tests, 3 by native; 0 findings"
    assert counts in run("--cuda-sim").stdout.str()


def test_nothing_is_launched(pytester, run):
    pytester.makepyfile(test_plain="def test_plain():\n    pass")
    run("--cuda-sim").stdout.fnmatch_lines(["cuda-sim: 0 launches, in 0 tests; 0 findings"])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_findings_outside_tests_fail_the_run(pytester, run, workers):
    pytester.makepyfile(
        test_import=PROJECT + "tree_sum[1, 64](np.ones(64, np.float32), np.zeros(1, np.float32))"
    )
    options = ["-p", "xdist.plugin", "-n", str(workers)] if workers else []
    result = run(*options, "--cuda-sim")
    assert result.ret == pytest.ExitCode.TESTS_FAILED and result.stdout.str().count(RACE) == 1
    # each process of pytest-xdist imports the file, and launches the kernel
    launches = {0: "1 launch = 1 with findings", 2: "2 launches = 2 with findings"}[workers]
    result.stdout.fnmatch_lines([f"cuda-sim: {launches}, in 0 tests and outside tests*1 finding*"])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_race_at_import_fails_the_run_but_no_test(pytester, run, workers):
    """Run tests that have nothing to do with a launch at import, which each process of pytest-xdist repeats."""
    pytester.makepyfile(
        test_import=PROJECT
        + "tree_sum[1, 64](np.ones(64, np.float32), np.zeros(1, np.float32))\n"
        + "@pytest.mark.parametrize('number', range(4))\n"
        + "def test_add(number): add[2, 64](X, X, X.copy())\n"
    )
    options = ["-p", "xdist.plugin", "-n", str(workers)] if workers else []
    result = run(*options, "--cuda-sim", "--cuda-sim-report=pages")
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED and result.stdout.str().count(RACE) == 1
    races = max(workers, 1)
    total = f"{4 + races} launches = 4 clean + {races} with findings, in 4 tests and outside tests"
    assert f"cuda-sim: {total}" in result.stdout.str()
    index = (pytester.path / "pages" / "index.html").read_text(encoding="utf-8")
    (page,) = re.findall(rf'href="([^"]+)">outside tests</a></td><td>{races}</td><td>1 race-shared<', index)
    assert "race-shared" in (pytester.path / "pages" / page).read_text(encoding="utf-8")
    result = run(*options, "--cuda-sim", "--cuda-sim-allow=race-shared")
    assert result.ret == pytest.ExitCode.OK


AGAIN = """
import pytest
from _pytest.runner import runtestprotocol

# as pytest-rerunfailures does it: the reports of an attempt that fails end with the one that failed
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for attempt in range(3):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            again = report.failed and attempt < 2
            if again:
                report.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=report)
            if again:
                item._initrequest()
                break
        else:
            break
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

def pytest_report_teststatus(report):
    if report.outcome == "rerun":
        return "rerun", "R", ("RERUN", {"yellow": True})
"""
FLAKY = (
    PROJECT
    + """
def race():
    tree_sum[1, 64](np.ones(64, np.float32), np.zeros(1, np.float32))

times = []

def test_always():
    race()

def test_once():
    add[2, 64](X, X, X.copy())
    times.append(1)
    if len(times) == 1:
        race()

@pytest.fixture
def closing():
    yield
    times.append(1)
    if len(times) == 3:
        race()

def test_in_a_fixtures_end(closing):
    add[2, 64](X, X, X.copy())
"""
)


@pytest.mark.parametrize("real", [False, True])
def test_tests_that_run_again(pytester, run, real):
    """Repeat failed tests. Each attempt is judged by its own findings, and all launches of all attempts are
    counted."""
    if real:
        pytest.importorskip("pytest_rerunfailures")
    options = ["-p", "pytest_rerunfailures", "--reruns=2"] if real else ["-p", "again"]
    pytester.makepyfile(test_flaky=FLAKY, again=AGAIN)
    result = run(*options, "--cuda-sim", "--cuda-sim-report=pages", "-rf")
    assert result.parseoutcomes().items() >= {"passed": 3, "failed": 1, "rerun": 4}.items()
    said = result.stdout.str()
    assert re.findall(r"^FAILED test_flaky.py::(\w+)", said, re.M) == ["test_always"]
    counts = "9 launches = 4 clean + 5 with findings, in 3 tests, 9 by native; 1 finding (1 race-shared)"
    assert f"cuda-sim: {counts}" in said
    index = (pytester.path / "pages" / "index.html").read_text(encoding="utf-8")
    names = "test_always", "test_once", "test_in_a_fixtures_end"
    assert [index.count(f"{name}</a></td><td>3</td>") for name in names] == [1, 1, 1]


@pytest.mark.parametrize(
    ("option", "wrong", "nearest"),
    [
        ("--cuda-sim-allow=race-globl", "race-globl: not among out-of-bounds,", "race-global"),
        ("--cuda-sim-allow=misuse,Exception", "Exception: not among out-of-bounds,", "exception"),
        ("--cuda-sim-tools=boundz", "boundz: not among bounds, races,", "bounds"),
        ("--cuda-sim-seeds=0,x", "0,x: not a list of whole numbers, such as 0,1,2", None),
        ("--cuda-sim-seeds=-1", "-1: not a list of whole numbers", None),
    ],
)
def test_a_wrong_option_is_refused(run, option, wrong, nearest):
    result = run("--cuda-sim", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and wrong in result.stderr.str()
    assert nearest is None or f"; the nearest is {nearest}" in result.stderr.str()


@pytest.mark.parametrize(
    ("mark", "wrong"),
    [
        ("allow=['race-globl']", "allow of the mark cuda_sim: race-globl: *; the nearest is race-global"),
        pytest.param(
            "tools='boundz'",
            "tools of the mark cuda_sim: boundz: not among *; the nearest is bounds",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "engine='fibres'",
            "engine of the mark cuda_sim: fibres: not among *; the nearest is fibers",
            marks=pytest.mark.nightly,
        ),
        ("allowed=[]", "the mark cuda_sim has no argument allowed"),
    ],
)
def test_a_wrong_mark_is_refused_before_any_test(pytester, run, mark, wrong):
    first = "import pytest\ndef test_first():\n    print('RUNS')\n"
    pytester.makepyfile(f"{first}@pytest.mark.cuda_sim({mark})\ndef test():\n    pass")
    result = run("--cuda-sim", "-s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "RUNS" not in result.stdout.str()
    result.stderr.fnmatch_lines([f"*::test: {wrong}*"])


def test_the_list_of_kinds_is_complete():
    """Compare the kinds that can be allowed with all kinds that are reported, and with the README's table."""
    home, constructed = Path(sim.__file__).parent, set()
    for path in home.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and node.args:
                constructed |= {n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)}
    readme = (home / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## What it finds")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.M)
    assert {kind for row in rows for kind in re.findall(r"`([\w-]+)`", row)} == set(KINDS)
    assert constructed - {"race-"} <= set(KINDS) and "race-" in constructed
