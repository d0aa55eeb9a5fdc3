"""Tests that follow the advice about CUDA C++ kernels by editing their text.

They cover locks, exchanges, counters, maxima, exchanged arrays, named barriers and device functions. After
the edits, no finding may be left, and the values must be correct.
"""

import numpy as np
import pytest

from sim import simulate

pytest.importorskip("cuda.bindings.nvrtc")

# name -> (launch, functions, body of the kernel, a part of a fix, [(old text, new text)], check(out, n))
CASES = {}
HEADER = 'extern "C" __global__ void kernel(int *x, int *out, int *n) {\n'


def case(name, launch, body, says, edits, check, functions=""):
    CASES[name] = launch, functions, body, says, edits, check


def launched(name, text, path, engine="fibers"):
    from sim.ptx.nvrtc import load_cuda

    path.write_text(text)
    arrays = np.arange(64, dtype=np.int32), np.zeros(256, np.int32), np.zeros(64, np.int32)
    kernel = simulate(load_cuda(path)["kernel"], on_finding="report", engine=engine)
    return kernel[CASES[name][0]](*arrays).findings, arrays


# --- locks --------------------------------------------------------------------------------------------------

LOCK = """__device__ void take(int *m) {
    while (atomicCAS(m, 0, 1) != 0) {
    }
    FENCE
}
__device__ void give(int *m) {
    FENCE
    *m = 0;
}
"""
MEMBERS = """struct Lock {
    int *m;
    __device__ void take() { while (atomicCAS(m, 0, 1) != 0) {} __threadfence(); }
    __device__ void give() {
        __threadfence();
        *m = 0;
    }
};
"""
RELEASED = [("*m = 0;", "atomicExch(m, 0);")]
LOCKED = "if (threadIdx.x == 0) { take(n); out[0] += 1; give(n); }\n"


def four(x, out, n):
    assert out[0] == 4 and n[0] == 0


case(
    "lock",
    (4, 8),
    """if (threadIdx.x == 0) {
    while (atomicCAS(n, 0, 1) != 0) {}
    out[0] += 1;
    n[0] = 0;
}
""",
    "atomicExch in place of the plain store on line 5, and __threadfence() before it and after the atomic on"
    " line 3",
    [("n[0] = 0;", "__threadfence(); atomicExch(n, 0);"), ("!= 0) {}", "!= 0) {}\n__threadfence();")],
    four,
)
case(
    "lock in functions",
    (4, 8),
    LOCKED,
    "atomicExch in place of the plain store on line 8",
    RELEASED,
    four,
    LOCK.replace("FENCE", "__threadfence();"),
)
case(
    "lock in functions without fences",
    (4, 8),
    LOCKED,
    "the plain store on line 8, and __threadfence() before it and after the atomic on line 2",
    [*RELEASED, ("//FENCE", "__threadfence();")],
    four,
    LOCK.replace("FENCE", "//FENCE"),
)
case(
    "lock in members",
    (4, 8),
    "if (threadIdx.x == 0) { Lock lock{n}; lock.take(); out[0] += 1; lock.give(); }\n",
    "atomicExch in place of the plain store on line 6",
    RELEASED,
    four,
    MEMBERS,
)

# --- exchanges and counters ---------------------------------------------------------------------------------

I = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


def chains(x, out, n):
    seen = []
    for c in range(4):
        i = n[c]
        while i:
            seen.append(i)
            i = out[i - 1]
    assert sorted(seen) == list(range(1, 65))


def positions(x, out, n):
    assert n[0] == 64 and sorted(out[:64]) == list(range(64))


case(
    "exchange",
    (2, 32),
    f"{I}int old = n[x[i] % 4];\nn[x[i] % 4] = i + 1;\nout[i] = old;\n",
    "read and write n[x[i] % 4] by one atomic, atomicExch, on line 3, and leave out line 4: old becomes",
    [("old = n[x[i] % 4];", "old = atomicExch(&n[x[i] % 4], i + 1);"), ("\nn[x[i] % 4] = i + 1;", "")],
    chains,
)
case(
    "exchange by a pointer",
    (2, 32),
    f"{I}out[i] = push(n + x[i] % 4, i + 1);\n",
    "read and write *head by one atomic, atomicExch, on line 2, and leave out line 3: old becomes",
    [("old = *head;", "old = atomicExch(head, i);"), ("    *head = i;\n", "")],
    chains,
    "__device__ int push(int *head, int i) {\n    int old = *head;\n    *head = i;\n    return old;\n}\n",
)
case(
    "counter by a pointer",
    (2, 32),
    f"{I}out[*n] = i;\n*n += 1;\n",
    "one atomic (atomicAdd) before line 3 in place of line 4; line 3 must use the old value that it returns",
    [("out[*n] = i;\n*n += 1;", "int k = atomicAdd(n, 1);\nout[k] = i;")],
    positions,
)
case(
    "counter in a variable",
    (2, 32),
    f"{I}int k = *n;\n*n = k + 1;\nout[k] = i;\n",
    "read and write *n by one atomic, atomicAdd, on line 3, and leave out line 4: k becomes the old value",
    [("k = *n;\n*n = k + 1;", "k = atomicAdd(n, 1);")],
    positions,
)
case(
    "counter in an index",
    (2, 32),
    f"{I}out[(*n)++] = i;\n",
    "atomicAdd of 1 in place of (*n)++ on line 3: one atomic, which returns the old value",
    [("(*n)++", "atomicAdd(n, 1)")],
    positions,
)
case(
    "counter in shared memory",
    (1, 64),
    """__shared__ int used;
if (threadIdx.x == 0) used = 0;
__syncthreads();
out[used++] = threadIdx.x;
__syncthreads();
n[0] = 64;
""".replace("n[0]", "if (threadIdx.x == 0) n[0]"),
    "atomicAdd of 1 in place of used++ on line 5: one atomic, which returns the old value",
    [("used++", "atomicAdd(&used, 1)")],
    positions,
)

# --- maxima -------------------------------------------------------------------------------------------------


def largest(x, out, n):
    assert n[0] == 31


MAXIMUM = "compare and write {} by one atomic, atomicMax, {}"
V = "int v = x[threadIdx.x];\n"
case(
    "maximum by a pointer",
    (2, 32),
    f"{V}if (v > *n) *n = v;\n",
    MAXIMUM.format("*n", "on line 3"),
    [("if (v > *n) *n = v;", "atomicMax(n, v);")],
    largest,
)
case(
    "maximum in a loop",
    (2, 32),
    f"{V}while (v > *n) *n = v;\n",
    MAXIMUM.format("*n", "in place of the loop at line 3"),
    [("while (v > *n) *n = v;", "atomicMax(n, v);")],
    largest,
)
case(
    "volatile maximum",
    (2, 32),
    f"{V}volatile int *m = n;\nif (v > *m) *m = v;\n",
    MAXIMUM.format("*m", "on line 4"),
    [("if (v > *m) *m = v;", "atomicMax((int *)m, v);")],
    largest,
)
case(
    "volatile maximum in a function",
    (2, 32),
    f"{V}raise(n, v);\n",
    MAXIMUM.format("*m", "on line 2"),
    [("    if (v > *m)\n        *m = v;", "    atomicMax((int *)m, v);")],
    largest,
    "__device__ __noinline__ void raise(volatile int *m, int v) {\n    if (v > *m)\n        *m = v;\n}\n",
)

# --- arrays that are exchanged in each iteration ------------------------------------------------------------

SYNC = "cooperative_groups::this_grid().sync();"


def smoothed(x, out, n):
    values = np.arange(64)
    for _ in range(3):
        values = values + np.roll(values, -1)
    np.testing.assert_array_equal(out[:64], values)


for named, change in {
    "pointers exchanged": "int *c = x; x = out; out = c;",
    "pointers exchanged in a function": "swap_(x, out);",
}.items():
    case(
        named,
        (4, 16),
        f"{I}for (int s = 0; s < 3; s++) {{\n    out[i] = x[i] + x[(i + 1) % 64];\n    {change}\n}}\n",
        "end the kernel after each iteration of the loop at line 5 and launch it again for the next, or"
        f" synchronise all blocks there: {SYNC[:-1]}",
        [(change, f"{change} {SYNC}")],
        smoothed,
        "#include <cooperative_groups.h>\n"
        "__device__ void swap_(int *&a, int *&b) { int *c = a; a = b; b = c; }\n",
    )

# --- named barriers -----------------------------------------------------------------------------------------

NAMED = """__device__ void wait(int id, int n) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
"""


def sums(x, out, n):
    np.testing.assert_array_equal(out[:32], 4 * x[31::-1] + 6)


case(
    "second named barrier",
    (1, 64),
    """__shared__ int s[32];
int t = threadIdx.x;
for (int i = 0; i < 4; i++) {
    if (t < 32) {
        s[t] = x[t] + i;
        wait(1, 64);
    } else {
        wait(1, 64);
        out[t - 32] += s[63 - t];
    }
}
""",
    "let the same 64 threads wait at a second named barrier, with another number, at the end of each"
    " iteration of the loop at line 7: bar.sync 1 orders line 9 before line 13",
    [("s[63 - t];\n    }\n", "s[63 - t];\n    }\n    wait(2, 64);\n")],
    sums,
    NAMED,
)
case(
    "named barrier between arms",
    (1, 64),
    """__shared__ int s[32];
int t = threadIdx.x;
wait(1, 64);
if (t < 32)
    s[t] = 4 * x[t] + 6;
else
    out[t - 32] = s[63 - t];
wait(1, 64);
""",
    "let the arm that must come first call bar.sync 1, 64 (as on line 7) after its access, and let the other"
    " arm call it before its own (lines 9 and 11)",
    [
        ("    s[t] = 4 * x[t] + 6;", "    { s[t] = 4 * x[t] + 6; wait(1, 64); }"),
        ("    out[t - 32] = s[63 - t];", "    { wait(1, 64); out[t - 32] = s[63 - t]; }"),
    ],
    sums,
    NAMED,
)
case(
    "one more named barrier",
    (1, 96),
    """__shared__ int s[64];
int t = threadIdx.x;
if (t >= 64) return;
for (int i = 0; i < 4; i++) {
    s[t] = x[t] + i;
    wait(1, 64);
    if (t < 32) out[t] += s[31 - t];
}
""",
    "one more bar.sync 1, 64 (as on line 10), after line 11 and before the loop returns to line 9",
    [("s[31 - t];\n", "s[31 - t];\n    wait(1, 64);\n")],
    sums,
    NAMED,
)

# --- device functions ---------------------------------------------------------------------------------------

HALVES = """__device__ INLINE void put(int *s, int *x) { s[threadIdx.x] = x[threadIdx.x]; }
__device__ INLINE void get(int *s, int *out) { out[threadIdx.x] += s[63 - threadIdx.x]; }
__device__ void both(int *s, int *x, int *out) {
    put(s, x);
    get(s, out);
}
"""


def doubled(times):
    return lambda x, out, n: np.testing.assert_array_equal(out[:64], times * x[::-1])


for inline in ("__forceinline__", "__noinline__"):
    case(
        f"functions of a function, {inline}",
        (1, 64),
        "__shared__ int s[64];\nboth(s, x, out);\n",
        "__syncthreads() between lines 4 and 5, where every thread",
        [("    get(s, out);", "    __syncthreads();\n    get(s, out);")],
        doubled(1),
        HALVES.replace("INLINE", inline),
    )
    case(
        f"functions in a loop, {inline}",
        (1, 64),
        "__shared__ int s[64];\nfor (int i = 0; i < 3; i++) {\n    both(s, x, out);\n}\n",
        "between lines 4 and 5, and one more at the end of each iteration of the loop at line 9",
        [
            ("    get(s, out);", "    __syncthreads();\n    get(s, out);"),
            ("both(s, x, out);\n", "both(s, x, out);\n    __syncthreads();\n"),
        ],
        doubled(3),
        HALVES.replace("INLINE", inline),
    )
case(
    "functions in a line",
    (1, 64),
    "__shared__ int s[64];\nput(s, x); get(s, out);\n",
    "__syncthreads() between the two calls on line 9",
    [("put(s, x); get(s, out);", "put(s, x); __syncthreads(); get(s, out);")],
    doubled(1),
    HALVES.replace("INLINE", ""),
)

# --- barriers in branches -----------------------------------------------------------------------------------


def forty(x, out, n):
    assert list(out[:41]) == [*range(39, -1, -1), 0]


case(
    "barrier in a branch",
    (1, 64),
    """__shared__ int s[64];
int t = threadIdx.x;
if (t < 40) {
    s[t] = x[t];
    meet();
    out[t] = s[39 - t];
}
""",
    "move the call with the barrier on line 9 out of the branch at line 7: end the branch before it",
    [("    meet();\n", "}\nmeet();\nif (t < 40) {\n")],
    forty,
    "__device__ __forceinline__ void meet() {\n    __syncthreads();\n}\n",
)


@pytest.mark.parametrize("name", CASES)
def test_the_advice_followed(name, few, tmp_path):
    launch, functions, body, says, edits, check = CASES[name]
    text = f"{functions}{HEADER}{body}}}\n"
    findings, _ = launched(name, text, tmp_path / "buggy.cu")
    assert any(says in finding.fix for finding in findings), [finding.fix for finding in findings]
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    for engine in few(["fibers", "native"], 1 + (list(CASES).index(name) % 4 == 0)):
        findings, arrays = launched(name, text, tmp_path / "fixed.cu", engine)
        assert not [finding.message for finding in findings]
        check(*arrays)
