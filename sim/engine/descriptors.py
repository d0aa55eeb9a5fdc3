"""Checks of the matrix descriptors of wgmma: whether they lead to shared memory, and fit the way in which the
matrix was written."""

from sim.events import SITES, Access, Finding
from sim.isa.matrix_descriptor import CHUNK

NONE = "no swizzle"


def check_descriptor(context, descriptor, of, addresses, found, site):
    """Report the first fault of the descriptor of a matrix.

    of: "A" or "B".
    addresses: the addresses of its chunks within shared memory.
    found: the same addresses in the simulated address space, or -1 outside all arrays.
    """
    finding = (
        outside(context, of, addresses, found, site)
        if (found < 0).any()
        else out_of_phase(context, descriptor, of, found, site)
        if descriptor.phase
        else written_otherwise(context, descriptor, of, found, site)
        or aligned_by_luck(context, descriptor, of, found, site)
    )
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
        f"the descriptor of {of} leads to byte {first:,} of shared memory, which is in no array{after}",
        (context.witness("read", site),),
        *(element or ()),
        reason="Its start address, offsets and swizzle determine the bytes that wgmma reads.",
        fix="compare the start address and the two offsets with the layout of the tile",
    )


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
    """Return the finding for a matrix aligned to its swizzle pattern only because of the sizes of other
    arrays."""
    allocation = context.space.find(int(found.min()))
    other = None if allocation.last else context.space.shifting(allocation, descriptor.pattern)
    if other is None:
        return None
    element = context.space.element(int(found.min()))
    return Finding(
        "misaligned-address",
        "warning",
        f"{element.array} has to lie at a multiple of {descriptor.pattern} bytes for the"
        f" {descriptor.swizzle}-byte swizzle of {of}, and is declared for {allocation.alignment}",
        (context.witness("read", site),),
        *element,
        reason=f"Here it does, by luck; after {other.name}, which has {other.root.size:,} bytes, it may not.",
        fix=f"declare {element.array} with alignment={descriptor.pattern}",
    )


def written_otherwise(context, descriptor, of, found, site):
    """Return the finding for a matrix that a bulk copy has written with another swizzle, or None.

    Block.tiles is {address: (bytes, swizzle in bytes, site)} of the boxes written by bulk tensor copies.
    """
    low, high = int(found.min()), int(found.max()) + CHUNK
    for base, (nbytes, swizzle, wrote) in context.thread.block.tiles.items():
        if base < high and low < base + nbytes and swizzle != descriptor.swizzle:
            element = context.space.element(max(low, base))
            copy = Access("written", context.thread.block.index, context.thread.index, SITES[wrote])
            return Finding(
                "wgmma",
                "error",
                f"{element.array} is written with {swizzle_text(swizzle)}, and read with"
                f" {swizzle_text(descriptor.swizzle)} as matrix {of}",
                (copy, context.witness("read", site)),
                *element,
                reason="The tensor map and the matrix descriptor have to agree on the swizzle.",
                fix=f"give the descriptor {swizzle_text(swizzle)}, or the tensor map"
                f" {swizzle_text(descriptor.swizzle)}",
            )
    return None


def swizzle_text(swizzle):
    """Return the name of a swizzle for findings."""
    return f"a {swizzle}-byte swizzle" if swizzle else NONE
