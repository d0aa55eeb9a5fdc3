"""Host functions of the CUDA C++ kernels: check arguments, allocate outputs, launch."""

import numpy as np

from kernels.common.arguments import attention_arguments, backward_arguments, conv_arguments
from kernels.common.launch import output, width_for
from kernels.common.splits import LANES, flat, splits_for
from kernels.conv.decode import MERGING_WARPS, WARPS, decode_arguments
from kernels.conv.forward import SIZE
from kernels.conv.tiles import check_size, threads_of
from kernels.cuda_cpp.launch import Kernel, launch
from kernels.flash.forward import ROWS


def flash_forward(q, k, v, causal=True, scale=None, run=None):
    """Return (O, L) like `kernels.flash.forward.flash_forward`, float32 only."""
    q, k, v, scale = attention_arguments(q, k, v, scale)
    batch, heads, n, d = q.shape
    o, log_sum = output(q.shape, like=q), output(q.shape[:3], like=q)
    kernel = Kernel("flash_forward.cu", "flash_forward_kernel", (("WIDTH", width_for(d)),))
    sizes = n, k.shape[2], d
    grid = (-(-n // ROWS), heads, batch)
    launch(kernel, grid, ROWS, q, k, v, scale, int(causal), o, log_sum, *sizes, run=run)
    return o, log_sum


def conv_forward(q, k, v, w, causal=True, scale=None, run=None, size=SIZE):
    """Return (O, L) like `kernels.conv.forward.conv_forward`, for whole sequences, float32 only."""
    check_size(size)
    q, k, v, w, scale, _ = conv_arguments(q, k, v, w, scale)
    (batch, heads, n, d), (_, c_q, c_k) = q.shape, w.shape
    o, log_sum = output(q.shape, like=q), output(q.shape[:3], like=q)
    kernel = Kernel("conv_forward.cu", "conv_forward_kernel", conv_macros(d, size))
    grid = (-(-n // (size - c_q + 1)), heads, batch)
    arguments = q, k, v, w, scale, int(causal), o, log_sum, n, d, c_q, c_k
    launch(kernel, grid, threads_of(size), *arguments, run=run)
    return o, log_sum


def conv_macros(d, size):
    """Return the macros that conv_tiles.cuh requires."""
    return ("WIDTH", width_for(d)), ("SIZE", size)


def conv_backward(
    q, k, v, w, o, log_sum, d_o, causal=True, scale=None, deterministic=False, run=None, size=SIZE
):
    """Return (dQ, dK, dV, dW) like `kernels.conv.backward.conv_backward`, for whole sequences."""
    q, k, v, w, scale, d_o, _ = backward_arguments(q, k, v, w, o, log_sum, d_o, scale)
    check_size(size)
    (batch, heads, n, d), (_, c_q, c_k) = q.shape, w.shape
    rows, columns = size - 2 * (c_q - 1), size - 2 * (c_k - 1)
    delta = (d_o * o.detach()).sum(-1)
    given = q, k, v, w, log_sum.detach().contiguous(), delta, d_o, scale, int(causal)
    file, macros, threads = "conv_backward.cu", conv_macros(d, size), threads_of(size)
    grid = (-(-n // rows), heads, batch)
    parts = grid[0] * batch if deterministic else 1
    d_q, d_w = output(q.shape, like=q), q.new_zeros(parts, *w.shape)
    kernel = Kernel(file, "conv_backward_queries_kernel", macros)
    launch(kernel, grid, threads, *given, d_q, d_w, parts, n, d, c_q, c_k, run=run)
    grid = (-(-n // columns), heads, batch)
    d_k, d_v = output(k.shape, like=k), output(v.shape, like=v)
    kernel = Kernel(file, "conv_backward_keys_kernel", macros)
    launch(kernel, grid, threads, *given, d_k, d_v, n, d, c_q, c_k, run=run)
    return d_q, d_k, d_v, d_w.sum(0)


def conv_attention_decode(q_window, k, v, w, scale=None, splits=None, run=None):
    """Return the last row of causal convolutional attention, (B, H, 1, d), float32 only.

    Otherwise this is like `kernels.conv.decode.conv_attention_decode`.
    """
    q, k, v, w, scale = decode_arguments(q_window, k, v, w, scale)
    (batch, heads, keys, d), (_, c_q, c_k) = k.shape, w.shape
    splits = splits_for(splits, batch * heads, keys, k.device)
    parts, o, log_sum = (output((batch, heads, *sizes), like=k) for sizes in ((splits, d + 2), (1, d), (1,)))
    (k, k_strides), (v, v_strides) = flat(k), flat(v)
    macros = ("D", d), ("SLOTS", -(-c_q // 4) * 4)
    given = q.contiguous(), k, *np.int64(k_strides), v, *np.int64(v_strides), w.contiguous(), scale
    sizes = q.shape[2], keys, c_q, c_k, -(-keys // (splits * WARPS))
    kernel = Kernel("conv_decode.cu", "conv_decode_split_kernel", macros)
    launch(kernel, (splits, heads, batch), WARPS * LANES, *given, *sizes, parts, run=run)
    kernel = Kernel("conv_decode.cu", "conv_decode_merge_kernel", macros)
    launch(kernel, (heads, batch), MERGING_WARPS * LANES, parts, o, log_sum, splits, run=run)
    return o
