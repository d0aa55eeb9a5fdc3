"""Tests of the two tiers of machine code: quick code, and the optimised code that replaces it."""

import os
import subprocess
import sys
from math import inf

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import cuda, float32

from sim import empty, load_ptx, simulate
from sim.errors import ThreadError
from sim.native.codegen import tiers
from sim.native.codegen.cache import MachineCodeCache
from sim.native.codegen.tiers import TieredFunction
from sim.native.run import launch
from test_automatic import COUNT


def reverse(x, divisor):
    """Reverse the elements of each block."""
    shared = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i == 70 and divisor < 0:
        raise ValueError("negative")
    shared[t] = x[i]
    cuda.syncthreads()
    x[i] = shared[31 - t] / divisor


def rotate(x, divisor):
    """Load an element that another block has stored, after two grid barriers."""
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    for _ in range(4):
        other = x[(i + 40) % x.size]
        grid.sync()
        x[i] = other / divisor
        grid.sync()


def add_often(x, times):
    """Add to an element in a loop around a barrier."""
    for _ in range(times):
        x[cuda.grid(1)] += 1
        cuda.syncthreads()


def count(x, divisor):
    """Stand for a kernel from PTX, which has no divisor."""


@pytest.fixture
def optimised(monkeypatch):
    """Return the list of optimised functions, which grows during the test. With the limit of this fixture,
    each function is optimised after its first block."""
    functions, optimise = [], TieredFunction.optimise
    monkeypatch.setattr(launch, "SECONDS", 0.0)
    monkeypatch.setattr(tiers, "BYTES", inf)
    # The cache contains optimised code if this test has run before.
    monkeypatch.setattr(MachineCodeCache, "load_optimised", lambda self, signature: None)
    monkeypatch.setattr(TieredFunction, "optimise", lambda self: functions.append(self) or optimise(self))
    return functions


def launched(kernel, engine, launches, *more):
    """Return the values, findings and counters of some launches of a kernel."""
    found = []
    module = load_ptx(COUNT) if kernel is count else None
    for _ in range(launches):
        x = np.zeros(320, np.uint32) if module else np.arange(320, dtype=np.float32)
        made = module["count"] if module else kernel
        report = simulate(made, engine=engine, on_finding="report")[10, 32](x, *([] if module else more))
        found.append((x.tolist(), [(f.kind, f.message) for f in report.findings], report.counters))
    return found


@pytest.mark.parametrize("kernel", [reverse, rotate, count], ids=lambda kernel: kernel.__name__)
def test_optimised_code_has_the_same_results(kernel, optimised):
    # Optimised code replaces the quick code between two blocks, or between two cooperative launches.
    expected = launched(kernel, "fibers", 3, 2)
    assert launched(kernel, "native", 3, 2) == expected
    assert optimised and all(function.optimised for function in optimised)


def test_optimised_code_raises_exceptions(optimised):
    for _ in range(2):
        with pytest.raises(ThreadError, match="thread 6 of block 2 raised ValueError: negative"):
            launched(reverse, "native", 1, -1)
    assert optimised


@pytest.mark.usefixtures("optimised")
def test_optimised_code_has_the_checks_of_its_launch():
    """Check that a launch with checks does not run code that was optimised for a launch without checks."""

    @cuda.jit
    def share(x):
        tile = cuda.shared.array(32, float32)
        tile[cuda.threadIdx.x] = x[cuda.grid(1)]
        x[cuda.grid(1)] = tile[31 - cuda.threadIdx.x]

    kinds = []
    for x, options in [(np.zeros(640), {"observers": ()}), (np.zeros(640), {}), (empty(640, np.float64), {})]:
        report = simulate(share, engine="native", on_finding="report", **options)[20, 32](x)
        kinds.append({finding.kind for finding in report.findings})
    assert kinds == [set(), {"race-shared"}, {"race-shared", "uninitialized-read"}]


@pytest.mark.usefixtures("optimised")
def test_optimised_code_has_one_visible_function(monkeypatch):
    # LLVM then inlines each region, because it has only one call.
    libraries, make = [], tiers.optimised_library
    monkeypatch.setattr(
        tiers, "optimised_library", lambda result: libraries.append(make(result)) or libraries[-1]
    )

    @cuda.jit
    def scale(x):
        x[cuda.grid(1)] *= 2

    simulate(scale, engine="native")[3, 32](np.ones(96))
    functions = libraries[0]._final_module.functions
    visible = [one.name for one in functions if not one.is_declaration and one.linkage.name != "internal"]
    assert len(visible) == 1 and "scale_grid" in visible[0]


def test_a_long_block_restarts_in_optimised_code(optimised, monkeypatch):
    monkeypatch.setattr(launch, "SECONDS", 1e9)
    monkeypatch.setattr(launch, "QUICK_SECONDS", 1e-6)
    assert launched(add_often, "native", 1, 1100) == launched(add_often, "fibers", 1, 1100)
    assert len(optimised) == 1


def test_short_launches_run_quick_code(monkeypatch):
    monkeypatch.setattr(TieredFunction, "optimise", lambda self: pytest.fail("optimised"))
    launched(rotate, "native", 1, 3)


@pytest.mark.parametrize("blocks, count", [(3, 0), (100, 1)])
def test_a_kernel_is_optimised_only_if_this_saves_time(blocks, count, optimised, monkeypatch):
    """Let the optimiser take as long as quick code takes for about ten blocks."""

    def sum_up(x, out, times):
        total = float32(0)
        for i in range(times):
            total += x[i & 31]
        out[cuda.grid(1)] = total

    compiled, saves_time = [], TieredFunction.saves_time

    def compare(function, seconds):
        if not compiled:
            compiled.append(function.seconds)  # the time of the first block
            size = len(function.result.library.unoptimised)
            monkeypatch.setattr(tiers, "BYTES", size / (10 * tiers.SAVED * compiled[0]))
        return saves_time(function, seconds)

    monkeypatch.setattr(TieredFunction, "saves_time", compare)
    simulate(sum_up, engine="native")[blocks, 32](np.ones(32), np.zeros(32 * blocks), 1 << 12)
    assert len(optimised) == count


PROGRAM = """
import sys
import numpy as np
from numba import cuda
from sim import simulate
from sim.native.codegen.cache import MachineCodeCache
from sim.native.codegen import tiers
from sim.native.codegen.tiers import TieredFunction
from sim.native.run import launch

@cuda.jit
def kernel(x):
    x[cuda.grid(1)] += 1

launch.SECONDS, tiers.BYTES, functions = float(sys.argv[1]), 1e9, []
call = TieredFunction.__call__
TieredFunction.__call__ = lambda self, *given: functions.append(bool(self.optimised)) or call(self, *given)
x = np.zeros(64)
simulate(kernel, engine="native")[2, 32](x)
print(x.sum(), functions)
"""


def test_optimised_code_is_kept(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for seconds, expected in (("0", "64.0 [False, True]"), ("1e9", "64.0 [True]")):
        command = [sys.executable, "program.py", seconds]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == expected, done.stderr
