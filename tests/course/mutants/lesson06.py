"""Wrong answers to the exercises of lesson 06, each labelled with its mistake, and alternative correct
answers.

A wrong kernel is a correct one with one or two lines edited.
"""

import math

from numba import cuda
from numpy import float32

from editing import wrong
from power.lessons import from_solutions

warp_sum, merge_lanes, warp_attention = from_solutions("06", "warp_sum", "merge_lanes", "warp_attention")


ALL_LANES = 0xFFFFFFFF
MINUS_INFINITY = float32(-math.inf)


# Correct answers --------------------------------------------------------------------------------------------


# Alternative correct answers --------------------------------------------------------------------------------


def sum_down_and_hand_round(x, out):
    i = cuda.grid(1)
    value = float32(0)
    if i < x.size:
        value = x[i]
    for step in (1, 2, 4, 8, 16):
        value += cuda.shfl_down_sync(ALL_LANES, value, step)
    total = cuda.shfl_sync(ALL_LANES, value, 0)
    if i < x.size:
        out[i] = total


def sum_with_warps_that_leave(x, out):
    i = cuda.grid(1)
    if i - i % 32 >= x.size:
        return  # the whole warp returns
    value = x[i] if i < x.size else float32(0)
    step = 1
    while step < 32:
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
        step *= 2
    if i < x.size:
        out[i] = value


@cuda.jit(device=True)
def weight_or_nothing(score, maximum):
    if score == MINUS_INFINITY:
        return float32(0)
    return math.exp(score - maximum)


@cuda.jit(device=True)
def merge_from_near_to_far(m, l, o):
    for step in (1, 2, 4, 8, 16):
        lane = cuda.threadIdx.x % 32
        larger = max(m, cuda.shfl_sync(ALL_LANES, m, lane ^ step))
        mine = weight_or_nothing(m, larger)
        l = l * mine
        l += cuda.shfl_xor_sync(ALL_LANES, l, step)
        for c in range(o.size):
            o[c] *= mine
            o[c] += cuda.shfl_xor_sync(ALL_LANES, o[c], step)
        m = larger
    return m, l


@cuda.jit(device=True)
def merge_after_the_maximum(m, l, o):
    largest = m
    for step in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, step))
    factor = math.exp(m - largest) if l > 0 else float32(0)
    l *= factor
    for c in range(o.size):
        o[c] *= factor
    for step in (16, 8, 4, 2, 1):
        l += cuda.shfl_xor_sync(ALL_LANES, l, step)
        for c in range(o.size):
            o[c] += cuda.shfl_xor_sync(ALL_LANES, o[c], step)
    return largest, l


def attention_that_rescales_rarely(d):
    @cuda.jit
    def kernel(q, k, v, scale, causal, out):
        i, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
        if i >= q.shape[0]:
            return
        row, o = cuda.local.array(d, float32), cuda.local.array(d, float32)
        for c in range(d):
            row[c], o[c] = scale * q[i, c], 0
        m, l = MINUS_INFINITY, float32(0)
        j = lane
        while j < k.shape[0] and not (causal and j > i):
            score = float32(0)
            for c in range(d):
                score += row[c] * k[j, c]
            if score > m:
                shrink = math.exp(m - score)
                l *= shrink
                for c in range(d):
                    o[c] *= shrink
                m = score
            p = math.exp(score - m)
            l += p
            for c in range(d):
                o[c] += p * v[j, c]
            j += 32
        m, l = merge_after_the_maximum(m, l, o)
        for c in range(lane, d, 32):
            out[i, c] = o[c] / l

    return kernel.py_func


# Wrong in more than one line --------------------------------------------------------------------------------


def sum_by_reading_all(x, out):
    i = cuda.grid(1)
    if i < x.size:
        total = float32(0)
        for j in range(i - i % 32, min(i - i % 32 + 32, x.size)):
            total += x[j]
        out[i] = total


def sum_by_atomics(x, out):
    i = cuda.grid(1)
    sums = cuda.shared.array(4, float32)
    warp = cuda.threadIdx.x // 32
    if cuda.threadIdx.x % 32 == 0:
        sums[warp] = 0
    cuda.syncthreads()
    if i < x.size:
        cuda.atomic.add(sums, warp, x[i])
    cuda.syncthreads()
    if i < x.size:
        out[i] = sums[warp]


def sum_by_31_shuffles(x, out):
    i = cuda.grid(1)
    mine = x[i] if i < x.size else float32(0)
    total = float32(0)
    for lane in range(32):
        total += cuda.shfl_sync(ALL_LANES, mine, lane)
    if i < x.size:
        out[i] = total


@cuda.jit(device=True)
def merge_nothing(m, l, o):
    return m, l


MINE = "math.exp(m - larger) if m > MINUS_INFINITY else float32(0)"
THEIRS = "math.exp(other_m - larger) if other_m > MINUS_INFINITY else float32(0)"

MUTANTS = {
    "ex06_1": (
        wrong(
            warp_sum,
            (
                "has the shuffles under the guard",
                ("    step = 16\n", "    if i >= x.size:\n        return\n    step = 16\n"),
            ),
            (
                "shuffles only where there is an element",
                ("        value +=", "        if i < x.size: value +="),
            ),
            (
                "spares the lanes that have nothing to do",
                ("        value +=", "        if cuda.threadIdx.x % 32 < step: value +="),
            ),
            ("lane 0 alone writes", ("    if i < x.size:\n", "    if i < x.size and i % 32 == 0:\n")),
            ("starts with step 8", ("step = 16", "step = 8")),
            ("starts with step 32", ("step = 16", "step = 32")),
            ("keeps only what came", ("value +=", "value =")),
            ("has no guard at the store", ("    if i < x.size:\n        out", "    out")),
            ("lets a lane without an element bring the last one", ("float32(0)", "x[x.size - 1]")),
            (
                "reads in threads without an element",
                ("x[i] if i < x.size else float32(0)", "x[i % x.size] * (i < x.size)"),
            ),
            ("names the lanes that happen to be there", ("ALL_LANES", "cuda.activemask()")),
            ("names half of the lanes in its mask", ("ALL_LANES", "0xFFFF")),
            ("names only lane 0 in its mask", ("ALL_LANES", "1")),
            ("wrong only with several blocks", ("cuda.grid(1)", "cuda.threadIdx.x")),
            ("wrong only with several warps", ("cuda.grid(1)", "cuda.grid(1) % 32")),
            ("wrong only in a block's second warp", ("x[i] if i", "x[i - cuda.threadIdx.x // 32 * 32] if i")),
            ("gives the mean", ("= value", "= value / 32")),
            (
                "takes the largest",
                (
                    "value += cuda.shfl_xor_sync(ALL_LANES, value, step)",
                    "value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, step))",
                ),
            ),
            ("right on arange only", ("= x[i] if", "= float32(i) if")),
        )
        + [
            ("reads all 32 elements in each thread", sum_by_reading_all),
            ("uses shared memory and atomics", sum_by_atomics),
            ("takes a shuffle for every lane", sum_by_31_shuffles),
        ]
    ),
    "ex06_2": (
        wrong(
            merge_lanes,
            (
                "NaN where both have read nothing",
                (MINE, "math.exp(m - larger)"),
                (THEIRS, "math.exp(other_m - larger)"),
            ),
            (
                "takes -1e30 for minus infinity",
                (MINE, MINE.replace("MINUS_INFINITY", "-1e30")),
                (THEIRS, THEIRS.replace("MINUS_INFINITY", "-1e30")),
            ),
            ("lets nothing come from scores below zero", ("other_m > MINUS_INFINITY", "other_m > 0")),
            ("adds without rescaling", (MINE, "float32(1)"), (THEIRS, "float32(1)")),
            ("rescales l only", ("o[c] = mine * o[c] + theirs * cuda", "o[c] = o[c] + cuda")),
            ("rescales o only", ("l = mine * l + theirs * other_l", "l = l + other_l")),
            ("swaps the factors", ("l = mine * l + theirs * other_l", "l = theirs * l + mine * other_l")),
            ("swaps the factors of o", ("o[c] = mine * o[c] + theirs *", "o[c] = theirs * o[c] + mine *")),
            (
                "takes no maximum",
                ("larger = max(m, other_m)", "larger = float32(0)"),
                ("m = larger", "m = max(m, other_m)"),
            ),
            ("updates m too early", ("        mine =", "        m = larger\n        mine =")),
            ("never updates m", ("        m = larger\n", "")),
            (
                "uses powers of 2",
                (MINE, "2 ** (m - larger) if m > MINUS_INFINITY else float32(0)"),
                (THEIRS, "2 ** (other_m - larger) if other_m > MINUS_INFINITY else float32(0)"),
            ),
            ("forgets to merge o", ("range(o.size)", "range(0)")),
            ("right only for one number in o", ("range(o.size)", "range(1)")),
            ("hands the first number of o to all", ("ALL_LANES, o[c], step", "ALL_LANES, o[0], step")),
            ("starts with step 8", ("step = 16", "step = 8")),
            (
                "goes down, so that lane 0 alone knows",
                ("cuda.shfl_xor_sync(ALL_LANES, m,", "cuda.shfl_down_sync(ALL_LANES, m,"),
                ("cuda.shfl_xor_sync(ALL_LANES, l,", "cuda.shfl_down_sync(ALL_LANES, l,"),
                ("cuda.shfl_xor_sync(ALL_LANES, o[c],", "cuda.shfl_down_sync(ALL_LANES, o[c],"),
            ),
            (
                "leaves out partners that have read nothing, at the shuffle",
                ("            o[c] = mine", "            if theirs > 0: o[c] = mine"),
            ),
            (
                "leaves when it has read nothing",
                ("    step = 16\n", "    if l == 0:\n        return m, l\n    step = 16\n"),
            ),
            ("returns nothing", ("return m, l", "pass")),
            (
                "divides already",
                (
                    "    return m, l",
                    (
                        "    for c in range(o.size):\n        o[c] = o[c] / l if l > 0 else float32(0)\n   "
                        " return m, l"
                    ),
                ),
            ),
            (
                "uses the lane's number within the block",
                (
                    "cuda.shfl_xor_sync(ALL_LANES, l, step)",
                    "cuda.shfl_sync(ALL_LANES, l, min(cuda.threadIdx.x, 31) ^ step)",
                ),
            ),
        )
        + [("does nothing", merge_nothing)]
    ),
    "ex06_3": wrong(
        warp_attention,
        ("every lane reads all keys", ("range(lane, seen, 32)", "range(0, seen)")),
        ("one lane reads all keys", ("range(lane, seen, 32)", "range(0, seen if lane == 0 else 0)")),
        (
            "gives each lane a run of neighbouring keys",
            (
                "range(lane, seen, 32)",
                "range(lane * ((seen + 31) // 32), min(seen, (lane + 1) * ((seen + 31) // 32)))",
            ),
        ),
        ("reads 32 keys at most", ("range(lane, seen, 32)", "range(lane, min(seen, 32), 32)")),
        ("steps by the size of the block", ("range(lane, seen, 32)", "range(lane, seen, cuda.blockDim.x)")),
        (
            "takes the thread's index for the lane",
            ("range(lane, seen, 32)", "range(cuda.threadIdx.x, seen, 32)"),
        ),
        ("causal, but not its own key", ("i + 1) if", "i) if")),
        (
            "right only where there are as many keys as queries",
            ("min(keys, i + 1) if causal", "i + 1 if causal"),
        ),
        ("leaves out the scale", ("            score *= scale\n", "")),
        ("has a scale of its own", ("score *= scale", "score /= math.sqrt(d)")),
        (
            "takes no maximum",
            (
                "shrink, weight = math.exp(m - larger), math.exp(score - larger)",
                "shrink, weight = float32(1), math.exp(score)",
            ),
            ("m = larger", "m = float32(0)"),
        ),
        ("starts the maximum at 0", ("m, l = MINUS_INFINITY,", "m, l = float32(0),")),
        ("never updates m", ("            m = larger\n", "")),
        (
            "updates m too early",
            ("            shrink, weight", "            m = larger\n            shrink, weight"),
        ),
        ("does not shrink o", ("o[c] * shrink + weight", "o[c] + weight")),
        ("does not shrink l", ("l * shrink + weight", "l + weight")),
        ("starts the score anew for each number", ("score +=", "score =")),
        ("takes keys for values", ("* v[j, c]", "* k[j, c]")),
        ("forgets to merge", ("        m, l = merge_lanes(m, l, o)\n", "")),
        ("forgets what the merge returns", ("m, l = merge_lanes", "merge_lanes")),
        (
            "merges at every key",
            (
                "            m = larger\n        m, l = merge_lanes",
                "            m = larger\n            m, l = merge_lanes",
            ),
        ),
        (
            "merges only lanes that have read something",
            ("        m, l = merge_lanes", "        if lane < seen: m, l = merge_lanes"),
        ),
        (
            "merges in lane 0 alone",
            ("        m, l = merge_lanes(m, l, o)\n", ""),
            ("        if lane == 0:\n", "        if lane == 0:\n            m, l = merge_lanes(m, l, o)\n"),
        ),
        (
            "divides before it merges",
            (
                "        m, l = merge_lanes",
                (
                    "        for c in range(d):\n            o[c] = o[c] / l if l > 0 else float32(0)\n      "
                    "  m, l = merge_lanes"
                ),
            ),
        ),
        ("does not divide", ("o[c] / l", "o[c]")),
        ("the first thread of the block alone writes", ("lane == 0", "cuda.threadIdx.x == 0")),
        (
            "writes the first number only",
            (
                "            for c in range(d):\n                out[i, c]",
                "            for c in range(1):\n                out[i, c]",
            ),
        ),
    ),
}

RIGHT = {
    "ex06_1": [warp_sum, sum_down_and_hand_round, sum_with_warps_that_leave],
    "ex06_2": [merge_lanes, merge_from_near_to_far, merge_after_the_maximum],
    "ex06_3": [warp_attention, attention_that_rescales_rarely],
}
