"""Tests that compile every kernel in kernels/cases/table.py to PTX without a GPU.

They check the use of float64, shared memory and local memory.
"""

import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.cudadrv import nvvm
from numba.cuda.np.numpy_support import from_dtype
from numpy import float32

from kernels.cases import latent as latent_cases
from kernels.cases.latent import Shape
from kernels.cases.table import CASES
from kernels.common.device_argument import numpy_dtype
from kernels.common.extent import Extent
from kernels.conv.backward import conv_backward
from kernels.conv.banded_backward import Plan, conv_banded_backward
from kernels.conv.decode import conv_attention_decode
from kernels.conv.forward import conv_forward
from kernels.conv.hopper_forward import conv_hopper_forward
from kernels.conv.tensor_backward import conv_tensor_backward
from kernels.flash.forward import flash_forward
from kernels.flash.hopper_blocks import BLOCKS
from kernels.flash.hopper_forward import flash_hopper_forward
from kernels.latent.decode import latent_attention_decode
from kernels.latent.forward import latent_forward
from kernels.multi_token import bands as multi_token_bands
from kernels.multi_token.bands import Layer
from kernels.tensor_cores.early_launch import start_next_kernel, wait_for_previous_kernel

ARCHITECTURES = [(7, 5), *(pytest.param(newer, marks=pytest.mark.nightly) for newer in [(8, 0), (9, 0)])]
# properties of a kernel that are known at compile time
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
    """Return the type that Numba assigns to a kernel argument, a tensor or a number."""
    if isinstance(argument, torch.Tensor):
        return types.Array(
            from_dtype(numpy_dtype(argument.dtype)), argument.ndim, "C" if argument.is_contiguous() else "A"
        )
    return cuda.typing.typeof.typeof(argument)


def ptx_of(kernel, signature, architecture, monkeypatch):
    """Return the PTX of a @cuda.jit kernel.

    Device functions may ask for the current GPU during compilation, so the test provides a fake one.
    """
    monkeypatch.setattr(
        dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=architecture)
    )
    options = dict(
        device=False, abi="numba", output="ptx", launch_bounds=kernel.targetoptions.get("launch_bounds")
    )
    ptx, _ = cuda.compile(kernel.py_func, signature, cc=architecture, **options)
    assert f".target sm_{architecture[0]}{architecture[1]}" in ptx
    return ptx


def shared_bytes(ptx):
    return sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx)))


LONG = {
    *("conv_backward", "latent_backward", "latent_decode"),
    *("multi_token_forward", "multi_token_backward", "multi_token_decode"),
}  # take 9 to 25 s of CPU time per architecture


def variants():
    """Return every kernel variant that a host function can choose, as (case, size).

    A CI run compiles the first variant of each case that does not take long.
    """
    for case in CASES.values():
        for place, size in enumerate(case.compiled or case.sizes):
            name = "-".join([case.name, *(f"{what}{number}" for what, number in size.items())])
            yield pytest.param(
                case, size, id=name, marks=[pytest.mark.nightly] if place or case.name in LONG else []
            )


def test_every_launch_of_a_case_states_its_shared_memory_and_its_spills():
    """Evaluate the numbers of all cases, because only the nightly run tests the long ones."""
    for case in CASES.values():
        for size in case.compiled or case.sizes:
            assert len(case.shared(**size)) == len(case.spills(**size))


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
@pytest.mark.parametrize(("case", "size"), list(variants()))
def test_kernels(compiler, monkeypatch, case, size, architecture):
    everything, architecture = "", max(architecture, case.oldest)
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


def rows(count, d):
    """Return a bfloat16 tensor (1, 1, count, d)."""
    return torch.zeros(1, 1, count, d, dtype=torch.bfloat16)


def flash(d, run):
    flash_forward(*[rows(4, d)] * 3, run=run)


def windowed(d, run):
    flash_forward(*[rows(4, d)] * 3, run=run, window=(2, 0))


def conv(d, c_q, c_k, run):
    conv_forward(*[rows(4, d)] * 3, torch.zeros(1, c_q, c_k), run=run)


def gradients(d, c_q, c_k, run):
    given, log_sum = rows(4, d), torch.zeros(1, 1, 4)
    taps = torch.zeros(1, c_q, c_k)
    every = (True,) * 4
    conv_tensor_backward(given, given, given, taps, given, log_sum, given, True, float32(1), every, run=run)


def parts(d, c_q, c_k, run):
    given, taps, extent = rows(4, d), torch.zeros(1, c_q, c_k), Extent(0, 0, 0)
    conv_forward(*[given] * 3, taps, run=run, extent=extent)
    conv_backward(*[given] * 3, taps, given, torch.zeros(1, 1, 4), given, run=run, extent=extent)


def decode(d, c_q, c_k, run):
    cache = rows(300, d)
    conv_attention_decode(rows(c_q, d), cache, cache, torch.zeros(1, c_q, c_k), run=run)


def latent(size, run):
    tensors = [x.bfloat16() for x in latent_cases.inputs(Shape(1, 1, 0, 4, 4, 64, size, 0, 0))[:5]]
    latent_forward(*tensors, 0.5, 3, run=run)
    latent_attention_decode(*tensors, 0.5, 3, run=run)


def multi_token(c_q, c_k, group, run):
    taps, head_map = torch.zeros(2 * group, c_q, c_k), torch.zeros(2, group, group)
    layer = Layer(taps, head_map, taps, head_map, 0.5, True)
    given = [torch.zeros(1, 2 * group, 4, 8, dtype=torch.bfloat16) for _ in range(4)]
    multi_token_bands.forward(*given[:3], layer, run=run)
    multi_token_bands.backward(*given[:3], layer, given[3], run=run)


TENSOR_CORES = [  # A CI run compiles each of these with its first size only.
    (flash, [(64,), (128,)]),
    pytest.param(windowed, [(64,), (128,)], marks=pytest.mark.nightly),
    (conv, [(64, 7, 7), (64, 11, 11), (128, 6, 11), (64, 15, 15)]),
    pytest.param(
        gradients, [(64, 7, 7), (64, 11, 11), (128, 6, 11), (64, 15, 15)], marks=pytest.mark.nightly
    ),
    pytest.param(parts, [(64, 7, 7), (64, 11, 11), (128, 6, 11), (64, 15, 15)], marks=pytest.mark.nightly),
    pytest.param(decode, [(64, 7, 7), (64, 11, 11), (128, 6, 11), (64, 15, 15)], marks=pytest.mark.nightly),
    pytest.param(latent, [(64,), (128,)], marks=pytest.mark.nightly),
    pytest.param(multi_token, [(6, 11, 16), (7, 3, 8), (15, 15, 32), (1, 1, 1)], marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("call", "every_size"), TENSOR_CORES)
def test_kernels_on_tensor_cores(compiler, monkeypatch, few, call, every_size):
    """Compile the tensor-core kernels for sm_80 and newer. Every local array must be in registers."""
    for size in few(every_size, 1):
        launched = []
        call(*size, run=lambda *launch, launched=launched: launched.append(launch))
        on_tensor_cores = [launch for launch in launched if "tensor" in launch[0].py_func.__module__]
        everything = ""
        for kernel, _, _, *arguments in on_tensor_cores:
            ptx = ptx_of(kernel, types.void(*map(type_of, arguments)), (8, 0), monkeypatch)
            assert ".f64" not in ptx and "__local_depot" not in ptx
            everything += ptx
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16" in everything and "cp.async.cg" in everything


@pytest.mark.parametrize("d", [64, pytest.param(128, marks=pytest.mark.nightly)])
def test_the_kernel_with_wgmma(compiler, monkeypatch, d):
    launched = []
    flash_hopper_forward(*[rows(4, d)] * 3, True, float32(1), run=lambda *launch: launched.append(launch))
    ((kernel, _, _, *arguments),) = launched
    ptx = ptx_of(kernel, types.void(*map(type_of, arguments)), (9, 0, "a"), monkeypatch)
    assert ".f64" not in ptx and "__local_depot" not in ptx and not re.search(r"\bcall\b", ptx)
    block = BLOCKS[d]
    for part in (
        f"wgmma.mma_async.sync.aligned.m64n{block.keys}k16.f32.bf16.bf16",
        f"wgmma.mma_async.sync.aligned.m64n{d}k16.f32.bf16.bf16",
        *(f"setmaxnreg.{way}.sync.aligned.u32 {n};" for way, n in zip(("dec", "inc"), block.registers)),
        f".maxntid {block.threads}",
    ):
        assert part in ptx


@pytest.mark.parametrize(
    ("d", "taps", "outputs"), [(64, (3, 3), 32), pytest.param(128, (6, 11), 48, marks=pytest.mark.nightly)]
)
def test_the_convolution_with_wgmma(compiler, monkeypatch, d, taps, outputs):
    launched = []
    given = [rows(4, d)] * 3 + [torch.zeros(1, *taps, dtype=torch.bfloat16)]
    conv_hopper_forward(*given, True, float32(1), run=lambda *launch: launched.append(launch))
    ((kernel, _, _, *arguments),) = launched
    ptx = ptx_of(kernel, types.void(*map(type_of, arguments)), (9, 0, "a"), monkeypatch)
    assert ".f64" not in ptx and "__local_depot" not in ptx and not re.search(r"\bcall\b", ptx)
    for n in (64, outputs, d):
        assert f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16" in ptx


@pytest.mark.parametrize(
    "d, taps",
    [pytest.param(64, taps, marks=pytest.mark.nightly) for taps in [(7, 7), (11, 11), (15, 15)]]
    + [pytest.param(128, (6, 11), marks=pytest.mark.nightly), (64, (1, 1))],
)
def test_the_kernels_of_bands(compiler, monkeypatch, d, taps):
    launched, given = [], rows(4, d)
    tensors = given, given, given, torch.zeros(1, *taps), given, torch.zeros(1, 1, 4), given
    rest = True, float32(1), (True,) * 4, lambda *launch: launched.append(launch), Plan(4, 1)
    conv_banded_backward(*tensors, *rest)
    for kernel, _, _, *arguments in launched[1:4]:
        ptx = ptx_of(kernel, types.void(*map(type_of, arguments)), (9, 0, "a"), monkeypatch)
        assert ".f64" not in ptx and "__local_depot" not in ptx and "wgmma.mma_async.sync" in ptx


@pytest.mark.parametrize(("architecture", "count"), [((8, 0), 0), ((9, 0), 1)])
def test_instructions_of_early_launches_exist_only_on_gpus_that_have_them(
    compiler, monkeypatch, architecture, count
):
    @cuda.jit
    def kernel(x):
        wait_for_previous_kernel()
        start_next_kernel()
        x[0] = 1

    ptx = ptx_of(kernel, types.void(types.float32[:]), architecture, monkeypatch)
    assert ptx.count("griddepcontrol.wait;") == ptx.count("griddepcontrol.launch_dependents;") == count


def test_the_test_sees_what_it_looks_for(compiler, monkeypatch):
    """Plant a bare 0.0, a shared array and an array indexed at run time, to check that the other tests detect
    them."""

    @cuda.jit
    def careless(out, i):
        shared, local = cuda.shared.array(10, types.float32), cuda.local.array(10, types.float32)
        for c in range(10):
            local[c] = shared[c] = out[c]
        out[0] = max(out[0], 0.0) + local[i] + shared[i]

    ptx = ptx_of(careless, types.void(types.float32[::1], types.int64), (8, 0), monkeypatch)
    assert ".f64" in ptx and "__local_depot" in ptx and shared_bytes(ptx) == 40
