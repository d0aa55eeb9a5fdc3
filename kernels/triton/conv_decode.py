"""Convolutional attention for one new token in Triton: the keys are split among programs, and a second kernel
merges their results.

The algorithm is that of `kernels/conv/decode.py`, with a program in place of each warp. The convolution is a
product and one shift: U[b, j] = Σ_a w[a, b] · S0[a, j], then T[j] = Σ_b U[b, j + b].
"""

from kernels.common.launch import output, width_for
from kernels.common.splits import flat, splits_for
from kernels.conv.decode import decode_arguments
from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import head_of_program, load_rows, products, reciprocal, weight

KEYS, TAPS = 64, 16  # keys per tile, with their halo; rows of a window, and taps per row, padded to a tile
SPLITS = 16  # splits merged at a time


@triton.jit(do_not_specialize=["window", "n", "c_q", "c_k", "length"])
def conv_decode_split_kernel(
    q,
    k,
    k_batch,
    k_head,
    v,
    v_batch,
    v_head,
    w,
    scale,
    parts,
    window,
    n,
    d,
    c_q,
    c_k,
    length,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Store each program's o, m and l in parts (B, H, splits, d + 2). q: (B, H, window, d). Key j of head h
    of batch b is at k[b · k_batch + h · k_head + j · d]; w: (H, c_q, c_k); n keys, `length` per split."""
    head, split = head_of_program(), tl.program_id(0)
    k_rows = k + tl.program_id(2).to(tl.int64) * k_batch + tl.program_id(1).to(tl.int64) * k_head
    v_rows = v + tl.program_id(2).to(tl.int64) * v_batch + tl.program_id(1).to(tl.int64) * v_head
    tap, column = tl.arange(0, TAPS)[:, None], tl.arange(0, KEYS)[None, :]
    # 1. load the window, whose last row is row c_q - 1 of the tile, and the taps (b, a); initialise the state
    q_tile = scale * load_rows(q + head * window * d, window - c_q, window, d, TAPS, WIDTH)
    a = tl.arange(0, TAPS)[None, :]
    w_place = tl.program_id(1) * c_q * c_k + a * c_k + tap
    w_tile = tl.load(w + w_place, mask=(a < c_q) & (tap < c_k), other=0.0)
    o, m, l = tl.zeros((WIDTH,), tl.float32), float("-inf"), 0.0
    start, owned = split * length, KEYS - (c_k - 1)
    end = tl.minimum(n, start + length)
    for j0 in range(start, end, owned):
        # 2. compute the scores with each row of the window, mask and convolve them
        j = j0 - (c_k - 1) // 2 + column
        s = products(q_tile, load_rows(k_rows, j0 - (c_k - 1) // 2, n, d, KEYS, WIDTH))
        s = tl.where(j <= n - c_q + tap, s, 0.0)
        u = tl.dot(w_tile, s, input_precision="ieee")
        t = tl.sum(tl.gather(u, (column + tap) % KEYS, 1), 0)
        # 3. update the softmax, and accumulate the rows of V
        place = tl.arange(0, KEYS)
        t = tl.where((place < owned) & (j0 + place < end), t, float("-inf"))
        larger = tl.maximum(m, tl.max(t, 0))
        shrink, p = weight(m, larger), weight(t, larger)
        m, l = larger, l * shrink + tl.sum(p, 0)
        o = o * shrink + tl.sum(p[:, None] * load_rows(v_rows, j0, n, d, KEYS, WIDTH), 0)
    part, c = parts + (head * tl.num_programs(0) + split) * (d + 2), tl.arange(0, WIDTH)
    tl.store(part + c, o, mask=c < d)
    tl.store(part + d, m)
    tl.store(part + d + 1, l)


@triton.jit(do_not_specialize=["splits"])
def conv_decode_merge_kernel(parts, o, log_sum, splits, d, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    """Merge parts (B, H, splits, d + 2) into o (B, H, 1, d) and log_sum (B, H, 1). Grid: (1, H, B)."""
    head, c = head_of_program(), tl.arange(0, WIDTH)
    total, m, l = tl.zeros((WIDTH,), tl.float32), float("-inf"), 0.0
    for first in range(0, splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        part = parts + (head * splits + split) * (d + 2)
        m_tile = tl.load(part + d, mask=split < splits, other=float("-inf"))
        l_tile = tl.load(part + d + 1, mask=split < splits, other=0.0)
        inside = (split < splits)[:, None] & (c < d)[None, :]
        o_tile = tl.load(part[:, None] + c[None, :], mask=inside, other=0.0)
        larger = tl.maximum(m, tl.max(m_tile, 0))
        shrink, factor = weight(m, larger), weight(m_tile, larger)
        m, l = larger, l * shrink + tl.sum(factor * l_tile, 0)
        total = total * shrink + tl.sum(factor[:, None] * o_tile, 0)
    tl.store(o + head * d + c, total * reciprocal(l), mask=c < d)
    tl.store(log_sum + head, m + tl.log(l))


def conv_attention_decode(q_window, k, v, w, scale=None, splits=None, run=None, num_warps=4):
    """Return the last row of causal convolutional attention, (B, H, 1, d), float32 only, like
    `kernels.conv.decode.conv_attention_decode`."""
    q, k, v, w, scale = decode_arguments(q_window, k, v, w, scale)
    (batch, heads, keys, d), (_, c_q, c_k) = k.shape, w.shape
    splits = splits_for(splits, batch * heads, keys, k.device)
    parts, o, log_sum = (output((batch, heads, *sizes), like=k) for sizes in ((splits, d + 2), (1, d), (1,)))
    (k, k_strides), (v, v_strides) = flat(k), flat(v)
    given = q.contiguous(), k, *k_strides, v, *v_strides, w.contiguous(), scale, parts
    sizes = q.shape[2], keys, d, c_q, c_k, -(-keys // splits)
    constants = dict(KEYS=KEYS, WIDTH=width_for(d), TAPS=TAPS, num_warps=num_warps)
    launch(conv_decode_split_kernel, (splits, heads, batch), *given, *sizes, **constants, run=run)
    constants = dict(SPLITS=SPLITS, WIDTH=width_for(d), num_warps=1)
    launch(conv_decode_merge_kernel, (1, heads, batch), parts, o, log_sum, splits, d, **constants, run=run)
    return o
