"""Benchmark of launches on the default engine: first launches of correct kernels, launches with an error.

    python tests/sim/bench_launches.py [--only TEXT] [--engine ENGINE] [--limit SECONDS]

Each row is one launch in a new process with an empty cache. The program prints the CPU seconds of the launch,
without imports and without NVRTC, and the kinds of its findings. The goals on an idle machine are 2 s for a
correct kernel and 15 s for a launch with an error. Most launches with an error have 1,000 blocks of 256
threads. In most of them, the error occurs in the last of 10⁶ iterations of a loop, or after the loop.

The exit status is 1 if a correct kernel has a finding, or if an error has another kind than expected. Public
kernels are timed by programs/public_kernels.py, which needs a checkout of NVIDIA's cuda-samples.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).parent / "programs" / "launches.cu"
STEPS = 10**6
MANY = 1000, 256
FEW = 32, 256


@dataclass(frozen=True)
class Case:
    """A launch.

    name: the text of its row.
    prepare: a function of a random generator that returns (kernel, grid, block, arguments).
    kinds: the expected kinds of findings, or () for a correct kernel. One of these kinds suffices.
    """

    name: str
    prepare: Callable
    kinds: tuple[str, ...] = ()


CASES: list[Case] = []


def case(name, *kinds):
    """Return a decorator that adds a Case with the decorated function as `prepare`."""

    def add(prepare):
        CASES.append(Case(name, prepare, kinds))
        return prepare

    return add


def python(name):
    """Return the kernel `name` of launch_kernels.py."""
    import launch_kernels

    return getattr(launch_kernels, name)


def cuda(name):
    """Return the kernel `name` of programs/launches.cu."""
    import sim

    return sim.load_cuda(SOURCE)[name]


def floats(random, *shape):
    return random.random(shape, np.float32)


# --- correct kernels ----------------------------------------------------------------------------------------


def project_kernel(function, name, *arguments):
    """Call a host function of the project with a `run` that only records launches. Return the first launch
    of a kernel whose name contains `name`, as (kernel, grid, block, arguments)."""
    seen = []
    function(*arguments, run=lambda *launched: seen.append(launched))
    kernel, grid, block, *rest = next(each for each in seen if name in str(each[0].py_func.__name__))
    return kernel, grid, block, rest


def convolution(n):
    """Return the launch of convolutional attention for one head and `n` tokens."""
    from kernels.cases.conv import Shape, inputs
    from kernels.conv.forward import conv_forward

    shape = Shape(1, 1, n, 32, 6, 11, True)
    return project_kernel(conv_forward, "conv_forward", *inputs(shape)[:4])


@case("convolutional attention, 60 tokens")
def convolution_of_60(random):
    return convolution(60)


@case("convolutional attention, 100 tokens")
def convolution_of_100(random):
    return convolution(100)


def latent(name):
    """Return a launch of the backward pass of latent attention with 64 tokens. The kernel's name contains
    `name`."""
    import torch

    from kernels.cases.latent import backward_case

    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, 64, 32), (1, 64, 32), (1, 64, 32), (2, 32, 32), (2, 32, 32), (1, 2, 64, 32)
    return project_kernel(backward_case, name, *(torch.randn(shape, generator=generator) for shape in shapes))


@case("latent attention, gradients of keys")
def latent_keys(random):
    return latent("keys")


@case("latent attention, gradients of queries")
def latent_queries(random):
    return latent("queries")


@case("n-body, 512 bodies")
def bodies_512(random):
    return python("bodies"), 4, 128, (floats(random, 512, 3), floats(random, 512), floats(random, 512, 3))


@case("n-body, 1,536 bodies")
def bodies_1536(random):
    return python("bodies"), 12, 128, (floats(random, 1536, 3), floats(random, 1536), floats(random, 1536, 3))


@case("n-body, 512 bodies, CUDA C++")
def bodies_in_cuda(random):
    return cuda("bodies"), 4, 128, (floats(random, 512, 4), floats(random, 512, 4), 512)


@case("attention, 128 queries")
def attention(random):
    return python("attention"), 4, 32, tuple(floats(random, 128, 32) for _ in range(4))


def gradients(random, n, steps, grid, block):
    arrays = [np.zeros(n, np.float32) for _ in range(4)]
    dots = np.zeros(2 * steps + 1, np.float32)
    coefficients = np.array([4, -1], np.float32)
    return (
        python("conjugate_gradients"),
        grid,
        block,
        (coefficients, floats(random, n), *arrays, dots, steps),
    )


@case("conjugate gradients, 512 rows")
def gradients_512(random):
    return gradients(random, 512, 10, 4, 128)


@case("conjugate gradients, 4,096 rows")
def gradients_4096(random):
    return gradients(random, 4096, 10, 4, 128)


@case("radix sort, 4 × 256 keys")
def radix_sort(random):
    return python("radix_sort"), 4, 256, (random.integers(0, 256, 1024, np.int32), 8)


@case("sum of 64 blocks, CUDA C++")
def last_block_sum(random):
    empty = [np.zeros(64, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)]
    return cuda("last_block_sum"), 64, 256, (floats(random, 65536), *empty, 65536)


@case("chained scan, 32 blocks, CUDA C++")
def chained_scan(random):
    x = random.integers(0, 9, 32 * 256, np.int32)
    return (
        cuda("chained_scan"),
        32,
        256,
        (x, np.zeros_like(x), *np.zeros((2, 32), np.int32), np.zeros(1, np.int32)),
    )


@case("32 unrolled products of tensor cores, CUDA C++")
def unrolled_mma(random):
    halves = floats(random, 2, 16 * 512).astype(np.float16)
    return cuda("unrolled_mma"), 1, 32, (*halves, np.zeros((16, 16), np.float32))


# --- launches with an error ---------------------------------------------------------------------------------

LEFT = ("barrier-divergence",)
WAITS = "no-progress", "undecided"


def loop(kernel, shape=MANY):
    """Return the launch of a kernel whose parameters are (x, out, steps)."""
    size = shape[0] * shape[1]
    return kernel, *shape, (np.zeros(size, np.float32), np.zeros(size, np.float32), STEPS)


def add_loops():
    for name, kernel, kinds in (
        ("early exit, `for`", "early_exit", LEFT),
        ("early exit, `while`", "early_exit_of_while", LEFT),
        ("barrier in a branch", "barrier_in_a_branch", LEFT),
        ("race after a loop", "late_race", ("race-shared",)),
    ):
        case(name, *kinds)(lambda random, kernel=kernel: loop(python(kernel)))
    for name, kernel, kinds in (
        ("early exit, CUDA C++", "early_exit", LEFT),
        ("barrier in a branch, CUDA C++", "barrier_in_a_branch", LEFT),
        ("race after a loop, CUDA C++", "late_race", ("race-shared",)),
        ("shuffle in a branch, CUDA C++", "shuffle_in_a_branch", ("warp-divergence",)),
        ("copy not awaited, CUDA C++", "copy_not_awaited", ("async-copy", "race-shared")),
        ("missing barrier in a loop, CUDA C++", "missing_barrier", ("race-shared",)),
        (
            "missing barrier after copies, CUDA C++",
            "missing_barrier_of_copies",
            ("async-copy", "race-shared"),
        ),
        ("undefined variable, CUDA C++", "undefined_local", ("uninitialized-read",)),
    ):
        case(name, *kinds)(lambda random, kernel=kernel: loop(cuda(kernel)))


add_loops()


@case("histogram with an access out of bounds", "out-of-bounds")
def histogram(random):
    x = random.integers(0, 64, FEW[0] * FEW[1] * 1000, np.int32)
    return python("histogram"), *FEW, (x, np.zeros(64, np.int32), 1000)


@case("lock that is never released", *WAITS)
def lock(random):
    return python("lock_never_released"), *MANY, (np.zeros(1, np.int32), np.zeros(256000, np.int32))


@case("flag that is never set", *WAITS)
def flag(random):
    return python("flag_never_set"), *MANY, (np.zeros(1, np.int32), np.zeros(256000, np.int32))


@case("full hash table", *WAITS)
def table(random):
    keys = random.integers(1, 10**6, FEW[0] * FEW[1], np.int32)
    return python("full_table"), *FEW, (np.ones(4096, np.int32), keys)


@case("endless loop with barriers", *WAITS)
def endless_with_barriers(random):
    return python("endless_with_barriers"), 3, 77, (floats(random, 231), 5)


@case("endless loop with step 0", *WAITS)
def endless_step(random):
    return python("endless_step"), *MANY, (floats(random, 256000), 0)


# --- the launches -------------------------------------------------------------------------------------------


def measure(number, engine):
    """Launch CASES[number]. Return (CPU seconds, kinds of its findings)."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        import sim.native.engine  # noqa: F401 (its imports are not measured)
        from sim import simulate

        kernel, grid, block, arguments = CASES[number].prepare(np.random.default_rng(0))
        began = time.process_time()
        report = simulate(kernel, engine=engine, on_finding="report")[grid, block](*arguments)
        return time.process_time() - began, sorted({finding.kind for finding in report.findings})


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="run only the rows that contain this text")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--limit", type=float, default=90, help="stop a launch after this many seconds")
    options = parser.parse_args()
    print("| launch | CPU s | found |\n|---|---:|---|")
    wrong = []
    for number, each in enumerate(CASES):
        if options.only not in each.name:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                seconds, kinds = pool.apply_async(measure, (number, options.engine)).get(options.limit)
                row = f"{seconds:.2f}", ", ".join(kinds)
                is_right = bool(set(kinds) & set(each.kinds)) if each.kinds else not kinds
                wrong += [] if is_right else [each.name]
            except multiprocessing.TimeoutError:
                row = "", f"no result in {options.limit:g} s"
            except Exception as error:
                row = "", f"{type(error).__name__}: {error}"
        print("|", " | ".join([each.name, *row]), "|", flush=True)
    print("\n".join(["", *(f"another result was expected: {name}" for name in wrong)]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
