"""Inputs that tell right from nearly right: every scalar and every row's state drawn by itself, traps behind the arrays, scores that need a maximum."""

import numpy as np
from numpy import float32

from course.check.trial import tried

FAR = 1000  # how far scores reach; exp overflows beyond 88 in float32, and beyond 709 in float64
SENTINEL = 12345.0  # behind outputs: finite, as a NaN there would hide a bound that is one too far


def normal(rng, *shape):
    """Standard normal float32."""
    return rng.standard_normal(shape).astype(float32)


def unusual(rng, low=0.3, high=2.0, unlike=(1,)):
    """A number in [low, high] that is no number of `unlike`, and 10 % from each of them at least: a scale is not 1, and not 1/√d."""
    while True:
        number = float(rng.uniform(low, high))
        if all(abs(number - other) > 0.1 * abs(other) for other in unlike):
            return number


def scale_for(rng, d):
    """A scale that is neither 1 nor 1/√d, as float32."""
    return float32(unusual(rng, unlike=(1, d**-0.5)))


def longer(array, more=7, behind=np.nan):
    """A one-dimensional array with `more` numbers behind it that nobody announced: NaN behind an input, SENTINEL behind an output."""
    return np.append(array, np.full(more, behind, array.dtype))


def states(rng, rows, d):
    """(m, l, o) of rows that have read something, each number drawn by itself: no l or o follows from an m."""
    return rng.normal(0, 5, rows), rng.uniform(0.5, 4, rows), rng.normal(0, 3, (rows, d))


LOUD = {
    "scores about 0": lambda rng, n: rng.normal(0, 1, n),
    "scores that climb to 1000": lambda rng, n: np.linspace(-FAR, FAR, n) if n > 1 else np.array([FAR]),
    "scores that fall to -1000": lambda rng, n: np.linspace(FAR, -FAR, n) if n > 1 else np.array([-FAR]),
    "scores far below 0": lambda rng, n: rng.normal(-FAR, 2, n),
    "scores far above 0": lambda rng, n: rng.normal(FAR, 2, n),
    "the last key far above the rest": lambda rng, n: np.append(rng.normal(0, 1, n - 1), FAR),
}


def loud_scores(rng, n):
    """[(what, n scores)], float64: about 0, and out to ±1000 in every way that needs a running maximum."""
    tried(f"scores to ±{FAR}")
    return [(what, draw(rng, n)) for what, draw in LOUD.items()]


def keys_for(rng, scores, q, scale):
    """k (keys, d) with which the query rows q (n, d), whose first numbers are alike and large, have about these scores: the first number of each row is given, the others are small."""
    n, d = q.shape
    k = rng.normal(0, 0.5, (len(scores), d))
    k[:, 0] = np.asarray(scores) / (scale * q[0, 0])
    return k.astype(float32)


def attention(rng, queries, keys, d, scale, scores="scores about 0", future=None):
    """q, k, v float32 whose scores are about what one of LOUD draws; future: a key with score 1000, to be seen by no query."""
    drawn = LOUD[scores](rng, keys)
    q = rng.normal(0, 0.5, (queries, d))
    if scores != "scores about 0" or future is not None:
        tried(f"scores to ±{FAR}")
        q[:, 0] = 8  # alike in all rows, so that one column of k decides
        if future is not None:
            drawn[future] = FAR
        k = keys_for(rng, drawn, q, scale)
    else:
        q, k = rng.normal(0, 1, (queries, d)), normal(rng, keys, d)
    return q.astype(float32), k, normal(rng, keys, d)
