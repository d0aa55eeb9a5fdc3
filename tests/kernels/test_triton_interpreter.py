"""Tests of the interpreter for Triton kernels.

It must compute the results of the package's kernels, report bugs with their lines, reject whatever Triton
rejects, and agree with Triton's PTX in the simulator.
"""

import re
from functools import partial

import numpy as np
import pytest
import torch

from course.check.lesson21 import RECORDED_ROWS, loaded_by
from kernels.bench.languages import RESULTS, errors_of
from kernels.cases.conv import Shape
from kernels.cases.tolerances import within_tolerance
from kernels.triton import small
from kernels.triton.interpreter import ProgramBug, interpreted
from kernels.triton.launch import recorded, simulated
from kernels.triton.optional import tl, triton
from kernels.triton.record import CONV, FLASH, ROWS
from sim import KernelBug


@pytest.mark.parametrize("shape", [Shape(1, 2, 40, 5, 3, 4, True), Shape(2, 1, 9, 16, 6, 11, True)], ids=str)
def test_the_packages_kernels(shape):
    errors = errors_of(
        "Triton", shape, only=RESULTS, flash=FLASH | dict(run=interpreted), run=interpreted, **CONV
    )
    assert within_tolerance(errors), errors


FINDINGS = {
    "A": "out-of-bounds: program 3 loads x[100]; x has 100 elements\n"
    "  small.py line LINE  there = tl.load(x + i + 1, mask=i < n)\n"
    "  Likely fix: a mask that is False there, such as mask=i < n.",
    "B": "race between programs: program 1 loads y[0], and program 0 stores to it too: nothing says which"
    " comes first\n  small.py line LINE  so_far = tl.load(y + c, mask=c < columns)\n"
    "  Likely fix: elements of its own for each program; or an atomic: tl.atomic_add in place of +=.",
    "C": "race between programs: program 1 stores to x[32], and program 0 loads it too: nothing says which"
    " comes first\n  small.py line LINE  tl.store(x + i, (here + there) / 2, mask=i + 1 < n)\n"
    "  Likely fix: elements of its own for each program; or an atomic: tl.atomic_add in place of +=.",
}
LINES = {
    "A": ("out-of-bounds", "there = tl.load"),
    "B": ("race-global", "tl.store"),
    "C": ("race-global", "tl.store"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_bug_of_programs_is_found_by_both_at_its_line(name):
    with pytest.raises(ProgramBug) as found:
        small.planted(name, run=interpreted)
    assert re.sub(r"line \d+", "line LINE", str(found.value)) == FINDINGS[name]
    with pytest.raises(KernelBug) as found:
        small.planted(name, run=partial(simulated, compiled=recorded))
    kind, source = LINES[name]
    assert str(found.value).startswith(kind) and re.search(
        rf"small\.py line \d+  {re.escape(source)}", str(found.value)
    )


def test_what_is_right_has_no_finding():
    x = torch.arange(100.0) % 7
    wanted = torch.cat([(x[:-1] + x[1:]) / 2, x[-1:]])
    for run in (interpreted, partial(simulated, compiled=recorded)):
        assert torch.equal(small.planted("D", run=run), wanted)


def test_a_race_of_threads_is_the_simulators_alone():
    small.planted("E", run=interpreted)
    with pytest.raises(KernelBug, match=r"race-global: scratch\[\d+\] .*\n.* small\.py line"):
        small.planted("E", run=partial(simulated, compiled=recorded))


def test_three_ways_to_convolve_agree():
    x, taps = torch.randn(32, 32), torch.randn(3, 4)
    wanted = torch.nn.functional.conv2d(x.double()[None, None], taps.double()[None, None])[0, 0]
    for way in range(3):
        for run in (interpreted, partial(simulated, compiled=recorded)):
            error = (small.convolve(x, taps, way, run=run)[:30, :29] - wanted).abs().max()
            assert error <= 1e-5, (way, error)


@pytest.mark.parametrize("width, num_warps", ROWS)
def test_the_rule_of_lesson_21_holds_in_the_ptx(width, num_warps):
    threads = 32 * num_warps
    rule = {j: [t for t in range(threads) if t % width == j % threads] for j in range(width)}
    assert loaded_by(width, num_warps) == rule
    assert set(RECORDED_ROWS) < set(ROWS)


# Programs that Triton rejects -------------------------------------------------------------------------------


@triton.jit
def indexes(x):
    t = tl.load(x + tl.arange(0, 4))
    tl.store(x, t[0])


@triton.jit
def asks(x):
    if tl.load(x + tl.arange(0, 4)) > 0:
        tl.store(x, 1.0)


@triton.jit
def uneven(x):
    tl.store(x + tl.arange(0, 3), 1.0)


@triton.jit
def outsider(x):
    tl.store(x, np.exp(1.0))


@triton.jit
def changes(x, n):
    m = 0.0
    for j in range(n):
        m = m + tl.load(x + tl.arange(0, 4))
    tl.store(x + tl.arange(0, 4), m)


@triton.jit
def breaks(x, n):
    for j in range(n):
        if j > 1:
            break
    tl.store(x, 1.0)


@triton.jit
def unlike(x):
    tl.store(x, tl.sum(tl.arange(0, 4) + tl.arange(0, 8)))


@triton.jit
def by_runtime(x, n):
    tl.store(x + tl.arange(0, n), 1.0)


@triton.jit
def misspelt(x):
    tl.store(x, tl.load(x, mask=True, othr=0.0))


@triton.jit
def unrolled(x, n):
    for i in tl.static_range(n):
        tl.store(x + i, 1.0)


REFUSED = [  # Triton kernels cannot be hashed before they are compiled.
    (indexes, "a tile has no index"),
    (asks, "a tile has no truth"),
    (uneven, "must be a power of two, and not 3"),
    (outsider, "outsider uses np: a kernel may use"),
    (changes, r"m is one float32 before the loop and \(4,\) float32 after a round"),
    (breaks, "line 5 of breaks: Triton has no break"),
    (unlike, r"tiles of the shapes \(4,\) and \(8,\) do not fit"),
    (by_runtime, "must be known when the kernel is compiled"),
    (misspelt, "tl.load has no argument othr"),
    (unrolled, "a bound of tl.static_range must be known when the kernel is compiled"),
]
REFUSED = [pytest.param(*pair, id=pair[0].fn.__name__) for pair in REFUSED]


@pytest.mark.parametrize("kernel, why", REFUSED)
def test_what_triton_refuses_is_refused(kernel, why):
    with pytest.raises(TypeError, match=why):
        interpreted(kernel, (1,), *[torch.ones(16), 4][: len(kernel.arg_names)])


@pytest.mark.triton
@pytest.mark.parametrize("kernel, why", REFUSED)
def test_triton_refuses_it(kernel, why):
    with pytest.raises(Exception):  # noqa: B017  its kind is Triton's affair
        simulated(kernel, (1, 1, 1), *[torch.ones(16), 4][: len(kernel.arg_names)], num_warps=1)


# Comparison with Triton -------------------------------------------------------------------------------------


@triton.jit
def arithmetic(x, n, y):
    """Compute with integers, quotients and remainders, mixed types, NaN, sums, a masked load and an
    atomic."""
    i = tl.arange(0, 16)
    k = i - 8
    t = tl.load(x + i)
    tl.store(y + i, (k // 3) * 100 + k % 3)
    tl.store(y + 16 + i, k / 4 + (n // 3) + t)
    tl.store(y + 32 + i, tl.maximum(t, float("nan")) + tl.where(i < n, 1, 0))
    tl.store(y + 48 + i, tl.load(x + i, mask=i < n, other=-1.0) * (t > 0))
    tl.store(y + 64 + i, tl.sum(tl.exp2(t)) + t.max(0) + (t > 0).to(tl.int32).sum() + min(n, 3))
    square = tl.load(x + i[:, None] * 16 + i[None, :])
    product = tl.dot(square, tl.permute(square, (1, 0)), input_precision="ieee")
    tl.store(y + 80 + i, tl.fdiv(tl.sum(product, 1), tl.reshape(tl.max(product, 1)[:, None], (16,))))
    rows = tl.broadcast_to((i[:, None] + n) % 16, 16, 16)
    tl.store(y + 96 + i, tl.max(tl.gather(square, rows, 0), 0))
    tl.atomic_add(y + 112 + i // 4, t)


@pytest.mark.triton
def test_small_kernels_give_what_their_ptx_gives():
    x, n = torch.randn(256), 11
    ours, theirs = torch.zeros(2, 128)
    interpreted(arithmetic, (1,), x, n, ours)
    simulated(arithmetic, (1, 1, 1), x, n, theirs, num_warps=1)
    assert not ours.isnan().any()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


# IEEE, TF32, three TF32 products: (smallest, largest) allowed error
PRECISIONS = {0: (0, 1e-5), 1: (1e-4, 1e-1), 2: (0, 1e-5)}


@pytest.mark.parametrize("how, least, most", [(how, *errors) for how, errors in PRECISIONS.items()])
def test_a_product_has_24_bits_or_11_or_twice_11(how, least, most):
    @triton.jit
    def product(x, y, HOW: tl.constexpr):
        i = tl.arange(0, 16)
        t = tl.load(x + i[:, None] * 16 + i[None, :])
        if HOW == 0:
            made = tl.dot(t, t, allow_tf32=False)
        else:
            made = tl.dot(t, t, input_precision="tf32" if HOW == 1 else "tf32x3")
        tl.store(y + i[:, None] * 16 + i[None, :], made)

    x, y = torch.randn(16, 16, generator=torch.Generator().manual_seed(1)), torch.zeros(16, 16)
    interpreted(product, (1,), x, y, HOW=how)
    assert least <= (y - x.double() @ x.double()).abs().max() < most


HALF = tl.constexpr(0.5)


def test_a_kernel_may_use_a_global_constant():
    @triton.jit
    def halves(x):
        tl.store(x + tl.arange(0, 4), HALF)

    x = torch.zeros(4)
    launch = interpreted(halves, (1,), x)
    assert x.tolist() == [0.5] * 4
    assert launch.arrays["x"].tiles == {"loads": [], "stores": [(0, 4)], "atomics": []}
