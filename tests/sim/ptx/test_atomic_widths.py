"""Tests of atomics of two widths in launches too large to interpret completely.

Compiled code identifies the blocks whose atomics overlap.
"""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

pytest.importorskip("numba")

GRID, BLOCK = 64, 256


def launch(name, engine, *more):
    _, kernels = module("atomic_widths", Path(__file__).with_name("programs"))
    x = np.zeros(256, np.uint32)
    report = simulate(kernels[name], engine=engine, on_finding="report")[GRID, BLOCK](x, *more)
    return report, x


def told(report):
    return [(f.kind, f.message.splitlines()[0], {a.block[0] for a in f.accesses}) for f in report.findings]


@pytest.mark.parametrize(
    "name, more, blocks",
    [
        ("of_later_blocks", (), {40, 50}),
        ("of_three_blocks", (), {40, 50}),
        ("of_a_variable", (), {40, 50}),
        ("of_one_block", (), {40}),
        ("of_shared_memory", (4,), {40}),
    ],
)
def test_overlapping_atomics_are_found(name, more, blocks):
    report, _ = launch(name, "native", *more)
    assert told(report) == told(launch(name, "fibers", *more)[0])
    ((kind, _, found),) = told(report)
    assert kind.startswith("race-") and found == blocks
    assert report.notes[0].startswith(f"compiled; {len(blocks)} of 64 blocks ")


@pytest.mark.parametrize(
    "name, more", [("apart", ()), ("of_one_thread", ()), ("ordered", ()), ("of_shared_memory", (12,))]
)
def test_other_atomics_need_no_explanation(name, more):
    report, x = launch(name, "native", *more)
    assert not report.findings and report.notes == ("compiled",)
    assert np.array_equal(x, launch(name, "fibers", *more)[1])
