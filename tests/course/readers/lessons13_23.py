"""Answers of a reader of lessons 13, 14, 20 and 23: wrong ones that the checks once accepted, variants of
them, and unusual correct ones."""

import math

import torch

from kernels import reference
from readers.lessons01_08 import edit

# Lesson 13 --------------------------------------------------------------------------------------------------

ALONE = {
    "ex13_2": ("range(cuda.threadIdx.x, height * width, cuda.blockDim.x)", "height * width"),
    "ex13_3": ("range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x)", "rows * columns"),
    "ex13_4": ("range(cuda.threadIdx.x, c_q * c_k, cuda.blockDim.x)", "c_q * c_k"),
    "ex13_5": ("range(cuda.threadIdx.x, rows * d, cuda.blockDim.x)", "rows * d"),
    "ex13_6": ("range(cuda.threadIdx.x, columns * d, cuda.blockDim.x)", "columns * d"),
}
SEEN = "if 0 <= key <= query < log_sum.size:"
P = "p = math.exp(convolved(s_tile, w, i, j) - log_sum[query])"
FUTURE = "            p_tile[i, j] = d_t_tile[i, j] = float32(0)"
TOTAL = "        d_s_tile[i, j] = total"
TAP = "tap_sums[a, b] += d_t_tile[i, j] * s_tile[i + a, j + b]"
D_Q = "d_q_tile[i, c] += d_s_tile[i, j] * k[j0 + j, c]"
D_K = "d_k_tile[j, c] += d_s_tile[i, j] * q[i0 + i, c]"


def by_one_thread(check):
    loop, count = ALONE[check]
    return "one thread does all", edit(check, (loop, f"range({count} if cuda.threadIdx.x == 0 else 0)"))


def clipped(i0, j0, rows, columns, c_q, c_k):
    """Wrong: clips the frames at row and column 0."""
    left, above = (c_k - 1) // 2, c_q - 1
    right = c_k - 1 - left
    of_t = i0, i0 + rows + above, max(0, j0 - right), j0 + columns + left
    return of_t, (max(0, i0 - above), of_t[1], max(0, j0 - right - left), of_t[3] + right)


# Lesson 14 --------------------------------------------------------------------------------------------------

T = "conv2d(padded[None, None], w[None, None])[0, 0, 0]"
P_OF_T = "p = torch.exp(t - t.max())"
K_TILE = "load_rows(k, start - left, end - start + c_k - 1, traffic)"


def is_right(shapes=((1, 3, 4), (2, 3, 4), (9, 3, 4), (7, 2, 3)), size=None, d=4, tolerance=1e-5, said=bool):
    """Return a test of decoders like the solution's, but with the given shapes, tolerance and result type."""

    def answer(decode):
        for n, c_q, c_k in shapes:
            q, k, v = torch.randn(3, 2, 2, n, d)
            w = torch.randn(2, c_q, c_k) / math.sqrt(c_q * c_k)
            wanted = reference.conv_attention(*(x.double() for x in (q, k, v, w)))[:, :, -1:]
            for splits in range(1, n + 3):
                error = decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted
                error = size(error) if size else error.abs().max()
                if not error <= tolerance:
                    return said(False)
        return said(True)

    return answer


MAXIMUM_IN_SHARED_MEMORY = (
    "    m = MINUS_INFINITY\n    for s in range(splits):\n        m = max(m, part[s, d])\n",
    "    shared = cuda.shared.array(1, float32)\n    if c == 0:\n        shared[0] = MINUS_INFINITY\n"
    "        for s in range(splits):\n            shared[0] = max(shared[0], part[s, d])\n"
    "    cuda.syncthreads()\n    m = shared[0]\n",
)

# Lesson 20 --------------------------------------------------------------------------------------------------


def rounded(*sizes):
    """Wrong: computes bytes in float32, which has only 24 bits of precision."""
    tokens, layers, heads, d, latent, size = sizes
    both = torch.tensor([heads * d, latent], dtype=torch.float32) * 2 * tokens * layers * size
    return [int(x) for x in both]


def parts_in_a_list(p, d_o, w_v):
    return sum([p[h].T @ d_o[h] @ w_v[h].T for h in range(len(p))])


def by_autograd(p, d_o, w_v):
    v = torch.zeros(p.shape[2], w_v.shape[1], dtype=p.dtype, requires_grad=True)
    (p @ v @ w_v).backward(d_o)
    return v.grad


def rows_that_sum_to_one(p, d_o, w_v):
    return sum((p[h] / p[h].sum(1, keepdim=True)).T @ d_o[h] @ w_v[h].T for h in range(len(p)))


def heads_side_by_side(p, d_o, w_v):
    """Correct: computes one product over heads and queries together."""
    return p.permute(2, 0, 1).reshape(p.shape[2], -1) @ (d_o @ w_v.mT).reshape(-1, w_v.shape[1])


# Lesson 23 --------------------------------------------------------------------------------------------------


def visits_that_call_visits(mine, ranks, attend, exchange, merge):
    """Wrong: every recursive call keeps its K/V block alive until the last call returns."""
    pair = attend(mine)
    if ranks == 1:
        return pair
    mine = exchange(mine)
    return merge(pair, visits_that_call_visits(mine, ranks - 1, attend, exchange, merge))


def a_tree_of_pairs(mine, ranks, attend, exchange, merge):
    """Correct: stores pairs, but no K/V blocks."""
    pairs = [attend(mine)]
    for _ in range(ranks - 1):
        mine = exchange(mine)
        pairs.append(attend(mine))
    while len(pairs) > 1:
        pairs.append(merge(pairs.pop(0), pairs.pop(0)))
    return pairs[0]


def by_nan_to_num(one, other):
    (o, l), (other_o, other_l) = one, other
    total = torch.logaddexp(l, other_l)
    weights = [torch.exp(part - total).nan_to_num()[:, None] for part in (l, other_l)]
    return weights[0] * o + weights[1] * other_o, total


WRONG = {
    "ex13_1": [("clipped at the borders", clipped)],
    "ex13_2": [
        by_one_thread("ex13_2"),
        (
            "exponents from -20 on",
            edit("ex13_2", (P, P.replace("exp(", "exp(max(float32(-20), ")[:-1] + "))")),
        ),
        ("64 queries at most", edit("ex13_2", (SEEN, "if 0 <= key <= query < min(64, log_sum.size):"))),
        (
            "a D of 0 is taken for a missing one",
            edit("ex13_2", (SEEN, SEEN[:-1] + " and delta[query % log_sum.size] != 0:")),
        ),
    ],
    "ex13_3": [
        by_one_thread("ex13_3"),
        ("float64", edit("ex13_3", ("float32(0)", "0.0"))),
        ("11 columns of taps", edit("ex13_3", ("range(c_k)", "range(min(11, c_k))"))),
        (
            "adds by atomics",
            edit(
                "ex13_3", (TOTAL, f"{TOTAL[:-5]}float32(0)\n        cuda.atomic.add(d_s_tile, (i, j), total)")
            ),
        ),
    ],
    "ex13_4": [
        by_one_thread("ex13_4"),
        ("8 rows", edit("ex13_4", ("range(rows)", "range(min(8, rows))"))),
        (
            "adds by atomics",
            edit("ex13_4", (TAP, "cuda.atomic.add(tap_sums, (a, b), d_t_tile[i, j] * s_tile[i + a, j + b])")),
        ),
    ],
    "ex13_5": [
        by_one_thread("ex13_5"),
        ("8 columns", edit("ex13_5", ("range(columns)", "range(min(8, columns))"))),
        (
            "a zero is the end",
            edit("ex13_5", (D_Q, f"if d_s_tile[i, j] == 0:\n                break\n            {D_Q}")),
        ),
    ],
    "ex13_6": [
        by_one_thread("ex13_6"),
        (
            "adds by atomics",
            edit("ex13_6", (D_K, "cuda.atomic.add(d_k_tile, (j, c), d_s_tile[i, j] * q[i0 + i, c])")),
        ),
    ],
    "ex14_1": [
        (
            "scores to ±50",
            edit(
                "ex14_1", ("q_window @ k.T / math.sqrt(d)", "(q_window @ k.T / math.sqrt(d)).clamp(-50, 50)")
            ),
        ),
        ("T to ±500", edit("ex14_1", (T, f"{T}.clamp(-500, 500)"))),
        ("a T of 0 becomes -inf", edit("ex14_1", (T, f"torch.where((t := {T}) == 0, -math.inf, t)"))),
        ("a list", edit("ex14_1", (T, f"{T}.tolist()"))),
        ("64 keys", edit("ex14_1", (T, f"{T} * (torch.arange(n) >= n - 64)"))),
    ],
    "ex14_2": [
        (
            "loads for show",
            edit(
                "ex14_2", (K_TILE, f"{K_TILE}\n    k_tile = pad(k, (0, 0, left, c_k))[start : end + c_k - 1]")
            ),
        ),
        ("two exponentials", edit("ex14_2", (P_OF_T, "p = torch.exp(t) / torch.exp(t.max())"))),
        ("exponents from -20 on", edit("ex14_2", (P_OF_T, "p = torch.exp((t - t.max()).clamp(-20))"))),
        (
            "a T of 0 becomes -inf",
            edit("ex14_2", (P_OF_T, f"t = torch.where(t == 0, -math.inf, t)\n    {P_OF_T}")),
        ),
        ("T to 80", edit("ex14_2", (P_OF_T, f"t = t.clamp(-80, 80)\n    {P_OF_T}"))),
    ],
    "ex14_3": [
        ("the root of the mean square", is_right(size=lambda x: x.pow(2).mean().sqrt())),
        ("the sum", is_right(size=lambda x: x.sum().abs())),
        ("to 3e-5", is_right(tolerance=3e-5)),
        ("the first number of a row", is_right(size=lambda x: x[..., 0].abs().max())),
        ("the last number of a row", is_right(size=lambda x: x[..., -1].abs().max())),
        ("d = 1", is_right(d=1)),
        ("square taps", is_right([(1, 3, 3), (2, 4, 4), (9, 3, 3), (9, 4, 4)])),
        ("an error for True", is_right(said=lambda right: 1e-7 * right)),
    ],
    "ex14_4": [
        ("-1e30 for no score", edit("ex14_4", ("m = MINUS_INFINITY", "m = float32(-1e30)"))),
        (
            "64 splits",
            edit(
                "ex14_4", ("    m = MINUS_INFINITY", "    splits = min(splits, 64)\n    m = MINUS_INFINITY")
            ),
        ),
        ("l is 1 at least", edit("ex14_4", ("= o / l", "= o / max(l, float32(1))"))),
        ("l and a little", edit("ex14_4", ("= o / l", "= o / (l + float32(1e-6))"))),
        (
            "weights of 1e-9 at least",
            edit("ex14_4", ("weight(part[s, d], m)", "max(weight(part[s, d], m), float32(1e-9))")),
        ),
    ],
    "ex20_1": [("float32", rounded)],
    "ex20_3": [
        (
            "the last 64 keys",
            edit(
                "ex20_3",
                ("    q_latent", "    k_latent, v_latent = k_latent[-64:], v_latent[-64:]\n    q_latent"),
            ),
        ),
        (
            "scores of 0 masked",
            edit(
                "ex20_3",
                (
                    "torch.softmax(scale * q_latent @ k_latent.T, dim=-1)",
                    "torch.softmax(torch.where((s := q_latent @ k_latent.T) == 0, -torch.inf, scale * s), -1)",
                ),
            ),
        ),
    ],
    "ex20_4": [
        ("alpha without its sign", edit("ex20_4", ("alpha * back", "abs(alpha) * back"))),
        ("scores to ±500", edit("ex20_4", ("(j <= i, s, ", "(j <= i, s.clamp(-500, 500), "))),
    ],
    "ex20_5": [
        ("all parts in a list", parts_in_a_list),
        ("autograd", by_autograd),
        ("rows that sum to one", rows_that_sum_to_one),
    ],
    "ex23_3": [("visits that call visits", visits_that_call_visits)],
}
RIGHT = {
    "ex13_2": [
        ("no weight above 1", edit("ex13_2", (P, P.replace("math.exp(", "min(float32(1), math.exp(") + ")"))),
        (
            "0 times dP",
            edit(
                "ex13_2",
                (FUTURE, "            p_tile[i, j] = float32(0)\n            d_t_tile[i, j] *= float32(0)"),
            ),
        ),
    ],
    "ex13_3": [
        (
            "masked by a factor",
            edit(
                "ex13_3",
                ("if j0 + j <= i0 + i:", "if True:"),
                (TOTAL, f"{TOTAL} * float32(j0 + j <= i0 + i)"),
            ),
        )
    ],
    "ex14_3": [("a tensor for True", is_right(said=torch.tensor))],
    "ex14_4": [
        (
            "the largest m in shared memory",
            edit(
                "ex14_4",
                ("    if c >= d:\n        return\n", ""),
                MAXIMUM_IN_SHARED_MEMORY,
                ("        o += shrink * part[s, c]", "        o += shrink * part[s, min(c, d - 1)]"),
                ("    out[batch", "    if c < d:\n        out[batch"),
            ),
        )
    ],
    "ex20_5": [("heads side by side", heads_side_by_side)],
    "ex23_2": [("weights by nan_to_num", by_nan_to_num)],
    "ex23_3": [("a tree of pairs", a_tree_of_pairs)],
}
