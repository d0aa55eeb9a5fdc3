"""Checks of lesson 06: sums, merges and attention within warps, run in `sim`. They check values, findings and
the distribution of work."""

import numpy as np
from numba import cuda
from numpy import float32

from course.check import inputs, kernels
from course.check.contract import Contract
from course.check.harness import exercise, fail
from sim.events import LOAD
from sim.nouns import plural

LANES = 32
SHUFFLES = 6  # that a warp's sum may take: five reduction steps, and one to broadcast the sum
STEPS = 10_000  # more than all iterations of while loops in a launch of this lesson
WHOSE = (
    "Every thread with an element writes the sum of the whole warp: five rounds, with partners 16, 8, 4, 2"
    " and 1 lanes away in both directions."
)
NO_SUM = "NaN: no thread has written this element. Every thread that has one writes its own."
NO_OUTPUT = (
    "NaN: no lane has written this, or l is 0 or infinite. Is m the largest score that the lane has read, and"
    " -inf before the first?"
)
ROUND = (
    "In each round: get the partner's m, l and each o[c] before yours change, compute both factors from the"
    " old m, change o in place, and change m last."
)
EMPTY = (
    "NaN: where does -inf meet -inf? A lane that has read nothing, and one whose partner has read nothing"
    " either, must change nothing."
)


@exercise("6.1", "warp_sum")
def ex06_1(warp_sum, rng):
    for size, grid, block in [
        (32, 1, 32),
        (64, 1, 64),
        (1, 1, 32),
        (20, 1, 32),
        (45, 1, 64),
        (100, 2, 64),
        (70, 1, 128),
        (131, 3, 64),
        (700, 6, 128),
    ]:
        x = rng.standard_normal(size).astype(float32)
        out = np.full(size, np.nan, float32)
        call = f"warp_sum[{grid}, {block}](x, out) with {plural(size, 'element')}"
        wanted = np.concatenate(
            [
                np.full(len(part), part.sum(dtype=np.float64))
                for part in np.split(x, range(LANES, size, LANES))
            ]
        )
        warps = grid * block // LANES
        contract = Contract(
            "x out",
            max_per_thread={"x": 2, "out": 1},
            owner={"x": lambda element: element, "out": lambda element: element},
            max_total={"shared": 0},
            shuffles=(1, SHUFFLES * warps),
            atomics=(0, 0),
            barriers=(0, 0),
            warp_barriers=(0, 0),
            threads=size,
            hint=BY_SHUFFLES,
        )
        judge(
            warp_sum,
            grid,
            block,
            (x,),
            (out,),
            (wanted,),
            rng,
            call,
            contract,
            what="a wrong sum",
            hint=lambda got: NO_SUM if np.isnan(got).any() else WHOSE,
        )
    return "1 to 700 elements, one warp and several, full and not, one block and several"


@exercise("6.2", "merge_lanes")
def ex06_2(merge_lanes, rng):
    for case, readers, d, scores in [
        ("all lanes have read something", range(LANES), 1, rng.normal(0, 5, LANES)),
        ("vectors of three numbers", range(LANES), 3, rng.normal(0, 5, LANES)),
        ("only scores below zero", range(LANES), 2, rng.normal(-60, 5, LANES)),
        (
            "scores near 10000 and -10000",
            range(LANES),
            1,
            rng.choice([-1e4, 1e4], LANES) + rng.integers(5, size=LANES),
        ),
        ("scores near -10¹¹", range(LANES), 1, rng.choice([-1e11, -2e11], LANES)),
        ("scores near -10³⁸", range(LANES), 1, rng.choice([-1.5e38, -3e38], LANES)),
        ("lanes 0 to 4 have read something", range(5), 2, rng.normal(0, 5, 5)),
        ("one lane has read something", [int(rng.integers(LANES))], 2, rng.normal(0, 5, 1)),
        ("no lane has read anything", [], 2, []),
    ]:
        check_merge(merge_lanes, case, [states(rng, d, readers, scores)], rng)
    far = states(rng, 1, range(LANES), np.repeat([0, -1e4], LANES // 2))
    far[2][LANES // 2 :] = 1e12
    check_merge(merge_lanes, "huge sums of lanes 10000 below the maximum", [far], rng)
    many = states(rng, 2, range(LANES), rng.normal(0, 1, LANES), keys=1e6)
    check_merge(merge_lanes, "lanes that have read a million keys", [many], rng)
    check_merge(
        merge_lanes,
        "vectors of eleven numbers",
        [states(rng, 11, range(LANES), rng.normal(0, 5, LANES))],
        rng,
    )
    two = [states(rng, 2, range(first, LANES), rng.normal(0, 5, LANES - first)) for first in (0, 20)]
    check_merge(merge_lanes, "two warps in a block, one with fewer readers", two, rng)
    check_merge(
        merge_lanes,
        "two blocks of two warps",
        two + [states(rng, 2, range(LANES), rng.normal(0, 500, LANES)) for _ in range(2)],
        rng,
        blocks=2,
    )
    return (
        "full warps and warps with 31, 27 and all lanes empty, scores from -3 · 10³⁸ to 10000, vectors of 1"
        " to 11 numbers"
    )


@exercise("6.3", "warp_attention")
def ex06_3(warp_attention, rng):
    for n, keys, d, causal, warps in [
        (1, 1, 1, False, 1),
        (2, 2, 8, True, 2),
        (2, 31, 4, False, 2),
        (1, 32, 5, False, 1),
        (2, 65, 8, False, 3),
        (33, 33, 1, True, 2),
        (6, 3, 2, True, 2),
        (2, 40, 3, True, 2),
        (65, 65, 1, True, 4),
        (3, 230, 2, False, 2),
        (1, 34, 19, False, 1),
    ]:
        check_attention(warp_attention, n, keys, d, causal, warps, "scores about 0", rng)
    for scores in inputs.LOUD:
        check_attention(warp_attention, 2, 70, 2, False, 2, scores, rng)
    check_attention(warp_attention, 5, 9, 2, True, 2, "scores about 0", rng, future=7)
    return "1 to 230 queries and keys, rows of 1 to 19 numbers, causal and not, one loud key in the future"


BY_SHUFFLES = (
    "Each thread reads its own element, and gets the rest from the other lanes by shuffles alone. Five per"
    " warp are enough, because each doubles the number of elements in a lane's sum."
)
BY_MERGING = (
    "In each of five rounds, use one shuffle for m, for l and for each element of o, and nothing else."
)
ITS_KEYS = (
    "Lane t reads the keys t, t + 32, t + 64, ... that its query sees, and no others; then one merge_lanes."
)


# 6.2 --------------------------------------------------------------------------------------------------------


def states(rng, d, readers, scores, keys=3):
    """Return (m, l, o) for the 32 lanes of a warp, with m and l of shape (32,) and o of shape (32, d). Lanes
    in `readers` have the given maxima and an l of up to `keys`; the others have read nothing."""
    m, l, o = np.full(LANES, -np.inf, float32), np.zeros(LANES, float32), np.zeros((LANES, d), float32)
    readers = list(readers)
    m[readers] = scores
    l[readers] = rng.uniform(1, keys, len(readers))
    o[readers] = rng.normal(0, 2, (len(readers), d))
    return m, l, o


def check_merge(merge_lanes, case, warps, rng, blocks=1):
    """Merge the states of several warps. Every lane must end with the merged state of all 32 lanes of its
    warp."""
    m, l, o = map(np.concatenate, zip(*warps, strict=True))
    merged = tuple(np.full_like(array, np.nan) for array in (m, l, o))
    call = f"m, l = merge_lanes(m, l, o) by each lane of a warp; {case}"
    d = o.shape[1]
    wanted = tuple(
        np.concatenate(parts) for parts in zip(*(in_each_lane(*warp) for warp in warps), strict=True)
    )
    contract = Contract(
        max_total={"shared": 0},
        shuffles=(1, SHUFFLES * (d + 2) * len(warps)),
        atomics=(0, 0),
        barriers=(0, 0),
        warp_barriers=(0, 0),
        hint=BY_MERGING,
    )
    judge(
        kernel_around(merge_lanes, d),
        blocks,
        len(m) // blocks,
        (m, l, o),
        merged,
        wanted,
        rng,
        call,
        contract,
        what=f"{case}: m, l and o of each lane",
        hint=lambda *got: EMPTY if any(np.isnan(x).any() for x in got) else ROUND,
    )


def kernel_around(merge_lanes, d):
    """Return a kernel that merges one state per thread, with o of length d."""

    def merge_states(m, l, o, merged_m, merged_l, merged_o):
        i = cuda.grid(1)
        my_o = cuda.local.array(d, float32)
        for c in range(d):
            my_o[c] = o[i, c]
        merged_m[i], merged_l[i] = merge_lanes(m[i], l[i], my_o)
        for c in range(d):
            merged_o[i, c] = my_o[c]

    return merge_states


def in_each_lane(m, l, o):
    """Return the merged state of a warp in float64, repeated for each lane."""
    largest = m.max()
    weight = np.where(m == -np.inf, 0, np.exp(m.astype(np.float64) - (largest if largest > -np.inf else 0)))
    return np.full(LANES, largest), np.full(LANES, weight @ l), np.tile(weight @ o, (LANES, 1))


# 6.3 --------------------------------------------------------------------------------------------------------


def check_attention(warp_attention, n, keys, d, causal, warps, scores, rng, future=None):
    """Compare one launch with float64, with this number of warps per block. Lane t of a query's warp must
    read keys t, t + 32, … and no others."""
    q, k, v, scale = inputs.attention(rng, n, keys, d, scores, future)
    kernel, grid, block = warp_attention(d), -(-n // warps), LANES * warps
    call = (
        f"{scores}: warp_attention({d})[{grid}, {block}](q, k, v, {scale:.3g}, {causal}, out) with {n}"
        f" quer{'ies' if n > 1 else 'y'} and {plural(keys, 'key')}"
    )
    out = np.full((n, d), np.nan, float32)
    sees = np.arange(keys) <= np.arange(n)[:, None] if causal else np.ones((n, keys), bool)
    rounds = -(-keys // LANES)
    each = {"k": 2 * d * rounds, "v": 2 * d * rounds, "out": d}
    contract = Contract(
        "q k v scale causal out",
        max_per_thread=each,
        max_total={"shared": 0},
        shuffles=(1, SHUFFLES * (d + 2) * n),
        atomics=(0, 0),
        barriers=(0, 0),
        warp_barriers=(0, 0),
        hint=ITS_KEYS,
    )
    report = judge(
        kernel,
        grid,
        block,
        (q, k, v, scale, causal),
        (out,),
        (inputs.attended(q, k, v, scale, sees)[1],),
        rng,
        call,
        contract,
        what="a wrong output",
        tolerance=1e-4,
        hint=lambda got: NO_OUTPUT if np.isnan(got).any() else None,
    )
    reads_its_own(report.trace, warps, kernels.python_function(kernel).__code__.co_varnames[1], d, sees, call)


def reads_its_own(trace, warps, name, d, sees, call):
    """Reject a kernel in which a lane reads keys from the array `name` that belong to another lane, or omits
    some of its own."""
    mine = (trace.action == LOAD) & (trace.array == [home.name for home in trace.arrays].index(name))
    block = np.array([x for x, _, _ in trace.blocks])[trace.block[mine]]
    warp, lane = np.divmod(trace.thread[mine], LANES)
    found = set(
        zip((block * warps + warp).tolist(), (trace.element[mine] // d).tolist(), lane.tolist(), strict=True)
    )
    wanted = {(i, j, j % LANES) for i, j in np.argwhere(sees).tolist()}
    for i, j, reader in sorted(found ^ wanted):
        what = "and should not" if (i, j, reader) in found else "never, and should"
        fail(
            f"correct, but the work is not shared as required: lane {reader} of the warp of query {i} reads"
            f" key {j} {what}",
            call=call,
            hint=ITS_KEYS,
        )


# A kernel in `sim` ------------------------------------------------------------------------------------------


def judge(kernel, grid, block, given, outputs, wanted, rng, call, contract, **options):
    """Judge one launch, and return the report with its trace."""
    kernels.own(kernel, "your kernel")
    if "activemask" in kernels.names_in(kernel):
        fail(
            "it uses cuda.activemask()",
            call=call,
            hint=(
                "It returns the lanes that happen to be together, and CUDA does not define which these are."
                " Name all 32 lanes in the mask."
            ),
        )
    return kernels.judge(
        kernel,
        (grid, block),
        given,
        outputs,
        wanted,
        rng,
        call,
        contract,
        float64=0,
        max_steps=STEPS,
        **options,
    )
