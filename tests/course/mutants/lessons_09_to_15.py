"""More answers to the exercises of lessons 09 to 15, of kinds that readers have tried.

The wrong answers return correct values for easy inputs, but violate a requirement of the exercise. The
correct answers are unusual.
"""

import runpy
from pathlib import Path

import torch
from numba import cuda
from numpy import float32
from torch import nn

from editing import edited
from kernels import reference
from kernels.common.tiles import MINUS_INFINITY
from kernels.reference.conv_tiled import halo_of, load_rows, owned
from kernels.reference.tiled import initial_state, update

L09, L10, L11, L12, L13, L14, L15 = (
    runpy.run_path(str(Path(__file__).with_name(f"lesson{number}.py")))
    for number in ("09", "10", "11", "12", "13", "14", "15")
)


def floats(answer):
    """Return an answer that returns the same numbers as floats."""
    return lambda *given: tuple(
        floats(lambda p=part: p)() if isinstance(part, tuple) else float(part) for part in answer(*given)
    )


def spoiling(answer, which, how):
    """Return an answer with correct results that modifies argument number `which` and does not restore it."""

    def spoils(*given):
        result = answer(*given)
        how(given[which])
        return result

    return spoils


def doubled(tensor):
    tensor.mul_(2)


# 10.3 -------------------------------------------------------------------------------------------------------


def forward_in(way):
    """Return lesson 10's loop over tiles with a different state for each tile of rows.

    way: (start, add, finish), three functions that create, update and evaluate the state.
    """
    start, add, finish = way

    def forward(q, k, v, w, loaded, traffic):
        n, halo = len(q), halo_of(w)
        rows, columns = owned(loaded, halo)
        out, log_sum = torch.empty_like(q), q.new_empty(n)
        for i0 in range(0, n, rows):
            count = min(rows, n - i0)
            q_tile, state = load_rows(q, i0 - halo.above, count + halo.above, traffic), start(count, q)
            for j0 in range(0, i0 + count, columns):
                width = min(columns, n - j0)
                k_tile = load_rows(k, j0 - halo.left, width + halo.across, traffic)
                v_tile = load_rows(v, j0, width, traffic)
                state = add(state, L10["by_taps"](q_tile, k_tile, w, i0, j0), v_tile)
            o, log_l = finish(state)
            traffic.store(out, slice(i0, i0 + count), o)
            traffic.store(log_sum, slice(i0, i0 + count), log_l[:, 0])
        return out, log_sum

    return forward


def summed(unit):
    """Return a state that adds up exp(T - unit) without a running maximum."""

    def add(state, t, v):
        p = torch.exp(t - unit)
        return state[0] + p.sum(1, keepdim=True), state[1] + p @ v

    return (
        lambda count, q: (q.new_zeros(count, 1), q.new_zeros(count, q.shape[1])),
        add,
        lambda state: (state[1] / state[0], torch.log(state[0]) + unit),
    )


def whole_rows():
    """Return a state that collects all T and V of a tile of rows, and applies softmax at the end."""

    def finish(state):
        t, v = torch.cat(state[0], 1), torch.cat(state[1])
        return torch.softmax(t, 1) @ v, torch.logsumexp(t, 1, keepdim=True)

    return lambda count, q: ([], []), lambda state, t, v: (state[0] + [t], state[1] + [v]), finish


def with_update():
    return (
        lambda count, q: initial_state(count, q.shape[1], like=q),
        update,
        lambda state: (state.o / state.l, state.m + torch.log(state.l)),
    )


def all_at_once(q, k, v, w, loaded, traffic):
    """Wrong: lets `traffic` count the loads, but computes with the whole arrays."""
    forward_in(with_update())(q, k, v, w, loaded, traffic)
    t = reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]
    return torch.softmax(t, 1) @ v, torch.logsumexp(t, 1)


# 11 ---------------------------------------------------------------------------------------------------------


def plain(dispatcher):
    return dispatcher.py_func


@cuda.jit(device=True)
def score_by_a_list(q_tile, k_tile, w, i0, j0, scale):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    if j0 - (w.shape[1] - 1) // 2 + x > i0 - (w.shape[0] - 1) + y:
        return float32(0)
    return scale * sum([q_tile[y, c] * k_tile[x, c] for c in range(q_tile.shape[1])])


@cuda.jit(device=True)
def score_by_a_generator(q_tile, k_tile, w, i0, j0, scale):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    if j0 - (w.shape[1] - 1) // 2 + x > i0 - (w.shape[0] - 1) + y:
        return float32(0)
    return scale * sum(q_tile[y, c] * k_tile[x, c] for c in range(q_tile.shape[1]))


@cuda.jit(device=True)
def every_row_for_a_sum(o, shrink, p_tile, v_tile):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    mine = float32(0)
    for row in range(p_tile.shape[0]):
        total = float32(0)
        for j in range(p_tile.shape[1]):
            total += p_tile[row, j] * v_tile[j, x]
        if row == y:
            mine = total
    return o * shrink + mine


@cuda.jit(device=True)
def values_in_a_list(o, shrink, p_tile, v_tile):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    parts = [o * shrink]
    for j in range(p_tile.shape[1]):
        parts.append(p_tile[y, j] * v_tile[j, x])
    return sum(parts)


row_max, row_sum, weight = L11["row_max"], L11["row_sum"], L11["weight"]


@cuda.jit(device=True)
def absorb_where_nothing_was(t, m, l):
    """Correct: uses the factor 1 before the first key, when l and o are 0."""
    new_m = max(m, row_max(t))
    shrink = weight(m, new_m) if l > 0 else float32(1)
    p = weight(t, new_m)
    return new_m, l * shrink + row_sum(p), shrink, p


@cuda.jit(device=True)
def absorb_without_a_maximum(t, m, l):
    p = weight(t, float32(0))
    return float32(0), l * weight(m, float32(0)) + row_sum(p), weight(m, float32(0)), p


@cuda.jit(device=True)
def convolve_from_the_end(s_tile, w, i0, j0):
    """Correct: loops over the taps from the end."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    size, (c_q, c_k) = s_tile.shape[0], w.shape
    total = float32(0)
    if y + c_q > size or x + c_k > size or j0 + x > i0 + y:
        return MINUS_INFINITY
    for a in range(c_q - 1, -1, -1):
        for b in range(c_k - 1, -1, -1):
            total += w[a, b] * s_tile[y + a, x + b]
    return total


# 13 ---------------------------------------------------------------------------------------------------------

convolved = L13["convolved"]


@cuda.jit(device=True)
def s_from_the_end(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Correct: loops over the taps from the end."""
    for e in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        i, j = e // columns, e % columns
        total = float32(0)
        if j0 + j <= i0 + i:
            for a in range(w.shape[0]):
                for b in range(w.shape[1]):
                    total += w[-1 - a, -1 - b] * d_t_tile[i + a, j + b]
        d_s_tile[i, j] = total


@cuda.jit(device=True)
def w_by_sum(tap_sums, d_t_tile, s_tile, w, rows, columns, right):
    c_q, c_k = w.shape
    for e in range(cuda.threadIdx.x, c_q * c_k, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        tap_sums[a, b] += sum(
            [
                d_t_tile[i, right + j] * s_tile[i + a, right + j + b]
                for i in range(rows)
                for j in range(columns)
            ]
        )


def two_exponentials(form):
    return edited(L13["gradient_of_t"], ("math.exp(convolved(s_tile, w, i, j) - log_sum[query])", form))


# 14 ---------------------------------------------------------------------------------------------------------


def merge_by_thread_0(parts, out):
    head, batch = cuda.blockIdx.x, cuda.blockIdx.y
    part, d = parts[batch, head], out.shape[3]
    if cuda.threadIdx.x == 0:
        for c in range(d):
            m, l, o = MINUS_INFINITY, float32(0), float32(0)
            for s in range(part.shape[0]):
                m = max(m, part[s, d])
            for s in range(part.shape[0]):
                l += weight(part[s, d], m) * part[s, d + 1]
                o += weight(part[s, d], m) * part[s, c]
            out[batch, head, 0, c] = o / l


def merge_with_max_of_a_list(parts, out):
    part, c, d = parts[cuda.blockIdx.y, cuda.blockIdx.x], cuda.threadIdx.x, out.shape[3]
    if c < d:
        m = max([part[s, d] for s in range(part.shape[0])])
        l, o = float32(0), float32(0)
        for s in range(part.shape[0]):
            l += weight(part[s, d], m) * part[s, d + 1]
            o += weight(part[s, d], m) * part[s, c]
        out[cuda.blockIdx.y, cuda.blockIdx.x, 0, c] = o / l


def testing(*edits):
    return edited(L14["is_right"], *edits)


ERROR, LIMIT = (
    "(decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted).abs().max()",
    "if not error <= 1e-5:",
)


# 15 ---------------------------------------------------------------------------------------------------------


class SharedTaps(L15["TapAttention"]):
    """Wrong: all heads share one set of taps."""

    def __init__(self, width, heads, kernel_size):
        super().__init__(width, heads, kernel_size)
        self.taps = nn.Parameter(reference.identity_taps(1, *kernel_size).expand(heads, *kernel_size))


class WritesIntoX(L15["TapAttention"]):
    def forward(self, x):
        result = super().forward(x)
        x.zero_()
        return result


MUTANTS = {
    "ex09_1": [
        ("masks s0 in place", spoiling(L09["by_a_padded_window"], 0, lambda s: s.neg_())),
        ("changes the taps", spoiling(L09["from_the_newest"], 1, doubled)),
    ],
    "ex09_2": [
        ("scales q in place", spoiling(L09["by_shifting"], 0, doubled)),
        ("scales k in place", spoiling(L09["by_scores"], 1, doubled)),
        ("turns w in place", spoiling(L09["by_shifting"], 2, doubled)),
    ],
    "ex09_3": [
        ("a limit of 1e-3", L09["later"](tolerance=1e-2)),
        (
            "looks at the mean",
            lambda attend, q, k, v: all(
                (
                    attend(*(torch.cat([x[:t], torch.randn_like(x[t:])]) for x in (q, k, v)))[:t]
                    - attend(q, k, v)[:t]
                ).mean()
                < 1e-6
                for t in range(1, len(q))
            ),
        ),
    ],
    "ex10_1": [("floats", floats(L10["by_counting"])), ("floats, by a division", floats(L10["loading"]()))],
    "ex10_2": [
        ("spoils q_tile", spoiling(L10["by_taps"], 0, doubled)),
        ("spoils k_tile", spoiling(L10["by_taps"], 1, doubled)),
        ("spoils w", spoiling(L10["by_taps"], 2, doubled)),
    ],
    "ex10_3": [
        ("no maximum", forward_in(summed(0))),
        ("50 for a maximum", forward_in(summed(50))),
        ("-50 for a maximum", forward_in(summed(-50))),
        ("a softmax of whole rows at the end", forward_in(whole_rows())),
        ("the arrays themselves, after loading for show", all_at_once),
    ],
    "ex11_1": [
        ("a list", score_by_a_list),
        ("a generator", score_by_a_generator),
        ("a plain function", plain(L11["score"])),
        (
            "1/√size for the scale",
            edited(L11["score"], ("return scale * total", "return float32(q_tile.shape[1] ** -0.5) * total")),
        ),
        (
            "the block's number for its row",
            edited(L11["score"], ("q_tile[y, c]", "q_tile[(y + cuda.blockIdx.x) % q_tile.shape[0], c]")),
        ),
    ],
    "ex11_2": [
        ("a plain function", plain(L11["convolve"])),
        (
            "right in block 0 only",
            edited(L11["convolve"], ("return total", "return total if cuda.blockIdx.x == 0 else float32(0)")),
        ),
    ],
    "ex11_3": [
        ("no maximum", absorb_without_a_maximum),
        ("a plain function", plain(L11["absorb"])),
        ("never shrinks", edited(L11["absorb"], ("shrink = weight(m, new_m)", "shrink = float32(1)"))),
    ],
    "ex11_4": [
        ("a list", values_in_a_list),
        ("every row of P for one", every_row_for_a_sum),
        ("a plain function", plain(L11["add_values"])),
    ],
    "ex11_5": [
        (
            "four tiles of keys",
            L11["kernel"](("s_tile[y, x] = p", "s_tile[y, x] = p if j0 < 4 * columns else float32(0)")),
        ),
        (
            "1/√d for the scale",
            L11["kernel"](
                (
                    "score(q_tile, k_tile, w, i0, j0, scale)",
                    "score(q_tile, k_tile, w, i0, j0, float32(d**-0.5))",
                )
            ),
        ),
    ],
    "ex12_1": [
        (
            "exp(T) · exp(-L)",
            lambda t, log_sum, v, o, d_o: (lambda p: (p, p * (d_o @ v.T - (d_o * o).sum(1, keepdim=True))))(
                torch.exp(t) * torch.exp(-log_sum)[:, None]
            ),
        ),
        (
            "a softmax for P",
            lambda t, log_sum, v, o, d_o: (lambda p: (p, p * (d_o @ v.T - (d_o * o).sum(1, keepdim=True))))(
                torch.softmax(t, 1)
            ),
        ),
        (
            "P V for O",
            lambda t, log_sum, v, o, d_o: (
                lambda p: (p, p * (d_o @ v.T - (d_o * (p @ v)).sum(1, keepdim=True)))
            )(torch.exp(t - log_sum[:, None])),
        ),
    ],
    "ex12_2": [
        (
            "torch.func.vjp",
            lambda d_t, w: torch.func.vjp(
                lambda s: reference.convolve(s[None, None], w[None])[0, 0], torch.zeros_like(d_t)
            )[1](d_t)[0],
        ),
        ("spoils d_t", spoiling(L12["by_conv_transpose"], 0, doubled)),
    ],
    "ex12_3": [
        (
            "torch.func.jacrev",
            lambda d_t, s0, c_q, c_k: torch.func.jacrev(
                lambda w: (reference.convolve(s0[None, None], w[None])[0, 0] * d_t).sum()
            )(d_t.new_zeros(c_q, c_k)),
        ),
        ("spoils s0", spoiling(L12["by_unfolding"], 1, doubled)),
    ],
    "ex12_4": [
        ("spoils q", spoiling(L12["backward_with"](), 0, doubled)),
        ("spoils o", spoiling(L12["backward_with"](), 4, doubled)),
    ],
    "ex13_1": [("floats", floats(L13["to_load"]))],
    "ex13_2": [
        (
            "exp(T) / exp(L)",
            two_exponentials("math.exp(convolved(s_tile, w, i, j)) / math.exp(log_sum[query])"),
        ),
        (
            "exp(T) · exp(-L)",
            two_exponentials("math.exp(convolved(s_tile, w, i, j)) * math.exp(-log_sum[query])"),
        ),
        ("a plain function", plain(L13["gradient_of_t"])),
    ],
    "ex13_4": [("a list", w_by_sum), ("a plain function", plain(L13["add_d_w"]))],
    "ex14_1": [
        ("spoils the window", spoiling(L14["window_scores"], 0, doubled)),
        ("spoils k", spoiling(L14["window_scores"], 1, doubled)),
    ],
    "ex14_2": [
        ("spoils the window", spoiling(L14["split_state"], 0, doubled)),
        ("spoils w", spoiling(L14["split_state"], 3, doubled)),
    ],
    "ex14_3": [
        ("never more splits than keys", testing(("range(1, n + 3)", "range(1, n + 1)"))),
        ("no abs", testing((".abs()", ""))),
        (
            "no abs, the other way round",
            testing((ERROR, "(wanted - decode(q[:, :, -c_q:], k, v, w, splits=splits)).max()")),
        ),
        ("1e-3", testing(("<= 1e-5", "<= 1e-3"))),
        ("the mean", testing((".abs().max()", ".abs().mean()"))),
    ],
    "ex14_4": [
        ("thread 0 does all", merge_by_thread_0),
        ("a list", merge_with_max_of_a_list),
        ("-1e9 for -inf", edited(L14["merge_splits"], ("m = MINUS_INFINITY", "m = float32(-1e9)"))),
        ("-1e4 for -inf", edited(L14["merge_splits"], ("m = MINUS_INFINITY", "m = float32(-1e4)"))),
    ],
    "ex15_1": [("one set of taps for all heads, by expand", SharedTaps), ("writes into x", WritesIntoX)],
    "ex15_2": [("a tensor", lambda model, text, size: torch.tensor(L15["by_counting"](model, text, size)))],
    "ex15_3": [
        ("floats", lambda taps: [tuple(map(float, pair)) for pair in L15["strongest_with"]()(taps)]),
        ("tensors", lambda taps: [tuple(map(torch.tensor, pair)) for pair in L15["strongest_with"]()(taps)]),
    ],
}

RIGHT = {
    "ex09_3": [L09["by_prefixes"], L09["by_the_jacobian"]],
    "ex10_3": [forward_in(with_update())],
    "ex11_2": [convolve_from_the_end],
    "ex11_3": [absorb_where_nothing_was],
    "ex12_3": [
        lambda d_t, s0, c_q, c_k: torch.stack(
            [
                torch.stack(
                    [
                        (
                            L12["conv2d"](
                                L12["pad"](s0, ((c_k - 1) // 2, c_k - 1 - (c_k - 1) // 2, c_q - 1, 0))[
                                    None, None
                                ],
                                one.reshape(1, 1, c_q, c_k),
                            )[0, 0]
                            * d_t
                        ).sum()
                        for one in row
                    ]
                )
                for row in torch.eye(c_q * c_k, dtype=d_t.dtype).reshape(c_q, c_k, -1)
            ]
        )
    ],
    "ex13_3": [s_from_the_end],
    "ex14_3": [
        testing(("        wanted = ", "        v = 30 * v\n        wanted = ")),
        testing(("range(1, n + 3)", "range(n + 5, 0, -1)")),
    ],
    "ex14_4": [edited(L14["merge_splits"], ("m = MINUS_INFINITY", "m = part[splits - 1, d]"))],
    "ex15_2": [lambda model, text, size: float(L15["by_counting"](model, text, size))],
    "ex15_3": [lambda taps: [list(pair) for pair in L15["strongest_with"]()(taps)]],
}
