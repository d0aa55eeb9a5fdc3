"""Host side of convolutional attention on tensor cores for parts of a sequence with halos.

The kernels are variants of the kernels for whole sequences, in `tensor_forward.py` and `tensor_backward.py`.
Parts of O and of the gradients are float32, so that merging them adds no rounding.
"""

import torch
from torch.nn.functional import pad

from kernels.common.extent import numbered
from kernels.common.launch import Bits, launch, output
from kernels.conv import tensor_backward, tensor_forward
from kernels.conv.hopper_forward import block_for, conv_hopper_kernel, work_of
from kernels.conv.tensor_backward import gradient_kernel, registers_of
from kernels.conv.tensor_backward_tiles import frame_of, owned_rows
from kernels.conv.tensor_forward import conv_tensor_kernel, shape_of
from kernels.tensor_cores.launch import (
    HOPPER,
    Work,
    capability,
    check_tensor_cores,
    kind_of,
    launch_padded,
    operand,
    taps_operand,
    tensor_width,
)
from kernels.tensor_cores.row_products import row_products


def conv_parts_forward(q, k, v, w, causal, scale, extent, run=None, block=None):
    """Return (O, L) of the queries that `extent` owns, both float32, over the keys that it owns.

    q, k, v, w: bfloat16 or float16 tensors and their taps, contiguous and already checked.
    block: the Block of the kernel with `wgmma`, instead of the one for these taps. Without a block, the
        simulator and GPUs other than Hopper run the kernel for all GPUs with tensor cores.
    """
    width, (c_q, c_k), n = tensor_width(q.shape[3]), w.shape[1:], q.shape[2] - extent.first_query
    taps, bits = taps_operand(w, q)
    if run is None and q.is_cuda and capability(q.device) == HOPPER:
        block = block or block_for(width, c_k)
    if block:
        extent = numbered(extent, v.shape[2])
        kernel = conv_hopper_kernel(width, kind_of(q), block, c_q, c_k, bits, parts=True)
        work = work_of(c_q)
    else:
        warps, (strip, keys) = tensor_forward.WARPS, shape_of(width, c_q, c_k)
        kernel = conv_tensor_kernel(width, kind_of(q), warps, strip, c_q, c_k, keys, bits=bits, parts=True)
        work = Work(warps * strip * 8, warps * 32)
    given = operand(k, width), operand(v, width), taps, extent
    return launch_padded(kernel, work, q, n, width, given, scale, causal, run, wide=True)


def conv_parts_backward(q, k, v, w, o, log_sum, d_o, causal, scale, wanted, extent, run=None):
    """Return (dQ, dK, dV, dW), float32, in the shapes of q, k, v and w.

    q, k, v, d_o: bfloat16 or float16, contiguous and already checked.
    o: the type of q, or float32.
    """
    check_tensor_cores(q)
    (batch, heads, _, d), width, taps = q.shape, tensor_width(q.shape[3]), w.shape[1:]
    warps, registers = tensor_backward.WARPS, registers_of(width)
    delta = (d_o * o).sum(-1) if o.dtype == torch.float32 else row_products(d_o, o, run)
    q, k, v, d_o = (x if d == width else pad(x, (0, width - d)) for x in (q, k, v, d_o))
    taps_given, bits = taps_operand(w, q)

    def tiles_of(x, of_keys):
        return -(-x.shape[2] // owned_rows(frame_of(*taps, of_keys), warps))

    def run_kernel(of_keys, *rows, stored):
        kernel = gradient_kernel(width, kind_of(q), *taps, of_keys, warps, registers, bits, parts=True)
        given = *(Bits(x, torch.int16) for x in rows), taps_given, log_sum, delta
        grid = batch * heads, tiles_of(rows[0], of_keys)
        launch(kernel, grid, warps * 32, *given, scale, bool(causal), extent, *stored, run=run)

    d_q = d_k = d_v = d_w = None
    if wanted[0] or wanted[3]:
        d_q, d_w = output(q.shape, like=q), output((batch * tiles_of(q, False), *w.shape), like=q)
        run_kernel(False, q, d_o, k, v, stored=(d_q, d_w))
        d_w = d_w.sum(0)
    if wanted[1] or wanted[2]:
        d_k, d_v = output(k.shape, like=k), output(v.shape, like=v)
        run_kernel(True, k, v, q, d_o, stored=(d_k, d_v))
    cut = [x if x is None or d == width else x[..., :d].contiguous() for x in (d_q, d_k, d_v)]
    return tuple(gradient if want else None for gradient, want in zip((*cut, d_w), wanted))
