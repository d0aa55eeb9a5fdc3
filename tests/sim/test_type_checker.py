"""Tests that a type checker in strict mode accepts a user's file and rejects its mistakes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sim

pytest.importorskip("mypy")

USERS = """
from typing import Any

import numpy as np

from sim import DeviceSpec, KernelBug, LaunchError, Report, cuda, empty, float32, load_ptx, simulate
from sim.events import Batch, Findings, Observer
from sim.observers import COUNTERS, DEFAULT, Races, Trace, Traffic


class Mine(Observer):
    def accesses(self, batch: Batch) -> Findings:
        print(len(batch.site))
        return None


@cuda.jit(device=True)
def twice(x: float) -> float:
    return 2 * x


@cuda.jit
def sums(x: Any, out: Any) -> None:
    s = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = twice(x[i])
    cuda.syncthreads()
    s[t] += cuda.shfl_down_sync(0xFFFFFFFF, s[t], 1)
    cuda.atomic.add(out, 0, s[t])


def run(x: "np.ndarray[Any, np.dtype[np.float32]]") -> int:
    watched = simulate(
        sums,
        engine="native",
        observers=[*DEFAULT, *COUNTERS, Trace(blocks=[0], limit=10), Races(allow_equal_writes=True), Traffic(), Mine],
        spec=DeviceSpec(),
    )
    try:
        report = watched[1, 32](x, empty(1))
    except KernelBug as bug:
        report = bug.report
        print(bug.findings[0].message, bug.findings[0].accesses[0].thread[0] + 1)
    except LaunchError as error:
        print(error)
        raise
    print(report.by_line().text, report.headline.upper(), cuda.to_device(x))
    again: Report = sums[1, 32](x, empty(1))
    simulate(load_ptx("")["kernel"], on_finding="report")[1, (32, 1)](x)
    return len(again.errors) + len(report.notes)


simulate(sums, engine="fibres")  # wrong: arg-type
simulate(sums, on_finding="ignore")  # wrong: arg-type
simulate(sums, sed=3)  # wrong: call-arg
sums[1, 32](1).finding  # wrong: attr-defined
cuda.threadIdx.w  # wrong: attr-defined
t: str = cuda.threadIdx.x  # wrong: assignment
"""


def test_strict_types_of_a_users_file(tmp_path):
    file = tmp_path / "users.py"
    file.write_text(USERS, encoding="utf-8")
    # torch and Numba have Any for all their declarations, which would take most of the CPU time to read.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*,numba.*]\nfollow_imports = skip\n", encoding="utf-8")
    cache = tmp_path / "cache"
    options = ["--strict", "--follow-imports=silent", f"--config-file={config}", f"--cache-dir={cache}"]
    environment = {**os.environ, "MYPYPATH": str(Path(sim.__file__).parents[1])}
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *options, file.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    ).stdout
    lines = enumerate(USERS.splitlines(), 1)
    wanted = [(number, line.rpartition("wrong: ")[2]) for number, line in lines if "# wrong: " in line]
    found = re.findall(r"^users.py:(\d+): error: .*\[([\w-]+)\]$", said, re.M)
    assert [(int(number), code) for number, code in found] == wanted, said
