"""Wrong answers to the exercises of lesson 19, each labelled with its mistake, and alternative correct
answers."""

import math

import torch
from torch.nn.functional import conv2d, pad

from course.check import lesson19b
from power.lessons import from_solutions

(rows_of,) = from_solutions("19", "rows_of")


def valid(p, taps):
    return conv2d(p[None], taps[:, None], groups=len(taps))[0]


def mixed(t, head_map):
    return torch.einsum("gh,hij->gij", head_map, t)


def hidden(t, i0, j0, strict=False, before=True):
    i, j = i0 + torch.arange(t.shape[1])[:, None], j0 + torch.arange(t.shape[2])
    return ((j >= i) if strict else (j > i)) | ((j < 0) & before)


# 19.1


def tile(t, head_map, i0, j0, fill=-math.inf, **mask):
    return mixed(t, head_map).masked_fill(hidden(t, i0, j0, **mask), fill)


def mask_before(t, head_map, i0, j0, fill=-math.inf):
    return mixed(t.masked_fill(hidden(t, i0, j0), fill), head_map)


def all_pairs(t, head_map, i0, j0):
    return (head_map[:, :, None, None] * t).sum(1).masked_fill(hidden(t, i0, j0), -math.inf)


def in_place(t, head_map, i0, j0):
    t.copy_(mixed(t, head_map))
    return t.masked_fill(hidden(t, i0, j0), -math.inf)


def by_tensordot(t, head_map, i0, j0):
    seen = ~hidden(t, i0, j0)
    return torch.where(seen, torch.tensordot(head_map, t, dims=1), torch.tensor(-math.inf, dtype=t.dtype))


def by_heads(t, head_map, i0, j0):
    out = []
    for row in head_map:
        total = torch.zeros_like(t[0])
        for weight, scores in zip(row, t):
            total = total + weight * scores
        total[hidden(t, i0, j0)] = -math.inf
        out.append(total)
    return torch.stack(out)


def by_numbers(t, head_map, i0, j0):
    out = (head_map @ t.reshape(len(t), -1)).reshape(t.shape)
    for r in range(t.shape[1]):
        for c in range(t.shape[2]):
            if not 0 <= j0 + c <= i0 + r:
                out[:, r, c] = float("-inf")
    return out


def row_by_row(t, head_map, i0, j0):
    rows = torch.matmul(head_map, t.permute(1, 0, 2)).permute(1, 0, 2)
    return rows.where(~hidden(t, i0, j0), -math.inf)


# 19.2


def passes(
    t_tile, log_sum, v, taps, mixing, i0, rows, columns,
    *, up=True, side=True, mask=True, of_all=False, stop=None, halo_sums=True,
):  # fmt: skip
    above, left = taps.shape[1] - 1, (taps.shape[2] - 1) // 2
    right = taps.shape[2] - 1 - left
    o, i = 0, i0 + torch.arange(rows)[:, None]
    for j0 in range(0, stop or i0 + rows, columns):
        if up and side:
            t = t_tile(i0 - above, j0 - left, above + rows, left + columns + right)
        elif side:
            t = pad(t_tile(i0, j0 - left, rows, left + columns + right), (0, 0, above, 0), value=-math.inf)
        else:
            t = pad(t_tile(i0 - above, j0, above + rows, columns), (left, right), value=-math.inf)
        sums = rows_of(log_sum, i0 - above, above + rows)[..., None]
        sums = sums if halo_sums else log_sum[:, i0 : i0 + 1, None]
        u = valid(t.softmax(-1) if of_all else torch.exp(t - sums), taps)
        u = u.masked_fill(j0 + torch.arange(columns) > i, 0.0) if mask else u
        o = o + (u if mixing is None else mixed(u, mixing)) @ rows_of(v, j0, columns)
    return o


def whole_rows(t_tile, log_sum, v, taps, mixing, i0, rows, columns):
    return passes(t_tile, log_sum, v, taps, mixing, i0, rows, i0 + rows)


def tiles_into_a_row(t_tile, log_sum, v, taps, mixing, i0, rows, columns):
    """Wrong: stores a row of P that is as wide as the sequence."""
    above, left = taps.shape[1] - 1, (taps.shape[2] - 1) // 2
    t = torch.cat([t_tile(i0 - above, j0, above + rows, columns) for j0 in range(0, i0 + rows, columns)], 2)
    p = torch.exp(t - rows_of(log_sum, i0 - above, above + rows)[..., None])
    u = valid(pad(p, (left, taps.shape[2] - 1 - left)), taps)
    j = torch.arange(u.shape[2])
    u = u.masked_fill(j > i0 + torch.arange(rows)[:, None], 0.0)
    return mixed(u, mixing) @ rows_of(v, 0, u.shape[2])


def quotient(t_tile, log_sum, *rest):
    return passes(lambda *place: t_tile(*place).exp().log(), log_sum.exp().log(), *rest)


def negative_slice(t_tile, log_sum, v, taps, mixing, i0, rows, columns):
    above = taps.shape[1] - 1
    shifted = log_sum[:, i0 - above : i0 + rows]
    if shifted.shape[1] < above + rows:  # With a negative start, the slice is empty or counts from the end.
        return torch.zeros(len(v), rows, v.shape[2], dtype=v.dtype)
    return passes(t_tile, log_sum, v, taps, mixing, i0, rows, columns)


def last_column_first(t_tile, log_sum, v, taps, mixing, i0, rows, columns):
    """Correct: adds the tiles from right to left, and applies the head map to O instead of U, one pair at a
    time."""
    above, left = taps.shape[1] - 1, (taps.shape[2] - 1) // 2
    o = torch.zeros(len(v), rows, v.shape[2], dtype=v.dtype)
    for j0 in reversed(range(0, i0 + rows, columns)):
        t = t_tile(i0 - above, j0 - left, above + rows, columns + taps.shape[2] - 1)
        u = valid(torch.exp(t - rows_of(log_sum, i0 - above, above + rows)[..., None]), taps)
        keep = (j0 + torch.arange(columns)) <= (i0 + torch.arange(rows))[:, None]
        values = rows_of(v, j0, columns)
        for g in range(len(v)):
            for h in range(len(v)):
                o[g] += mixing[g, h] * ((u[h] * keep) @ values[g])
    return o


def tap_by_tap(t_tile, log_sum, v, taps, mixing, i0, rows, columns):
    """Correct: loads one shifted tile per tap instead of a halo, and shortens the last tile."""
    _, c_q, c_k = taps.shape
    o = v.new_zeros(len(v), rows, v.shape[2])
    for j0 in range(0, i0 + rows, columns):
        width = min(columns, v.shape[1] - j0)
        u = v.new_zeros(len(v), rows, width)
        for a in range(c_q):
            for b in range(c_k):
                i1 = i0 - c_q + 1 + a
                t = t_tile(i1, j0 - (c_k - 1) // 2 + b, rows, width)
                u += taps[:, a, b, None, None] * torch.exp(t - rows_of(log_sum, i1, rows)[..., None])
        u *= torch.arange(j0, j0 + width) <= torch.arange(i0, i0 + rows)[:, None]
        o += (mixing @ u.flatten(1)).view_as(u) @ v[:, j0 : j0 + width]
    return o


# 19.3


def push(kept, q, c_q, after_c_q):
    queries, most = torch.cat([kept, q], dim=1), c_q + after_c_q - 1
    window = queries[:, max(0, queries.shape[1] - most) :]
    return window, window[:, max(0, window.shape[1] - most + 1) :].clone()


def push_other(most_of):
    def pushes(kept, q, c_q, after_c_q):
        return push(kept, q, *most_of(c_q, after_c_q))

    return pushes


def push_a_view(kept, q, c_q, after_c_q):
    queries, most = torch.cat([kept, q], dim=1), c_q + after_c_q - 1
    start = queries.shape[1] - most
    return queries[:, max(0, start) :], queries[:, max(0, start + 1) :]


def push_by_minus(kept, q, c_q, after_c_q):
    queries, most = torch.cat([kept, q], dim=1), c_q + after_c_q - 1
    return queries[:, -most:], queries[:, -(most - 1) :].clone()


def push_only_new(kept, q, c_q, after_c_q):
    return push(kept[:, :0], q, c_q, after_c_q)


def push_keeps_the_window(kept, q, c_q, after_c_q):
    window, _ = push(kept, q, c_q, after_c_q)
    return window, window.clone()


def push_row_by_row(kept, q, c_q, after_c_q):
    rows = [*kept.unbind(1), *q.unbind(1)][-(c_q + after_c_q - 1) :]
    left = rows[max(0, len(rows) - c_q - after_c_q + 2) :]
    return torch.stack(rows, 1), torch.stack(left, 1) if left else torch.zeros_like(q[:, :0])


def push_by_index(kept, q, c_q, after_c_q):
    total, most = kept.shape[1] + q.shape[1], c_q + after_c_q - 1
    queries = torch.cat((kept, q), 1)
    pick = torch.arange(total)
    return [queries[:, pick[pick >= total - most]], queries[:, pick[pick > total - most]]]


def push_windows_storage(kept, q, c_q, after_c_q):
    """Correct: returns a view of the window, which is itself a copy."""
    most = c_q + after_c_q - 1
    window = torch.cat([kept, q[:, -most:]], 1)
    window = window[:, max(0, window.shape[1] - most) :].clone()
    return window, window[:, max(0, window.shape[1] + 1 - most) :]


def push_by_attribute(kept, q, c_q, after_c_q):
    """Wrong: reads its state from an attribute, which a fresh tensor does not have."""
    queries = torch.cat([kept.state, q] if kept.shape[1] else [q], dim=1)
    most = c_q + after_c_q - 1
    window = queries[:, max(0, queries.shape[1] - most) :]
    kept = window[:, max(0, window.shape[1] - most + 1) :].clone()
    kept.state = kept.clone()
    return window, kept


def one_future_tile(t_tile, log_sum, v, taps, mixing, i0, rows, columns):
    """Wrong: computes one tile of U too many, whose columns are all in the future."""
    return passes(t_tile, log_sum, v, taps, mixing, i0, rows, columns, stop=i0 + rows + columns)


FAULTS = lesson19b.FAULTS

MUTANTS = {
    "ex19_1": [
        ("masked before the map", mask_before),
        ("-1e9 before the map", lambda *given: mask_before(*given, fill=-1e9)),
        ("transposed map", lambda t, m, i0, j0: tile(t, m.T, i0, j0)),
        ("no map", lambda t, m, i0, j0: tile(t, torch.eye(len(t), dtype=t.dtype), i0, j0)),
        ("no mask", lambda t, m, i0, j0: mixed(t, m)),
        ("masked with 0", lambda *given: tile(*given, fill=0.0)),
        ("masked with -1e9", lambda *given: tile(*given, fill=-1e9)),
        ("not itself", lambda *given: tile(*given, strict=True)),
        ("keys before the sequence", lambda *given: tile(*given, before=False)),
        ("counts from the tile's corner", lambda t, m, i0, j0: tile(t, m, 0, 0)),
        ("i0 and j0 swapped", lambda t, m, i0, j0: tile(t, m, j0, i0)),
        ("all pairs of heads", all_pairs),
        ("in place", in_place),
        ("float32", lambda t, m, i0, j0: tile(t.float(), m.float(), i0, j0)),
    ],
    "ex19_2": [
        ("no halo of rows", lambda *given: passes(*given, up=False)),
        ("no halo of columns", lambda *given: passes(*given, side=False)),
        ("no mask of U", lambda *given: passes(*given, mask=False)),
        ("softmax of a tile", lambda *given: passes(*given, of_all=True)),
        ("one L for all rows", lambda *given: passes(*given, halo_sums=False)),
        ("no second map", lambda *given: passes(*given[:4], None, *given[5:])),
        ("transposed map", lambda *given: passes(*given[:4], given[4].T, *given[5:])),
        ("flipped taps", lambda *given: passes(*given[:3], given[3].flip(1, 2), *given[4:])),
        ("leaves out the diagonal's tile", lambda *given: passes(*given, stop=max(1, given[5]))),
        ("one tile alone", lambda *given: passes(*given, stop=1)),
        ("whole rows", whole_rows),
        ("one tile in the future", one_future_tile),
        ("columns to the last token", lambda *given: passes(*given, stop=given[2].shape[1])),
        ("collects tiles into rows", tiles_into_a_row),
        ("exp without L inside", quotient),
        ("a slice from a negative start", negative_slice),
        ("L not above 700", lambda t, log_sum, *rest: passes(t, log_sum.clamp(max=700), *rest)),
    ],
    "ex19_3": [
        ("all of them", push_other(lambda a, b: (a, 10**6))),
        ("the first taps alone", push_other(lambda a, b: (a, 1))),
        ("one row too many", push_other(lambda a, b: (a, b + 1))),
        ("the product", push_other(lambda a, b: (a * b, 1))),
        ("twice the first", push_other(lambda a, b: (a, a))),
        ("a view of the prompt", push_a_view),
        ("-0", push_by_minus),
        ("forgets what was kept", push_only_new),
        ("keeps the window", push_keeps_the_window),
        ("the other order", lambda *given: push(*given)[::-1]),
        ("the window alone", lambda *given: push(*given)[0]),
        ("state as an attribute", push_by_attribute),
        ("newest first", lambda *given: tuple(x.flip(1) for x in push(*given))),
    ],
    "ex19_4": [
        ("all none", lambda: dict.fromkeys("abcde", "none")),
        ("b and c swapped", lambda: FAULTS | {"b": FAULTS["c"], "c": FAULTS["b"]}),
        ("another session's letters", lambda: {a: FAULTS[b] for a, b in zip("abcde", "bcdea")}),
        ("a and e swapped", lambda: FAULTS | {"a": FAULTS["e"], "e": FAULTS["a"]}),
        ("one left out", lambda: {name: FAULTS[name] for name in "abcd"}),
        ("no such word", lambda: FAULTS | {"d": "mask"}),
        ("a list", lambda: list(FAULTS.values())),
    ],
}

RIGHT = {
    "ex19_1": [tile, by_tensordot, by_heads, by_numbers, row_by_row],
    "ex19_2": [passes, last_column_first, tap_by_tap],
    "ex19_3": [push, push_row_by_row, push_by_index, push_windows_storage],
    "ex19_4": [lambda: dict(reversed(FAULTS.items()))],
}
