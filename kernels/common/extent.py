"""Which scores a launch of convolutional attention owns, where queries and keys are pieces of a longer
sequence."""

from typing import NamedTuple


class Extent(NamedTuple):
    """The owned scores within the rows that a launch is given: it owns query rows first_query … and as many
    key rows from first_key on as v has.

    The rows of q before `first_query` and those of k around the owned keys are the halo: the convolution
    reads them, and the backward pass gives them a gradient. With a causal mask the owned query number i sees
    the owned keys j <= i + diagonal. A halo ends where the sequence ends.
    """

    first_query: int
    first_key: int
    diagonal: int


WHOLE = Extent(0, 0, 0)  # one sequence, all of it, and nothing around it


def check_extent(extent, q, k, v):
    """`extent` as an Extent of ints that fits q (B, H, N_q, d), k (B, H, N_k, d) and v (B, H, keys, d), or an
    error that says what does not."""
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
