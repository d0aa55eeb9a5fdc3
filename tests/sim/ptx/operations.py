"""Generator of PTX kernels that execute many instructions on the same special operands and store all
results."""

from functools import cache

import numpy as np
from ml_dtypes import bfloat16

from sim import load_ptx
from sim.isa.registers import WIDTHS, find_operation

THREADS = 256
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": bfloat16}
NUMBERS = """0 -0.0 1 -1 1.5 2.5 -2.5 0.5 1e-40 -1e-40 3.4e38 -3.4e38 1e30 inf -inf nan 2147483648 -2147483648
    9223372036854775808 65504 65520 1e-8 0.1 16777217 3.7 -3.7 127.5 255.5""".split()
DECLARED = """.reg .pred %p<3>, %q; .reg .b32 %t, %to32; .reg .b64 %at, %out, %to64; .reg .b16 %to16;
    .reg .f32 %tof32; .reg .f64 %tof64;"""


def wholes(random, width):
    """Return random bit patterns, three in five of which are close to the limit of an integer type."""
    top, ones = 1 << width - 1, (1 << width) - 1
    edges = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 127, 128, 255, ones, ones - 1, top, top - 1, top + 1]
    found = [int(n) & ones for n in random.integers(0, 2**63, THREADS, np.uint64)]
    at_edge = random.integers(0, 5 * len(edges) // 3, THREADS)
    return np.array([edges[e] if e < len(edges) else n for n, e in zip(found, at_edge)], f"u{width // 8}")


def reals(random, dtype):
    found = random.standard_normal(THREADS) * 10.0 ** random.integers(-6, 7, THREADS)
    edges = random.choice(np.array(NUMBERS, float), THREADS)
    with np.errstate(all="ignore"):
        return np.where(random.random(THREADS) < 0.5, edges, found).astype(dtype)


@cache
def operands():
    """Return {register: array} with three operands of each type."""
    random, arrays = np.random.default_rng(0), {}
    for letter in "abc":
        arrays |= {f"b{width}{letter}": wholes(random, width) for width in (16, 32, 64)}
        arrays |= {f"{kind}{letter}": reals(random, dtype) for kind, dtype in DTYPES.items()}
    return arrays


def register(kind, letter):
    if kind == "pred":
        return f"%p{'abc'.index(letter)}"
    return f"%{kind}{letter}" if kind in DTYPES else f"%b{max(WIDTHS[kind], 16)}{letter}"


def loaded_as(name):
    return "b16" if name[:-1] in ("f16", "bf16") else name[:-1]


def instruction(name):
    """Return PTX text that stores the instruction's result at %out."""
    operation = find_operation(name)
    given = [register(kind, letter) for kind, letter in zip(operation.operands, "abc")]
    given += {"lop3": ["0x5A"], "bfi": ["7"]}.get(name.split(".")[0], [])
    kind = operation.results[0]
    if kind == "pred":
        return f"{name} %q, {', '.join(given)}; selp.u64 %to64, 1, 0, %q; st.global.u64 [%out], %to64;"
    stored = kind if kind in ("f32", "f64") else f"b{max(WIDTHS[kind], 16)}"
    to = f"%to{stored.lstrip('b')}"
    return f"{name} {to}, {', '.join(given)}; st.global.{stored} [%out], {to};"


CONSTANTS = {"f32": "0f3FC00000", "f64": "0d3FF8000000000000", "f16": "0x3E00", "bf16": "0x3FC0"}  # 1.5


def kernel(names, constant=""):
    """Return the kernel (operand arrays, out) for these instructions.

    constant: the letters of the operands ("a", "b", "c") that are 5 or 1.5, and are not read from arrays.
    """
    parameters = [f".param .u64 k_{name}" for name in (*operands(), "out")]
    lines = [HEAD, f".visible .entry k({', '.join(parameters)})", "{", DECLARED]
    lines += [f".reg .{loaded_as(name)} %{name};" for name in operands()]
    lines += ["mov.u32 %t, %tid.x; ld.param.u64 %out, [k_out]; mad.wide.u32 %out, %t, 8, %out;"]
    for name, array in operands().items():
        lines.append(f"ld.param.u64 %at, [k_{name}]; mad.wide.u32 %at, %t, {array.itemsize}, %at;")
        lines.append(f"ld.global.{loaded_as(name)} %{name}, [%at];")
        if name[-1] in constant:
            lines.append(f"mov.{loaded_as(name)} %{name}, {CONSTANTS.get(name[:-1], 5)};")
    for i, letter in enumerate("abc"):
        lines.append(f"and.b32 %t, %b32{letter}, 1; setp.eq.u32 %p{i}, %t, 0;")
    for name in names:
        lines.append(f"{instruction(name)} add.u64 %out, %out, {8 * THREADS};")
    return load_ptx("\n".join([*lines, "ret;", "}"]))["k"]


def results(out, names):
    """Return {name: results as numbers}. All NaNs compare equal, but 0 and -0 differ."""
    found = {}
    for name, row in zip(names, out):
        packed = name.endswith("x2")
        kind = name.split(".")[-1].removesuffix("x2") if packed else find_operation(name).results[0]
        dtype = DTYPES.get(kind)
        if dtype is None:
            found[name] = row
            continue
        size = np.dtype(dtype).itemsize
        width = 4 if packed else size
        numbers = row.view(np.uint8).reshape(-1, 8)[:, :width].copy().view(dtype)
        bits = numbers.view(f"u{size}").astype(np.uint64)
        with np.errstate(invalid="ignore"):  # a bfloat16 can be a signalling NaN
            found[name] = np.where(np.isnan(numbers.astype(np.float64)), np.uint64(2**63), bits)
    return found
