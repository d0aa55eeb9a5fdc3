"""Test inputs that expose subtle errors.

The inputs contain independently drawn scalars and row states, guard elements after the arrays, and scores
that overflow unless the maximum is subtracted.
"""

import numpy as np
from numpy import float32

from course.check.trial import tried

FAR = 1000  # Largest absolute score. exp overflows above 88 in float32 and above 709 in float64.
# Guard value stored after outputs. It is finite, because NaN would hide an off-by-one bound.
SENTINEL = 12345.0


def normal(rng, *shape):
    """Return standard normal float32 values."""
    return rng.standard_normal(shape).astype(float32)


def unusual(rng, low=0.3, high=2.0, unlike=(1,)):
    """Return a number in [low, high] that differs by at least 10 % from every number in `unlike`."""
    while True:
        number = float(rng.uniform(low, high))
        if all(abs(number - other) > 0.1 * abs(other) for other in unlike):
            return number


def scale_for(rng, d):
    """Return a float32 scale that is neither 1 nor 1/√d."""
    return float32(unusual(rng, unlike=(1, d**-0.5)))


def longer(array, more=7, behind=np.nan):
    """Append `more` guard elements to a one-dimensional array: NaN for inputs, SENTINEL for outputs."""
    return np.append(array, np.full(more, behind, array.dtype))


def states(rng, rows, d):
    """Return (m, l, o) for rows that have processed some keys.

    Each value is drawn independently, so that l and o cannot be derived from m.
    """
    return rng.normal(0, 5, rows), rng.uniform(0.5, 4, rows), rng.normal(0, 3, (rows, d))


# Scores this low fail any answer that uses a finite number in place of minus infinity.
DEEP = "scores below -10⁹"
LOUD = {
    "scores about 0": lambda rng, n: rng.normal(0, 1, n),
    "scores that climb to 1000": lambda rng, n: np.linspace(-FAR, FAR, n) if n > 1 else np.array([FAR]),
    "scores that fall to -1000": lambda rng, n: np.linspace(FAR, -FAR, n) if n > 1 else np.array([-FAR]),
    "scores far below 0": lambda rng, n: rng.normal(-FAR, 2, n),
    "scores far above 0": lambda rng, n: rng.normal(FAR, 2, n),
    DEEP: lambda rng, n: -(2.0**33) * rng.integers(1, 5, n),
    "the last key far above the rest": lambda rng, n: np.append(rng.normal(0, 1, n - 1), FAR),
}
# Patterns up to ±1000, which float64 resolves fully and whose multiples of 1/8 are exact in float32.
TO_1000 = {what: draw for what, draw in LOUD.items() if what != DEEP}
EIGHTHS = 0.375, 0.625, 0.75, 0.875, 1.25, 1.5  # scales that float32 represents exactly


def loud_scores(rng, n):
    """Return [(description, n scores)] in float64.

    The scores range from values near 0 to values up to ±1000, which overflow without a running maximum.
    """
    tried(f"scores to ±{FAR}")
    return [(what, draw(rng, n)) for what, draw in LOUD.items()]


def attention(rng, queries, keys, d, scores="scores about 0", future=None):
    """Return float32 (q, k, v, scale) with scores that approximate one of the patterns in LOUD.

    Around 0, one of several keys is 0, so its scores are exactly 0. Extreme scores are multiples of 1/8,
    which float32 represents exactly. The answer then differs from the reference only by its own rounding.

    future: index of a key with score 1000.
    """
    v = normal(rng, keys, d)
    if scores == "scores about 0" and future is None:
        q, k = normal(rng, queries, d), normal(rng, keys, d)
        if keys > 1:
            k[rng.integers(keys)] = 0  # A score of exactly 0 has a weight, too.
        return q, k, v, scale_for(rng, d)
    tried(DEEP if scores == DEEP else f"scores to ±{FAR}")
    scale = rng.choice([scale for scale in EIGHTHS if abs(scale - d**-0.5) > 0.05])
    wanted = LOUD[scores](rng, keys)
    if future is not None:
        wanted[future] = FAR
    q, k = rng.integers(-1, 2, (queries, d)), rng.integers(-1, 2, (keys, d)) * (scores != DEEP)
    q[:, 0] = 8  # The first column of q is the same in all rows, so one column of k determines the scores.
    k[:, 0] = wanted / 2 if scores == DEEP else np.round(wanted / (scale * 8))
    return q.astype(float32), k.astype(float32), v, float32(scale)


def attended(q, k, v, scale, seen=True):
    """Return the float64 reference (scores, softmax(scores) v). Scores are -inf where `seen` is false."""
    q, k, v = (np.array(x, np.float64) for x in (q, k, v))
    scores = np.where(seen, float(scale) * q @ k.T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return scores, p / p.sum(1, keepdims=True) @ v
