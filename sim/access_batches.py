"""Splits logged accesses into one Batch per block."""

import numpy as np

from sim.events import LOAD, Batch


def split_by_block(blocks, lengths, columns, values):
    """Return the Batches of logged accesses, one per block.

    blocks: the block of each segment.
    lengths: the number of accesses of each segment.
    columns: the columns of a Batch, for all accesses.
    values: the values written by stores and atomics.
    """
    _, _, _, site, _, _ = columns
    # A thread that is ended between two statements has logged a store without its value.
    values += [None] * (int(np.count_nonzero(site & 3 != LOAD)) - len(values))
    if blocks.count(blocks[0]) == len(blocks):
        return [Batch(blocks[0].index, blocks[0].epoch, *columns, values)]
    number_of = {block: number for number, block in enumerate(dict.fromkeys(blocks))}
    # the number of the block that each access and each value belongs to
    home = np.repeat(np.array([number_of[block] for block in blocks]), lengths)
    values_of = [[] for _ in number_of]
    for value, number in zip(values, home[site & 3 != LOAD].tolist()):
        values_of[number].append(value)
    order = np.argsort(home, kind="stable")
    bounds = np.searchsorted(home[order], np.arange(len(number_of) + 1)).tolist()
    return [
        Batch(block.index, block.epoch, *(column[order[first:last]] for column in columns), values_of[number])
        for (block, number), first, last in zip(number_of.items(), bounds, bounds[1:])
        if first < last
    ]
