"""Every kernel compiled to PTX with no GPU: what float64, shared memory and local memory it uses."""

import re
import warnings
from types import SimpleNamespace

import pytest
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.cudadrv import nvvm

from kernels.flash_forward import KEYS, flash_forward_kernel
from kernels.launch import WIDTHS
from kernels.warp_forward import warp_attention_kernel

ARCHITECTURES = [(7, 5), (8, 0), (9, 0)]
HEADS, ROWS = types.Array(types.float32, 4, "C"), types.Array(types.float32, 3, "C")
ATTENTION = types.void(HEADS, HEADS, HEADS, types.float32, types.boolean, HEADS, ROWS)
SHARED = {flash_forward_kernel: lambda width: 2 * KEYS * width * 4, warp_attention_kernel: lambda width: 0}


@pytest.fixture
def compiler():
    try:
        nvvm.NVVM()
    except nvvm.NvvmSupportError as error:
        reason = f"NO KERNEL WAS COMPILED: numba-cuda finds no libNVVM ({error})"
        warnings.warn(reason)
        pytest.skip(reason)


def ptx_of(kernel, signature, architecture, monkeypatch):
    """The PTX of a @cuda.jit kernel. A device function asks which GPU it is for: the stand-in answers."""
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=architecture))
    ptx, _ = cuda.compile(kernel.py_func, signature, device=False, abi="numba", output="ptx", cc=architecture)
    assert f".target sm_{architecture[0]}{architecture[1]}" in ptx
    return ptx


def shared_bytes(ptx):
    return sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx)))


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", SHARED)
def test_attention_kernels(compiler, monkeypatch, make, width, architecture):
    ptx = ptx_of(make(width), ATTENTION, architecture, monkeypatch)
    assert ".f64" not in ptx
    assert shared_bytes(ptx) == SHARED[make](width)
    assert (".local" in ptx) == (width > 64)  # wider rows spill, as the files say
    assert "shfl" in ptx if make is warp_attention_kernel else "ld.shared.v4" in ptx


def test_the_test_sees_what_it_looks_for(compiler, monkeypatch):
    """A bare 0.0 makes float64; a shared array counts; an array indexed at run time is local memory."""

    @cuda.jit
    def careless(out, i):
        shared, local = cuda.shared.array(10, types.float32), cuda.local.array(10, types.float32)
        for c in range(10):
            local[c] = shared[c] = out[c]
        out[0] = max(out[0], 0.0) + local[i] + shared[i]

    ptx = ptx_of(careless, types.void(types.float32[::1], types.int64), (8, 0), monkeypatch)
    assert ".f64" in ptx and ".local" in ptx and shared_bytes(ptx) == 40
