"""Record the PTX of small launches in kernels/data/cuda_cpp.zip: python -m kernels.cuda_cpp.record

NVRTC compiles the kernels without a GPU. The simulator runs the recorded PTX where NVRTC is not installed.
"""

import torch

from kernels.common.data import record_ptx
from kernels.cuda_cpp.launch import ptx_of
from kernels.cuda_cpp.operators import conv_attention_decode, conv_backward, conv_forward, flash_forward


def calls(run):
    """Call every host function with small arguments and the runner `run`; ignore the results."""
    q, k, v, d_o = torch.randn(4, 1, 1, 20, 5)
    w = torch.randn(1, 3, 4)
    flash_forward(q, k, v, run=run)
    o, log_sum = conv_forward(q, k, v, w, size=32, run=run)
    conv_backward(q, k, v, w, o, log_sum, d_o, size=32, run=run)
    conv_attention_decode(q[:, :, -3:], k, v, w, splits=2, run=run)


def recorder(texts):
    """Return a runner that launches nothing, and stores the PTX of each kernel in `texts`."""

    def record(kernel, *launch):
        texts[kernel.record] = ptx_of(kernel)
        print(kernel.record)

    return record


if __name__ == "__main__":
    made = {}
    calls(recorder(made))
    record_ptx("cuda_cpp", made)
