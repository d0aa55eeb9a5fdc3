"""Every kernel of kernels/cases.py compiled to PTX with no GPU: what float64, shared memory and local memory
it uses."""

import re
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.cudadrv import nvvm
from numba.cuda.np.numpy_support import from_dtype

from kernels import latent_cases
from kernels.cases import CASES
from kernels.conv_forward import conv_forward
from kernels.flash_forward import flash_forward
from kernels.latent_cases import Shape
from kernels.latent_decode import latent_attention_decode
from kernels.latent_forward import latent_forward
from kernels.launch import numpy_dtype

ARCHITECTURES = [(7, 5), *(pytest.param(newer, marks=pytest.mark.nightly) for newer in [(8, 0), (9, 0)])]
# what a kernel is built around
INSTRUCTIONS = {"flash_forward": "ld.shared.v4", "warp_forward": "shfl.sync", "conv_decode": "shfl.sync"}


@pytest.fixture
def compiler():
    try:
        nvvm.NVVM()
    except nvvm.NvvmSupportError as error:
        reason = f"NO KERNEL WAS COMPILED: numba-cuda finds no libNVVM ({error})"
        warnings.warn(reason)
        pytest.skip(reason)


def type_of(argument):
    """The type that Numba gives a kernel's argument, a tensor or a number."""
    if isinstance(argument, torch.Tensor):
        return types.Array(
            from_dtype(numpy_dtype(argument.dtype)), argument.ndim, "C" if argument.is_contiguous() else "A"
        )
    return cuda.typing.typeof.typeof(argument)


def ptx_of(kernel, signature, architecture, monkeypatch):
    """The PTX of a @cuda.jit kernel. A device function asks which GPU it is for: the stand-in answers."""
    monkeypatch.setattr(
        dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=architecture)
    )
    ptx, _ = cuda.compile(kernel.py_func, signature, device=False, abi="numba", output="ptx", cc=architecture)
    assert f".target sm_{architecture[0]}{architecture[1]}" in ptx
    return ptx


def shared_bytes(ptx):
    return sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx)))


def variants():
    """Every kernel that a host function of the course can choose: (case, size)."""
    for case in CASES.values():
        for size in case.compiled or case.sizes:
            name = "-".join([case.name, *(f"{what}{number}" for what, number in size.items())])
            yield pytest.param(case, size, id=name)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
@pytest.mark.parametrize(("case", "size"), list(variants()))
def test_kernels(compiler, monkeypatch, case, size, architecture):
    everything = ""
    for launched, shared, spills in zip(
        case.launches(size), case.shared(**size), case.spills(**size), strict=True
    ):
        ptx = ptx_of(
            launched.kernel, types.void(*map(type_of, launched.arguments)), architecture, monkeypatch
        )
        assert ".f64" not in ptx
        assert shared_bytes(ptx) == shared
        assert ("__local_depot" in ptx) == spills
        everything += ptx
    assert INSTRUCTIONS.get(case.name, "") in everything


def record(launched, *launch):
    launched.append(launch)


TENSOR = {"flash": (64, 128), "conv": ((64, 7, 7), (64, 11, 11), (128, 6, 11), (64, 15, 15))}


@pytest.mark.parametrize("sizes", [("flash", *TENSOR["flash"]), ("conv", *TENSOR["conv"])], ids=str)
def test_kernels_on_tensor_cores(compiler, monkeypatch, sizes):
    """From sm_80 on; nothing but spilled registers is in local memory, so that every array is registers."""
    name, *sizes = sizes
    for size in sizes:
        d, *taps = size if name == "conv" else (size,)
        given = [torch.zeros(1, 1, 4, d, dtype=torch.bfloat16)] * 3
        given += [torch.zeros(1, *taps)] * bool(taps)
        launched = []
        (conv_forward if taps else flash_forward)(*given, run=partial(record, launched))
        ((kernel, _, _, *arguments),) = launched
        ptx = ptx_of(kernel, types.void(*map(type_of, arguments)), (8, 0), monkeypatch)
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16" in ptx and "cp.async.cg" in ptx
        assert ".f64" not in ptx and "__local_depot" not in ptx


@pytest.mark.parametrize("latent", [64, 128])
def test_latent_kernels_on_tensor_cores(compiler, monkeypatch, latent):
    """As above, forward and decoding."""
    tensors = [x.bfloat16() for x in latent_cases.inputs(Shape(1, 1, 0, 4, 4, 64, latent, 0, 0))[:5]]
    launched = []
    latent_forward(*tensors, 0.5, 3, run=partial(record, launched))
    latent_attention_decode(*tensors, 0.5, 3, run=partial(record, launched))
    for kernel, _, _, *arguments in (launched[0], launched[2]):
        ptx = ptx_of(kernel, types.void(*map(type_of, arguments)), (8, 0), monkeypatch)
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16" in ptx and "cp.async.cg" in ptx
        assert ".f64" not in ptx and "__local_depot" not in ptx


def test_the_test_sees_what_it_looks_for(compiler, monkeypatch):
    """A bare 0.0 makes float64; a shared array counts; an array indexed at run time is local memory."""

    @cuda.jit
    def careless(out, i):
        shared, local = cuda.shared.array(10, types.float32), cuda.local.array(10, types.float32)
        for c in range(10):
            local[c] = shared[c] = out[c]
        out[0] = max(out[0], 0.0) + local[i] + shared[i]

    ptx = ptx_of(careless, types.void(types.float32[::1], types.int64), (8, 0), monkeypatch)
    assert ".f64" in ptx and "__local_depot" in ptx and shared_bytes(ptx) == 40
