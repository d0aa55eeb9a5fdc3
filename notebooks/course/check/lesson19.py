"""Checks of lesson 19: a map over heads on a tile, and the second pass."""

import math

import torch

from course.check.harness import compare, exercise, explained, fail
from course.check.inputs import FAR
from course.check.tensors import WATCHING, global_memory, within
from course.check.trial import tried
from course.check.words import ROUNDED
from kernels import reference
from kernels.reference.multi_token_tiled import convolved as convolved_tile
from kernels.reference.multi_token_tiled import halo
from sim.nouns import plural

# Drawing ----------------------------------------------------------------------------------------------------


def drawing(seed):
    """Return a float64 randn that uses a separate generator."""
    generator = torch.Generator().manual_seed(int(seed))
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def positions(first, count):
    return first + torch.arange(count)


# 19.1 -------------------------------------------------------------------------------------------------------

TILES = [
    (6, 4, 0, 0, 5),
    (1, 3, 4, 0, 4),
    (8, 4, 4, 4, 4),
    (3, 6, -2, -3, 9),
    (5, 2, 3, 7, 3),
    (8, 5, 9, 0, 6),
]


@exercise("19.1", "mixed_tile")
def ex19_1(mixed_tile, rng):
    drawn = [tuple(int(x) for x in rng.integers((1, 1, -4, -4, 1), (9, 7, 9, 9, 9))) for _ in range(12)]
    tried(f"scores to ±{FAR}")
    for place, (heads, rows, i0, j0, columns) in enumerate(TILES + drawn):
        draw = drawing(rng.integers(2**31))
        t, head_map = draw(heads, rows, columns) * FAR ** (place % 2), draw(heads, heads)
        head_map[place % heads] *= place % 3 > 0  # a new head whose scores are all 0
        call = (
            f"mixed_tile of {plural(heads, 'head')}, rows {i0} to {i0 + rows - 1}, columns {j0}"
            f" to {j0 + columns - 1}"
        )
        size = max(2 * t.numel(), heads * heads * max(rows, columns))  # a map for each row is a view
        bound = size if size < heads * t.numel() else None
        kept = 7 * t.numel() + head_map.numel() if heads >= 6 else None  # the map itself counts
        given = t, head_map, i0, j0
        got = within(mixed_tile, given, call=call, largest=bound, kept=kept, allowed=(), hint=ONE_PRODUCT)
        mixed = (head_map @ t.flatten(1)).view_as(t)
        other = (head_map.T @ t.flatten(1)).view_as(t)
        i, j = positions(i0, rows)[:, None], positions(j0, columns)

        def hidden(where, tile=mixed):
            return tile.masked_fill(where, -math.inf)

        hint = explained(
            got,
            {
                ROUNDED: hidden((j > i) | (j < 0)),
                "Row g of the map makes new head g. You use the transposed map.": hidden(
                    (j > i) | (j < 0), other
                ),
                "Keys j < 0 are before the sequence: they need -inf, too.": hidden(j > i),
                "The tile's first row is i0 and its first column j0.": hidden(j - j0 > i - i0),
                "The tile's first column is j0: the keys are j0 + torch.arange(columns).": hidden(j - j0 > i),
                "The tile's first row is i0: the queries are i0 + torch.arange(rows).": hidden(
                    (j > i - i0) | (j < 0)
                ),
                "Masked with -inf, not with 0.": mixed.masked_fill((j > i) | (j < 0), 0.0),
                "This tile has no -inf where j > i or j < 0: mask it after the map.": mixed,
                "A query sees itself: j <= i.": hidden((j >= i) | (j < 0)),
            },
            "NaN: −∞ times 0, or −∞ minus −∞. Which comes first, the map or the mask?"
            if isinstance(got, torch.Tensor) and bool(got.isnan().any())
            else "T'_g = Σ_h M[g, h] T_h; then -inf where j > i and where j < 0.",
        )
        wanted = hidden((j > i) | (j < 0))
        compare(got, wanted, what="another tile", call=call, tolerance=1e-9, hint=hint)
    return (
        f"{len(TILES) + len(drawn)} tiles, on the diagonal and off it, columns before token 0, 1 to 8 heads"
    )


ONE_PRODUCT = "Do not create (H, H, rows, columns): use torch.einsum, or one matrix product over the heads."


# 19.2 -------------------------------------------------------------------------------------------------------


class Tiles:
    """T' (H, N, N) as a function of rows and columns, with -inf outside.

    It rejects tiles larger than `most` entries, and tiles that begin after column `last`. A tile without a
    halo, of at most `owned` columns, may begin `slack` columns later: it is for a single tap.
    """

    def __init__(self, t, most, last, owned, slack, call):
        self.t, self.most, self.last, self.call = t, most, last, call
        self.owned, self.slack = owned, slack

    def __call__(self, i0, j0, rows, columns):
        if rows * columns > self.most:
            fail(
                f"it asks for a tile of {rows} × {columns}; {self.most} numbers per head are enough",
                call=self.call,
                hint="Owned rows and the halo above, owned columns and the halo at both sides.",
            )
        if j0 > self.last + self.slack * (columns <= self.owned):
            fail(
                f"it asks for a tile that begins at column {j0}, in the future of all its rows",
                call=self.call,
                hint="Row i needs the keys j <= i: the loop ends at i0 + rows.",
            )
        with global_memory():
            i, j = positions(int(i0), int(rows))[:, None], positions(int(j0), int(columns))
            n = self.t.shape[-1]
            tile = self.t[:, i.clamp(0, n - 1), j.clamp(0, n - 1)]
            tile = tile.masked_fill((i < 0) | (i >= n) | (j < 0) | (j >= n), -math.inf)
        for seen in WATCHING:
            seen.made(tile)
        return tile


PASSES = [  # heads, n, after taps, i0, rows, columns, what all scores are near
    (3, 48, (3, 3), 0, 4, 4, 0),
    (2, 48, (3, 5), 16, 4, 4, FAR),
    (2, 47, (2, 4), 43, 4, 5, 0),
    (1, 40, (1, 1), 20, 5, 3, -FAR),
    (4, 40, (4, 2), 1, 4, 6, 0),
    (3, 41, (3, 6), 37, 4, 4, 0),
    (3, 400, (2, 2), 392, 8, 4, 0),
]


@exercise("19.2", "second_pass")
def ex19_2(second_pass, rng):
    tried(f"scores to ±{FAR}")
    for heads, n, (c_q, c_k), i0, rows, columns, loud in PASSES:
        draw, d = drawing(rng.integers(2**31)), 2
        t = draw(heads, n, n)
        t = t + loud
        t = t.masked_fill(reference.above_diagonal(t), -math.inf)
        log_sum, p = torch.logsumexp(t, -1), torch.softmax(t, -1)
        v, after_taps, after_map = draw(heads, n, d), draw(heads, c_q, c_k), draw(heads, heads)
        mine = slice(i0, i0 + rows)
        end = -(-(i0 + rows) // columns) * columns  # of the last tile

        def outputs(taps=after_taps, mixing=after_map, p=p, v=v, mine=mine, end=end, masked=True):
            u = reference.convolve(p[None], taps)
            u = reference.mix_heads(reference.seen(u, masked), mixing)[0]
            return (u[..., :end] @ v[:, :end])[:, mine]

        call = (
            f"second_pass of {plural(heads, 'head')}, {plural(n, 'token')}, rows from {i0}, tiles"
            f" of {rows} × {columns}"
            f", second taps {c_q} × {c_k}"
        )
        most = (rows + c_q - 1) * (columns + c_k - 1)
        left = (c_k - 1) // 2
        bound = max(2 * heads * most, heads * (n + 16) * d, heads * heads)
        given = (
            Tiles(t, most, i0 + rows - 1 - left, columns, c_k - 1, call),
            log_sum,
            v,
            after_taps,
            after_map,
            i0,
            rows,
            columns,
        )
        kept = 12 * heads * most + heads * (n + 16) * (d + 2)  # v and log_sum count where parts are read
        got = within(
            second_pass,
            given,
            call=call,
            largest=bound,
            kept=kept,
            hint=NO_ROWS,
            refused={"softmax"},
            allowed=(convolved_tile, halo),
        )
        alone = torch.zeros_like(p)
        alone[:, mine] = p[:, mine]
        hint = explained(
            got,
            {
                ROUNDED: outputs(),
                "U has a mask of its own: 0 where j > i.": outputs(masked=False),
                "The taps are not flipped: it is a correlation, as in lesson 09.": outputs(
                    after_taps.flip(1, 2)
                ),
                "Row g of the map makes new head g. You use the transposed map.": outputs(mixing=after_map.T),
                "The second map is missing.": outputs(mixing=None),
                "The convolution comes before the map.": outputs(
                    mixing=None, p=reference.mix_heads(p[None], after_map)[0]
                ),
                "The halo above is missing: rows of P above the tile's own.": outputs(p=alone),
            },
            (BEFORE_THE_FIRST if i0 < c_q - 1 else OVERFLOW)
            if isinstance(got, torch.Tensor) and bool(got.isnan().any())
            else "P = exp(T' - L) on the tile and its halo; convolved, masked with 0, mixed; times V.",
        )
        compare(got, outputs(), what="another output", call=call, tolerance=1e-9, hint=hint)
    return (
        f"{len(PASSES)} rows of tiles, the first and the last among them; taps odd and even, nothing N wide"
    )


BEFORE_THE_FIRST = "NaN: a row before token 0 has no L; rows_of gives it 0, and T' is -inf there."
OVERFLOW = "NaN: exp(T') and exp(L) alone are 0 or infinite for large scores; exp(T' - L) is neither."
NO_ROWS = "Work tile by tile, without a row of N scores. L contains all you need from the other tiles."
