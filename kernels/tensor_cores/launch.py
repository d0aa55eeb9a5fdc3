"""From tensors of 16-bit numbers to a launch on tensor cores: padded, with a positive scale, as bits."""

from typing import NamedTuple

import torch
from numpy import float32
from torch.nn.functional import pad

from kernels.common.launch import launch, output
from kernels.common.splits import multiprocessors
from kernels.tensor_cores.tiles import CHUNK

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
    each; its scale is positive; its grid is that of `schedule`."""
    check_tensor_cores(q)
    (batch, heads, n, d), width = q.shape, tensor_width(q.shape[3])
    q, scale = with_positive_scale(q, scale)
    o, log_sum = output((batch, heads, n, width), like=q, dtype=q.dtype), output((batch, heads, n), like=q)
    grid, snake = schedule(batch * heads, n, work.rows, causal, q.device)
    launch(
        kernel,
        grid,
        work.threads,
        *(operand(x, width) for x in (q, k, v)),
        *taps,
        scale,
        bool(causal),
        snake,
        o.view(torch.int32),
        log_sum,
        run=run,
    )
    return o[..., :d].contiguous(), log_sum


def schedule(sequences, n, rows, causal, device):
    """(grid, snake) of a launch whose blocks own `rows` of n queries; sequences: B · H.

    grid    (B · H, tiles of rows): the tiles with most keys first. Where all blocks run at once (`snake`),
            the second half goes the other way round, as blocks share a multiprocessor in the order of their
            numbers: one with much to do and one with little
    """
    tiles = -(-n // rows)
    all_at_once = device.type == "cuda" and sequences * tiles <= RESIDENT * multiprocessors(device)
    return (sequences, tiles) if n else (0, 0), bool(causal) and all_at_once


def operand(x, width):
    """A tensor of 16-bit numbers as bits, in rows of `width`, with zeros beyond its own, of which each begins
    at a multiple of 16 bytes."""
    if x.shape[-1] < width:
        x = pad(x, (0, width - x.shape[-1]))
    return (x if x.data_ptr() % 16 == 0 else x.clone()).contiguous().view(torch.int16)


def aligned(rows):
    """(B, H, N, d) of 16-bit numbers as bits, where they are if each row begins at a multiple of 16 bytes;
    else a copy, with zeros beyond d if d is no multiple of 8."""
    d = rows.shape[3]
    if d % CHUNK:
        rows = pad(rows, (0, -d % CHUNK))
    if rows.stride(3) != 1 or rows.data_ptr() % 16 or any(stride % CHUNK for stride in rows.stride()[:3]):
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.int16)


def with_positive_scale(q, scale):
    """(q, scale) of the same product; the kernels take a larger score for a larger weight."""
    return (q, scale) if scale > 0 else (-q, -scale) if scale < 0 else (q * 0, float32(1))
