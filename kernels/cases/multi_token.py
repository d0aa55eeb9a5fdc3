"""Test shapes for the multi-token layer, and its errors against float64 on each.

Errors are measured for the forward pass, the backward pass and one decoded token.
"""

import itertools
from typing import NamedTuple

import torch

from kernels.cases.tolerances import relative_errors
from kernels.multi_token.bands import NAMES, Layer, backward, forward
from kernels.multi_token.decode import decode
from kernels.reference import multi_token_attention
from kernels.reference.multi_token_gradients import multi_token_attention_backward

SCALE = 0.3


class Shape(NamedTuple):
    batch: int
    heads: int
    n: int
    d: int
    taps: tuple | None
    group: int | None  # heads per group of the first map
    after_taps: tuple | None
    after_group: int | None
    causal: bool
    rows: int | None  # rows of a band

    def __str__(self):
        parts = [
            "none" if part is None else "×".join(map(str, part)) if isinstance(part, tuple) else str(part)
            for part in self[4:8]
        ]
        return (
            f"{self.batch}×{self.heads}×{self.n}×{self.d}, {', '.join(parts)},"
            f" {'causal' if self.causal else 'not causal'}, bands of {self.rows}"
        )


# The cases contain tap sizes that are odd, even, square, oblong, and larger than the sequence, and layers
# without taps. They contain maps over all heads, over groups of heads and over single heads, and layers
# without maps. Sequences end before and after the boundaries of tiles and bands. The numbers of heads include
# the powers of two up to 32.
TAPS = [
    ((1, 1), (1, 1)),
    ((6, 11), (6, 11)),
    ((2, 4), (3, 3)),
    ((1, 7), (7, 1)),
    (None, (4, 2)),
    ((5, 6), None),
    ((15, 15), (15, 15)),
    ((3, 2), (2, 15)),
    ((15, 1), (1, 15)),
    (None, None),
    ((8, 9), (11, 6)),
]
# batch, heads, N, d, groups of the two maps, rows per band
SIZES = [
    (2, 1, 1, 5, 1, 1, None),
    (1, 2, 3, 16, 2, 1, 2),
    (2, 3, 7, 3, 3, None, 3),
    (1, 4, 33, 16, 2, 4, 8),
    (1, 6, 20, 1, None, 3, 7),
    (1, 2, 64, 64, 2, 2, 64),
    (2, 2, 65, 33, None, 2, 30),
    (1, 1, 129, 128, None, None, 64),
    (1, 8, 70, 8, 8, 4, 64),
    (1, 16, 40, 4, 16, 16, 16),
    (1, 32, 18, 2, 32, 8, 9),
]
SHAPES = [
    Shape(*sizes[:4], taps, sizes[4], after_taps, sizes[5], causal, sizes[6])
    for (sizes, (taps, after_taps)), causal in zip(
        itertools.product(SIZES, TAPS), itertools.cycle([True, False, True])
    )
]


def inputs(shape, seed=0, device="cpu"):
    """Return (q, k, v, d_o, layer) in float32, with taps and maps scaled so that T and U are as large as S
    and P."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size, over=1):
        return torch.randn(size, generator=generator).to(device) / over**0.5

    q, k, v, d_o = normal(4, shape.batch, shape.heads, shape.n, shape.d)
    parts = []
    for taps, group in ((shape.taps, shape.group), (shape.after_taps, shape.after_group)):
        parts.append(taps and normal(shape.heads, *taps, over=taps[0] * taps[1]))
        parts.append(group and normal(shape.heads // group, group, group, over=group))
    return q, k, v, d_o, Layer(*parts, SCALE, shape.causal)


def reference(q, k, v, d_o, layer):
    """Return {result: tensor} in float64: O, the gradients, and for a causal layer the last row of O as
    "token"."""
    q, k, v, d_o, *parts = (x if x is None else x.double() for x in (q, k, v, d_o, *layer[:4]))
    o = multi_token_attention(q, k, v, *parts, causal=layer.causal, scale=layer.scale)
    found = multi_token_attention_backward(q, k, v, d_o, *parts, causal=layer.causal, scale=layer.scale)
    token = {"token": o[:, :, -1:]} if layer.causal else {}
    return {"o": o, **token, **{name: part for name, part in found._asdict().items() if part is not None}}


def results(q, k, v, d_o, layer, rows=None, splits=3, run=None):
    """Compute {result: tensor} with the kernels, like `reference`; `splits` applies to the decoded token."""
    answer = {"o": forward(q, k, v, layer, rows, run)}
    if layer.causal:
        window = 1 + layer.above + layer.after_above
        answer["token"] = decode(q[:, :, -window:].contiguous(), k, v, layer, splits=splits, run=run)
    return answer | backward(q, k, v, layer, d_o, NAMES, rows, run)


def errors_of(shape, seed=0, device="cpu", run=None):
    """Return {result: relative error} of the kernels on this shape."""
    tensors = inputs(shape, seed, device)
    got, wanted = results(*tensors, rows=shape.rows, run=run), reference(*tensors)
    assert got.keys() == wanted.keys()
    return relative_errors(got, wanted)


def bfloat16_errors_of(shape, seed=0, device="cpu"):
    """Return the errors of the kernels and the errors of PyTorch eager for this shape in bfloat16.

    Each is {result: RMS error relative to the RMS of the correct result, 0 if that is 0}, without the decoded
    token.
    """
    q, k, v, d_o, layer = inputs(shape, seed, device)
    q, k, v, d_o = (x.bfloat16() for x in (q, k, v, d_o))
    parts = [x if x is None else x.bfloat16() for x in layer[:4]]
    layer = Layer(*(x if x is None else x.float() for x in parts), layer.scale, layer.causal)
    wanted = reference(q, k, v, d_o, layer)
    got = {"o": forward(q, k, v, layer, shape.rows)} | backward(q, k, v, layer, d_o, rows=shape.rows)
    leaves = {name: x.requires_grad_() for name, x in zip(NAMES, (q, k, v, *parts)) if x is not None}
    o = multi_token_attention(**leaves, causal=layer.causal, scale=layer.scale)
    eager = {"o": o, **dict(zip(leaves, torch.autograd.grad(o, leaves.values(), d_o)))}
    return tuple(
        {name: rms_error(found[name].double(), wanted[name]) for name in got} for found in (got, eager)
    )


def rms_error(got, wanted):
    """Return the RMS of got - wanted, relative to the RMS of wanted."""
    return ((got - wanted).norm() / wanted.norm().clamp_min(torch.finfo(wanted.dtype).tiny)).item()
