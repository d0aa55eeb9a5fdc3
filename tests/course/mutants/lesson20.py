"""Wrong answers to the exercises of lesson 20, each labelled with its mistake, and alternative correct
answers."""

import math

import torch


def cache_bytes(tokens, layers, heads, d, latent, size):
    return 2 * tokens * layers * heads * d * size, 2 * tokens * layers * latent * size


def multiply_adds(n_q, n_k, heads, d, latent):
    expand = 2 * heads * (n_k * latent * d + n_q * n_k * d)
    return expand, 2 * heads * (n_q * d * latent + n_q * n_k * latent)


def decode(q, k_latent, v_latent, w_q, w_v, scale):
    p = torch.softmax(scale * (q[:, None] @ w_q)[:, 0] @ k_latent.T, dim=-1)
    return ((p @ v_latent)[:, None] @ w_v)[:, 0]


def decode_by_einsum(q, k_latent, v_latent, w_q, w_v, scale):
    s = torch.einsum("hl,nl->hn", torch.einsum("hd,hdl->hl", q, w_q), k_latent) * scale
    return torch.einsum("hl,hld->hd", torch.einsum("hn,nl->hl", s.softmax(1), v_latent), w_v)


def decode_head_by_head(q, k_latent, v_latent, w_q, w_v, scale):
    rows = []
    for head in range(len(q)):
        s = k_latent @ (q[head] @ w_q[head]) * scale
        p = torch.exp(s - s.max())
        rows.append((p @ v_latent / p.sum()) @ w_v[head])
    return torch.stack(rows)


def expands(q, k_latent, v_latent, w_q, w_v, scale):
    k, v = k_latent @ w_q.mT, v_latent @ w_v
    return (torch.softmax(scale * q[:, None] @ k.mT, dim=-1) @ v)[:, 0]


def expands_values(q, k_latent, v_latent, w_q, w_v, scale):
    p = torch.softmax(scale * (q[:, None] @ w_q) @ k_latent.T, dim=-1)
    return (p @ (v_latent @ w_v))[:, 0]


def expands_head_by_head(q, k_latent, v_latent, w_q, w_v, scale):
    rows = []
    for head in range(len(q)):
        k, v = k_latent @ w_q[head].T, v_latent @ w_v[head]
        rows.append(torch.softmax(scale * (k @ q[head]), 0) @ v)
    return torch.stack(rows)


def expands_one_component_at_a_time(q, k_latent, v_latent, w_q, w_v, scale):
    s = sum(q[:, x : x + 1] * (w_q[:, x] @ k_latent.T) for x in range(q.shape[1]))
    p = torch.softmax(s * scale, -1)
    return torch.stack([(p * (w_v[:, :, x] @ v_latent.T)).sum(-1) for x in range(q.shape[1])], -1)


def decode_in_batches(q, k_latent, v_latent, w_q, w_v, scale):
    s = torch.bmm(torch.bmm(q[:, None], w_q), k_latent.T.expand(len(q), -1, -1))
    p = torch.softmax(s * scale, -1)
    return torch.bmm(torch.bmm(p, v_latent.expand(len(q), -1, -1)), w_v)[:, 0]


def no_maximum(q, k_latent, v_latent, w_q, w_v, scale):
    p = torch.exp(scale * (q[:, None] @ w_q)[:, 0] @ k_latent.T)
    return (((p / p.sum(1, keepdim=True)) @ v_latent)[:, None] @ w_v)[:, 0]


def tile(
    q_rows, k_rows, q_columns, k_columns, w_q, first, alpha, window, scale,
    *, past=0, offset=True, queries=True, masked=True, both=True, times=False,
):  # fmt: skip
    first_row, first_column, first_query = first
    i = torch.arange(len(q_rows))[:, None] + first_row * offset
    j = torch.arange(len(q_columns)) + first_column * offset
    straight, back = q_rows @ w_q @ k_columns.T, k_rows @ w_q.T @ q_columns.T
    band = (i - j >= past) & (i - j < window) & ((j >= first_query) | (not queries))
    extra = band * (alpha * back) if times else torch.where(band, alpha * back, 0)
    s = scale * (straight + extra) if both else scale * straight + extra
    return torch.where(j <= i, s, -math.inf) if masked else s


def tile_by_loops(q_rows, k_rows, q_columns, k_columns, w_q, first, alpha, window, scale):
    first_row, first_column, first_query = first
    s = torch.full((len(q_rows), len(q_columns)), -math.inf, dtype=q_rows.dtype)
    for r, row in enumerate(range(first_row, first_row + len(q_rows))):
        for c, column in enumerate(range(first_column, first_column + len(q_columns))):
            if column <= row:
                s[r, c] = scale * (q_rows[r] @ w_q @ k_columns[c])
                if row - column < window and column >= first_query:
                    s[r, c] += scale * alpha * (q_columns[c] @ w_q @ k_rows[r])
    return s


def tile_of_projected_columns(q_rows, k_rows, q_columns, k_columns, w_q, first, alpha, window, scale):
    first_row, first_column, first_query = first
    steps = first_row - first_column + torch.arange(len(q_rows))[:, None] - torch.arange(len(q_columns))
    known = torch.arange(len(q_columns)) >= first_query - first_column
    back = torch.where(known, k_rows @ (q_columns @ w_q).T, 0)
    s = scale * (q_rows @ w_q @ k_columns.T + alpha * back * (known & (steps < window)))
    return s.masked_fill(steps < 0, -math.inf)


def no_first_query(q_rows, k_rows, q_columns, k_columns, w_q, first, alpha, window, scale):
    known = torch.nan_to_num(q_columns)
    return tile(q_rows, k_rows, known, k_columns, w_q, (*first[:2], 0), alpha, window, scale)


def gradient(p, d_o, w_v):
    return sum(p[h].T @ d_o[h] @ w_v[h].T for h in range(len(p)))


MUTANTS = {
    "ex20_1": [
        ("keys alone", lambda *model: tuple(x // 2 for x in cache_bytes(*model))),
        ("latents for every head", lambda t, n, h, d, c, s: (2 * t * n * h * d * s, 2 * t * n * h * c * s)),
        ("one layer", lambda t, n, h, d, c, s: (2 * t * h * d * s, 2 * t * c * s)),
        ("numbers, not bytes", lambda t, n, h, d, c, s: cache_bytes(t, n, h, d, c, 1)),
        ("the other order", lambda *model: cache_bytes(*model)[::-1]),
        ("one latent for both", lambda *model: (cache_bytes(*model)[0], cache_bytes(*model)[1] // 2)),
        ("bfloat16 always", lambda t, n, h, d, c, s: cache_bytes(t, n, h, d, c, 2)),
    ],
    "ex20_2": [
        ("scores alone", lambda q, k, h, d, c: (2 * h * q * k * d, 2 * h * q * k * c)),
        ("the other order", lambda *shape: multiply_adds(*shape)[::-1]),
        ("one head", lambda q, k, h, d, c: multiply_adds(q, k, 1, d, c)),
        ("keys alone", lambda *shape: tuple(x // 2 for x in multiply_adds(*shape))),
        ("operations, twice as many", lambda *shape: tuple(2 * x for x in multiply_adds(*shape))),
        ("one query", lambda q, k, h, d, c: multiply_adds(1, k, h, d, c)),
        ("square", lambda q, k, h, d, c: multiply_adds(q, q, h, d, c)),
        (
            "projects queries twice over",
            lambda q, k, h, d, c: (multiply_adds(q, k, h, d, c)[0], 2 * h * (k * d * c + q * k * c)),
        ),
    ],
    "ex20_3": [
        ("expands both", expands),
        ("expands the values", expands_values),
        ("expands head by head", expands_head_by_head),
        ("expands one component at a time", expands_one_component_at_a_time),
        ("no maximum", no_maximum),
        ("no scale", lambda q, k, v, a, b, scale: decode(q, k, v, a, b, 1.0)),
        ("its own scale", lambda q, k, v, a, b, scale: decode(q, k, v, a, b, k.shape[1] ** -0.5)),
        ("the first head's W_v", lambda q, k, v, a, b, scale: decode(q, k, v, a, b[:1].expand_as(b), scale)),
        ("keys for values", lambda q, k, v, a, b, scale: decode(q, k, k, a, b, scale)),
        ("scales in place", lambda q, k, v, a, b, scale: decode(q.mul_(scale), k, v, a, b, 1.0)),
        ("forgets the last token", lambda q, k, v, a, b, scale: decode(q, k[:-1], v[:-1], a, b, scale)),
    ],
    "ex20_4": [
        ("a window one too long", lambda *given: tile(*given[:7], given[7] + 1, given[8])),
        ("not itself", lambda *given: tile(*given, past=1)),
        ("counts from its own corner", lambda *given: tile(*given, offset=False)),
        ("takes garbage queries", lambda *given: tile(*given, queries=False)),
        ("multiplies garbage by 0", lambda *given: tile(*given, times=True)),
        ("no mask", lambda *given: tile(*given, masked=False)),
        ("the band is not scaled", lambda *given: tile(*given, both=False)),
        ("alpha is 1", lambda *given: tile(*given[:6], 1.0, *given[7:])),
        ("alpha is 0", lambda *given: tile(*given[:6], 0.0, *given[7:])),
        ("takes NaN for the only garbage", no_first_query),
        ("no window", lambda *given: tile(*given[:7], 10**6, given[8])),
    ],
    "ex20_5": [
        ("averages", lambda p, d_o, w_v: gradient(p, d_o, w_v) / len(p)),
        ("the last head", lambda p, d_o, w_v: gradient(p[-1:], d_o[-1:], w_v[-1:])),
        ("no W_v", lambda p, d_o, w_v: sum(p[h].T @ d_o[h] for h in range(len(p)))),
        ("one W_v", lambda p, d_o, w_v: gradient(p, d_o, w_v[:1].expand_as(w_v))),
        ("all heads at once, too large", lambda p, d_o, w_v: (p.mT @ d_o @ w_v.mT).sum(0)),
        ("one row of P", lambda p, d_o, w_v: gradient(p[:, :1], d_o[:, :1], w_v)),
        ("for each head", lambda p, d_o, w_v: p.mT @ d_o @ w_v.mT),
    ],
}

RIGHT = {
    "ex20_1": [
        cache_bytes,
        lambda *model: [float(x) for x in cache_bytes(*model)],
        lambda t, n, h, d, c, s: torch.tensor([h * d, c]) * 2 * t * n * s,
    ],
    "ex20_2": [multiply_adds, lambda *shape: list(multiply_adds(*shape))],
    "ex20_3": [decode, decode_by_einsum, decode_head_by_head, decode_in_batches],
    "ex20_4": [tile, tile_by_loops, tile_of_projected_columns],
    "ex20_5": [
        gradient,
        lambda p, d_o, w_v: torch.einsum("hij,hid,hld->jl", p, d_o, w_v),
        lambda p, d_o, w_v: torch.cat(list(p.mT @ d_o), 1) @ w_v.mT.reshape(-1, w_v.shape[1]),
    ],
}
