"""Checks of lesson 07: ten inferred types, a kernel without float64 in its PTX, the number of blocks, a
grid-stride loop, and two streams with two buffers."""

from unittest.mock import patch

import numpy as np
from numba import types
from numpy import float32

from course import ptx
from course.check import kernels, streams
from course.check.contract import Contract
from course.check.harness import compare, exercise, fail, instance
from course.ptx import NoCompiler, compiled_here
from sim.nouns import plural

ARCHITECTURES = "sm_75", "sm_80", "sm_90"
STEPS = 10_000  # a launch here goes round its loops some hundred times a thread at most
# of n, an int32, s, a float32, and x, an array of float32: the type that Numba finds
# (tests/course/test_ptx.py asks it), and why
EXPRESSIONS = {
    "a": ("n + 1", "int64", "Two integers give an int64, whatever their types."),
    "b": ("n // 2", "int64", "// of two integers is an integer, and its type is int64."),
    "c": ("n / 2", "float64", "/ always gives a float, and of two integers it gives a float64."),
    "d": ("s * s", "float32", "A float32 with a float32 stays a float32."),
    "e": ("2 * s", "float64", "2 is an int64, and a float32 with an int64 gives a float64."),
    "f": ("s * float32(2)", "float32", "float32(2) is a float32, and two float32 give a float32."),
    "g": ("max(s, 0.0)", "float64", "0.0 is a float64, and max gives the type that can represent both."),
    "h": ("math.exp(s)", "float32", "For a float32, the functions of math return a float32."),
    "i": ("s / x.size", "float64", "x.size is an int64, and a float32 with an int64 gives a float64."),
    "j": (
        "x[n] + s",
        "float32",
        "An element of x is a float32, whatever the type of its index, and two float32 give a float32.",
    ),
}


@exercise("7.1", "my_types")
def ex07_1(my_types, rng):
    with patch.object(ptx, "type_of_argument", refuse_types):
        answers = my_types()
    if not isinstance(answers, dict) or set(answers) != set(EXPRESSIONS):
        fail(
            "the answer is a dict with a type for each letter",
            wanted="dict(a=..., ..., j=...)",
            got=describe(answers),
        )
    for letter, (expression, wanted, reason) in EXPRESSIONS.items():
        if name_of(answers[letter]) != wanted:
            fail(f"{letter}, {expression}, is not a {name_of(answers[letter])}", hint=reason)
    return f"{len(EXPRESSIONS)} types, as Numba finds them"


@exercise("7.2", "rms_norm")
def ex07_2(rms_norm, rng):
    kernels.jitted(rms_norm, "rms_norm", allowed=())
    for rows, d, threads, size in [
        (1, 1, 32, 1),
        (5, 3, 32, 1),
        (70, 2, 32, 1),
        (33, 8, 16, 1e-3),
        (4, 5, 32, 1e4),
        (3, 4, 1, 1e-6),
        (2, 1100, 1, 2),
    ]:
        x = (size * rng.standard_normal((rows, d))).astype(float32)
        gain = rng.standard_normal(d).astype(float32)
        out = np.full((rows, d), np.nan, float32)
        grid = -(-rows // threads)
        call = (
            f"rms_norm[{grid}, {threads}](x, gain, out) with x of shape ({rows}, {d}), numbers about {size:g}"
        )
        exact = x.astype(np.float64)
        wanted = gain * exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)
        contract = Contract(
            "x gain out",
            max_per_thread={"x": 3 * d, "gain": d, "out": d},
            max_total={"out": rows * d},
            threads=rows,
            hint="Use one thread per row.",
        )
        kernels.judge(
            rms_norm,
            (grid, threads),
            (x, gain),
            (out,),
            (wanted,),
            rng,
            call,
            contract,
            max_steps=STEPS,
            hint=lambda got: (
                "NaN: a thread must write every element of its row." if np.isnan(got).any() else FORMULA
            ),
        )
    return f"seven shapes, numbers from 0.000001 to 10000; {without_float64(rms_norm)}"


@exercise("7.3", "blocks_for")
def ex07_3(blocks_for, rng):
    limits = [
        (1, 32, 9),
        (256, 256, 9),
        (257, 256, 9),
        (1000, 256, 9),
        (1000, 256, 4),
        (1000, 256, 3),
        (5, 1, 1),
        (2**31, 1024, 2**31 - 1),
        (2**30 + 1, 1024, 2**31 - 1),  # not representable in float32
    ]
    drawn = [
        tuple(map(int, (rng.integers(1, 5000), 32 * rng.integers(1, 33), rng.integers(1, 200))))
        for _ in range(49)
    ]
    for n, threads, most in limits + drawn:
        blocks, call = blocks_for(n, threads, most), f"blocks_for({n}, {threads}, {most})"
        compare(
            blocks,
            min(len(range(0, n, threads)), most),
            what="the number of blocks",
            call=call,
            tolerance=0,
            hint=BLOCKS,
        )
        instance(blocks, (int, np.integer), what="an integer, as a launch requires", call=call)
    return "58 launches: fewer elements than threads, whole blocks, one element more, and a limit"


@exercise("7.4", "scale_all")
def ex07_4(scale_all, rng):
    kernels.jitted(scale_all, "scale_all", allowed=())
    for n, grid, block in [
        (10, 2, 2),
        (1, 1, 32),
        (5, 3, 32),
        (64, 1, 32),
        (100, 3, 8),
        (257, 2, 64),
        (7, 1, 1),
        (5000, 2, 64),
    ]:
        x, factor = rng.standard_normal(n).astype(float32), float32(rng.uniform(1, 3))
        out = np.full(n, np.nan, float32)
        call = f"scale_all[{grid}, {block}](x, {factor:.3g}, out) with {plural(n, 'element')}"
        threads = grid * block
        owner = {"out": lambda elements, threads=threads: elements % threads}
        contract = Contract(
            "x factor out",
            max_total={"out": n, "x": 2 * n},
            max_per_thread={"x": -(-2 * n // threads)},
            owner=owner,
            barriers=(0, 0),
            warp_barriers=(0, 0),
            hint=STRIDE,
        )
        kernels.judge(
            scale_all,
            (grid, block),
            (x, factor),
            (out,),
            (factor * x,),
            rng,
            call,
            contract,
            tolerance=0,
            float64=0,
            max_steps=STEPS,
            hint=lambda got: "NaN: no thread has written this element." if np.isnan(got).any() else None,
        )
    return (
        "1 to 5,000 elements, under grids with more threads than elements and with fewer; each element by its"
        " own thread"
    )


STRIDE = "Thread t of T threads takes the elements t, t + T, t + 2T, ... and no others."
FORMULA = (
    "Divide the sum of squares by the number of columns, add 1e-6, and take the root of the result. Column c"
    " is multiplied by gain[c]."
)
BLOCKS = "The smallest number of blocks whose threads are at least n; or `most`, if that is smaller."


@exercise("7.5", "pipelined")
def ex07_5(pipelined, rng):
    for parts in (0, 1, 2, 3, 6, int(rng.integers(7, 14))):
        for order in ("the copier goes first", "the worker goes first", *["any order"] * 6):
            one_order(pipelined, parts, order, rng)
    return "0 to 13 parts, whichever stream is faster, and no stream waits longer than it must"


def one_order(pipelined, parts, order, rng):
    """Reject an answer that fails if the streams proceed in this order."""
    call = f"pipelined(copier, worker, parts={parts}, ...); {order}"
    copier, worker = (streams.Stream(name, call) for name in ("copier", "worker"))
    buffers = [np.full(1, np.nan), np.full(1, np.nan)]
    seen = {"fill": [], "compute": [], "filled": []}  # filled: how many parts are, when one is computed
    running = []

    def within(name, stream):
        if not running:
            fail(f"{name} runs at once", call=call, hint=f"Write {stream.name}.launch({name}, p, buffer).")
        if running[-1] is not stream:
            fail(f"{name} belongs in {stream.name}, and runs in {running[-1].name}", call=call)

    def fill(p, buffer):
        within("fill", copier)
        if buffer is not buffers[p % 2]:
            fail(f"fill({p}, ...) gets a buffer other than buffers[{p % 2}]", call=call, hint=BUFFER)
        buffer[:] = p
        seen["fill"].append(p)

    def compute(p, buffer):
        within("compute", worker)
        if buffer[0] != p:
            there = "nothing" if np.isnan(buffer[0]) else f"part {buffer[0]:g}"
            fail(f"compute({p}, ...) finds {there} in its buffer", call=call, hint=TOO_EARLY)
        seen["compute"].append(p)
        seen["filled"].append(len(seen["fill"]))

    def choose(ready):
        first = {"the copier": copier, "the worker": worker}.get(order[:10])
        running.append(first if first in ready else ready[int(rng.integers(len(ready)))])
        return running[-1]

    pipelined(copier, worker, parts, buffers, fill, compute)
    if not streams.run((copier, worker), choose):
        fail("no stream continues: each waits for an event of the other", call=call, hint=TOO_EARLY)
    for name in ("fill", "compute"):
        if seen[name] != list(range(parts)):
            fail(f"{name}: each part once, in order", call=call, got=seen[name], wanted=list(range(parts)))
    for first, ahead in (("the copier", 2), ("the worker", 1)):
        wanted = [min(parts, p + ahead) for p in range(parts)]
        if order.startswith(first) and seen["filled"] != wanted:
            fail(
                f"correct, but {first} waits longer than it must",
                call=call,
                got=f"parts filled when each is computed: {seen['filled']}",
                wanted=wanted,
                hint=TOO_LATE,
            )


BUFFER = "Part p is stored in buffers[p % 2]."
TOO_EARLY = (
    "compute(p) waits for the event after fill(p), and fill(p) for the event after compute(p - 2), which used"
    " the same buffer."
)
TOO_LATE = "There are two buffers: while part p is computed, part p + 1 can be filled into the other."


def refuse_types(argument):
    fail("the answer asks Numba for a type", hint="Find the types by the rules of section 2.")


def describe(answers):
    if not isinstance(answers, dict):
        return f"a {type(answers).__name__}"
    odd = sorted(map(str, set(answers) ^ set(EXPRESSIONS)))
    return f"missing or unknown: {', '.join(odd)}"


def name_of(answer):
    """Return the name of a type: "float32" for the string, for numpy's float32 and for Numba's."""
    return getattr(answer, "__name__", None) or str(answer).strip()


def without_float64(rms_norm):
    """Reject a kernel with .f64 in its PTX. Return a description of the compilation."""
    rows, row = types.Array(types.float32, 2, "C"), types.Array(types.float32, 1, "C")
    for architecture in ARCHITECTURES:
        try:
            made = compiled_here(rms_norm, rows, row, rows, architecture=architecture)
        except NoCompiler as missing:
            return f"NOT COMPILED, so the check has not looked for float64. {missing}"
        if made.float64:
            what = f"correct, but {len(made.float64)} instructions for {architecture} use float64; by lines:"
            fail(
                what,
                call=made.float64_by_line(),
                hint="A bare 0.0 or 1e-6 is a float64, and so is a float32 divided by an integer.",
            )
    return f"no float64 in the PTX for {', '.join(ARCHITECTURES)}"
