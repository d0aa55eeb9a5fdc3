"""Faulty kernels for lesson 13. Each contains one error that published backward algorithms contain.

A faulty function takes the arguments of the function that it replaces, which FAULTS names.
"""

import math

from numba import cuda
from numpy import float32


@cuda.jit(device=True)
def meet(tile, w, i, j):
    """Return Σ w[a, b] · tile[i + a, j + b]."""
    total = float32(0)
    for a in range(w.shape[0]):
        for b in range(w.shape[1]):
            total += w[a, b] * tile[i + a, j + b]
    return total


@cuda.jit(device=True)
def readers(tile, w, i, j, height):
    """Return Σ w[a, b] · tile[i + c_q - 1 - a, j + c_k - 1 - b] over the rows below `height` only."""
    c_q, c_k = w.shape
    total = float32(0)
    for a in range(max(0, i + c_q - height), c_q):
        for b in range(c_k):
            total += w[a, b] * tile[i + c_q - 1 - a, j + c_k - 1 - b]
    return total


@cuda.jit(device=True)
def no_rows_below(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0):
    """Compute gradient_of_t only for the owned rows, so that dT stays 0 in the halo rows below them."""
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
    """Compute add_d_w over all rows and columns of dT, including the halo."""
    c_q, c_k = w.shape
    for e in range(cuda.threadIdx.x, c_q * c_k, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        for i in range(rows + c_q - 1):
            for j in range(columns + c_k - 1):
                tap_sums[a, b] += d_t_tile[i, j] * s_tile[i + a, j + b]


@cuda.jit(device=True)
def no_mask(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Compute gradient_of_s without setting the gradient of masked scores to zero."""
    for e in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        i, j = e // columns, e % columns
        d_s_tile[i, j] = readers(d_t_tile, w, i, j, rows + w.shape[0] - 1)


@cuda.jit(device=True)
def scores_of_all_rows(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Compute gradient_of_s for the halo rows too, from the readers that are in the tile."""
    height = rows + w.shape[0] - 1
    for e in range(cuda.threadIdx.x, height * columns, cuda.blockDim.x):
        i, j = e // columns, e % columns
        d_s_tile[i, j] = readers(d_t_tile, w, i, j, height) if j0 + j <= i0 + i else float32(0)


@cuda.jit(device=True)
def keys_of_all_rows(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right):
    """Compute add_d_k_d_v over the halo rows too, of which there are as many as above the owned rows."""
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
