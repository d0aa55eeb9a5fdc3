"""Tests of Triton's matrix product and attention, compiled for sm_90 without a GPU: they multiply with wgmma.

The kernels follow Triton's tutorials. They run correctly and without findings. With one wait, fence or
barrier deleted from the PTX, they are reported, unless another instruction orders the same accesses.
"""

import functools
import re

import numpy as np
import pytest

from kernels.triton.launch import LANES
from kernels.triton.optional import tl, triton
from sim import load_ptx, simulate, tensor_map

pytestmark = pytest.mark.triton
ORDERING = re.compile(r"\s*(wgmma\.(fence|commit|wait)|fence\.proxy|bar\.sync|cp\.async\.(wait|commit))")


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * K + k[None, :]
    b_ptrs = b_ptr + k[:, None] * BN + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(tl.cdiv(K, BK)):
        total = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), total)
        a_ptrs += BK
        b_ptrs += BK * BN
    tl.store(c_ptr + rows[:, None] * BN + columns[None, :], total.to(tl.float16))


@triton.jit
def tensor_product(a, b, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([0, k]), b.load([k, 0]), total)
    tl.store(c_ptr + rows[:, None] * BN + columns[None, :], total.to(tl.float16))


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, scale, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + columns[None, :])
    m = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    o = tl.zeros([BM, D], tl.float32)
    for first in range(0, N, BN):
        keys = (first + tl.arange(0, BN))[:, None] * D + columns[None, :]
        s = tl.dot(q, tl.trans(tl.load(k_ptr + keys))) * scale
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        alpha = tl.math.exp2(m - new)
        total = total * alpha + tl.sum(p, 1)
        o = tl.dot(p.to(tl.float16), tl.load(v_ptr + keys), o * alpha[:, None])
        m = new
    tl.store(o_ptr + rows[:, None] * D + columns[None, :], (o / total[:, None]).to(tl.float16))


KERNELS = {"product": product, "tensor_product": tensor_product, "attention": attention}
SIGNATURES = {
    "tensor_product": (
        "tensordesc<fp16[64,64]> tensordesc<fp16[64,64]> *fp16 i32",
        {"BM": 64, "BN": 64, "BK": 64},
    ),
    "product": ("*fp16 *fp16 *fp16 i32", {"BM": 64, "BN": 64, "BK": 32}),
    "attention": ("*fp16 *fp16 *fp16 *fp16 fp32 i32", {"D": 64, "BM": 64, "BN": 64}),
}


@functools.cache
def compiled(case):
    """Return (PTX, shared memory in bytes). Pointers and sizes are multiples of 16."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, (types, constants) = KERNELS[case], SIGNATURES[case]
    signature = dict(zip(kernel.arg_names, types.split(), strict=False)) | dict.fromkeys(
        constants, "constexpr"
    )
    aligned = [i for i, type_ in enumerate(signature.values()) if type_[0] == "*" or type_ == "i32"]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, LANES), options={"num_warps": 4})
    return made.asm["ptx"], made.metadata.shared


def run(case, deleted=None):
    """Return (the report, the largest error).

    deleted: the position of a line to delete from the PTX, or None.
    """
    random, (ptx, shared) = np.random.default_rng(0), compiled(case)
    if case != "attention":
        depth = 160 if case == "product" else 256
        a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((64, depth), (depth, 64)))
        out, wanted, blocks = np.zeros((64, 64), np.float16), a.astype(float) @ b, 1
        # A tensor descriptor is passed as a tensor map, its shape and its strides.
        given = [(m,) if case == "product" else described(m) for m in (a, b)]
        arguments = (*given[0], *given[1], out, depth)
    else:
        q, k, v = random.standard_normal((3, 128, 64)).astype(np.float16)
        scores = np.exp(q.astype(float) @ k.T / 8)
        out, wanted = np.zeros_like(q), scores / scores.sum(1, keepdims=True) @ v
        arguments, blocks = (q, k, v, out, np.float32(np.log2(np.e) / 8), 128), 2
    lines = ptx.splitlines()
    if deleted is not None:
        lines[deleted] = ""
    kernel = load_ptx("\n".join(lines))[case]
    more = [0] * (len(kernel.names) - len(arguments))
    report = simulate(kernel, on_finding="report")[blocks, 4 * LANES, 0, shared](*arguments, *more)
    return report, np.abs(out.astype(float) - wanted).max()


def described(matrix):
    """Return the arguments for a tensor descriptor with boxes of 64×64."""
    return tensor_map(matrix, (64, 64), swizzle=128), *matrix.shape, matrix.shape[1], 1


def ordering(case):
    """Return [(name, position of the line)] of the waits, fences and barriers in the PTX."""
    lines = enumerate(compiled(case)[0].splitlines())
    return [(line.split(";")[0].split()[0], i) for i, line in lines if ORDERING.match(line)]


@pytest.mark.parametrize(
    "case", ["product", "tensor_product", pytest.param("attention", marks=pytest.mark.nightly)]
)
def test_triton_s_kernels_are_right_and_clean(case):
    report, error = run(case)
    assert "wgmma.mma_async" in compiled(case)[0] and not report.findings
    assert error <= (1e-3 if case == "attention" else 0)


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("fence.proxy.async.shared::cta", "proxy-fence"),
        pytest.param("wgmma.fence.sync.aligned", "wgmma", marks=pytest.mark.nightly),
        pytest.param("wgmma.commit_group.sync.aligned", "wgmma", marks=pytest.mark.nightly),
    ],
)
def test_a_deleted_instruction_is_found(instruction, kind):
    position = next(i for name, i in ordering("product") if name == instruction)
    assert kind in {finding.kind for finding in run("product", position)[0].findings}


# The deletions without findings, as numbers of ordering instructions. The copies of the first group then
# belong to the second one, for which the kernel waits as well. The second proxy fence of attention orders
# copies that the first one orders already. The barrier in the loop follows a wait for the product that reads
# the stage, and the wait of one warp is taken to cover the whole warp group.
HARMLESS = {"product": {0, 10}, "attention": {0, 10, 13}}


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["product", "attention"])
def test_every_deleted_instruction_is_found_unless_it_is_redundant(case):
    found = [bool(run(case, position)[0].findings) for _, position in ordering(case)]
    assert {number for number, one in enumerate(found) if not one} == HARMLESS[case]
