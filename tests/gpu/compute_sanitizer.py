"""Comparison of the simulator with NVIDIA's compute-sanitizer on the bug corpus and the course's kernels.

The program shows which of the four tools finds which bug, next to the simulator's findings, and checks that
no tool finds anything in kernels/. It prints Markdown tables. The exit status is 1 if a tool finds something
in a kernel of the course, or does not finish.

    python tests/gpu/compute_sanitizer.py [--tools memcheck racecheck] [--jobs 12] [--timeout 60] [--within
    540]
        [NAME ...]

This needs a GPU, and `compute-sanitizer` on the PATH. NAME is a file of the corpus (`fences`), one of its
cases (`fences.SpinLockWithoutFence`), or `kernels`. Every buggy kernel runs in a separate process, because an
error may destroy the CUDA context. The fixed twins of a file share a process, and their results are compared
with NumPy's. Kernels that may not terminate do not run, but are listed. A process that takes longer than
`--timeout` seconds (three times that for the twins of a file) is killed. After `--within` seconds, no further
process starts.
"""

import argparse
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import cuda

from kernels.cases.table import CASES
from sim.memory.spaces import Empty

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CORPUS = Path(__file__).parents[1] / "corpus"
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
TIME_OUT, NOT_RUN, FAILED = "time-out", "not run", "failed"
OURS = "kernels"


def corpus():
    """Return {file: {case: namespace of its class}}."""
    files = [path for path in sorted(CORPUS.glob("*.py")) if path.stem not in ("conftest", "test_corpus")]
    return {
        path.stem: {
            name: vars(case) for name, case in runpy.run_path(str(path)).items() if hasattr(case, "buggy")
        }
        for path in files
    }


# --- launches on the GPU, in a separate process -------------------------------------------------------------


def launch(case, twin):
    """Run one kernel on the GPU and return its arguments by name, with arrays on the device.

    An array that is passed twice remains a single array.
    """
    kernel, configuration = case[twin], case.get(f"{twin}_launch", case["launch"])
    given, device = case.get(f"{twin}_arguments", case["arguments"])(), {}
    for argument in given:
        if isinstance(argument, np.ndarray) and id(argument) not in device:
            device[id(argument)] = (
                cuda.device_array(argument.shape, argument.dtype)
                if isinstance(argument, Empty)
                else cuda.to_device(argument)
            )
    arguments = [device.get(id(argument), argument) for argument in given]
    kernel[configuration](*arguments)
    cuda.synchronize()
    return dict(zip(inspect.signature(kernel.py_func).parameters, arguments))


def run_fixed(cases):
    """Run all fixed twins of a file and return whether their results on the GPU match NumPy's."""
    for name, case in cases.items():
        left = launch(case, "fixed")
        for argument, wanted in case["wanted"](*case.get("fixed_arguments", case["arguments"])()).items():
            np.testing.assert_allclose(
                left[argument].copy_to_host(), wanted, rtol=1e-6, err_msg=f"{name} {argument}"
            )


# --- runs under a tool --------------------------------------------------------------------------------------


def examine(tool, target, twin, limits):
    """Run a case's buggy kernel, a file's fixed twins, or a kernel of the course under `tool`.

    Return (errors, output), where `errors` is a number, or TIME_OUT, NOT_RUN or FAILED.
    """
    if time.monotonic() > limits.deadline:
        return NOT_RUN, ""
    program = (
        ["-m", "kernels.bench.compare", "--launch", target]
        if twin == OURS
        else [__file__, "--run", twin, target]
    )
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", sys.executable, *program]
    with tempfile.TemporaryFile("w+") as log:  # A process that cannot be killed could keep a pipe open.
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(limits.timeout * (3 if twin == "fixed" else 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # Kill both the tool and the program that it runs.
        log.seek(0)
        output = log.read()
    if process.poll() is None or process.returncode == -signal.SIGKILL:
        return TIME_OUT, output
    counted = SUMMARY.search(output)
    errors = int(counted[1] or counted[2]) if counted else FAILED
    return FAILED if errors == 0 and process.returncode else errors, output


def table(rows, columns):
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def ours(case):
    """Return the kinds of findings that the simulator reports, as verified by tests/corpus/test_corpus.py."""
    return ", ".join(
        sorted({kind + " (warning)" * (severity == "warning") for kind, severity, *_ in case["findings"]})
    )


def cell(verdict):
    return "–" if verdict == 0 else f"found ({verdict})" if isinstance(verdict, int) else verdict


def main(options):
    options.deadline = time.monotonic() + options.within
    if options.names != [OURS]:
        corpus_table(options)
    return kernels_table(options) if not options.names or OURS in options.names else 0


def kernels_table(options):
    """Print the results of every tool for the kernels of the course. Return 1 unless all kernels are
    clean."""
    with ThreadPoolExecutor(options.jobs) as pool:
        asked = {
            (name, tool): pool.submit(examine, tool, name, OURS, options)
            for name in CASES
            for tool in options.tools
        }
    found = {key: future.result() for key, future in asked.items()}
    print(
        table(
            [[name, *(cell(found[name, tool][0]) for tool in options.tools)] for name in CASES],
            ["kernel", *options.tools],
        )
    )
    for (name, tool), (verdict, output) in found.items():
        if verdict != 0:
            print(f"\n{tool} on {name}: {cell(verdict)}\n{output[-3000:]}")
    return int(any(verdict != 0 for verdict, _ in found.values()))


def corpus_table(options):
    """Print the results of every tool for the corpus's bugs and for their fixed twins."""
    chosen = {
        f"{file}.{name}": case
        for file, cases in corpus().items()
        for name, case in cases.items()
        if not options.names or file in options.names or f"{file}.{name}" in options.names
    }
    left_out = [name for name, case in chosen.items() if case.get("hangs")]
    buggy = [name for name in chosen if name not in left_out]
    files = sorted({name.partition(".")[0] for name in chosen})
    with ThreadPoolExecutor(options.jobs) as pool:
        found = {
            (name, tool): pool.submit(examine, tool, name, "buggy", options)
            for tool in options.tools
            for name in buggy
        }
        twins = {
            (file, tool): pool.submit(examine, tool, file, "fixed", options)
            for tool in options.tools
            for file in files
        }
    verdicts = {key: future.result()[0] for key, future in found.items()}
    print(
        table(
            [
                [
                    name,
                    chosen[name]["__doc__"],
                    ours(chosen[name]),
                    *(cell(verdicts[name, tool]) for tool in options.tools),
                ]
                for name in buggy
            ],
            ["case", "bug", "sim", *options.tools],
        )
    )
    for tool in options.tools:
        counted = [verdicts[name, tool] for name in buggy]
        hits, unknown = (
            sum(isinstance(v, int) and v > 0 for v in counted),
            sum(not isinstance(v, int) for v in counted),
        )
        print(f"\n{tool}: finds {hits} of {len(buggy)}" + f", {unknown} without a verdict" * bool(unknown))
        for file in files:
            verdict, output = twins[file, tool].result()
            if verdict != 0:
                print(f"{tool} on the fixed twins of {file}: {cell(verdict)}\n{output[-3000:]}")
    print(
        f"\nThe simulator finds all {len(chosen)}. Left out on the GPU, since the kernel may never come back:"
        f" {', '.join(left_out) or 'none'}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--within", type=float, default=540)
    parser.add_argument("--run", choices=("buggy", "fixed"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run == "buggy":
        file_of, case_of = arguments.names[0].split(".")
        launch(corpus()[file_of][case_of], "buggy")
    elif arguments.run == "fixed":
        run_fixed(corpus()[arguments.names[0]])
    else:
        sys.exit(main(arguments))
