"""Test that kernels and lessons can be imported without numba-cuda, as on a Mac."""

import ast
from pathlib import Path

import numba
import pytest

from course.bootstrap import ROOT

OWN = Path(numba.__file__).with_name("cuda")  # numba.cuda where numba-cuda is not installed
FILES = [file for folder in ("kernels", "notebooks/course") for file in (ROOT / folder).rglob("*.py")]


def imports_of(tree):
    """Yield the (module, name) of each import from numba.cuda that no `try` statement guards."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba.cuda"):
            yield from ((node.module, each.name) for each in node.names)
        elif not isinstance(node, ast.Try):
            yield from imports_of(node)


def offered(module, name):
    """Return whether Numba's own numba.cuda has the name."""
    place = OWN.joinpath(*module.split(".")[2:])
    texts = (
        [place.with_suffix(".py")] if place != OWN else [OWN / "device_init.py", OWN / "simulator_init.py"]
    )
    files = [place / f"{name}.py", place / name / "__init__.py"]
    return any(file.exists() for file in files) or any(
        name in file.read_text(encoding="utf-8") for file in texts if file.exists()
    )


def test_numba_offers_every_part_of_numba_cuda_that_is_imported():
    found = {each for file in FILES for each in imports_of(ast.parse(file.read_text(encoding="utf-8")))}
    assert ("numba.cuda.extending", "intrinsic") in found
    assert [each for each in sorted(found) if not offered(*each)] == []


@pytest.mark.parametrize("name", ["numba.cuda.np.numpy_support from_dtype", "numba.cuda cgutils"])
def test_parts_that_only_numba_cuda_has_are_recognised(name):
    assert not offered(*name.split())
