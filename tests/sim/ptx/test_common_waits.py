"""Tests of compiled kernels in which all threads of a block arrive and wait at mbarriers together.

The findings, values and counters are those of the interpreter, and correct kernels are compiled."""

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ptx.phase_corpus import CORPUS, KERNELS, PAIRS
from ptx.phase_programs import KERNEL, RANDOM, STEPS, THREADS, random_program
from sim import load_ptx, simulate
from sim.ptx.nvrtc import compile_ptx

pytest.importorskip("cuda.bindings.nvrtc")
pytest.importorskip("numba")
CI = 12  # a CI run takes one of 12 planted bugs
PIPELINE = Path(__file__).with_name("pipeline.cu")
NAMES = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name in PAIRS and place % CI > 0))
    for place, name in enumerate([*KERNELS, *PAIRS])
]


def compiled(text):
    return load_ptx(compile_ptx(text, "k.cu", architecture="sm_90"), text)


def findings(report):
    """Return the kinds of the findings, with their severities and lines."""
    return sorted(
        (f.kind, f.severity, str({a.site.line for a in f.accesses if a.site})) for f in report.findings
    )


@pytest.mark.parametrize("name", NAMES)
def test_findings_values_and_counters_are_those_of_the_interpreter(name):
    module, runs = compiled(CORPUS.source(name)), {}
    for engine in ("fibers", "native"):
        report, right = CORPUS.run(name, module, engine=engine)
        runs[engine] = findings(report), report.counters, right
    assert runs["fibers"] == runs["native"]
    expected = PAIRS[name][1] if name in PAIRS else []
    assert {kind for kind, *_ in runs["native"][0]} == set(expected)
    if not expected:
        assert runs["native"][2] and report.notes == ("compiled",)


def test_compiled_code_marks_the_programs_with_races():
    module, racy = compiled(KERNEL + RANDOM), 0
    for seed in range(40):
        accesses, kinds, has_race = random_program(seed)
        out = np.zeros(THREADS, np.int32)
        launch = simulate(module["k"], engine="native", on_finding="report")
        report = launch[1, THREADS](accesses, kinds, STEPS, out)
        assert (report.notes[0] != "compiled") == bool(report.findings) == has_race, seed
        racy += has_race
    assert 10 <= racy <= 35


@functools.cache
def pipeline_ptx():
    """Return the PTX of pipeline.cu. Its headers take the compiler 2 s."""
    return compile_ptx(PIPELINE.read_text(), PIPELINE.name)


def run_pipeline(kernel, engine, blocks):
    """Return the Report of a launch of pipeline.cu, after checks of its findings and values."""
    module = load_ptx(pipeline_ptx(), PIPELINE.read_text())
    x, y = np.arange(5 * 64, dtype=np.float32).reshape(5, 64), np.zeros((blocks, 64), np.float32)
    report = simulate(module[kernel], engine=engine, on_finding="report")[blocks, 64](x, y, 5)
    assert [finding.kind for finding in report.findings] == ["race-shared"] * (kernel == "bug")
    assert kernel == "bug" or (y == (x[:, ::-1].T * np.arange(1, 6)).sum(1)).all()
    return report


@pytest.mark.parametrize("kernel", ["bug", "mended"])
def test_a_pipeline_is_compiled(kernel):
    report = run_pipeline(kernel, "native", 3)
    assert kernel == "bug" or report.notes == ("compiled",)


@pytest.mark.parametrize("kernel", ["bug", "mended"])
def test_a_pipeline_runs_under_one_schedule(kernel):
    """Run a destructor, which acts on the result of an atomic although the order does not matter."""
    assert "schedules" not in run_pipeline(kernel, "fibers", 1).counters


@pytest.mark.parametrize(
    ("text", "schedules"),
    [
        ("__threadfence(); y[threadIdx.x] = x[threadIdx.x];", False),
        ("__threadfence(); atomicAdd(y, x[threadIdx.x]);", False),
        ("if (atomicAdd(x, 1) == 3) { __threadfence(); y[0] = 1; }", True),
        (
            "volatile int *v = x; if (threadIdx.x == 0) *v = 1; __threadfence(); if (*v) y[threadIdx.x] = 1;",
            True,
        ),
    ],
)
def test_a_fence_matters_only_if_it_orders_something(text, schedules):
    module = compiled(f'extern "C" __global__ void k(int *x, int *y) {{ {text} }}')
    launch = simulate(module["k"], engine="fibers", on_finding="report")[1, 32]
    report = launch(np.zeros(32, np.int32), np.zeros(32, np.int32))
    assert ("schedules" in report.counters) == schedules


def test_the_counter_of_a_destructor_is_checked():
    ptx = pipeline_ptx()
    assert ptx.count("st.relaxed.cta.b32") == 2
    # Without the store that initialises the counter, its value is undefined.
    ptx = ptx.replace("st.relaxed.cta.b32", "// st.relaxed.cta.b32")
    x, y = np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32)
    report = simulate(load_ptx(ptx)["mended"], engine="native", on_finding="report")[1, 64](x, y, 1)
    assert [finding.kind for finding in report.findings] == ["uninitialized-read"]
    assert report.notes[0].startswith("compiled, then explained")


def test_a_long_launch_is_compiled(monkeypatch):
    monkeypatch.setattr("sim.automatic.Automatic.__init__.__defaults__", (64,))
    monkeypatch.setattr("sim.automatic.INSTRUCTIONS", 1 << 20)
    report, right = CORPUS.run("stages", compiled(CORPUS.source("stages")))
    assert right and report.engine == "native" and not report.findings


@pytest.mark.parametrize(("tick", "engine"), [(0.002, "fibers"), (0.2, "native")])
def test_a_launch_is_long_after_a_second(tick, engine, monkeypatch):
    clock = itertools.count(0.0, tick)  # it is read a few dozen times
    monkeypatch.setattr("sim.automatic.time", SimpleNamespace(thread_time=lambda: next(clock)))
    report, right = CORPUS.run("stages", compiled(CORPUS.source("stages")))
    assert right and report.engine == engine and not report.findings


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            ("        arrive(&bar);\n        wait_parity", "if (t < 32) arrive(&bar); wait_parity"),
            "only some threads",
        ),
        (("    y[block", "    if (try_parity(&bar, 0)) v++;\n    y[block"), "without waiting"),
    ],
)
def test_other_waits_are_interpreted(edit, reason):
    text = CORPUS.source("parity")
    test = text[text.index("__device__ void wait_parity") : text.index("__device__ void copy(")]
    test = test.replace("void wait_parity", "u32 try_parity").replace("while (!done)", "")
    test = test.replace('"memory");\n}', '"memory");\n    return done;\n}')
    text = text.replace('extern "C"', test + 'extern "C"').replace(*edit, 1)
    report, _ = CORPUS.run("parity", compiled(text), engine="native")
    assert report.notes[0].startswith("interpreted") and reason in report.notes[0]
