"""Wrong answers to lesson 01 that learners give, and correct answers that differ from the solution."""

import math

import numpy as np

START = (-math.inf, 0.0, 0.0)


def running(step, start=START):
    """Return an online_softmax that applies step(m, l, o, score, value) -> (m, l, o) to each pair."""

    def online_softmax(pairs):
        state = start
        for score, value in pairs:
            state = step(*state, score, value)
        return state

    return online_softmax


def right_step(m, l, o, score, value):
    new = max(m, score)
    return (
        new,
        l * math.exp(m - new) + math.exp(score - new),
        o * math.exp(m - new) + math.exp(score - new) * value,
    )


def no_maximum(m, l, o, score, value):
    return max(m, score), l + math.exp(score), o + math.exp(score) * value


def forgets_to_rescale_o(m, l, o, score, value):
    new = max(m, score)
    return new, l * math.exp(m - new) + math.exp(score - new), o + math.exp(score - new) * value


def forgets_to_rescale_l(m, l, o, score, value):
    new = max(m, score)
    return new, l + math.exp(score - new), o * math.exp(m - new) + math.exp(score - new) * value


def rescales_by_the_wrong_sign(m, l, o, score, value):
    new = max(m, score)
    factor = math.exp(new - m) if l else 0.0
    return new, l * factor + math.exp(score - new), o * factor + math.exp(score - new) * value


def weighs_against_the_old_maximum(m, l, o, score, value):
    new = max(m, score)
    weight = math.exp(score - (m if l else score))
    return new, l * math.exp(m - new) + weight, o * math.exp(m - new) + weight * value


def updates_m_first(m, l, o, score, value):
    m = max(m, score)
    return m, l * math.exp(m - m) + math.exp(score - m), o * math.exp(m - m) + math.exp(score - m) * value


def divides_each_step(m, l, o, score, value):
    new, new_l, new_o = right_step(m, l, o * l, score, value)
    return new, new_l, new_o / new_l


def right_only_for_rising_scores(m, l, o, score, value):
    factor = math.exp(m - score) if l else 0.0
    return score, l * factor + 1, o * factor + value


def right_only_for_falling_scores(m, l, o, score, value):
    m = m if l else score
    return m, l + math.exp(score - m), o + math.exp(score - m) * value


def drops_what_came_before(m, l, o, score, value):
    return right_step(m, l, o, score, value) if score <= m else (score, 1.0, value)


def skips_small_weights(m, l, o, score, value):
    new = max(m, score)
    if math.exp(score - new) < 1e-11:
        return m, l, o
    return right_step(m, l, o, score, value)


def forgets_the_value(m, l, o, score, value):
    new = max(m, score)
    return new, l * math.exp(m - new) + math.exp(score - new), o * math.exp(m - new) + math.exp(score - new)


def only_the_first(pairs):
    score, value = next(iter(pairs))
    return score, 1.0, value


def reads_twice(pairs):
    m = max(score for score, _ in pairs)
    weights = [(math.exp(score - m), value) for score, value in pairs]
    return m, sum(w for w, _ in weights), sum(w * v for w, v in weights)


def stops_before_the_last(pairs):
    return running(right_step)(list(pairs)[:-1])


def keeps_o_in_place(pairs):
    m, l, o = START
    for score, value in pairs:
        new = max(m, score)
        shrink, weight = math.exp(m - new), math.exp(score - new)
        if isinstance(value, np.ndarray):
            value *= weight
            m, l, o = new, l * shrink + weight, o * shrink + value
        else:
            m, l, o = new, l * shrink + weight, o * shrink + weight * value
    return m, l, o


def returns_the_answer_alone(pairs):
    _, l, o = running(right_step)(pairs)
    return o / l


def forgets_to_return(pairs):
    running(right_step)(pairs)


def without_running_state(pairs):
    """Wrong: stores all pairs and applies the definition at the end, though the results are correct."""
    pairs = list(pairs)
    m = max([score for score, _ in pairs], default=-math.inf)
    weights = [math.exp(score - m) for score, _ in pairs]
    return m, sum(weights), sum(w * np.asarray(v) for w, (_, v) in zip(weights, pairs, strict=True))


def with_branches(pairs):
    """Correct: handles a new maximum in a separate branch, and computes with NumPy scalars."""
    m, l, o = -np.inf, np.float64(0), 0
    for score, value in pairs:
        if score > m:
            m, l, o = score, l * np.exp(m - score) + 1, o * np.exp(m - score) + value
        else:
            l, o = l + np.exp(score - m), o + np.exp(score - m) * value
    return [m, l, o]


# merge ------------------------------------------------------------------------------------------------------


def right_merge(left, right):
    (m1, l1, o1), (m2, l2, o2) = left, right
    m = max(m1, m2)
    f1, f2 = (0.0 if mi == -math.inf else math.exp(mi - m) for mi in (m1, m2))
    return m, l1 * f1 + l2 * f2, o1 * f1 + o2 * f2


def merging(factors, maximum=max):
    """Return a merge that uses factors(m1, m2, m) -> (f1, f2)."""

    def merge(left, right):
        (m1, l1, o1), (m2, l2, o2) = left, right
        m = maximum(m1, m2)
        f1, f2 = factors(m1, m2, m)
        return m, l1 * f1 + l2 * f2, o1 * f1 + o2 * f2

    return merge


def exp(x):
    """Return exp(x) without raising an exception on overflow, as on a GPU."""
    with np.errstate(all="ignore"):
        return float(np.exp(x))


def merges_averages(left, right):
    m, l, _ = right_merge(left, right)
    (_, l1, o1), (_, l2, o2) = left, right
    return m, l, (o1 * l1 + o2 * l2) / (l1 + l2) if l else 0.0


def forgets_o(left, right):
    m, l, _ = right_merge(left, right)
    return m, l, left[2] + right[2]


def forgets_l(left, right):
    m, _, o = right_merge(left, right)
    return m, left[1] + right[1], o


def divides_at_the_end(left, right):
    m, l, o = right_merge(left, right)
    return m, l, o / l if l else o


def drops_a_half_far_below(left, right):
    if abs(left[0] - right[0]) > 20:
        return max(left, right, key=lambda state: state[0])
    return right_merge(left, right)


def keeps_the_larger(left, right):
    return max(left, right, key=lambda state: state[0])


def empty_erases(left, right):
    return START if -math.inf in (left[0], right[0]) else right_merge(left, right)


def merges_in_place(left, right):
    m, l, o = right_merge(left, right)
    if isinstance(left[2], np.ndarray):
        left[2][:] = o
        return m, l, left[2]
    return m, l, o


def branching_merge(left, right):
    """Correct: handles an empty state first, after swapping the larger maximum to the left."""
    if left[0] < right[0]:
        left, right = right, left
    if right[1] == 0:
        return left
    shrink = math.exp(right[0] - left[0])
    return left[0], left[1] + right[1] * shrink, left[2] + right[2] * shrink


def numpy_merge(left, right):
    """Correct: computes both factors as one array, and replaces the NaN of two empty states by 0."""
    maxima = np.array([left[0], right[0]])
    with np.errstate(invalid="ignore"):
        factors = np.nan_to_num(np.exp(maxima - maxima.max()), nan=0.0)
    return maxima.max(), factors @ [left[1], right[1]], factors[0] * left[2] + factors[1] * right[2]


MUTANTS = {
    "ex01_0": [
        ("nothing shrinks", lambda: 1),
        ("halves", lambda: 0.5),
        ("upside down", lambda: math.e),
        ("forgets the exponential", lambda: -1),
        ("the second score's weight", lambda: math.exp(-2)),
        ("1 - exp(-1)", lambda: 0.632),
        ("an ellipsis left in place", lambda: ...),
        ("nothing returned", lambda: None),
        ("NaN", lambda: math.nan),
    ],
    "ex01_1": [
        ("subtracts no maximum", running(no_maximum)),
        ("m starts at 0", running(right_step, start=(0.0, 0.0, 0.0))),
        ("l starts at 1", running(right_step, start=(0.0, 1.0, 0.0))),
        ("forgets to rescale o", running(forgets_to_rescale_o)),
        ("forgets to rescale l", running(forgets_to_rescale_l)),
        ("rescales by the factor's inverse", running(rescales_by_the_wrong_sign)),
        ("weighs the new score against the old maximum", running(weighs_against_the_old_maximum)),
        ("overwrites m before it rescales", running(updates_m_first)),
        ("divides at each step", running(divides_each_step)),
        ("right only for rising scores", running(right_only_for_rising_scores)),
        ("right only for falling scores", running(right_only_for_falling_scores)),
        ("drops what came before a new maximum", running(drops_what_came_before)),
        ("adds weights without values", running(forgets_the_value)),
        ("skips weights below 1e-11", running(skips_small_weights)),
        ("uses only the first pair", only_the_first),
        ("reads twice", reads_twice),
        ("stops before the last pair", stops_before_the_last),
        ("writes into the values", keeps_o_in_place),
        ("collects all pairs in a list", without_running_state),
        ("returns o / l alone", returns_the_answer_alone),
        ("forgets to return", forgets_to_return),
    ],
    "ex01_2": [
        ("adds without rescaling", merging(lambda m1, m2, m: (1.0, 1.0))),
        ("NaN where a half is empty", merging(lambda m1, m2, m: (exp(m1 - m), exp(m2 - m)))),
        (
            "NaN where the left half is empty",
            merging(lambda m1, m2, m: (exp(m1 - m2), 1.0) if m == m2 else (1.0, exp(m2 - m1))),
        ),
        ("factors upside down", merging(lambda m1, m2, m: (exp(m - m1), exp(m - m2)))),
        ("factors swapped", merging(lambda m1, m2, m: (exp(m2 - m), exp(m1 - m)))),
        (
            "rescales the left half only",
            merging(lambda m1, m2, m: (exp(m1 - m) if m1 > -math.inf else 0.0, 1.0)),
        ),
        ("rescales to no maximum", merging(lambda m1, m2, m: (exp(m1), exp(m2)))),
        ("takes the smaller maximum", merging(lambda m1, m2, m: (exp(m1 - m), exp(m2 - m)), maximum=min)),
        (
            "always takes the left maximum",
            merging(lambda m1, m2, m: (1.0, exp(m2 - m1)), maximum=lambda m1, m2: m1),
        ),
        ("forgets to rescale o", forgets_o),
        ("forgets to rescale l", forgets_l),
        ("averages the two outputs", merges_averages),
        ("divides at the end", divides_at_the_end),
        ("keeps only the larger maximum's half", keeps_the_larger),
        ("drops a half more than 20 below the other", drops_a_half_far_below),
        ("an empty half erases the other", empty_erases),
        ("writes into the left half", merges_in_place),
    ],
}

RIGHT = {
    "ex01_0": [lambda: math.exp(-1), lambda: 0.37, lambda: np.float32(0.3679)],
    "ex01_1": [running(right_step), with_branches],
    "ex01_2": [right_merge, branching_merge, numpy_merge],
}
