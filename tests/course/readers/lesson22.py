"""Answers of a reader of lesson 22 (CUDA C++): wrong ones that the checks once accepted, variants of them,
and unusual correct ones that the checks rejected or might reject."""

import runpy
from pathlib import Path

FLASH = runpy.run_path(str(Path(__file__).parents[1] / "mutants" / "lesson22.py"))["FLASH"]

HEADS = {
    "load_tile": "void load_tile(float* tile, const float* array, int start, int length, int size)",
    "absorb": "float absorb(float t, float& m, float& l, float& shrink)",
}
NUMBER = "start + e < size ? array[start + e] : 0.0f"
ABSORBED = """
    unsigned lane = threadIdx.x % 32, mask = ((1u << WIDTH) - 1) << lane / WIDTH * WIDTH;
    float larger = fmaxf(m, row_max(t, mask)), p = weight(t, larger), sum = p;
    for (int step = 1; step < WIDTH; step *= 2) sum += __shfl_xor_sync(mask, sum, step);
    shrink = weight(m, larger);
    l = l * shrink + sum;
    m = larger;
    return p;
"""
SHRINK = "weight(m, larger)"
MENDS = {
    "a": ("for (int j = 0; j < 64; j++) {", "for (int j = 0; j < n; j++) {"),
    "b": ("o_tile[t] = inside ? o[i] : 0.0f;", "o_tile[t] = inside && t > 0 ? o[i] : 0.0f;"),
    "c": ("float* v_tile = shared + d * d;", "float* v_tile = shared + 8 * d;"),
    "d": (
        "if (inside) atomicAdd(l, expf(left + tile[t] + right));",
        "if (inside && t % 31) atomicAdd(l, expf(left + tile[t] + right));",
    ),
}
ADDED = "if (inside && t > 0) o[i] = shrink * o_tile[t] + x_tile[t - 1] + x_tile[t];"


def device(name, body):
    include = '#include "rows.cuh"\n' if name == "absorb" else ""
    return f"{include}__device__ {HEADS[name]} {{\n{body}\n}}\n"


def absorb(old, new):
    if old not in ABSORBED:
        raise ValueError(f"{old!r} is not in the text")
    return device("absorb", ABSORBED.replace(old, new))


def mend(letter, right, wrong=None):
    """Return an answer to exercise 22.5 that fixes one kernel differently from the solution."""
    mends = {letter: {wrong: right} for letter, (wrong, right) in MENDS.items()}
    mends[letter] = {wrong or MENDS[letter][0]: right}
    return lambda: mends


WRONG = {
    "ex22_2": [
        (
            "the first warp loads",
            device(
                "load_tile",
                "if (threadIdx.x < 32) for (int e = threadIdx.x; e < length; e += min(32, blockDim.x)) "
                f"tile[e] = {NUMBER};",
            ),
        )
    ],
    "ex22_3": [
        ("32 keys at most", FLASH.replace("start < n;", "start < min(n, 32);")),
        (
            "rows of at most 32 numbers, in registers",
            FLASH.replace("float m =", "float row[32] = {};\n    float m =")
            .replace("visit(t, q_tile,", "visit(0, q_tile + t * d,")
            .replace("v_tile, o_tile, keys", "v_tile, row, keys")
            .replace("o_tile[t * d + c] / l", "row[c] / l"),
        ),
        (
            "shared memory of a fixed size",
            FLASH.replace("extern __shared__ float shared[];", "__shared__ float shared[4096];"),
        ),
    ],
    "ex22_4": [
        (
            "the lane from the index in the grid",
            absorb("threadIdx.x % 32", "(blockIdx.x * blockDim.x + threadIdx.x) % 32"),
        )
    ],
    "ex22_5": [
        ("a: one more barrier", mend("a", f"__syncthreads(); {MENDS['a'][1]}")),
        ("b: the racing load is left to the compiler", mend("b", ADDED.replace("o_tile[t]", "o[i]"), ADDED)),
        ("c: another array", mend("c", "__shared__ float v_tile[512];")),
        ("d: 61 numbers at most", mend("d", MENDS["d"][1].replace("inside", "inside && j < 61"))),
    ],
}
RIGHT = {
    "ex22_2": [
        (
            "two loops, each strided",
            device(
                "load_tile",
                "int e = threadIdx.x, there = min(length, size - start);"
                "for (; e < there; e += blockDim.x) tile[e] = array[start + e];"
                "for (; e < length; e += blockDim.x) tile[e] = 0;",
            ),
        )
    ],
    "ex22_4": [
        (
            "1 as the factor of an empty row",
            absorb(SHRINK, "larger == MINUS_INFINITY ? 1.0f : expf(m - larger)"),
        )
    ],
    "ex22_5": [
        ("c: as many rows as there are", mend("c", "float* v_tile = shared + min(8, n) * d;")),
        (
            "d: the halo adds 0",
            mend("d", "atomicAdd(l, inside && t % 31 ? expf(left + tile[t] + right) : 0.0f);"),
        ),
    ],
}
