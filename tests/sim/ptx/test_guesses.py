"""Tests of volatile loads whose value is a guess that a compare-and-swap confirms."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

RACE = {("race-global", "ends")}


@pytest.fixture
def launch():
    _, kernels = module("guesses", Path(__file__).with_name("programs"))

    def run(name, *arguments):
        report = simulate(kernels[name], on_finding="report")[2, 8](*arguments)
        return {(finding.kind, finding.array) for finding in report.findings}

    return run


def test_an_item_that_a_swap_takes(launch):
    ends, items, total = np.zeros(2, np.uint32), np.arange(31, -1, -1, dtype=np.int32), np.zeros(1, np.int32)
    assert launch("take", ends, items, total, 32) == set()
    assert total[0] == items.sum() and ends[1] == 31


def test_a_cell_that_a_swap_takes(launch):
    ends, items = np.zeros(2, np.uint32), np.zeros(16, np.int32)
    assert launch("push", ends, np.arange(16, dtype=np.uint32), items, 16) == set()
    assert sorted(items) == sorted([*range(1, 9)] * 2) and ends[0] == 16


@pytest.mark.parametrize("name", ["add", "other"])
def test_a_guess_that_nothing_confirms(launch, name):
    arguments = np.zeros(2, np.uint32), np.ones(16, np.int32), np.zeros(1, np.int32), 16
    assert launch(name, *arguments) == RACE
