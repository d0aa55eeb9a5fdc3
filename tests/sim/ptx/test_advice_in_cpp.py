"""Tests of the advice about races in CUDA C++ kernels.

It has the corpus's patterns in C++ terms, and following it removes the race.
"""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import load_cuda, simulate
from sim.observers.atomic_types import ATOMICS, ElementType, exists
from sim.observers.words import CPP, WORDS

VIEWS = """
extern "C" __global__ void kernel(const float *x, float *out) {
    extern __shared__ char memory[];
    float *values = (float *)memory;
    int *places = (int *)(memory + 16);
    int t = threadIdx.x;
    values[t] = x[t];
    places[7 - t] = t;
    __syncthreads();
    out[t] = 10 * values[t] + places[t];
}
"""
ARMS = """
extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float half[32];
    int t = threadIdx.x;
    if (t < 32) {
        half[t] = x[t];
    } else {
        out[t] = half[t - 32];
    }
}
"""
ARMS_WITH_AN_MBARRIER = """
#include <cuda_awbarrier_primitives.h>
extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float half[32];
    __shared__ __mbarrier_t full;
    int t = threadIdx.x;
    if (t == 0) __mbarrier_init(&full, 64);
    __syncthreads();
    if (t < 32) {
        __mbarrier_arrive(&full);
        half[t] = x[t];
    } else {
        __mbarrier_token_t token = __mbarrier_arrive(&full);
        while (!__mbarrier_test_wait(&full, token)) {}
        out[t] = half[t - 32];
    }
}
"""
ARMS_THAT_CALL = """
__device__ void fill(float *half, const float *x, int t) {
    half[t] = x[t];
}
__device__ void empty(const float *half, float *out, int t) {
    out[t] = half[t - 32];
}
extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float half[32];
    int t = threadIdx.x;
    if (t < 32) fill(half, x, t);
    else empty(half, out, t);
}
"""
SWITCH = """
extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float half[32];
    int t = threadIdx.x;
    switch (t / 32) {
        case 0:
            half[t] = x[t];
            break;
        case 1: {
            for (int i = 0; i < 2; i++) {
                if (i) break;
                out[t] = half[t - 32];
            }
            break;
        }
        default:
            out[t] = 1;
    }
}
"""
RING = """
__device__ unsigned place(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void create(unsigned long long *b, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(place(b)), "r"(n) : "memory");
}
__device__ void leave(unsigned long long *b) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: "r"(place(b)) : "memory");
}
__device__ void wait(unsigned long long *b, int parity) {
    int over = 0;
    while (!over) asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
        " selp.b32 %0, 1, 0, p; }" : "=r"(over) : "r"(place(b)), "r"(parity) : "memory");
}
extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float slot[2][32];
    __shared__ unsigned long long full[2], empty[2];
    int t = threadIdx.x % 32;
    if (threadIdx.x < 2) { create(full + threadIdx.x, 32); create(empty + threadIdx.x, 32); }
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int k = 0; k < 6; ++k) {
            wait(empty + k % 2, 1 - k / 2 % 2);
            slot[k % 2][t] = x[t] + k;
            leave(full + k % 2);
        }
    } else {
        float sum = 0;
        for (int k = 0; k < 6; ++k) {
            wait(full + k % 2, k / 2 % 2);
            sum += slot[k % 2][31 - t];
            leave(empty + k % 2);
        }
        out[t] = sum;
    }
}
"""
READ = "            sum += slot[k % 2][31 - t];\n"
LEAVE = "            leave(empty + k % 2);\n"
ONE_PHASE = (
    RING[: RING.index('extern "C"')]
    + """extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float slot[32];
    __shared__ unsigned long long full[1];
    int t = threadIdx.x % 32;
    if (threadIdx.x == 0) create(full, 32);
    __syncthreads();
    if (threadIdx.x < 32) {
        slot[t] = x[t];
        leave(full);
    } else {
        wait(full, 1);
        out[t] = slot[31 - t];
    }
}
"""
)
LATER_PHASE = ONE_PHASE.replace(
    "    if (threadIdx.x < 32) {",
    "    for (int k = 0; k < 2; k++) {\n    __syncthreads();\n    if (threadIdx.x < 32) {",
).replace("31 - t];\n    }", "31 - t];\n    }}")
STATEMENT = """
extern "C" __global__ void kernel(float *x, float *out) {
    int t = threadIdx.x;
    x[t] = x[t + 1];
}
"""
SWAP = """
extern "C" __global__ void kernel(const float *x, float *out) {
    int *best = (int *)out;
    int old = *best;
    while (true) {
        int seen = old;
        old = atomicCAS(best, seen, max(seen, (int)x[threadIdx.x]));
        if (old == seen) break;
    }
}
"""
HISTOGRAM = """
extern "C" __global__ void kernel(const float *x, float *out) {
    out[(int)x[threadIdx.x] % 4] += 1;
}
"""
CASES = {
    "views": (VIEWS, "overlapping views", "move places to byte 32 or later", "memory + 16", "memory + 32"),
    "arms": (
        ARMS,
        "opposite arms",
        "divide the branch at line 5 into two branches: first the arm whose access must come first, then"
        " __syncthreads(), where every thread of the block reaches it, then the other arm",
        "} else {",
        "}\n    __syncthreads();\n    if (t >= 32) {",
    ),
    "arms with an mbarrier": (
        ARMS_WITH_AN_MBARRIER,
        "arms with an mbarrier",
        "arrive at the mbarrier only after the access on line 11, not before it on line 10",
        "        __mbarrier_arrive(&full);\n        half[t] = x[t];",
        "        half[t] = x[t];\n        __mbarrier_arrive(&full);",
    ),
    "arms that call": (
        ARMS_THAT_CALL,
        "opposite arms",
        "divide the branch at line 11 into two branches: first the arm whose access must come first, then"
        " __syncthreads(), where every thread of the block reaches it, then the other arm",
        "    else empty",
        "    __syncthreads();\n    if (t >= 32) empty",
    ),
    "arms that call on one line": (
        ARMS_THAT_CALL.replace(";\n    else", "; else"),
        "opposite arms",
        "divide the branch at line 11 into two branches: first the arm whose access must come first, then"
        " __syncthreads(), where every thread of the block reaches it, then the other arm",
        "else empty",
        "__syncthreads(); if (t >= 32) empty",
    ),
    "cases of a switch": (
        SWITCH,
        "opposite arms",
        "divide the branch at line 5 into two branches: first the arm whose access must come first, then"
        " __syncthreads(), where every thread of the block reaches it, then the other arm",
        "        case 1:",
        "    }\n    __syncthreads();\n    switch (t / 32) {\n        case 1:",
    ),
    "cases that call": (
        ARMS_THAT_CALL.replace(
            "if (t < 32) fill(half, x, t);", "switch (t / 32) {\n case 0: fill(half, x, t); break;"
        ).replace("else empty(half, out, t);", "default: empty(half, out, t); }"),
        "opposite arms",
        "divide the branch at line 11 into two branches: first the arm whose access must come first, then"
        " __syncthreads(), where every thread of the block reaches it, then the other arm",
        "default:",
        "}\n __syncthreads();\n switch (t / 32) {\n case 0: break;\n default:",
    ),
    "early arrival of a ring": (
        RING.replace(READ + LEAVE, LEAVE + READ),
        "arms with an mbarrier",
        "arrive at the mbarrier only after the access on line 31, not before it on line 30",
        LEAVE + READ,
        READ + LEAVE,
    ),
    "late wait of a ring": (
        RING.replace("slot[k % 2][t] = x[t] + k;", "").replace(
            "            wait(empty", "            slot[k % 2][t] = x[t] + k;\n            wait(empty"
        ),
        "arms with an mbarrier",
        "wait at the mbarrier before the access on line 22, not only after it on line 23",
        "            slot[k % 2][t] = x[t] + k;\n            wait(empty + k % 2, 1 - k / 2 % 2);\n",
        "            wait(empty + k % 2, 1 - k / 2 % 2);\n            slot[k % 2][t] = x[t] + k;\n",
    ),
    "count of a ring": (
        RING.replace("create(full + threadIdx.x, 32)", "create(full + threadIdx.x, 31)"),
        "arms with an mbarrier",
        "initialise each mbarrier for all threads that arrive in a phase",
        "31); create",
        "32); create",
    ),
    "buffer of a ring": (
        RING.replace("sum += slot[k % 2]", "sum += slot[(k + 1) % 2]"),
        "arms with an mbarrier",
        "let both arms access only the buffer of the mbarrier at which they waited; both arms already wait"
        " before their accesses and arrive after them (lines 23 and 30)",
        "(k + 1) % 2",
        "k % 2",
    ),
    "parity of the phase before the first": (
        ONE_PHASE,
        "wait for the wrong parity",
        "let the wait at the mbarrier full[0] before line 25 test parity 0, the parity of phase 0, in which"
        " the other thread arrives after line 21; the wait tested parity 1, the parity of the phase before",
        "wait(full, 1)",
        "wait(full, 0)",
    ),
    "parity of an earlier phase": (
        LATER_PHASE.replace("wait(full, 1)", "wait(full, 0)"),
        "wait for the wrong parity",
        "test parity 1, the parity of phase 1, in which the other thread arrives after line 23; the wait"
        " tested parity 0, the parity of phase 0, which had ended",
        "wait(full, 0)",
        "wait(full, k)",
    ),
    "statement": (
        STATEMENT,
        "one statement",
        "split line 4: read into a variable, then __syncthreads()",
        "x[t] = x[t + 1];",
        "float next = x[t + 1]; __syncthreads(); x[t] = next;",
    ),
    "swap": (
        SWAP,
        "compare-and-swap loop",
        "read the element on line 4 by an atomic (atomicAdd of 0)",
        "*best;",
        "atomicAdd(best, 0);",
    ),
    "histogram": (
        HISTOGRAM,
        "update",
        "an atomic (atomicAdd for +=)",
        "out[(int)x[threadIdx.x] % 4] += 1;",
        "atomicAdd(&out[(int)x[threadIdx.x] % 4], 1);",
    ),
}


def report_of(text, path):
    threads = 8 if "char memory[]" in text else 64
    x, out = np.arange(65, dtype=np.float32), np.zeros(64, np.float32)
    return launched(text, path, (1, threads, 0, 64), x, out)


def launched(text, path, launch, *arguments):
    from sim.ptx.nvrtc import load_cuda

    path.write_text(text)
    return simulate(load_cuda(path)["kernel"], on_finding="report")[launch](*arguments)


@pytest.mark.parametrize("name", CASES)
def test_advice(name, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    text, pattern, says, old, new = CASES[name]
    races = [f for f in report_of(text, tmp_path / "buggy.cu").findings if f.kind.startswith("race")]
    assert {finding.advice.pattern for finding in races} == {pattern}
    assert all(says in finding.fix for finding in races)
    assert text.count(old) == 1
    assert report_of(text.replace(old, new), tmp_path / "fixed.cu").findings == ()


X = np.arange(64, dtype=np.float32)
# name -> (launch, body, pattern, part of the advice, [(old text, new text)], {argument: its correct values})
# Without edits, the advice is about the host.
MORE = {
    "last block by a plain ticket": (
        (4, 32),
        """
    __shared__ bool last;
    if (threadIdx.x == 0) {
        n[0] += 1;
        last = n[0] == gridDim.x;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) out[0] = 7;
""",
        "ticket",
        "execute one atomic (atomicAdd), which returns the old value, in place of line 4; on line 5, replace"
        " n[0] with the old value + 1",
        [("n[0] += 1;", "int old = atomicAdd(&n[0], 1);"), ("n[0] == gridDim", "old + 1 == gridDim")],
        {"n": [4], "out": [7]},
    ),
    "plain read of an atomic ticket": (
        (4, 32),
        """
    if (threadIdx.x == 0) {
        atomicAdd(n, 1);
        if (n[0] == gridDim.x) out[0] = 7;
    }
""",
        "ticket",
        "on line 4, replace n[0] with the old value + 1",
        [("atomicAdd(n, 1);", "int old = atomicAdd(n, 1);"), ("n[0] == gridDim", "old + 1 == gridDim")],
        {"n": [4], "out": [7]},
    ),
    "compaction by a plain counter": (
        (2, 32),
        """
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 5) {
        int base = n[0];
        n[0] += 1;
        out[base] = 1;
    }
""",
        "ticket",
        "before line 4, and delete line 5; on line 4, replace n[0] with the old value",
        [("= n[0];", "= atomicAdd(&n[0], 1);"), ("        n[0] += 1;\n", "")],
        {"n": [58], "out": np.repeat([1, 0], [58, 6])},
    ),
    "compaction by an increment in an index": (
        (2, 32),
        """
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 5) out[n[0]++] = 1;
""",
        "step in an expression",
        "atomicAdd of 1 in place of n[0]++ on line 3",
        [("n[0]++", "atomicAdd(&n[0], 1)")],
        {"n": [58], "out": np.repeat([1, 0], [58, 6])},
    ),
    "check before a store": (
        (2, 32),
        """
    int i = threadIdx.x;
    if (n[i] == 0) {
        n[i] = 5;
    }
""",
        "claim",
        "compare and write n[i] by one atomic, atomicCAS, on line 3",
        [("n[i] == 0", "atomicCAS(&n[i], 0, 5) == 0"), ("        n[i] = 5;\n", "")],
        {"n": np.repeat([5, 0], 32)},
    ),
    "largest by a comparison": (
        (2, 32),
        """
    int v = x[threadIdx.x];
    if (v > n[0])
        n[0] = v;
""",
        "claim",
        "atomicMax, on line 3: let the branch test the old value that it returns and delete line 4",
        [("v > n[0])\n        n[0] = v;", "v > atomicMax(&n[0], v));")],
        {"n": [31]},
    ),
    "largest float by a comparison": (
        (2, 32),
        """
    if (x[threadIdx.x] > *out)
        *out = x[threadIdx.x];
""",
        "claim",
        "atomicCAS of the bits of the value, in a loop (CUDA C++ has no atomicMax of 32-bit floating-point"
        " values), on line 2",
        [
            (
                "    if (x[threadIdx.x] > *out)\n        *out = x[threadIdx.x];",
                "    int seen = atomicAdd((int *)out, 0), before;\n"
                "    do before = seen; while (x[threadIdx.x] > __int_as_float(seen)\n"
                "        && (seen = atomicCAS((int *)out, seen, __float_as_int(x[threadIdx.x]))) != before);",
            )
        ],
        {"out": [31]},
    ),
    "shift under two branches": (
        (1, 32),
        """
    int t = threadIdx.x;
    if (t < 30) {
        if (t > 2) {
            x[t] = x[t + 1];
        }
    }
""",
        "one statement",
        "(outside of the branch at line 3: divide this branch at the barrier)",
        [
            ("    if (t < 30) {\n", "    float taken;\n    if (t < 30) {\n"),
            (
                "x[t] = x[t + 1];\n        }\n    }",
                "taken = x[t + 1];\n        }\n    }\n    __syncthreads();\n"
                "    if (t < 30) {\n        if (t > 2) {\n            x[t] = taken;\n        }\n    }",
            ),
        ],
        {"x": np.r_[0:3, 4:31, 30:64]},
    ),
    "phases of blocks": (
        (2, 32),
        """
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = x[i];
    __syncthreads();
    x[i] = out[63 - i];
""",
        "phases of blocks",
        "end the kernel between lines 3 and 5, and launch a second one for what comes after, or"
        " synchronise all blocks there: cooperative_groups::this_grid().sync()",
        [],
        {},
    ),
    "mask of half a warp": (
        (1, 32),
        """
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncwarp(0xffff);
    out[t] = s[31 - t];
""",
        "mask of some lanes",
        "name both lanes in the mask of __syncwarp on line 5",
        [("0xffff", "0xffffffff")],
        {"out": X[31::-1]},
    ),
    "barrier under an if": (
        (1, 64),
        """
    __shared__ float s[64];
    int t = threadIdx.x;
    float total = 0;
    for (int k = 0; k < 3; k++) {
        s[t] = x[t] + k;
        __syncthreads();
        total += s[63 - t];
        if (t < 32)
            __syncthreads();
    }
    out[t] = total;
""",
        "barrier that some threads miss",
        "move __syncthreads() on line 10 out of the branch at line 9",
        [("        if (t < 32)\n            __sync", "        __sync")],
        {"out": 3 * X[::-1] + 3},
    ),
    "pipeline with a buffer too few": (
        (1, 64),
        """
    __shared__ float s[2][64];
    int t = threadIdx.x;
    float total = 0;
    s[0][t] = x[t];
    s[1][t] = x[t] + 1;
    for (int k = 0; k < 6; k++) {
        __syncthreads();
        if (k + 2 < 6) s[(k + 2) % 2][t] = x[t] + k + 2;
        total += s[k % 2][63 - t];
    }
    out[t] = total;
""",
        "too few buffers",
        "give s one more buffer (3 in its shape and after each %)",
        [("s[2][64]", "s[3][64]"), ("(k + 2) % 2", "(k + 2) % 3"), ("s[k % 2]", "s[k % 3]")],
        {"out": 6 * X[::-1] + 15},
    ),
    "part of each warp": (
        (1, 64, 0, 256),
        """
    extern __shared__ float sums[];
    int t = threadIdx.x, w = t / 32;
    sums[63 - t] = 0;
    float *mine = sums + 32 * w;
    atomicAdd(&mine[t % 16], x[t]);
    __syncthreads();
    out[t] = sums[t];
""",
        "barrier",
        "__syncthreads() between the two lines",
        [("    float *mine", "    __syncthreads();\n    float *mine")],
        {"out": (X.reshape(2, 2, 16).sum(1)[:, None] * np.array([[[1], [0]]])).ravel()},
    ),
    "part of each warp without the name of the whole": (
        (1, 64, 0, 256),
        """
    extern __shared__ char memory[];
    int t = threadIdx.x;
    float *sums = (float *)memory;
    float *mine = (float *)memory + 32 * (t / 32);
    sums[63 - t] = 0;
    atomicAdd(&mine[t % 16], x[t]);
    __syncthreads();
    out[t] = sums[t];
""",
        "views that are read",
        "if sums and mine are not meant to overlap, move mine to byte 256 or later, after sums; otherwise,"
        " __syncthreads() between the two lines",
        [("] = 0;", "] = 0;\n    __syncthreads();")],
        {"out": (X.reshape(2, 2, 16).sum(1)[:, None] * np.array([[[1], [0]]])).ravel()},
    ),
    "second array that begins too early": (
        (1, 32, 0, 256),
        """
    extern __shared__ float first[];
    float *second = first + 16;
    int t = threadIdx.x;
    first[t] = x[t];
    second[31 - t] = 1;
    __syncthreads();
    out[t] = first[t] + second[t];
""",
        "overlapping views",
        "move second to byte 128 or later, after first",
        [("first + 16", "first + 32")],
        {"out": X[:32] + 1},
    ),
}
HEADER = 'extern "C" __global__ void kernel(float *x, float *out, int *n) {'


@pytest.mark.parametrize("name", MORE)
def test_advice_written_into_the_text(name, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    launch, body, pattern, says, edits, wanted = MORE[name]
    text = f"{HEADER}{body}}}\n"
    arguments = {"x": X.copy(), "out": np.zeros(64, np.float32), "n": np.zeros(64, np.int32)}
    given = [array.copy() for array in arguments.values()]
    findings = launched(text, tmp_path / "buggy.cu", launch, *given).findings
    assert any(f.advice.pattern == pattern and says in f.fix for f in findings if f.advice)
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    if edits:
        assert launched(text, tmp_path / "fixed.cu", launch, *arguments.values()).findings == ()
    for argument, values in wanted.items():
        np.testing.assert_array_equal(arguments[argument][: len(values)], values)


@pytest.mark.parametrize(
    "kind", ["signed char", "unsigned char", "short", "unsigned short", "int", "unsigned"]
)
def test_an_index_of_fresh_memory_names_its_cause(kind, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    body = f"__shared__ {kind} s[32]; int t = threadIdx.x; if (t > 0) s[t] = t;\n    out[s[t]] = 1;\n"
    arguments = X.copy(), np.zeros(64, np.float32), np.zeros(64, np.int32)
    cause, consequence = launched(f"{HEADER}{body}}}\n", tmp_path / "k.cu", (1, 32), *arguments).findings
    assert (cause.kind, consequence.kind) == ("uninitialized-read", "out-of-bounds")
    assert consequence.follows and "comes from an undefined value on line" in consequence.reason


@pytest.mark.parametrize("waits", [0, 1])
def test_ring_of_named_barriers_needs_a_second_barrier(waits):
    """Apply the advice by `waits`: the writing warp then waits until the buffer has been read."""
    _, kernels = module("named_ring", Path(__file__).with_name("programs"))
    x, out = np.arange(256, dtype=np.int32).reshape(8, 32), np.zeros((8, 32), np.int32)
    report = simulate(kernels["ring"], on_finding="report")[1, 64](x, out, np.int32(8), np.int32(waits))
    if waits:
        assert not report.findings and np.array_equal(out, x[:, ::-1])
        return
    cause, consequence = report.findings
    assert (cause.kind, consequence.kind) == ("barrier-divergence", "race-shared")
    assert "arrived again" in cause.reason and "second barrier" in cause.fix
    assert "first, as its finding says" in consequence.fix


GUARDS = {
    "out[t] = out[t - 1] + 1.0f;": "if t - 1 >= 0",
    "x[t] = out[t] + out[t - 1];": "the index must be >= 0",
    "out[t] += out[t - 1];": "the index must be >= 0",
    "out[t - 1] = out[t] + 1.0f;": "if t - 1 >= 0",
    "out[t - 1] += 1.0f;": "if t - 1 >= 0",
}


@pytest.mark.parametrize("statement", GUARDS)
def test_a_guard_tests_the_index_that_is_outside(statement, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    text = f'extern "C" __global__ void kernel(float *x, float *out) {{ int t = threadIdx.x;\n{statement} }}'
    findings = launched(text, tmp_path / "k.cu", (1, 1), *np.zeros((2, 4), np.float32)).findings
    assert {f.fix for f in findings} == {f"guard the access: {GUARDS[statement]}"}


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    ("kind", "access", "guard"),
    [
        ("float4", "x[t].w", "if (t < the length of x / 4)"),
        ("float4", "x[2 * t].y", "if (2 * t < the length of x / 4)"),
        ("float4", "x[t - 2].y", "if t - 2 >= 0"),
        ("float4", "((const float *)x)[t + 12]", "the index must be < the length of x"),
        ("float", "x[t + 12]", "if (t + 12 < the length of x)"),
    ],
)
def test_a_guard_of_vectors_counts_vectors(kind, access, guard, engine, tmp_path):
    """Read an array of 14 floats through a pointer to vectors. The last vector is incomplete."""
    pytest.importorskip("cuda.bindings.nvrtc")
    text = f"""extern "C" __global__ void kernel(const {kind} *x, float *out) {{
    int t = threadIdx.x;
    out[t] = {access};
}}"""
    x, out = np.zeros(14, np.float32), np.zeros(4, np.float32)
    (tmp_path / "k.cu").write_text(text)
    launch = simulate(load_cuda(tmp_path / "k.cu")["kernel"], engine=engine, on_finding="report")
    (finding,) = launch[1, 4](x, out).findings
    assert finding.fix == f"guard the access: {guard}"
    assert ("has 4 elements of the array" in finding.message) == ("/ 4" in guard)


def test_a_null_pointer_is_no_consequence_of_an_earlier_finding(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    text = """extern "C" __global__ void kernel(const float *x, float *out) {
    float v = out[-1 - (int)threadIdx.x];
    out[threadIdx.x + 1] = v + x[2];
}"""
    findings = launched(text, tmp_path / "k.cu", (1, 1), None, np.zeros(4, np.float32)).findings
    assert [f.follows for f in findings] == [False, False]
    assert any(f.reason.startswith("It is the null pointer") for f in findings)


@pytest.mark.parametrize("value", ["((volatile float *)out)[i] : 0.0f", "*(out + i) : b"])
def test_the_end_of_a_value_is_no_view_of_the_array_that_is_read(value, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    text = f"""extern "C" __global__ void kernel(const float *x, float *out) {{
    __shared__ float tile[32];
    int t = threadIdx.x, i = blockIdx.x * 31 + t - 1;
    float b = x[t];
    tile[t] = i >= 0 ? {value};
    __syncthreads();
    if (t > 0) out[i] = tile[t] + tile[t - 1];
}}"""
    (race,) = launched(text, tmp_path / "k.cu", (3, 32), *np.zeros((2, 96), np.float32)).findings
    assert race.kind == "race-global"
    assert "two views of the same memory" not in race.message


# {type of C++: (kind, size in bytes)}; the table does not distinguish the types of one kind and size
CPP_TYPES = {"char": ("integer", 1), "unsigned short": ("integer", 2), "unsigned": ("integer", 4)}
CPP_TYPES |= {"unsigned long long": ("integer", 8), "__half": ("floating-point", 2)}
CPP_TYPES |= {"__nv_bfloat16": ("floating-point", 2), "float": ("floating-point", 4)}
CPP_TYPES |= {"double": ("floating-point", 8)}


def test_the_table_of_atomics_agrees_with_the_compiler(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    text, values = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n", []
    for operation in ATOMICS[CPP]:
        name = WORDS[CPP][operation]
        operands = "T(), T()" if operation == "swap" else "T()"
        text += f"""
template <class T, class = void> struct {name}_ {{ static const int exists = 0; }};
template <class T> struct {name}_<T, decltype((void){name}((T *)0, {operands}))> {{
    static const int exists = 1;
}};
"""
        values += [(operation, type_, f"{name}_<{type_}>::exists") for type_ in CPP_TYPES]
    stores = "".join(f"out[{i}] = {value};\n" for i, (*_, value) in enumerate(values))
    text += f'extern "C" __global__ void kernel(int *out) {{\n{stores}}}\n'
    out = np.zeros(len(values), np.int32)
    launched(text, tmp_path / "k.cu", (1, 1), out)
    found = {(operation, type_): bool(value) for (operation, type_, _), value in zip(values, out)}
    assert found == {
        (operation, type_): exists(CPP, operation, ElementType(*CPP_TYPES[type_]))
        for operation, type_ in found
    }
