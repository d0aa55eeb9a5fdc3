"""Tests of updates of volatile elements, which are not atomic: `*x += 1` can lose an update."""

import numpy as np
import pytest

from sim import simulate

pytest.importorskip("cuda.bindings.nvrtc")

LOCKED = "while (atomicCAS(lock, 0, 1) != 0) {} FENCE *x += 1; FENCE atomicExch(lock, 0);"
TURNS = """int me = atomicAdd(lock, 1);
    while (*x != me) {}
    FENCE y[0] += 1; FENCE
    *x += 1;"""
RACY = {
    "no lock": "*x += 1;",
    "through a variable": "int v = x[0]; x[0] = v + 1;",
    "or": "*x |= 1 << threadIdx.x;",
    "a lock without fences": LOCKED.replace("FENCE", ""),
}
CORRECT = {
    "a lock with fences": LOCKED.replace("FENCE", "__threadfence();"),
    "turns": TURNS.replace("FENCE", "__threadfence();"),
    "an element of its own": "x[threadIdx.x + blockDim.x * blockIdx.x] += 1;",
}


def launched(body, tmp_path, engine):
    from sim.ptx.nvrtc import load_cuda

    source = tmp_path / "k.cu"
    source.write_text(
        f'extern "C" __global__ void k(int *lock, volatile int *x, int *y) {{\n    {body}\n}}\n'
    )
    x, y = np.zeros(8, np.int32), np.zeros(1, np.int32)
    launch = simulate(load_cuda(source)["k"], engine=engine, on_finding="report")[2, 4]
    return launch(np.zeros(1, np.int32), x, y), x, y


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("name", RACY)
def test_an_update_that_nothing_orders_is_a_race(name, engine, tmp_path):
    report, *_ = launched(RACY[name], tmp_path, engine)
    assert {(f.kind, f.severity, f.array) for f in report.findings} == {("race-global", "error", "x")}


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("name", CORRECT)
def test_an_update_by_one_thread_at_a_time_is_none(name, engine, tmp_path):
    report, x, y = launched(CORRECT[name], tmp_path, engine)
    assert report.findings == () and x.sum() == 8 and y[0] == (8 if name == "turns" else 0)


def test_threads_that_take_turns_race_only_at_other_memory(tmp_path):
    """Leave out the fences, so that the order of the turns does not extend to the data."""
    report, *_ = launched(TURNS.replace("FENCE", ""), tmp_path, "fibers")
    assert {f.array for f in report.findings} == {"y"}
