"""A halo in Triton: y[i] = t[i - 1] + t[i] + t[i + 1] for a tile t that a program has computed.

CUDA stores t in shared memory and reads it at three places. Triton's shared memory cannot be indexed: to read
a neighbour, a program either shifts the whole tile (`tiles.moved_left`), or stores it in global memory and
loads it again, as this kernel does. Then the order of its threads matters: without BARRIER they race.
"""

import torch

from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton


@triton.jit
def neighbour_sums_kernel(x, scratch, y, N: tl.constexpr, BARRIER: tl.constexpr):
    """Store the sums of adjacent squares of x in y (N,), through scratch (N,); one program."""
    i = tl.arange(0, N)
    t = tl.load(x + i) * tl.load(x + i)
    tl.store(scratch + i, t)
    if BARRIER:
        tl.debug_barrier()
    left = tl.load(scratch + i - 1, mask=i > 0, other=0.0)
    right = tl.load(scratch + i + 1, mask=i < N - 1, other=0.0)
    tl.store(y + i, left + t + right)


def neighbour_sums(x, barrier=True, run=None):
    """Return y (N,), float32, N a power of two: y[i] = x[i - 1]² + x[i]² + x[i + 1]², with 0 outside x.
    Without the barrier, the result is sometimes wrong."""
    scratch, y = torch.empty_like(x), torch.empty_like(x)
    constants = dict(N=len(x), BARRIER=barrier, num_warps=2)
    launch(neighbour_sums_kernel, (1, 1, 1), x, scratch, y, **constants, run=run)
    return y
