"""Tests of tiled attention against the reference, and of its memory traffic against formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels.reference import attention, scores
from kernels.reference.tiled import (
    State,
    Traffic,
    first_paper_tiles,
    initial_state,
    keys_outer,
    merge,
    online_softmax,
    queries_outer,
    standard,
    tile_scores,
    tile_state,
    tiles,
    update,
)

SHAPES = st.tuples(*[st.integers(1, 12)] * 3, *[st.integers(1, 15)] * 2, st.integers(0, 2**32))
BOTH_ORDERS = pytest.mark.parametrize("tiled_attention", [keys_outer, queries_outer])


def worst(got, wanted):
    return (got - wanted).abs().max().item()


def normal(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


# Both loop orders, and the standard algorithm ---------------------------------------------------------------


@BOTH_ORDERS
@pytest.mark.parametrize("causal", [False, True])
@given(SHAPES)
@settings(max_examples=40, deadline=None)
def test_equals_the_oracle_for_any_shape_and_tile(tiled_attention, causal, shape):
    queries, keys, d, rows, columns, seed = shape
    q, k, v = normal(seed, (queries, d), (keys, d), (keys, d))
    got = tiled_attention(5 * q, k, v, rows, columns, Traffic(), causal=causal, scale=0.7)
    assert worst(got, attention(5 * q, k, v, causal, 0.7)) <= 1e-12


@BOTH_ORDERS
def test_published_examples(tiled_attention):
    """Run the smallest examples of the published notebook, each with the on-chip memory size that it
    assumes."""
    two_by_one = [torch.tensor(column).view(2, 1) for column in ([1.0, 1.0], [0.0, 2.0], [0.0, -1.0])]
    corner, off_corner = torch.tensor([[1.0, 0], [0, 0]]), torch.tensor([[0.0, 1], [0, 0]])
    random = torch.rand(3, 2, 2, generator=torch.Generator().manual_seed(3)).unbind()
    for numbers, (q, k, v) in [
        (2, two_by_one),
        (10, two_by_one),
        (9, (corner, corner, off_corner)),
        (2, random),
    ]:
        got = tiled_attention(q, k, v, *first_paper_tiles(numbers, q.shape[1]), Traffic())
        assert torch.isclose(got, scaled_dot_product_attention(q, k, v)).all()


@BOTH_ORDERS
def test_float32_256_by_64(tiled_attention):
    q, k, v = torch.rand(3, 256, 64, generator=torch.Generator().manual_seed(4)).unbind()
    got = tiled_attention(q, k, v, 30, 50, Traffic())
    assert torch.isclose(got, scaled_dot_product_attention(q, k, v)).all()


@BOTH_ORDERS
def test_a_progress_bar_sees_the_outer_tiles(tiled_attention):
    seen = []
    q, k, v = normal(0, (5, 2), (7, 2), (7, 2))
    tiled_attention(q, k, v, 2, 3, Traffic(), over=lambda outer: seen.extend(outer) or outer)
    assert seen == (tiles(7, 3) if tiled_attention is keys_outer else tiles(5, 2))


def test_standard_equals_the_oracle():
    q, k, v = normal(5, (6, 3), (9, 3), (9, 3))
    assert worst(standard(q, k, v, Traffic()), attention(q, k, v)) <= 1e-14


# Traffic ----------------------------------------------------------------------------------------------------


@given(SHAPES)
@settings(max_examples=40, deadline=None)
def test_traffic_is_what_the_formulas_say(shape):
    n, keys, d, rows, columns, _ = shape
    q, k = torch.zeros(n, d), torch.zeros(keys, d)
    by_standard, by_keys, by_queries = Traffic(), Traffic(), Traffic()
    standard(q, k, k, by_standard)
    keys_outer(q, k, k, rows, columns, by_keys)
    queries_outer(q, k, k, rows, columns, by_queries)
    key_tiles, query_tiles = math.ceil(keys / columns), math.ceil(n / rows)
    assert by_standard == Traffic(read=(n + 2 * keys) * d + 2 * n * keys, written=2 * n * keys + n * d)
    assert by_keys == Traffic(
        read=2 * keys * d + key_tiles * n * (2 * d + 2), written=(key_tiles + 1) * n * (d + 2)
    )
    assert by_queries == Traffic(read=n * d + query_tiles * 2 * keys * d, written=n * d)


@BOTH_ORDERS
def test_causal_moves_less(tiled_attention):
    q, k, v = normal(6, (16, 2), (16, 2), (16, 2))
    full, causal = Traffic(), Traffic()
    tiled_attention(q, k, v, 4, 4, full)
    tiled_attention(q, k, v, 4, 4, causal, causal=True)
    assert causal.moved < full.moved


def test_a_loaded_tile_is_a_copy():
    traffic, array = Traffic(), torch.zeros(4, 3)
    traffic.load(array, slice(1, 3)).fill_(7)
    assert array.sum() == 0
    traffic.store(array, slice(0, 1), torch.ones(1, 3))
    assert array[0].tolist() == [1, 1, 1]
    assert (traffic, traffic.moved) == (Traffic(read=6, written=3), 9)


# The running state ------------------------------------------------------------------------------------------


def test_merge_is_associative_and_commutative():
    s, v = normal(7, (4, 9), (9, 3))
    a, b, c = (tile_state(300 * s[:, keys], v[keys]) for keys in tiles(9, 4))
    for other in (merge(a, merge(b, c)), merge(c, merge(b, a))):
        for got, wanted in zip(other, merge(merge(a, b), c), strict=True):
            assert worst(got, wanted) <= 1e-13


def test_the_initial_state_changes_nothing():
    s, v = normal(8, (4, 5), (5, 3))
    state, nothing = tile_state(s, v), initial_state(4, 3, like=v)
    for merged in (merge(state, nothing), merge(nothing, state)):
        assert all(torch.equal(got, wanted) for got, wanted in zip(merged, state, strict=True))
    assert all(torch.equal(got, wanted) for got, wanted in zip(merge(nothing, nothing), nothing, strict=True))


def test_a_masked_tile_changes_nothing():
    s, v = normal(9, (4, 5), (5, 3))
    masked = torch.full((4, 5), -math.inf, dtype=s.dtype)
    for state in (tile_state(s, v), initial_state(4, 3, like=v)):
        assert all(
            torch.equal(got, wanted) for got, wanted in zip(update(state, masked, v), state, strict=True)
        )


def test_update_by_hand():
    """Update with scores 1, 3 and then 2, and values 10, 20, 30.

    The result is m = 3, l = 1 + e⁻¹ + e⁻², o = 20 + 30/e + 10/e².
    """
    one, three, two, ten, twenty, thirty = (
        torch.tensor([[x]], dtype=torch.float64) for x in (1, 3, 2, 10, 20, 30)
    )
    state = update(initial_state(1, 1, like=one), torch.cat([one, three], 1), torch.cat([ten, twenty]))
    m, l, o = update(state, two, thirty)
    assert m.item() == 3
    assert abs(l.item() - (1 + math.exp(-1) + math.exp(-2))) <= 1e-15
    assert abs(o.item() - (20 + 30 * math.exp(-1) + 10 * math.exp(-2))) <= 1e-14
    assert isinstance(state, State)


def test_online_softmax_equals_softmax():
    q, k, v = normal(10, (6, 3), (11, 3), (11, 3))
    rows = torch.stack([online_softmax(row, v) for row in tile_scores(40 * q, k)])
    assert worst(rows, torch.softmax(scores(40 * q, k), dim=1) @ v) <= 1e-13


# Tiles ------------------------------------------------------------------------------------------------------


def test_tiles_cover_every_row_once():
    assert tiles(5, 2) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert tiles(4, 2) == [slice(0, 2), slice(2, 4)]
    assert tiles(1, 8) == [slice(0, 1)]


@pytest.mark.parametrize(
    "numbers, d, queries_and_keys",
    [
        (2, 1, (1, 1)),
        (10, 1, (1, 3)),
        (9, 2, (2, 2)),
        (2, 2, (1, 1)),
        (100, 64, (1, 1)),
        (12288, 64, (48, 48)),
        (49152, 64, (64, 192)),
    ],
)
def test_first_paper_tiles(numbers, d, queries_and_keys):
    assert first_paper_tiles(numbers, d) == queries_and_keys
