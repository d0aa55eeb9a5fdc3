"""Tests of updates of volatile elements, which are not atomic: `*x += 1` can lose an update, and so can
`if (v > *x) *x = v`, a test followed by a store."""

import numpy as np
import pytest

from sim import simulate

pytest.importorskip("cuda.bindings.nvrtc")

FUNCTIONS = """__device__ __noinline__ int plus(int v) { return 2 * v + 1; }
__device__ __noinline__ int get(volatile int *x) { return *x; }
__device__ __noinline__ void put(volatile int *x, int v) { *x = v; }
__device__ __noinline__ void raise(volatile int *x, int v) { if (v > get(x)) put(x, v); }
__device__ __noinline__ void repeat(volatile int *x, int v) { while (v > *x) *x = v; }
__device__ __noinline__ void lock_(int *lock) { while (atomicCAS(lock, 0, 1) != 0) {} __threadfence(); }
__device__ __noinline__ void unlock(int *lock) { __threadfence(); atomicExch(lock, 0); }
"""
ME = "int me = threadIdx.x + blockDim.x * blockIdx.x;"
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
    "a function of the value": "*x = plus(*x);",
    "functions that load and store": "put(x, get(x) + 1);",
    "a maximum": f"{ME} if (me > *x) *x = me;",
    "a maximum in a variable": f"{ME} int old = *x; if (me > old) {{ y[me] = old; *x = me; }}",
    "an early return": f"{ME} if (me < *x) return; x[0] = me;",
    "a maximum in a loop": f"{ME} for (int i = me; i < 64; i += 8) if (i * me % 7 > *x) *x = i * me % 7;",
    "a maximum by functions": f"{ME} raise(x, me);",
    "a maximum that a loop repeats": f"{ME} while (me > *x) *x = me;",
    "a repeated maximum by functions": f"{ME} repeat(x, me);",
    "a claim": f"{ME} if (x[1] == 0) x[1] = me + 1;",
    "a second test without a lock": f"{ME} if (me > *x) {{ __threadfence(); if (me > *x) *x = me; }}",
    "a lock after the test": f"{ME} if (me > *x) {{ lock_(lock); *x = me; unlock(lock); }}",
}
# name -> (body of the kernel, x[0] after the launch)
TESTED = {
    "the same flag from all threads": ("if (*x == 0) *x = 8;", 8),
    "the same level from all threads": (f"{ME} if (x[me / 8] == 0) x[me / 8] = blockDim.x + 4;", 8),
    "a test before an atomic": (f"{ME} if (me > *x) atomicMax((int *)x, me);", 7),
    "a second test with a lock": (
        f"{ME} if (me > *x) {{ lock_(lock); if (me > *x) *x = me; unlock(lock); }}",
        7,
    ),
    "functions with a lock": (f"{ME} lock_(lock); raise(x, me); unlock(lock);", 7),
    "once, double-checked": (
        "if (*x == 0) { lock_(lock); if (*x == 0) { y[0] = 3; __threadfence(); *x = 8; } unlock(lock); }",
        8,
    ),
    "turns by functions": (f"{ME} while (get(x) != me) {{}} put(x, get(x) + 1);", 8),
    "a mailbox": (
        """if (threadIdx.x > 0) return;
    int i = 0;
    if (blockIdx.x == 0) { while (i < 8) if (*x == 0) { *x = clock() | 1; i++; } }
    else { while (i < 8) { int m = *x; if (m != 0) { y[0] = m; *x = 0; i++; } } }""",
        0,
    ),
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
        FUNCTIONS + f'extern "C" __global__ void k(int *lock, volatile int *x, int *y) {{\n    {body}\n}}\n'
    )
    x, y = np.zeros(8, np.int32), np.zeros(8, np.int32)
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


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("name", TESTED)
def test_a_test_that_decides_about_no_update_is_none(name, engine, tmp_path):
    body, value = TESTED[name]
    report, x, _ = launched(body, tmp_path, engine)
    assert report.findings == () and x[0] == value


def test_threads_that_take_turns_race_only_at_other_memory(tmp_path):
    """Leave out the fences, so that the order of the turns does not extend to the data."""
    report, *_ = launched(TURNS.replace("FENCE", ""), tmp_path, "fibers")
    assert {f.array for f in report.findings} == {"y"}
