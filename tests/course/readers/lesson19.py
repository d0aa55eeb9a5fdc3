"""Answers of the first outside reader of lesson 19: wrong ones that its checks once accepted, variants of
them, and unusual correct ones."""

import math
from collections import deque

import torch
from torch.nn.functional import conv2d

from kernels.reference import mix_heads
from kernels.reference.multi_token_tiled import convolved, halo
from power.lessons import from_solutions

(rows_of,) = from_solutions("19", "rows_of")

# 19.1 -------------------------------------------------------------------------------------------------------


def future(t, i0, j0):
    i = i0 + torch.arange(t.shape[1])[:, None]
    j = j0 + torch.arange(t.shape[2])
    return (j > i) | (j < 0)


def mixed(t, head_map):
    return torch.einsum("gh,hij->gij", head_map, t)


def tile(mix):
    return lambda t, head_map, i0, j0: mix(t, head_map).masked_fill(future(t, i0, j0), -math.inf)


def all_products_kept(t, head_map):
    """Wrong: computes the H · H tiles one by one, but keeps all of them alive."""
    parts = [[weight * scores for weight, scores in zip(row, t, strict=True)] for row in head_map]
    return torch.stack([sum(row) for row in parts])


def zero_is_masked(t, head_map, i0, j0):
    answer = tile(mixed)(t, head_map, i0, j0)
    return answer.masked_fill(answer == 0, -math.inf)


def nan_is_masked(t, head_map, i0, j0):
    return mixed(t.masked_fill(future(t, i0, j0), -math.inf), head_map).nan_to_num(nan=-math.inf)


def one_head_after_another(t, head_map, i0, j0):
    bias = torch.zeros(t.shape[1:], dtype=t.dtype).masked_fill(future(t, i0, j0), -math.inf)
    out = bias.expand_as(t).clone()
    for weights, scores in zip(head_map.T, t, strict=True):
        out.addcmul_(weights[:, None, None], scores)
    return out


def masked_twice(t, head_map, i0, j0):
    hidden = future(t, i0, j0)
    return mixed(t.masked_fill(hidden, 0), head_map).masked_fill(hidden, -math.inf)


# 19.2 -------------------------------------------------------------------------------------------------------


def seen(u, i0, j0):
    return u.masked_fill(future(u, i0, j0), 0)


def tiles_of_u(t_tile, log_sum, taps, after_map, i0, rows, columns, places, convolve=convolved):
    """Yield (j0, tile of U' at column j0) for each j0 in `places`."""
    above, left, right = halo(taps)
    l = rows_of(log_sum, i0 - above, above + rows)[..., None]
    for j0 in places:
        t = t_tile(i0 - above, j0 - left, above + rows, left + columns + right)
        yield j0, mixed(seen(convolve(torch.exp(t - l), taps), i0, j0), after_map)


def second(places=lambda end, n, columns: range(0, end, columns), gather=iter, **changes):
    """Return a second_pass with one part replaced."""

    def answer(t_tile, log_sum, v, taps, after_map, i0, rows, columns):
        those = places(i0 + rows, v.shape[1], columns)
        tiles = tiles_of_u(t_tile, log_sum, taps, after_map, i0, rows, columns, those, **changes)
        o = v.new_zeros(len(v), rows, v.shape[2])
        for j0, u in gather(tiles):
            o += u @ rows_of(v, j0, columns)
        return o

    return answer


def one_row_high(t_tile, log_sum, v, taps, after_map, i0, rows, columns):
    each = [second()(t_tile, log_sum, v, taps, after_map, i, 1, columns) for i in range(i0, i0 + rows)]
    return torch.cat(each, 1)


def taps_by_hand(p, taps):
    above, left, right = halo(taps)
    rows, columns = p.shape[1] - above, p.shape[2] - left - right
    return sum(
        taps[:, a, b, None, None] * p[:, a : a + rows, b : b + columns]
        for a in range(taps.shape[1])
        for b in range(taps.shape[2])
    )


def scattered(t_tile, log_sum, v, taps, after_map, i0, rows, columns):
    """Compute a tile of P without a halo, and add it to all columns of V that its taps reach."""
    above, left, _ = halo(taps)
    o, l = v.new_zeros(len(v), rows, v.shape[2]), rows_of(log_sum, i0 - above, above + rows)[..., None]
    for j0 in range(0, i0 + rows, columns):
        p = torch.exp(t_tile(i0 - above, j0, above + rows, columns) - l)
        for a in range(taps.shape[1]):
            for b in range(taps.shape[2]):
                part = taps[:, a, b, None, None] * p[:, a : a + rows]
                o += mixed(seen(part, i0, j0 - b + left), after_map) @ rows_of(v, j0 - b + left, columns)
    return o


# 19.3 -------------------------------------------------------------------------------------------------------


def cached(kept, q, c_q, after_c_q):
    queries, most = torch.cat([kept, q], 1), c_q + after_c_q - 1
    window = queries[:, max(0, queries.shape[1] - most) :]
    return window, window[:, max(0, window.shape[1] - most + 1) :].clone()


def contiguous_is_no_copy(kept, q, c_q, after_c_q):
    """Wrong: contiguous() returns the same storage if a slice is already contiguous, as with one head."""
    window, after = cached(kept, q, c_q, after_c_q)
    queries = torch.cat([kept, q], 1)
    if len(q) > 1:
        return window, after
    return window, queries[:, queries.shape[1] - after.shape[1] :].contiguous()


def a_prompt_has_nothing_before_it(kept, q, c_q, after_c_q):
    return cached(kept if q.shape[1] == 1 else kept[:, :0], q, c_q, after_c_q)


def a_memory_of_its_own():
    """Return a `push` that keeps its own state, so it is correct for only one sequence at a time."""
    state = {}

    def push(kept, q, c_q, after_c_q):
        before = state["kept"] if kept.shape[1] else kept
        window, state["kept"] = cached(before, q, c_q, after_c_q)
        return window, state["kept"]

    return push


def all_prompts_in_a_list():
    """Return a `push` that returns correct rows, but stores every prompt in a list."""
    prompts = []

    def push(kept, q, c_q, after_c_q):
        prompts.append(q)
        return cached(kept, q, c_q, after_c_q)

    return push


def by_a_deque(kept, q, c_q, after_c_q):
    last = deque([*kept.unbind(1), *q.unbind(1)], maxlen=c_q + after_c_q - 1)
    window = torch.stack(list(last), 1)
    last = deque(last, maxlen=c_q + after_c_q - 2)
    return window, torch.stack(list(last), 1) if last else q[:, :0].clone()


def cut_before_joined(kept, q, c_q, after_c_q):
    """Correct: cuts a long prompt before joining it, so the prompt is never copied as a whole."""
    most = c_q + after_c_q - 1
    new = q[:, max(0, q.shape[1] - most) :]
    old = kept[:, max(0, kept.shape[1] - most + new.shape[1]) :]
    window = torch.cat([old, new], 1)
    return window, window[:, max(0, window.shape[1] - most + 1) :].clone()


# 19.4 -------------------------------------------------------------------------------------------------------

LAYERS = {
    "map": {"head_map": "any"},
    "statistic": {"after_taps": (3, 3)},
    "scores": {"documents": (0, 6)},
    "weights": {"taps": None, "after_taps": (3, 3), "documents": (0, 6)},
}


def by_experiments(layers=LAYERS):
    """Return an answer that names the first fault with a layer that gives a wrong result of an implementation."""

    def faults():
        from course.check import lesson19b

        return {
            name: next((fault for fault, layer in layers.items() if lesson19b.wrong(name, **layer)), "none")
            for name in lesson19b.IMPLEMENTATIONS
        }

    return faults


WRONG = {
    "ex19_1": [
        ("a score of 0 is masked", zero_is_masked),
        ("the package's map over heads", tile(lambda t, head_map: mix_heads(t[None], head_map)[0])),
        ("all products, kept in lists", tile(all_products_kept)),
        ("capped at 50", tile(lambda t, head_map: mixed(t, head_map).clamp(-50, 50))),
        ("mask before the map, NaN to -inf", nan_is_masked),
    ],
    "ex19_2": [
        ("all tiles of U in a list", second(gather=list)),
        ("columns to the last token", second(lambda end, n, columns: range(0, n, columns))),
        ("columns to row i0", second(lambda end, n, columns: range(0, end - columns + 1, columns))),
    ],
    "ex19_3": [
        ("a prompt has nothing before it", a_prompt_has_nothing_before_it),
        ("a memory of its own", a_memory_of_its_own()),
        ("all prompts in a list", all_prompts_in_a_list()),
        ("contiguous() for clone(), one head", contiguous_is_no_copy),
    ],
    "ex19_4": [
        ("two words for one implementation", lambda: by_experiments()() | {"C": ("map", "none")}),
        ("a list of words", lambda: by_experiments()() | {"C": ["none"]}),
        (
            "both convolutions at once",
            by_experiments({"weights": LAYERS["weights"] | {"taps": (3, 3)}} | LAYERS),
        ),
        ("no map with both signs", by_experiments(LAYERS | {"map": {}})),
    ],
}
RIGHT = {
    "ex19_1": [
        ("one head after another, the mask as the start", one_head_after_another),
        ("a convolution with one tap", tile(lambda t, m: conv2d(t[None], m[:, :, None, None])[0])),
        ("masked before with 0 and after with -inf", masked_twice),
    ],
    "ex19_2": [
        ("a row of tiles for each row", one_row_high),
        ("taps by hand", second(convolve=taps_by_hand)),
        ("from right to left", second(lambda end, n, columns: reversed(range(0, end, columns)))),
        ("each tile of P sent to all columns it reaches", scattered),
    ],
    "ex19_3": [("deques", by_a_deque), ("cut before joined", cut_before_joined)],
    "ex19_4": [("by experiments", by_experiments())],
}
