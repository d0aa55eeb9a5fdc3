"""The head map of the multi-token layer in Triton: x[g] = Σ_h M[g, h] x[h] within groups of heads, in
place.

In `kernels/multi_token/kernels.py`, a thread holds the elements of all heads of a group at some positions.
Here, a program holds a tile, heads × positions, and the map is a product of two tiles.
"""

import torch

from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton

PLACES = 64  # positions per tile
FEWEST_HEADS = 16  # minimum heads per tile: tl.dot requires 16; heads beyond the group are 0


@triton.jit(do_not_specialize=["places"])
def head_map_kernel(x, head_map, places, GROUP: tl.constexpr, HEADS: tl.constexpr, PLACES: tl.constexpr):
    """Mix the heads of x (B, H, places) in place: x[g] = Σ_h head_map[g, h] x[h] within each group.
    head_map: (H / GROUP, GROUP, GROUP). Grid: (⌈places / PLACES⌉, H / GROUP, B)."""
    group = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    g, h = tl.arange(0, HEADS)[:, None], tl.arange(0, HEADS)[None, :]
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)[None, :]
    map_place = tl.program_id(1) * GROUP * GROUP + g * GROUP + h
    shares = tl.load(head_map + map_place, mask=(g < GROUP) & (h < GROUP), other=0.0)
    inside = (g < GROUP) & (place < places)
    numbers = x + (group * GROUP + g) * places + place
    held = tl.load(numbers, mask=inside, other=0.0)
    tl.store(numbers, tl.dot(shares, held, input_precision="ieee"), mask=inside)


def mix_heads(x, head_map, run=None, num_warps=4):
    """Mix the heads of x (B, H, R, C), contiguous float32, in place by head_map (H / group, group, group).
    Return x. Raise TypeError or ValueError for invalid arguments."""
    if x.dtype != torch.float32 or head_map.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype} and head_map {head_map.dtype}; wanted torch.float32")
    (batch, heads, *_), (groups, group, _) = x.shape, head_map.shape
    if head_map.shape != (groups, group, group) or groups * group != heads or not x.is_contiguous():
        raise ValueError(
            f"head_map has shape {tuple(head_map.shape)} and x {tuple(x.shape)}; wanted (H / group, group,"
            f" group) for H = {heads} heads, and x contiguous"
        )
    places = x[0, 0].numel()
    whole = max(FEWEST_HEADS, 1 << (group - 1).bit_length())
    constants = dict(GROUP=group, HEADS=whole, PLACES=PLACES, num_warps=num_warps)
    grid = (-(-places // PLACES), groups, batch)
    launch(head_map_kernel, grid, x, head_map.contiguous(), places, **constants, run=run)
    return x
