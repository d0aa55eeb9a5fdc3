"""python -m kernels.cuda_cpp.record: compile the kernels by NVRTC, with no GPU, for small launches, and keep
their PTX, which then runs in the simulator where NVRTC is missing."""

import torch

from kernels.common.data import record_ptx
from kernels.cuda_cpp.launch import ptx_of
from kernels.cuda_cpp.operators import conv_attention_decode, conv_backward, conv_forward, flash_forward


def calls(run):
    """Every host function, small, by a runner; what they return is nothing to rely on."""
    q, k, v, d_o = torch.randn(4, 1, 1, 20, 5)
    w = torch.randn(1, 3, 4)
    flash_forward(q, k, v, run=run)
    o, log_sum = conv_forward(q, k, v, w, size=32, run=run)
    conv_backward(q, k, v, w, o, log_sum, d_o, size=32, run=run)
    conv_attention_decode(q[:, :, -3:], k, v, w, splits=2, run=run)


def recorder(texts):
    """A runner that runs nothing, and puts the PTX into `texts`."""

    def record(kernel, *launch):
        texts[kernel.record] = ptx_of(kernel)
        print(kernel.record)

    return record


if __name__ == "__main__":
    made = {}
    calls(recorder(made))
    record_ptx("cuda_cpp", made)
