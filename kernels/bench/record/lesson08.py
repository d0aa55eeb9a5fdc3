"""Record the data of lesson 08 on a machine with an H200 and ncu: print the JSON of
kernels/data/lesson08.json.

    python -m kernels.bench.record.lesson08 > lesson08.json

The program runs itself under ncu for the counters (--launch), then measures times without ncu. It prints
progress on stderr, and needs about 11 GiB of GPU memory.
"""

import csv
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from datetime import date
from glob import glob
from importlib.metadata import version
from math import sqrt
from platform import python_version

import numpy as np
from numba import cuda
from numpy import float32

from kernels.cases import memory_patterns as patterns
from kernels.cases.memory_patterns import THREADS, TILE, blocks, tiles
from kernels.flash.forward import ROWS, flash_forward_kernel

NAMES = "copy", "strided_copy", "transpose_naive", "transpose_tiled", "transpose_padded"
SMALL, BIG, STRIDE = 128, 16384, 8
NUMBERS, FEW_THREADS, SHARED = 16, 64, (0, 13 * 1024, 27 * 1024, 48 * 1024)
ADD, MATMUL, FLASH = {"n": 2**28}, {"n": 4096}, {"batch": 4, "heads": 16, "n": 2048, "d": 64}

GLOBAL, SHARED_METRIC = (
    "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum",
)
ACCESSES = {  # kind of access -> names of the metrics that count its (requests, sectors or wavefronts)
    "load": (GLOBAL.format("requests", "ld"), GLOBAL.format("sectors", "ld")),
    "store": (GLOBAL.format("requests", "st"), GLOBAL.format("sectors", "st")),
    "shared load": ("smsp__inst_executed_op_shared_ld.sum", SHARED_METRIC.format("ld")),
    "shared store": ("smsp__inst_executed_op_shared_st.sum", SHARED_METRIC.format("st")),
}
DRAM = {"dram_read_bytes": "dram__bytes_read.sum", "dram_write_bytes": "dram__bytes_write.sum"}
LIMITS = [f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps")]
BLOCK = {
    "registers": "launch__registers_per_thread",
    "static": "launch__shared_mem_per_block_static",
    "dynamic": "launch__shared_mem_per_block_dynamic",
}
EXTRA = [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum" for kind in ("ld", "st")]
METRICS = [metric for pair in ACCESSES.values() for metric in pair] + [
    *DRAM.values(),
    *LIMITS,
    *BLOCK.values(),
    *EXTRA,
]


# The lesson's own kernels, copied from solutions/08_memory.py -----------------------------------------------


@cuda.jit
def copy_some(x, out):
    first = cuda.blockIdx.x * cuda.blockDim.x * NUMBERS + cuda.threadIdx.x
    for i in range(first, min(first + cuda.blockDim.x * NUMBERS, out.size), cuda.blockDim.x):
        out[i] = x[i]


@cuda.jit
def add_twice(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += float32(2) * x[i]


# Launches ---------------------------------------------------------------------------------------------------


def five(n):
    """Return {label: (kernel, configuration, arguments)} for the five patterns."""
    line, square = (blocks(n * n), THREADS), (tiles(n, n), (TILE, TILE))
    long, out = cuda.device_array(STRIDE * n * n, float32), cuda.device_array(n * n, float32)
    x, a, turned = long[: n * n], long[: n * n].reshape(n, n), out.reshape(n, n)
    return {
        "copy": (patterns.copy, line, (x, out)),
        "strided_copy": (patterns.strided_copy, line, (long, out, STRIDE)),
        **{name: (getattr(patterns, name), square, (a, turned)) for name in NAMES[2:]},
    }, (x, out)


def every_launch():
    """Return {label: (kernel, configuration, arguments)} in profiling order. No other kernel is launched."""
    rng = np.random.default_rng(8)
    counted, _ = five(SMALL)
    timed, (x, out) = five(BIG)
    grid = -(-BIG * BIG // (FEW_THREADS * NUMBERS))
    b, h, n, d = FLASH.values()
    q, k, v, o = (cuda.to_device(rng.standard_normal((b, h, n, d)).astype(float32)) for _ in range(4))
    matrices = [cuda.to_device(rng.standard_normal((MATMUL["n"],) * 2).astype(float32)) for _ in range(3)]
    log_sum = cuda.device_array((b, h, n), float32)
    return (
        {f"counted {name}": launch for name, launch in counted.items()}
        | {f"timed {name}": launch for name, launch in timed.items()}
        | {f"occupancy {bytes}": (copy_some, (grid, FEW_THREADS, 0, bytes), (x, out)) for bytes in SHARED}
        | {
            "roofline add_twice": (add_twice, (blocks(ADD["n"]), THREADS), (x, out)),
            "roofline matmul_tiled": (
                patterns.matmul_tiled,
                (tiles(MATMUL["n"], MATMUL["n"]), (TILE, TILE)),
                matrices,
            ),
            "roofline flash_attention": (
                flash_forward_kernel(d),
                ((-(-n // ROWS), h, b), ROWS),
                (q, k, v, float32(1 / sqrt(d)), False, (n, n), o, log_sum),
            ),
        }
    )


def launch_all():
    for kernel, configuration, arguments in every_launch().values():
        kernel[configuration](*arguments)
    cuda.synchronize()


def microseconds(kernel, configuration, arguments, times=20, batches=5):
    """Return the median, over batches, of the mean time per launch."""
    launch, found = kernel[configuration], []
    launch(*arguments)
    for _ in range(batches):
        start, end = cuda.event(), cuda.event()
        start.record()
        for _ in range(times):
            launch(*arguments)
        end.record()
        end.synchronize()
        found.append(1000 * cuda.event_elapsed_time(start, end) / times)
    print(f"  {found}", file=sys.stderr)
    return statistics.median(found)


# ncu --------------------------------------------------------------------------------------------------------


def ncu():
    places = [
        shutil.which("ncu"),
        *glob("/usr/local/cuda*/bin/ncu"),
        *sorted(glob("/opt/nvidia/nsight-compute/*/ncu")),
    ]
    return next(place for place in places if place and os.path.exists(place))


def profile():
    """Return [(mangled name, {metric: value})] for every launch, in order."""
    command = [
        ncu(),
        "--csv",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--kernel-name-base",
        "mangled",
    ]
    command += [
        "--metrics",
        ",".join(METRICS),
        sys.executable,
        "-m",
        "kernels.bench.record.lesson08",
        "--launch",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ncu failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return parsed(done.stdout)


def parsed(text):
    """Parse ncu's --csv output: return [(name, {metric: value})]."""
    launches = {}
    for row in csv.DictReader(io.StringIO(text[text.index('"ID"') :])):
        name, metrics = launches.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
        try:
            metrics[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            sys.exit(f"{name}: {row['Metric Name']} is {row['Metric Value']!r}, which is not a number")
    return [launches[number] for number in sorted(launches)]


# The record -------------------------------------------------------------------------------------------------


def accesses(metrics):
    return {access: [int(metrics[one]) for one in pair] for access, pair in ACCESSES.items()}


def shared_turns(metrics):
    return sum(int(metrics[SHARED_METRIC.format(kind)]) for kind in ("ld", "st"))


def block(metrics):
    return {
        "registers": int(metrics[BLOCK["registers"]]),
        "blocks": int(min(metrics[limit] for limit in LIMITS)),
    }


def assemble(machine, found, times, threads):
    """Return the data of the JSON file.

    machine: the GPU and versions.
    found: {label: {metric: value}}, from ncu.
    times: {label: microseconds}.
    threads: {label: threads per block}.
    """
    rounded = {label: round(time, 2) for label, time in times.items()}
    resident = {
        "copy": "timed copy",
        "transpose_padded": "timed transpose_padded",
        "matmul_tiled": "roofline matmul_tiled",
        "flash_attention": "roofline flash_attention",
    }
    return machine | {
        "counted": {
            "n": SMALL,
            "stride": STRIDE,
            "patterns": {name: accesses(found[f"counted {name}"]) for name in NAMES},
        },
        "timed": {
            "n": BIG,
            "stride": STRIDE,
            "patterns": {
                name: (
                    {"microseconds": rounded[f"timed {name}"]}
                    | {what: int(found[f"timed {name}"][metric]) for what, metric in DRAM.items()}
                    | {
                        "shared_turns": [
                            int(found[f"timed {name}"][SHARED_METRIC.format(kind)]) for kind in ("ld", "st")
                        ]
                    }
                )
                for name in NAMES
            },
        },
        "resident": {
            name: (
                {"threads": threads[label], "shared_bytes": int(found[label][BLOCK["static"]])}
                | block(found[label])
            )
            for name, label in resident.items()
        },
        "occupancy": {
            "n": BIG * BIG,
            "threads": FEW_THREADS,
            "launches": [
                {"shared_bytes": bytes}
                | block(found[f"occupancy {bytes}"])
                | {"microseconds": rounded[f"occupancy {bytes}"]}
                for bytes in SHARED
            ],
        },
        "roofline": {
            name: {
                "size": size,
                "microseconds": rounded[f"roofline {name}"],
                "turns": shared_turns(found[f"roofline {name}"]),
            }
            for name, size in (("add_twice", ADD), ("matmul_tiled", MATMUL), ("flash_attention", FLASH))
        },
    }


def by_label(labels, names, profiled):
    """Return {label: metrics}; raise an error unless each launch ran the kernel that its label names."""
    for label, name, (got, _) in zip(labels, names, profiled, strict=True):
        if name not in got:
            sys.exit(f"{label}: wanted kernel {name}, ncu saw {got}")
    return {label: metrics for label, (_, metrics) in zip(labels, profiled, strict=True)}


def the_machine():
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,clocks.sm", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    print("driver, clocks:", said, file=sys.stderr)
    version_of_ncu = re.search(
        r"Version (\d+\.\d+\.\d+)",
        subprocess.run([ncu(), "--version"], capture_output=True, text=True).stdout,
    )[1]
    name = cuda.get_current_device().name
    return {
        "date": str(date.today()),
        "gpu": name.decode() if isinstance(name, bytes) else name,
        "driver": said.split(",")[0],
        "versions": {
            "python": python_version(),
            **{what: version(what) for what in ("numba", "numba-cuda")},
            "ncu": version_of_ncu,
        },
    }


def main():
    if "--launch" in sys.argv:
        return launch_all()
    profiled = profile()
    launches = every_launch()
    names = [kernel.py_func.__name__ for kernel, *_ in launches.values()]
    found = by_label(list(launches), names, profiled)
    for label, metrics in found.items():
        print(label, json.dumps(metrics), file=sys.stderr)
    times = {}
    for label, (kernel, configuration, arguments) in launches.items():
        if not label.startswith("counted"):
            print(label, file=sys.stderr)
            times[label] = microseconds(kernel, configuration, arguments)
    threads = {label: int(np.prod(configuration[1])) for label, (_, configuration, _) in launches.items()}
    print(json.dumps(assemble(the_machine(), found, times, threads), indent=1))


if __name__ == "__main__":
    main()
