"""Tests of the simulator as the distribution kernelwatch, built and used without Numba and torch."""

import copy
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import nbclient
import nbformat
import pytest

import sim

HOME = Path(sim.__file__).parent
REQUIRED = ("numpy", "greenlet", "ml_dtypes")
SETTINGS = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return a copy of the sources, as in a fresh clone."""
    folder = tmp_path_factory.mktemp("sources") / "sim"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    return shutil.copytree(HOME, folder, ignore=ignored)


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    """Return the wheel that pip builds in a clone."""
    folder = tmp_path_factory.mktemp("wheel")
    steps = "get_requires_for_build_wheel()", "prepare_metadata_for_build_wheel(to)", "build_wheel(to)"
    code = "".join(f"; made = build_meta.{step}" for step in steps)
    command = [
        sys.executable,
        "-c",
        f"import sys; from setuptools import build_meta; to = sys.argv[1]{code}; print(made)",
    ]
    built = subprocess.run([*command, str(folder)], cwd=sources, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / built.stdout.splitlines()[-1]


def test_building_leaves_nothing_in_the_sources(wheel, sources):
    def files(home):
        return {
            path.relative_to(home) for path in home.rglob("*") if not {"__pycache__", "build"} & {*path.parts}
        }

    assert wheel.exists() and not (sources / "build").exists()
    assert files(sources) == {path for path in files(HOME) if not path.parts[0].endswith(".egg-info")}


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return a Python interpreter that has only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=sys.platform != "win32")
    packages = next(folder.glob("[Ll]ib/**/site-packages"))
    zipfile.ZipFile(wheel).extractall(packages)
    for name in REQUIRED:
        home = Path(__import__(name).__file__).parent
        for part in (home, home.with_name(f"{name}.libs")):
            if part.exists():
                shutil.copytree(
                    part, packages / part.name, ignore=shutil.ignore_patterns("tests", "*.pyi", "__pycache__")
                )
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def run(python, code):
    """Run a program in the clean Python, where every warning is an error. Return (exit status, output,
    errors)."""
    program = python.with_name("program.py")
    program.write_text(code, encoding="utf-8")
    done = subprocess.run([python, "-I", "-W", "error", program], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_wheel_holds_the_simulator_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    pages = {f"kernelwatch/pages/{path.name}" for path in (HOME / "pages").glob("*.md")}
    sources = {
        Path("kernelwatch", path.relative_to(HOME)).as_posix()
        for path in HOME.rglob("*.py")
        if "build" not in path.parts and path.name != "setup.py"
    }
    assert {name for name in names if ".dist-info/" not in name} == {*sources, *pages, "kernelwatch/py.typed"}
    metadata = (
        zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("/METADATA"))).decode()
    )
    assert (
        f"\nVersion: {sim.__version__}\n" in metadata
        and "License-Expression: MIT" in metadata
        and "Typing :: Typed" in metadata
    )
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.M)
    assert sorted(name.replace("-", "_") for name in required) == sorted(REQUIRED)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "# kernelwatch: `pip install kernelwatch`, `import kernelwatch`\n" in metadata
    assert (HOME / "LICENSE").read_text() == (HOME.parent / "LICENSE").read_text()


def test_no_file_of_the_wheel_uses_the_name_of_the_repository(wheel):
    archive = zipfile.ZipFile(wheel)
    named = {
        (name, line.strip())
        for name in archive.namelist()
        for line in archive.read(name).decode().splitlines()
        if re.search(r"(?<![-\w/])sim(?![-\w])", line) and name.startswith("kernelwatch/")
    }
    assert not named
    assert b"pytest --cuda-sim" in archive.read("kernelwatch/pytest_plugin.py")


EXAMPLES = Path(__file__).with_name("package_examples.py")


def test_the_packages_examples_run_as_printed_without_numba(python):
    done = subprocess.run([python, "-I", EXAMPLES], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("as printed") == 2, done.stdout + done.stderr


@pytest.fixture(scope="module")
def beside(wheel, tmp_path_factory):
    """Return the environment variables with which this Python finds the wheel's package."""
    folder = tmp_path_factory.mktemp("beside")
    zipfile.ZipFile(wheel).extractall(folder)
    return os.environ | {"PYTHONPATH": str(folder), "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}


def test_the_packages_examples_run_as_printed_with_extras(beside):
    pytest.importorskip("cuda.bindings.nvrtc")
    command = [sys.executable, EXAMPLES, "numba", "cuda"]
    done = subprocess.run(command, env=beside, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("as printed") == 4, done.stdout + done.stderr


def test_an_editable_installation_is_refused_with_the_way_to_get_one(sources, tmp_path):
    code = "from setuptools import build_meta; build_meta.build_editable(" + repr(str(tmp_path)) + ")"
    done = subprocess.run([sys.executable, "-c", code], cwd=sources, capture_output=True, text=True)
    assert done.returncode and "In a clone, install the whole project: pip install -e ." in done.stderr


def test_kernels_of_its_own_cuda(python):
    code = """
import sys, numpy as np
from kernelwatch import LaunchError, cuda, int32, simulate
@cuda.jit(device=True)
def both(x):
    return cuda.popc(x) + cuda.laneid
@cuda.jit
def kernel(x, out, count):
    i = cuda.grid(1)
    out[i] = both(x[i]) + cuda.shfl_sync(0xffffffff, i, 3)
    cuda.atomic.add(count, 0, int32(1))
out, count = np.zeros(32, np.int64), np.zeros(1, np.int32)
kernel[1, 32](np.full(32, -1, np.int32), out, count)
print(out[:3].tolist(), count, simulate(kernel).launch.seed, cuda.threadIdx)
for wrong in (lambda: cuda.grid(1), lambda: kernel(1), lambda: cuda.jit("void()"), lambda: simulate(kernel, engine="native")[1, 1](out, out, out)):
    try:
        wrong()
    except LaunchError as error:
        print(str(error).splitlines()[0])
print(*(name for name in ("numba", "torch", "pytest") if name in sys.modules))
"""
    status, printed, said = run(python, code)
    assert status == 0, said
    assert printed.splitlines() == [
        "[35, 36, 37] [32] 0 <cuda.threadIdx>",
        "cuda.grid works only inside a kernel; launch one: simulate(kernel)[grid, block](*arguments)",
        "kernel is called without a launch configuration: kernel[grid, block](*arguments)",
        "cuda.jit wants a function, got 'void()'; signatures need Numba: pip install numba-cuda",
        'engine="native" compiles kernels with Numba, which is not installed',
        "",
    ]


def test_the_list_of_packages_is_complete():
    packages = {
        ".".join(("kernelwatch", *path.parent.relative_to(HOME).parts))
        for path in HOME.rglob("__init__.py")
        if "build" not in path.parts
    }
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == packages


def test_importing_loads_nothing_until_asked(python):
    status, printed, _ = run(
        python,
        "import sys, kernelwatch as k; print('numpy' in sys.modules, sorted(set(k.__all__) - set(dir(k))),"
        " k.__version__)",
    )
    assert (status, printed) == (0, f"False [] {sim.__version__}\n")


NOTEBOOK = HOME.parent / "docs" / "try_the_simulator.ipynb"


def outputs(notebook):
    """Return the plain text of each output of each cell."""
    return [
        [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code" and "install" not in cell.metadata.get("tags", [])
    ]


def test_the_notebook_needs_only_the_wheel_and_shows_what_it_prints(beside):
    """Execute the notebook with the wheel's package. To store new outputs, set COURSE_STORE=1."""
    stored = nbformat.read(NOTEBOOK, as_version=4)
    executed = copy.deepcopy(stored)
    executed.cells = [cell for cell in executed.cells if "install" not in cell.metadata.get("tags", [])]
    as_installed = f"import sys; sys.path.insert(0, {beside['PYTHONPATH']!r})"
    without = "sys.modules['numba'] = sys.modules['torch'] = None  # as if they were missing"
    executed.cells.insert(0, nbformat.v4.new_code_cell(f"{as_installed}\n{without}"))
    nbclient.NotebookClient(executed, timeout=120, kernel_name="python3").execute()
    del executed.cells[0]
    if beside.get("COURSE_STORE"):
        by_id = {cell.id: cell for cell in executed.cells}
        stored.cells = [by_id.get(cell.id, cell) for cell in stored.cells]
        for cell in stored.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(stored, NOTEBOOK)
    assert outputs(executed) == outputs(stored)
