"""Host side of the tensor-core kernels: pad 16-bit tensors, reinterpret them as integers, and launch."""

import functools
from typing import NamedTuple

import torch
from numpy import float32
from torch.nn.functional import pad

from kernels.common.launch import Bits, launch, output, relaunch, remembered
from kernels.common.splits import multiprocessors
from kernels.tensor_cores.tiles import CHUNK

# compute capabilities
OLDEST, HOPPER = (8, 0), (9, 0)
TENSOR_WIDTHS = (64, 128)
RESIDENT = 2  # resident blocks per multiprocessor


class Work(NamedTuple):
    """Work per block: the number of query rows that it owns, and its number of threads."""

    rows: int
    threads: int

    def schedule(self, sequences, n, causal, device):
        """Return (grid, serpentine); see `schedule`."""
        return schedule(sequences, n, self.rows, causal, device)


class ResidentWork(NamedTuple):
    """Work of blocks that stay on their multiprocessor, each of which owns several tiles of rows in turn.

    rows, threads: the rows of a tile, and the number of threads of a block.
    resident: blocks per multiprocessor.
    """

    rows: int
    threads: int
    resident: int

    def schedule(self, sequences, n, causal, device):
        """Return (grid,): one block per tile, up to the number of blocks that can be resident at once."""
        tiles = sequences * -(-n // self.rows)
        most = self.resident * multiprocessors(device) if device.type == "cuda" else tiles
        return ((min(tiles, most),),)


def kind_of(tensor):
    """Return "bfloat16" or "float16"."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_width(d):
    """Return the row width of the kernel for head size d."""
    return next(width for width in TENSOR_WIDTHS if width >= d)


def check_tensor_cores(q):
    """Raise ValueError if q is on a GPU whose tensor cores do not support its dtype."""
    if q.is_cuda and capability(q.device) < OLDEST:
        major, minor = capability(q.device)
        raise ValueError(
            f"argument q has dtype {q.dtype} and is on a GPU of compute capability {major}.{minor}; wanted"
            " 8.0 or newer, or float32: convert with q.float(), and so the others"
        )


@functools.cache
def capability(device):
    """Return the compute capability of a GPU, for example (9, 0)."""
    return torch.cuda.get_device_capability(device)


def launch_on_tensor_cores(kernel, work, q, k, v, taps, scale, causal, run, remember=None):
    """Launch a kernel over all rows of q; return (O, L).

    kernel: called with (q, k, v, *taps, scale, causal, serpentine, o, log_sum). It reads int16, and writes
        int32 elements with two 16-bit values each. Its rows have one of TENSOR_WIDTHS, zero-padded after
        column d. `scale` is positive.
    work: rows and threads per block, from which `schedule` computes the grid.
    """
    width = tensor_width(q.shape[3])
    arguments = operand(k, width), operand(v, width), *taps
    return launch_padded(kernel, work, q, q.shape[2], width, arguments, scale, causal, run, remember)


def relaunched(key, q, *tensors):
    """Return (O, L) of the launch that is remembered under this key, or None if there is none.

    tensors: the kernel's tensors after q and before o.
    """
    if key not in remembered:
        return None
    batch, heads, n, _ = q.shape
    strides = heads * n, n, 1  # given the strides, PyTorch takes half the time to allocate
    log_sum = torch.empty_strided((batch, heads, n), strides, dtype=torch.float32, device=q.device)
    o = torch.empty_like(q)
    return (o, log_sum) if relaunch(key, (q, *tensors, o, log_sum)) else None


def launch_padded(kernel, work, q, n, width, arguments, scale, causal, run, remember=None, wide=False):
    """Launch a kernel for the last n queries, with rows padded to `width` elements; return (O, L).

    kernel: called with (q, *arguments, scale, causal, serpentine, o, log_sum); see `launch_on_tensor_cores`.
    work: Work, or ResidentWork, whose kernels take no `serpentine`.
    remember: (key, tensors before o) for `relaunch`.
    wide: O is float32, and the kernel writes it as such.
    """
    check_tensor_cores(q)
    batch, heads, _, d = q.shape
    q, scale = with_positive_scale(q, scale)
    o = output((batch, heads, n, width), like=q, dtype=torch.float32 if wide else q.dtype)
    log_sum = output((batch, heads, n), like=q)
    grid, *order = work.schedule(batch * heads, n, causal, q.device)
    given = operand(q, width), *arguments, scale, bool(causal), *order
    remember = remember and (remember[0], (*remember[1], o, log_sum))
    stored = o if wide else Bits(o, torch.int32)
    launch(kernel, grid, work.threads, *given, stored, log_sum, run=run, remember=remember)
    return o if d == width else o[..., :d].contiguous(), log_sum


def schedule(sequences, n, rows, causal, device):
    """Return (grid, serpentine) for a launch in which each block owns `rows` of n queries.

    sequences: B · H.

        grid    (B · H, tiles of rows), the tiles with the most keys first

    If all blocks are resident at once, tiles are assigned in serpentine order: the second half of the blocks
        takes its tiles in ascending order. Blocks are placed on multiprocessors in index order, so a block
        with many keys then shares its multiprocessor with a block that has few.
    """
    tiles = -(-n // rows)
    all_at_once = device.type == "cuda" and sequences * tiles <= RESIDENT * multiprocessors(device)
    return (sequences, tiles) if n else (0, 0), bool(causal) and all_at_once


def operand(x, width):
    """Return a 16-bit tensor as int16 Bits for a kernel: rows zero-padded to `width` elements, aligned to 16
    bytes."""
    if x.shape[-1] < width:
        x = pad(x, (0, width - x.shape[-1]))
    return Bits((x if x.data_ptr() % 16 == 0 else x.clone()).contiguous(), torch.int16)


def taps_operand(w, like):
    """Return (taps, as_bits). Taps with the dtype of `like` are reinterpreted as int16, with `as_bits` true;
    other taps are converted to float32."""
    bits = w.dtype == like.dtype
    return Bits(w, torch.int16) if bits else w.float(), bits


def aligned(rows):
    """Return 16-bit rows (B, H, N, d) as int16 Bits, without a copy if every row is aligned to 16 bytes.

    Otherwise return an aligned copy, whose rows are zero-padded to a multiple of 8 elements.
    """
    d = rows.shape[3]
    if d % CHUNK:
        rows = pad(rows, (0, -d % CHUNK))
    if rows.stride(3) != 1 or rows.data_ptr() % 16 or any(stride % CHUNK for stride in rows.stride()[:3]):
        rows = rows.clone(memory_format=torch.contiguous_format)
    return Bits(rows, torch.int16)


def with_positive_scale(q, scale):
    """Return an equivalent (q, scale) with scale > 0.

    The kernels require a positive scale, because they assume that a larger score has a larger weight.
    """
    return (q, scale) if scale > 0 else (-q, -scale) if scale < 0 else (q * 0, float32(1))
