"""From tensors of 16-bit numbers to a launch on tensor cores: padded, with a positive scale, as bits."""

from typing import NamedTuple

import torch
from numpy import float32
from torch.nn.functional import pad

from kernels.launch import launch, output

OLDEST = (8, 0)
TENSOR_WIDTHS = (64, 128)
RESIDENT = 2  # blocks that share a multiprocessor


class Work(NamedTuple):
    """How many queries a block of these kernels owns, and how many threads it has."""

    rows: int
    threads: int


def kind_of(tensor):
    """ "bfloat16" or "float16"."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_width(d):
    """The width of a kernel's rows for head size d."""
    return next(width for width in TENSOR_WIDTHS if width >= d)


def check_tensor_cores(q):
    """An error for a GPU that has no tensor cores for these numbers."""
    if q.is_cuda and torch.cuda.get_device_capability(q.device) < OLDEST:
        major, minor = torch.cuda.get_device_capability(q.device)
        raise ValueError(
            f"argument q has dtype {q.dtype} and is on a GPU of compute capability {major}.{minor}; wanted"
            " 8.0 or newer, or float32: convert with q.float(), and so the others"
        )


def launch_on_tensor_cores(kernel, work, q, k, v, taps, scale, causal, run):
    """(O, L) of a kernel (q, k, v, *taps, scale, causal, snake, o, log_sum) over all rows of q. Its rows are
    of one of TENSOR_WIDTHS, with zeros beyond d; it takes numbers as int16 and writes them as int32, two
    each; its scale is positive.

    grid    (B · H, tiles of rows): the tiles with most keys first. Where all blocks run at once (`snake`),
            the second half goes the other way round, as blocks share a multiprocessor in the order of their
            numbers: one with much to do and one with little
    """
    check_tensor_cores(q)
    (batch, heads, n, d), width = q.shape, tensor_width(q.shape[3])
    q, scale = with_positive_scale(q, scale)
    if d < width:
        q, k, v = (pad(x, (0, width - d)) for x in (q, k, v))
    bits = [x.view(torch.int16) for x in (q, k, v)]
    o, log_sum = output((batch, heads, n, width), like=q, dtype=q.dtype), output((batch, heads, n), like=q)
    tiles = -(-n // work.rows)
    grid = (batch * heads, tiles) if n else (0, 0)
    snake = bool(causal) and q.is_cuda and batch * heads * tiles <= RESIDENT * multiprocessors(q.device)
    launch(
        kernel,
        grid,
        work.threads,
        *bits,
        *taps,
        scale,
        bool(causal),
        snake,
        o.view(torch.int32),
        log_sum,
        run=run,
    )
    return o[..., :d].contiguous(), log_sum


def with_positive_scale(q, scale):
    """(q, scale) of the same product; the kernels take a larger score for a larger weight."""
    return (q, scale) if scale > 0 else (-q, -scale) if scale < 0 else (q * 0, float32(1))


def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count
