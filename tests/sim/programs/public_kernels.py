"""Simulate kernels of NVIDIA's cuda-samples, unmodified and with one barrier removed.

    python tests/sim/programs/public_kernels.py SAMPLES [--only TEXT] [--engines auto fibers native]

SAMPLES is a checkout of github.com/NVIDIA/cuda-samples at c94ff366. The kernels are not part of this project,
and no test runs this file. Each kernel includes <cooperative_groups.h>. Of its source file, the device code
is used as it is. Host functions are replaced by empty lines, and the samples' host headers by empty files,
because NVRTC does not compile them.

For each kernel and engine, a new process with an empty cache launches the kernel. The launch must have no
finding, and its results must equal NumPy's. The kernel is then launched without one barrier that it needs,
and the race must be found, with the expected kind and lines. The program prints a table with the CPU seconds
of each first launch, without NVRTC. The last column is the first launch on the first engine with a header
that contains only block groups, instead of NVIDIA's; it is empty for kernels that need more of the header.
The exit status is 1 if a race is missed, or if there is a false finding or a wrong value.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import sim

# A function, and its header as the first group. The samples' format ends a function by a brace in column 0.
FUNCTION = re.compile(r"^(\w[^;{}#]*\))\s*(\{[^\n]*\}$|\{$.*?^\}$)", re.M | re.S)
# instantiations of host functions, and host variables
STATEMENT = re.compile(r"^(template void [^;{]*|(static )?u?int \*?\w+ *=[^;{]*);", re.M)
BARRIER = re.compile(r"\s*(cg::sync\(\w+\)|__syncthreads\(\));")
SMALL_HEADER = """
namespace cooperative_groups {
struct thread_block {};
inline __device__ thread_block this_thread_block() { return {}; }
inline __device__ void sync(thread_block) { __syncthreads(); }
}
"""


@dataclass(frozen=True)
class Sample:
    """A kernel of cuda-samples and its launch.

    path: its folder and file.
    kernel: its name, or an instance of a template.
    launch: the grid, the block and, if needed, the stream and the bytes of dynamic shared memory.
    prepare: a function of a random generator that returns (arguments, {position of an argument: its expected
        value after the launch}).
    remove: the line of the barrier to remove, or None if the kernel needs no barrier.
    race: the lines of an expected finding without the barrier.
    kind: its kind.
    constants: the values of `__constant__` variables.
    options: options of NVRTC.
    """

    path: str
    kernel: str
    launch: tuple
    prepare: Callable
    remove: int | None = None
    race: tuple[int, ...] = ()
    kind: str = "race-shared"
    constants: dict = field(default_factory=dict)
    options: tuple[str, ...] = ()


SAMPLES: list[Sample] = []


def sample(path, kernel, launch, **more):
    """Return a decorator that adds a Sample with the decorated function as `prepare`."""

    def add(prepare):
        SAMPLES.append(Sample(path, kernel, launch, prepare, **more))
        return prepare

    return add


# --- the kernels --------------------------------------------------------------------------------------------


@sample("scan/scan.cu", "scanExclusiveShared", (2, 256), remove=55, race=(52, 56))
def scan(random):
    x = random.integers(0, 100, (2, 1024), np.uint32)
    return (np.zeros_like(x), x, 1024), {0: x.cumsum(1) - x}


@sample("scan/scan.cu", "uniformUpdate", (2, 256), remove=160, race=(157, 163))
def add_offsets(random):
    x, offsets = random.integers(0, 100, (2, 1024), np.uint32), np.array([5, 70], np.uint32)
    return (x.copy(), offsets), {0: x + offsets[:, None]}


def sorting(random):
    """Return the arguments for sorting two arrays of 1,024 keys with values, and the expected results."""
    keys = np.stack([random.permutation(1024) for _ in range(2)]).astype(np.uint32)
    arguments = np.zeros_like(keys), np.zeros_like(keys), keys, keys + 7, 1024
    return arguments, {0: np.sort(keys), 1: np.sort(keys) + 7}


@sample("sortingNetworks/bitonicSort.cu", "bitonicSortShared", (2, 512), remove=66, race=(56, 68))
@sample("sortingNetworks/oddEvenMergeSort.cu", "oddEvenMergeSortShared", (2, 512), remove=75, race=(70, 79))
def sorting_network(random):
    arguments, expected = sorting(random)
    return (*arguments, 1), expected


sample("mergeSort/mergeSort.cu", "mergeSortSharedKernel<1U>", (2, 512), remove=138, race=(131, 139))(sorting)


@sample("scalarProd/scalarProd_kernel.cuh", "scalarProdGPU", (2, 256), remove=86, race=(78, 89))
def scalar_products(random):
    a, b = random.random((2, 2, 4096), np.float32)
    return (np.zeros(2, np.float32), a, b, 2, 4096), {0: (a * b).sum(1)}


FILTER = np.linspace(-1, 2, 17, dtype=np.float32)


def convolution(random, axis):
    """Return the arguments and the result of a convolution of an image of 64 × 128 pixels along an axis."""
    image = random.random((64, 128), np.float32)
    result = np.apply_along_axis(np.convolve, axis, image.astype(float), FILTER, "same")
    return (np.zeros_like(image), image, 128, 64, 128), {0: result}


@sample(
    "convolutionSeparable/convolutionSeparable.cu",
    "convolutionRowsKernel",
    ((1, 16), (16, 4)),
    remove=90,
    race=(70, 99),
    constants={"c_Kernel": FILTER},
)
def convolution_of_rows(random):
    return convolution(random, 1)


@sample(
    "convolutionSeparable/convolutionSeparable.cu",
    "convolutionColumnsKernel",
    ((8, 1), (16, 8)),
    remove=166,
    race=(144, 174),
    constants={"c_Kernel": FILTER},
)
def convolution_of_columns(random):
    return convolution(random, 0)


@sample(
    "fastWalshTransform/fastWalshTransform_kernel.cuh",
    "fwtBatch1Kernel",
    (2, 128, 0, 2048),
    remove=69,
    race=(56, 70),
)
def walsh_transform(random):
    x, matrix = random.random((2, 512), np.float32), np.ones((1, 1))
    while len(matrix) < 512:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (np.zeros_like(x), x, 9), {0: x @ matrix}


@sample(
    "reductionMultiBlockCG/reductionMultiBlockCG.cu",
    "reduceSinglePassMultiBlockCG",
    (4, 128, 0, 1024),
    remove=136,
    race=(134, 140),
    kind="race-global",
)
def reduction_of_grid(random):
    x = random.random(5000, np.float32)
    sums = [sum(x[start :: 4 * 128].sum() for start in range(128 * b, 128 * b + 128)) for b in range(4)]
    return (x, np.zeros(4, np.float32), len(x)), {1: [x.sum(), *sums[1:]]}


@sample("reduction/reduction_kernel.cu", "reduce3<int>", (2, 128, 0, 512), remove=226, race=(223,))
def reduction(random):
    x = random.integers(0, 100, (2, 256), np.int32)
    return (x, np.zeros(2, np.int32), x.size), {1: x.sum(1)}


@sample(
    "threadFenceReduction/threadFenceReduction_kernel.cuh",
    "reduceSinglePass<128, true>",
    (4, 128, 0, 512),
    remove=184,
    race=(181, 187),
)
def reduction_by_last_block(random):
    x = random.integers(0, 100, (4, 256)).astype(np.float32)
    return (x, np.zeros(4, np.float32), x.size), {1: [x.sum(), *x.sum(1)[1:]]}


@sample(
    "conjugateGradientMultiBlockCG/conjugateGradientMultiBlockCG.cu",
    "gpuConjugateGradient",
    (2, 64, 0, 64),
    remove=316,
    race=(240, 318),
    kind="race-global",
)
def conjugate_gradients(random):
    n = 100
    matrix = np.diag(10 + random.random(n)) + np.diag(off := random.random(n - 1), 1) + np.diag(off, -1)
    rows, columns = np.nonzero(matrix)
    starts = np.searchsorted(rows, range(n + 1)).astype(np.int32)
    values, right = matrix[rows, columns].astype(np.float32), random.random(n, np.float32)
    solution, ax, p = np.zeros((3, n), np.float32)
    matrix_arguments = starts, columns.astype(np.int32), values
    vectors = solution, ax, p, right.copy(), np.zeros(1)
    return (*matrix_arguments, *vectors, len(values), n, 1e-5), {3: np.linalg.solve(matrix, right)}


@sample("histogram/histogram256.cu", "histogram256Kernel", (2, 192), remove=72, race=(44, 66))
def histogram_256(random):
    data = random.integers(0, 256, (3, 2, 192 * 4), np.uint8)  # iteration, block, 4 bytes per thread
    counts = [np.bincount(data[:, b].ravel(), minlength=256) for b in range(2)]
    return (np.zeros((2, 256), np.uint32), data.view(np.uint32), data.size // 4), {0: counts}


@sample("histogram/histogram256.cu", "mergeHistogram256Kernel", (4, 256), remove=116, race=(113, 119))
def merged_histogram_256(random):
    parts = random.integers(0, 100, (300, 256), np.uint32)
    return (np.zeros(4, np.uint32), parts, 300), {0: parts.sum(0)[:4]}


@sample("histogram/histogram64.cu", "histogram64Kernel", (2, 64), remove=106, race=(54, 117))
def histogram_64(random):
    data = random.integers(0, 256, (3, 2, 64 * 16), np.uint8)  # iteration, block, 16 bytes per thread
    counts = [np.bincount(data[:, b].ravel() >> 2, minlength=64) for b in range(2)]
    return (np.zeros((2, 64), np.uint32), data.view(np.uint32), data.size // 16), {0: counts}


@sample("transpose/transpose.cu", "transposeCoalesced", ((2, 3), (32, 16)), remove=157, race=(154, 160))
def transpose(random):
    x = random.random((96, 64), np.float32)
    return (np.zeros((64, 96), np.float32), x, 64, 96), {0: x.T}


@sample("jacobiCudaGraphs/jacobi.cu", "::JacobiMethod", (66, 256), remove=99, race=(95, 109))
def jacobi(random):
    matrix = random.random((512, 512), np.float32) + 600 * np.eye(512, dtype=np.float32)
    b, x = random.random((2, 512))
    step = (b - matrix @ x) / matrix.diagonal()
    return (matrix, b, 0.0, x, np.zeros(512), np.zeros(1)), {4: x + step, 5: [abs(step).sum()]}


@sample(
    "dwtHaar1D/dwtHaar1D_kernel.cuh",
    "dwtHaar1D",
    (2, 32, 0, 288),
    remove=155,
    race=(153, 167),
    options=("-DINV_SQRT_2=0.70710678f", "-DLOG_NUM_BANKS=4"),
)
def haar_wavelet(random):
    signal = x = random.random((2, 64), np.float32)
    details = []
    while x.shape[1] > 1:
        even, odd = x[:, ::2], x[:, 1::2]
        details.insert(0, ((even - odd) / np.sqrt(2)).ravel())
        x = (even + odd) / np.sqrt(2)
    expected = np.concatenate([[0, 0], *details])
    return (signal, np.zeros(128, np.float32), np.zeros(2, np.float32), 6, 64, 32), {1: expected, 2: x[:, 0]}


@sample("dct8x8/dct8x8_kernel2.cuh", "CUDAkernel2DCT", ((2, 1), (8, 4, 2)), remove=218, race=(106, 121))
def cosine_transform(random):
    x = random.random((16, 64), np.float32)
    matrix = np.cos(np.outer(range(8), np.arange(0.5, 8)) * np.pi / 8) / 2
    matrix[0] /= np.sqrt(2)
    blocks = x.reshape(2, 8, 8, 8).swapaxes(1, 2)
    return (np.zeros_like(x), x, 64), {0: (matrix @ blocks @ matrix.T).swapaxes(1, 2).reshape(16, 64)}


@sample("shfl_scan/shfl_integral_image.cuh", "shfl_vertical_shfl", (1, (32, 8)), remove=308, race=(307, 311))
def sums_of_columns(random):
    image = random.integers(0, 100, (8 * 135, 32), np.uint32)
    return (image.copy(), 32, len(image)), {0: image.cumsum(0)}


@sample("simpleCudaGraphs/simpleCudaGraphs.cu", "reduceFinal", (1, 512), remove=105, race=(102, 108))
def final_sum(random):
    x = random.random(1000)
    return (x, np.zeros(1), len(x)), {1: [x.sum()]}


@sample(
    "FDTD3d/inc/FDTD3dGPUKernel.cuh",
    "FiniteDifferencesKernel",
    ((1, 2), (32, 8)),
    remove=144,
    race=(143, 152),
    constants={"stencil": np.array([4, 3, 2, 1, 0.5], np.float32)},
)
def finite_differences(random):
    size, inner = np.array([6, 16, 32]), np.s_[4:-4, 4:-4, 4:-4]
    x = random.random(size + 8, np.float32)
    result, expected = np.zeros_like(x), np.zeros(x.shape)
    for distance, weight in enumerate([2, 3, 2, 1, 0.5]):  # distance 0 occurs twice per axis, six times below
        for axis in range(3):
            for shift in (distance, -distance):
                share = weight if distance else 4 / 6
                expected[inner] += share * np.roll(x, shift, axis)[inner]
    return (result, x, *map(int, size[::-1])), {0: expected}


@sample("SobolQRNG/sobol_gpu.cu", "sobolGPU_kernel", ((2, 2), 64), remove=85, race=(82, 111))
def sobol(random):
    directions = random.integers(0, 2**32, (2, 32), np.uint32)
    points = np.zeros((2, 300), np.uint32)
    for i in range(300):
        for bit in range(9):
            points[:, i] ^= directions[:, bit] * np.uint32((i ^ i >> 1) >> bit & 1)
    return (300, 2, directions, np.zeros(points.shape, np.float32)), {3: points * 2.0**-32}


@sample(
    "globalToShmemAsyncCopy/globalToShmemAsyncCopy.cu",
    "MatrixMulAsyncCopySingleStage<16>",
    ((2, 1), (16, 16)),
    remove=404,
    race=(383, 398),
)
def product_by_asynchronous_copies(random):
    a, b = random.random((16, 48), np.float32), random.random((48, 32), np.float32)
    return (np.zeros((16, 32), np.float32), a, b, 48, 32), {0: a @ b}


@sample("binaryPartitionCG/binaryPartitionCG.cu", "oddEvenCountAndSumCG", (2, 64))
def odd_and_even(random):
    x = random.integers(0, 50, 400, np.int32)
    odd = x % 2 == 1
    return (x, np.zeros(1, np.int32), np.zeros(2, np.int32), 400), {
        1: [odd.sum()],
        2: [x[odd].sum(), x[~odd].sum()],
    }


@sample("warpAggregatedAtomicsCG/warpAggregatedAtomicsCG.cu", "calculateMaxInEachBuckets", (2, 64))
def largest_of_buckets(random):
    buckets, values = random.integers(0, 5, 128, np.int32), random.integers(0, 1000, 128, np.int32)
    return (buckets, values, np.zeros(5, np.int32), 128, 5), {
        2: [values[buckets == k].max() for k in range(5)]
    }


# --- the launches -------------------------------------------------------------------------------------------


def blank(match):
    """Return as many line breaks as the matched text has."""
    return "\n" * match[0].count("\n")


def device_code(text):
    """Return a source without host code, with the same line numbers."""
    is_host = lambda function: not re.search("__(global|device)__", function[1])  # noqa: E731
    text = FUNCTION.sub(lambda match: blank(match) if is_host(match) else match[0], text)
    return STATEMENT.sub(blank, text)


def without_barrier(text, number):
    """Return a source without the barrier in line `number`. Raise ValueError if it is no barrier."""
    lines = text.splitlines()
    if not BARRIER.fullmatch(lines[number - 1]):
        raise ValueError(f"line {number} is no barrier: {lines[number - 1]}")
    lines[number - 1] = ";"
    return "\n".join(lines)


def load(each, folder, text, samples):
    """Return the kernel of a Sample, compiled from a text that is written to a folder."""
    (original,) = samples.glob(f"Samples/*/{each.path}")
    for header in (samples / "Common").glob("helper_*.h"):
        (folder / header.name).touch()
    (folder / original.name).write_text(text, encoding="utf-8")
    # -default-device lets NVRTC accept declarations of host functions.
    options = f"-I{original.parent}", "-default-device", *each.options
    module = sim.load_cuda(folder / original.name, *options)
    kernel = module[each.kernel]
    for name, value in each.constants.items():
        module.constant[name] = value
    return kernel


def launch(each, kernel, engine):
    """Return ([(kind, line, line) of each finding], CPU seconds, whether the results are correct)."""
    arguments, expected = each.prepare(np.random.default_rng(1))
    began = time.process_time()
    report = sim.simulate(kernel, engine=engine, on_finding="report")[each.launch](*arguments)
    seconds = time.process_time() - began
    right = all(np.allclose(arguments[i], value, rtol=1e-4, atol=1e-5) for i, value in expected.items())
    findings = [(f.kind, *sorted({a.site.line for a in f.accesses if a.site})) for f in report.findings]
    return findings, seconds, right


def attempt(number, engine, small, samples):
    """Launch the kernel of SAMPLES[number] with and without its barrier.

    Return (CPU seconds of the first launch, list of errors of the simulator). The seconds are None if the
    kernel does not compile with SMALL_HEADER.

    small: whether to replace NVIDIA's header by SMALL_HEADER.
    """
    each = SAMPLES[number]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        folder = Path(folder)
        (original,) = samples.glob(f"Samples/*/{each.path}")
        text = device_code(original.read_text(encoding="utf-8"))
        if small:
            (folder / "cooperative_groups.h").write_text(SMALL_HEADER)
        try:
            kernel = load(each, folder, text, samples)
        except sim.LaunchError:
            if small:
                return None, []
            raise
        findings, seconds, right = launch(each, kernel, engine)
        errors = [f"false finding {finding}" for finding in findings] + ["wrong values"] * (not right)
        if each.remove:
            wrong = load(each, folder, without_barrier(text, each.remove), samples)
            findings = launch(each, wrong, engine)[0]
            if (each.kind, *each.race) not in findings:
                errors.append(f"without line {each.remove}: found {findings}")
    return seconds, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--only", default="", help="run only kernels whose file or name contains this text")
    parser.add_argument("--engines", nargs="+", default=["auto", "fibers", "native"])
    options = parser.parse_args()
    runs = [*((engine, False) for engine in options.engines), (options.engines[0], True)]
    print("| kernel | removed line | race |", " | ".join(options.engines), "| small header |")
    print("|---|---:|---|" + "---:|" * len(runs))
    wrong = []
    for number, each in enumerate(SAMPLES):
        name = f"{each.path.rpartition('/')[2]}, {each.kernel.removeprefix('::')}"
        if options.only not in name:
            continue
        row = [name, str(each.remove or ""), f"{each.kind}, {each.race}" if each.race else ""]
        for engine, small in runs:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                try:
                    seconds, errors = pool.apply(attempt, (number, engine, small, options.samples))
                except Exception as error:
                    seconds, errors = None, [f"{type(error).__name__}: {error}"]
            row.append("" if seconds is None else f"{seconds:.2f}")
            wrong += [f"{name}, {engine}{', small header' * small}: {error}" for error in errors]
        print("|", " | ".join(row), "|", flush=True)
    print("\n".join(["", *wrong, f"{len(wrong)} errors of the simulator"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
