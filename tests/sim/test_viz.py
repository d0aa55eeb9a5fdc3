"""Tests of the trace and its figures.

They cover each step's description, the cells that change, and the parts omitted from a large figure.
"""

import json
import re
import time

import numpy as np
import pytest
from numba import cuda, float32, float64

from sim import simulate
from sim.observers.trace import Trace


@cuda.jit
def neighbours(x, out):
    s = cuda.shared.array(4, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    if t < 2:
        out[t] = s[t] + s[t + 2]


def report_of(kernel, grid, block, *arguments, trace=Trace):
    return simulate(kernel, observers=(trace,), on_finding="report")[grid, block](*arguments)


@pytest.fixture(scope="module")
def report():
    return report_of(neighbours, 1, 4, np.arange(4, dtype=np.float32), np.zeros(2, np.float32))


def scene(view):
    """Return the data that is passed to the figure's script."""
    return json.loads(re.search(r"scene=(\{.*?\});\n", view.body).group(1))


def words(view):
    return [label for label, _ in scene(view)["steps"]]


def looks(view, step):
    drawn = scene(view)
    flat = drawn["steps"][step][1]
    return [(cell, drawn["looks"][look], mark) for cell, look, mark in zip(flat[::3], flat[1::3], flat[2::3])]


# --- the trace ----------------------------------------------------------------------------------------------


def test_the_trace_is_in_the_order_of_execution():
    def kernel(x):
        s = cuda.shared.array((2, 2), float64)
        s[1, 0] = x[2, 1]
        cuda.syncthreads()
        cuda.atomic.add(x, (0, 1), s[1, 0])

    trace = report_of(kernel, (1, 2), 1, np.ones((3, 2)), trace=Trace(blocks=[(0, 1, 0)])).trace
    assert [(e.action, e.block, e.epoch, e.thread, e.array, e.index, e.site.line) for e in trace] == [
        ("load", (0, 1, 0), 0, 0, "x", (2, 1), 3),
        ("store", (0, 1, 0), 0, 0, "s", (1, 0), 3),
        ("barrier", (0, 1, 0), 0, None, None, None, 4),
        ("load", (0, 1, 0), 1, 0, "s", (1, 0), 5),
        ("atomic", (0, 1, 0), 1, 0, "x", (0, 1), 5),
    ]


def test_every_access_and_barrier_is_in_the_trace(report):
    actions = [event.action for event in report.trace]
    assert {kind: actions.count(kind) for kind in set(actions)} == {
        "load": 4 + 4,
        "store": 4 + 2,
        "barrier": 1,
    } and report.trace.cut == 0
    position = actions.index("barrier")
    assert all((event.epoch == 0) == (at <= position) for at, event in enumerate(report.trace))


def test_a_transposed_argument_keeps_its_own_indices():
    def kernel(x, out):
        out[0] = x[2, 1]

    event, _ = report_of(kernel, 1, 1, np.zeros((4, 3), np.float32).T, np.zeros(1)).trace
    assert (event.array, event.index) == ("x", (2, 1))


def test_a_full_trace_counts_what_it_leaves_out():
    def fill(x):
        x[cuda.grid(1)] = 1

    full = report_of(fill, 4, 64, np.zeros(256), trace=Trace(limit=100))
    assert len(full.trace) == 100 and full.trace.cut == 156
    for view in (
        full.memory_map("x"),
        full.timeline(full.trace.blocks[0]),
        full.warp_grid(2, block=full.trace.blocks[0]),
    ):
        assert (
            "The trace was full: 156 later events are not in it." in str(view)
            and "156 later events" in view.html
        )


# --- figures ------------------------------------------------------------------------------------------------


def test_memory_map(report):
    view = report.memory_map("s")
    assert words(view) == [
        "block 0, epoch 0: threads 0-3 store to s   neighbours line 4  s[t] = x[t]",
        "block 0, epoch 1: threads 0-1 load s   neighbours line 7  out[t] = s[t] + s[t + 2]",
        "block 0, epoch 1: threads 0-1 load s   neighbours line 7  out[t] = s[t] + s[t + 2]",
    ]
    assert [looks(view, step) for step in range(3)] == [
        [(0, "store", 0), (1, "store", 1), (2, "store", 2), (3, "store", 3)],
        [(0, "load", 0), (1, "load", 1)],
        [(2, "load", 0), (3, "load", 1)],
    ]
    assert str(view).splitlines()[:2] == [
        "shared array s in block 0: who touched which element",
        f"  1. {words(view)[0]}",
    ]


def test_timeline(report):
    assert words(report.timeline()) == [
        "epoch 0, access 0: 4 threads load x (line 4)",
        "epoch 0, access 1: 4 threads store to s (line 4)",
        "epoch 1, access 0: 2 threads load s (line 7)",
        "epoch 1, access 1: 2 threads load s (line 7)",
        "epoch 1, access 2: 2 threads store to out (line 7)",
    ]


def test_timeline_says_who_waits():
    def uneven(x):
        t = cuda.threadIdx.x
        for i in range(t + 1):
            x[t] = i
        cuda.syncthreads()

    view = report_of(uneven, 1, 3, np.zeros(3)).timeline()
    assert words(view) == [
        "epoch 0, access 0: 3 threads store to x (line 4)",
        "epoch 0, access 1: 2 threads store to x (line 4); 1 thread waits (0)",
        "epoch 0, access 2: 1 thread stores to x (line 4); 2 threads wait (0-1)",
    ]
    assert scene(view)["svg"].count("class='rail'") == 1 and "class='line'" in scene(view)["svg"]


@pytest.mark.parametrize(
    "width, cost, clash",
    [
        (32, "32-way bank conflict, 32 wavefronts (fewest 1)", {0}),
        (33, "no bank conflict, 1 wavefront (fewest 1)", set()),
    ],
)
def test_warp_grid_of_shared_memory(width, cost, clash):
    @cuda.jit
    def column(out):
        s = cuda.shared.array((32, width), float32)
        out[0] = s[cuda.threadIdx.x, 0]

    view = report_of(column, 1, 32, np.zeros(1)).warp_grid(3)
    assert words(view)[0] == f"warp 0, epoch 0: 32 of 32 lanes load shared array s: {cost}"
    cells = looks(view, 0)
    assert cells[:32] == [(lane, "active", "") for lane in range(32)]
    assert {((cell - 32) // 32, (cell - 32) % 32) for cell, look, _ in cells[32:64]} == {
        (lane, lane * width % 32) for lane in range(32)
    }
    assert {(cell - 32) % 32 for cell, look, _ in cells[32:] if look == "clash"} == clash
    assert sum(mark for *_, mark in cells[64:]) == 32


def test_warp_grid_of_global_memory():
    def strided(x):
        t = cuda.threadIdx.x
        if t < 40:
            x[4 * t] = 1

    view = report_of(strided, 1, 64, np.zeros(160, np.float32)).warp_grid(4)
    assert words(view) == [
        "warp 0, epoch 0: 32 of 32 lanes store to global array x: 16 sectors (fewest 4)",
        "warp 1, epoch 0: 8 of 32 lanes store to global array x: 4 sectors (fewest 1)",
    ]
    assert [mark for *_, mark in looks(view, 1)[16:]] == [2, 2, 2, 2]


def test_warp_grid_of_every_line():
    def turned(x):
        s = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        x[t] = s[31 - t]

    view = report_of(turned, 1, 32, np.zeros(32, np.float32)).warp_grid(warp=0)
    assert str(view).startswith("block 0, every line\n  1. line 4: s[t] = x[t]\n     warp 0, epoch 0: 32 of")
    assert [said.split("lanes ")[1].split(":")[0] for said in words(view)] == [
        "load global array x",
        "store to shared array s",
        "load shared array s",
        "store to global array x",
    ]


def test_what_is_not_there_is_said():
    view = report_of(neighbours, 1, 4, np.zeros(4, np.float32), np.zeros(2, np.float32))
    for call, said in [
        (lambda: view.memory_map("q"), "no array 'q' in the trace; it holds x, s, out"),
        (
            lambda: view.timeline(3),
            r"block \(3, 0, 0\) is not in the trace, which holds 1 block, the first \(0, 0, 0\)",
        ),
        (
            lambda: view.warp_grid(5),
            "line 5 made no access to shared or global memory in block 0; lines that did: 4, 7",
        ),
    ]:
        with pytest.raises(ValueError, match=said):
            call()


def test_a_kernel_without_an_access_has_no_figure_and_a_report_all_the_same():
    def nothing(x):
        pass

    view = report_of(nothing, 1, 4, np.zeros(4))
    assert "<figure>" not in view._repr_html_()
    with pytest.raises(ValueError, match="the trace is empty"):
        view.timeline()


def test_a_large_trace_makes_a_page_of_bounded_size_in_bounded_time():
    def busy(x):
        t = cuda.grid(1)
        for _ in range(100):
            x[t % 5000] += 1

    report = report_of(busy, 4, 1024, np.zeros(5000))
    assert len(report.trace) == 100_000 and report.trace.cut == 4 * 1024 * 200 - 100_000
    began = time.process_time()
    page = report._repr_html_()
    assert time.process_time() - began < 10 and len(page) < 1_500_000
    block = report.trace.blocks[0]
    assert "elements are drawn" in str(
        report.memory_map("x", block)
    ) and "The first 160 of 200 moments are drawn." in str(report.timeline(block))
