"""Tests of CUDA C++ kernels, each with a bug and fixed, compiled by NVRTC.

The simulator must find every bug on the lines marked FOUND. It must find nothing in the fixed kernels, and
their results must be correct.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from ptx.corpus import CASES
from ptx.record import compiled
from sim import load_ptx, simulate

FILES = Path(__file__).parent / "cuda"


def module(name, folder=FILES):
    source = (folder / f"{name}.cu").read_text()
    return source, load_ptx((folder / f"{name}.ptx").read_text(), source=source)


def test_every_file_has_a_case():
    assert (
        {path.stem for path in FILES.glob("*.cu")}
        == set(CASES)
        == {path.stem for path in FILES.glob("*.ptx")}
    )


@pytest.mark.parametrize("name", CASES)
def test_the_bug_is_found_where_it_is(name):
    case, (source, kernels) = CASES[name], module(name)
    marked = {
        (number, re.search(r"FOUND ([\w-]+)", line)[1])
        for number, line in enumerate(source.splitlines(), 1)
        if "FOUND" in line
    }
    report = simulate(kernels["bug"], on_finding="report", max_steps=100_000)[
        case.grid, case.block, 0, case.shared
    ](*case.arguments())
    assert {(a.site.line, f.kind) for f in report.findings for a in f.accesses if a.site} == marked
    assert all(a.site.function == f"{name}.cu" for f in report.findings for a in f.accesses if a.site)


@pytest.mark.parametrize("name", CASES)
def test_the_mended_kernel_is_right(name):
    case, (_, kernels) = CASES[name], module(name)
    arguments = (case.mended_arguments or case.arguments)()
    wanted = case.right(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    report = simulate(kernels["mended"])[case.grid, case.block, 0, case.shared](*arguments)
    assert report.findings == ()
    if wanted is not None:
        np.testing.assert_allclose(arguments[case.output], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_recorded_ptx_is_what_the_compiler_gives(name):
    """Compile the recorded files again and compare the PTX, ignoring the compiler's version."""
    pytest.importorskip("cuda.bindings.nvrtc")
    try:
        fresh = compiled(FILES / f"{name}.cu")
    except RuntimeError as error:
        if "library" in str(error).lower():
            pytest.skip(f"NVRTC is not here: {error}")
        raise
    recorded = (FILES / f"{name}.ptx").read_text()
    if [line for line in fresh.splitlines() if "Compiler Build ID" in line] != [
        line for line in recorded.splitlines() if "Compiler Build ID" in line
    ]:
        pytest.skip("another version of NVRTC than the one that the PTX was recorded with")
    assert fresh == recorded
