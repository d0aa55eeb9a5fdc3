"""Tests that the steps of figures with a slider match those of the run."""

import pytest
import torch
from numba import cuda

from course.scenes import stepped
from course.swizzles import chunk_map
from kernels.reference.tiled import Traffic, keys_outer, queries_outer

ORDERS = {
    keys_outer: [(i, j) for j in range(3) for i in range(3)],
    queries_outer: [(i, j) for i in range(3) for j in range(3)],
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_step_is_a_tile_of_scores_and_all_that_moves_is_in_one(order):
    q, k, v = torch.ones(3, 10, 4).unbind()  # The last tile is partial: the tiles have 4, 4 and 2 rows.
    steps, plain = stepped(order, q, k, v, 4), Traffic()
    order(q, k, v, 4, 4, plain)
    assert [(step.queries, step.keys) for step in steps] == ORDERS[order]
    moved = sum(step.read.total() + step.written.total() for step in steps)
    before = 10 * (4 + 2) if order is keys_outer else 0  # This step initialises m, l and o.
    assert steps[-1].total == plain.moved == before + moved


@cuda.jit(device=True)
def exclusive_or(a, b):
    return a ^ b


@cuda.jit(device=True)
def swizzled(row, column):
    return exclusive_or(column, row % 8 * 8)


def test_the_map_of_chunks_runs_a_device_function_that_calls_another():
    assert str(chunk_map(swizzled, "swizzled")).count("of the eight rows: 1 wavefront\n") >= 7
