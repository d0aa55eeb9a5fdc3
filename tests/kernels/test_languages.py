"""Tests of the kernels in CUDA C++ and Triton.

They run in the simulator, with fresh and with recorded PTX, in Triton's interpreter, and on a GPU on every
shape. Planted races must be found in both languages, with the correct line.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from kernels.bench.languages import RESULTS, errors_of, inputs, language, results
from kernels.cases.conv import SHAPES, Shape
from kernels.cases.tolerances import relative_errors, within_tolerance
from kernels.common.data import recorded_ptx
from kernels.common.launch import simulated as numba_simulated
from kernels.cuda_cpp import launch as cuda_launch
from kernels.cuda_cpp import operators
from kernels.cuda_cpp import record as cuda_record
from kernels.triton import conv_backward
from kernels.triton import launch as triton_launch
from kernels.triton import record as triton_record
from kernels.triton.halo import neighbour_sums
from kernels.triton.head_map import mix_heads
from sim import KernelBug

OTHERS = [pytest.param("Triton", marks=pytest.mark.triton), "CUDA C++"]
# shapes with several tiles of 32 × 32 in each pass, and one with fewer keys than taps
SMALL = [Shape(1, 1, 9, 5, 3, 4, True), Shape(1, 1, 4, 3, 6, 11, False)]
FORWARD = ("O", "L", "flash O", "flash L", "decode O")


def cuda_cpp_run(*launch):
    report = cuda_launch.simulated(*launch)
    assert not report.findings, report.findings


def triton_run(*launch, **constants):
    report = triton_launch.simulated(*launch, **constants)
    assert not report.findings, report.findings


OPTIONS = {
    "CUDA C++": dict(size=32, run=cuda_cpp_run),
    "Triton": triton_record.CONV | dict(flash=triton_record.FLASH, run=triton_run),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_right_and_without_a_finding_in_the_simulator(name, shape):
    errors = errors_of(name, shape, only=RESULTS if shape.causal else FORWARD, **OPTIONS[name])
    assert within_tolerance(errors), errors


def numba_run(*launch):
    assert not numba_simulated(*launch, engine="fibers").findings


@pytest.mark.parametrize(
    ("shape", "only"),
    [
        (SMALL[1], ("flash O", "flash L", "decode O")),
        *(
            pytest.param(shape._replace(batch=1, heads=2), RESULTS, marks=pytest.mark.nightly)
            for shape in SHAPES[::13]
            if shape.n <= 40
        ),
    ],
    ids=str,
)
def test_cuda_cpp_gives_what_numba_gives(shape, only):
    """Compare the two languages directly. They may differ by a few roundings, which is less than the
    tolerances of the other tests."""
    given = inputs(shape)
    wanted = results(language("Numba"), *given, shape.causal, only, run=numba_run)
    got = results(language("CUDA C++"), *given, shape.causal, only, **OPTIONS["CUDA C++"])
    errors = relative_errors(got, {name: result.double() for name, result in wanted.items()})
    assert all(error <= 2e-6 for error in errors.values()), errors


IN_THE_INTERPRETER = """
import json
from kernels.cases.conv import SHAPES
from kernels.bench.languages import errors_of
print(json.dumps([errors_of("Triton", shape) for shape in SHAPES[{first}:50:13]]))
"""


@pytest.mark.triton
@pytest.mark.parametrize("first", [3, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 7, 10))])
def test_triton_in_its_interpreter(first):
    """Run the kernels in a separate process, because Triton reads TRITON_INTERPRET when it is imported."""
    command = [sys.executable, "-W", "ignore", "-c", IN_THE_INTERPRETER.format(first=first)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "only 0-dimensional arrays" in done.stderr:
        pytest.skip("this Triton's interpreter does not run under this numpy; 3.9 does under 2.4")
    assert done.returncode == 0, done.stderr
    every = json.loads(done.stdout)
    assert len(every) == 4 and all(map(within_tolerance, every)), every


@pytest.mark.gpu
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_gpu(name, shape):
    errors = errors_of(name, shape, device="cuda")
    assert within_tolerance(errors), errors


@pytest.mark.gpu
@pytest.mark.triton
def test_head_map_on_the_gpu():
    for group in (1, 6, 32):
        assert head_map_error(group, "cuda") < 1e-5


def head_map_error(group, device="cpu", **options):
    x, head_map = torch.randn(2, 2 * group, 5, 17), torch.randn(2, group, group)
    wanted = torch.einsum("kgh,bkhrc->bkgrc", head_map.double(), x.double().reshape(2, 2, group, 5, 17))
    got = mix_heads(x.to(device), head_map.to(device), **options)
    return ((got.cpu() - wanted.reshape(x.shape)).abs().max() / wanted.abs().max()).item()


@pytest.mark.triton
@pytest.mark.parametrize("group", [1, 3])
def test_head_map(group):
    assert head_map_error(group, run=triton_run) < 1e-5


# Recorded ---------------------------------------------------------------------------------------------------


def test_without_triton_recorded_ptx_runs():
    """Run recorded PTX, as on macOS and Windows, even if Triton is installed."""
    assert head_map_error(2, run=partial(triton_run, compiled=triton_launch.recorded)) < 1e-5
    with pytest.raises(LookupError, match="GROUP3.* is not among the PTX recorded .*install Triton"):
        head_map_error(3, run=partial(triton_run, compiled=triton_launch.recorded))


def test_recorded_triton_is_of_the_sources_that_are_here():
    """Compare the digests of the recorded PTX with the current sources, so that findings name the correct
    lines."""
    texts = recorded_ptx("triton")
    assert len(texts) == 28
    for name, text in texts.items():
        assert text.split()[2] == triton_record.sources(name.split("-")[0]), f"{name}: record it again"


def test_recorded_cuda_is_what_the_compiler_gives():
    """Compile the CUDA C++ sources and compare the PTX with the recording, if the compiler has the same
    version."""
    if not cuda_launch.have_compiler():
        pytest.skip("NVRTC is not installed")
    kernels = []
    cuda_record.calls(lambda kernel, *launch: kernels.append(kernel))
    for kernel in dict.fromkeys(kernels):
        fresh, recorded = cuda_launch.ptx_of(kernel), cuda_launch.recorded(kernel)
        if [line for line in fresh.splitlines() if "Compiler Build ID" in line] != [
            line for line in recorded.splitlines() if "Compiler Build ID" in line
        ]:
            pytest.skip("another version of NVRTC than the one that the PTX was recorded with")
        assert fresh == recorded, f"{kernel.file}: python -m kernels.cuda_cpp.record"


def test_without_nvrtc_recorded_ptx_runs(monkeypatch):
    monkeypatch.setattr(cuda_launch, "have_compiler", lambda: False)
    cuda_launch.module.cache_clear()
    shape = Shape(1, 1, 20, 5, 3, 4, True)
    assert within_tolerance(errors_of("CUDA C++", shape, only=FORWARD, **OPTIONS["CUDA C++"]))
    with pytest.raises(LookupError, match="WIDTH32 is not among the PTX recorded .*install NVRTC"):
        operators.flash_forward(*torch.randn(3, 1, 1, 4, 20), run=cuda_cpp_run)
    cuda_launch.module.cache_clear()


# Planted races ----------------------------------------------------------------------------------------------

VALUE = r"value \S+"
README = Path(triton_launch.__file__).with_name("README.md"), cuda_launch.FOLDER / "README.md"
MISSING_BARRIERS = {
    "flash_forward.cu": "        __syncthreads();  // all threads have read the tiles\n",
    "conv_forward.cu": "        __syncthreads();  // all strips are convolved: P may overwrite S0\n",
}
ADDED, STORED = (
    "    tl.atomic_add(d_w + place, d_w_tile, mask=(a < c_q) & (b < c_k))",
    "    inside = (a < c_q) & (b < c_k)\n"
    "    tl.store(d_w + place, tl.load(d_w + place, mask=inside) + d_w_tile, mask=inside)",
)


def planted(path, old, new):
    """Replace the only occurrence of `old` in a file."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def first_finding(call, of=""):
    """Return the complete message of the first finding that mentions `of`."""
    torch.manual_seed(0)
    with pytest.raises(KernelBug) as raised:
        call()
    return next(part.rstrip() for part in str(raised.value).split("\n\n") if of in part)


def shown(message):
    """Return whether one of the READMEs contains a text, ignoring digits."""
    wanted = re.sub(VALUE, "", f"KernelBug: {message}\n```")
    return any(wanted in re.sub(VALUE, "", path.read_text()) for path in README)


def test_missing_barriers_in_cuda_are_found(tmp_path, monkeypatch):
    if not cuda_launch.have_compiler():
        pytest.skip("NVRTC is not installed")
    for path in cuda_launch.FOLDER.glob("*.cu*"):
        shutil.copy(path, tmp_path)
    for file, line in MISSING_BARRIERS.items():
        planted(tmp_path / file, line, "        // no barrier\n")
    monkeypatch.setattr(cuda_launch, "FOLDER", tmp_path)
    cuda_launch.module.cache_clear()
    flash = first_finding(lambda: operators.flash_forward(*torch.randn(3, 1, 1, 40, 5)))
    conv = first_finding(
        lambda: operators.conv_forward(*torch.randn(3, 1, 1, 40, 5), torch.randn(1, 3, 4), size=32)
    )
    cuda_launch.module.cache_clear()
    assert "k_tile[0]" in flash and "flash_forward.cu line 28" in flash and "line 33" in flash
    assert "conv_forward.cu line 66" in conv and "line 43" in conv
    assert shown(flash) and shown(conv), flash + "\n\n" + conv


@pytest.mark.parametrize("compiled", [triton_launch.recorded, pytest.param(None, marks=pytest.mark.triton)])
def test_a_halo_without_a_barrier_is_found(compiled):
    x, run = torch.randn(64), partial(triton_launch.simulated, compiled=compiled)
    message = first_finding(lambda: neighbour_sums(torch.randn(64), barrier=False, run=run))
    assert "halo.py line 19" in message and "halo.py line 22" in message and "tl.debug_barrier()" in message
    assert shown(message), message
    square = torch.nn.functional.pad(x * x, (1, 1))
    torch.testing.assert_close(neighbour_sums(x, run=run), square[:-2] + square[1:-1] + square[2:])


@pytest.mark.triton
def test_a_sum_without_an_atomic_is_found(tmp_path):
    path = tmp_path / "conv_backward.py"
    path.write_text(Path(conv_backward.__file__).read_text())
    planted(path, ADDED, STORED)
    spec = importlib.util.spec_from_file_location("planted_conv_backward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call():
        q, k, v, o, d_o = torch.randn(5, 1, 1, 40, 5)
        w, log_sum = torch.randn(1, 3, 4), torch.full((1, 1, 40), 10.0)
        module.conv_backward(q, k, v, w, o, log_sum, d_o, **triton_record.CONV)

    line = path.read_text().splitlines().index(STORED.splitlines()[1]) + 1
    message = first_finding(call, of="d_w[0, 0, 0, 0]")
    assert f"conv_backward.py line {line}" in message
    assert "tl.atomic_add" in message
