"""Comparison of the simulator with a GPU on the CUDA C++ corpus of tests/sim/ptx, with NVRTC and the driver.

The fixed kernels must compute the same values as in the simulator. The program prints a Markdown table, which
shows the verdicts of compute-sanitizer on the buggy and the fixed kernels next to the simulator's findings.
The exit status is 1 if a value differs.

    python tests/gpu/ptx_corpus.py [--seconds 20] [--jobs 12] [--values]

This needs a GPU, cuda.bindings with NVRTC and, for the verdicts, `compute-sanitizer` on the PATH. Every
kernel runs in a separate process. `--launch NAME KERNEL OUTPUT` runs one kernel, as the target of a tool.
"""

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "sim"), str(Path(__file__).parents[2])]
from ptx.corpus import CASES  # noqa: E402
from ptx.record import HERE, compiled  # noqa: E402

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
ENDLESS = {("never_ends", "bug")}


def arguments_of(case, kernel):
    """Return the arguments of a launch."""
    return ((case.mended_arguments if kernel == "mended" else None) or case.arguments)()


def triple(extent):
    return (*extent, 1, 1)[:3] if isinstance(extent, tuple) else (extent, 1, 1)


def launch(name, kernel):
    """Run one kernel on the GPU and return its arguments after the launch."""
    from cuda.bindings import driver

    def checked(result):
        status, *values = result
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name} {kernel}: {driver.cuGetErrorString(status)[1].decode()}")
        return values[0] if values else None

    checked(driver.cuInit(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(0))))))
    case, ptx = CASES[name], compiled(HERE / f"{name}.cu").encode()
    function = checked(driver.cuModuleGetFunction(checked(driver.cuModuleLoadData(ptx)), kernel.encode()))
    given, values, types, device = arguments_of(case, kernel), [], [], []
    for argument in given:
        if isinstance(argument, np.ndarray):
            memory = checked(driver.cuMemAlloc(argument.nbytes))
            checked(driver.cuMemcpyHtoD(memory, argument.ctypes.data, argument.nbytes))
            device.append((argument, memory))
            values.append(int(memory))
            types.append(ctypes.c_void_p)
        else:
            values.append(argument.item() if isinstance(argument, np.generic) else argument)
            types.append(ctypes.c_float if isinstance(argument, (float, np.floating)) else ctypes.c_int)
    checked(
        driver.cuLaunchKernel(
            function, *triple(case.grid), *triple(case.block), 0, 0, (tuple(values), tuple(types)), 0
        )
    )
    checked(driver.cuCtxSynchronize())
    for argument, memory in device:
        checked(driver.cuMemcpyDtoH(argument.ctypes.data, memory, argument.nbytes))
    return given


def process(command, seconds):
    """Run a command and return (exit status, or None after a timeout; output)."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, ""
    return ended.returncode, ended.stdout + ended.stderr


def on_gpu(name, kernel, seconds):
    """Return the output of a kernel on the GPU, or a word that describes its failure."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.npy"
        status, text = process([sys.executable, __file__, "--launch", name, kernel, str(output)], seconds)
        return (
            np.load(output)
            if status == 0
            else "time-out"
            if status is None
            else text.strip().splitlines()[-1]
        )


def in_simulator(name, kernel):
    """Return (output of a kernel in the simulator, kinds of its findings)."""
    from sim import load_ptx, simulate

    case, given = CASES[name], arguments_of(CASES[name], kernel)
    module = load_ptx((HERE / f"{name}.ptx").read_text(), source=(HERE / f"{name}.cu").read_text())
    report = simulate(module[kernel], on_finding="report", max_steps=100_000)[case.grid, case.block](*given)
    return given[case.output], sorted({f.kind for f in report.findings})


def sanitized(name, kernel, tool, seconds):
    """Return the number of errors that a tool of compute-sanitizer reports, or a word that describes its
    failure."""
    if (name, kernel) in ENDLESS:
        return "not run"
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", sys.executable, __file__]
    status, text = process([*command, "--launch", name, kernel, ""], seconds)
    if status is None:
        return "time-out"
    found = SUMMARY.search(text)
    return int(found[1] or found[2]) if found else "failed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--values", action="store_true", help="no compute-sanitizer")
    parser.add_argument("--launch", nargs=3)
    options = parser.parse_args()
    if options.launch:
        name, kernel, output = options.launch
        left = launch(name, kernel)
        if output:
            np.save(output, left[CASES[name].output])
        return 0
    return table(options)


def table(options):
    tools = TOOLS if shutil.which("compute-sanitizer") and not options.values else ()
    with ThreadPoolExecutor(options.jobs) as pool:
        values = {name: pool.submit(on_gpu, name, "mended", options.seconds) for name in CASES}
        verdicts = {
            (name, kernel, tool): pool.submit(sanitized, name, kernel, tool, options.seconds)
            for name in CASES
            for kernel in ("bug", "mended")
            for tool in tools
        }
        heads = [
            "kernel",
            "fixed: GPU and simulator",
            "the bug, in the simulator",
            *tools,
            "fixed: all tools",
        ]
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        wrong = 0
        for name in CASES:
            said = agreement(name, values[name].result())
            wrong += said.startswith("DIFFERS")
            bug = [str(verdicts[name, "bug", tool].result()) for tool in tools]
            mended = ", ".join(str(verdicts[name, "mended", tool].result()) for tool in tools)
            cells = [name, said, ", ".join(in_simulator(name, "bug")[1]), *bug, mended]
            print(f"| {' | '.join(cells)} |", flush=True)
    return int(wrong > 0)


def agreement(name, theirs):
    """Print whether the GPU's values agree with the simulator's."""
    if isinstance(theirs, str):
        return f"DIFFERS: {theirs}"
    ours, _ = in_simulator(name, "mended")
    if np.array_equal(ours, theirs):
        return "equal"
    if name == "stack_aba":  # The order of the blocks determines which node a block takes.
        return "any order" if ours.sum() == theirs.sum() else "DIFFERS"
    return "equal to 1e-6" if np.allclose(ours, theirs, rtol=1e-6) else "DIFFERS"


if __name__ == "__main__":
    sys.exit(main())
