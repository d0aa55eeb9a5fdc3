"""Faulty kernels for lesson 13: the errors in the published backward algorithms, one fault at a time.

Each takes the arguments of the kernel that it replaces. FAULTS names that kernel."""

import math

from numba import cuda
from numpy import float32


@cuda.jit(device=True)
def meet(tile, w, i, j):
    """Σ w[a, b] · tile[i + a, j + b]."""
    total = float32(0)
    for a in range(w.shape[0]):
        for b in range(w.shape[1]):
            total += w[a, b] * tile[i + a, j + b]
    return total


@cuda.jit(device=True)
def readers(tile, w, i, j, height):
    """Σ w[a, b] · tile[i + P_q - a, j + c_k - 1 - b], of the readers in rows below `height` alone."""
    c_q, c_k = w.shape
    total = float32(0)
    for a in range(max(0, i + c_q - height), c_q):
        for b in range(c_k):
            total += w[a, b] * tile[i + c_q - 1 - a, j + c_k - 1 - b]
    return total


@cuda.jit(device=True)
def no_rows_below(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0):
    """gradient_of_t where the tile of rows ends with the owned ones: dT of the rows below stays 0."""
    below = w.shape[0] - 1
    height, width = s_tile.shape[0] - below, s_tile.shape[1] - w.shape[1] + 1
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = e // width, e % width
        query, key, p = i0 + i, j0 + j, float32(0)
        if i < height - below and 0 <= key <= query < log_sum.size:
            p = math.exp(meet(s_tile, w, i, j) - log_sum[query])
            d_t_tile[i, j] = p * (d_t_tile[i, j] - delta[query])
        else:
            d_t_tile[i, j] = float32(0)
        p_tile[i, j] = p


@cuda.jit(device=True)
def taps_of_the_whole_tile(tap_sums, d_t_tile, s_tile, w, rows, columns, right):
    """add_d_w over all the rows and columns of dT, halo included."""
    c_q, c_k = w.shape
    for e in range(cuda.threadIdx.x, c_q * c_k, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        for i in range(rows + c_q - 1):
            for j in range(columns + c_k - 1):
                tap_sums[a, b] += d_t_tile[i, j] * s_tile[i + a, j + b]


@cuda.jit(device=True)
def no_mask(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """gradient_of_s with the gradient of the constant zeros left in."""
    for e in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        i, j = e // columns, e % columns
        d_s_tile[i, j] = readers(d_t_tile, w, i, j, rows + w.shape[0] - 1)


@cuda.jit(device=True)
def scores_of_all_rows(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """gradient_of_s on the halo rows too, as far as their readers are in the tile."""
    height = rows + w.shape[0] - 1
    for e in range(cuda.threadIdx.x, height * columns, cuda.blockDim.x):
        i, j = e // columns, e % columns
        d_s_tile[i, j] = readers(d_t_tile, w, i, j, height) if j0 + j <= i0 + i else float32(0)


@cuda.jit(device=True)
def keys_of_all_rows(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right):
    """add_d_k_d_v over the halo rows too: as many as there are above the owned ones of a whole tile."""
    d, below = q.shape[1], (p_tile.shape[0] - rows) // 2
    for e in range(cuda.threadIdx.x, columns * d, cuda.blockDim.x):
        j, c = e // d, e % d
        for i in range(min(rows + below, q.shape[0] - i0)):
            d_k_tile[j, c] += d_s_tile[i, j] * q[i0 + i, c]
            d_v_tile[j, c] += p_tile[i, right + j] * d_o[i0 + i, c]


FAULTS = {
    "no rows below": {"gradient_of_t": no_rows_below},
    "taps twice": {"add_d_w": taps_of_the_whole_tile},
    "halo rows": {"gradient_of_s": scores_of_all_rows, "add_d_k_d_v": keys_of_all_rows},
    "no mask": {"gradient_of_s": no_mask},
}
