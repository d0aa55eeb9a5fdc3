"""Tests of pytest --cuda-sim, which runs the tests of an unmodified project in a separate process."""

import argparse
import re

import pytest

from course.doctor import gpu_names
from plugin_project import PROJECT, RACE, parts, total
from sim.pytest_options import OBSERVER_NAMES, parse_max_steps, parse_words

pytest_plugins = ["pytester"]

RIGHT = (
    PROJECT
    + """
def test_arrays_and_launches():
    x = cuda.to_device(X)
    out = cuda.device_array_like(x)
    kept(x, x, out)
    np.testing.assert_array_equal(out.copy_to_host(), 2 * X)
    none = cuda.device_array(0, np.float32)
    add[1, 32](none, none, none)
    add.forall(100)(x, out, out)
    add.specialize(x, x, out)[2, 64](x, out, out)
    assert out[3] == 12
    out = cuda.device_array(100, np.float32)
    out[:] = 3
    add[2, 64](out, x, x)
    out[:] = 7
    assert out[10:12].copy_to_host().tolist() == [7, 7] and out.reshape(10, 10).T.copy_to_host().shape == (10, 10)

def test_an_eager_signature_casts_and_refuses():
    x = X.copy()
    scale[1, 128](x, 2.9)
    np.testing.assert_array_equal(x, 2 * X)
    with pytest.raises(TypeError, match="No matching definition"):
        scale[1, 128](x.astype(np.float64), 2)

def test_host_api():
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    start.record(stream)
    pinned, mapped, managed = cuda.pinned_array(10, np.float32), cuda.mapped_array(10, np.float32), cuda.managed_array(10, np.float32)
    pinned[:], mapped[:], managed[:] = 3, 1, 2
    with stream.auto_synchronize(), cuda.pinned(X), cuda.gpus[0]:
        x = cuda.to_device(pinned, stream=stream)
        add[1, 32, stream](x, managed, mapped)
    end.record(stream)
    end.synchronize()
    cuda.synchronize()
    assert mapped.tolist() == [5] * 10 and cuda.event_elapsed_time(start, end) >= 0
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total and len(cuda.gpus) == len(cuda.list_devices()) == 1
    assert cuda.select_device(0).MAX_THREADS_PER_BLOCK == cuda.get_current_device().MAX_THREADS_PER_BLOCK == 1024
    assert cuda.as_cuda_array(x).copy_to_host().tolist() == [3] * 10

def test_random_reduce_vectorize():
    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i)
    out = cuda.device_array(64, np.float32)
    draw[1, 64](create_xoroshiro128p_states(64, seed=1), out)
    drawn = out.copy_to_host()
    assert ((drawn >= 0) & (drawn < 1)).all() and len(set(drawn)) == 64

    @cuda.reduce
    def total(a, b):
        return a + b
    assert total(X) == total(cuda.to_device(X)) == X.sum()

    @vectorize(["float32(float32)"], target="cuda")
    def twice(x):
        return x * 2
    assert twice(X[:4]).tolist() == [0, 2, 4, 6]

    @guvectorize(["void(float32[:], float32[:])"], "(n)->()", target="cuda")
    def row_sum(x, out):
        out[0] = 0
        for i in range(x.size):
            out[0] += x[i]
    assert row_sum(X.reshape(10, 10)).tolist() == X.reshape(10, 10).sum(1).tolist()

def test_what_is_missing_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="cuIpcGetMemHandle"):
        cuda.to_device(X).get_ipc_handle()
    with pytest.raises(AttributeError, match="regs_per_thread: the simulator does not compile machine code"):
        scale.get_regs_per_thread(next(iter(scale.overloads.values())).signature)
"""
)

WRONG = (
    PROJECT
    + """
def race():
    tree_sum[1, 64](np.ones(64, np.float32), np.zeros(1, np.float32))

def test_race():
    race()
    race()

@pytest.mark.cuda_sim(allow=["race-shared"])
def test_allowed():
    race()

@pytest.mark.cuda_sim(tools=["bounds"], engine="threads", seeds=(1, 2))
def test_other_tools():
    race()

def test_unwritten_memory():
    out = cuda.device_array(10, np.float32)
    add[1, 32](X, cuda.device_array(10, np.float32), out)

def test_partly_written_memory():
    x, out = cuda.device_array(10, np.float32), cuda.device_array(10, np.float32)
    x[:3] = 1
    add[1, 32](X[:4], X[:4], x[3:7])
    add[1, 32](x[:7], x[:7], out[:7])
    add[1, 32](x, x, out)

@pytest.fixture
def broken():
    race()

def test_in_a_fixture(broken):
    pass

@pytest.mark.cuda_sim(off=True)
def test_on_a_real_gpu():
    assert cuda.is_available() == REAL

@pytest.mark.xfail(strict=True)
def test_fails_by_itself():
    assert not cuda.is_available()
"""
)


def test_a_project_runs_unmodified(pytester, run):
    # numba.cuda.testing needs filecheck, which numba-cuda does not depend on.
    pytester.makepyfile(test_right=RIGHT, without="import sys; sys.modules['filecheck'] = None")
    result = run("-p", "without", "--cuda-sim")
    result.assert_outcomes(passed=5)
    said = r"cuda-sim: \d+ launches = \d+ clean \+ 1 refused \+ \d+ unwatched, in 4 tests, \d+ by native; 0 findings"
    assert re.search(said, result.stdout.str())
    assert sum(parts(result)) == total(result)


def test_blocks_of_a_cooperative_launch_can_be_asked_for(pytester, run):
    pytester.makepyfile(
        test_grid=PROJECT
        + """
@cuda.jit("void(int32[::1])")
def fill(out):
    cuda.cg.this_grid().sync()
    out[cuda.grid(1)] = 1

def test_grid():
    out = np.zeros(64, np.int32)
    fill[2, 32](out)
    (overload,) = fill.overloads.values()
    most = overload.max_cooperative_grid_blocks(1024)
    assert most == overload.max_cooperative_grid_blocks((32, 32)) == 2 * 132 and out.all()
"""
    )
    run("--cuda-sim").assert_outcomes(passed=1)


def test_an_exception_is_reported_with_the_error_before_it(pytester, run):
    pytester.makepyfile(
        test_exception=PROJECT
        + """
@cuda.jit
def checked(x, out):
    value = x[cuda.threadIdx.x]
    if value != value:
        raise ValueError("not a number")
    out[cuda.threadIdx.x] = value

def test_checked():
    checked[1, 8](np.ones(5), np.ones(8))
"""
    )
    result = run("--cuda-sim", "--cuda-sim-engine=fibers")
    result.assert_outcomes(failed=1)
    said = "*cuda-sim: 1 launch = 1 raised, in 1 test, * 2 findings (1 exception, 1 out-of-bounds)*"
    result.stdout.fnmatch_lines([said])


def test_ufuncs_are_compiled(pytester, run):
    pytester.makepyfile(
        test_ufuncs=PROJECT
        + """
@vectorize(["float32(float32, float32)"], target="cuda")
def hypotenuse(x, y):
    return (x * x + y * y) ** 0.5

@guvectorize(["void(float32[:, :], float32[:], float32[:])"], "(m,n),(n)->(m)", target="cuda")
def product(a, x, out):
    for i in range(a.shape[0]):
        out[i] = 0
        for j in range(a.shape[1]):
            out[i] += a[i, j] * x[j]

def test_ufuncs():
    assert np.allclose(hypotenuse(X, X), X * 2**0.5)
    a = X.reshape(5, 4, 5)
    assert np.allclose(product(a, X[:5]), a @ X[:5])
"""
    )
    result = run("--cuda-sim")
    result.assert_outcomes(passed=1)
    assert "cuda-sim: 2 launches = 2 clean, in 1 test, 2 by native; 0 findings" in result.stdout.str()


def test_a_finding_fails_its_test_and_no_other(pytester, run):
    pytester.makepyfile(test_wrong=WRONG.replace("REAL", str(bool(gpu_names()))))
    result = run("--cuda-sim", "--cuda-sim-engine=fibers", "--cuda-sim-report=pages", "-rfE")
    result.assert_outcomes(passed=3, failed=3, errors=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "FAILED *::test_race *",
            "FAILED *::test_unwritten_memory - uninitialized-read*",
            "FAILED *::test_partly_written_memory - uninitialized-read: x?7?*",
            "ERROR *::test_in_a_fixture *",
        ]
    )
    assert (
        RACE in result.stdout.str()
        and f"  Launched from {pytester.path / 'test_wrong.py'}:37; 1 further launch with the same."
        in result.stdout.str()
    )
    result.stdout.fnmatch_lines(
        [
            (
                "cuda-sim: 9 launches = 3 clean + 6 with findings, in 6 tests, 8 by fibers, 1 by threads;"
                " 3 findings (1 race-shared, 2 uninitialized-read)"
            ),
            "cuda-sim: reports in pages/index.html",
        ]
    )
    page = next((pytester.path / "pages").glob("*test_race*.html")).read_text(encoding="utf-8")
    assert "2 launches" in page and page.count("race-shared: s[1]") == 1


LONG = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def count(out):
    n = 0
    while n < 1000:
        n += 1
    out[0] = n

def test_by_the_option():
    count[1, 1](np.zeros(1))

@pytest.mark.cuda_sim(max_steps=MARKED)
def test_by_the_mark():
    count[1, 1](np.zeros(1))
"""


@pytest.mark.parametrize("engine", ["native", pytest.param("fibers", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("option, marked, name", [(999, 1000, "option"), (1000, 999, "mark")])
def test_a_loop_goes_round_as_often_as_it_is_told(pytester, run, engine, option, marked, name):
    pytester.makepyfile(test_long=LONG.replace("MARKED", str(marked)))
    result = run("--cuda-sim", f"--cuda-sim-engine={engine}", f"--cuda-sim-max-steps={option}", "-rf")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*if the kernel is only slow, --cuda-sim-max-steps raises*",
            f"FAILED *::test_by_the_{name} - no-progress*",
        ]
    )


@pytest.mark.parametrize("text", ["0", "-5", "many"])
def test_a_number_of_rounds_is_above_0(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text}: not a whole number above 0"):
        parse_max_steps(text)


def test_without_the_option_nothing_is_simulated(pytester, run):
    pytester.makepyfile(
        test_plain=(
            "import sys\n\ndef test_plain():\n    assert 'numba' not in sys.modules and 'sim.launch' not in"
            " sys.modules"
        )
    )
    result = run()
    result.assert_outcomes(passed=1)
    assert "cuda-sim" not in result.stdout.str()


def test_an_unknown_tool_is_refused():
    with pytest.raises(
        argparse.ArgumentTypeError,
        match="racse: not among bounds, races, uninitialized, misuse, counters, trace; the nearest is",
    ):
        parse_words(lambda: OBSERVER_NAMES)("races,racse")


def test_beside_numbas_own_simulator_it_is_refused(run, monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    result = run("--cuda-sim")
    assert "NUMBA_ENABLE_CUDASIM is set" in result.stderr.str() and result.ret == pytest.ExitCode.USAGE_ERROR
