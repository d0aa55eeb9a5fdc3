"""Selections of the accesses of a Batch."""

from dataclasses import replace

from sim.events import LOAD, SHARED
from sim.sites import RANK_SHIFT

COLUMNS = "thread", "segment", "position", "site", "address", "size"  # the columns of a Batch


def without_reserved(batch, space):
    """Return a batch without the accesses to the shared memory that the system reserves for libraries.

    The library of cooperative groups lets all lanes store the same value there, and orders lanes only by
    shuffles. The kernel is not at fault in either case.
    """
    for allocation in space.allocations:
        if allocation.reserved:
            offset = batch.address - allocation.base
            outside = (offset < 0) | (offset >= allocation.root.size)
            batch = chosen(batch, outside)
    return batch


def chosen(batch, mask):
    """Return the accesses of a batch for which a mask is True."""
    values = [value for value, is_chosen in zip(batch.values, mask[batch.action != LOAD]) if is_chosen]
    return replace(batch, **{name: getattr(batch, name)[mask] for name in COLUMNS}, values=values)


def remote(batch):
    """Return a mask of the accesses to the shared memory of other blocks of the cluster."""
    return (batch.space == SHARED) & (batch.address & 15 << RANK_SHIFT != 0)
