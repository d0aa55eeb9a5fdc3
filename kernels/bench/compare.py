"""python -m kernels.bench.compare: compare every kernel, on every engine, with float64 and with the previous
stage.

    python -m kernels.bench.compare [NAME ...] [--engines fibers ...] [--json] [--record] [--ncu]

By default, all of `kernels.cases.table` is compared. The exit status is 1 if a row fails. With a CUDA GPU,
the kernels run there, too. --ncu compares the simulator's counters with the GPU's (`ncu` must be on the
PATH); --record writes all results, with date, GPU and versions, to kernels/data/; --json prints them.
--launch NAME ... only launches kernels on the GPU, once each, for a profiler or a checker.
"""

import argparse
import json
import math
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from platform import python_version

import numpy as np
import torch
from tqdm import tqdm

from kernels.bench import counters
from kernels.cases.table import CASES, TOLERANCES
from kernels.common.data import DATA
from kernels.common.launch import on_gpu, simulated

REFERENCE, PREVIOUS, GPU = "float64", "stage before", "GPU"
SHARING = 8  # processes that share one GPU


@dataclass(frozen=True)
class Row:
    """A comparison of the outputs of engines `got` and `wanted`.

    ulp: the largest distance, in units of the last place of the expected value.
    """

    case: str
    size: str
    got: str
    wanted: str
    max_error: float
    mean_error: float
    ulp: float
    tolerance: float
    findings: int
    error: str = ""  # reason for missing values
    refused: bool = False  # whether the engine declined to run the kernel

    @property
    def verdict(self):
        return (
            "NOT RUN"
            if self.refused
            else "PASS"
            if self.max_error <= self.tolerance and not self.findings
            else "FAIL"
        )


def engines():
    """Return the names of the simulator's engines, "fibers" first. "auto" is not one of its own."""
    from sim.launch import ENGINES

    return tuple(name for name in ENGINES if name != "auto")


# Results ----------------------------------------------------------------------------------------------------


def results(case, size, chosen):
    """Run a case; return ({engine: outputs on the CPU, or an exception}, {engine: number of findings}).

    chosen: the engines to run.
    """
    given = case.tensors(size)
    outputs = {
        REFERENCE: case.reference(
            *(tensor.double() if tensor.is_floating_point() else tensor for tensor in given)
        )
    }
    if case.previous:
        outputs[PREVIOUS] = case.previous(*given)
    findings = {}
    for engine in chosen:
        outputs[engine], findings[engine] = attempted(by_simulator, case, given, engine)
    if torch.cuda.is_available():
        outputs[GPU], findings[GPU] = attempted(by_gpu, case, case.tensors(size, device="cuda"))
    return outputs, findings


def attempted(run, *arguments):
    """Return run(*arguments), or (the exception, no findings) if it fails, so that a failing engine affects
    only its own rows."""
    try:
        return run(*arguments)
    except Exception as error:
        return error, 0


def by_gpu(case, given):
    """Run a case on the GPU; return (outputs on the CPU, no findings)."""
    return tuple(output.cpu() for output in case.call(*given, run=on_gpu)), 0


def refused(broken):
    """Return whether the only failure is that the native engine declined to compile the kernel.

    broken: {engine: the exception that it raised}.
    """
    from sim.errors import LaunchError

    return set(broken) == {"native"} and isinstance(broken["native"], LaunchError)


def by_simulator(case, given, engine):
    """Run a case on one of the simulator's engines; return (outputs, number of findings)."""
    reports = []

    def run(*launched):
        reports.append(simulated(*launched, engine=engine, on_finding="report"))

    return case.call(*given, run=run), sum(len(report.findings) for report in reports)


def pairs(outputs):
    """Return the pairs of engines to compare.

    These are every engine but "threads" with the reference, "fibers" with the previous stage, every engine
    and the GPU with "fibers", and the GPU with "native".
    """
    for who in outputs:
        if who not in (REFERENCE, "threads"):
            yield who, REFERENCE
    if {PREVIOUS, "fibers"} <= set(outputs):
        yield "fibers", PREVIOUS
    for who in outputs:
        if "fibers" in outputs and who not in (REFERENCE, PREVIOUS, "fibers"):
            yield who, "fibers"
    if {GPU, "native"} <= set(outputs):
        yield GPU, "native"


def compared(case, size, chosen=None):
    """Return the rows of one case and size, for the `chosen` engines (all by default)."""
    outputs, findings = results(case, size, chosen or engines())
    for got, wanted in pairs(outputs):
        exact = {got, wanted} == {"fibers", "threads"}  # both engines use the same Python arithmetic
        tolerance = 0.0 if exact else float(TOLERANCES[case.tolerance][0])
        broken = {who: outputs[who] for who in (got, wanted) if isinstance(outputs[who], Exception)}
        distance = (math.nan,) * 3 if broken else distances(outputs[got], outputs[wanted])
        words = ", ".join(
            f"{who}: {type(error).__name__}: {error}".partition("\n")[0] for who, error in broken.items()
        )
        size_text = ", ".join(f"{name} {number}" for name, number in size.items())
        yield Row(
            case.name,
            size_text,
            got,
            wanted,
            *distance,
            tolerance,
            findings.get(got, 0),
            words,
            refused(broken),
        )


def all_rows(work, chosen):
    """Return the rows of every (name, size) in `work`, in that order.

    Cases run in parallel, one per core. The largest cases, which come last in `work`, start first. On a GPU,
    each case needs a few hundred MiB, so SHARING cases run at a time.
    """
    bar = partial(tqdm, desc="compare", total=len(work), disable=None)
    if len(work) == 1:
        return rows_of(*work[0], chosen)
    workers = min(os.cpu_count(), len(work), *([SHARING] if torch.cuda.is_available() else []))
    # spawn, because a forked process cannot use CUDA
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        started = [pool.submit(rows_of, name, size, chosen) for name, size in reversed(work)]
        for _ in bar(as_completed(started)):
            pass
        return [row for future in reversed(started) for row in future.result()]


def rows_of(name, size, chosen):
    return list(compared(CASES[name], size, chosen))


def distances(got, wanted):
    """Return (largest error, mean error, largest distance in ulp) of two tuples of tensors; NaN if any is
    NaN.

    Only outputs present in both tuples are compared, since a previous stage may lack the last output. An ulp
    is the distance between adjacent values of got's dtype at the expected value, so it is tiny near 0.
    """
    errors, ulps = [], []
    for one, other in zip(got, wanted):
        if one.shape != other.shape:
            raise ValueError(
                f"outputs have shapes {tuple(one.shape)} and {tuple(other.shape)}; wanted equal ones"
            )
        one, other = one.detach().numpy(), other.detach().numpy()
        error = np.abs(one.astype(np.float64) - other.astype(np.float64))
        # for integers, an "ulp" is 1
        spacing = np.spacing(np.abs(other.astype(one.dtype))) if one.dtype.kind == "f" else np.ones(1)
        errors.append(error.ravel())
        ulps.append((error / spacing).ravel())
    errors, ulps = np.concatenate(errors), np.concatenate(ulps)
    return float(errors.max()), float(errors.mean()), float(ulps.max())


# The record -------------------------------------------------------------------------------------------------


def machine():
    """Return the date, the GPU and the software versions, which must accompany every recorded figure."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": str(date.today()),
        "gpu": gpu,
        "versions": {"python": python_version()} | {name: version_of(name) for name in PACKAGES},
    }


PACKAGES = ("numpy", "torch", "numba", "numba-cuda")


def version_of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def record(rows, counted):
    """Return all results as plain data."""
    return machine() | {
        "tolerances": {
            name: {"at most": tolerance, "because": why} for name, (tolerance, why) in TOLERANCES.items()
        },
        "rows": [as_data(row) for row in rows],
        "counters": [count._asdict() | {"verdict": count.verdict} for count in counted],
    }


def as_data(row):
    """Return a row and its verdict as plain data, with None in place of NaN, which JSON cannot represent."""
    return {name: None if value != value else value for name, value in asdict(row).items()} | {
        "verdict": row.verdict
    }


def missing(ncu, chosen):
    """Return one sentence for each comparison that was not made."""
    if left_out := [engine for engine in engines() if engine not in chosen]:
        yield f"Not compared: {' and '.join(left_out)}."
    if not torch.cuda.is_available():
        yield (
            "Not compared: anything on a GPU, for torch finds no CUDA GPU here. kernels/data/ has what was"
            " recorded on one."
        )
    elif not ncu:
        yield "Not compared: the GPU's own counters (--ncu)."


def table(rows):
    width = max(len(row.size) for row in rows)
    yield (
        f"{'kernel':21}{'size':{width}}  {'of':13}{'beside':13}{'max error':>10}{'mean error':>11}{'ulp':>10}"
        f"{'tolerance':>10}{'findings':>9}"
    )
    for row in rows:
        errors = (
            f"{row.max_error:10.2e}{row.mean_error:11.2e}{row.ulp:10.3g}{row.tolerance:10.0e}{row.findings:9}"
        )
        who = f"{row.case:21}{row.size:{width}}  {row.got:13}{row.wanted:13}"
        yield f"{who}{errors}  {row.verdict} {row.error}".rstrip()
    for name, (tolerance, why) in TOLERANCES.items():
        yield f"  {name}, at most {tolerance:.0e}: {why}"


def counter_table(counted):
    yield f"{'kernel':21} {'counter':24} {'predicted':>10} {'measured':>10}"
    for count in counted:
        yield (
            f"{count.case:21} {count.counter:24} {count.predicted:10} {count.measured:10} "
            f" {count.verdict}{count.why and ': ' + count.why}"
        )


# Commands ---------------------------------------------------------------------------------------------------


def launch_only(names):
    """Launch each kernel once on the GPU, at its counted size if it has one."""
    for name in names:
        case = CASES[name]
        case.call(*case.tensors(case.counter_size or case.sizes[0], device="cuda"), run=on_gpu)
    torch.cuda.synchronize()


def main(options):
    if options.launch:
        return launch_only(options.launch)
    if options.ncu and not (torch.cuda.is_available() and shutil.which("ncu")):
        sys.exit("--ncu needs a CUDA GPU and ncu (Nsight Compute) on the PATH")
    work = [
        (case.name, size)
        for case in CASES.values()
        if not options.names or case.name in options.names
        for size in case.sizes
    ]
    rows = all_rows(work, options.engines)
    counted = counters.counts(lambda cases: tqdm(cases, desc="counters", disable=None)) if options.ncu else []
    found = record(rows, counted)
    if options.record:
        path = DATA / f"compare-{(found['gpu'] or 'cpu').lower().replace(' ', '-')}.json"
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(
            *table(rows),
            *(counter_table(counted) if counted else ()),
            *missing(options.ncu, options.engines),
            sep="\n",
        )
    return any(row.verdict == "FAIL" for row in rows) or any(
        count.verdict == "DIFFERENT" for count in counted
    )


def arguments():
    parser = argparse.ArgumentParser(
        prog="kernels.bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    for name in ("json", "record", "ncu"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument(
        "--engines", nargs="+", choices=engines(), default=engines(), help="all, unless named"
    )
    parser.add_argument("--launch", nargs="+", choices=CASES, metavar="NAME")
    options = parser.parse_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"there is no kernel {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return options


if __name__ == "__main__":
    sys.exit(main(arguments()))
