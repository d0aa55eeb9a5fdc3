"""Wrong answers to the exercises of lesson 12, each labelled with its mistake, and alternative correct
answers."""

import math

import torch
from torch.nn.functional import conv2d, conv_transpose2d, pad

from kernels import reference

# Exercise 12.1 · softmax_backward ---------------------------------------------------------------------------


def column_of_d(p, d_p, o, d_o):
    return (d_o * o).sum(1, keepdim=True)


def softmax_with(
    weights=lambda t, log_sum: torch.exp(t - log_sum[:, None]),
    d=column_of_d,
    join=lambda p, d_p, d: p * (d_p - d),
):
    """Return a correct softmax_backward with some parts replaced."""

    def softmax_backward(t, log_sum, v, o, d_o):
        p, d_p = weights(t, log_sum), d_o @ v.T
        return p, join(p, d_p, d(p, d_p, o, d_o))

    return softmax_backward


def only_d_t(t, log_sum, v, o, d_o):
    return softmax_with()(t, log_sum, v, o, d_o)[1]


def d_p_from_the_output(t, log_sum, v, o, d_o):
    return softmax_with()(t, log_sum, o, o, d_o)


def in_single_precision(t, log_sum, v, o, d_o):
    return tuple(x.double() for x in softmax_with()(*(x.float() for x in (t, log_sum, v, o, d_o))))


def softmax_row_by_row(t, log_sum, v, o, d_o):
    """Correct: computes row by row, one probability at a time."""
    rows = []
    for row, top, mine, up in zip(t, log_sum, o, d_o):
        p = torch.tensor([math.exp(score - top) for score in row.tolist()], dtype=t.dtype)
        rows.append((p, p * (v @ up - mine @ up)))
    return tuple(torch.stack(part) for part in zip(*rows))


def by_the_table_of_derivatives(t, log_sum, v, o, d_o):
    """Wrong: multiplies dP by diag(P) - P Pᵀ, which needs whole rows of P and does not use L and o."""
    p = torch.softmax(t, 1)
    d_p = d_o @ v.T
    return p, torch.stack([(torch.diag(row) - torch.outer(row, row)) @ up for row, up in zip(p, d_p)])


def quotient(t, log_sum, v, o, d_o):
    p = torch.exp(t) / torch.exp(log_sum)[:, None]
    return p, p * (d_o @ v.T - (d_o * o).sum(1, keepdim=True))


def softmax_by_autograd(t, log_sum, v, o, d_o):
    t = t.clone().requires_grad_()
    p = torch.softmax(t, 1)
    return p.detach(), torch.autograd.grad(p @ v, t, d_o)[0]


# Exercise 12.2 · transposed_convolve ------------------------------------------------------------------------


def sides(c_q, c_k):
    """Return the padding (left, right, above, below) of the transposed convolution."""
    left = (c_k - 1) // 2
    return c_k - 1 - left, left, 0, c_q - 1


def sides_of_the_forward_pass(c_q, c_k):
    left = (c_k - 1) // 2
    return left, c_k - 1 - left, c_q - 1, 0


def sides_not_swapped(c_q, c_k):
    left = (c_k - 1) // 2
    return left, c_k - 1 - left, 0, c_q - 1


def sides_centred(c_q, c_k):
    left = (c_k - 1) // 2
    return c_k - 1 - left, left, (c_q - 1) // 2, c_q - 1 - (c_q - 1) // 2


def transposed_with(padding=sides, turn=lambda w: w.flip(0, 1), after=lambda d_s: d_s):
    """Return a correct transposed_convolve with some parts replaced."""

    def transposed_convolve(d_t, w):
        return after(conv2d(pad(d_t, padding(*w.shape))[None, None], turn(w)[None, None])[0, 0])

    return transposed_convolve


def wraps_around(d_t, w):
    n, (c_q, c_k) = len(d_t), w.shape
    d_s = torch.zeros_like(d_t)
    for i in range(n):
        for j in range(n):
            for a in range(c_q):
                for b in range(c_k):
                    r, c = i - (c_q - 1) + a, j - (c_k - 1) // 2 + b
                    if -n <= r and -n <= c < n:
                        d_s[r, c] += w[a, b] * d_t[i, j]
    return d_s


def with_a_channel_axis(d_t, w):
    return transposed_with()(d_t, w)[None]


def loops_in_single_precision(d_t, w):
    return by_loops(d_t, w, torch.zeros(d_t.shape, dtype=torch.float32))


def by_loops(d_t, w, d_s=None):
    """Correct: adds the gradient of every T to the scores that it has read."""
    n, (c_q, c_k) = len(d_t), w.shape
    d_s = torch.zeros_like(d_t) if d_s is None else d_s
    for i in range(n):
        for j in range(n):
            for a in range(c_q):
                for b in range(c_k):
                    r, c = i - (c_q - 1) + a, j - (c_k - 1) // 2 + b
                    if 0 <= r < n and 0 <= c < n:
                        d_s[r, c] += w[a, b] * d_t[i, j]
    return d_s


def by_conv_transpose(d_t, w):
    """Correct: calls PyTorch's transposed convolution and crops the result."""
    left = (w.shape[1] - 1) // 2
    return conv_transpose2d(d_t[None, None], w[None, None])[0, 0, w.shape[0] - 1 :, left : left + len(d_t)]


def by_torch_nn_grad(d_t, w):
    (c_q, c_k), n, left = w.shape, len(d_t), (w.shape[1] - 1) // 2
    room = 1, 1, n + c_q - 1, n + c_k - 1
    d_room = torch.nn.grad.conv2d_input(room, w[None, None], d_t[None, None])[0, 0]
    return d_room[c_q - 1 :, left : left + n]


# Exercise 12.3 · tap_gradient -------------------------------------------------------------------------------


def gradient_with(
    padding=sides_of_the_forward_pass, result=lambda d_w, n: d_w, met=lambda d_t, window: d_t * window
):
    """Return a correct tap_gradient with some parts replaced."""

    def tap_gradient(d_t, s0, c_q, c_k):
        n, room = len(d_t), pad(s0, padding(c_q, c_k))
        d_w = d_t.new_empty(c_q, c_k)
        for a in range(c_q):
            for b in range(c_k):
                d_w[a, b] = met(d_t, room[a : a + n, b : b + n]).sum()
        return result(d_w, n)

    return tap_gradient


def counts_the_border_row_twice(d_t, s0, c_q, c_k):
    middle = len(d_t) // 2
    upper, lower = d_t.clone(), d_t.clone()
    upper[middle + 1 :] = 0
    lower[:middle] = 0
    return gradient_with()(upper, s0, c_q, c_k) + gradient_with()(lower, s0, c_q, c_k)


def as_a_large_convolution(d_t, s0, c_q, c_k):
    """Correct: uses dT as the window that slides over the padded scores."""
    return conv2d(pad(s0, sides_of_the_forward_pass(c_q, c_k))[None, None], d_t[None, None])[0, 0]


def by_unfolding(d_t, s0, c_q, c_k):
    """Correct: extracts all windows at once."""
    windows = pad(s0, sides_of_the_forward_pass(c_q, c_k)).unfold(0, len(d_t), 1).unfold(1, len(d_t), 1)
    return torch.einsum("abij,ij->ab", windows, d_t)


def taps_by_torch_nn_grad(d_t, s0, c_q, c_k):
    left = (c_k - 1) // 2
    room = pad(s0, (left, c_k - 1 - left, c_q - 1, 0))
    return torch.nn.grad.conv2d_weight(room[None, None], (1, 1, c_q, c_k), d_t[None, None])[0, 0]


# Exercise 12.4 · conv_attention_backward --------------------------------------------------------------------


def scale_of(q):
    return 1 / math.sqrt(q.shape[1])


def conv_scores(q, k, w):
    s0 = torch.tril(scale_of(q) * q @ k.T)
    t = conv2d(pad(s0, sides_of_the_forward_pass(*w.shape))[None, None], w[None, None])[0, 0]
    return s0, t.masked_fill(torch.ones_like(t, dtype=torch.bool).triu(1), -math.inf)


def backward_with(
    softmax=softmax_with(),
    transposed=transposed_with(),
    mask=torch.tril,
    scale=scale_of,
    taps=gradient_with(),
    scores=lambda s0, q, k: s0,
    turn=lambda x: x.T,
):
    """Return a correct conv_attention_backward with some parts replaced."""

    def conv_attention_backward(q, k, v, w, o, log_sum, d_o):
        s0, t = conv_scores(q, k, w)
        p, d_t = softmax(t, log_sum, v, o, d_o)
        d_s = mask(transposed(d_t, w))
        return (
            scale(q) * d_s @ k,
            scale(q) * turn(d_s) @ q,
            turn(p) @ d_o,
            taps(d_t, scores(s0, q, k), *w.shape),
        )

    return conv_attention_backward


def right_then(change):
    return lambda *given: change(*backward_with()(*given))


def masks_d_t_only(q, k, v, w, o, log_sum, d_o):
    def softmax(*pieces):
        return tuple(map(torch.tril, softmax_with()(*pieces)))

    return backward_with(mask=torch.clone, softmax=softmax)(q, k, v, w, o, log_sum, d_o)


def gradient_of_k_without_transpose(q, k, v, w, o, log_sum, d_o):
    kept = []
    backward = backward_with(mask=lambda d_s: kept.append(torch.tril(d_s)) or kept[0])
    d_q, _, d_v, d_w = backward(q, k, v, w, o, log_sum, d_o)
    return d_q, scale_of(q) * kept[0] @ q, d_v, d_w


def with_autograd(q, k, v, w, o, log_sum, d_o):
    """Wrong: repeats the forward pass and uses autograd."""
    inputs = [x.clone().requires_grad_() for x in (q, k, v, w)]
    return torch.autograd.grad(
        torch.softmax(conv_scores(inputs[0], inputs[1], inputs[3])[1], 1) @ inputs[2], inputs, d_o
    )


def by_the_package(q, k, v, w, o, log_sum, d_o):
    """Wrong: calls the package's backward pass after adding batch and head dimensions."""
    many = [x[None, None] for x in (q, k, v)] + [w[None]] + [x[None, None] for x in (o, log_sum, d_o)]
    return tuple(x.reshape(y.shape) for x, y in zip(reference.conv_attention_backward(*many), (q, k, v, w)))


# Exercise 12.5 · diagnosis ----------------------------------------------------------------------------------

TRUTH = {"a": "not transposed", "b": "counted twice", "c": "no D", "d": "no mask"}


def swapped(one, other):
    return lambda: TRUTH | {one: TRUTH[other], other: TRUTH[one]}


RIGHT = {
    "ex12_1": [softmax_with(), softmax_row_by_row],
    "ex12_2": [transposed_with(), by_loops, by_conv_transpose],
    "ex12_3": [gradient_with(), as_a_large_convolution, by_unfolding],
    "ex12_4": [backward_with(), backward_with(transposed=by_loops, taps=by_unfolding)],
    "ex12_5": [lambda: TRUTH, lambda: dict(sorted(TRUTH.items(), reverse=True))],
}

MUTANTS = {
    "ex12_1": [
        ("whole rows of P in place of L and o", by_the_table_of_derivatives),
        (
            "D from P and dP, which takes whole rows",
            softmax_with(d=lambda p, d_p, o, d_o: (p * d_p).sum(1, keepdim=True)),
        ),
        ("exp(T) / exp(L)", lambda t, log_sum, v, o, d_o: quotient(t, log_sum, v, o, d_o)),
        ("autograd", softmax_by_autograd),
        (
            "changes t in place",
            lambda t, log_sum, v, o, d_o: softmax_with()(t.sub_(log_sum[:, None]), 0 * log_sum, v, o, d_o),
        ),
        ("no D", softmax_with(join=lambda p, d_p, d: p * d_p)),
        ("D added", softmax_with(join=lambda p, d_p, d: p * (d_p + d))),
        ("D not weighted by P", softmax_with(join=lambda p, d_p, d: p * d_p - d)),
        ("no P", softmax_with(join=lambda p, d_p, d: d_p - d)),
        ("D of columns", softmax_with(d=lambda p, d_p, o, d_o: (p * d_p).sum(0))),
        ("D is the plain mean of dP", softmax_with(d=lambda p, d_p, o, d_o: d_p.mean(1, keepdim=True))),
        ("D is one number for all rows", softmax_with(d=lambda p, d_p, o, d_o: (d_o * o).sum())),
        ("D is a mean over d", softmax_with(d=lambda p, d_p, o, d_o: (d_o * o).mean(1, keepdim=True))),
        ("D without dO", softmax_with(d=lambda p, d_p, o, d_o: o.sum(1, keepdim=True))),
        ("the derivative of a sigmoid", softmax_with(join=lambda p, d_p, d: p * (1 - p) * d_p)),
        ("L taken from columns", softmax_with(weights=lambda t, log_sum: torch.exp(t - log_sum))),
        ("no L", softmax_with(weights=lambda t, log_sum: torch.exp(t))),
        ("L as if it were l", softmax_with(weights=lambda t, log_sum: torch.exp(t) / log_sum[:, None])),
        ("dP from O", d_p_from_the_output),
        ("dT alone", only_d_t),
        ("in float32", in_single_precision),
    ],
    "ex12_2": [
        (
            "the convolution of the forward pass",
            transposed_with(padding=sides_of_the_forward_pass, turn=lambda w: w),
        ),
        ("taps not turned", transposed_with(turn=lambda w: w)),
        ("taps turned in rows only", transposed_with(turn=lambda w: w.flip(0))),
        ("taps turned in columns only", transposed_with(turn=lambda w: w.flip(1))),
        ("rows above instead of below", transposed_with(padding=sides_of_the_forward_pass)),
        ("sides not swapped", transposed_with(padding=sides_not_swapped)),
        ("rows centred", transposed_with(padding=sides_centred)),
        ("masked at once", transposed_with(after=torch.tril)),
        ("a dimension too many", with_a_channel_axis),
        ("wraps around", wraps_around),
        ("in float32", loops_in_single_precision),
        ("result transposed", transposed_with(after=lambda d_s: d_s.T)),
        ("torch.nn.grad", by_torch_nn_grad),
    ],
    "ex12_3": [
        ("torch.nn.grad", taps_by_torch_nn_grad),
        ("turned round", gradient_with(result=lambda d_w, n: d_w.flip(0, 1))),
        ("upside down", gradient_with(result=lambda d_w, n: d_w.flip(0))),
        ("rows below", gradient_with(padding=sides_not_swapped)),
        ("sides swapped", gradient_with(padding=lambda c_q, c_k: (c_k // 2, (c_k - 1) // 2, c_q - 1, 0))),
        ("a mean", gradient_with(result=lambda d_w, n: d_w / n**2)),
        ("the lower half only", gradient_with(met=lambda d_t, window: torch.tril(d_t) * window)),
        ("dT left out", gradient_with(met=lambda d_t, window: window)),
        ("a row counted twice", counts_the_border_row_twice),
        ("a product of matrices", gradient_with(met=lambda d_t, window: d_t @ window)),
        ("in float32", gradient_with(result=lambda d_w, n: d_w.float())),
    ],
    "ex12_4": [
        ("autograd", with_autograd),
        ("calls the package's backward pass", by_the_package),
        ("no mask", backward_with(mask=lambda d_s: d_s)),
        ("dT masked in the place of dS", masks_d_t_only),
        ("the diagonal masked too", backward_with(mask=lambda d_s: d_s.tril(-1))),
        ("the wrong half", backward_with(mask=torch.triu)),
        ("no D", backward_with(softmax=softmax_with(join=lambda p, d_p, d: p * d_p))),
        (
            "not transposed",
            backward_with(transposed=transposed_with(padding=sides_of_the_forward_pass, turn=lambda w: w)),
        ),
        ("no scale", backward_with(scale=lambda q: 1)),
        ("scale twice", backward_with(scale=lambda q: 1 / q.shape[1])),
        ("taps from S", backward_with(scores=lambda s0, q, k: scale_of(q) * q @ k.T)),
        ("taps from unscaled scores", backward_with(scores=lambda s0, q, k: torch.tril(q @ k.T))),
        ("taps from twice the scores", backward_with(scores=lambda s0, q, k: 2 * s0)),
        ("nothing turned in dK and dV", backward_with(turn=lambda x: x)),
        ("nothing turned in dK", gradient_of_k_without_transpose),
        ("dQ and dK swapped", right_then(lambda d_q, d_k, d_v, d_w: (d_k, d_q, d_v, d_w))),
        ("dW forgotten", right_then(lambda d_q, d_k, d_v, d_w: (d_q, d_k, d_v))),
        ("dV is 0", right_then(lambda d_q, d_k, d_v, d_w: (d_q, d_k, 0 * d_v, d_w))),
    ],
    "ex12_5": [
        *[
            (f"{one} and {other} swapped", swapped(one, other))
            for one, other in ("ab", "ac", "ad", "bc", "bd", "cd")
        ],
        ("one letter forgotten", lambda: {name: TRUTH[name] for name in "abc"}),
        ("another name", lambda: TRUTH | {"a": "flipped"}),
        ("the same for all", lambda: dict.fromkeys("abcd", "no D")),
        ("a list", lambda: list(TRUTH.values())),
    ],
}
