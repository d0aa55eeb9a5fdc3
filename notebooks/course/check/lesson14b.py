"""Checks of lesson 14b: a test that must tell correct decoders from faulty ones, and the merge as a kernel in
`sim`."""

import math

import numpy as np
import torch
from numpy import float32

from course.check import kernels
from course.check.contract import Contract
from course.check.decoders import (
    FAULTY,
    altered,
    both_off,
    faultless,
    first_sequence,
    first_taps,
    first_too_high,
    head_by_head,
    in_pairs,
    last_too_low,
    lost_end,
    not_rescaled,
    room_for_four,
    square_taps,
    undivided_scores,
    with_pieces,
)
from course.check.harness import exercise, explained, fail
from course.progress_bar import progress_bar
from kernels.common.tiles import weight
from kernels.reference import conv_attention_decode


@exercise("14.3", "is_right")
def ex14_3(is_right, rng):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))  # for the test's own random numbers
        judge(is_right)
    return f"it accepts {len(ACCEPTED)} correct decoders and rejects {len(REJECTED)} wrong ones"


@exercise("14.4", "merge_splits")
def ex14_4(merge_splits, rng):
    kernels.own(merge_splits, "merge_splits", allowed=(weight,))
    for sizes in [
        (1, 1, 1, 1),
        (1, 1, 1, 4),
        (1, 2, 2, 3),
        (2, 1, 3, 8),
        (2, 3, 5, 4),
        (1, 1, 300, 2),
        (1, 2, 7, 33),
    ]:
        check_merge(merge_splits, sizes, rng, "scores near 0")
    for offset in (9000, -9000, 1e6, -1e6):
        check_merge(merge_splits, (1, 2, 4, 3), rng, f"scores near {offset:g}", offset=offset)
    check_merge(merge_splits, (1, 2, 4, 3), rng, "scores of -3e38, which are scores still", offset=-3e38)
    check_merge(merge_splits, (1, 2, 4, 3), rng, "a split far below the rest, with values of 10⁹", far=True)
    check_merge(merge_splits, (2, 2, 3, 3), rng, "the scores of each head far from the others'", apart=500)
    for empty in ([0], [3], [0, 1], [1, 2, 3]):
        check_merge(
            merge_splits,
            (1, 2, 4, 3),
            rng,
            f"nothing read by split{'s' * (len(empty) > 1)} {', '.join(map(str, empty))}",
            empty=empty,
        )
    return (
        "1 to 300 splits, empty ones among them, several batches and heads, rows of 1 to 33 numbers, scores"
        " near 0, ±9000, ±10⁶ and -3·10³⁸"
    )


# 14.3: ways to decode, right and wrong ----------------------------------------------------------------------


SIGN = "A difference may be negative: .abs() before .max()."
TOO_STRICT = (
    "float32 rounds: a decoder is correct if its largest difference from the reference in float64 is at most"
    " 1e-5. Is `wanted` the last row, [:, :, -1:]?"
)
SPLIT_COUNTS = (
    "Try every number of splits from 1 to more than there are keys: this one is right for most of them."
)
LARGEST = "Compare the largest of all differences, not their mean, with the limit of 1e-5."
CARRIED = (
    "It accepted the same decoder before. A verdict must depend on the decoder only: what does your test keep"
    " from one call to the next?"
)
NAN = "A comparison with NaN is never true: `error > 1e-5` lets it pass, `not error <= 1e-5` does not."
START = "Try the start of a sequence too: fewer tokens than c_q, and so a shorter window."

ACCEPTED = {
    "the right one": head_by_head(faultless),
    "one that rounds a little more": altered(lambda o, *_: o + 2e-6 * o.sign()),
    "one that does not split at all": (
        lambda q_window, k, v, w, splits: conv_attention_decode(
            *(x.double() for x in (q_window, k, v, w))
        ).to(k.dtype)
    ),
}
REJECTED = {
    "no_halo": (FAULTY["no_halo"], "With one split it is right. Try several."),
    "unmasked_window": (
        FAULTY["unmasked_window"],
        "It is right for a single token, and where c_q = 1: try more of both.",
    ),
    "undivided": (
        FAULTY["undivided"],
        f"{SPLIT_COUNTS} With one token l is 1, and the mistake has no effect.",
    ),
    "full_tiles": (FAULTY["full_tiles"], f"{SPLIT_COUNTS} {NAN}"),
    "always NaN": (altered(lambda o, *_: o * math.nan), NAN),
    "off by a thousandth": (altered(lambda o, *_: o * 1.001), "A tolerance of 1e-5 finds it."),
    "a hundredth too low everywhere": (altered(lambda o, *_: o - 0.01), SIGN),
    "a hundredth too high everywhere": (altered(lambda o, *_: o + 0.01), SIGN),
    "the first number too high by 2e-5": (altered(first_too_high), LARGEST),
    "the last number too low by 2e-5": (altered(last_too_low), LARGEST),
    "the first number too high by 2e-5, the last too low": (altered(both_off), LARGEST),
    "scores that are not divided by √d": (undivided_scores, "With d = 1 this mistake has no effect."),
    "the taps beyond c_q columns lost": (
        square_taps,
        "For square taps it is right. Try a c_k larger than c_q.",
    ),
    "wrong with more splits than keys": (
        altered(lambda o, q, k, v, w, splits: o + (splits > k.shape[2])),
        SPLIT_COUNTS,
    ),
    "P_k and P_r exchanged": (
        with_pieces(swap=True),
        "For odd c_k the two sides are alike. Try an even one, with several keys.",
    ),
    "a short window at the wrong rows of taps": (with_pieces(below=True), START),
    "the taps of head 0 for all heads": (first_taps, "Try more than one head, with different taps."),
    "the cache of the first sequence for all": (first_sequence, "Try more than one sequence, B = 2."),
    "the last keys lost": (
        head_by_head(lost_end),
        f"It is right where the keys can be divided evenly. {SPLIT_COUNTS}",
    ),
    "merged in pairs, the odd one lost": (
        head_by_head(in_pairs),
        f"It is right for 1, 2, 4 and 8 splits. {SPLIT_COUNTS}",
    ),
    "the fifth split and all after it lost": (
        head_by_head(room_for_four),
        f"Up to four splits it is right. {SPLIT_COUNTS} And enough keys that each has one.",
    ),
    "merged without rescaling": (head_by_head(not_rescaled), "With one split it is right. Try several."),
}


def judge(is_right):
    """Reject a test that misclassifies a decoder."""
    for name, decode in ACCEPTED.items():
        expect_accepted(is_right, name, decode, TOO_STRICT)
    for name, (decode, hint) in progress_bar(REJECTED.items(), desc="wrong decoders", leave=False):
        if answered(is_right, decode):
            fail(f"your test accepts a wrong decoder: {name}", wanted="False", got="True", hint=hint)
    name, decode = next(iter(ACCEPTED.items()))
    expect_accepted(is_right, f"{name}, after the wrong ones", decode, CARRIED)


def expect_accepted(is_right, name, decode, hint):
    if not answered(is_right, decode):
        fail(f"your test rejects a correct decoder: {name}", wanted="True", got="False", hint=hint)


def answered(is_right, decode):
    """Return the learner's verdict on a decoder, True or False."""
    # a new function each time, so that the test has to call it and cannot look it up
    answer = is_right(lambda *given, **named: decode(*given, **named))
    if answer is None:
        fail(
            "your test returned None",
            wanted="True or False",
            hint="Does every path through it end in a return?",
        )
    if getattr(answer, "dtype", type(answer)) not in (bool, np.dtype(bool), torch.bool):
        fail("your test returned something else", wanted="True or False", got=repr(answer))
    return bool(answer)


# 14.4 -------------------------------------------------------------------------------------------------------

UNDIVIDED = "o is not divided by l. Divide at the end, even if there is one split."
EACH_DIVIDED = (
    "Equal to the mean of o / l over the splits. First merge, then divide once: a split with small scores"
    " must count little."
)
UNSCALED = (
    "Equal to the result without the weights. The l and o of a split are relative to its own m: multiply both"
    " by exp(m_s - m)."
)
NOBODY_WRITES = (
    "NaN: no thread has written this element; or m is not the maximum of all splits, so that exp overflows or"
    " every weight is 0; or an empty split computed -inf - (-inf)."
)
MERGE = (
    "First the largest m of all splits; then the sums of exp(m_s - m) · l_s and exp(m_s - m) · o_s; then one"
    " division. part[d] is m, part[d + 1] is l."
)


def check_merge(merge_splits, sizes, rng, case, offset=0, empty=(), far=False, apart=0):
    """Check one launch with one block per head of each batch. The parts have shape (B, H, splits, d + 2).

    apart: difference of m between one head and the next.
    """
    batch, heads, splits, d = sizes
    o, l = rng.normal(0, 2, (batch, heads, splits, d)), 10 ** rng.uniform(-2, 1, (batch, heads, splits, 1))
    m = offset + rng.integers(-4, 5, (batch, heads, splits, 1))
    m = m + apart * np.arange(batch * heads).reshape(batch, heads, 1, 1)
    if far:
        m[:, :, 1] -= 60
        o[:, :, 1] *= 1e9
    m, l, o = (
        np.where(np.isin(np.arange(splits), empty)[:, None], nothing, part)
        for nothing, part in ((-np.inf, m), (0, l), (0, o))
    )
    parts, out = (
        np.concatenate([o, m, l], axis=3).astype(float32),
        np.full((batch, heads, 1, d), np.nan, float32),
    )
    threads = 64 if d > 32 else 32
    call = f"merge_splits[({heads}, {batch}), {threads}](parts {parts.shape}, out {out.shape}), {case}"
    m = parts[..., d : d + 1].astype(np.float64)
    weights = np.exp(m - m.max(axis=2, keepdims=True))
    sums, totals = ((weights * part).sum(axis=2, keepdims=True) for part in (o, l))
    mistakes = {UNDIVIDED: sums}
    if splits > 1:  # a single split needs no weights
        mistakes[UNSCALED] = o.sum(axis=2, keepdims=True) / l.sum(axis=2, keepdims=True)
        mistakes[EACH_DIVIDED] = (o / np.where(l > 0, l, 1)).mean(axis=2, keepdims=True)

    def hint(got):
        return NOBODY_WRITES if np.isnan(got).any() else explained(got, mistakes, MERGE, 1e-4)

    def writer(number):
        return number // d * threads + number % d

    contract = Contract(
        "parts out", max_per_thread={"parts": 6 * splits, "out": 1}, owner={"out": writer}, hint=A_NUMBER_EACH
    )
    kernels.judge(
        merge_splits,
        ((heads, batch), threads),
        (parts,),
        (out,),
        (sums / totals,),
        rng,
        call,
        contract,
        what="a wrong output",
        hint=hint,
        float64=0,
    )


A_NUMBER_EACH = (
    "Thread c of a head's block computes element c, and no other: it reads m and l of each split, and element"
    " c of its o."
)
