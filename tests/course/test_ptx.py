"""Tests of course.ptx: types and PTX without a GPU, correct counts, and a clear message if the compiler is
missing."""

import warnings

import numpy as np
import pytest
import torch
from numba import cuda, types
from numba.cuda.cudadrv import nvvm
from numpy import float32

from course import ptx
from course.check.lesson07 import EXPRESSIONS

ROW, MATRIX = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")


@cuda.jit(device=True)
def doubled(a):
    return a * 0.1


@cuda.jit
def careless(x, i, out):
    shared, local = cuda.shared.array(10, types.float32), cuda.local.array(10, types.float32)
    for c in range(10):
        local[c] = shared[c] = x[c]
    out[0] = local[i] + shared[i]
    out[1] = max(x[0], 0.0)
    out[2] = doubled(x[1])


def careful(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factor * x[i]


@pytest.fixture
def compiler():
    try:
        ptx.require_compiler()
    except ptx.NoCompiler as missing:
        reason = f"NOTHING WAS COMPILED: {missing}"
        warnings.warn(reason)
        pytest.skip(reason)


def test_types_follow_the_arguments(compiler):
    assert ptx.type_of("n + 1", n=np.int32(5)) == ptx.type_of("n + 1", n=5) == "int64"
    assert ptx.type_of("n * x[0]", n=5, x=torch.zeros(3)) == "float64"
    assert ptx.type_of("n * x[0]", n=float32(5), x=torch.zeros(3)) == "float32"
    assert ptx.type_of("cuda.threadIdx.x") == "int32"


@pytest.mark.parametrize("expression, kind", [entry[:2] for entry in EXPRESSIONS.values()])
def test_the_types_that_exercise_7_1_wants_are_numbas(compiler, expression, kind):
    assert ptx.type_of(expression, n=types.int32, s=types.float32, x=ROW) == kind


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_counts(compiler, architecture):
    made = ptx.compiled(careless, ROW, types.int64, ROW, architecture=architecture)
    assert f".target {architecture}" in made.ptx
    assert (made.shared_bytes, made.local_bytes) == (40, 40)
    assert made.registers > 0
    counts = [line[:5].strip() for line in made.float64_by_line().splitlines()]
    at_max, at_call = (
        place
        for place, line in enumerate(made.float64_by_line().splitlines())
        if "max(" in line or "doubled(" in line
    )
    assert int(counts[at_max]) >= 3 and int(counts[at_call]) >= 1
    assert sum(int(count or 0) for count in counts) == len(made.float64)


def test_a_kernel_without_float64_has_none_and_a_python_float_brings_it(compiler):
    x = np.zeros(3, float32)
    assert ptx.compiled(careful, x, float32(2), x).float64 == []
    assert ptx.compiled(careful, x, 2.0, x).float64 != []


def test_read_aloud_names_the_parameters_and_every_instruction(compiler):
    lines = ptx.compiled(careful, ROW, types.float32, ROW).read_aloud().splitlines()
    words = [line.split("   ", 1)[1].strip() for line in lines if not line.startswith("$")]
    assert {"rd2 = x.data", "f1 = factor"} <= {line.replace("rd1 =", "rd2 =") for line in words}
    assert any(line.endswith("= threadIdx.x") for line in words) and words[-1] == "return"


def test_parameters_of_a_matrix_are_numbas(compiler):
    def corner(a, out):
        out[0] = a[a.shape[0] - 1, a.shape[1] - 1]

    text = ptx.compiled(corner, MATRIX, ROW).read_aloud()
    assert "= a.shape0" in text and "= a.shape1" in text and "= out.data" in text


@pytest.mark.parametrize(
    "line, words",
    [
        ("mul.f32 %f3, %f2, %f1", "f3 = f2 * f1"),
        ("mul.wide.s32 %rd8, %r2, %r3", "rd8 = r2 * r3, twice as wide as they are"),
        ("cvt.rn.f32.f64 %f2, %fd3", "f2 = float32(fd3)"),
        ("mov.f64 %fd2, 0d3FF8000000000000", "fd2 = 1.5"),
        ("mov.f32 %f1, 0f3F800000", "f1 = 1.0"),
        ("ld.global.f32 %f2, [%rd14+4]", "f2 = the float32 at rd14+4"),
        ("setp.lt.s64 %p2, %rd57, 1", "p2 = rd57 < 1"),
        ("@!%p1 bra $L__BB0_2", "if not p1: go to L__BB0_2"),
        ("st.shared.f32 [%r1], %f1", "the float32 at r1 in shared memory = f1"),
        ("fma.rn.f32 %f4, %f1, %f2, %f3", "f4 = f1 * f2 + f3, rounded once"),
        ("mov.u32 %r3, %ctaid.x", "r3 = blockIdx.x"),
        ("prmt.b32 %r1, %r2, %r3, 291", ""),
    ],
)
def test_an_instruction_in_words(line, words):
    assert ptx.spoken(line) == words


def test_a_libnvvm_of_the_system_does_not_suffice(monkeypatch):
    monkeypatch.setattr(ptx, "find_spec", lambda name: None)  # as if numba-cuda were missing
    with pytest.raises(ptx.NoCompiler, match="libNVVM, is not here"):
        ptx.require_compiler()


def test_without_the_compiler_it_says_so(monkeypatch):
    def missing():
        raise nvvm.NvvmSupportError("libNVVM cannot be found")

    monkeypatch.setattr(nvvm, "NVVM", missing)
    with pytest.raises(ptx.NoCompiler, match="libNVVM, is not here") as caught:
        ptx.compiled(careful, ROW, types.float32, ROW)
    assert caught.value._render_traceback_()[0].startswith("NOTHING WAS COMPILED")
    with pytest.raises(ptx.NoCompiler):
        ptx.type_of("n + 1", n=1)
