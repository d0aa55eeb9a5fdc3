"""Host functions of the CUDA C++ kernels: arguments checked, outputs made, launches."""

from kernels.conv_forward import SIZE
from kernels.conv_tiles import check_size, threads_of
from kernels.cuda_cpp.launch import Kernel, launch
from kernels.flash_forward import ROWS
from kernels.launch import attention_arguments, conv_arguments, output, width_for


def flash_forward(q, k, v, causal=True, scale=None, run=None):
    """(O, L): as `kernels.flash_forward.flash_forward`, float32."""
    q, k, v, scale = attention_arguments(q, k, v, scale)
    batch, heads, n, d = q.shape
    o, log_sum = output(q.shape, like=q), output(q.shape[:3], like=q)
    kernel = Kernel("flash_forward.cu", "flash_forward_kernel", (("WIDTH", width_for(d)),))
    sizes = n, k.shape[2], d
    grid = (-(-n // ROWS), heads, batch)
    launch(kernel, grid, ROWS, q, k, v, scale, int(causal), o, log_sum, *sizes, run=run)
    return o, log_sum


def conv_forward(q, k, v, w, causal=True, scale=None, run=None, size=SIZE):
    """(O, L): as `kernels.conv_forward.conv_forward` of whole sequences, float32."""
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
    """What the compiler is given for conv_tiles.cuh."""
    return ("WIDTH", width_for(d)), ("SIZE", size)
