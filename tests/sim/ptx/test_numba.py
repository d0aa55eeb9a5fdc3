"""Tests of the course's kernels after Numba compiled them to PTX.

Results and findings must equal the results and findings of the Python front end.
"""

import inspect
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.cudadrv import nvvm
from numba.cuda.np.numpy_support import from_dtype

from kernels.cases.table import CASES
from kernels.common.device_argument import numpy_dtype
from kernels.common.launch import simulated
from kernels.conv.decode import conv_attention_decode
from kernels.conv.forward import conv_forward
from kernels.conv.tensor_backward import conv_tensor_backward
from kernels.flash.forward import flash_forward
from sim import load_ptx, simulate
from sim.ptx.numba import flattened

# kernels for which libNVVM omits a label if line numbers are requested
LOSES_A_LABEL = {"multi_token_mix_rows_kernel"}
# kernels without a product plus a sum, which the compiler would fuse and round once
EXACT = {
    "collatz",
    "horner",
    "copy",
    "strided_copy",
    "transpose_naive",
    "transpose_tiled",
    "transpose_padded",
}
SHORT = [name for name in CASES if name in EXACT | {"matmul_tiled"}]
CONTRACTED = re.compile(r"fma\.rn\.f32\s+(\S+), (\S+), (\S+), (\S+);")
APART = r"{ .reg .f32 %product; mul.rn.f32 %product, \2, \3; add.rn.f32 \1, %product, \4; }"


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))
    try:
        nvvm.NVVM()
    except nvvm.NvvmSupportError as error:
        reason = f"NO KERNEL WAS COMPILED: numba-cuda finds no libNVVM ({error})"
        warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)


def type_of(argument):
    """Return Numba's type for a kernel argument, a tensor or a number."""
    if isinstance(argument, torch.Tensor):
        dtype = from_dtype(numpy_dtype(argument.dtype))
        return types.Array(dtype, argument.ndim, "C" if argument.is_contiguous() else "A")
    return cuda.typing.typeof.typeof(argument)


def by_ptx(reports, change=lambda ptx: ptx, engine="fibers"):
    """Return a runner that compiles the kernel to PTX and simulates it."""

    def run(kernel, grid, block, *arguments):
        signature = tuple(map(type_of, arguments))
        ptx, _ = cuda.compile(
            kernel.py_func,
            signature,
            device=False,
            abi="numba",
            output="ptx",
            cc=(8, 0),
            lineinfo=kernel.__name__ not in LOSES_A_LABEL,
        )
        module = load_ptx(change(ptx))
        names = list(inspect.signature(kernel.py_func).parameters)
        values, called = flattened(arguments, names)
        entry = module[module.names[0]].named(called)
        reports.append(simulate(entry, engine=engine, on_finding="report")[grid, block](*values))

    return run


def both(case, change=lambda ptx: ptx, engine="fibers"):
    """Return (outputs and reports from Python, the same from PTX run by `engine`)."""
    given = case.tensors(case.sizes[0])
    return by_both(lambda run: case.call(*(tensor.clone() for tensor in given), run=run), change, engine)


def by_both(call, change=lambda ptx: ptx, engine="fibers"):
    """Return the results of both front ends for a function that takes a runner."""
    ours, theirs = [], []

    def run(*launched):
        ours.append(simulated(*launched, engine="fibers", on_finding="report"))

    return (call(run), ours), (call(by_ptx(theirs, change, engine)), theirs)


@pytest.mark.parametrize(
    "name", [*SHORT, *(pytest.param(name, marks=pytest.mark.nightly) for name in CASES if name not in SHORT)]
)
def test_results_and_findings_are_those_of_python(name):
    (wanted, ours), (got, theirs) = both(CASES[name])
    assert [len(report.findings) for report in theirs] == [len(report.findings) for report in ours]
    for mine, right in zip(got, wanted, strict=True):
        if name in EXACT:
            assert torch.equal(mine, right)
        else:
            torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)


def test_a_product_and_its_sum_rounded_apart_give_every_bit_of_python():
    (wanted, _), (got, _) = both(CASES["matmul_tiled"], lambda ptx: CONTRACTED.sub(APART, ptx))
    assert all(torch.equal(mine, right) for mine, right in zip(got, wanted, strict=True))


@pytest.mark.parametrize("name", ["collatz", "transpose_tiled"])
def test_compiled_ptx_gives_every_bit_of_python(name):
    (wanted, _), (got, (report,)) = both(CASES[name], engine="native")
    assert report.notes == ("compiled",) and not report.findings
    assert all(torch.equal(mine, right) for mine, right in zip(got, wanted, strict=True))


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def flash(run, dtype):
    q, k, v = numbers(3, 1, 1, 20, 20).to(dtype)
    return flash_forward(q, k, v, run=run)


def forward(run, dtype):
    q, k, v = numbers(3, 1, 1, 20, 20).to(dtype)
    return conv_forward(q, k, v, numbers(1, 3, 3).to(dtype), run=run)


def decode(run, dtype):
    q, k, v = numbers(3, 1, 1, 40, 20).to(dtype)
    return (conv_attention_decode(q[:, :, -3:], k, v, numbers(1, 3, 3).to(dtype), splits=1, run=run), None)


def backward(run, dtype):
    q, k, v, o, d_o = numbers(5, 1, 1, 9, 64).to(dtype)
    w, log_sum, scale = numbers(1, 3, 3).to(dtype), numbers(1, 1, 9), np.float32(0.125)
    given = q, k, v, w, o, log_sum, d_o
    return *conv_tensor_backward(*given, True, scale, (True,) * 4, run=run, warps=2), None


@pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        (decode, torch.bfloat16),
        *(
            pytest.param(kernels, dtype, marks=pytest.mark.nightly)
            for kernels in (flash, forward, backward)
            for dtype in (torch.bfloat16, torch.float16)
        ),
    ],
)
def test_kernels_on_tensor_cores_give_every_bit_of_python(kernels, dtype):
    """Compare the tensor-core kernels bit for bit, except logarithms of sums, which use a fused
    multiply-add."""
    (wanted, _), (got, theirs) = by_both(lambda run: kernels(run, dtype))
    assert not any(report.findings for report in theirs)
    assert all(torch.equal(mine, right) for mine, right in zip(got[:-1], wanted[:-1], strict=True))
    if got[-1] is not None:
        torch.testing.assert_close(got[-1], wanted[-1], rtol=1e-6, atol=1e-6)


@cuda.jit
def shuffle_and_grid_barrier(out):
    i = cuda.grid(1)
    lane = cuda.shfl_sync(0xFFFFFFFF, i, 1)
    cuda.cg.this_grid().sync()
    out[i] = lane


def test_a_grid_barrier_after_a_shuffle():
    reports, out = [], torch.zeros(64, dtype=torch.int64)
    by_ptx(reports)(shuffle_and_grid_barrier, 2, 32, out)
    assert not reports[0].findings
    assert out.tolist() == [1] * 32 + [33] * 32
