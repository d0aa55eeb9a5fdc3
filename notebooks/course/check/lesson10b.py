"""Checks of lesson 10b: a test that must detect three faulty loops over tiles."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from course.check.harness import exercise, fail
from course.check.lesson10 import hide, inside, normal
from kernels.reference import conv_attention
from kernels.reference.conv_tiled import halo_of, load_rows, owned
from kernels.reference.tiled import State, Traffic, initial_state, update


@exercise("10.4", "two_tests")
def ex10_4(two_tests, rng):
    answer = two_tests()
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        fail("two_tests must return two tests", wanted="(sharp, blind)", got=answer)
    sharp, blind = (as_test(name, test) for name, test in zip(("sharp", "blind"), answer, strict=True))
    if sharp[0] > 3:
        fail("sharp may have 3 tokens at the most", got=sharp, hint=SHARP_HINT)
    if blind[0] < 16 or min(blind[1:3]) < 3:
        fail("blind must have at least 16 tokens and at least 3 × 3 taps", got=blind)
    found = {name: found_by(sharp, faulty, rng) for name, faulty in FAULTY.items()}
    if missed := [name for name in found if not found[name]]:
        fail(f"sharp does not find {', '.join(missed)}", call=f"sharp = {sharp}", hint=MISSED[missed[0]])
    found = {name: found_by(blind, faulty, rng) for name, faulty in FAULTY.items()}
    if sum(found.values()) != 1:
        names = ", ".join(name for name in found if found[name])
        fail(f"blind finds {names}: it was to find one only", call=f"blind = {blind}", hint=BLIND_HINT)
    return f"{sharp} finds all three, {blind} finds one"


# 10.4: three faulty ones, as Algorithm 1 was published ------------------------------------------------------


class Tile(NamedTuple):
    """Data in shared memory: the queries from i0 - P_q to the last owned one, and the keys and values from j0
    - P_k to P_r past the owned ones."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor
    i0: int
    j0: int

    @property
    def s(self):
        """The unmasked scores."""
        return self.q @ self.k.T / math.sqrt(self.q.shape[1])

    @property
    def s0(self):
        """The scores, with 0 where masked."""
        halo = halo_of(self.w)
        return hide(self.s, self.i0 - halo.above, self.j0 - halo.left, 0.0)

    @property
    def v_owned(self):
        halo = halo_of(self.w)
        return self.v[halo.left : len(self.v) - halo.right]


def in_tiles(update, q, k, v, w, loaded):
    """Compute causal convolutional attention of one head, (N, d). update(state, tile) returns the state of
    the owned rows after one more tile."""
    halo = halo_of(w)
    rows, columns = owned(loaded, halo)
    o, traffic = torch.empty_like(q), Traffic()
    for i0 in range(0, len(q), rows):
        count = min(rows, len(q) - i0)
        q_tile, state = (
            load_rows(q, i0 - halo.above, count + halo.above, traffic),
            initial_state(count, q.shape[1], like=q),
        )
        for j0 in range(0, i0 + count, columns):
            k_tile, v_tile = (
                load_rows(array, j0 - halo.left, columns + halo.across, traffic) for array in (k, v)
            )
            state = update(state, Tile(q_tile, k_tile, v_tile, w, i0, j0))
        o[i0 : i0 + count] = state.o / state.l
    return o


# The lesson prints these functions, and the learner looks for the fault. A docstring states what the author
# of the faulty code believed; it must not name the fault.
def faultless(state, tile):
    """Update the state correctly."""
    t = hide(inside(tile.s0, tile.w), tile.i0, tile.j0, -math.inf)
    return update(state, t, tile.v_owned)


def no_zero_mask(state, tile):
    """Mask the future after the convolution."""
    t = hide(inside(tile.s, tile.w), tile.i0, tile.j0, -math.inf)
    return update(state, t, tile.v_owned)


def halo_counted(state, tile):
    """Sum the softmax and P V over the columns of the tile."""
    halo = halo_of(tile.w)
    t = inside(pad(tile.s0, (halo.left, halo.right)), tile.w)  # as wide as what is loaded
    t = hide(t, tile.i0, tile.j0 - halo.left, -math.inf)
    t[:, : max(0, halo.left - tile.j0)] = -math.inf  # no keys there
    return update(state, t, tile.v)


def tile_maximum(state, tile):
    """Compute the tile's own maximum and exponentials, then merge the tile into the state."""
    t = hide(inside(tile.s0, tile.w), tile.i0, tile.j0, -math.inf)
    m_tile = t.amax(dim=1, keepdim=True)
    p = torch.exp(t - m_tile)
    m = torch.maximum(state.m, m_tile)
    a, b = torch.exp(state.m - m), torch.exp(m_tile - m)
    return State(m, a * state.l + b * p.sum(dim=1, keepdim=True), a * state.o + b * (p @ tile.v_owned))


FAULTY = {faulty.__name__: faulty for faulty in (no_zero_mask, halo_counted, tile_maximum)}


def found_by(test, faulty, rng):
    """Return whether a test (tokens, c_q, c_k, rows loaded, columns loaded) exposes `faulty` with one of
    three random inputs."""
    n, c_q, c_k, *loaded = test
    return any(
        differs(faulty, normal(rng, 3, n, 4), normal(rng, c_q, c_k) / math.sqrt(c_q * c_k), loaded)
        for _ in range(3)
    )


def differs(faulty, qkv, w, loaded):
    """Return whether the output of in_tiles(faulty, ...) has NaN or differs by more than 1e-9."""
    wanted = conv_attention(*qkv[:, None, None], w[None])[0, 0]
    return not ((in_tiles(faulty, *qkv, w, loaded) - wanted).abs().max() <= 1e-9)


SHARP_HINT = (
    "Each fault shows only in some inputs. no_zero_mask: a future score next to a key that counts."
    " halo_counted: a key beyond the border of a tile. tile_maximum: a row that sees no key of some tile."
)
BLIND_HINT = "halo_counted and tile_maximum do no harm in a single tile. What has to be in a second one?"
MISSED = {
    "no_zero_mask": (
        "A tap must reach a future score from an entry of T that counts. In a row with a single key, the"
        " weight is always 1."
    ),
    "halo_counted": (
        "Some key must lie in two tiles, and another key in fewer: if every tile contains every key, all"
        " keys are counted equally often, and the softmax does not change."
    ),
    "tile_maximum": (
        "Some row must have a tile without a single key that it may see, while another row of the same tile"
        " sees one."
    ),
}


def as_test(name, test):
    """Return the five integers of a test, or fail the check."""
    if not (
        isinstance(test, tuple | list)
        and len(test) == 5
        and all(isinstance(number, int | np.integer) and number > 0 for number in test)
    ):
        fail(
            f"{name} must be five whole numbers above 0",
            wanted="(tokens, c_q, c_k, rows loaded, columns loaded)",
            got=repr(test),
            hint="2.0 is a float, even though it is whole. Write 2.",
        )
    try:
        owned(test[3:], halo_of(torch.empty(test[1:3])))
    except ValueError as error:
        fail(f"{name}: {error}", got=test)
    return tuple(test)
