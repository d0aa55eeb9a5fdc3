"""Tests that run every kernel of the corpus under several seeds and engines.

The buggy kernel must produce exactly its findings. Its fixed twin must produce no finding, and numpy's
result. With --all, every case also runs compiled and with 20 seeds on both interpreted engines.

A case is a class, and its docstring names the bug:

    launch: the launch configuration in the brackets
    arguments(): returns fresh arguments
    wanted(*arguments): returns {argument: its value after the fixed kernel}
    findings: (kind, severity, array, *(source line, action)) per finding
    options: passed to `simulate`
    hangs: whether the buggy kernel may hang a GPU
    fixed_launch etc.: the same for the fixed twin, if it differs
"""

import numpy as np
import pytest
from numba import cuda

from corpus_cases import CASES, launched
from sim import simulate
from sim.observers import DEFAULT
from sim.observers.races import Races

RUNS = [("native", 0), *((engine, seed) for seed in range(20) for engine in ("fibers", "threads"))]
KINDS = set(
    "out-of-bounds negative-index race-shared race-global uninitialized-read barrier-divergence"
    " warp-divergence deadlock no-progress misuse".split()
)
LONG = {"left.RaceInCellSixThousand"}  # A run of this case takes 1 to 4 CPU seconds.
EVERY = [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in CASES]
EQUAL_WRITES = [
    name
    for name, case in CASES.items()
    if {key[:2] for key in case["findings"]} <= {("race-shared", "warning"), ("race-global", "warning")}
]


def runs(name, twin):
    """Return (RUNS, number of runs in a CI run), with the runs of a CI run first.

    A CI run executes all cases on fibers. For every tenth case, it also runs one twin compiled and the other
    twin on threads.
    """
    place = list(CASES).index(name)
    compiled = (place + (twin == "fixed")) % 2
    first = [("fibers", 0), ("native" if compiled else "threads", 0)]
    return first + [run for run in RUNS if run not in first], 1 if place % 10 else 2


def key(finding):
    """Return a finding in the corpus's form, which identifies both accesses by the text of their lines."""
    parties = {(access.site.source if access.site else "", access.what) for access in finding.accesses}
    return finding.kind, finding.severity, finding.array, *sorted(parties)


@pytest.mark.parametrize("name", EVERY)
def test_finds_the_bug(name, few, record_property):
    unlike = {}
    for engine, seed in few(*runs(name, "buggy")):
        report, _ = launched(CASES[name], "buggy", engine=engine, seed=seed)
        found = sorted(map(key, report.findings), key=str)
        if found != sorted(CASES[name]["findings"], key=str):
            unlike[engine, seed] = found
    record_property("corpus", "missed" if unlike else "found")
    assert not unlike


@pytest.mark.parametrize("name", EVERY)
def test_finds_nothing_in_the_twin(name, few, record_property):
    case, alarms = CASES[name], {}
    for engine, seed in few(*runs(name, "fixed")):
        report, left = launched(case, "fixed", engine=engine, seed=seed)
        if report.findings:
            alarms[engine, seed] = [finding.message for finding in report.findings]
        for argument, wanted in case["wanted"](*case.get("fixed_arguments", case["arguments"])()).items():
            np.testing.assert_allclose(
                left[argument], wanted, rtol=1e-6, err_msg=f"{argument}, {engine}, seed {seed}"
            )
    record_property("corpus", "false alarm" if alarms else "quiet")
    assert not alarms


@pytest.mark.parametrize("name", EQUAL_WRITES)
def test_equal_writes_can_be_allowed(name):
    allowing = [Races(allow_equal_writes=True) if observer is Races else observer for observer in DEFAULT]
    report, _ = launched(CASES[name], "buggy", observers=allowing)
    assert report.findings == ()


@pytest.mark.parametrize("ordered", [True, False])
def test_equal_writes_may_change_from_round_to_round_in_order(ordered):
    """Repeat the same line as often as a compiler would unroll the loop."""

    @cuda.jit
    def rounds(x, ordered):
        for number in range(3):
            x[0] = number
            if ordered:
                cuda.syncwarp()

    report = simulate(rounds, observers=[Races(allow_equal_writes=True)], on_finding="report")[1, 4](
        np.zeros(1), ordered
    )
    assert [finding.kind for finding in report.findings] == ["race-global"] * (not ordered)


def test_the_corpus_covers_every_kind():
    assert len(CASES) >= 60 and len(EQUAL_WRITES) >= 2
    assert {key[0] for case in CASES.values() for key in case["findings"]} == KINDS
