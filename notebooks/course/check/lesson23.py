"""Checks for lesson 23: halos of a shard, merging (O, L), the ring, faults at a border, balanced chunks, and
faulty implementations to diagnose."""

import itertools
import math
import operator
import weakref

import torch

from course.check import letters
from course.check.harness import compare, exercise, fail
from kernels.common.extent import Extent
from kernels.reference import conv_attention, conv_attention_part

FAULTS = letters.drawn(["keys", "merge", "queries"])
IMPLEMENTATIONS = tuple(FAULTS)
EVIDENCE = (
    "Run lesson23.wrong_rows(letter, c_q=1) and lesson23.wrong_rows(letter, c_k=1): with taps that need no"
    " halo of queries or of keys, a bug in this halo does no harm. The rows of rank 0 tell the other two bugs"
    " apart: which keys do its queries see, and can one of them be counted twice?"
)


@exercise("23.1", "halo")
def ex23_1(halo, rng):
    shards = [
        (4, 4, 12, 3, 4),
        (0, 5, 5, 1, 1),
        (0, 2, 9, 6, 11),
        (8, 1, 9, 6, 11),
        (1, 1, 3, 15, 15),
        (3, 2, 40, 7, 2),
        (30, 10, 1000, 2, 9),
    ]
    for _ in range(20):
        n = int(rng.integers(1, 60))
        start = int(rng.integers(n))
        shards.append(
            (
                start,
                int(rng.integers(1, n - start + 1)),
                n,
                int(rng.integers(1, 16)),
                int(rng.integers(1, 16)),
            )
        )
    for start, length, n, c_q, c_k in shards:
        left = (c_k - 1) // 2
        wanted = max(0, start - c_q + 1), max(0, start - left), min(n, start + length + c_k - 1 - left)
        got = whole_numbers(
            halo(start, length, n, c_q, c_k), 3, f"halo({start}, {length}, {n}, {c_q}, {c_k})"
        )
        compare(
            got,
            wanted,
            what="these are not the rows that are needed",
            call=f"halo({start}, {length}, {n}, {c_q}, {c_k})",
            tolerance=0,
            hint=HALO,
        )
    return (
        f"{len(shards)} shards, at both ends of the sequence and longer and shorter than their halos, taps 1"
        " to 15, odd and even"
    )


def whole_numbers(got, count, call):
    """Return `got` as a tuple of `count` ints, or a verdict."""
    try:
        numbers = tuple(operator.index(x) for x in got)
    except TypeError:
        numbers = ()
    if len(numbers) != count:
        fail(f"the answer is not {count} whole numbers", call=call, got=repr(got))
    return numbers


HALO = (
    "c_q - 1 rows above; P_k = (c_k - 1) // 2 keys to the left and P_r = c_k - 1 - P_k to the right; none"
    " before token 0, none from token n on."
)


@exercise("23.2", "merge")
def ex23_2(merge, rng):
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    for offset in (0, 10_500, -10_500):
        for n, d in [(1, 1), (5, 3), (40, 2)]:
            parts = [
                (
                    torch.randn(n, d, generator=generator, dtype=torch.float64),
                    offset + 3 * torch.randn(n, generator=generator, dtype=torch.float64),
                )
                for _ in range(2)
            ]
            for nobody in ((), (0,), (1,), (0, 1)):
                check_merge(
                    merge, [nothing_in(part, which in nobody) for which, part in enumerate(parts)], offset
                )
    check_merge(
        merge,
        [
            (torch.full((2, 2), 7.0, dtype=torch.float64), torch.tensor(sums, dtype=torch.float64))
            for sums in ([-800, 0], [800, 0])
        ],
        "-800 and 800",
    )
    return (
        "1 to 40 rows, log-sums near 0, 10,500 and -10,500, and 1600 apart; rows that one part, the other, or"
        " both have not seen"
    )


def nothing_in(part, empty):
    """Return the pair. If `empty`, every second row sees no keys."""
    o, log_sum = (x.clone() for x in part)
    if empty:
        o[::2], log_sum[::2] = 0, -math.inf
    return o, log_sum


def check_merge(merge, parts, offset):
    sums = torch.stack([log_sum for _, log_sum in parts])
    largest = sums.amax(0).clamp_min(-1e300)
    weights = torch.exp(sums - largest)
    total = weights.sum(0)
    o = sum(weight[:, None] * o for weight, (o, _) in zip(weights, parts)) / total.clamp_min(1e-300)[:, None]
    given = [tuple(x.clone() for x in part) for part in parts]
    got = merge(*given)
    call = f"merge((O, L), (O, L)) with log-sums near {offset}" + ", some rows unseen" * bool(
        (sums == -math.inf).any()
    )
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        fail("the result is not a pair (O, L)", call=call, got=repr(type(got).__name__))
    for part, same in zip(given, parts):
        for x, y in zip(part, same):
            if not torch.equal(x, y):
                fail(
                    "it modifies one of the two pairs",
                    call=call,
                    hint="Create new tensors: o * weight, not o *= weight.",
                )
    compare(
        got[1],
        torch.where(total > 0, largest + torch.log(total), -math.inf),
        what="L of all keys",
        call=call,
        tolerance=1e-12,
        hint="The sums add up: L = log(e^L1 + e^L2).",
    )
    compare(
        got[0],
        o,
        what="O of all keys",
        call=call,
        tolerance=1e-12,
        hint=(
            "The weights are e^(L1 - L) and e^(L2 - L); 0 for a row that has seen no key, where -inf meets"
            " -inf."
        ),
    )


class Block:
    """The keys and values of one rank. `there` contains all blocks that this rank holds."""

    there = weakref.WeakSet()

    def __init__(self, owner):
        self.owner = owner
        self.there.add(self)


@exercise("23.3", "ring")
def ex23_3(ring, rng):
    for ranks in (1, 2, 3, 5, 8):
        mine = int(rng.integers(ranks))
        attended, sent, most, call = [], [], 0, f"rank {mine} of {ranks}"
        sums = torch.tensor(rng.uniform(-2, 2, ranks))

        def attend(block):
            attended.append(block.owner)
            mine = slice(block.owner, block.owner + 1)
            return torch.eye(ranks, dtype=torch.float64)[mine], sums[mine]

        def exchange(block):
            nonlocal most
            sent.append(block.owner)
            if len(sent) > 2 * ranks:
                fail(
                    "it does not stop exchanging",
                    call=call,
                    got=f"{len(sent)} exchanges for {ranks} steps",
                    hint="Count the steps.",
                )
            came = Block((block.owner - 1) % ranks)
            most = max(most, sum(one.owner != mine for one in Block.there))
            return came

        got = ring(Block(mine), ranks, attend, exchange, merged_pair)
        wanted = [(mine - step) % ranks for step in range(ranks)]
        if sorted(attended) != sorted(wanted):
            fail(
                "a rank attends once to each block",
                call=call,
                wanted=f"the keys of the ranks {wanted}",
                got=str(attended),
            )
        if sent != wanted[: ranks - 1]:
            fail(
                "these are not the blocks that the ring passes on",
                call=call,
                wanted=f"the keys of the ranks {wanted[: ranks - 1]}",
                got=str(sent),
                hint="Start with the rank's own block, without an exchange; pass on what came last.",
            )
        if most > 2:
            fail(
                f"it keeps {most} blocks at a time",
                call=call,
                wanted="at most 2 besides its own: one that leaves and one that arrives",
                hint="Attend to a block, pass it on, drop it. Keeping all needs an all-gather's memory.",
            )
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            fail("the result is not a pair (O, L)", call=call, got=repr(type(got).__name__))
        compare(
            got[1],
            torch.logsumexp(sums, 0)[None],
            what="L after all steps",
            call=call,
            tolerance=1e-12,
            hint="Merge each step's result exactly once.",
        )
        compare(
            got[0],
            torch.softmax(sums, 0)[None],
            what="O after all steps",
            call=call,
            tolerance=1e-12,
            hint="Merge each step's result exactly once.",
        )
    return "1 to 8 ranks: each block attended to once, no needless exchange, every step merged once"


def merged_pair(one, other):
    """Return (O, L) over the keys of both pairs."""
    sums = torch.stack([one[1], other[1]])
    weights = torch.softmax(sums, 0)
    return weights[0][:, None] * one[0] + weights[1][:, None] * other[0], torch.logsumexp(sums, 0)


@exercise("23.4", "faults")
def ex23_4(faults, rng):
    letters.judge(faults(), FAULTS, EVIDENCE)
    return "all three identified by their wrong rows"


@exercise("23.5", "my_chunks")
def ex23_5(my_chunks, rng):
    for ranks in range(1, 17):
        held = [
            whole_numbers(my_chunks(rank, ranks), 2, f"my_chunks({rank}, {ranks})") for rank in range(ranks)
        ]
        for rank, pair in enumerate(held):
            if not pair[0] < pair[1]:
                fail(
                    "wanted two chunks, the smaller first", call=f"my_chunks({rank}, {ranks})", got=repr(pair)
                )
        every = sorted(s for pair in held for s in pair)
        if every != list(range(2 * ranks)):
            fail(
                f"not each of the {2 * ranks} chunks is held once", call=f"all {ranks} ranks", got=str(every)
            )
        sums = [sum(pair) for pair in held]
        if len(set(sums)) > 1:
            fail(
                "the ranks do not have equal work",
                call=f"all {ranks} ranks",
                got=f"chunks {held}",
                hint="The work of chunk s grows linearly with s: which pairs have equal sums?",
            )
    return "1 to 16 ranks: each chunk held once, equal work on all"


# Tokens, and machines with a fault --------------------------------------------------------------------------


def tokens(n, d, c_q, c_k, seed=23):
    """Return (q, k, v (n, d), w (c_q, c_k)) in float64, equal on every rank."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, n, d, generator=generator, dtype=torch.float64)
    return q, k, v, torch.randn(c_q, c_k, generator=generator, dtype=torch.float64)


def output(machine, changed=False, n=24, ranks=3, c_q=3, c_k=5):
    """O (n, d) by a machine of `ranks` ranks; "right" has no fault, "local mask" one that the exercise does
    not ask for. changed: the last token is another."""
    q, k, v, w = tokens(n, 4, c_q, c_k)
    if changed:
        q[-1], k[-1], v[-1] = q[-1] + 1, k[-1] - 1, v[-1] + 2
    fault, left = FAULTS.get(machine, ""), (c_k - 1) // 2
    borders, rows = [n * r // ranks for r in range(ranks + 1)], []
    for start, end in itertools.pairwise(borders):
        first_query = start if fault == "queries" else max(0, start - c_q + 1)
        results = []
        for begin, stop in itertools.pairwise(borders):
            first, last = (
                (begin, stop) if fault == "keys" else (max(0, begin - left), min(n, stop + c_k - 1 - left))
            )
            if fault == "merge":  # the halo's columns are owned too
                begin, stop = first, last
                first, last = max(0, begin - left), min(n, stop + c_k - 1 - left)
            given = (x[None, None] for x in (q[first_query:end], k[first:last], v[begin:stop]))
            results.append(
                conv_attention_part(
                    *given,
                    w[None],
                    Extent(
                        start - first_query, begin - first, 0 if machine == "local mask" else start - begin
                    ),
                )
            )
        o, log_sum = (torch.stack(parts) for parts in zip(*results))
        rows.append((torch.softmax(log_sum, 0)[..., None] * o).sum(0)[0, 0])
    return torch.cat(rows)


def wrong_rows(machine, c_q=3, c_k=5):
    """Return the rows of O in which an implementation differs from one device."""
    q, k, v, w = tokens(24, 4, c_q, c_k)
    wanted = conv_attention(*(x[None, None] for x in (q, k, v)), w[None])[0, 0]
    error = (output(machine, c_q=c_q, c_k=c_k) - wanted).abs().amax(1)
    return [i for i in range(24) if not error[i] <= 1e-9]
