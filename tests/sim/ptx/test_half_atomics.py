"""Tests of atomics on 16-bit elements and on pairs of 16-bit elements, in all engines."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from ptx.test_language import HEAD
from sim import load_ptx, simulate

ENGINES = pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
KERNEL = """
.visible .entry add(.param .u64 a_x, .param .u64 a_value)
{{ .reg .b16 %h<3>; .reg .b32 %r<3>; .reg .b64 %d<3>;
   ld.param.u64 %d1, [a_x]; ld.param.u64 %d2, [a_value]; cvta.to.global.u64 %d1, %d1;
   ld.global.{width} %{register}1, [%d2];
   {atomic} [%d1], %{register}1;
   ret; }}
"""


@ENGINES
@pytest.mark.parametrize("opcode", ["red.global", "atom.global"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("pair", [False, True])
def test_a_sum_is_rounded_after_each_addition(engine, opcode, dtype, pair):
    """Start at a large number, for which adding one value repeatedly gives a different result from adding the
    sum once."""
    name = {"float16": "f16", "bfloat16": "bf16"}[dtype.name] + "x2" * pair
    register, width = ("r", "u32") if pair else ("h", "u16")
    result = f" %{register}2," if opcode.startswith("atom") else ""
    atomic = f"{opcode}.add.noftz.{name}{result}"
    kernel = load_ptx(HEAD + KERNEL.format(width=width, register=register, atomic=atomic))["add"]
    start, step = np.array([256.0, -3.0], dtype)[: 1 + pair], np.array([1.5, 0.25], dtype)[: 1 + pair]
    expected = start.copy()
    for _ in range(96):
        expected = (expected.astype(np.float64) + step.astype(np.float64)).astype(dtype)
    x = start.copy()
    report = simulate(kernel, engine=engine)[3, 32](x, step)
    assert x.tobytes() == expected.tobytes()
    assert engine != "native" or report.notes == ("compiled",)


@pytest.fixture
def launch(engine):
    _, kernels = module("half_atomics", Path(__file__).with_name("programs"))

    def run(name, *arguments):
        return simulate(kernels[name], engine=engine, on_finding="report")[2, 32](*arguments)

    return run


@ENGINES
def test_additions_of_the_headers_are_clean(launch, engine):
    given = [np.zeros(2, dtype) for dtype in (BFLOAT16, BFLOAT16, np.float16, np.float16)]
    assert launch("add", *given).findings == ()
    assert [x.tolist() for x in given] == [[64, 0], [64, 128], [64, 0], [64, 128]]


@ENGINES
def test_a_store_beside_an_addition_of_the_headers_is_a_race(launch, engine):
    report = launch("add_and_store", np.zeros(2, BFLOAT16), np.int32(7))
    assert {finding.kind for finding in report.findings} == {"race-global"}
    assert launch("add_and_store", np.zeros(2, BFLOAT16), np.int32(-1)).findings == ()


@ENGINES
def test_compare_and_swap_of_two_bytes(launch, engine):
    count = np.zeros(2, np.uint16)
    assert launch("swap_from_zero", count).findings == () and count.tolist() == [64, 0]
    (finding,) = launch("swap", np.zeros(2, np.uint16)).findings
    assert finding.kind == "race-global"  # the kernel reads the first value with a plain load


# The first half of the block adds to a pair, and the second half accesses one of its elements.
PAIR_AND_ELEMENT = """
.visible .entry add(.param .u64 a_x)
{{ .reg .b16 %h<3>; .reg .b32 %r<3>; .reg .b64 %d<3>; .reg .pred %p;
   ld.param.u64 %d1, [a_x]; cvta.to.global.u64 %d1, %d1;
   mov.u32 %r1, %tid.x; mov.b32 %r2, 0x3C003C00; mov.b16 %h1, 0x3C00;
   setp.ge.u32 %p, %r1, 16;
   @%p bra OTHER;
   red.global.add.noftz.f16x2 [%d1], %r2;
   ret;
OTHER:
   {other};
   ret; }}
"""


@ENGINES
@pytest.mark.parametrize(
    ("other", "races"),
    [
        ("red.global.add.noftz.f16 [%d1+2], %h1", False),
        ("st.global.u16 [%d1+2], %h1", True),
        ("red.global.add.u32 [%d1], 1", True),
    ],
)
def test_a_packed_atomic_is_one_atomic_per_half(engine, other, races):
    kernel = load_ptx(HEAD + PAIR_AND_ELEMENT.format(other=other))["add"]
    x = np.zeros(2, np.float16)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](x)
    assert {finding.kind for finding in report.findings} == ({"race-global"} if races else set())
    assert races or x.tolist() == [16, 32]
