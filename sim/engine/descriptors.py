"""Checks of the matrix descriptors of wgmma: the matrix must be in shared memory, and must have been written
in the layout that the descriptor describes."""

import functools
from typing import NamedTuple

import numpy as np

from sim.events import SITES, Access, Finding
from sim.isa.matrix_descriptor import ADDRESS_MASK, CHUNK, ROWS, row_mask, swizzled
from sim.nouns import plural

NONE = "no swizzle"


def check_descriptor(context, descriptor, of, addresses, found, site):
    """Report the first fault of the descriptor of a matrix.

    of: "A" or "B".
    addresses: the addresses of its chunks within shared memory.
    found: the same addresses in the simulated address space, or -1 for a chunk outside all arrays.
    """
    finding = None
    if (found < 0).any():
        finding = outside(context, of, addresses, found, site)
    elif not descriptor.phase:
        finding = aligned_by_luck(context, descriptor, of, found, site)
    elif not is_copied_in_phase(context, descriptor, found):
        finding = out_of_phase(context, descriptor, of, found, site)
    if finding is not None:
        context.findings.append(finding)


def outside(context, of, addresses, found, site):
    """Return the finding for a matrix that is partly outside all shared arrays."""
    first = int(addresses[found < 0].min())
    inside = found[found >= 0]
    element = context.space.element(int(inside.max())) if len(inside) else None
    after = f", after {element.array}" if element else ""
    return Finding(
        "out-of-bounds",
        "error",
        f"the descriptor of {of} points to byte {first:,} of shared memory, which is in no array{after}",
        (context.witness("read", site),),
        *(element or ()),
        reason="Its start address, offsets and swizzle determine the bytes that wgmma reads.",
        fix="compare the start address and the two offsets with the layout of the tile",
    )


def is_copied_in_phase(context, descriptor, found):
    """Return whether tensor copies have written a matrix with its swizzle, into boxes that start in the same
    row of the swizzle pattern as the matrix.

    Tensor copies, and wgmma without a base offset, count the rows of the pattern from address 0, so their
    layouts agree. CUTLASS places its tiles in this way, after its mbarriers.
    """
    written = np.zeros(found.shape, bool)
    for tile in context.thread.block.tiles.values():
        row = tile.base >> 7 & row_mask(tile.swizzle)
        if tile.swizzle == descriptor.swizzle and row == descriptor.phase and not descriptor.base_offset:
            written |= (tile.base <= found) & (found < tile.base + tile.room)
    return written.all()


def out_of_phase(context, descriptor, of, found, site):
    """Return the finding for a matrix that does not start at the start of its swizzle pattern."""
    element = context.space.element(int(found.reshape(-1)[0]))
    return Finding(
        "wgmma",
        "error",
        f"the descriptor of {of} starts at byte {descriptor.start:,} of shared memory, in row"
        f" {descriptor.phase} of a {descriptor.swizzle}-byte swizzle pattern",
        (context.witness("read", site),),
        *element,
        reason=f"The pattern repeats every {descriptor.pattern} bytes, counted from address 0, unless the"
        " descriptor has a base offset.",
        fix=f"place {element.array} at a multiple of {descriptor.pattern} bytes"
        f" (alignment={descriptor.pattern}), and start at a multiple of 8 rows",
    )


def aligned_by_luck(context, descriptor, of, found, site):
    """Return the finding for a matrix that is aligned to its swizzle pattern only because of the sizes of
    other arrays."""
    allocation = context.space.find(int(found.min()))
    other = None if allocation.last else context.space.shifting(allocation, descriptor.pattern)
    if other is None:
        return None
    element = context.space.element(int(found.min()))
    return Finding(
        "misaligned-address",
        "warning",
        f"{element.array} has to lie at a multiple of {descriptor.pattern} bytes for the"
        f" {descriptor.swizzle}-byte swizzle of {of}, but is declared with alignment {allocation.alignment}",
        (context.witness("read", site),),
        *element,
        reason="In this launch it does, but only by luck: the compiler may place it after"
        f" {other.name}, which has {plural(other.root.size, 'byte')}.",
        fix=f"declare {element.array} with alignment={descriptor.pattern}",
    )


def swizzle_text(swizzle):
    """Return the name of a swizzle for findings."""
    return f"a {swizzle}-byte swizzle" if swizzle else NONE


# --- matrices that tensor copies have written ---------------------------------------------------------------


class Misfit(NamedTuple):
    """Two chunks of a matrix whose positions in a box differ from the positions that the descriptor assumes.

    what: "swizzle", "pitch" (the distance of rows), "group" (the distance of groups of eight rows) or "next"
        (the distance of the parts that are as wide as the swizzle).
    chunks: the indices of the two chunks in the flat array of chunks. They are equal for "swizzle".
    """

    what: str
    chunks: tuple[int, int]


@functools.lru_cache(1 << 10)
def misfit(descriptor, mn_major, count, tile):
    """Return the first Misfit between a matrix in shared memory and a box that it overlaps, or None.

    descriptor, mn_major, count: as for MatrixDescriptor.chunks.
    tile: (base, room, pitch, swizzle, flat) of the box, as in Tile, with an address as in the descriptor.
    """
    base, room, pitch, swizzle, flat = tile
    chunks = descriptor.chunks(mn_major, count)
    number = np.arange(chunks.size).reshape(chunks.shape)
    if not mn_major:  # make the lines of the swizzle pattern the last axis
        chunks, number = chunks.T, number.T
    place = swizzled(chunks, swizzle) - base
    inside, row, column = (place >= 0) & (place < room), place // pitch, place % pitch
    if descriptor.swizzle != swizzle:
        return Misfit("swizzle", (int(number[inside][0]),) * 2) if inside.any() else None

    def first(what, one, other, wrong):
        """Return the Misfit of the first two chunks in the box that are wrong, or None."""
        found = np.argwhere(inside[one] & inside[other] & wrong)
        if not len(found):
            return None
        at = tuple(found[0])
        return Misfit(what, (int(number[one][at]), int(number[other][at])))

    # the chunks before and after a step to the next line, the next group of lines, and the next part
    lines, groups = (np.s_[:, :-1], np.s_[:, 1:]), (np.s_[:, :-ROWS], np.s_[:, ROWS:])
    parts = np.s_[:-1], np.s_[1:]
    moved = (row[lines[1]] - row[lines[0]] != 1) | (column[lines[1]] != column[lines[0]])
    in_group = np.arange(1, chunks.shape[1]) % ROWS != 0
    jump, wide = row[groups[1]] - row[groups[0]], max(swizzle, CHUNK) // CHUNK
    # A matrix can consist of every second group of a larger box.
    strange = (jump <= 0) | (jump % ROWS != 0) | (not inside.all())
    return (
        first("pitch", *lines, moved & in_group)
        or first("group", *groups, (jump != ROWS) & strange)
        or (first("next", *parts, np.arange(1, len(chunks))[:, None] % wide == 0) if flat else None)
    )


def doubts(context, descriptor, of, mn_major, count, found, site):
    """Return pairs (Finding, {address: operation}) for the boxes that tensor copies have written in another
    layout than the descriptor's. A Finding is correct only if the operation was the last one that wrote
    the address.

    of: "A" or "B".
    found: the simulated addresses of the chunks of the matrix.
    """
    low, high, result = int(found.min()), int(found.max()) + CHUNK, []
    for tile in context.thread.block.tiles.values():
        if tile.base < high and low < tile.base + tile.room:
            layout = tile.base & ADDRESS_MASK, tile.room, tile.pitch, tile.swizzle, tile.flat
            wrong = misfit(descriptor, mn_major, count, layout)
            if wrong:
                addresses = [int(found.reshape(-1)[chunk]) for chunk in wrong.chunks]
                finding = layout_finding(context, descriptor, of, mn_major, wrong, tile, addresses[0], site)
                result.append((finding, dict.fromkeys(addresses, tile.operation)))
    return result


def layout_finding(context, descriptor, of, mn_major, wrong, tile, address, site):
    """Return the Finding for a Misfit between a matrix and the box of a tensor copy."""
    element, issued = context.space.element(address), tile.operation.issued
    copy = Access("written", issued.block, context.thread_index(issued.thread), SITES[tile.operation.site])
    # Without a swizzle, the two offsets of an MN-major matrix have exchanged roles.
    names = ("leading", "stride") if mn_major and not descriptor.swizzle else ("stride", "leading")
    group, following = (f"{name} offset" for name in names)
    eight, rows = ROWS * tile.pitch, f"{element.array} is written in rows {tile.pitch} bytes apart"
    texts = {
        "swizzle": (
            f"{element.array} is written with {swizzle_text(tile.swizzle)}, and read with"
            f" {swizzle_text(descriptor.swizzle)} as matrix {of}",
            f"give the descriptor {swizzle_text(tile.swizzle)}, or the tensor map"
            f" {swizzle_text(descriptor.swizzle)}",
        ),
        "pitch": (
            f"{rows}, and read as matrix {of} in rows {max(descriptor.swizzle, CHUNK)} bytes apart",
            "let the tensor map and the descriptor have the same swizzle, as wide as a row of the box",
        ),
        "group": (
            f"{rows}, so that eight rows take {eight:,}, and the descriptor of {of} has a {group} of"
            f" {getattr(descriptor, names[0]):,}",
            f"give the descriptor a {group} of {eight:,} bytes",
        ),
        "next": (
            f"the {following} of the descriptor of {of}, {getattr(descriptor, names[1]):,} bytes, leads to"
            f" other rows of the same box in {element.array}",
            f"let the {following} lead to the box with the next columns",
        ),
    }  # fmt: skip
    verdict, fix = texts[wrong.what]
    return Finding(
        "wgmma",
        "error",
        verdict,
        (copy, context.witness("read", site)),
        *element,
        reason="The tensor map and the matrix descriptor have to agree on the layout of the tile.",
        fix=fix,
    )
