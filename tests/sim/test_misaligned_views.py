"""Tests of views inside Python kernels whose elements are not aligned."""

import numpy as np
import pytest

from sim import cuda, simulate

ALIGNED = np.dtype([("a", np.int8), ("b", np.float32)], align=True)
PACKED = np.dtype([("a", np.int8), ("b", np.float32)])


@cuda.jit
def loads(x, out, first):
    out[cuda.threadIdx.x] = x[first : first + 8].view(np.float32)[cuda.threadIdx.x]


@cuda.jit
def stores(x, out, first):
    x[first : first + 8].view(np.int16)[1:][cuda.threadIdx.x] = 1


@cuda.jit
def atomics(x, out, first):
    cuda.atomic.add(x[first : first + 16].view(np.int64), cuda.threadIdx.x, 1)


@cuda.jit
def matrices(x, out, first):
    out[cuda.threadIdx.x] = x[first : first + 32].view(np.uint64).reshape((2, 2))[1, cuda.threadIdx.x]


@cuda.jit
def records(x, out, first):
    out[cuda.threadIdx.x] = x[first : first + 16].view(ALIGNED)[cuda.threadIdx.x].b


@cuda.jit
def columns(x, out, first):
    out[cuda.threadIdx.x] = x[first : first + 16].view(ALIGNED)["b"][cuda.threadIdx.x]


@cuda.jit
def dynamic(x, out, first):
    numbers = cuda.shared.array(0, np.uint8)[first : first + 8].view(np.float32)
    numbers[cuda.threadIdx.x] = 1.0
    out[cuda.threadIdx.x] = numbers[cuda.threadIdx.x]


@cuda.jit
def packed(x, out, first):
    out[cuda.threadIdx.x] = x[first : first + 10].view(PACKED)[cuda.threadIdx.x].b


def kinds(kernel, first, engine="fibers"):
    x, out = np.zeros(64, np.uint8), np.zeros(4, np.float32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 2, 0, 64](x, out, first)
    return {finding.kind for finding in report.findings}


@pytest.mark.parametrize("kernel", [loads, stores, atomics, matrices, records, columns, dynamic])
def test_a_misaligned_view_is_found(kernel):
    assert kinds(kernel, 1) == {"misaligned-address"}
    assert not kinds(kernel, 8)


def test_threads_find_it():
    """Run the engine `threads`. The page misaligned-address runs all engines."""
    assert kinds(loads, 2, "threads") == {"misaligned-address"} and not kinds(loads, 4, "threads")


def test_fields_of_packed_records_need_no_alignment():
    assert not kinds(packed, 1)


@cuda.jit
def by_luck(out):
    flag = cuda.shared.array(3, np.uint8)
    raw = cuda.shared.array(8, np.uint8)
    numbers = raw.view(np.float32)
    flag[cuda.threadIdx.x] = 0
    numbers[cuda.threadIdx.x] = flag[cuda.threadIdx.x]
    out[cuda.threadIdx.x] = numbers[cuda.threadIdx.x]


def test_a_view_that_is_aligned_by_luck_is_a_warning():
    (finding,) = simulate(by_luck)[1, 2](np.zeros(2, np.float32)).findings
    assert (finding.kind, finding.severity) == ("misaligned-address", "warning")
    assert "raw with alignment=4" in finding.fix
