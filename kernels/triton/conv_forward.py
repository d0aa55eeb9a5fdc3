"""Convolutional attention forward pass in Triton: one program per tile of queries. The scores of a tile of
keys are computed, convolved and consumed on chip.

Algorithm, names and grid are those of `kernels/conv/forward.py`: a tile that owns rows [i0, i0 +
SIZE - P_q) and columns [j0, j0 + SIZE - P_k - P_r) computes all SIZE × SIZE scores, with the halo. The
convolution is `tiles.convolved`: a sum of shifted tiles, where CUDA reads shared memory at [i + a, j + b].
"""

from kernels.common.arguments import conv_arguments
from kernels.common.launch import output, width_for
from kernels.conv.tiles import check_size
from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import (
    convolved,
    head_of_program,
    load_rows,
    products,
    reciprocal,
    store_rows,
    weight,
)

SIZE = 32  # smaller than in CUDA, because a tile that is shifted stays in registers


@triton.jit(do_not_specialize=["n", "c_q", "c_k"])
def conv_forward_kernel(
    q,
    k,
    v,
    w,
    scale,
    o,
    log_sum,
    n,
    d,
    c_q,
    c_k,
    CAUSAL: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute o (B, H, n, d) and log_sum (B, H, n) from q, k, v (B, H, n, d) and w (H, c_q, c_k)."""
    head = head_of_program()
    q_rows, k_rows, v_rows = q + head * n * d, k + head * n * d, v + head * n * d
    taps = w + tl.program_id(1) * c_q * c_k
    rows, keys = SIZE - (c_q - 1), SIZE - (c_k - 1)  # rows and columns that a tile owns
    above, left = c_q - 1, (c_k - 1) // 2
    i0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * rows
    place = tl.arange(0, SIZE)
    i, row, column = i0 + place, place[:, None], place[None, :]
    # 1. load the queries with their halo, and initialise the state
    q_tile = scale * load_rows(q_rows, i0 - above, n, d, SIZE, WIDTH)
    o_tile = tl.zeros((SIZE, WIDTH), tl.float32)
    m, l = tl.full((SIZE,), float("-inf"), tl.float32), tl.zeros((SIZE,), tl.float32)
    last_key = tl.minimum(n, i0 + rows) if CAUSAL else n
    for j0 in range(0, last_key, keys):
        # 2. compute S0 with its halo
        s = products(q_tile, load_rows(k_rows, j0 - left, n, d, SIZE, WIDTH))
        if CAUSAL:
            s = tl.where(j0 - left + column <= i0 - above + row, s, 0.0)
        # 3. compute T and then P
        owned = (row < rows) & (i0 + row < n) & (column < keys) & (j0 + column < n)
        if CAUSAL:
            owned = owned & (j0 + column <= i0 + row)
        t = tl.where(owned, convolved(s, taps, c_q, c_k, False), float("-inf"))
        larger = tl.maximum(m, tl.max(t, 1))
        shrink, p = weight(m, larger), weight(t, larger[:, None])
        m, l = larger, l * shrink + tl.sum(p, 1)
        # 4. O = O · shrink + P V
        v_tile = load_rows(v_rows, j0, n, d, SIZE, WIDTH)
        o_tile = o_tile * shrink[:, None] + tl.dot(p, v_tile, input_precision="ieee")
    # 5. normalise and store
    store_rows(o + head * n * d, i0, rows, n, d, o_tile * reciprocal(l)[:, None])
    tl.store(log_sum + head * n + i, m + tl.log(l), mask=(place < rows) & (i < n))


def conv_forward(q, k, v, w, causal=True, scale=None, run=None, size=SIZE, num_warps=4):
    """Return (O, L) like `kernels.conv.forward.conv_forward`, for whole sequences, float32 only.
    size: the side of a tile of scores, 64 or 32."""
    check_size(size)
    q, k, v, w, scale, _ = conv_arguments(q, k, v, w, scale)
    batch, heads, n, d = q.shape
    o, log_sum = output(q.shape, like=q), output(q.shape[:3], like=q)
    _, c_q, c_k = w.shape
    constants = dict(CAUSAL=bool(causal), SIZE=size, WIDTH=width_for(d), num_warps=num_warps)
    grid = (-(-n // (size - c_q + 1)), heads, batch)
    launch(conv_forward_kernel, grid, q, k, v, w, scale, o, log_sum, n, d, c_q, c_k, **constants, run=run)
    return o, log_sum
