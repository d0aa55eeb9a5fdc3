"""Tests that follow the advice about CUDA C++ kernels that lack a barrier.

They cover arrays that blocks exchange, named barriers, device functions, and barriers in branches.
"""

import numpy as np
import pytest

from ptx.edited_texts import HEADER, INDEX, Cases, launched

pytest.importorskip("cuda.bindings.nvrtc")

CASES = Cases()
case = CASES.case

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
        f"{INDEX}for (int s = 0; s < 3; s++) {{\n    out[i] = x[i] + x[(i + 1) % 64];\n    {change}\n}}\n",
        "end the kernel after each iteration of the loop at line 5 and launch it again for the next, or"
        f" synchronise all blocks there: {SYNC[:-1]}",
        [(change, f"{change} {SYNC}")],
        smoothed,
        "#include <cooperative_groups.h>\n"
        "__device__ void swap_(int *&a, int *&b) { int *c = a; a = b; b = c; }\n",
    )

# --- kernels with a grid barrier ----------------------------------------------------------------------------

GROUPS = "#include <cooperative_groups.h>\n"
GRID = f"auto grid = cooperative_groups::this_grid();\n{INDEX}"
ONE_MORE = "one more cooperative_groups::this_grid().sync(), which every thread of the grid has to reach, {}"


def exchanged_twice(x, out, n):
    np.testing.assert_array_equal(n, x[::-1])
    np.testing.assert_array_equal(out[:64], n)


def sum_of_three(x, out, n):
    np.testing.assert_array_equal(n, 3 * x[::-1] + 3)


case(
    "second grid barrier",
    (2, 32),
    f"{GRID}out[i] = x[i];\ngrid.sync();\nn[i] = out[63 - i];\nout[i] = n[i];\n",
    ONE_MORE.format("between lines 7 and 8"),
    [("n[i] = out[63 - i];", "n[i] = out[63 - i]; grid.sync();")],
    exchanged_twice,
    GROUPS,
)
for named, body, place, old in (
    (
        "end",
        "out[i] = x[i] + k;\ngrid.sync();\nn[i] += out[63 - i];",
        "after line 8 and before the",
        "63 - i];",
    ),
    (
        "middle",
        "out[i] = x[i] + k;\nn[i] += out[63 - i];\ngrid.sync();",
        "between lines 6 and 7",
        "x[i] + k;",
    ),
):
    case(
        f"grid barrier in the {named} of a loop",
        (2, 32),
        f"{GRID}for (int k = 0; k < 3; k++) {{\n{body}\n}}\n",
        ONE_MORE.format(place),
        [(old, f"{old} grid.sync();")],
        sum_of_three,
        GROUPS,
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
    "in the arm whose access must come first, call bar.sync 1, 64 (as on line 7) after the access; in the"
    " other arm, call it before the access (lines 9 and 11). All 64 threads have to call it",
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


def exchanged_in_pairs(times):
    return lambda x, out, n: np.testing.assert_array_equal(out[:128], times * x[(np.arange(128) ^ 32) % 64])


OWN_NUMBER = (
    "let each group of 64 threads that {} with a number of its own, or pass 128 as the number of threads if"
    " they form one group: 128 threads call {}, and any 64 of them open it"
)
for edit in ("wait(1 + t / 64, 64);", "wait(1, 128);"):
    case(
        f"two pairs of warps, {edit}",
        (1, 128),
        "__shared__ int s[128];\nint t = threadIdx.x;\n"
        "s[t] = x[t % 64];\nwait(1, 64);\nout[t] = s[t ^ 32];\n",
        OWN_NUMBER.format("exchange data call a named barrier", "bar.sync 1, 64"),
        [("wait(1, 64);", edit)],
        exchanged_in_pairs(1),
        NAMED,
    )
case(
    "two pairs of warps in a loop",
    (1, 128),
    """__shared__ int s[128];
int t = threadIdx.x;
for (int k = 0; k < 3; k++) {
    s[t] = x[t % 64];
    wait(1, 64);
    out[t] += s[t ^ 32];
    wait(1, 64);
}
""",
    OWN_NUMBER.format("work together call a barrier", "barrier 1"),
    [("wait(1, 64);", "wait(1 + t / 64, 64);")],
    exchanged_in_pairs(3),
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

# --- loads that the compiler moved --------------------------------------------------------------------------


def fives(x, out, n):
    assert list(out[:64]) == [5, 0] * 32


case(
    "load in both arms of a branch",
    (1, 64),
    "int t = threadIdx.x, v;\nif (x[t] & 1)\n    v = out[t + 1] * 2;\n"
    "else\n    v = out[t + 1] + 5;\nout[t] = v;\n",
    "__syncthreads() between the two lines, where every thread",
    [("\nout[t] = v;", "\n__syncthreads();\nout[t] = v;")],
    fives,
)


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_load_that_the_compiler_moved_has_the_line_before_it(engine, tmp_path):
    launch, functions, body, *_ = CASES["load in both arms of a branch"]
    (finding,), _ = launched(f"{functions}{HEADER}{body}}}\n", launch, tmp_path / "k.cu", engine)
    (moved,) = (access.site for access in finding.accesses if access.what == "read")
    assert (moved.function, moved.line) == ("k.cu", 3)
    assert moved.source.startswith("an instruction that the compiler moved: ld.global")


# --- messages -----------------------------------------------------------------------------------------------


def sums_of_lists(x, out, n):
    assert list(out[64:68]) == [x[i::4].sum() for i in range(4)]


case(
    "list without a barrier",
    (1, 64),
    """int t = threadIdx.x;
out[t] = atomicExch(&n[t % 4], t + 1);
if (t < 4) {
    int s = 0, p = n[t];
    while (p) { s += x[p - 1]; p = out[p - 1]; }
    out[64 + t] = s;
}
""",
    "or __syncthreads() between the two lines",
    [("if (t < 4)", "__syncthreads();\nif (t < 4)")],
    sums_of_lists,
)


def exchanged(x, out, n):
    assert list(out[64:66]) == [2, 1]


case(
    "message that no thread waits for",
    (2, 32),
    """int t = threadIdx.x, b = blockIdx.x;
if (t == 0) {
    out[b] = b + 1;
    __threadfence();
    atomicExch(&n[b], 1);
}
__syncthreads();
if (t == 0) {
    out[64 + b] = out[1 - b];
}
""",
    "let the other thread wait for this atomic before its own access",
    [
        (
            "    out[64 + b] =",
            "    while (atomicAdd(&n[1 - b], 0) == 0) {}\n    __threadfence();\n    out[64 + b] =",
        )
    ],
    exchanged,
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
    "move the call with the barrier on line 9 out of the branch at line 7: end the branch before",
    [("    meet();\n", "}\nmeet();\nif (t < 40) {\n")],
    forty,
    "__device__ __forceinline__ void meet() {\n    __syncthreads();\n}\n",
)


@pytest.mark.parametrize("name", CASES)
def test_the_advice_followed(name, few, tmp_path):
    CASES.follow(name, few, tmp_path)
