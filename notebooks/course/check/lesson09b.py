"""Checks of lesson 09b: a function that detects whether an attention function uses future tokens."""

import math

import numpy as np
import torch

from course.check.harness import exercise, fail
from course.check.lesson09 import MOST
from sim.nouns import plural


@exercise("9.3", "is_causal")
def ex09_3(is_causal, rng):
    # of three tokens a leak of scores moves one weight of one row, and a single draw may move that by nearly
    # nothing
    for tokens, attends in [*(plain_leaks(n, rng) for n in (4, 5, 6, 8)), long_leak(rng)]:
        n = tokens.shape[1]
        for name, attend, causal in attends:
            given = [tensor.clone() for tensor in tokens]
            got = with_seed(rng, is_causal, attend, *given)
            call = f"is_causal(attend, q, k, v) with {plural(n, 'token')}, where attend is {name}"
            if not isinstance(got, bool | np.bool_):
                hint = "torch.allclose gives a bool; of a tensor with one bool, .item() does."
                fail(
                    "is_causal must return True or False",
                    call=call,
                    wanted=str(causal),
                    got=type(got).__name__,
                    hint=hint,
                )
            if not all(torch.equal(mine, theirs) for mine, theirs in zip(given, tokens, strict=True)):
                fail(
                    "q, k or v is not what it was before the call",
                    call=call,
                    hint="Change a copy: torch.cat or clone() makes one.",
                )
            if bool(got) != causal:
                fail(
                    "a wrong verdict",
                    call=call,
                    wanted=str(causal),
                    got=str(bool(got)),
                    hint=verdict_hint(name, causal),
                )
    q, k, v = torch.tensor(rng.standard_normal((3, 1, WIDTH)))
    if not is_causal(ordinary, q, k, v):
        fail(
            "a single token has no future to look at",
            call="is_causal(attend, q, k, v) with 1 token",
            wanted="True",
            got="False",
        )
    return (
        "distinguished fourteen attention functions that see the future, and two that give NaN, from seven"
        f" that are causal, with 4 to 8 tokens and about {MOST}"
    )


# 9.3 --------------------------------------------------------------------------------------------------------

CAUSAL_HINT = "It is causal: row i depends on tokens 0 to i. Compare the rows before the changed tokens only."
ROUNDING_HINT = (
    "It is causal: only the last digit changes, because the sum is computed in another order. Allow for"
    " rounding, as torch.allclose does."
)
LEAK_HINT = (
    "It sees the future. Divide the tokens into past and future at every possible position. Each time,"
    " change q, k and v of all later tokens, and compare every earlier row."
)
NAN_HINT = (
    "Its output contains NaN, so nothing can be concluded from it. A comparison with NaN is false: ask"
    " `difference <= limit`, not `difference > limit`. And look at every row, the last one too."
)
ROUNDED, NAN, LAST_NAN = (
    "causal attention, rounded otherwise where the later tokens are others",
    "convolutional attention with -inf for both masks, all NaN",
    "causal attention whose last row is NaN",
)


def verdict_hint(name, causal):
    """Return a hint after a wrong verdict on the named attention function."""
    return {ROUNDED: ROUNDING_HINT, NAN: NAN_HINT, LAST_NAN: NAN_HINT}.get(
        name, CAUSAL_HINT if causal else LEAK_HINT
    )


def with_seed(rng, function, *arguments):
    """Call function(*arguments) with torch seeded from the check's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        return function(*arguments)


WIDTH = 6  # of q, k and v
MARGIN = 1e-4  # so far at least each leak moves an earlier row, where the later tokens are drawn again


def plain_leaks(n, rng):
    """Return (q, k, v), each (n, WIDTH), and the attention functions to classify. Inputs are redrawn until
    every leak has a clear effect."""
    while True:
        tokens, taps = (
            torch.tensor(rng.standard_normal((3, n, WIDTH))),
            rng.uniform(0.5, 1, (2, 3)) * rng.choice([-1, 1], (2, 3)),
        )
        attends = attentions(torch.tensor(taps))
        leaks = [attend for name, attend, causal in attends if not causal and name not in (NAN, LAST_NAN)]
        futures = torch.tensor(rng.standard_normal((4, 3, n, WIDTH)))
        if all(leak_of(attend, tokens, future) >= MARGIN for attend in leaks for future in futures):
            return tokens, attends


def long_leak(rng):
    """Return (q, k, v) of many tokens and four attention functions. One is causal. In each of the others, a
    single row uses the next value, far from both ends or as late as possible."""
    n = int(rng.integers(MOST - 14, MOST + 1))
    row = int(rng.integers(20, n - 20))
    what = "causal attention in which one row of many sees a little of the next value"
    attends = [
        ("ordinary causal attention", ordinary, True),
        (what, one_row(lambda _: row, lambda _: row + 1), False),
        (f"{what}, the last row but one", one_row(lambda n: n - 2, lambda n: n - 1), False),
        (
            "causal attention in which one of many rows sees a ten-thousandth of the next value",
            one_row(lambda n: 3 * n // 4, lambda n: 3 * n // 4 + 1, 1e-4),
            False,
        ),
    ]
    return torch.tensor(rng.standard_normal((3, n, WIDTH))), attends


def leak_of(attend, tokens, future):
    """Return the maximum change of any row of `attend` when the tokens after it are replaced with those of
    `future`."""
    before = attend(*tokens)
    changes = (
        attend(*torch.cat([tokens[:, :t], future[:, t:]], 1))[:t] - before[:t] for t in range(1, len(before))
    )
    return max(change.abs().max().item() for change in changes)


def attentions(w):
    """Return (name, attention function, whether it is causal) triples for taps w of shape (2, 3)."""

    def scores(q, k):
        return q @ k.T / math.sqrt(q.shape[1])

    def attend(t, v):
        return torch.softmax(t.masked_fill(future(t), -math.inf), dim=1) @ v

    def convolved(s):
        (n, _), (c_q, c_k), left = s.shape, w.shape, (w.shape[1] - 1) // 2
        padded = torch.nn.functional.pad(s, (left, c_k - 1 - left, c_q - 1, 0))
        return sum(w[a, b] * padded[a : a + n, b : b + n] for a in range(c_q) for b in range(c_k))

    def looks_at_the_next_query(q, k, v):
        return attend(scores(q.roll(-1, 0), k), v)

    def mask_of_the_formula(q, k, v):
        s = scores(q, k)
        past = torch.ones_like(s).tril()
        return attend(torch.stack([convolved(s * past[i])[i] for i in range(len(q))]), v)

    def rounded(q, k, v):
        total = v.sum(0)
        return (ordinary(q, k, v) + total) - total

    def infinite_twice(q, k, v):
        s = scores(q, k)
        return attend(convolved(s.masked_fill(future(s), -math.inf)), v)

    return [
        ("ordinary causal attention", ordinary, True),
        ("convolutional attention", lambda q, k, v: attend(convolved(scores(q, k).tril()), v), True),
        (
            "convolutional attention with another mask before the convolution, causal too",
            mask_of_the_formula,
            True,
        ),
        ("v itself", lambda q, k, v: v.clone(), True),
        ("the values so far, added up", lambda q, k, v: v.cumsum(0), True),
        ("zero everywhere", lambda q, k, v: 0 * v, True),
        (ROUNDED, rounded, True),
        (NAN, infinite_twice, False),
        (LAST_NAN, last_row_nan, False),
        ("attention without a mask", lambda q, k, v: torch.softmax(scores(q, k), dim=1) @ v, False),
        (
            "convolutional attention without its first mask",
            lambda q, k, v: attend(convolved(scores(q, k)), v),
            False,
        ),
        ("causal attention that looks at the next token's query", looks_at_the_next_query, False),
        (
            "causal attention with the mean of all values taken off",
            lambda q, k, v: ordinary(q, k, v - v.mean(0)),
            False,
        ),
        (
            "causal attention whose first row sees a little of the second value",
            one_row(lambda n: 0, lambda n: 1),
            False,
        ),
        (
            "causal attention whose first row sees a ten-thousandth of the last value",
            one_row(lambda n: 0, lambda n: n - 1, 1e-4),
            False,
        ),
        ("causal attention that sees the next value through a layer norm", normed, False),
        (
            "causal attention that sees the size of the next value, but not its sign",
            lambda q, k, v: ordinary(q, k, v) + 0.1 * the_next(v).abs(),
            False,
        ),
        ("causal attention whose columns turn a little with the next value", turned, False),
        (
            "causal attention whose last row but one sees a little of the last value",
            one_row(lambda n: n - 2, lambda n: n - 1),
            False,
        ),
        (
            "causal attention whose middle row sees a little of the next value",
            one_row(lambda n: (n - 1) // 2, lambda n: (n + 1) // 2),
            False,
        ),
    ]


def future(s):
    """Return an (n, n) mask that is True where the key comes after the query."""
    return torch.ones_like(s, dtype=torch.bool).triu(1)


def ordinary(q, k, v):
    """Compute causal attention of q, k, v (n, d)."""
    s = q @ k.T / math.sqrt(q.shape[1])
    return torch.softmax(s.masked_fill(future(s), -math.inf), dim=1) @ v


def one_row(row, token, share=0.1):
    """Return causal attention, except that row `row(n)` of n receives a share of the value of token
    `token(n)`."""

    def peeks(q, k, v):
        at = torch.arange(len(q))[:, None]
        seen = (token(len(q)) % len(q)) * (len(q) > 1)
        return ordinary(q, k, v) + share * (at == row(len(q))) * v[seen]

    return peeks


def the_next(x):
    """Shift x (n, d) up by one row and fill the last row with 0."""
    return torch.cat([x[1:], torch.zeros_like(x[:1])])


def last_row_nan(q, k, v):
    """Compute causal attention and replace its last row with NaN."""
    out = ordinary(q, k, v)
    out[-1] = math.nan
    return out


def normed(q, k, v):
    """Attend to the next value through a layer norm, which maps x + 1 and 2 x to the same result as x."""
    return ordinary(q, k, v) + 0.1 * the_next(torch.nn.functional.layer_norm(v, v.shape[1:], eps=0.0))


def turned(q, k, v):
    """Rotate the three smallest middle columns of each row about their mean, by a fiftieth of the last
    element of the next value. The row keeps its sum, its norm, its largest element and both ends."""
    out, angle = ordinary(q, k, v), the_next(v)[:, -1:] / 50
    places = 1 + out[:, 1:-1].argsort(1)[:, :3]
    three = out.gather(1, places)
    mean = three.mean(1, keepdim=True)
    across = (three.roll(1, 1) - three.roll(-1, 1)) / math.sqrt(3)
    return out.scatter(1, places, mean + (three - mean) * angle.cos() + across * angle.sin())
