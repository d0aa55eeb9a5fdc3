"""Checks of lesson 22b: repairs to four faulty CUDA C++ kernels, compiled by NVRTC and run in `sim`."""

import os

import numpy as np
from numpy import float32

from course.check import cuda_kernels, inputs, kernels
from course.check.contract import Contract
from course.check.harness import NotChecked, agree, dictionary, exercise, fail
from course.check.inputs import normal
from course.check.lesson22 import compiled
from sim import simulate

# 22.5 -------------------------------------------------------------------------------------------------------

NAMES = {"a": "weigh", "b": "add_rows", "c": "row_products", "d": "row_sum"}


def hunt_launch(letter, n, rng, d=5):
    """(grid and block, inputs, outputs, where these stand, what is wanted, contract) of a kernel of the
    hunt on n rows."""
    return LAUNCHES[letter](n, d, rng)


def weigh(n, d, rng):
    s, v, out = normal(rng, n), normal(rng, n, d), np.full(d, np.nan, float32)
    p = np.exp(s.astype(np.float64))
    contract = Contract(
        max_per_thread={"s": 1, "v": n, "out": 1},
        min_total={"shared": 2 * n},
        threads=n,
        barriers=(1, 1),
        hint=SHARED,
    )
    return (1, 64), (s, v, n, d), (out,), 2, (p / p.sum() @ v,), contract


def add_rows(n, d, rng):
    x, o, shrink = normal(rng, n), normal(rng, n), float32(inputs.unusual(rng))
    wanted = float(shrink) * o.astype(np.float64) + x + np.append(0, x[:-1])
    contract = Contract(
        max_per_thread={"x": 1, "o": 2},
        max_total={"o": 2 * n},
        min_total={"shared": 5 * n},
        threads=n,
        barriers=(1, 1),
        hint=SHARED,
    )
    return (-(-n // 31), 32), (x, shrink, n), (o,), 1, (wanted,), contract


def row_products(n, d, rng):
    k, v, out = normal(rng, n, d), normal(rng, n, d), np.full(n, np.nan, float32)
    contract = Contract(
        max_per_thread={"k": -(-8 * d // 32), "v": -(-8 * d // 32), "out": 1},
        min_total={"shared": 4 * n * d},
        blocks=-(-n // 8),
        shared_bytes=64 * d,
        barriers=(1, 1),
        hint=SHARED,
    )
    return (
        (-(-n // 8), 32, 0, 64 * d),
        (k, v, n, d),
        (out,),
        2,
        ((k.astype(np.float64) * v).sum(1),),
        contract,
    )


def row_sum(n, d, rng):
    x, l = normal(rng, n), np.zeros(1, float32)
    padded = np.pad(x.astype(np.float64), 1)
    contract = Contract(
        max_per_thread={"x": 1, "l": 1},
        atomics=(1, 32 * -(-n // 30)),
        min_total={"shared": 3 * n},
        threads=n,
        barriers=(1, 1),
        hint=SHARED,
    )
    wanted = np.exp(padded[:-2] + padded[1:-1] + padded[2:]).sum(keepdims=True)
    return (-(-n // 30), 32), (x, n), (l,), 1, (wanted,), contract


LAUNCHES = {"a": weigh, "b": add_rows, "c": row_products, "d": row_sum}
SIZES = {"a": (40, 64, 1, 63), "b": (70, 31, 1, 155), "c": (20, 8, 1, 65), "d": (61, 30, 1, 151)}
SHARED = (
    "Fix the line, and keep the division of the work: shared memory, one barrier, one element per thread."
)


def hunted(letter, n, d=5):
    """Launch a kernel of the hunt on n rows (of d numbers). Print the findings of sim, and whether the
    values are correct."""
    rng = np.random.default_rng(22)
    configuration, given, outputs, place, wanted, _ = hunt_launch(letter, n, rng, d)
    kernel = compiled(cuda_kernels.HUNT[letter], f"{NAMES[letter]}.cu", NAMES[letter])
    report = simulate(kernel, on_finding="report")[configuration](*given[:place], *outputs, *given[place:])
    right = agree(outputs[0].astype(np.float64), wanted[0], 1e-5).all()
    found = f"sim finds {len(report.findings) or 'nothing'}"
    print(f"{letter}, n = {n}{f', d = {d}' * (letter == 'c')}: values right: {right}; {found}")
    for finding in report.findings:
        print(finding.message)


@exercise("22.5", "fixes")
def ex22_5(fixes, rng):
    record_common_fixes()
    said = fixes()
    wanted = '{"a": {"wrong line": "right line"}, "b": ..., "c": ..., "d": ...}'
    dictionary(said, NAMES, what="the fixes of a, b, c and d", wanted=wanted)
    missing = {}
    for letter, name in NAMES.items():
        try:
            kernel = compiled(fixed(letter, said[letter]), f"{name}.cu", name)
        except NotChecked as error:
            missing[letter] = error
            continue
        for n in SIZES[letter]:
            for d in (3, 5, 17) if letter == "c" else (5,):
                check_fixed(kernel, letter, n, d, rng)
    if missing:
        right = "".join(f" {letter} is correct." for letter in NAMES if letter not in missing)
        raise NotChecked(f"{', '.join(missing)}: {next(iter(missing.values()))}{right}")
    return "all four on sizes that fit and sizes that do not"


def record_common_fixes():
    """Compile other fixes that readers write, correct and wrong ones, while a lesson is built. Their PTX is
    then recorded for machines without NVRTC."""
    if "COURSE_RECORD_PTX" in os.environ:
        for letter, name in NAMES.items():
            for wrong, right in cuda_kernels.COMMON_FIXES[letter]:
                compiled(fixed(letter, {wrong: right}), f"{name}.cu", name)


def check_fixed(kernel, letter, n, d, rng):
    configuration, given, outputs, place, wanted, contract = hunt_launch(letter, n, rng, d)
    kernels.judge(
        kernel,
        configuration,
        given,
        outputs,
        wanted,
        rng,
        f"{letter}: {NAMES[letter]} on n = {n}" + f", d = {d}" * (letter in "ac"),
        contract,
        what=f"{letter} is not correct yet",
        place=place,
    )


def fixed(letter, changes):
    """Return the kernel's text with each wrong line of `changes` {wrong: right} replaced, ignoring
    indentation."""
    if not isinstance(changes, dict) or not all(isinstance(x, str) for pair in changes.items() for x in pair):
        fail(f'{letter}: wanted {{"wrong line": "right line"}}', got=repr(changes))
    lines = cuda_kernels.HUNT[letter].splitlines()
    for wrong, right in changes.items():
        places = [number for number, line in enumerate(lines) if bare(line) == bare(wrong) != ""]
        if len(places) != 1:
            fail(f"{letter}: this line occurs {len(places)} times in the kernel, not once:", call=wrong)
        lines[places[0]] = right
    return "\n".join(lines) + "\n"


def bare(line):
    """Return a line without its comment and the surrounding whitespace."""
    return line.partition("//")[0].strip()
