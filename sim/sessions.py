"""A session of simulated launches: its options, and launches that run once for each seed."""

import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from sim.device import DeviceSpec
from sim.launch import simulate
from sim.memory.argument import arrays_of, classify
from sim.memory.snapshot import Snapshot
from sim.observers import DEFAULT

# Every launch has exactly one of these outcomes. "unwatched": there was no observer, or the simulator failed.
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


def launch_site():
    """Return file:line for the innermost caller outside the simulator, Numba and Triton."""
    triton = getattr(sys.modules.get("triton"), "__file__", None)
    skipped = (*NOT_LAUNCHING, str(Path(triton).parent)) if triton else NOT_LAUNCHING
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if not any(part in frame.filename for part in skipped):
            return f"{frame.filename}:{frame.lineno}"
    return "?"
