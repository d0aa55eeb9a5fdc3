"""Tests of message passing through a flag: which fences and accesses to the flag order the accesses to the
data."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

DATA, FLAG = ("race-global", "data"), ("race-global", "flag")
CASES = {
    "volatile_without_fences": {DATA},
    "volatile_release": set(),  # the reader's fence is not required
    "volatile_both": set(),
    "volatile_acquire": {DATA},
    "plain_store": {DATA, FLAG},
    "atomic_without_fences": {DATA},
    "atomic_release": set(),
    "atomic_both": set(),
    "fence_after_flag": {DATA},
    "fence_of_block": {DATA},
    "read_before": {DATA},
    "chain": set(),
    "chain_without_fence": {DATA},
}


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("name", CASES)
def test_message_passing(name, engine):
    _, kernels = module("litmus", Path(__file__).with_name("programs"))
    flag, data, out = np.zeros(2, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)
    blocks = 3 if "chain" in name else 2
    # a macro declares the kernel, so its parameters' names are passed here
    kernel = kernels[name].named(["flag", "data", "out"])
    report = simulate(kernel, engine=engine, on_finding="report")[blocks, 1](flag, data, out)
    assert {(finding.kind, finding.array) for finding in report.findings} == CASES[name]
    assert out[0] == 42
