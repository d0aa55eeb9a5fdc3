"""Checks of lesson 12: the gradients of the softmax, the convolution and the taps, then all gradients
together, and four faulty versions to diagnose."""

import math
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import conv2d, pad

from course.check import inputs, letters
from course.check.backward_by_hand import (
    MISTAKES,
    attend,
    backward_with,
    convolve,
    forward_scores,
    future,
    gather,
    random,
    scatter,
    softmax_gradient,
    with_zeros,
    without_d,
)
from course.check.harness import compare, exercise, fail, instance
from course.check.tensors import within
from kernels import reference

# (tokens, c_q, c_k): first one in which no two mistakes look alike; then one token, one tap, even and odd,
# oblong, more taps than tokens.
WINDOWS = [
    (6, 3, 4),
    (1, 1, 1),
    (1, 3, 3),
    (4, 2, 3),
    (5, 1, 1),
    (7, 4, 2),
    (5, 7, 11),
    (9, 6, 11),
    (8, 1, 5),
    (8, 5, 1),
    (41, 2, 2),
]
TOLERANCE = 1e-9


@exercise("12.1", "softmax_backward")
def ex12_1(softmax_backward, rng):
    shapes = [
        (6, 4, None),
        (1, 1, None),
        (1, 4, None),
        (3, 1, None),
        (9, 3, None),
        (45, 3, None),
        *((7, 2, scores) for scores in list(inputs.TO_1000)[1:]),
    ]
    for n, d, loud in shapes:
        t = (
            torch.tensor(rng.standard_normal((n, n)) + (inputs.TO_1000[loud](rng, n) if loud else 0))
            .masked_fill(future(n), -math.inf)
            .requires_grad_()
        )
        v, d_o = random(rng, 2, n, d)
        p = torch.softmax(t, 1)
        o, log_sum = p @ v, torch.logsumexp(t, 1).detach()
        (d_t,) = torch.autograd.grad(o, t, d_o)
        call = f"softmax_backward(t {(n, n)}, log_sum {(n,)}, v, o, d_o {(n, d)}){f', {loud}' * bool(loud)}"
        check_softmax(softmax_backward, t.detach(), log_sum, v, o.detach(), d_o, p.detach(), d_t, call)
        # weights above 1, and as small as 1e-10, which a dO of 1e10 makes large
        t = t - torch.tensor(rng.uniform(0, 22, (n, n)) * (np.arange(n) > 0))
        log_sum, o, d_o = log_sum - torch.tensor(rng.uniform(0.5, 1, n)), random(rng, n, d), 1e10 * d_o
        p = torch.exp(t.detach() - log_sum[:, None])
        check_softmax(
            softmax_backward,
            t.detach(),
            log_sum,
            v,
            o,
            d_o,
            p,
            softmax_gradient(p, v, o, d_o),
            f"{call}, where L and o are not those of t and v",
        )
    return (
        f"P and dT of 1 to 45 tokens against autograd, with scores to ±{inputs.FAR}; with L and o as they are"
        " handed over"
    )


def check_softmax(softmax_backward, t, log_sum, v, o, d_o, p, d_t, call):
    """Check one call against the expected p and d_t."""
    got = pair(by_hand(softmax_backward, (t, log_sum, v, o, d_o), call), call)
    judge("P", got[0], p, call, {}, LINES["P"])
    judge("dT", got[1], d_t, call, softmax_mistakes(p, v, o, d_o), LINES["dT"])


@exercise("12.2", "transposed_convolve")
def ex12_2(transposed_convolve, rng):
    for n, c_q, c_k in WINDOWS:
        d_t, w = with_zeros(rng, n, n), random(rng, c_q, c_k)
        s = torch.zeros_like(d_t, requires_grad=True)
        (wanted,) = torch.autograd.grad(convolve(s, w), s, d_t)
        call = f"transposed_convolve(d_t {(n, n)}, w {(c_q, c_k)})"
        judge(
            "dS0",
            by_hand(transposed_convolve, (d_t, w), call),
            wanted,
            call,
            convolution_mistakes(d_t, w),
            READERS,
        )
    return f"{len(WINDOWS)} shapes of 1 to 41 tokens and 1 × 1 to 7 × 11 taps against autograd"


@exercise("12.3", "tap_gradient")
def ex12_3(tap_gradient, rng):
    for n, c_q, c_k in WINDOWS:
        d_t, s0 = with_zeros(rng, 2, n, n)
        w = torch.zeros(c_q, c_k, dtype=torch.float64, requires_grad=True)
        (wanted,) = torch.autograd.grad(convolve(s0, w), w, d_t)
        call = f"tap_gradient(d_t {(n, n)}, s0 {(n, n)}, c_q={c_q}, c_k={c_k})"
        judge(
            "dW",
            by_hand(tap_gradient, (d_t, s0, c_q, c_k), call),
            wanted,
            call,
            tap_mistakes(d_t, s0, c_q, c_k),
            MET,
        )
    return f"{len(WINDOWS)} shapes of 1 to 41 tokens and 1 × 1 to 7 × 11 taps against autograd"


@exercise("12.4", "conv_attention_backward")
def ex12_4(conv_attention_backward, rng):
    for n, c_q, c_k in WINDOWS:
        d = int(rng.integers(2, 6))
        q, k, v, d_o = random(rng, 4, n, d)
        d_o = 100 * d_o
        leaves = [x.requires_grad_() for x in (q, k, v, random(rng, c_q, c_k))]
        o, log_sum = attend(*leaves)
        wanted = torch.autograd.grad(o, leaves, d_o)
        given = [x.detach() for x in (*leaves, o, log_sum)] + [d_o]
        call = (
            f"conv_attention_backward(q, k, v {(n, d)}, w {(c_q, c_k)}, o {(n, d)}, log_sum {(n,)}, d_o"
            f" {(n, d)})"
        )
        check_backward(conv_attention_backward, given, wanted, call)
        given[4:6] = random(rng, n, d), log_sum.detach() - torch.tensor(rng.uniform(0.5, 1, n))
        check_backward(
            conv_attention_backward,
            given,
            backward_with()(*given),
            f"{call}, where L and o are not those of q, k and v",
        )
    return (
        f"dV, dW, dQ and dK for {len(WINDOWS)} shapes of 1 to 41 tokens and 1 × 1 to 7 × 11 taps against"
        " autograd; with L and o as they are handed over"
    )


def check_backward(conv_attention_backward, given, wanted, call):
    """Check one call against the expected (dQ, dK, dV, dW)."""
    got = dict(zip(NAMES, four(by_hand(conv_attention_backward, given, call), call), strict=True))
    wanted = dict(zip(NAMES, wanted, strict=True))
    for name in ("dV", "dW", "dQ", "dK"):  # in the order in which they are computed
        judge(name, got[name], wanted[name], call, whole_mistakes(name, given), LINES[name])


@exercise("12.5", "diagnosis")
def ex12_5(diagnosis, rng):
    letters.judge(diagnosis(), truth, EVIDENCE)
    return "all four identified by their results"


# Judging a piece --------------------------------------------------------------------------------------------

NAMES = "dQ", "dK", "dV", "dW"
BY_HAND = (
    "Here the gradient is computed by hand, from the formulas of this lesson: autograd, torch.nn.grad and the"
    " package's own gradients are what it is compared with."
)
READY_MADE = {"convolution_backward"}  # torch.nn.grad calls it
PROVIDED = reference.masked_scores, reference.conv_scores, reference.convolve


def by_hand(answer, given, call):
    """Return answer(*given). Reject it if it uses autograd or the package's gradients, or modifies its
    inputs."""

    def refuse(*_, **__):
        fail("it asks autograd", call=call, hint=BY_HAND)

    with (
        patch("torch.autograd.graph._engine_run_backward", refuse),
        patch("torch.autograd._engine_run_backward", refuse),
    ):
        return within(answer, tuple(given), call=call, refused=READY_MADE, allowed=PROVIDED, hint=BY_HAND)


SINGLE = (
    "Correct to about seven digits only: is a tensor float32? torch.zeros_like(x) and x.new_zeros keep the"
    " type of x."
)


def judge(name, got, wanted, call, mistakes, hint):
    """Compare one result with autograd's. If a known mistake explains every value, show its hint."""
    compare(
        got, wanted, what=name, call=call, tolerance=TOLERANCE, hint=diagnose(got, wanted, mistakes) or hint
    )
    instance(got, torch.Tensor, what=f"{name} as a tensor", call=call)


def diagnose(got, wanted, mistakes):
    """Return the hint whose mistake reproduces the learner's values exactly, if there is one."""
    if not torch.is_tensor(got) or got.shape != wanted.shape:
        return None
    if torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-5):
        return SINGLE
    same = (
        hint
        for hint, mistaken in mistakes.items()
        if mistaken.shape == got.shape and torch.allclose(got.double(), mistaken)
    )
    return next(same, None)


def pair(answer, call):
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        fail(
            "softmax_backward must return two tensors, P and dT", call=call, hint="End with `return p, ...`."
        )
    return answer


def four(answer, call):
    if not isinstance(answer, tuple | list) or len(answer) != 4:
        fail(
            "the result must be four tensors: dQ, dK, dV, dW",
            call=call,
            hint="End with a return of four tensors, in this order.",
        )
    if isinstance(answer, list):
        fail("the four results are in a list, but autograd expects a tuple", call=call, hint=ORDER)
    return answer


# 12.5 -------------------------------------------------------------------------------------------------------


truth = letters.drawn(["not transposed", "counted twice", "no D", "no mask"])


def without_name(backward):
    """Return a function that calls `backward`, so that the functions of MISTAKES cannot be recognised."""
    return lambda *given: backward(*given)


under_test = {letter: without_name(MISTAKES[name]) for letter, name in truth.items()}
EVIDENCE = (
    "Without D, dT is wrong and everything after it: dQ, dK and dW. Halo rows that count twice spoil dW"
    " alone. The other two spoil dQ and dK. A missing mask does no harm with the taps (x, y, 0), which never"
    " read across the diagonal; untransposed taps do no harm with (x, y, x), the same in both directions."
)


# What the likely mistakes give ------------------------------------------------------------------------------

READERS = (
    "S0[r, c] is read by T[r + P_q - a, c + P_k - b] with the tap (a, b): rows below it, and columns on both"
    " sides."
)
FORWARD = (
    "Equal to the convolution of the forward pass. Which T read this score? The rows below, with the taps"
    " flipped."
)
NOT_TURNED = "The rows are correct, but the taps are not flipped."
FROM_ABOVE = "The taps are flipped, but the rows come from above: S0[r, c] is read by the rows r and below."
NOT_SWAPPED = (
    "Off by a column where c_k is even: seen from S0 the sides are swapped, c_k - 1 - P_k columns left and"
    " P_k right."
)
SHIFTED = "Off by a column where c_k is even: (c_k - 1) // 2 columns to the left of j, the rest to the right."
MET = (
    "The tap (a, b) multiplies S0[i - P_q + a, j - P_k + b] in T[i, j]; P_q = c_q - 1, P_k = (c_k - 1) // 2."
)
NO_D = (
    "This is P * dP: D is missing. A score also changes all other weights of its row, because they share"
    " one sum."
)
D_OF_COLUMNS = "D was summed over columns of dO * O. It is one number a row: sum over dim 1."
NO_P = "This is dP - D without the weight: multiply by P."
LINES = {
    "P": "P = exp(T - L), where L is one number a row.",
    "dT": "dT = P * (dP - D), with dP = dO Vᵀ and D one number a row.",
    "dV": "dV = Pᵀ dO.",
    "dW": "dW comes from dT and S0, the scores that the convolution reads: scaled, 0 in the future.",
    "dQ": "dQ = scale · dS K, where dS is dS0 with 0 above the diagonal.",
    "dK": "dK = scale · dSᵀ Q, where dS is dS0 with 0 above the diagonal.",
}
ORDER = "return dQ, dK, dV, dW, in this order."
UNTURNED = "This is P dO. V[j] contributed to every row i of O, with strength P[i, j]: dV = Pᵀ dO."
NO_MASK = (
    "Equal to the result when dS0 is not masked: a score of the future was replaced by a constant, so its"
    " dS is 0."
)
TRANSPOSE = {
    "dQ": (
        "Equal to the result with dS transposed: dQ sums over keys, and dS has a column for each key already."
    ),
    "dK": "Equal to the result without the transpose: dK sums over queries, so dS is transposed.",
}
TAPS_OF_S = "Equal to the result with S in the place of S0: the convolution read zeros in the future."
NO_SCALE = "The scale is missing: S = scale · Q Kᵀ, so dQ and dK have it as a factor."
UNSCALED = "The scale is missing in the scores: masked_scores(q, k) has it."
SCALED_TWICE = "The scale is applied twice."


def softmax_mistakes(p, v, o, d_o):
    return {
        NO_D: without_d(p, v, o, d_o),
        NO_P: d_o @ v.T - (d_o * o).sum(1, keepdim=True),
        D_OF_COLUMNS: p * (d_o @ v.T - (p * (d_o @ v.T)).sum(0)),
    }


def convolution_mistakes(d_t, w):
    c_q, c_k = w.shape
    turned, left = w.flip(0, 1), (c_k - 1) // 2
    room = pad(d_t, (left, c_k - 1 - left, 0, c_q - 1))
    return {
        FORWARD: convolve(d_t, w),
        NOT_TURNED: scatter(d_t, turned),
        FROM_ABOVE: convolve(d_t, turned),
        NOT_SWAPPED: conv2d(room[None, None], turned[None, None])[0, 0],
        "The taps are flipped in their columns only: flip(0, 1) flips both.": scatter(d_t, w.flip(0)),
        "The taps are flipped in their rows only: flip(0, 1) flips both.": scatter(d_t, w.flip(1)),
    }


def tap_mistakes(d_t, s0, c_q, c_k):
    right = gather(d_t, s0, c_q, c_k)
    turned = (
        "The result is rotated by 180°. Nothing is rotated in the gradient of the taps: dT and S0 are"
        " aligned as in the forward pass."
    )
    return {
        turned: right.flip(0, 1),
        "The rows of dW are in reverse order: row c_q - 1 belongs to the taps that were multiplied by the"
        " query's own row.": right.flip(0),
        SHIFTED: gather(d_t, s0, c_q, c_k, c_k // 2),
        "This is a mean. The gradient is the sum over all T that a tap contributed to.": right / d_t.numel(),
    }


def whole_mistakes(name, given):
    """Return {hint: result} for the likely mistakes in one gradient."""
    q, k, v, w, o, log_sum, d_o = given
    place, scale = NAMES.index(name), q.shape[1] ** -0.5
    right = backward_with()(*given)
    full = backward_with(taps=lambda d_t, s0, *size: gather(d_t, scale * q @ k.T, *size))
    found = {f"This is {other}: {ORDER}": x for other, x in zip(NAMES, right, strict=True) if other != name}
    if name == "dV":
        return found | {UNTURNED: torch.exp(forward_scores(q, k, w)[1] - log_sum[:, None]) @ d_o}
    found |= {NO_D: MISTAKES["no D"](*given)[place], SCALED_TWICE: scale * right[place]}
    if name == "dW":
        return found | {TAPS_OF_S: full(*given)[place], UNSCALED: right[place] / scale}
    transposed = backward_with(mask=lambda d_s: torch.tril(d_s).T)(*given)[place]
    found |= {NO_MASK: MISTAKES["no mask"](*given)[place], FORWARD: MISTAKES["not transposed"](*given)[place]}
    return found | {NO_SCALE: right[place] / scale, TRANSPOSE[name]: transposed}
