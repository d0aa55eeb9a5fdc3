"""Checks of lesson 01: online softmax, and the merge of two partial results."""

import gc
import itertools
import math
import tracemalloc
from contextlib import contextmanager

import numpy as np

from course.check import tensors
from course.check.harness import compare, exercise, explained, fail, text
from sim.nouns import plural

EXAMPLE = [(1.0, 10.0), (0.0, 40.0), (2.0, 6.0)]  # (score, value), the lesson's worked example

# Likely wrong guesses of exp(1 - 2), with a reply to each.
SLIPS = [
    (
        1,
        "With the factor 1, the sums do not change. But the weight exp(1 - 1) = 1 is relative to the"
        " maximum 1. Relative to 2 it is smaller.",
    ),
    (0.5, "You halved it: 1 is half of 2. But the factor is a ratio of exponentials, not of scores."),
    (math.e, "This is the reciprocal. The maximum has grown, so the old sums must shrink."),
    (-1, "That is the difference of the maxima. The factor is the exponential of it."),
    (
        math.exp(-2),
        "That is exp(0 - 2), the second score's weight. The factor depends on the two maxima alone.",
    ),
]
RATIO = "Each term was exp(score - 1) and must become exp(score - 2). What is the ratio of the two?"


OVERFLOW = (
    "exp received a large positive number. Subtract the maximum first: the weight exp(score - new m) and the"
    " factor exp(old m - new m) are never above 1."
)


def is_about(number, wanted, tolerance=0.01):
    return abs(number - wanted) <= tolerance


@exercise("1.0", "predict the factor")
def ex01_0(my_factor, rng):
    guess = my_factor()
    if guess is None or isinstance(guess, str):
        hint = "Return a number: return 0.5 for example, without quotes, and not print(0.5)."
        fail("not a number", got=repr(guess), hint=hint)
    try:
        number_guessed = float(guess)
    except (TypeError, ValueError):
        number_guessed = math.nan
    if not is_about(number_guessed, math.exp(-1)):
        replies = [reply for slip, reply in SLIPS if is_about(number_guessed, slip)]
        if is_about(number_guessed, math.exp(-1), 0.05):
            replies = ["This is near. Give two digits."]
        fail("not yet", got=repr(guess), hint=[*replies, RATIO][0])
    return "exp(1 - 2) = 0.3679; two digits are enough"


@exercise("1.1", "online_softmax")
def ex01_1(online_softmax, rng):
    for what, pairs, hint in streams(rng):
        copies = [(score, np.copy(value)) for score, value in pairs]
        call = f"online_softmax({brief(pairs)})"
        try:
            state = online_softmax(ReadOnce(pairs))
        except OverflowError as error:
            error.add_note(OVERFLOW)
            raise
        wanted = softmax_state(copies)
        if len(pairs) < LONG:  # the error of a longer stream may be small without any rounding
            hint = explained(state, {}, hint, wanted=wanted)
        compare(state, wanted, what=what, call=call, tolerance=1e-9, hint=hint)
        untouched(pairs, copies, what, call)
    keeps_no_pairs(online_softmax, rng)
    return f"one reading each, for streams of 0 to {LONG:,} pairs, scores out to ±10¹², no pair kept"


@exercise("1.2", "merge")
def ex01_2(merge, rng):
    for what, left, right, hint in halves(rng):
        states = softmax_state(left), softmax_state(right)
        copies = softmax_state(left), softmax_state(right)
        call = f"merge({text(states[0])}, {text(states[1])})"
        merged = merge(*states)
        compare(merged, softmax_state(left + right), what=what, call=call, tolerance=1e-9, hint=hint)
        untouched(states, copies, what, call)
    for number in range(20):
        any_states(merge, rng, many=number % 4 == 0)
    groupings(merge, rng)
    return (
        "empty halves, sums that fit no maximum, maxima out to ±10¹², equal maxima, and every order of four"
        " readers"
    )


# Inputs -----------------------------------------------------------------------------------------------------


def streams(rng):
    """Return the cases (what, pairs, hint), ordered so that each can expose a mistake that earlier cases
    miss."""
    mixed = random_pairs(rng, int(rng.integers(8, 41)))
    climbing, falling = sorted(random_pairs(rng, 5)), sorted(random_pairs(rng, 5), reverse=True)
    vectors = [(score, rng.normal(size=3).round(2)) for score, _ in random_pairs(rng, 6)]
    return [
        (
            "one pair",
            random_pairs(rng, 1),
            "The maximum itself has the weight exp(0) = 1, so l is 1 and o is the value.",
        ),
        (
            "the worked example, first two pairs",
            EXAMPLE[:2],
            "There is no new maximum: m stays the same, nothing shrinks, and the value 40 has the weight"
            " exp(0 - 1).",
        ),
        (
            "the worked example",
            EXAMPLE,
            (
                "The 2 is a new maximum: l and o both shrink by exp(1 - 2), then get 1 and 6. Nothing is"
                " divided yet."
            ),
        ),
        (
            "scores that fall",
            falling,
            "Only the first score is a new maximum. The others have the weight exp(score - m), and nothing"
            " shrinks.",
        ),
        (
            "scores that climb",
            climbing,
            "Each score is a new maximum: multiply l and o by exp(old m - new m), then add the new pair"
            " with the weight 1.",
        ),
        ("scores all alike", [(2.5, value) for _, value in random_pairs(rng, 4)], "Each weighs exp(0) = 1."),
        (
            "scores below zero",
            [(-3 - abs(score), value) for score, value in mixed],
            "All scores are negative, and so is the maximum. Which value did m have before the first score?",
        ),
        (
            "scores in any order",
            mixed,
            "Is anything left from the old maximum that did not shrink, or that shrank twice?",
        ),
        (
            "scores near 1000",
            [(score + 1000, value) for score, value in mixed],
            "Only differences of scores go into exp.",
        ),
        (
            "scores near -1000",
            [(score - 1000, value) for score, value in mixed],
            "Only differences of scores go into exp.",
        ),
        (
            "scores near -10¹²",
            [(round(score) - 1e12, value) for score, value in mixed],
            "No score is too small to be the first maximum: only -math.inf is below them all.",
        ),
        (
            "one late score far above the rest",
            [*mixed, (1e12, 3.0)],
            "The sums from before are multiplied by almost 0.",
        ),
        (
            "eleven thousand scores 21 to 27 below the first",
            far_below(rng),
            "Each of them has a small weight, but their sum is large: do not skip any.",
        ),
        (
            "values that are vectors",
            vectors,
            "Then o is a vector. o * shrink + weight * value works for numbers and for vectors.",
        ),
        (
            "values that are 0",
            [(1.0, 0.0), (0.5, 3.0), (2.0, 0.0), (1.5, 0.0)],
            "A pair with the value 0 adds nothing to o, but its weight still belongs in l.",
        ),
        (
            "nothing to read",
            [],
            "The state before the first pair is (-inf, 0, 0), so any score is a new maximum.",
        ),
    ]


def far_below(rng):
    """Return one pair followed by eleven thousand whose weights sum to less than 10⁻⁶ of its weight, most of
    them below 10⁻¹¹ each."""
    gaps = np.append(rng.uniform(21, 24, 1000), rng.uniform(25.5, 27, 10_000))
    return [(0.0, 2.0), *zip((-gaps).tolist(), rng.uniform(5, 9, len(gaps)).tolist(), strict=True)]


def halves(rng):
    """Return the cases (what, left pairs, right pairs, hint) for two readers."""
    low, high = random_pairs(rng, 5), [(score + 30, value) for score, value in random_pairs(rng, 4)]
    twins = [(3.0, 1.0), (1.0, 7.0)], [(3.0, 5.0), (2.0, 2.0)]
    vectors = [(score, rng.normal(size=3).round(2)) for score, _ in random_pairs(rng, 6)]
    far = "Call exp only with differences of maxima. None of them is above zero."
    nothing = "Merging with an empty state changes nothing. Do you subtract -inf from -inf somewhere?"
    return [
        (
            "the two readers of the worked example",
            EXAMPLE[:2],
            EXAMPLE[2:],
            "The left l and o shrink by exp(1 - 2), the right ones by exp(2 - 2).",
        ),
        ("two readers with the same maximum", *twins, "Neither shrinks: both factors are exp(0) = 1."),
        ("the larger maximum on the right", low, high, "The left one shrinks by exp(m1 - m)."),
        ("the larger maximum on the left", high, low, "The right one shrinks by exp(m2 - m)."),
        ("a right-hand reader who read nothing", low, [], nothing),
        ("a left-hand reader who read nothing", [], low, nothing),
        ("two readers who read nothing", [], [], nothing),
        ("maxima near 1000 and -1000", [(1000.0, 2.0)], [(-1000.0, 3.0), (-1001.0, 4.0)], far),
        (
            "maxima near -10¹²",
            [(-1e12, 2.0), (-1e12 - 3, 1.0)],
            [(-1e12 - 1, 4.0)],
            "No maximum is too small to be one: only -math.inf means that nothing was read.",
        ),
        ("maxima near -1000", [(-1000.0, 2.0), (-1003.0, 1.0)], [(-1001.0, 4.0)], far),
        (
            "values that are vectors",
            vectors[:2],
            vectors[2:],
            "Then o is a vector. The same line works for numbers and for vectors.",
        ),
        (
            "values that are 0",
            [(2.0, 0.0)],
            [(1.0, 3.0), (0.5, 0.0)],
            "A state with o = 0 is not empty: its l still counts.",
        ),
    ]


def any_states(merge, rng, many=False):
    """Check two states with independently drawn m, l and o, so that none can be derived from the others.

    many: the lower state has read about a million pairs, far below the other's maximum.
    """
    m1, (l1, l2), (o1, o2) = (
        float(rng.normal(0, 3)),
        np.exp(rng.uniform(-5, 2, 2)).tolist(),
        rng.normal(0, 5, 2).tolist(),
    )
    m2 = m1 + float(rng.uniform(-16, 16))
    if many:  # a million keys 20 to 32 below the maximum weigh little, and must not be dropped
        m2, l2, o2 = m1 - float(rng.uniform(20, 32)), l2 * 1e6, o2 * 1e6
    if rng.integers(2):
        (m1, l1, o1), (m2, l2, o2) = (m2, l2, o2), (m1, l1, o1)
    m = max(m1, m2)
    wanted = m, l1 * math.exp(m1 - m) + l2 * math.exp(m2 - m), o1 * math.exp(m1 - m) + o2 * math.exp(m2 - m)
    call = f"merge({text((m1, l1, o1))}, {text((m2, l2, o2))})"
    compare(
        merge((m1, l1, o1), (m2, l2, o2)),
        wanted,
        what="two states",
        call=call,
        tolerance=1e-9,
        hint="Each side's l and o shrink by that side's own factor, however small it is.",
    )


def groupings(merge, rng):
    """Check four readers in every order, merged as a chain and as a tree."""
    readers = [random_pairs(rng, int(rng.integers(0, 4))) for _ in range(4)]
    wanted = softmax_state([pair for pairs in readers for pair in pairs])
    for a, b, c, d in itertools.permutations([softmax_state(pairs) for pairs in readers]):
        for how, got in [
            ("merge(merge(merge(a, b), c), d)", merge(merge(merge(a, b), c), d)),
            ("merge(merge(a, b), merge(c, d))", merge(merge(a, b), merge(c, d))),
        ]:
            names = ", ".join(
                f"{name} = {text(state)}" for name, state in zip("abcd", (a, b, c, d), strict=True)
            )
            compare(got, wanted, what=f"four readers, {names}", call=how, tolerance=1e-9, hint=GROUPING)


GROUPING = "The result must not depend on the order in which states are merged."


class ReadOnce:
    """Iterable of pairs that can be read only once. Reading past the end raises an explanatory error."""

    def __init__(self, pairs):
        self.pairs, self.count, self.over = iter(pairs), len(pairs), False

    def __repr__(self):
        return f"{plural(self.count, 'pair')}, to be read only once"

    def __iter__(self):
        return self

    def __next__(self):
        if self.over:
            raise RuntimeError("all pairs have been read: each can be read only once, in one loop")
        try:
            return next(self.pairs)
        except StopIteration:
            self.over = True
            raise


def keeps_no_pairs(online_softmax, rng):
    """Reject an answer that stores the pairs in any form, even if its result is correct. Its memory use must
    not grow with the stream."""
    numbers = rng.normal(size=(LONG, 2))
    state = online_softmax((score, value) for score, value in numbers.tolist())
    compare(state, softmax_state(numbers.tolist()), what=f"{LONG:,} pairs", tolerance=1e-9)
    for _ in range(TRIES):  # the first call may fill caches that do not belong to the answer
        if (kept := bytes_kept(online_softmax, numbers)) <= ROOM:
            break
    else:
        kept_too_much(int(kept) // 16)
    with tensors.watched() as seen:  # Python does not track PyTorch's memory
        online_softmax((score, value) for score, value in numbers.tolist())
    if 8 * seen.kept > ROOM:
        kept_too_much(seen.kept)


def bytes_kept(online_softmax, numbers):
    """Return how many more bytes the answer holds at the end of the stream than halfway through. Its total
    memory is added, divided by BEFOREHAND, to expose a preallocated list without penalising PyTorch's
    internal memory."""
    held = []

    def stream():
        for number in range(LONG):
            if number in (LONG // 2, LONG - 1):
                held.append(memory_in_use())
            yield float(numbers[number, 0]), float(numbers[number, 1])

    with traced_memory():
        start = memory_in_use()
        online_softmax(stream())
    if not held:
        return math.inf
    return max(held[-1] - held[0], (max(held) - start) / BEFOREHAND)


def kept_too_much(numbers):
    hint = (
        "Between two pairs, keep only m, l and o, and no list or array: on a GPU there is no room for all"
        " the scores."
    )
    fail(f"right numbers, but {numbers} numbers' worth of memory was kept for {LONG:,} pairs", hint=hint)


def memory_in_use():
    """Return the bytes that Python has allocated, excluding its free lists for floats and tuples."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def traced_memory():
    """Enable Python's memory tracing in the `with` block, and restore its previous state afterwards."""
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        yield
    finally:
        if not running:
            tracemalloc.stop()


TRIES = 5
LONG = 3000  # length of the stream for the memory measurement
ROOM = 1500  # maximum bytes in use, a sixteenth of the size of the scores
BEFOREHAND = 8  # all that it holds may be as much: what PyTorch keeps for itself varies by some KB


def random_pairs(rng, n):
    return [(float(score), float(value)) for score, value in rng.normal(scale=[2, 10], size=(n, 2)).round(2)]


def brief(pairs):
    return text(pairs) if len(pairs) <= 3 else f"[{text(pairs[0])}, {text(pairs[1])}, ... {len(pairs)} pairs]"


# The oracle -------------------------------------------------------------------------------------------------


def softmax_state(pairs):
    """Return (m, l, o) of all pairs by definition: first the maximum, then the sums."""
    if not pairs:
        return -math.inf, 0.0, 0.0
    scores, values = np.array([score for score, _ in pairs]), np.array([value for _, value in pairs])
    weights = np.exp(scores - scores.max())
    output = weights @ values
    return float(scores.max()), float(weights.sum()), output if output.ndim else float(output)


def untouched(given, copies, what, call):
    """Reject an answer that modifies its arguments."""
    for (*_, now), (*_, before) in zip(given, copies, strict=True):
        if not np.array_equal(now, before):
            hint = "An array's += and *= write into it; o = o * shrink makes a new one."
            fail(f"{what}: your function changed its input", call=call, wanted=before, got=now, hint=hint)
