"""The plan of a sharded sequence: the chunks of each rank, and the halo of each chunk."""

from itertools import accumulate
from typing import NamedTuple

from kernels.common.extent import Extent

LAYOUTS = {"contiguous": 1, "zigzag": 2}  # chunks per rank


class Halo(NamedTuple):
    """The numbers of halo rows before and after a chunk."""

    above: int
    below: int


class Plan:
    """The chunks of all ranks.

    `chunks[rank]` is [(start, length), …] in the order of the rank's rows; `length` is N.
    """

    def __init__(self, lengths, chunks, taps=(1, 1)):
        ranks = len(lengths)
        # chunk lengths per rank; with an odd n, the first half is the larger one
        halves = [(n,) if chunks == 1 else (n - n // 2, n // 2) for n in lengths]
        # the order of chunks in the sequence: first halves by ascending rank, second halves by descending
        # rank
        order = [
            (rank, half) for half in range(chunks) for rank in (range(ranks), reversed(range(ranks)))[half]
        ]
        starts = dict(zip(order, accumulate((halves[rank][half] for rank, half in order), initial=0)))
        self.chunks = [
            [(starts[rank, half], halves[rank][half]) for half in range(chunks)] for rank in range(ranks)
        ]
        self.length, (c_q, c_k) = sum(lengths), taps
        self.left = (c_k - 1) // 2
        self.query_halo, self.key_halo = Halo(c_q - 1, 0), Halo(self.left, c_k - 1 - self.left)

    @staticmethod
    def above(start, rows):
        """Return how many of the `rows` rows before `start` lie inside the sequence."""
        return min(start, rows)

    def extended(self, start, length, halo):
        """Return the range [first, last) of a chunk with its halo; an empty chunk needs no halo."""
        return (
            (max(0, start - halo.above), min(self.length, start + length + halo.below))
            if length
            else (start, start)
        )

    def holders(self, first, last):
        """Return [(rank, the rank's first row, number of rows)] that cover the tokens [first, last), in
        order."""
        found = []
        for rank, held in enumerate(self.chunks):
            row = 0
            for start, length in held:
                low, high = max(first, start), min(last, start + length)
                if low < high:
                    found.append((low, rank, row + low - start, high - low))
                row += length
        return [part for _, *part in sorted(found)]

    def sources(self, rank, halo):
        """Return, for each chunk of `rank`, the holders of the chunk with its halo."""
        return [self.holders(*self.extended(start, length, halo)) for start, length in self.chunks[rank]]

    def visible(self, queries, keys, causal):
        """Return whether any query of one chunk sees any key of another."""
        (start, length), (first_key, keys) = queries, keys
        # under a causal mask, compare the first key with the last query
        return bool(length and keys) and (not causal or first_key < start + length)

    def pairs(self, rank, owner, causal):
        """Return [(i, j, extent)] for each chunk i of `rank` that sees a key of chunk j of `owner`.

        Pairs on the diagonal come last, because under a causal mask their last blocks have little work.
        """
        found = [
            (queries == keys, i, j, self.extent(queries, keys))
            for i, queries in enumerate(self.chunks[rank])
            for j, keys in enumerate(self.chunks[owner])
            if self.visible(queries, keys, causal)
        ]
        return [pair for _, *pair in sorted(found)]

    def extent(self, queries, keys):
        """Return the Extent for one chunk's queries and another chunk's keys, both with halos."""
        (start, _), (first_key, _) = queries, keys
        return Extent(
            self.above(start, self.query_halo.above), self.above(first_key, self.left), start - first_key
        )

    def packed(self, rank):
        """Return the number of rows of each part of `rank`'s K/V block: keys with halo, then values, per
        chunk."""
        rows = []
        for start, length in self.chunks[rank]:
            first, last = self.extended(start, length, self.key_halo)
            rows += [last - first, length]
        return rows


def check_layout(layout):
    """Return the number of chunks per rank in this layout; raise ValueError for an unknown layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"argument layout is {layout!r}; wanted one of {', '.join(map(repr, LAYOUTS))}")
    return LAYOUTS[layout]
