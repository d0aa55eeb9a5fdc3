"""A session of simulated launches: its options, and launches that run once for each seed."""

import functools
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from sim.device import DeviceSpec
from sim.launch import simulate
from sim.memory.argument import arrays_of, classify
from sim.memory.snapshot import Snapshot
from sim.observers import DEFAULT

# Every launch has exactly one of these outcomes. "unwatched": no observer could report findings, or the
# simulator failed.
OUTCOMES = "clean", "with findings", "raised", "refused", "unwatched"
# Paths of files whose frames are not the launch itself.
NOT_LAUNCHING = (str(Path(__file__).parent), "numba_cuda", "contextlib")


@dataclass(frozen=True)
class Options:
    """Options for simulated launches; see `simulate`.

    seeds: each launch runs once per seed. The arrays keep the results for the first seed.
    """

    engine: str = "native"
    seeds: tuple[int, ...] = (0,)
    observers: tuple = DEFAULT
    spec: DeviceSpec = DeviceSpec()
    max_steps: int | None = None


def run_seeds(function, options, configuration, values):
    """Return the Report of one launch: the report for the first seed, with the findings from all seeds."""
    how = dict(observers=options.observers, spec=options.spec, max_steps=options.max_steps)

    def one(seed):
        simulation = simulate(function, engine=options.engine, seed=seed, on_finding="report", **how)
        return simulation[configuration](*values)

    first, *further = options.seeds
    if not further:
        return one(first)
    classified = [classify(f"argument {i}", value) for i, value in enumerate(values)]
    before = Snapshot(array for array in arrays_of(classified).values() if array.flags.writeable)
    others = []
    for seed in further:
        others += one(seed).findings
        before.restore()
    report = one(first)
    # Equal findings appear once, in the form found by the first seed.
    merged = {finding.key: finding for finding in (*others, *report.findings)}
    findings = sorted(merged.values(), key=lambda finding: finding.severity != "error")
    return replace(report, findings=tuple(findings))


def launching_line():
    """Return (file, line) of the innermost caller outside the simulator, Numba and Triton, or ("", 0)."""
    triton = getattr(sys.modules.get("triton"), "__file__", None)
    frame = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename, triton):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


@functools.cache
def is_library(file, triton):
    """Return whether a file belongs to the simulator, to Numba or to Triton, whose file is `triton`."""
    skipped = (*NOT_LAUNCHING, str(Path(triton).parent)) if triton else NOT_LAUNCHING
    return any(part in file for part in skipped)


def launch_site():
    """Return file:line for the innermost caller outside the simulator, Numba and Triton."""
    file, line = launching_line()
    return f"{file}:{line}" if line else "?"
