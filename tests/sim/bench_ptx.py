"""Benchmark of a million PTX instructions in the simulator: python tests/sim/bench_ptx.py

The kernels are Numba's own PTX for sm_80, which needs no GPU. The script prints a Markdown table with the
number of instructions executed by all threads of a launch (predicated-off instructions count too). For each
engine, it also shows the seconds per million instructions with the default observers and without any, and how
much longer the first compiled launch took. Times are CPU seconds of this process: the best of several
launches after a warm-up.
"""

import inspect
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32
from numba.cuda import dispatcher

from bench_sim import cases
from kernels.tensor_cores.instructions import mma_bf16
from sim import load_ptx, simulate
from sim.observers import DEFAULT
from sim.ptx import program
from sim.ptx.emit import Writer
from sim.ptx.numba import flattened
from sim.ptx.syntax import Instruction

RUNS = {"fibers": 3, "native": 30}
COUNT = [0]


class Counting(Writer):
    """Code generator for kernels that count the instructions of each basic block on entry."""

    def emit_contents(self, block, around):
        counter = self.module.shared_name("instructions", lambda run: COUNT)
        jumps = block.branch is not None or block.targets == [None]
        self.emit(f"{counter}[0] += {sum(isinstance(item, Instruction) for item in block.body) + jumps}")
        super().emit_contents(block, around)


@cuda.jit
def products(a, b, out):
    """Compute sixteen dependent tensor-core products."""
    lane = cuda.threadIdx.x
    c0 = c1 = c2 = c3 = float32(0)
    for step in range(16):
        x, y = a[step, lane], b[step, lane]
        c0, c1, c2, c3 = mma_bf16(x, x, x, x, y, y, c0, c1, c2, c3)
    out[cuda.blockIdx.x, lane] = c0 + c1 + c2 + c3


def launches():
    """Return [(name, kernel, grid, block, arguments)]."""
    for name, kernel, grid, block, arguments, _ in cases():
        yield name, kernel, grid, block, arguments
    words = np.random.default_rng(0).integers(0, 2**14, (2, 16, 32)).astype(np.uint32)
    yield "16 × mma.m16n8k16, 8 warps", products, 8, 32, (*words, np.zeros((8, 32), np.float32))


def by_ptx(kernel, arguments):
    """Return (function that loads the kernel's PTX again, arguments of its launch)."""
    types = tuple(map(cuda.typing.typeof.typeof, arguments))
    ptx, _ = cuda.compile(kernel.py_func, types, device=False, abi="numba", output="ptx", cc=(8, 0))
    values, names = flattened(arguments, list(inspect.signature(kernel.py_func).parameters))

    def fresh():
        module = load_ptx(ptx)
        return module[module.names[0]].named(names)

    return fresh, values


def instructions(fresh, grid, block, values):
    """Return the number of instructions that all threads execute."""
    COUNT[0], program.Writer = 0, Counting
    try:
        simulate(fresh(), observers=())[grid, block](*values)
    finally:
        program.Writer = Writer
    return COUNT[0]


def seconds(launch, runs):
    """Return (time of the fastest of `runs` launches, additional time of the first launch)."""
    times = []
    for _ in range(runs + 1):
        began = time.process_time()
        launch()
        times.append(time.process_time() - began)
    best = min(times[1:])
    return best, times[0] - best


def main():
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(8, 0))
    ways = [(engine, tools) for engine in ("fibers", "native") for tools in (DEFAULT, ())]
    print("| kernel | million instructions | fibers | unchecked | native | unchecked | compiled in |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, kernel, grid, block, arguments in launches():
        fresh, values = by_ptx(kernel, arguments)
        millions, loaded, found = instructions(fresh, grid, block, values) / 1e6, fresh(), []
        for engine, tools in ways:
            run = simulate(loaded, engine=engine, observers=tools)[grid, block]
            found.append(seconds(partial(run, *values), RUNS[engine]))
        rates = " | ".join(f"{best / millions:.3g}" for best, _ in found)
        print(f"| {name} | {millions:.3f} | {rates} | {found[2][1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
