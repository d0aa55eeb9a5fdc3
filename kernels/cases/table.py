"""The table of all kernels: inputs, a call, the reference, and the shared memory that the host code declares.

`kernels.bench.compare`, the PTX tests and compute-sanitizer go through CASES. Add a Case here for each new
kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from numba import cuda
from numba.cuda import libdevice
from numpy import float32

from kernels.cases import latent as latent_cases
from kernels.cases import matrix_patterns, memory_patterns
from kernels.cases.memory_patterns import PADDED, THREADS, TILE, blocks, tiles
from kernels.common.arguments import MAX_HEAD_DIM, MOST_TAPS
from kernels.common.launch import WIDTHS, launch, output, width_for
from kernels.common.splits import MERGING_WARPS
from kernels.common.strips import TAPS
from kernels.conv import backward as conv_backward
from kernels.conv import decode as conv_decode
from kernels.conv import forward as conv_forward
from kernels.conv.tiles import PADDING
from kernels.flash.forward import KEYS, flash_forward
from kernels.flash.warp import warp_forward
from kernels.multi_token import bands as multi_token_bands
from kernels.multi_token import decode as multi_token_decode
from kernels.multi_token import kernels as multi_token_kernels
from kernels.reference import (
    attention,
    conv_attention,
    conv_attention_backward,
    conv_scores,
    conv_tiled,
    multi_token_attention,
    scores,
)
from kernels.reference.multi_token_gradients import multi_token_attention_backward
from kernels.reference.tiled import Traffic, queries_outer

STRIDE = 4  # the stride of `strided_copy`


@dataclass(frozen=True)
class Case:
    """A host function, the kernels that it launches, and the data to test them.

    A size is a dictionary of keyword arguments for `inputs`, `shared` and `spills`. `shared` and `spills`
    return one entry for each launch, in order.
    """

    name: str
    inputs: Callable  # (generator, **size) -> tensors on the CPU
    call: Callable  # (*tensors, run=None) -> tuple of outputs
    reference: Callable  # (*tensors, floats as float64) -> tuple of correct outputs
    tolerance: str  # one of TOLERANCES
    sizes: tuple[dict, ...]  # small ones: every engine runs them
    # one size for each kernel that the host code can choose; if empty, those of `sizes`
    compiled: tuple[dict, ...] = ()
    counted: dict | None = None  # the size at which the simulator's counters are compared with the hardware's
    shared: Callable = lambda **size: (0,)  # (**size) -> bytes of static shared memory
    # (**size) -> True where a local array is in memory instead of registers
    spills: Callable = lambda **size: (False,)
    previous: Callable | None = None  # (*tensors) -> the first outputs, by the previous stage of the course
    oldest: tuple = (7, 5)  # compute capability that the kernels need

    def tensors(self, size, seed=0, device="cpu"):
        return [tensor.to(device) for tensor in self.inputs(torch.Generator().manual_seed(seed), **size)]

    def launches(self, size):
        """Return the launches of the host function, each as a Launch, without running them."""
        seen = []
        self.call(*self.tensors(size), run=lambda *launched: seen.append(Launch(*launched[:3], launched[3:])))
        return seen


class Launch(NamedTuple):
    kernel: Callable
    grid: object
    block: object
    arguments: tuple


def normal(generator, *shapes):
    return [torch.randn(shape, generator=generator) for shape in shapes]


def tiles_of_16_bits(generator, tiles):
    shape = tiles, matrix_patterns.ROWS, matrix_patterns.COLUMNS
    return [torch.randint(-(2**15), 2**15, shape, generator=generator).to(torch.int16)]


# Kernels with exact results ---------------------------------------------------------------------------------


@cuda.jit
def collatz(x, steps):
    """Store in steps[i], int64, how often n → n / 2 (even) or 3n + 1 (odd) has to be applied to x[i] to reach
    1.

        grid    blocks(n)      block   THREADS
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        n, count = x[i], 0
        while n > 1:
            n = 3 * n + 1 if n & 1 else n >> 1
            count += 1
        steps[i] = count


@cuda.jit
def horner(x, out):
    """Store ((x - 3)x + 1)x + 0.1 in out[i], float32, with each operation rounded separately (no fused
    multiply-add).

        grid    blocks(n)      block   THREADS
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        total = libdevice.fadd_rn(x[i], float32(-3))
        total = libdevice.fadd_rn(libdevice.fmul_rn(total, x[i]), float32(1))
        out[i] = libdevice.fadd_rn(libdevice.fmul_rn(total, x[i]), float32(0.1))


def collatz_by_hand(n):
    return 0 if n <= 1 else 1 + collatz_by_hand(3 * n + 1 if n % 2 else n // 2)


def horner_by_hand(x):
    """Return ((x - 3)x + 1)x + 0.1 in float32; torch rounds each operation separately."""
    x = x.float()
    return ((x - 3) * x + 1) * x + torch.tensor(0.1)


# Calls ------------------------------------------------------------------------------------------------------


def elementwise(kernel, x, run=None):
    """Run kernel(x, out), with out shaped like x and filled with -1, a value that none of these kernels
    writes."""
    out = torch.full_like(x, -1)
    launch(kernel, (blocks(x.numel()),), THREADS, x, out, run=run)
    return (out,)


def strided_copy(x, run=None):
    out = output((x.numel() // STRIDE,), like=x)
    launch(memory_patterns.strided_copy, (blocks(out.numel()),), THREADS, x, out, STRIDE, run=run)
    return (out,)


def transpose(kernel, a, run=None):
    out = output(a.shape[::-1], like=a)
    launch(kernel, tiles(*a.shape), (TILE, TILE), a, out, run=run)
    return (out,)


def matmul(a, b, run=None):
    c = output((a.shape[0], b.shape[1]), like=a)
    launch(memory_patterns.matmul_tiled, tiles(*c.shape), (TILE, TILE), a, b, c, run=run)
    return (c,)


def matrices(pitch, x, run=None):
    out = torch.full((x.shape[0], matrix_patterns.PLACES, 4, 32), -1, dtype=torch.int32, device=x.device)
    launch(matrix_patterns.matrix_kernel(pitch), (x.shape[0],), 32, x, out, run=run)
    return (out,)


def registers_of_matrices(x):
    """Return the registers of `ldmatrix`: lane l has elements 2 (l % 4) and 2 (l % 4) + 1 of row l // 4 of
    each matrix."""
    tiles, rows, columns = x.shape
    matrix = x.reshape(tiles, rows // 16, 2, 8, columns // 16, 2, 4, 2).permute(0, 1, 4, 5, 2, 3, 6, 7)
    return (matrix.contiguous().view(torch.int32).reshape(tiles, matrix_patterns.PLACES, 4, 32),)


def attention_and_log_sum(q, k, v):
    return attention(q, k, v, causal=True), torch.logsumexp(scores(q, k, causal=True), dim=-1)


def tile_by_tile(q, k, v):
    heads = [queries_outer(*head, 16, 16, Traffic(), causal=True) for head in zip(q[0], k[0], v[0])]
    return (torch.stack(heads)[None],)


def conv_and_log_sum(q, k, v, w):
    return conv_attention(q, k, v, w), torch.logsumexp(conv_scores(q, k, w), dim=-1)


def conv_tile_by_tile(q, k, v, w):
    heads = [conv_tiled.forward(*head, (32, 32), Traffic()) for head in zip(q[0], k[0], v[0], w)]
    return tuple(torch.stack(outputs)[None] for outputs in zip(*heads))


def conv_gradients(q, k, v, w, d_o):
    return conv_attention_backward(q, k, v, w, *conv_and_log_sum(q, k, v, w), d_o)


def conv_gradients_tile_by_tile(q, k, v, w, d_o):
    o, log_sum = conv_and_log_sum(q, k, v, w)
    heads = []
    for given in zip(q[0], k[0], v[0], w, log_sum[0], (d_o * o).sum(-1)[0], d_o[0]):
        d_q, d_w = conv_tiled.backward_queries(*given, (32, 32), Traffic())
        heads.append((d_q, *conv_tiled.backward_keys(*given, (32, 32), Traffic()), d_w))
    d_q, d_k, d_v, d_w = (torch.stack(gradients) for gradients in zip(*heads))
    return d_q[None], d_k[None], d_v[None], d_w


def conv_gradients_by_kernels(q, k, v, w, d_o, run=None):
    """Run the backward pass on O and L of the reference, so that only its kernels are launched."""
    return conv_backward.conv_backward(q, k, v, w, *conv_and_log_sum(q, k, v, w), d_o, run=run)


def decode(q, k, v, w, run=None):
    return (conv_decode.conv_attention_decode(q[:, :, -w.shape[1] :], k, v, w, splits=3, run=run),)


def layer_of(*parts):
    return multi_token_bands.Layer(*parts, 0.25, True)


def multi_token(q, k, v, *parts, run=None):
    return (multi_token_bands.forward(q, k, v, layer_of(*parts), run=run),)


def multi_token_row(q, k, v, *parts, run=None):
    layer = layer_of(*parts)
    rows = 1 + layer.above + layer.after_above
    return (multi_token_decode.decode(q[:, :, -rows:].contiguous(), k, v, layer, splits=3, run=run),)


def multi_token_gradients(q, k, v, *parts, run=None):
    """Run the backward pass with v as the gradient of O."""
    return tuple(multi_token_bands.backward(q, k, v, layer_of(*parts), v, run=run).values())


# Shared memory, in bytes, of each launch --------------------------------------------------------------------


def conv_forward_shared(d, **_):
    """Return the shared bytes: scores, a chunk of q and of k, a few rows of v, the taps, and a factor for
    each row."""
    size = conv_forward.SIZE
    chunks = 2 * size * conv_forward.CHUNK_WORDS + conv_forward.ROWS_AT_A_TIME * width_for(d)
    return (4 * (size * (size + PADDING) + chunks + TAPS**2 + size),)


def conv_backward_shared(d, **_):
    """Return the shared bytes, the same for both kernels.

    The tiles are scores and their gradients, a chunk of each factor of both products, a few rows, and the
    taps in both directions.
    """
    size = conv_backward.SIZE
    chunks = 2 * size * conv_backward.CHUNK_WORDS + min(16 * width_for(d), 512)
    return (4 * (2 * size * (size + PADDING) + chunks + 2 * TAPS**2),) * 2


def conv_decode_shared(d, c_q, **_):
    """Return the shared bytes of both launches.

    split   for each warp a piece of K, its rings, o, weights, m and l; the window of queries and its taps
    merge   o and l of the merging warps
    """
    lanes, warps = conv_decode.LANES, conv_decode.WARPS
    width, slots = -(-d // lanes) * lanes, -(-c_q // 4) * 4
    own = warps * (lanes * conv_decode.PITCH + slots * conv_decode.RING + width + lanes + 2)
    return 4 * (own + (width + MOST_TAPS) * slots), 4 * MERGING_WARPS * (MAX_HEAD_DIM + 1)


def multi_token_shared(heads, **_):
    """Return {kernel: shared bytes}.

    convolve       a tile with its halo, and the taps
    mix            a map
    softmax        the maximum and the sum of each warp
    taps           both tiles
    """
    halo = multi_token_kernels.HALO_ROWS * multi_token_kernels.PITCH
    gradients = multi_token_kernels.SIZE * multi_token_kernels.GRADIENT_PITCH + multi_token_kernels.THREADS
    sums = 4 * multi_token_kernels.WARPS
    return dict(
        convolve=4 * (halo + TAPS**2),
        mix=4 * heads**2,
        softmax=2 * sums,
        softmax_back=sums,
        taps=4 * (halo + gradients),
    )


def multi_token_row_shared(heads, c_q, **_):
    """Return the shared bytes of the four launches that decode one token.

    window   pieces of K, scores, the window of queries and its taps
    mix      the map, its values and statistics
    values   P, U, O and the statistics
    merge    partial sums and a row
    """
    its, rows, most = multi_token_decode, 2 * c_q - 1, multi_token_decode.class_of(heads)
    slots, tap_slots = (-(-count // 4) * 4 for count in (rows, c_q))
    pieces = its.WINDOW_WARPS * (its.KEYS * its.PITCH + rows * its.TILE)
    return (
        4 * (pieces + MAX_HEAD_DIM * slots + MOST_TAPS * tap_slots),
        4 * most * (most + its.MIX_THREADS + 2),
        4 * (min(its.VALUE_WARPS, most) * c_q * its.SPAN + most * (its.LANES + MAX_HEAD_DIM + 2 * c_q)),
        4 * (its.MERGE_THREADS + MAX_HEAD_DIM),
    )


def of_launches(names):
    """Return a function of the size that gives the shared bytes of the kernels with these names, in order."""
    return lambda **size: tuple(multi_token_shared(**size)[name] for name in names.split())


# The table --------------------------------------------------------------------------------------------------


def vector(generator, n):
    return normal(generator, (n,))


def qkv(generator, heads, n, d):
    return normal(generator, *[(1, heads, n, d)] * 3)


def qkvw(generator, heads, n, d, c_q, c_k):
    """Return [q, k, v, w], with taps so large that T is about as large as S0."""
    w = torch.randn(heads, c_q, c_k, generator=generator) / (c_q * c_k) ** 0.5
    return [*qkv(generator, heads, n, d), w]


def with_gradient(generator, **size):
    q, *rest = qkvw(generator, **size)
    return [q, *rest, torch.randn(q.shape, generator=generator)]


def multi_token_inputs(generator, heads, n, d, c_q, c_k):
    """Return q, k, v, and the taps and a full map before the softmax, then those after it."""
    q, k, v = qkv(generator, heads, n, d)
    taps, after_taps = torch.randn(2, heads, c_q, c_k, generator=generator) / (c_q * c_k) ** 0.5
    head_map, after_head_map = torch.randn(2, 1, heads, heads, generator=generator) / heads**0.5
    return [q, k, v, taps, head_map, after_taps, after_head_map]


def transposing(kernel, shared=0, previous=None):
    return Case(
        kernel.__name__,
        lambda generator, rows, columns: normal(generator, (rows, columns)),
        partial(transpose, kernel),
        lambda a: (a.T,),
        "exact",
        sizes=(dict(rows=33, columns=20),),
        counted=dict(rows=128, columns=96),
        shared=lambda **_: (shared,),
        previous=previous,
    )


ATTENTION = dict(
    inputs=qkv,
    reference=attention_and_log_sum,
    tolerance="attention",
    spills=lambda d, **_: (d > 64,),
    compiled=tuple(dict(heads=1, n=1, d=d) for d in WIDTHS),
)
CONVOLUTION = dict(heads=1, n=66, d=16, c_q=4, c_k=5)  # a whole tile and a bit of the next
ROW_WIDTHS = tuple(CONVOLUTION | dict(d=d) for d in WIDTHS)
WINDOWS = tuple(CONVOLUTION | dict(d=d, c_q=c_q) for d in (20, 64, 128) for c_q in (4, 8, 12, 15))
MIXING = dict(heads=2, n=9, d=4, c_q=2, c_k=3)  # small, because a pass launches up to a dozen kernels
MIXED = tuple(MIXING | dict(heads=heads, n=66) for heads in (16, 32))
FORWARD = "convolve mix softmax convolve mix"

LATENT = dict(heads=1, n=35, d=5, latent=4)  # a whole tile and a bit of the next
LATENT_WIDTHS = tuple(LATENT | dict(d=d) for d in (5, 64, 128))
LATENT_HEADS = (1, 20), (9, 20), (17, 20), (1, 64), (9, 64), (17, 64), (1, 128), (9, 128)

ALL = (
    Case(
        "collatz",
        lambda generator, n: [torch.randint(1, 10**6, (n,), generator=generator)],
        partial(elementwise, collatz),
        lambda x: (torch.tensor([collatz_by_hand(n) for n in x.tolist()]),),
        "exact",
        sizes=(dict(n=300),),
    ),
    Case(
        "horner",
        vector,
        partial(elementwise, horner),
        lambda x: (horner_by_hand(x),),
        "exact",
        sizes=(dict(n=300),),
    ),
    Case(
        "copy",
        vector,
        partial(elementwise, memory_patterns.copy),
        lambda x: (x,),
        "exact",
        sizes=(dict(n=300),),
        counted=dict(n=4096),
    ),
    Case(
        "strided_copy",
        vector,
        strided_copy,
        lambda x: (x[::STRIDE],),
        "exact",
        sizes=(dict(n=1200),),
        counted=dict(n=16384),
    ),
    transposing(memory_patterns.transpose_naive),
    transposing(
        memory_patterns.transpose_tiled, TILE * TILE * 4, partial(transpose, memory_patterns.transpose_naive)
    ),
    transposing(
        memory_patterns.transpose_padded,
        TILE * PADDED * 4,
        partial(transpose, memory_patterns.transpose_tiled),
    ),
    Case(
        "matmul_tiled",
        lambda generator, m, k, n: normal(generator, (m, k), (k, n)),
        matmul,
        lambda a, b: (a @ b,),
        "matmul",
        sizes=(dict(m=33, k=40, n=20),),
        counted=dict(m=64, k=64, n=64),
        shared=lambda **_: (2 * TILE * TILE * 4,),
    ),
    *(
        Case(
            name,
            tiles_of_16_bits,
            partial(matrices, pitch),
            registers_of_matrices,
            "exact",
            sizes=(dict(tiles=2),),
            counted=dict(tiles=3),
            shared=lambda pitch=pitch, **_: (matrix_patterns.ROWS * pitch * 2,),
            oldest=(8, 0),
        )
        for name, pitch in matrix_patterns.PITCHES.items()
    ),
    Case(
        "flash_forward",
        call=flash_forward,
        sizes=(dict(heads=2, n=70, d=16), dict(heads=1, n=33, d=64)),
        counted=dict(heads=1, n=128, d=32),
        shared=lambda d, **_: (2 * KEYS * d * 4,),
        previous=tile_by_tile,
        **ATTENTION,
    ),
    Case(
        "warp_forward",
        call=warp_forward,
        sizes=(dict(heads=1, n=40, d=16), dict(heads=2, n=6, d=33)),
        previous=flash_forward,
        **ATTENTION,
    ),
    Case(
        "conv_forward",
        qkvw,
        conv_forward.conv_forward,
        conv_and_log_sum,
        "attention",
        sizes=(CONVOLUTION,),
        compiled=ROW_WIDTHS,
        shared=conv_forward_shared,
        previous=conv_tile_by_tile,
    ),
    Case(
        "conv_backward",
        with_gradient,
        conv_gradients_by_kernels,
        conv_gradients,
        "gradient",
        sizes=(CONVOLUTION,),
        compiled=ROW_WIDTHS,
        shared=conv_backward_shared,
        spills=lambda **_: (False, False),
        previous=conv_gradients_tile_by_tile,
    ),
    Case(
        "conv_decode",
        qkvw,
        decode,
        lambda q, k, v, w: (conv_attention(q, k, v, w)[:, :, -1:],),
        "attention",
        sizes=(CONVOLUTION,),
        compiled=WINDOWS,
        shared=conv_decode_shared,
        spills=lambda **_: (False, False),
    ),
    Case(
        "multi_token_forward",
        multi_token_inputs,
        multi_token,
        lambda *tensors: (multi_token_attention(*tensors, scale=0.25),),
        "attention",
        sizes=(MIXING,),
        compiled=MIXED,
        shared=of_launches(FORWARD),
        spills=lambda **_: (False,) * 5,
    ),
    Case(
        "multi_token_backward",
        multi_token_inputs,
        multi_token_gradients,
        lambda q, k, v, *parts: multi_token_attention_backward(q, k, v, v, *parts, scale=0.25)[:7],
        "gradient",
        sizes=(MIXING,),
        compiled=MIXED,
        shared=of_launches(
            "convolve mix softmax convolve mix mix taps convolve softmax_back mix taps convolve"
        ),
        spills=lambda **_: (False,) * 12,
    ),
    Case(
        "multi_token_decode",
        multi_token_inputs,
        multi_token_row,
        lambda *tensors: (multi_token_attention(*tensors, scale=0.25)[:, :, -1:],),
        "attention",
        sizes=(MIXING,),
        compiled=MIXED[:1],
        shared=multi_token_row_shared,
        spills=lambda **_: (False,) * 4,
    ),
    Case(
        "latent_forward",
        latent_cases.case_inputs,
        latent_cases.forward_case,
        lambda *tensors: latent_cases.reference_case(*tensors)[:2],
        "attention",
        sizes=(LATENT,),
        compiled=LATENT_WIDTHS,
        shared=latent_cases.forward_shared,
        previous=latent_cases.tiled_case,
    ),
    Case(
        "latent_backward",
        latent_cases.case_inputs,
        latent_cases.backward_case,
        lambda *tensors: latent_cases.reference_case(*tensors)[2:],
        "gradient",
        sizes=(LATENT,),
        compiled=LATENT_WIDTHS,
        shared=latent_cases.backward_shared,
        spills=lambda d, **_: (False, d > 64),  # the second kernel holds eight scores in each thread
    ),
    Case(
        "latent_decode",
        latent_cases.case_inputs,
        latent_cases.decode_case,
        lambda *tensors: (latent_cases.reference_case(*tensors)[0][:, :, -1:],),
        "attention",
        sizes=(LATENT,),
        compiled=tuple(LATENT | dict(heads=heads, latent=latent) for heads, latent in LATENT_HEADS),
        shared=latent_cases.decode_shared,
        spills=lambda **_: (False,) * 3,
    ),
)
CASES = {case.name: case for case in ALL}

TOLERANCES = {
    "exact": (0, "numbers are moved, or whole, or rounded once by every operation in a fixed order"),
    "matmul": (
        1e-5,
        (
            "up to 64 products are added in float32; compiled code rounds a product and its sum once, Python"
            " twice"
        ),
    ),
    "attention": (
        1e-5,
        (
            "float32 sums over at most 128 keys, in an order that differs between stages; exp is good to an"
            " ulp or two"
        ),
    ),
    "gradient": (1e-4, "as attention, through two more products; dW adds all N² scores of a head"),
}
