"""Wrong answers to the exercises of lesson 23, each labelled with its mistake, and alternative correct
answers."""

import math

import torch

from course.check import lesson23
from power.lessons import from_solutions

FAULTS = lesson23.FAULTS
halo, merge, ring = from_solutions("23", "halo", "merge", "ring")


def halo_by_sets(start, length, n, c_q, c_k):
    own = range(start, start + length)
    left = (c_k - 1) // 2
    queries = [i for i in range(n) if any(0 <= r - i <= c_q - 1 for r in own)]
    keys = [j for j in range(n) if any(-left <= j - r <= c_k - 1 - left for r in own)]
    return [queries[0], keys[0], keys[-1] + 1]


def merge_by_maximum(one, other):
    m = torch.maximum(one[1], other[1]).clamp(min=-1e30)
    a, b = torch.exp(one[1] - m), torch.exp(other[1] - m)
    total = a + b
    o = (a[:, None] * one[0] + b[:, None] * other[0]) / torch.where(total > 0, total, 1.0)[:, None]
    return [o, torch.where(total > 0, m + total.log(), -math.inf)]


def merge_by_nan_to_num(one, other):
    total = torch.logaddexp(one[1], other[1])
    return sum(o * torch.nan_to_num(torch.exp(part - total))[:, None] for o, part in (one, other)), total


def no_guard(one, other):
    total = torch.logaddexp(one[1], other[1])
    return (
        one[0] * torch.exp(one[1] - total)[:, None] + other[0] * torch.exp(other[1] - total)[:, None],
        total,
    )


def no_maximum(one, other):
    a, b = one[1].exp(), other[1].exp()
    return (a[:, None] * one[0] + b[:, None] * other[0]) / (a + b).clamp_min(1e-300)[:, None], (a + b).log()


def in_place(one, other):
    o, total = merge(one, other)
    one[0].copy_(o)
    return one[0], total


def adds(one, other):
    return one[0] + other[0], torch.logaddexp(one[1], other[1])


def averages(one, other):
    return (one[0] + other[0]) / 2, torch.logaddexp(one[1], other[1])


def swapped(one, other):
    return merge((one[0], other[1]), (other[0], one[1]))


def larger_wins(one, other):
    return torch.where((one[1] >= other[1])[:, None], one[0], other[0]), torch.logaddexp(one[1], other[1])


def ring_of_a_list(mine, ranks, attend, exchange, merge):
    blocks = [mine]
    while len(blocks) < ranks:
        blocks.append(exchange(blocks[-1]))
    first, *others = map(attend, blocks)
    for other in others:
        first = merge(first, other)
    return first


def exchanges_too_often(mine, ranks, attend, exchange, merge):
    block, result = mine, attend(mine)
    for step in range(ranks):
        block = exchange(block)
        if step < ranks - 1:
            result = merge(result, attend(block))
    return result


def sends_its_own(mine, ranks, attend, exchange, merge):
    result = attend(mine)
    for _ in range(ranks - 1):
        result = merge(result, attend(exchange(mine)))
    return result


def forgets_its_own(mine, ranks, attend, exchange, merge):
    block = exchange(mine)
    result = attend(block)
    for _ in range(ranks - 2):
        block = exchange(block)
        result = merge(result, attend(block))
    return result


def keeps_the_last(mine, ranks, attend, exchange, merge):
    block = mine
    result = attend(block)
    for _ in range(ranks - 1):
        block = exchange(block)
        result = attend(block)
    return result


def four_ranks(mine, ranks, attend, exchange, merge):
    return ring(mine, min(ranks, 4), attend, exchange, merge)


def twice_its_own(mine, ranks, attend, exchange, merge):
    return merge(attend(mine), ring(mine, ranks, attend, exchange, merge))


def its_own_twice_over(mine, ranks, attend, exchange, merge):
    result = attend(mine)
    return ring(
        mine, ranks, lambda block: merge(result, result) if block is mine else attend(block), exchange, merge
    )


def each_later_step_twice(mine, ranks, attend, exchange, merge):
    block, result = mine, attend(mine)
    for _ in range(ranks - 1):
        block = exchange(block)
        part = attend(block)
        result = merge(merge(result, part), part)
    return result


def until_it_comes_home(mine, ranks, attend, exchange, merge):
    result, block = attend(mine), exchange(mine)
    while block is not mine:
        result, block = merge(result, attend(block)), exchange(block)
    return result


def clamped(one, other):
    total = torch.logaddexp(*(part[1].clamp_min(-1e4) for part in (one, other)))
    return sum(
        (part[1].clamp_min(-1e4) - total).exp()[:, None] * part[0] for part in (one, other)
    ), torch.logaddexp(one[1], other[1])


def from_nothing(mine, ranks, attend, exchange, merge):
    part = attend(mine)
    result = merge((torch.zeros_like(part[0]), torch.full_like(part[1], -math.inf)), part)
    for _ in range(ranks - 1):
        mine = exchange(mine)
        result = merge(result, attend(mine))
    return result


def swapped_letters(one, other):
    return lambda: FAULTS | {one: FAULTS[other], other: FAULTS[one]}


MUTANTS = {
    "ex23_1": [
        ("no halo", lambda start, length, n, c_q, c_k: (start, start, start + length)),
        (
            "c_q rows above",
            lambda start, length, n, c_q, c_k: (max(0, start - c_q), *halo(start, length, n, c_q, c_k)[1:]),
        ),
        (
            "left and right exchanged",
            lambda start, length, n, c_q, c_k: (
                max(0, start - c_q + 1),
                max(0, start - c_k // 2),
                min(n, start + length + (c_k - 1) // 2),
            ),
        ),
        (
            "beyond the end",
            lambda start, length, n, c_q, c_k: (
                *halo(start, length, n, c_q, c_k)[:2],
                start + length + c_k // 2,
            ),
        ),
        (
            "before the beginning",
            lambda start, length, n, c_q, c_k: (
                start - c_q + 1,
                start - (c_k - 1) // 2,
                halo(start, length, n, c_q, c_k)[2],
            ),
        ),
        ("the last key, not the one behind it", lambda *shard: (*halo(*shard)[:2], halo(*shard)[2] - 1)),
        ("all keys", lambda start, length, n, c_q, c_k: (halo(start, length, n, c_q, c_k)[0], 0, n)),
        ("floats", lambda *shard: tuple(map(float, halo(*shard)))),
        ("nothing", lambda *shard: None),
    ],
    "ex23_2": [
        ("no guard", no_guard),
        ("no maximum", no_maximum),
        ("in place", in_place),
        ("adds", adds),
        ("averages", averages),
        ("sums exchanged", swapped),
        ("the larger wins", larger_wins),
        ("O alone", lambda one, other: merge(one, other)[0]),
        ("clamped at -10,000", clamped),
    ],
    "ex23_3": [
        ("an exchange too many", exchanges_too_often),
        ("all blocks in a list", ring_of_a_list),
        ("sends its own again", sends_its_own),
        ("forgets its own", forgets_its_own),
        ("keeps the last step", keeps_the_last),
        ("four ranks at most", four_ranks),
        ("attends to its own twice", twice_its_own),
        ("its own merged with itself", its_own_twice_over),
        ("each later step twice", each_later_step_twice),
        ("until its own comes home", until_it_comes_home),
        ("its own alone", lambda mine, ranks, attend, exchange, merge: attend(mine)),
    ],
    "ex23_4": [
        *[(f"{one} and {other} swapped", swapped_letters(one, other)) for one, other in ("ab", "ac", "bc")],
        ("all the same", lambda: dict.fromkeys(FAULTS, "keys")),
        ("one left out", lambda: {name: FAULTS[name] for name in "ab"}),
        ("other words", lambda: dict.fromkeys(FAULTS, "halo")),
        ("a list", lambda: list(FAULTS.values())),
    ],
    "ex23_5": [
        ("neighbours", lambda rank, ranks: (2 * rank, 2 * rank + 1)),
        ("strides", lambda rank, ranks: (rank, rank + ranks)),
        ("larger first", lambda rank, ranks: (2 * ranks - 1 - rank, rank)),
        ("beyond the end", lambda rank, ranks: (rank, 2 * ranks - rank)),
        (
            "wrong for five ranks alone",
            lambda rank, ranks: (rank, 2 * ranks - 1 - rank) if ranks != 5 or rank else (0, 8),
        ),
        ("for four ranks", lambda rank, ranks: (rank, 7 - rank)),
        ("the same for all", lambda rank, ranks: (0, 2 * ranks - 1)),
    ],
}

RIGHT = {
    "ex23_1": [halo, halo_by_sets, lambda *shard: torch.tensor(halo(*shard))],
    "ex23_2": [merge, merge_by_maximum, merge_by_nan_to_num],
    "ex23_3": [ring, from_nothing],
    "ex23_4": [lambda: FAULTS, lambda: dict(sorted(FAULTS.items(), reverse=True))],
    "ex23_5": [
        lambda rank, ranks: (rank, 2 * ranks - 1 - rank),
        lambda rank, ranks: [ranks - 1 - rank, ranks + rank],
    ],
}
