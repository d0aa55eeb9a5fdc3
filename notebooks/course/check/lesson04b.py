"""Checks of lesson 04b: four more repaired kernels, run in `sim`, and the names of six bugs."""

import numpy as np
from numpy import float32

from course.check.contract import Contract
from course.check.harness import dictionary, exercise, fail
from course.check.lesson04 import OWN, THROUGH_SHARED, Case, numbers, one_array, parts, verify, with_zeros
from course.check.six_kernels import KERNELS, launches
from course.check.unaided import without_launches
from sim import simulate
from sim.nouns import plural

NO_BUG = "none"
KINDS = (
    "out-of-bounds negative-index uninitialized-read race-shared race-global barrier-divergence"
    " warp-divergence deadlock no-progress"
).split()


@exercise("4.6", "mirror")
def ex04_6(mirror, rng):
    for grid, block, size in [(2, 4, 6), (1, 4, 1), (1, 4, 4), (3, 4, 6), (3, 8, 17), (2, 32, 40)]:
        x = with_zeros(numbers(rng, size))
        wanted = np.concatenate([part[::-1] for part in parts(x, block)])
        contract = Contract(
            "x out",
            max_per_thread={"x": 1, "out": 1},
            min_total={"shared": 2 * size},
            owner=OWN,
            threads=size,
            barriers=(1, 2),
            grid_barriers=(0, 0),
            hint=THROUGH_SHARED,
        )
        verify(mirror, one_array(mirror, grid, block, x, wanted, contract), rng, float64=0)
    return "1 to 40 elements, short parts, blocks without work"


@exercise("4.7", "swap_neighbours")
def ex04_7(swap_neighbours, rng):
    for grid, block in [(1, 32), (3, 32), (2, 64)]:
        x = with_zeros(numbers(rng, grid * block))
        wanted = x.reshape(-1, 2)[:, ::-1].ravel()
        warps = grid * block // 32
        contract = Contract(
            "x out",
            max_per_thread={"x": 2, "out": 1},
            max_total={"shared": 0},
            owner=OWN | {"out": OWN["x"]},
            shuffles=(warps, 4 * warps),
            hint=THROUGH_SHUFFLES,
        )
        verify(swap_neighbours, one_array(swap_neighbours, grid, block, x, wanted, contract), rng)
    return "one warp, several blocks, two warps in a block"


@exercise("4.8", "shares")
def ex04_8(shares, rng):
    for grid, block, size, scale in [
        (3, 4, 8, 1),
        (2, 4, 6, -0.125),  # a sum above -1
        (1, 4, 4, 0.125),
        (4, 8, 1, -1),
        (6, 16, 90, 1),
    ]:
        x = 1 + np.abs(numbers(rng, size))
        x[1::4] /= -8  # the sum stays far from 0
        x[2::4] = 0
        x *= float32(scale)
        total, out = np.zeros(1, float32), np.full(size, np.nan, float32)
        wanted = x.sum(keepdims=True), x / x.sum()
        call = f"shares_fixed[{grid}, {block}](x, total, out) with {plural(size, 'element')}"
        contract = Contract(
            "x total out",
            max_per_thread={"x": 2, "out": 1},
            threads=size,
            atomics=(1, 2 * grid * block),
            grid_barriers=(1, 1),
            hint=THROUGH_THE_GRID,
        )
        verify(shares, Case(grid, block, (x,), (total, out), wanted, contract, call), rng)
    return "whole blocks, blocks partly without work, blocks without any"


@exercise("4.9", "sample")
def ex04_9(sample, rng):
    for grid, block, size, tokens in [
        (1, 4, 4, 4),
        (1, 4, 3, 1),
        (2, 4, 6, 2),
        (3, 8, 20, 33),
        (2, 8, 12, 700),
        (2, 8, 12, 9000),
    ]:
        probabilities = rng.dirichlet(np.ones(tokens))
        probabilities[: tokens // 16] = 0  # tokens that are never drawn, not even by u = 0
        cumulative = np.cumsum(probabilities / probabilities.sum()).astype(float32)
        cumulative[-1] = 1
        u = rng.uniform(0, 0.999, size).astype(float32)
        u[0] = 0
        u[-1] = rng.choice(cumulative[:-1]) if tokens > 1 else 0  # exactly on a border
        u[size // 2] = np.nextafter(u[-1], float32(0))  # as near below it as float32 allows
        token, wanted = np.full(size, -1), np.searchsorted(cumulative, u, side="right")
        call = (
            f"sample_fixed[{grid}, {block}](cumulative, u, token) with {plural(tokens, 'token')} and"
            f" {size} draws, one exactly on a border, one just below it"
        )
        halvings = int(np.ceil(np.log2(tokens))) + 2
        contract = Contract(
            "cumulative u token",
            max_per_thread={"cumulative": 2 * halvings, "u": 2 * halvings, "token": 1},
            threads=size,
            hint=HALVING,
        )
        verify(sample, Case(grid, block, (cumulative, u), (token,), (wanted,), contract, call), rng)
    return "1 to 9,000 tokens, draws within their intervals, on a border and just below it"


THROUGH_SHUFFLES = (
    "Fix the kernel above: each thread reads and writes its own element, and its neighbour's value comes"
    " through a shuffle."
)
THROUGH_THE_GRID = (
    "Fix the kernel above: each thread adds its own element to the total, all wait once at the barrier of the"
    " grid, and each divides."
)
HALVING = "Fix the kernel above: each iteration still halves the interval, each thread for its own draw."


# Inputs -----------------------------------------------------------------------------------------------------


@exercise("4.10", "names")
def ex04_10(names, rng):
    with without_launches("Answer from the source. sim launches all six in this check."):
        said = names()
    wanted = "{'a': ..., 'b': ..., 'c': ..., 'd': ..., 'e': ..., 'f': ...}"
    dictionary(said, KERNELS, what="one kind of bug for each of a to f", wanted=wanted)
    for name, kind in said.items():
        if kind not in (*KINDS, NO_BUG):
            wanted = f"one of {', '.join(KINDS)}, or {NO_BUG}"
            fail(f"kernel {name}: {kind!r} is not a kind of bug", wanted=wanted, got=repr(kind))
    for name, (grid, block, given) in launches(rng).items():
        report = simulate(KERNELS[name], seed=int(rng.integers(2**31)), on_finding="report")[grid, block](
            *given
        )
        found = {finding.kind for finding in report.findings} or {NO_BUG}
        if {said[name]} != found:
            fail(
                f"kernel {name}: sim finds a different kind of bug than {said[name]!r}", hint=LOOK[said[name]]
            )
    return "all six are named as sim names them when they run"


LOOK = {
    "out-of-bounds": "Take the largest i that the guard lets through: what is the largest index in each []?",
    "negative-index": "Take i = 0 and t = 0: what is the smallest index in each []?",
    "uninitialized-read": "For each element that is read: which line wrote it, and did a thread run it?",
    "race-shared": (
        "Name two threads that access the same element, of which at least one writes it. Is there a barrier"
        " between the two accesses?"
    ),
    "race-global": (
        "Name two threads that access the same element of an argument, of which at least one writes it."
    ),
    "barrier-divergence": (
        "Which threads of a block do not reach the barrier? (There is no bug if all of them return.)"
    ),
    "warp-divergence": "Is there a shuffle at all?",
    "deadlock": "Does any thread wait for something other than the barrier of its block?",
    "no-progress": "Which loop has no end, and for which input?",
    NO_BUG: "This kernel does have a bug. Check each index, each element that is read, and each barrier.",
}
