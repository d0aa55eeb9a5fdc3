"""Checks of lesson 08: sectors and wavefronts by hand, a transpose judged by its counters, predictions
compared with the simulator's counts, and a roofline."""

import functools
import math
from typing import NamedTuple

import numpy as np

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, fail, instance
from course.check.unaided import without_launches, without_records
from kernels.cases import memory_patterns
from sim import simulate
from sim.events import SITES
from sim.observers import DEFAULT
from sim.observers.banks import Banks
from sim.observers.coalescing import Coalescing

LANES, SECTOR, BANKS, WORD = 32, 32, 32, 4  # bytes in a sector and in a word
STRIDE = 8  # of the strided copy that is predicted
ACCESSES = ("load", "store", "shared load", "shared store")
TRANSPOSES = ("transpose_naive", "transpose_tiled", "transpose_padded")
SHAPES = [(32, 32), (1, 1), (70, 33), (24, 264), (264, 8)]  # rows, columns
TILE_BYTES = 4 * 32 * 36  # of a tile whose rows are padded by up to four words
FARTHEST = 227 * 1024  # the bytes of shared memory that one block of an H200 can have
WHOLE = int, np.integer


@exercise("8.1", "sectors")
def ex08_1(sectors, rng):
    chosen = [
        (1, 4, 0),
        (1, 4, 1),
        (2, 4, 0),
        (8, 4, 0),
        (64, 4, 3),
        (0, 4, 5),
        (1, 8, 0),
        (1, 1, 0),
        (1, 16, 1),
        (3, 2, 7),
    ]
    drawn = [
        (int(rng.integers(-9, 40)), int(2 ** rng.integers(5)), int(rng.integers(300, 340))) for _ in range(30)
    ]
    for stride, itemsize, first in chosen + drawn:
        call = f"sectors(stride={stride}, itemsize={itemsize}, first={first})"
        got, wanted = sectors(stride, itemsize, first), touched(stride, itemsize, first)
        compare(got, wanted, what="a wrong number of sectors", call=call, tolerance=0, hint=PIECES)
        instance(got, WHOLE, what="an integer", call=call, hint="len returns an integer.")
    call = "sectors(1, 4)"
    compare(
        sectors(1, 4), 4, what="without `first`", call=call, tolerance=0, hint="`first` is 0 unless given."
    )
    return "40 requests: strides from -9 to 39 and 64, numbers of 1 to 16 bytes, aligned and not"


@exercise("8.2", "wavefronts")
def ex08_2(wavefronts, rng):
    lane = np.arange(LANES)
    words = {
        "neighbouring words": lane,
        "one word for all lanes": lane * 0 + 7,
        "every second word": 2 * lane,
        "a column of 32 words a row": 32 * lane + 5,
        "a column of 33 words a row": 33 * lane + 5,
        "a column of 34 words a row": 34 * lane,
        "two rows, 16 lanes each": np.where(lane < 16, lane, 32 + lane),
        "two words of one bank, 16 lanes each": np.where(lane < 16, 3, 35),
        "one lane alone": lane[:1] + 40,
        "five lanes, one bank": 32 * lane[:5],
        "the last bank alone is crowded": np.append(lane[:-3], [31, 63, 95]),
    }
    words |= {f"random words, {n} lanes": rng.integers(1, 400, n) for n in rng.integers(2, LANES + 1, 20)}
    words |= {
        f"random words of {step} banks, up to the end of shared memory": rng.integers(
            0, FARTHEST // WORD // step, LANES
        )
        * step
        for step in (1, BANKS, 32 * BANKS)
    }
    for number, (what, word) in enumerate(words.items()):
        addresses = [int(address) for address in WORD * rng.permutation(word)]
        call = f"wavefronts({addresses})"
        given = np.array(addresses) if number % 2 else addresses.copy()
        got = wavefronts(given)
        compare(got, busiest_bank(addresses), what=what, call=call, tolerance=0, hint=ROWS)
        instance(got, WHOLE, what="an integer", call=call, hint="Wavefronts are counted.")
        if list(given) != addresses:
            fail(
                "the addresses are not what they were before the call",
                call=call,
                hint="sorted() and set() return new objects.",
            )
    return (
        "32 lanes and fewer: rows, columns, padded columns, one word for many, 23 sets of random words, lists"
        " and arrays"
    )


@exercise("8.3", "transpose")
def ex08_3(transpose, rng):
    kernels.own(transpose, "transpose")
    for rows, columns in SHAPES:
        a, out = (
            rng.standard_normal((rows, columns)).astype(np.float32),
            np.full((columns, rows), np.nan, np.float32),
        )
        a[rng.integers(rows), rng.integers(columns)] = rng.choice([-np.inf, np.inf])
        call = (
            f"transpose[({-(-columns // LANES)}, {-(-rows // LANES)}), (32, 32)](a, out) with a of shape"
            f" {a.shape}"
        )
        tools, grid = (Coalescing(), Banks()), memory_patterns.tiles(rows, columns)
        contract = Contract(
            "a out",
            max_per_thread={"a": 1, "out": 1},
            threads=a.size,
            atomics=(0, 0),
            barriers=(0, 1),
            shared_bytes=TILE_BYTES,
            hint=PART,
        )
        report = kernels.judge(
            transpose,
            (grid, (LANES, LANES)),
            (a,),
            (out,),
            (a.T.copy(),),
            rng,
            call,
            contract,
            tolerance=0,
            what="a wrong output",
            observers=tools,
            hint=lambda got: UNWRITTEN if np.isnan(got).any() else CORNERS,
        )
        cost(report, by_access(*tools), rows, columns, call)
    return (
        f"{len(SHAPES)} shapes, full tiles and ragged ones: correct, 4 sectors per request, one wavefront per"
        " shared request, no bug found by sim"
    )


@exercise("8.4", "predictions")
def ex08_4(predictions, rng):
    hint = "Predict from the source of the kernels: count sectors and wavefronts."
    with without_records(hint), without_launches(hint):
        given = predictions()
    if not isinstance(given, dict) or set(given) != set(PATTERNS):
        fail("wanted a dictionary with the five names", wanted=", ".join(PATTERNS), got=str(given))
    for name in PATTERNS:
        if np.shape(given[name]) != (len(ACCESSES),):
            fail(f"{name}: wanted four numbers: {', '.join(ACCESSES)}", got=str(given[name]))
        for (access, counts), number in zip(
            of_pattern(name, int(rng.integers(1, 3)) * LANES).items(), given[name], strict=True
        ):
            instance(number, (int, float, np.number), what=f"a number of {access}s for {name}")
            if number != per_request(*counts):  # the right number stays a secret
                fail(
                    f"{name}: {number} for one request to {access} is not what the simulator counts",
                    hint=HINTS[name],
                )
    return "five patterns, four numbers each: the simulator counts the same"


@exercise("8.5", "least_time")
def ex08_5(least_time, rng):
    for roof in ("bytes", "flops", "wavefronts") * 4:
        size = 10 ** rng.uniform(0, 6)  # from far below a microsecond to minutes
        work = {name: size * 10 ** rng.uniform(0, 6) for name in ("bytes", "flops", "wavefronts")}
        rate = {name: 10 ** rng.uniform(9, 13) for name in work}
        seconds = {name: work[name] / rate[name] for name in work}
        work[roof] *= 1.5 * max(seconds.values()) / seconds[roof]  # so that this one takes longest
        if roof != "wavefronts" and rng.random() < 0.5:
            work["wavefronts"] = 0  # a kernel without shared memory
        gpu = Rates(*rate.values())
        call = (
            f"least_time({', '.join(f'{name}={number:.3g}' for name, number in work.items())}, gpu) with"
            f" {rates(gpu)}"
        )
        got, wanted = (
            least_time(work["bytes"], work["flops"], work["wavefronts"], gpu),
            work[roof] / rate[roof],
        )
        compare(got, wanted, what="the seconds", call=call, tolerance=math.inf, hint=ROOFS)
        if not abs(float(got) / wanted - 1) < 1e-9:
            fail(
                f"a wrong time, where the {roof} take longest", call=call, wanted=wanted, got=got, hint=ROOFS
            )
    return "12 kernels on 12 GPUs, bound by bytes, by flops and by wavefronts"


class Rates(NamedTuple):
    """Peak rates of a GPU per second, as in the lesson."""

    bytes_per_second: float
    flops_per_second: float
    wavefronts_per_second: float


PIECES = (
    "Lane l accesses the `itemsize` bytes from byte (first + l · stride) · itemsize on; byte b is in sector b"
    " // 32. How many different sectors are there?"
)
ROWS = (
    "An address is in bytes, and a word has 4 bytes; word w is in bank w % 32. Lanes that request the same"
    " word are served together. How many different words must the busiest bank deliver?"
)
PART = "Each thread loads one number and stores one, through one tile of 32 rows, 36 words each at most."
UNWRITTEN = (
    "NaN: an element that no thread has written. Which part of `out` belongs to this block, if a's tile is at"
    " (row, column)?"
)
CORNERS = (
    "a's tile with its corner at (row, column) becomes out's tile with its corner at (column, row). Are both"
    " guards right for a ragged tile?"
)
ROOFS = (
    "Each kind of work takes at least its amount divided by its rate. All three proceed in parallel, so the"
    " slowest determines the time."
)
HINTS = {
    "copy": "32 contiguous numbers of 4 bytes. No shared memory: 0.",
    "strided_copy": f"It loads every {STRIDE}th number, and stores neighbours. No shared memory: 0.",
    "transpose_naive": (
        "When x grows by one, how far does the load move in a, and how far does the store move in out?"
    ),
    "transpose_tiled": (
        "Global memory is accessed along rows only. The tile is stored by rows, 32 words each, and loaded"
        " by columns: tile[x, y]."
    ),
    "transpose_padded": "As the tiled one, but a row of the tile has 33 words.",
}


# Oracles ----------------------------------------------------------------------------------------------------


def touched(stride, itemsize, first):
    """Return the number of sectors that a warp touches, by marking every byte and counting marked sectors."""
    begin = (first + stride * np.arange(LANES)) * itemsize
    marked = np.zeros((begin.max() + itemsize + SECTOR) // SECTOR * SECTOR, bool)
    marked[begin[:, None] + np.arange(itemsize)] = True
    return int(marked.reshape(-1, SECTOR).any(axis=1).sum())


def busiest_bank(addresses):
    """Return the number of distinct words that the busiest bank must deliver."""
    return int(np.bincount(np.unique(np.array(addresses) // WORD) % BANKS).max())


def rates(gpu):
    return ", ".join(f"{name} = {rate:.3g}" for name, rate in gpu._asdict().items())


# Counting ---------------------------------------------------------------------------------------------------


def counted(kernel, grid, block, *arguments):
    """Launch the kernel in `sim` and return {"load": (requests, sectors), "store": (requests, sectors),
    "shared load": (requests, wavefronts), "shared store": ...}."""
    tools = Coalescing(), Banks()
    simulate(kernel, observers=(*DEFAULT, *tools))[grid, block](*arguments)
    return by_access(*tools)


def by_access(coalescing, banks):
    """Return the counts of both observers for a launch, by kind of access; (0, 0) for a kind that did not
    occur."""
    total = dict.fromkeys(ACCESSES, (0, 0))
    for prefix, tool in (("", coalescing), ("shared ", banks)):
        for site, (requests, pieces, *_) in tool.sites.items():
            access = prefix + SITES[site].action
            total[access] = total[access][0] + requests, total[access][1] + pieces
    return total


def per_request(requests, pieces):
    """Return sectors or wavefronts per request, or 0 without requests."""
    return pieces / requests if requests else 0


@functools.cache
def of_pattern(name, n):
    """Return the result of `counted` for one of the PATTERNS, for an n × n matrix or for n² consecutive
    elements. n is a multiple of 32."""
    grid, block, shapes, *rest = PATTERNS[name](n)
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    return counted(getattr(memory_patterns, name), grid, block, *arrays, *rest)


def copies(n, step, *rest):
    return memory_patterns.blocks(n * n), memory_patterns.THREADS, [n * n * step, n * n], *rest


def transposes(n):
    return memory_patterns.tiles(n, n), (LANES, LANES), [(n, n), (n, n)]


PATTERNS = {  # name -> n -> (grid, block, the arrays' shapes, other arguments ...)
    "copy": lambda n: copies(n, 1),
    "strided_copy": lambda n: copies(n, STRIDE, STRIDE),
    **dict.fromkeys(TRANSPOSES, transposes),
}


# 8.3 --------------------------------------------------------------------------------------------------------


def cost(report, found, rows, columns, call):
    """Reject a correct transpose that uses memory inefficiently."""
    warps = -(-rows // LANES) * LANES * -(-columns // LANES)
    for access in ("load", "store"):
        requests, sectors = found[access]
        if requests > warps:
            fail(
                f"correct, but {requests} requests to {access} for {warps} warps",
                call=call,
                hint="Each thread loads one number and stores one.",
            )
        if rows % 8 == columns % 8 == 0 and sectors != rows * columns // 8:
            hint = (
                "x counts the lanes of a warp, so it must be the last index of both a and out. Then a warp"
                " accesses a piece of one row."
            )
            fail(
                f"correct, but the {requests} requests to {access} touch {sectors} sectors;"
                f" {rows * columns // 8} are enough",
                call=call,
                hint=hint,
            )
    # filling the rest of a ragged tile with 0 takes one store more in each warp
    ragged = rows % LANES or columns % LANES
    banks, fewest = report.counters["banks"], (3 if ragged else 2) * warps
    if banks["wavefronts"] == banks["fewest_wavefronts"] > fewest:
        hint = (
            "A warp stores 32 numbers of 4 bytes in the tile once, and loads 32 once, each time in one"
            " wavefront. Does a thread access the tile more often, or are its numbers 8 bytes wide?"
        )
        fail(
            f"correct, but {banks['wavefronts']} wavefronts of shared memory, where {fewest} are enough",
            call=call,
            hint=hint,
        )
    if banks["wavefronts"] != banks["fewest_wavefronts"]:
        hint = (
            "Which words of the tile do the lanes of a warp access together, when they store and when they"
            " load? In which banks are they?"
        )
        fail(
            f"correct, but with {banks['ways']}-way bank conflicts: {banks['wavefronts']} wavefronts, where"
            f" {banks['fewest_wavefronts']} are enough",
            call=call,
            hint=hint,
        )
