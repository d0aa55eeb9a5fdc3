"""Tests that a shuffle whose width is no power of two from 1 to 32 is reported."""

import re
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import load_ptx, simulate

ENGINES = pytest.mark.parametrize("engine", ["fibers", "native"])
FOLDER = Path(__file__).with_name("programs")
X = np.arange(100, 132, dtype=np.int32)
WIDTHS = 1, 2, 4, 8, 16, 32
INVALID = {"zero": 0, "twelve": 12, "thirty_three": 33, "negative": -1, "twenty_four": 24}
FUNCTIONS = "idx", "up", "down", "bfly"


@pytest.fixture(scope="module")
def kernels():
    return module("shuffle_widths", FOLDER)[1]


@pytest.fixture
def launch(kernels, engine):
    if engine == "native":
        pytest.importorskip("numba")
    return lambda name, *given, of=None: run(of or kernels, name, engine, *given)


def run(kernels, name, engine, *given, rows=1):
    """Return (report, result) of a launch of 32 threads."""
    y = np.zeros(32 * rows, np.int32)
    simulated = simulate(kernels[name], engine=engine, on_finding="report")
    return simulated[1, 32](X, y, *map(np.int32, given)), y


def right(function, width):
    """Return the result of a shuffle of X by or from 1, within segments of `width` lanes."""
    lane = np.arange(32)
    first = lane // width * width
    source = {"idx": first + 1 % width, "up": lane - 1, "down": lane + 1, "bfly": lane ^ 1}[function]
    # __shfl_xor_sync can read lanes of earlier segments.
    inside = (source < first + width) & ((source >= first) | (function == "bfly"))
    return X[np.where(inside, source, lane)]


@ENGINES
def test_variable_widths(launch, engine):
    for function in FUNCTIONS:
        for width in WIDTHS:
            report, y = launch(function, width)
            assert not report.findings and y.tolist() == right(function, width).tolist(), (function, width)
            assert engine != "native" or report.notes == ("compiled",)
        for width in INVALID.values():
            check(launch(function, width)[0], width)


def check(report, width):
    (finding,) = report.findings
    assert finding.kind == "invalid-operand" and finding.accesses[0].site.function == "shuffle_widths.cu"
    assert finding.verdict == f"the width of a shuffle is a power of two from 1 to 32, got {width}"


@ENGINES
@pytest.mark.parametrize(("name", "width"), INVALID.items())
def test_constant_invalid_widths(launch, name, width):
    check(launch(name, 0)[0], width)


@ENGINES
def test_constant_widths(kernels, engine):
    if engine == "native":
        pytest.importorskip("numba")
    report, y = run(kernels, "constants", engine, rows=4 * len(WIDTHS))
    wanted = [right(function, width).tolist() for width in WIDTHS for function in FUNCTIONS]
    assert not report.findings and y.reshape(-1, 32).tolist() == wanted
    assert engine != "native" or report.notes == ("compiled",)
    report, y = run(kernels, "sums", engine)
    assert not report.findings and y.tolist() == X.reshape(4, 8).sum(1).repeat(8).tolist()


@ENGINES
@pytest.mark.parametrize(
    ("c", "found"), [("0x1400", True), ("0x1018", False), ("-225", False), ("%r7", False)]
)
def test_inline_ptx_defines_other_operands(launch, c, found):
    """Launch shuffles in inline PTX. CUB passes any clamp, such as -225."""
    text = (FOLDER / "shuffle_widths.ptx").read_text()
    kernel = re.search(r"\.visible \.entry up\(.*?\n}", text, re.S)[0]
    shuffle = r"(?m)^\s*(shfl\S+\s+\S+ \S+ \S+) \S+, (%r\d+;)"
    kernel = re.sub(shuffle, rf"// begin inline asm\n\1 {c}, \2\n// end inline asm", kernel)
    header = ".version 8.0\n.target sm_80\n.address_size 64\n"
    report, _ = launch("up", 12, of=load_ptx(header + re.sub(r"(?m)^\s*\.loc.*$", "", kernel)))
    assert bool(report.findings) == found
    if found:
        assert report.findings[0].verdict.endswith("got the segment mask 0b10100")
