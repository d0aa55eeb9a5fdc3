"""Checks for lesson 20: cache sizes in bytes, multiply-adds, decoding from latents, a tile with a reciprocal
band, and the gradient of the parameters that heads share."""

import math
import operator

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from course.check.harness import compare, exercise, explained, fail
from course.check.inputs import FAR, unusual
from course.check.tensors import AUTOGRAD, within
from course.check.trial import tried
from course.check.words import ROUNDED
from sim.nouns import plural

MODELS = [(10, 3, 5, 7, 11, 4), (131_072, 60, 128, 128, 512, 2), (1, 1, 1, 1, 1, 1)]


@exercise("20.1", "cache_bytes")
def ex20_1(cache_bytes, rng):
    models = MODELS + [tuple(int(x) for x in rng.integers(2, 1000, 6)) for _ in range(20)]
    for tokens, layers, heads, d, latent, size in models:
        call = f"cache_bytes({tokens}, {layers}, {heads}, {d}, {latent}, {size})"
        got = two_whole_numbers(cache_bytes(tokens, layers, heads, d, latent, size), call)
        wanted = 2 * tokens * layers * heads * d * size, 2 * tokens * layers * latent * size
        hint = explained(
            got,
            {
                "There is a key and a value: twice as much.": tuple(x // 2 for x in wanted),
                "All heads share the latents: do not multiply by the number of heads.": (
                    wanted[0],
                    wanted[1] * heads,
                ),
                "Every layer has a cache of its own.": tuple(x // layers for x in wanted),
                "A number takes `size` bytes.": tuple(x // size for x in wanted),
            },
            "Per token and layer: a key and a value of d numbers for each head; or a latent key and a latent"
            " value.",
        )
        compare(got, wanted, what="other bytes", call=call, tolerance=0, hint=hint)
    return f"{len(models)} models"


def two_whole_numbers(got, call):
    """Return `got` as a pair of ints, or a verdict. 4.0 counts as a whole number."""
    try:
        numbers = tuple(int(x) if isinstance(x, float) and x == int(x) else operator.index(x) for x in got)
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if len(numbers) != 2:
        fail("the answer is not two whole numbers", call=call, got=repr(got))
    return numbers


@exercise("20.2", "multiply_adds")
def ex20_2(multiply_adds, rng):
    drawn = [tuple(int(x) for x in rng.integers(2, 60, 5)) for _ in range(20)]
    for n_q, n_k, heads, d, latent in [(1, 4096, 128, 128, 512), (1, 1, 1, 1, 1), (7, 3, 2, 5, 4), *drawn]:
        call = f"multiply_adds({n_q}, {n_k}, {heads}, {d}, {latent})"
        got = two_whole_numbers(multiply_adds(n_q, n_k, heads, d, latent), call)
        wanted = costs(n_q, n_k, heads, d, latent)
        hint = explained(
            got,
            {
                "Count the keys and the values: twice as much.": tuple(x // 2 for x in wanted),
                "That is one head; count all heads.": tuple(x // heads for x in wanted),
                "The pair is (expand, absorb), in this order.": wanted[::-1],
                "Each way also has a projection.": (
                    2 * heads * n_q * n_k * d,
                    2 * heads * n_q * n_k * latent,
                ),
            },
            "Expand: n_k keys and n_k values of L·d each, then n_q·n_k scores of d, and as many terms of d."
            " Absorb: n_q queries of d·L, scores and terms of L, and n_q outputs of L·d.",
        )
        compare(got, wanted, what="other counts", call=call, tolerance=0, hint=hint)
    return "23 shapes, one query and many"


def costs(n_q, n_k, heads, d, latent):
    """Return the number of multiply-adds for both methods, summed product by product."""
    expand = n_k * latent * d + n_k * latent * d + n_q * d * n_k + n_q * n_k * d
    absorb = n_q * d * latent + n_q * latent * n_k + n_q * n_k * latent + n_q * latent * d
    return heads * expand, heads * absorb


LOUD = "Scores may reach ±1000: subtract each head's largest before exp, or let torch.softmax do it."
ABSORB = "Project the query into the latent space: q W_q is (H, L), and all heads use the same k_latent."


@exercise("20.3", "decode")
def ex20_3(decode, rng):
    tried(f"scores to ±{FAR}")
    for n, heads, d, latent, loud in [
        (40, 4, 6, 5, 1),
        (61, 5, 3, 7, FAR),
        (1, 3, 4, 5, 1),
        (90, 1, 8, 2, 1),
    ]:
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731, B023
        q, k, v, w_q, w_v = (
            draw(heads, d),
            draw(n, latent),
            draw(n, latent),
            draw(heads, d, latent),
            draw(heads, latent, d),
        )
        k[n // 2 : n // 2 + 3] = 0  # scores of 0 are scores
        scale = unusual(rng, unlike=(1, d**-0.5, latent**-0.5))
        s = q[:, None] @ w_q @ k.T
        if loud > 1:  # every head's largest score is loud, and above 0
            largest = s.flatten(1).gather(1, s.flatten(1).abs().argmax(1, keepdim=True))
            q *= loud / (scale * largest)
        s = scale * (q[:, None] @ w_q @ k.T)
        wanted = (torch.softmax(s, -1) @ v @ w_v)[:, 0]
        call = (
            f"decode with {heads} heads of {d}, {plural(n, 'token')}, latents of {latent}, scale {scale:.3f}"
        )
        most = 2 * max(heads * n, heads * latent * d, n * latent)
        bound = most if most < n * heads * min(d, latent) else None
        with FlopCounterMode(display=False) as counter:
            got = within(
                decode,
                (q, k, v, w_q, w_v, scale),
                call=call,
                largest=bound,
                refused={"scaled_dot_product_attention"},
                allowed=(),
                hint=ABSORB,
            )
        expand, absorb = costs(1, n, heads, d, latent)
        used = counter.get_total_flops() // 2
        if expand > 2 * absorb and used > 2 * absorb:
            fail(
                f"it takes {used:,} multiply-adds; absorbing takes {absorb:,}, expanding {expand:,}",
                call=call,
                hint=ABSORB,
            )
        root = torch.softmax(s / scale / math.sqrt(latent), -1)
        hint = explained(
            got,
            {
                ROUNDED: wanted,
                "Scores are multiplied by scale.": (torch.softmax(s / scale, -1) @ v @ w_v)[:, 0],
                "Use the scale that is passed.": (root @ v @ w_v)[:, 0],
                "Every head has its own W_v.": (torch.softmax(s, -1) @ v @ w_v[:1])[:, 0],
            },
            LOUD if got_nan(got) else ABSORB,
        )
        compare(got, wanted, what="another output", call=call, tolerance=1e-9, hint=hint)
    return "4 caches, of 1 to 90 tokens, no head's own keys or values"


GARBAGES = np.nan, np.inf, 1e30, 1.0  # times a number: what memory may hold, at the last what looks right
GARBAGE = (
    "q_columns holds garbage, NaN or not, for tokens before first_query. They have no reciprocal term, and"
    " 0 times NaN is NaN."
)
TILE = (
    "scale · (q_rows W_q · k_columns + alpha · band · q_columns W_q · k_rows), with i and j the tokens'"
    " positions, and -inf where j > i."
)


@exercise("20.4", "tile_scores")
def ex20_4(tile_scores, rng):
    tiles = [
        (0, 0, 0, 3, 4),
        (4, 4, 0, 1, 3),
        (8, 4, 0, 5, 4),
        (4, 8, 0, 2, 5),
        *[(9, 0, 6, 20, 9)] * len(GARBAGES),
        (5, 3, 5, 0, 6),
    ]
    drawn = [tuple(int(x) for x in rng.integers(0, 12, 3)) + (int(rng.integers(0, 9)), 5) for _ in range(12)]
    for turn, (first_row, first_column, first_query, window, columns) in enumerate(tiles + drawn):
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        rows, d, latent = 4, 3, 6
        n = max(first_row + rows, first_column + columns)
        q, k = (torch.randn(n, width, dtype=torch.float64, generator=generator) for width in (d, latent))
        w_q = torch.randn(d, latent, dtype=torch.float64, generator=generator)
        scale, alpha = unusual(rng, unlike=(1, d**-0.5, latent**-0.5)), (-1) ** turn * unusual(rng)
        if turn % 3 == 1:
            q *= FAR / (scale * (q @ w_q @ k.T).abs().max())
        first_query = min(first_query, first_row)  # a row has its query
        held = q.clone()
        held[:first_query] = garbage(rng, GARBAGES[turn % len(GARBAGES)], first_query, d)
        own, those = slice(first_row, first_row + rows), slice(first_column, first_column + columns)
        call = (
            f"tile_scores of the rows {first_row} to {first_row + rows - 1} and the columns {first_column} to"
            f" {first_column + columns - 1}, first_query {first_query}, window {window}"
        )
        given = held[own], k[own], held[those], k[those], w_q, (first_row, first_column, first_query)
        got = within(tile_scores, (*given, alpha, window, scale), call=call, allowed=())
        i, j = torch.arange(n)[own, None], torch.arange(n)[those]
        straight, back = (q[own] @ w_q) @ k[those].T, (q[those] @ w_q @ k[own].T).T

        def scores(band, factor=scale, visible=None, straight=straight, back=back, alpha=alpha, i=i, j=j):
            s = factor * (straight + alpha * (band * back))
            return s.masked_fill(i < j if visible is None else ~visible, -math.inf)

        near = (i >= j) & (i - j < window)
        known = near & (j >= first_query)
        hint = explained(
            got,
            {
                ROUNDED: scores(known),
                "0 <= i - j < window: the token itself counts, and window - 1 before it.": scores(
                    (i >= j) & (i - j <= window) & (j >= first_query)
                ),
                "i and j are positions: add first_row and first_column.": scores(
                    ((i - first_row) >= (j - first_column)) & (i - first_row - j + first_column < window)
                ),
                "Multiply both terms by the scale.": scores(known, 1.0),
                "Multiply the reciprocal term by alpha.": scores(known, alpha=1.0),
                "Key j after query i is masked with -inf.": scores(known, visible=i >= -1 + 0 * j),
                "The reciprocal term is q_j W_q · k_i, the other way round.": scores(known, back=straight),
                "A row sees itself: j <= i.": scores(known, visible=j < i),
            },
            GARBAGE if first_query > first_column and window else TILE,
        )
        compare(got, scores(known), what="another tile", call=call, tolerance=1e-9, hint=hint)
    tried(f"scores to ±{FAR}")
    count = len(tiles) + len(drawn)
    return f"{count} tiles, before and after the diagonal, windows from 0, keys without a query"


def garbage(rng, factor, rows, d):
    return torch.from_numpy(rng.standard_normal((rows, d))) * factor


def got_nan(got):
    return isinstance(got, torch.Tensor) and bool(got.isnan().any())


@exercise("20.5", "d_v_latent")
def ex20_5(d_v_latent, rng):
    for heads, n_q, n, d, latent in [
        (6, 3, 30, 4, 20),
        (9, 1, 17, 2, 40),
        (1, 5, 6, 3, 4),
        (5, 4, 50, 3, 33),
    ]:
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731, B023
        # rows of p need not sum to 1: a tile of it is a part of a row
        p, d_o, w_v = draw(heads, n_q, n).exp(), draw(heads, n_q, d), draw(heads, latent, d)
        each = p.mT @ d_o @ w_v.mT
        call = (
            f"d_v_latent with {heads} heads of {d}, {plural(n_q, 'query', 'queries')},"
            f" {plural(n, 'key')}, latents of {latent}"
        )
        most = 2 * max(heads * n_q * n, heads * n * d, heads * latent * d, n * latent)
        all_heads = heads * n * latent
        got = within(
            d_v_latent,
            (p, d_o, w_v),
            call=call,
            largest=most if most < all_heads else None,
            kept=all_heads if heads > 4 else None,
            refused=AUTOGRAD,
            allowed=(),
            hint=ADD,
        )
        hint = explained(
            got,
            {
                "The heads' gradients are added, not averaged.": each.mean(0),
                "Add the contributions of all heads, not only the last.": each[-1],
                "Add the contributions of all heads, not only the first.": each[0],
            },
            "Head h: P_hᵀ dO_h W_v,hᵀ. All heads: the sum.",
        )
        compare(got, each.sum(0), what="another gradient", call=call, tolerance=1e-9, hint=hint)
    return "4 shapes, 1 to 9 heads, nothing of n · L numbers for each head"


ADD = "Add head by head; or compute P_hᵀ dO_h first, n · d elements for each head."
