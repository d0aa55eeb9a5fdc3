"""Tests of malloc and free in device code. The twins heap_race, heap_bounds and heap_list are in cuda/."""

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import DeviceSpec, simulate
from sim.ptx import heap_state
from sim.ptx.heap_state import SPAN, HeapSnapshot, HeapState


@pytest.fixture
def kernels():
    return module("heap", Path(__file__).with_name("programs"))[1]


def run(kernel, *more, threads=8, **options):
    out = np.zeros(threads, np.int32)
    return simulate(kernel, on_finding="report", **options)[1, threads](out, *more), out


def found(report):
    return {(f.kind, f.severity, tuple(sorted({a.site.line for a in f.accesses}))) for f in report.findings}


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "name, wanted",
    [
        ("twice", {("double-free", "error", (6, 7))}),
        ("inside", {("invalid-free", "error", (12,))}),
        ("foreign", {("invalid-free", "error", (16,))}),
        ("nothing", set()),
        ("lost", {("leak", "warning", ())}),
        ("fresh", {("uninitialized-read", "error", (29,))}),
    ],
)
def test_each_misuse_is_found_where_it_is(kernels, name, wanted, engine):
    report, _ = run(kernels[name], engine=engine)
    assert found(report) - {("misuse", "warning", ())} == wanted


def test_messages_name_the_pointer_the_line_and_the_number_of_bytes(kernels):
    (finding,) = run(kernels["twice"])[0].findings
    assert finding.array == "p" and finding.count == 7
    assert "4 bytes after the start of p" in run(kernels["inside"])[0].findings[0].message
    assert "in out and was not returned by malloc" in run(kernels["foreign"])[0].findings[0].message
    (finding,) = run(kernels["lost"])[0].findings
    assert "8 allocations, 320 bytes, are never freed: heap.cu line 21" in finding.message


def test_a_heap_without_room_gives_the_null_pointer(kernels):
    report, out = run(kernels["large"], 1 << 20, threads=9)
    assert out.sum() == 1 and report.findings == ()  # Eight allocations fit into this heap.
    assert run(kernels["large"], (8 << 20) + 1, threads=1)[1][0] == 1
    spec = replace(DeviceSpec(), heap_bytes=32 << 20)
    assert run(kernels["large"], (8 << 20) + 1, threads=1, spec=spec)[1][0] == 0
    report, _ = run(kernels["unchecked"], 1 << 24)
    assert [f.kind for f in report.errors] == ["out-of-bounds"]
    assert (
        "malloc has returned the null pointer, because the heap of 8,388,608 bytes is full"
        in report.errors[0].message
    )


@pytest.mark.parametrize("seed", range(4))
def test_memory_freed_while_others_use_it_races_whoever_comes_first(kernels, seed):
    report, _ = run(kernels["early"], seed=seed)
    assert ("race-global", "error", (50, 51)) in found(report)
    assert found(report) <= {("race-global", "error", (50, 51)), ("use-after-free", "error", (50, 51))}


def push(kernels, *values):
    for value in values:
        assert simulate(kernels["push"])[1, 1](value).findings == ()


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_memory_that_a_variable_holds_stays_for_later_launches(kernels, engine):
    push(kernels, 3, 4, 5)
    report, out = run(kernels["sum"], engine=engine)
    assert report.findings == () and (out == 12).all()
    report, out = run(kernels["pop"], threads=1)
    assert report.findings == () and out[0] == 5
    assert (run(kernels["sum"])[1] == 7).all()


def test_memory_that_a_later_launch_forgets_is_a_leak_of_that_one(kernels):
    push(kernels, 3, 4)
    report, _ = run(kernels["forget"], threads=1)
    assert found(report) == {("leak", "warning", ())}
    assert "2 allocations, 32 bytes" in report.findings[0].message


def test_memory_that_an_argument_holds_stays(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from sim import load_cuda

    path = tmp_path / "pointers.cu"
    path.write_text(
        'extern "C" __global__ void make(int** p) { p[threadIdx.x] = new int(threadIdx.x); }\n'
        'extern "C" __global__ void drop(int** p, int* y) {\n'
        "    y[threadIdx.x] = *p[threadIdx.x];\n    delete p[threadIdx.x];\n}\n"
    )
    kernels, pointers, y = load_cuda(path), np.zeros(8, np.uint64), np.zeros(8, np.int32)
    assert simulate(kernels["make"])[1, 8](pointers).findings == ()
    assert simulate(kernels["drop"])[1, 8](pointers, y).findings == ()
    assert y.tolist() == list(range(8))
    report = simulate(kernels["drop"], on_finding="report")[1, 8](pointers, y)
    assert {f.kind for f in report.errors} == {"use-after-free", "double-free"}


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_other_schedules_begin_with_the_heap_of_the_launch(kernels, engine):
    """Use the results of atomics, so that each launch runs under several schedules. All must start with the
    same heap."""
    for name in ("take", "give_back"):
        report, out = run(kernels[name], engine=engine)
        assert report.findings == () and "schedules" in report.notes[-1]
        assert out.tolist() == [ticket * ticket for ticket in range(8)]
    report, _ = run(kernels["sum"], engine=engine)
    assert report.findings == ()


class Launch:
    """A launch, of which a HeapState only keeps a weak reference."""


@pytest.fixture
def heaps(monkeypatch):
    """Return the set of the heaps of all modules, without those that other tests left."""
    monkeypatch.setattr(heap_state, "HEAPS", weakref.WeakSet())
    return heap_state.HEAPS


def test_concurrent_launches_have_disjoint_heaps(heaps):
    first, second, launches = HeapState(), HeapState(), (Launch(), Launch())
    begins = [state.at_start(launch).next for state, launch in zip((first, second), launches)]
    assert begins[1] >= begins[0] + SPAN
    first.run_ended(launches[0], HeapSnapshot(next=begins[0] + 4096))
    second.run_ended(launches[1], HeapSnapshot(next=begins[1] + 4096))
    assert HeapState().at_start(Launch()).next < begins[1] + SPAN


def test_concurrent_launches_have_disjoint_heaps_when_addresses_are_scarce(heaps):
    """Alternate two modules, so that each launch begins while the other module's launch is unfinished."""
    states, launches = (HeapState(), HeapState()), [Launch(), None]
    ranges = [states[0].at_start(launches[0]), None]
    for turn in range(1, 40):
        this, other = turn % 2, 1 - turn % 2
        launches[this] = Launch()
        start = ranges[this] = states[this].at_start(launches[this])
        assert start.end - start.next >= SPAN
        running = ranges[other].next
        assert start.next >= running + SPAN or start.end <= running
        states[other].run_ended(launches[other], HeapSnapshot(next=running + 4096))
