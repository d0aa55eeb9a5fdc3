"""Convolutional attention backward pass in Triton: one kernel owns tiles of queries and computes dQ and dW,
the other owns tiles of keys and computes dK and dV.

Algorithm, names, grids and the origin of each tile are those of `kernels/conv/backward.py`. Elements that are
masked or not owned are set to 0 in a tile before a product sums over them.
"""

from kernels.common.arguments import backward_arguments
from kernels.common.launch import output, width_for
from kernels.conv.tiles import check_size
from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import (
    convolved,
    head_of_program,
    load_rows,
    moved_left,
    moved_up,
    products,
    store_rows,
)

SIZE = 32  # smaller than in CUDA, because a tile that is shifted stays in registers
TAPS = 16  # side of a tile that holds the largest taps, 15 × 15


@triton.jit
def gradient_tiles(
    q_rows,
    k_rows,
    v_rows,
    d_o_rows,
    taps,
    log_sum,
    delta,
    scale,
    i0,
    j0,
    n,
    d,
    c_q,
    c_k,
    CAUSAL: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return (S0, P, dT, dS) of the tile that owns rows i0 … and columns j0 …; owned entries of P and dT
    start at (0, right).

    S0 starts at (i0 - P_q, j0 - (c_k - 1)), P and dT at (i0, j0 - right), dS at (i0, j0).
    """
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    rows, columns, right = SIZE - 2 * (c_q - 1), SIZE - 2 * (c_k - 1), c_k // 2
    query = i0 + row
    q_tile = load_rows(q_rows, i0 - (c_q - 1), n, d, SIZE, WIDTH)
    k_tile = load_rows(k_rows, j0 - (c_k - 1), n, d, SIZE, WIDTH)
    s = scale * products(q_tile, k_tile)
    if CAUSAL:
        s = tl.where(j0 - (c_k - 1) + column <= query - (c_q - 1), s, 0.0)
    key = j0 - right + column
    inside = (row < SIZE - (c_q - 1)) & (query < n) & (column < SIZE - (c_k - 1)) & (key >= 0) & (key < n)
    if CAUSAL:
        inside = inside & (key <= query)
    l = tl.load(log_sum + query, mask=query < n, other=0.0)
    mean = tl.load(delta + query, mask=query < n, other=0.0)
    p = tl.where(inside, tl.exp(convolved(s, taps, c_q, c_k, False) - l), 0.0)
    d_o_tile = load_rows(d_o_rows, i0, n, d, SIZE, WIDTH)
    v_tile = load_rows(v_rows, j0 - right, n, d, SIZE, WIDTH)
    d_t = p * (products(d_o_tile, v_tile) - mean)
    owned = (row < rows) & (query < n) & (column < columns) & (j0 + column < n)
    if CAUSAL:
        owned = owned & (j0 + column <= query)
    d_s = tl.where(owned, convolved(d_t, taps, c_q, c_k, True), 0.0)
    mine = (row < rows) & (column >= right) & (column < right + columns)
    return s, tl.where(mine, p, 0.0), tl.where(mine, d_t, 0.0), d_s


@triton.jit
def tap_gradients(d_t, s, c_q, c_k, TAPS: tl.constexpr):
    """Return Σ_ij dT[i, j] · S0[i + a, j + b] for each tap: (TAPS, TAPS)."""
    a_of, b_of = tl.arange(0, TAPS)[:, None], tl.arange(0, TAPS)[None, :]
    sums = tl.zeros((TAPS, TAPS), tl.float32)
    for a in range(c_q):
        row = moved_up(s, a)
        for b in range(c_k):
            total = tl.sum(tl.sum(d_t * moved_left(row, b), 1), 0)
            sums += tl.where((a_of == a) & (b_of == b), total, 0.0)
    return sums


@triton.jit(do_not_specialize=["parts", "n", "c_q", "c_k"])
def conv_backward_queries_kernel(
    q,
    k,
    v,
    w,
    log_sum,
    delta,
    d_o,
    scale,
    d_q,
    d_w,
    parts,
    n,
    d,
    c_q,
    c_k,
    CAUSAL: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Store dQ in d_q, add dW to d_w; q, k, v, d_o (B, H, n, d), w (H, c_q, c_k), log_sum, delta (B, H, n).
    d_w: (parts, H, c_q, c_k); program b of a head adds to d_w[b % parts]."""
    head, taps = head_of_program(), w + tl.program_id(1) * c_q * c_k
    q_rows, k_rows, v_rows, d_o_rows = (
        q + head * n * d,
        k + head * n * d,
        v + head * n * d,
        d_o + head * n * d,
    )
    rows, columns = SIZE - 2 * (c_q - 1), SIZE - 2 * (c_k - 1)
    i0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * rows
    d_q_tile, d_w_tile = tl.zeros((SIZE, WIDTH), tl.float32), tl.zeros((TAPS, TAPS), tl.float32)
    last_key = tl.minimum(n, i0 + rows) if CAUSAL else n
    for j0 in range(0, last_key, columns):
        s, _, d_t, d_s = gradient_tiles(
            q_rows,
            k_rows,
            v_rows,
            d_o_rows,
            taps,
            log_sum + head * n,
            delta + head * n,
            scale,
            i0,
            j0,
            n,
            d,
            c_q,
            c_k,
            CAUSAL,
            SIZE,
            WIDTH,
        )
        d_w_tile += tap_gradients(d_t, s, c_q, c_k, TAPS)
        k_tile = load_rows(k_rows, j0, n, d, SIZE, WIDTH)
        d_q_tile += tl.dot(d_s, k_tile, input_precision="ieee")
    store_rows(d_q + head * n * d, i0, rows, n, d, scale * d_q_tile)
    block = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    a, b = tl.arange(0, TAPS)[:, None], tl.arange(0, TAPS)[None, :]
    place = ((block % parts * tl.num_programs(1) + tl.program_id(1)) * c_q + a) * c_k + b
    tl.atomic_add(d_w + place, d_w_tile, mask=(a < c_q) & (b < c_k))


@triton.jit(do_not_specialize=["n", "c_q", "c_k"])
def conv_backward_keys_kernel(
    q,
    k,
    v,
    w,
    log_sum,
    delta,
    d_o,
    scale,
    d_k,
    d_v,
    n,
    d,
    c_q,
    c_k,
    CAUSAL: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Store dK in d_k and dV in d_v; q, k, v, d_o (B, H, n, d), w (H, c_q, c_k), log_sum, delta (B,
    H, n)."""
    head, taps = head_of_program(), w + tl.program_id(1) * c_q * c_k
    q_rows, k_rows, v_rows, d_o_rows = (
        q + head * n * d,
        k + head * n * d,
        v + head * n * d,
        d_o + head * n * d,
    )
    rows, columns, right = SIZE - 2 * (c_q - 1), SIZE - 2 * (c_k - 1), c_k // 2
    j0 = tl.program_id(0) * columns
    d_k_tile, d_v_tile = tl.zeros((SIZE, WIDTH), tl.float32), tl.zeros((SIZE, WIDTH), tl.float32)
    for i0 in range(j0 // rows * rows if CAUSAL else 0, n, rows):
        _, p, _, d_s = gradient_tiles(
            q_rows,
            k_rows,
            v_rows,
            d_o_rows,
            taps,
            log_sum + head * n,
            delta + head * n,
            scale,
            i0,
            j0,
            n,
            d,
            c_q,
            c_k,
            CAUSAL,
            SIZE,
            WIDTH,
        )
        d_o_tile = load_rows(d_o_rows, i0, n, d, SIZE, WIDTH)
        d_v_tile += tl.dot(tl.trans(p), d_o_tile, input_precision="ieee")
        q_tile = load_rows(q_rows, i0, n, d, SIZE, WIDTH)
        d_k_tile += tl.dot(tl.trans(d_s), q_tile, input_precision="ieee")
    store_rows(d_k + head * n * d, j0, columns, n, d, scale * d_k_tile)
    store_rows(d_v + head * n * d, j0, columns, n, d, moved_up(d_v_tile, right))


def conv_backward(
    q,
    k,
    v,
    w,
    o,
    log_sum,
    d_o,
    causal=True,
    scale=None,
    deterministic=False,
    run=None,
    size=SIZE,
    num_warps=4,
):
    """Return (dQ, dK, dV, dW) like `kernels.conv.backward.conv_backward`, for whole sequences."""
    q, k, v, w, scale, d_o, _ = backward_arguments(q, k, v, w, o, log_sum, d_o, scale)
    check_size(size)
    (batch, heads, n, d), (_, c_q, c_k) = q.shape, w.shape
    rows, columns = size - 2 * (c_q - 1), size - 2 * (c_k - 1)
    delta = (d_o * o.detach()).sum(-1)
    given = q, k, v, w, log_sum.detach().contiguous(), delta, d_o, scale
    constants = dict(CAUSAL=bool(causal), SIZE=size, WIDTH=width_for(d), num_warps=num_warps)
    grid = (-(-n // rows), heads, batch)
    parts = grid[0] * batch if deterministic else 1
    d_q, d_w = output(q.shape, like=q), q.new_zeros(parts, *w.shape)
    results = d_q, d_w, parts, n, d, c_q, c_k
    launch(conv_backward_queries_kernel, grid, *given, *results, **constants, TAPS=TAPS, run=run)
    grid = (-(-n // columns), heads, batch)
    d_k, d_v = output(k.shape, like=k), output(v.shape, like=v)
    launch(conv_backward_keys_kernel, grid, *given, d_k, d_v, n, d, c_q, c_k, **constants, run=run)
    return d_q, d_k, d_v, d_w.sum(0)
