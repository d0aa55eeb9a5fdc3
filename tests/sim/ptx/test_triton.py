"""Tests of Triton kernels with large matrix products, compiled for sm_80 without a GPU.

They use tensor cores, ldmatrix and asynchronous copies.
"""

import numpy as np
import pytest
import torch

from kernels.reference import attention
from kernels.triton.flash_forward import flash_forward
from kernels.triton.launch import LANES, simulated
from kernels.triton.optional import tl, triton
from sim import load_ptx, simulate
from sim.observers import Bounds, Races, Uninitialized

pytestmark = pytest.mark.triton
TOOLS = Bounds, Races(allow_equal_writes=True), Uninitialized
TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "i32": torch.int32,
}


@triton.jit
def product(a, b, c, K: tl.constexpr, PRECISION: tl.constexpr):
    i, j = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    total = tl.zeros((64, 64), c.dtype.element_ty)
    for first in range(0, K, 32):
        k = first + tl.arange(0, 32)
        a_tile, b_tile = tl.load(a + i * K + k[None, :]), tl.load(b + k[:, None] * 64 + j)
        total = tl.dot(a_tile, b_tile, total, input_precision=PRECISION, out_dtype=c.dtype.element_ty)
    tl.store(c + i * 64 + j, total)


@pytest.mark.parametrize(
    ("kind", "result", "form", "error"),
    [
        ("fp16", "fp32", "m16n8k16.row.col.f32.f16.f16.f32", 1e-6),
        ("bf16", "fp32", "m16n8k16.row.col.f32.bf16.bf16.f32", 1e-6),
        ("fp16", "fp16", "m16n8k16.row.col.f16.f16.f16.f16", 2e-3),
        ("fp32", "fp32", "m16n8k8.row.col.f32.tf32.tf32.f32", 1e-3),
        ("i8", "i32", "m16n8k32.row.col.satfinite.s32.s8.s8.s32", 0),
    ],
)
def test_products(kind, result, form, error):
    """Multiply matrices. Triton distributes elements over lanes differently from the course's kernels."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {"K": 96, "PRECISION": "tf32" if kind == "fp32" else "ieee"}
    signature = {"a": f"*{kind}", "b": f"*{kind}", "c": f"*{result}"} | dict.fromkeys(constants, "constexpr")
    target = GPUTarget("cuda", 80, LANES)
    made = triton.compile(ASTSource(product, signature, constants), target=target, options={"num_warps": 4})
    assert f"mma.sync.aligned.{form}" in made.asm["ptx"] and "ldmatrix" in made.asm["ptx"]
    random = np.random.default_rng(0)
    draw = (
        (lambda *n: random.integers(-128, 128, n)) if kind == "i8" else (lambda *n: random.standard_normal(n))
    )
    a, b = (torch.from_numpy(draw(*shape)).to(TYPES[kind]) for shape in ((64, 96), (96, 64)))
    c = torch.zeros(64, 64, dtype=TYPES[result])
    kernel = load_ptx(made.asm["ptx"])["product"]
    more = [0] * (len(kernel.names) - 3)
    simulate(kernel, observers=TOOLS)[1, 4 * LANES, 0, made.metadata.shared](a, b, c, *more)
    wanted = a.double() @ b.double()
    assert ((c.double() - wanted).abs().max() / wanted.abs().max()).item() <= error


def test_flash_attention_with_large_tiles():
    """Run a kernel whose layout conversions use ldmatrix, and which needs more than 48 KiB of shared
    memory."""
    seen = []

    def run(*launched, **constants):
        seen.append(simulated(*launched, **constants))

    q, k, v = torch.randn(3, 1, 1, 70, 64, generator=torch.Generator().manual_seed(0))
    o, _ = flash_forward(q, k, v, run=run)
    torch.testing.assert_close(o, attention(q, k, v, True), rtol=1e-5, atol=1e-5)
    assert not seen[0].findings
