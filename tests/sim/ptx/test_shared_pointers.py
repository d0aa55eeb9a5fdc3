"""Tests of pointers to shared memory: only the block that took a pointer can use it."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

THREAD = np.arange(32)


def launch(kernel, blocks, *arguments, engine="fibers"):
    out = np.zeros(32, np.int32)
    first = arguments[:1]
    report = simulate(kernel, engine=engine, on_finding="report")[blocks, 32](*first, out, *arguments[1:])
    return [(f.kind, f.message.splitlines()[0]) for f in report.findings], out


def kernels():
    return module("shared_pointers", Path(__file__).with_name("programs"))[1]


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_pointer_to_shared_memory_of_another_block_is_found(engine):
    found, _ = launch(kernels()["publish"], 2, np.zeros(2, np.int64), np.int32(1), engine=engine)
    verdict = "shared memory of block 0 is read through a pointer"
    assert found == [("out-of-bounds", f"out-of-bounds: {verdict} · block 1 · thread 0")]


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_pointer_to_shared_memory_of_an_earlier_launch_is_found(engine):
    place, own = np.zeros(2, np.int64), kernels()
    assert launch(own["publish"], 2, place, np.int32(0))[0] == []
    ((kind, text),) = launch(own["later_launch"], 1, place, engine=engine)[0]
    assert kind == "out-of-bounds" and "shared memory of block 0 of an earlier launch of publish" in text


def test_pointers_to_own_shared_memory_are_right():
    found, out = launch(kernels()["publish"], 2, np.zeros(2, np.int64), np.int32(0))
    assert not found and np.array_equal(out, THREAD + 100)
    found, out = launch(kernels()["list"], 1)
    assert not found and np.array_equal(out, sum((THREAD + k) & 31 for k in range(4)))
    found, out = launch(kernels()["passed"], 1)
    assert not found and out[:2].tolist() == [sum(range(8, 16)), sum(range(8))]
