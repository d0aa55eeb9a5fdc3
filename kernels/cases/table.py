"""The table of all kernels: inputs, a call, the reference, and the shared memory that the host code declares.

`kernels.bench.compare`, the PTX tests and compute-sanitizer iterate over CASES. Add a Case here for each new
kernel.
"""

from functools import partial

import torch

from kernels.cases import latent as latent_cases
from kernels.cases import matrix_patterns, memory_patterns
from kernels.cases.attention import (
    attention_and_log_sum,
    conv_and_log_sum,
    conv_gradients,
    conv_gradients_by_kernels,
    conv_gradients_tile_by_tile,
    conv_tile_by_tile,
    decode,
    multi_token,
    multi_token_gradients,
    multi_token_row,
    tile_by_tile,
)
from kernels.cases.case import Case
from kernels.cases.exact import (
    STRIDE,
    collatz,
    collatz_by_hand,
    elementwise,
    horner,
    horner_by_hand,
    matmul,
    matrices,
    registers_of_matrices,
    strided_copy,
    tiles_of_16_bits,
    transpose,
)
from kernels.cases.memory_patterns import PADDED, TILE
from kernels.cases.shared_memory import (
    conv_backward_shared,
    conv_decode_shared,
    conv_forward_shared,
    multi_token_row_shared,
    of_launches,
)
from kernels.common.launch import WIDTHS
from kernels.conv import forward as conv_forward
from kernels.flash.forward import KEYS, flash_forward
from kernels.flash.warp import warp_forward
from kernels.reference import conv_attention, multi_token_attention
from kernels.reference.multi_token_gradients import multi_token_attention_backward


def normal(generator, *shapes):
    return [torch.randn(shape, generator=generator) for shape in shapes]


# Inputs -----------------------------------------------------------------------------------------------------


def vector(generator, n):
    return normal(generator, (n,))


def qkv(generator, heads, n, d):
    return normal(generator, *[(1, heads, n, d)] * 3)


def qkvw(generator, heads, n, d, c_q, c_k):
    """Return [q, k, v, w], with taps scaled so that T is about as large as S0."""
    w = torch.randn(heads, c_q, c_k, generator=generator) / (c_q * c_k) ** 0.5
    return [*qkv(generator, heads, n, d), w]


def with_gradient(generator, **size):
    q, *rest = qkvw(generator, **size)
    return [q, *rest, torch.randn(q.shape, generator=generator)]


def multi_token_inputs(generator, heads, n, d, c_q, c_k):
    """Return q, k and v, then the taps and the full head map that are applied before the softmax, then the
    taps and the full head map that are applied after it."""
    q, k, v = qkv(generator, heads, n, d)
    taps, after_taps = torch.randn(2, heads, c_q, c_k, generator=generator) / (c_q * c_k) ** 0.5
    head_map, after_head_map = torch.randn(2, 1, heads, heads, generator=generator) / heads**0.5
    return [q, k, v, taps, head_map, after_taps, after_head_map]


# The table --------------------------------------------------------------------------------------------------


def transposing(kernel, shared=0, previous=None):
    return Case(
        kernel.__name__,
        lambda generator, rows, columns: normal(generator, (rows, columns)),
        partial(transpose, kernel),
        lambda a: (a.T,),
        "exact",
        sizes=(dict(rows=33, columns=20),),
        counter_size=dict(rows=128, columns=96),
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
CONVOLUTION = dict(heads=1, n=66, d=16, c_q=4, c_k=5)  # one complete tile and a partial one
ROW_WIDTHS = tuple(CONVOLUTION | dict(d=d) for d in WIDTHS)
WINDOWS = tuple(CONVOLUTION | dict(d=d, c_q=c_q) for d in (20, 64, 128) for c_q in (4, 8, 12, 15))
MIXING = dict(heads=2, n=9, d=4, c_q=2, c_k=3)  # small, because one pass launches up to a dozen kernels
MIXED = tuple(MIXING | dict(heads=heads, n=66) for heads in (16, 32))
FORWARD = "convolve mix softmax convolve mix"

LATENT = dict(heads=1, n=35, d=5, latent=4)  # one complete tile and a partial one
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
        counter_size=dict(n=4096),
    ),
    Case(
        "strided_copy",
        vector,
        strided_copy,
        lambda x: (x[::STRIDE],),
        "exact",
        sizes=(dict(n=1200),),
        counter_size=dict(n=16384),
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
        counter_size=dict(m=64, k=64, n=64),
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
            counter_size=dict(tiles=3),
            shared=lambda pitch=pitch, **_: (matrix_patterns.ROWS * pitch * 2,),
            oldest=(8, 0),
        )
        for name, pitch in matrix_patterns.PITCHES.items()
    ),
    Case(
        "flash_forward",
        call=flash_forward,
        sizes=(dict(heads=2, n=70, d=16), dict(heads=1, n=33, d=64)),
        counter_size=dict(heads=1, n=128, d=32),
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
        spills=lambda d, **_: (False, d > 64),  # the second kernel keeps eight scores per thread
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
