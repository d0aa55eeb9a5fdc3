"""Every kernel of the corpus under seeds and engines (with --all compiled, and 20 seeds of both interpreted
engines): the buggy one gives exactly its findings; its fixed twin gives none, and numpy's result.

A case is a class: its docstring names the bug, `launch` is what stands in the brackets, `arguments()` makes
    fresh arguments, `wanted(*arguments)` gives {argument: what the fixed kernel leaves in it}, and `findings`
    holds (kind, severity, array, *(source line, what was done there)) of each finding. `options` go to
    `simulate`; `hangs` says that a GPU may not come back from the buggy kernel. Where the twins need
    different ones, `fixed_launch` and the like take precedence.
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
LONG = {"left.RaceInCellSixThousand"}  # half a minute
EVERY = [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in CASES]
EQUAL_WRITES = [
    name
    for name, case in CASES.items()
    if {key[:2] for key in case["findings"]} <= {("race-shared", "warning"), ("race-global", "warning")}
]


def runs(name, twin):
    """RUNS, those of each push first, and how many those are: by fibers; and of each tenth case one twin is
    compiled, the other by threads."""
    place = list(CASES).index(name)
    compiled = (place + (twin == "fixed")) % 2
    first = [("fibers", 0), ("native" if compiled else "threads", 0)]
    return first + [run for run in RUNS if run not in first], 1 if place % 10 else 2


def key(finding):
    """A finding as the corpus writes it: both parties by what stands on their line."""
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
    """One line, as often as a compiler unrolls it."""

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
