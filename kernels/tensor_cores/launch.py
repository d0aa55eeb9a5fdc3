"""The host side of kernels on tensor cores: pad 16-bit tensors, view them as integers, and launch."""

from typing import NamedTuple

import torch
from numpy import float32
from torch.nn.functional import pad

from kernels.common.launch import launch, output
from kernels.common.splits import multiprocessors
from kernels.tensor_cores.tiles import CHUNK

OLDEST = (8, 0)
TENSOR_WIDTHS = (64, 128)
RESIDENT = 2  # blocks per multiprocessor


class Work(NamedTuple):
    """The queries that a block owns, and the threads that it has."""

    rows: int
    threads: int


def kind_of(tensor):
    """Return "bfloat16" or "float16"."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_width(d):
    """Return the width of a kernel's rows for head size d."""
    return next(width for width in TENSOR_WIDTHS if width >= d)


def check_tensor_cores(q):
    """Raise ValueError if q is on a GPU without tensor cores for its type."""
    if q.is_cuda and torch.cuda.get_device_capability(q.device) < OLDEST:
        major, minor = torch.cuda.get_device_capability(q.device)
        raise ValueError(
            f"argument q has dtype {q.dtype} and is on a GPU of compute capability {major}.{minor}; wanted"
            " 8.0 or newer, or float32: convert with q.float(), and so the others"
        )


def launch_on_tensor_cores(kernel, work, q, k, v, taps, scale, causal, run):
    """Launch a kernel over all rows of q; return (O, L).

    kernel: its arguments are (q, k, v, *taps, scale, causal, serpentine, o, log_sum). It reads int16, writes
        int32 with two 16-bit values each, and its rows have one of TENSOR_WIDTHS, with zeros after d. Its
        scale is positive.
    work: its rows per block and threads; `schedule` gives the grid.
    """
    check_tensor_cores(q)
    (batch, heads, n, d), width = q.shape, tensor_width(q.shape[3])
    q, scale = with_positive_scale(q, scale)
    o, log_sum = output((batch, heads, n, width), like=q, dtype=q.dtype), output((batch, heads, n), like=q)
    grid, serpentine = schedule(batch * heads, n, work.rows, causal, q.device)
    launch(
        kernel,
        grid,
        work.threads,
        *(operand(x, width) for x in (q, k, v)),
        *taps,
        scale,
        bool(causal),
        serpentine,
        o.view(torch.int32),
        log_sum,
        run=run,
    )
    return o[..., :d].contiguous(), log_sum


def schedule(sequences, n, rows, causal, device):
    """Return (grid, serpentine) of a launch whose blocks own `rows` of n queries; sequences: B · H.

        grid    (B · H, tiles of rows), the tiles with most keys first

    If all blocks are resident at once, the tiles are in serpentine order: the second half of the blocks takes
    its tiles in ascending order. Blocks share a multiprocessor in the order of their indices, so one with
    many keys then shares it with one that has few.
    """
    tiles = -(-n // rows)
    all_at_once = device.type == "cuda" and sequences * tiles <= RESIDENT * multiprocessors(device)
    return (sequences, tiles) if n else (0, 0), bool(causal) and all_at_once


def operand(x, width):
    """Return 16-bit values as int16, in rows of `width` elements padded with zeros and aligned
    to 16 bytes."""
    if x.shape[-1] < width:
        x = pad(x, (0, width - x.shape[-1]))
    return (x if x.data_ptr() % 16 == 0 else x.clone()).contiguous().view(torch.int16)


def aligned(rows):
    """Return 16-bit rows (B, H, N, d) as int16, without a copy if each row begins at a multiple of 16 bytes.

    Otherwise return a copy; if d is no multiple of 8, its rows end with zeros.
    """
    d = rows.shape[3]
    if d % CHUNK:
        rows = pad(rows, (0, -d % CHUNK))
    if rows.stride(3) != 1 or rows.data_ptr() % 16 or any(stride % CHUNK for stride in rows.stride()[:3]):
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.int16)


def with_positive_scale(q, scale):
    """Return (q, scale) of the same product with scale > 0: the kernels assume that a larger score has a
    larger weight."""
    return (q, scale) if scale > 0 else (-q, -scale) if scale < 0 else (q * 0, float32(1))
