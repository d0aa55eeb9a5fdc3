"""Compare the simulator's counts of memory requests, sectors and wavefronts with a GPU's counts (from
`ncu`)."""

import csv
import io
import subprocess
import sys
from typing import NamedTuple

from kernels.cases.table import CASES
from kernels.common.launch import simulated

# counter -> the GPU's counters whose sum must equal it; `ldmatrix` has separate counters. A request is one
# instruction of a warp; a "turn" is a wavefront of shared memory.
METRICS = {
    "global load requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "global load sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "global load bytes": ("smsp__sass_data_bytes_mem_global_op_ld.sum",),
    "global store requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "global store sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "global store bytes": ("smsp__sass_data_bytes_mem_global_op_st.sum",),
    "shared load requests": (
        "smsp__sass_inst_executed_op_shared_ld.sum",
        "smsp__sass_inst_executed_op_ldsm.sum",
    ),
    "shared load turns": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "shared load conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",),
    "shared load bytes": (
        "smsp__sass_data_bytes_mem_shared_op_ld.sum",
        "smsp__sass_data_bytes_mem_shared_op_ldsm.sum",
    ),
    "shared store requests": ("smsp__sass_inst_executed_op_shared_st.sum",),
    "shared store turns": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    "shared store conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",),
    "shared store bytes": ("smsp__sass_data_bytes_mem_shared_op_st.sum",),
}
# known differences on a GPU (compiled for sm_90): the GPU's value, and the reason
EXPLAINED = {
    ("matmul_tiled", "shared load requests"): (
        10240,
        (
            "the compiler reads four neighbours of a row of tile_a by one instruction: for each tile 32 + 8,"
            " not 64"
        ),
    ),
    ("matmul_tiled", "shared load turns"): (
        12288,
        (
            "those 8 wide loads take two turns each, one for each half of the warp: for each tile 32 + 16,"
            " not 64"
        ),
    ),
    ("matmul_tiled", "shared load bytes"): (
        1081344,
        "the GPU counts once what all lanes of an instruction share: 32 · 128 + 8 · 16 bytes for each tile",
    ),
    ("flash_forward", "shared load requests"): (
        5120,
        "the compiler reads four neighbours of a row of K or V by one instruction: a quarter",
    ),
    ("flash_forward", "shared load turns"): (
        9216,
        (
            "a wide load takes a turn for each half of the warp that still runs; of the 320 keys that the 4"
            " warps visit, the first half has ended at 64: 16 loads · (2 · 320 - 64)"
        ),
    ),
    ("flash_forward", "shared load bytes"): (
        81920,
        "the GPU counts once what all lanes of an instruction share: 5120 · 16 bytes",
    ),
}


class Count(NamedTuple):
    """One counter of one kernel: the simulator's prediction, the GPU's value, and the reason for a
    difference."""

    case: str
    counter: str
    predicted: int
    measured: int
    why: str

    @property
    def verdict(self):
        return "equal" if self.predicted == self.measured else "explained" if self.why else "DIFFERENT"


def counted_cases():
    return [case for case in CASES.values() if case.counter_size]


def predicted(case):
    """Return {counter: value} for a case's launch, from the simulator."""
    from sim.events import LOAD, STORE
    from sim.observers import Banks, Coalescing, Traffic

    coalescing, banks = Coalescing(), Banks()
    (launched,) = case.launches(case.counter_size)
    report = simulated(
        launched.kernel,
        launched.grid,
        launched.block,
        *launched.arguments,
        observers=(coalescing, banks, Traffic),
    )
    found = {}
    for kind, name in (LOAD, "load"), (STORE, "store"):
        requests, sectors, _ = of_kind(coalescing.sites, kind, 3)
        shared, turns, fewest, _ = of_kind(banks.sites, kind, 4)
        found |= {f"global {name} requests": requests, f"global {name} sectors": sectors}
        found |= {
            f"shared {name} requests": shared,
            f"shared {name} turns": turns,
            f"shared {name} conflicts": turns - fewest,
        }
        for space in ("global", "shared"):
            found[f"{space} {name} bytes"] = report.counters["memory"].get(space, {}).get(f"{name}_bytes", 0)
    return {counter: found[counter] for counter in METRICS}


def of_kind(sites, kind, width):
    """Return the counts of an observer's sites, summed over all loads or all stores."""
    return [sum(counts[i] for site, counts in sites.items() if site & 3 == kind) for i in range(width)]


def measured():
    """Return {case: {counter: value}} from the GPU's counters, launching each case once under `ncu`.

    Raise RuntimeError with ncu's message if it fails.
    """
    names = [case.name for case in counted_cases()]
    # Numba prefixes the name of a kernel with its module
    command = [
        "ncu",
        "--csv",
        "--clock-control",
        "none",
        "--metrics",
        ",".join(metric for metrics in METRICS.values() for metric in metrics),
        "--kernel-name-base",
        "mangled",
    ]
    command += [
        "--kernel-name",
        "regex:^_ZN7kernels",
        sys.executable,
        "-m",
        "kernels.bench.compare",
        "--launch",
        *names,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    launches = launches_of(done.stdout)
    if len(launches) != len(names):
        raise RuntimeError(
            f"ncu saw {len(launches)} launches; wanted {len(names)}. It"
            f" said:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return dict(zip(names, launches))


def launches_of(output):
    """Parse ncu's --csv output: return [{counter: value}], one entry per launch, in order."""
    launches = {}
    for row in csv.DictReader(io.StringIO(output[output.find('"ID"') :])):
        launches.setdefault(int(row["ID"]), {})[row["Metric Name"]] = int(
            float(row["Metric Value"].replace(",", ""))
        )
    return [
        {counter: sum(launch[metric] for metric in metrics) for counter, metrics in METRICS.items()}
        for _, launch in sorted(launches.items())
    ]


def counts(progress):
    """Return a Count for every counter of every counted case, predicted and measured."""
    hardware, rows = measured(), []
    for case in progress(counted_cases()):
        for counter, number in predicted(case).items():
            rows.append(compared_count(case.name, counter, number, hardware[case.name][counter]))
    return rows


def compared_count(case, counter, predicted, measured):
    """Return a Count, with an explanation only if the GPU's value equals the known one exactly."""
    number, why = EXPLAINED.get((case, counter), (None, ""))
    return Count(case, counter, predicted, measured, why if predicted != measured == number else "")
