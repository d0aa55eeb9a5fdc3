"""Inputs that tell right from nearly right: every scalar and every row's state drawn by itself, traps behind
the arrays, scores that need a maximum."""

import numpy as np
from numpy import float32

from course.check.trial import tried

FAR = 1000  # how far scores reach; exp overflows beyond 88 in float32, and beyond 709 in float64
SENTINEL = 12345.0  # behind outputs: finite, as a NaN there would hide a bound that is one too far


def normal(rng, *shape):
    """Standard normal float32."""
    return rng.standard_normal(shape).astype(float32)


def unusual(rng, low=0.3, high=2.0, unlike=(1,)):
    """A number in [low, high], 10 % or more from each number of `unlike`: a scale is not 1, and not 1/√d."""
    while True:
        number = float(rng.uniform(low, high))
        if all(abs(number - other) > 0.1 * abs(other) for other in unlike):
            return number


def scale_for(rng, d):
    """A scale that is neither 1 nor 1/√d, as float32."""
    return float32(unusual(rng, unlike=(1, d**-0.5)))


def longer(array, more=7, behind=np.nan):
    """A one-dimensional array with `more` numbers behind it that nobody announced: NaN behind an input,
    SENTINEL behind an output."""
    return np.append(array, np.full(more, behind, array.dtype))


def states(rng, rows, d):
    """(m, l, o) of rows that have read something, each number drawn by itself: no l or o follows from an
    m."""
    return rng.normal(0, 5, rows), rng.uniform(0.5, 4, rows), rng.normal(0, 3, (rows, d))


DEEP = "scores below -10⁹"  # so that no finite number passes for minus infinity
LOUD = {
    "scores about 0": lambda rng, n: rng.normal(0, 1, n),
    "scores that climb to 1000": lambda rng, n: np.linspace(-FAR, FAR, n) if n > 1 else np.array([FAR]),
    "scores that fall to -1000": lambda rng, n: np.linspace(FAR, -FAR, n) if n > 1 else np.array([-FAR]),
    "scores far below 0": lambda rng, n: rng.normal(-FAR, 2, n),
    "scores far above 0": lambda rng, n: rng.normal(FAR, 2, n),
    DEEP: lambda rng, n: -(2.0**33) * rng.integers(1, 5, n),
    "the last key far above the rest": lambda rng, n: np.append(rng.normal(0, 1, n - 1), FAR),
}
# those that leave a float64 its digits, and a float32 its eighths
TO_1000 = {what: draw for what, draw in LOUD.items() if what != DEEP}
EIGHTHS = 0.375, 0.625, 0.75, 0.875, 1.25, 1.5  # scales that no float32 rounds


def loud_scores(rng, n):
    """[(what, n scores)], float64: about 0, and out to ±1000 in every way that needs a running maximum."""
    tried(f"scores to ±{FAR}")
    return [(what, draw(rng, n)) for what, draw in LOUD.items()]


def attention(rng, queries, keys, d, scores="scores about 0", future=None):
    """(q, k, v, scale), float32, with scores about as one of LOUD draws them; future: a key with score 1000.

    Loud scores are multiples of 1/8, exact in float32, so that an answer differs from the oracle by its own
    rounding alone.
    """
    v = normal(rng, keys, d)
    if scores == "scores about 0" and future is None:
        return normal(rng, queries, d), normal(rng, keys, d), v, scale_for(rng, d)
    tried(DEEP if scores == DEEP else f"scores to ±{FAR}")
    scale = rng.choice([scale for scale in EIGHTHS if abs(scale - d**-0.5) > 0.05])
    wanted = LOUD[scores](rng, keys)
    if future is not None:
        wanted[future] = FAR
    q, k = rng.integers(-1, 2, (queries, d)), rng.integers(-1, 2, (keys, d)) * (scores != DEEP)
    q[:, 0] = 8  # alike in all rows, so that one column of k decides
    k[:, 0] = wanted / 2 if scores == DEEP else np.round(wanted / (scale * 8))
    return q.astype(float32), k.astype(float32), v, float32(scale)


def attended(q, k, v, scale, seen=True):
    """(scores, softmax(scores) v) in float64, the scores not `seen` being -inf: the oracle."""
    q, k, v = (np.array(x, np.float64) for x in (q, k, v))
    scores = np.where(seen, float(scale) * q @ k.T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return scores, p / p.sum(1, keepdims=True) @ v
