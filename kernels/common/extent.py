"""Extents: the queries and keys of a longer sequence for which a launch computes convolutional attention."""

from typing import NamedTuple

from numpy import int32


class Extent(NamedTuple):
    """The queries and keys that a launch owns; the remaining rows of its tensors are halo.

    The launch owns all rows of q starting at first_query. Starting at first_key, it owns one row of k for
    each row of v. It reads the halo rows only for the convolution, and the backward pass computes their
    gradients too. Under a causal mask, owned query i sees the owned keys j <= i + diagonal. A halo is cut off
    at the ends of the sequence.
    """

    first_query: int
    first_key: int
    diagonal: int


WHOLE = Extent(0, 0, 0)  # a whole sequence without a halo


def check_extent(extent, q, k, v):
    """Check `extent`, and return it as an Extent of ints.

    Raise TypeError or ValueError unless it fits q (B, H, N_q, d), k (B, H, N_k, d) and v (B, H, keys, d).
    """
    try:
        extent = Extent(*(number.__index__() for number in extent))
    except (TypeError, AttributeError):
        raise TypeError(f"argument extent is {extent!r}; wanted an Extent of three integers") from None
    if not 0 <= extent.first_query < q.shape[2]:
        raise ValueError(
            f"argument extent has first_query = {extent.first_query}; wanted a row of q, of which there are"
            f" {q.shape[2]}"
        )
    if not 0 <= extent.first_key <= k.shape[2] - v.shape[2]:
        raise ValueError(
            f"argument extent has first_key = {extent.first_key}; wanted 0 to {k.shape[2] - v.shape[2]}, so"
            f" that the {v.shape[2]} rows of v have keys"
        )
    return extent


def numbered(extent, keys):
    """Return (first query, first key, end of the owned keys, diagonal), int32, for a kernel.

    Keys are numbered by their row of k. Owned query i has the number i + diagonal, the last key that it sees
    under a causal mask, so the mask compares numbers. A kernel reads these values from constant memory; with
    values that it computes itself, more registers are spilled.

    keys: the number of owned keys.
    """
    first_query, first_key, diagonal = extent
    return tuple(map(int32, (first_query, first_key, first_key + keys, first_key + diagonal)))
