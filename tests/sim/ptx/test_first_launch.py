"""Tests that the first compiled launch of a kernel in PTX does little work: Numba compiles few functions,
each region is generated once, and few LLVM instructions are emitted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

# Launches a kernel with two shuffles, and prints: the functions that Numba compiles, how often statements of
# a region are generated, the number of regions, and the number of LLVM instructions before the optimiser.
SCRIPT = """
import numpy as np
from llvmlite import ir
from numba.core import compiler
from sim import load_ptx, simulate
from sim.native.ptx import program
from sim.native.split.regions import Regions

modules, functions, statements, splits = {}, [], [], []
text, compile_extra = ir.Module.__repr__, compiler.compile_extra
statement_lines, fission = Regions.statement_lines, program.Fission
ir.Module.__repr__ = lambda self: modules.update({id(self): self}) or text(self)
compiler.compile_extra = lambda typing, target, function, *given, **named: (
    functions.append(function.__name__) or compile_extra(typing, target, function, *given, **named)
)
Regions.statement_lines = lambda self, *given: statements.append(1) or statement_lines(self, *given)
program.Fission = lambda *given: splits.append(fission(*given)) or splits[-1]

x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
simulate(load_ptx(open(PATH).read())["mended"], engine="native")[1, 32](x, y)
regions = sum("_warp_" not in lines[0] and "_block(" not in lines[0] for lines in splits[0].functions)
instructions = sum(
    len(block.instructions) for m in modules.values() for f in m.functions for block in f.blocks
)
print(*functions)
print(len(statements), regions)
print(instructions)
"""


def test_a_first_launch_with_shuffles(tmp_path):
    path = Path(__file__).parent / "cuda" / "mask_of_all.ptx"
    script = SCRIPT.replace("PATH", repr(str(path)))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    functions, regions, instructions = run.stdout.splitlines()
    # `read` and `semantics` of a shuffle are translated without Numba, except for their lambda expressions.
    assert set(functions.split()) == {"mended_grid", "<lambda>"}
    generated, kept = map(int, regions.split())
    assert generated == kept
    assert int(instructions) < 3_600
