"""Tests of the table of instructions: lookup by name, and compiled forms that agree with the reference
semantics."""

import subprocess
import sys
from functools import partial
from itertools import islice, product

import ml_dtypes
import numba
import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda, njit
from numpy import complex64, complex128, float16, float32, float64, int32, uint32

from sim import ThreadError, simulate
from sim.isa import (
    INSTRUCTIONS,
    LLVM,
    atomics,
    by_ptx,
    function,
    libdevice,
    operators,
    powers,
    rounding,
    vote,
)
from sim.isa.barriers import VOTES
from sim.isa.functions import Function
from sim.native.codegen import half_operators as _halves  # noqa: F401  gives halves their operators
from sim.native.codegen.isa_functions import compiles, function_of
from sim.native.codegen.scalars import argument_of

ENGINES = ("fibers", "threads", "native")


# --- lookup by name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, operands, wanted",
    [
        ("add.s32", (2**31 - 1, 1), -(2**31)),
        ("mul.wide.s32", (2**31 - 1, -5), -5 * (2**31 - 1)),
        ("shl.b32", (1, 40), 0),
        ("shr.s32", (-8, 1), -4),
        ("bfe.s32", (0xF0, 4, 4), -1),
        ("bfe.u32", (0xF0, 4, 4), 15),
        ("lop3.b32", (0xF0, 0xCC, 0xAA, 0x80), 0x80),
        ("prmt.b32", (0x33221100, 0x77665544, 0x7531), 0x77553311),
        ("popc.b64", (-1,), 64),
        ("cvt.rzi.s32.f32", (float32(-2.7),), -2),
        ("cvt.sat.u8.s32", (300,), 255),
        ("cvt.rn.f16.f32", (float32(65519),), 65504),
        ("fma.rn.ftz.f32", (3, 4, 5), 17),
        ("setp.lt.f32", (1, float("nan")), False),
        ("setp.ltu.f32", (1, float("nan")), True),
        ("min.u32", (-3, 2), 2),
        ("min.s32", (-3, 2), -3),
        ("rem.s32", (-7, 2), -1),
        ("dp4a.s32.s32", (0x01FF0203, 0x01010101, 10), 15),
        ("vabsdiff4.u32.u32.u32", (0x01FF0203, 0x02010180, 9), 0x01FE017D),
        ("vabsdiff4.u32.u32.u32.add", (0x01FF0203, 0x02010180, 9), 9 + 1 + 254 + 1 + 125),
        ("vabsdiff4.s32.s32.s32.sat", (0x7F010203, 0x80010205, 9), 0x7F000002),
        ("vabsdiff2.s32.s32.u32", (0xFFFF0003, 0xFFFF0001, 9), 0x00000002),
        ("shf.l.wrap.b32", (0x80000000, 1, 1), 3),
        ("selp.b32", (1, 2, True), 1),
    ],
)
def test_an_instruction_of_ptx(name, operands, wanted):
    assert by_ptx(name).call(*operands) == wanted


def test_an_instruction_that_is_not_there():
    with pytest.raises(KeyError, match="no instruction fma.rn.f7 in the table"):
        by_ptx("fma.rn.f7")


def test_one_entry_has_all_its_names():
    assert by_ptx("fma.rn.f32") is INSTRUCTIONS["libdevice.fmaf_rn"]
    assert by_ptx("shfl.sync.bfly.b32") is INSTRUCTIONS["shfl_xor_sync"]


# --- a function of another package --------------------------------------------------------------------------


@function(source="PTX ISA bfe", native=LLVM("bitreverse"))
def reversed_bits(x: uint32) -> uint32:
    return int(f"{x:032b}"[::-1], 2)


@function(source="here")
def sum_and_half(x: int32, y: float32) -> (int32, float32):
    return x + x, y / 2


@pytest.mark.parametrize("scalar", [float16, float32])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fused_multiply_add_is_rounded_once(scalar):
    """Compare with exact arithmetic. Many sums lie close to the middle between two numbers, where a sum that
    is rounded to double precision first can be wrong."""
    eps, tiny = float(np.finfo(scalar).eps), float(np.finfo(scalar).smallest_subnormal)
    largest = float(np.finfo(scalar).max)
    factors = [1 + eps, 1 - eps, -eps / 2 * (1 - eps), eps / 2 * (1 + eps), tiny, 0.5, largest, np.inf]
    addends = [1 + eps, -1, 0.0, -0.0, 3 * tiny, -tiny, 2.0**-40, -largest, *factors]
    fast = {float16: rounding.fused_float16, float32: rounding.fused_float32}[scalar]
    for triple in product(factors, factors, addends):
        a, b, c = map(scalar, triple)
        found, wanted = fast(a, b, c), rounding.fused(a, b, c, scalar)
        assert type(found) is scalar, triple
        assert found.tobytes() == wanted.tobytes() or found != found and wanted != wanted, triple


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_of_a_package_outside(engine):
    def kernel(x, out):
        t = cuda.threadIdx.x
        twice, half = sum_and_half(x[t], x[t])
        out[t] = reversed_bits(x[t]) + twice + half

    x, out = np.arange(4), np.zeros(4)
    report = simulate(kernel, engine=engine)[1, 4](x, out)
    assert np.array_equal(out, [0, 2**31 + 2.5, 2**30 + 5, 2**31 + 2**30 + 7.5])
    assert report.notes == (("compiled",) if engine == "native" else ())


def test_a_function_has_types():
    with pytest.raises(ValueError, match="^untyped has an operand or a result without a dtype"):

        @function(source="here")
        def untyped(x):
            return x


HUGE = (1e30, -1e30, 2.0**63, 2.0**64, np.inf, -np.inf, np.nan)


def huge(scalar):
    """Return operands of this type that fit into no narrower type."""
    scalar = np.dtype(scalar)
    return HUGE if scalar.kind == "f" else (np.iinfo(scalar).min, np.iinfo(scalar).max)


@pytest.mark.parametrize("name", sorted(libdevice.ENTRIES))
def test_a_huge_operand_raises_nothing(name):
    entry = libdevice.ENTRIES[name]
    for operands in product(*map(huge, entry.operands)):
        with np.errstate(all="ignore"):
            entry.call(*(scalar(x) for scalar, x in zip(entry.operands, operands)))


@pytest.mark.parametrize("name, tie", [("llround", 3), ("llroundf", 3), ("llrint", 2), ("llrintf", 2)])
def test_a_number_beyond_an_int64_saturates(name, tie):
    call, scalar = libdevice.ENTRIES[name].call, libdevice.ENTRIES[name].operands[0]
    wanted = [2**63 - 1, -(2**63), 2**63 - 1, 2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 2**62, -tie]
    with np.errstate(all="ignore"):
        assert [call(scalar(x)) for x in (*HUGE, 2.0**62, -2.5)] == wanted


# --- compiled forms -----------------------------------------------------------------------------------------

AWKWARD = {
    "b": [False, True],
    "i": [0, 1, -1, 2, -7, 13, 31, 33, 63, "max", "min"],
    "u": [0, 1, 2, 7, 13, 31, 33, 63, "max", "half"],
    "f": [
        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.5, 0.1, -7.3, 1e5, -3e9, 1e19, 16777217, "max", "tiny", "smallest",
        np.inf, -np.inf, np.nan,
    ],
    "c": [0j, 1 + 0j, -1 + 0j, 1j, 0.3 - 0.7j, -2.5 + 1e-3j, 3 + 4j, -7.3 - 0.1j],
}  # fmt: skip
MOST = 400
SCALARS = [bool, int32, np.int8, np.uint8, np.uint64, float16, bfloat16, float32, float64]
COMPLEX = [complex64, complex128]
PAIRS = [
    *((scalar, scalar) for scalar in (bool, int32, int, uint32, np.uint64, float16, float32, float64)),
    *(
        (int, np.uint64),
        (np.uint64, int32),
        (float32, int),
        (float32, int32),
        (int, float64),
        (bfloat16, float32),
    ),
]


def awkward(scalar):
    """Return special values of this type, such as limits and NaN."""
    dtype = np.dtype(scalar)
    if dtype.name == "bfloat16":
        info = ml_dtypes.finfo(dtype)
    else:
        info = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype) if dtype.kind == "f" else None
    named = {"max": "max", "min": "min", "tiny": "tiny", "smallest": "smallest_subnormal"}
    values = AWKWARD["f" if dtype.name == "bfloat16" else dtype.kind]
    spelled = [
        info.max // 2 + 1 if v == "half" else getattr(info, named[v]) if isinstance(v, str) else v
        for v in values
    ]
    return [dtype.type(v) for v in spelled]


FORMS = sorted({entry.name: entry for entry in INSTRUCTIONS.values() if compiles(entry)})


def versions(entry):
    """Return the scalar operand types with which to test an entry."""
    if entry.rule is None:
        return [entry.operands]
    if entry.name.startswith("cmath."):
        return [(scalar,) for scalar in COMPLEX]
    if entry.name == "selp":
        return [(bool, scalar, scalar) for scalar in (int, float32, float64)]
    ones = SCALARS + COMPLEX if entry.name.startswith(("operator.", "builtins.", "numpy.")) else SCALARS
    tried = {1: zip(ones), 2: PAIRS, 3: [(float32,) * 3, (float64, float32, int), (float16,) * 3]}
    return [scalars for scalars in tried[entry.count] if entry.version(*scalars)]


def units(got, wanted):
    """Return the distance between two numbers in units in the last place, or 0 for two NaNs."""
    if isinstance(wanted, (int, np.integer)):
        return 0 if int(got) == int(wanted) else np.inf
    got = type(wanted)(got)
    if got != got or wanted != wanted:
        return 0 if got != got and wanted != wanted else np.inf
    if isinstance(wanted, np.complexfloating):  # The distance refers to the magnitude of the expected number.
        return 0 if got == wanted else abs(complex(got - wanted)) / np.spacing(abs(wanted))
    if got == wanted:
        return 0 if np.signbit(got) == np.signbit(wanted) else np.inf
    if np.isinf(got) or np.isinf(wanted):
        return np.inf
    wide = isinstance(wanted, bfloat16)
    unit = np.spacing(float32(abs(wanted))) * 2**16 if wide else np.spacing(abs(wanted))
    return abs(float(got) - float(wanted)) / unit


def parts(value):
    return value if isinstance(value, tuple) else (value,)


def compare(entry, scalars):
    """Compare a Function's compiled form with its semantics, for operands of these types."""
    form, listed = function_of(entry), ", ".join(f"x{i}" for i in range(len(scalars)))
    # Compiled code cannot return this type.
    halves = entry.version(*scalars).results in (float16, bfloat16)
    result = f"float64(form({listed}))" if halves else f"form({listed})"
    exec(f"def called({listed}): return {result}", names := {"form": form, "float64": numba.float64})
    called = njit(error_model="numpy")(names["called"])
    columns = [awkward(scalar) for scalar in scalars]
    for operands in islice(product(*columns), 0, None, max(1, np.prod([*map(len, columns)]) // MOST)):
        with np.errstate(all="ignore"):
            wanted = entry.call(*(int(x) if isinstance(x, np.int64) else x for x in operands))
        got = called(*map(argument_of, operands))
        for a, b in zip(parts(got), parts(wanted), strict=True):
            assert units(a, b) <= entry.ulps, f"{entry.name}{operands}: compiled {got}, semantics {wanted}"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if place % 4 else []) for place, name in enumerate(FORMS)],
)
def test_the_compiled_form_gives_what_the_semantics_give(name, few):
    """Compare compiled forms with the reference semantics.

    A CI run compiles every fourth entry for one of its types, which covers nearly all types.
    """
    entry, place = INSTRUCTIONS[name], FORMS.index(name) // 4
    scalars = versions(entry)
    for each in few(scalars[place % len(scalars) :] + scalars[: place % len(scalars)], 1):
        compare(entry, each)


@pytest.mark.parametrize("scalar", [int, np.uint64])
@pytest.mark.parametrize("forms", [powers.EXACT, powers.ROUNDED])
def test_the_compiled_form_of_a_power(forms, scalar):
    """Compare powers, which are exact under Python 3.12 and rounded to a float64 under 3.11, like Numba's."""
    fast = partial(operators.int_power, scalar=scalar, by_way_of_float64=forms is powers.ROUNDED)
    entry = Function("power", fast, "", (scalar, scalar), scalar, native=forms[scalar])
    compare(entry, (scalar, scalar))
    power = 12157665459056928768 if forms is powers.ROUNDED else 3**40
    assert entry.call(3, 40) == (power if scalar is np.uint64 else power - 2**64)


@pytest.mark.parametrize("scalar", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("name", atomics.ENTRIES)
def test_the_compiled_form_of_an_atomic(name, scalar):
    entry = atomics.ENTRIES[name]
    if name in ("and_", "or_", "xor") and scalar[0] == "f" or name in ("inc", "dec") and scalar[0] != "u":
        return
    types = (np.dtype(scalar),) * (1 + len(entry.operands))
    compare(Function(name, entry.semantics, "", types, types[0], native=entry.native), types)


# --- votes of a block ---------------------------------------------------------------------------------------


def voting(x, out):
    t = cuda.threadIdx.x
    for i in range(x.shape[0]):
        count = cuda.syncthreads_count(x[i, t])
        out[i, 0, t], out[i, 1, t], out[i, 2, t] = (
            count,
            cuda.syncthreads_and(x[i, t]),
            cuda.syncthreads_or(x[i, t]),
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_vote_of_a_block(engine):
    """Call a vote of a block. The table states facts that hold for every vote."""
    x = np.array([[0, -0.0, 0, 0], [np.nan, 1, -2, 1e-300], [0, np.inf, 0, np.nan]])
    out = np.zeros((3, 3, 4), np.int32)
    simulate(voting, engine=engine)[1, 4](x, out)
    wanted = [[vote.vote(row) for vote in VOTES] for row in x]
    assert out.tolist() == [[[number] * 4 for number in row] for row in wanted]
    assert wanted == [[0, 0, 0], [4, 1, 1], [2, 0, 1]]


@vote(source="here", start=-np.inf)
def largest(so_far, number: float32) -> float32:
    return number if number > so_far else so_far


def two_votes(x, out):
    t = cuda.threadIdx.x
    out[t] = largest(x[t]) + 10 * largest(number=-x[t])


def vote_in_a_branch(x, out):
    if cuda.threadIdx.x < 3:
        out[0] = largest(x[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_vote_of_a_package_outside(engine):
    x, out = np.array([3, -7, 0.1, 2.5]), np.zeros(4)
    report = simulate(two_votes, engine=engine)[1, 4](x, out)
    assert out.tolist() == [73] * 4 and report.counters["barriers"] == 2
    assert report.notes == (("compiled",) if engine == "native" else ())
    report = simulate(vote_in_a_branch, engine=engine, on_finding="report")[1, 4](x, out)
    assert [finding.kind for finding in report.findings] == ["barrier-divergence"]


def test_a_vote_is_called_with_one_number():
    def kernel(x):
        x[0] = largest(x[0], x[0])

    with pytest.raises(ThreadError, match="TypeError: largest takes 1 argument, number; got 2"):
        simulate(kernel)[1, 1](np.zeros(1))
    with pytest.raises(
        ValueError, match="^short has 1 parameters; a semantics function of this kind begins with result"
    ):

        @vote(source="here")
        def short(result) -> int32:
            return result


def test_digests_are_the_same_in_each_process():
    """Compare digests between processes, because they are the keys under which machine code is cached."""
    program = (
        "from sim.isa.table import INSTRUCTIONS\n"
        "from sim.native.codegen.isa_functions import compiles, digest\n"
        "for entry in filter(compiles, INSTRUCTIONS.values()): print(digest(entry))"
    )
    told = [subprocess.check_output([sys.executable, "-c", program]).split() for _ in range(2)]
    assert told[0] == told[1] and len(set(told[0])) > 400
