"""Tests of copies of structures with padding: unwritten padding is no fault, an unwritten member is."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import empty, load_ptx, simulate
from sim.observers import Uninitialized
from sim.ptx.nvrtc import compile_ptx

INTERPRETED = ("fibers", "threads")
COMPILED = ("in_vectors", "in_local")  # the kernels that also run natively, which takes a second each
PAIR = np.dtype([("a", "i1"), ("b", "i4")], align=True)
WIDE = np.dtype([("a", "i4"), ("b", "f8")], align=True)
NESTED = np.dtype(
    {
        "names": ["a", "b", "c", "y"],
        "formats": ["i1", "i2", "i1", "i1"],
        "offsets": [0, 2, 4, 6],
        "itemsize": 8,
    }
)
TAGGED = np.dtype(
    {"names": ["id", "weight", "tag"], "formats": ["i4", "f4", "i1"], "offsets": [0, 4, 8], "itemsize": 16}
)
THREAD = np.arange(32)
NEXT = THREAD ^ 1
# kernel -> (dtype of the output, the members expected in it)
CASES = {
    "in_global": (PAIR, {"a": NEXT, "b": 2 * NEXT}),
    "in_shared": (PAIR, {"a": THREAD, "b": 2 * THREAD}),
    "in_vectors": (WIDE, {"a": NEXT, "b": 2 * NEXT}),
    "in_bytes": (NESTED, {"b": 2 * ((THREAD + 1) & 31), "y": np.ones(32)}),
    "in_tagged": (TAGGED, {"id": NEXT, "tag": 2 * NEXT + 1}),
    "in_heap": (PAIR, {"a": THREAD, "b": 2 * THREAD}),
    "in_local": (PAIR, {"a": THREAD, "b": 2 * THREAD}),
    "elements": (np.dtype([("x", "i4"), ("y", "i4")]), {"x": NEXT, "y": 2 * NEXT}),
    "bytes": (np.dtype([("c", "i1")]), {"c": 2 * NEXT}),
}


def launch(name, omit, engine, dtype):
    _, kernels = module("struct_copies", Path(__file__).with_name("programs"))
    out = np.zeros(32, dtype)
    arguments = [out, np.int32(omit)] if name != "in_global" else [empty(256, np.uint8), out, np.int32(omit)]
    report = simulate(kernels[name], engine=engine, on_finding="report")[1, 32](*arguments)
    return report, out


def engines(name):
    return (*INTERPRETED, "native") if name in COMPILED else INTERPRETED


@pytest.mark.parametrize("name, engine", [(name, engine) for name in CASES for engine in engines(name)])
def test_copied_padding_is_no_fault(name, engine):
    dtype, members = CASES[name]
    report, out = launch(name, 0, engine, dtype)
    assert not report.findings
    for member, expected in members.items():
        assert np.array_equal(out[member], expected)


@pytest.mark.parametrize("name, omit", [*((name, 1) for name in CASES), ("elements", 2)])
def test_copied_unwritten_member_is_found(name, omit):
    texts = set()
    for engine in engines(name):
        report, _ = launch(name, omit, engine, CASES[name][0])
        assert [finding.kind for finding in report.findings] == ["uninitialized-read"]
        texts.add(report.findings[0].message)
    assert len(texts) == 1


def test_copies_of_written_bytes_are_forgotten_after_each_epoch(monkeypatch):
    """Copy structures in a loop, in a kernel without shared memory."""
    loop = r"""
struct Wide { int a; double b; };
extern "C" __global__ void k(const Wide *from, Wide *to) {
    for (int i = threadIdx.x; i < 256; i += 32) { to[i] = from[i]; __syncthreads(); }
}
"""
    kept, ended = [], Uninitialized.epoch_ended

    def epoch_ended(self, block):
        findings = ended(self, block)
        kept.append(len(self.context.copied_loads))
        return findings

    monkeypatch.setattr(Uninitialized, "epoch_ended", epoch_ended)
    arrays = np.zeros(256, WIDE), np.zeros(256, WIDE)
    assert not simulate(load_ptx(compile_ptx(loop, "loop.cu"))["k"])[1, 32](*arrays).findings
    assert len(kept) == 9 and not any(kept)
