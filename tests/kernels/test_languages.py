"""The kernels in CUDA C++ and Triton: right and without a finding in the simulator, from fresh and from
recorded PTX; in Triton's interpreter; on a GPU on every shape; and races planted in both, found by line."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from kernels.conv_cases import SHAPES, Shape
from kernels.cuda_cpp import launch as cuda_launch
from kernels.cuda_cpp import operators
from kernels.cuda_cpp import record as cuda_record
from kernels.languages import RESULTS, errors_of, right
from kernels.triton import launch as triton_launch
from kernels.triton import record as triton_record
from kernels.triton.head_map import mix_heads

OTHERS = [pytest.param("Triton", marks=pytest.mark.triton), "CUDA C++"]
# several tiles of 32 × 32 in each pass; and one with fewer keys than taps
SMALL = [Shape(1, 1, 30, 5, 3, 4, True), Shape(1, 1, 4, 3, 6, 11, False)]
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
    assert right(errors), errors


IN_THE_INTERPRETER = """
import json
from kernels.conv_cases import SHAPES
from kernels.languages import errors_of
print(json.dumps([errors_of("Triton", shape) for shape in SHAPES[{first}:50:13]]))
"""


@pytest.mark.triton
@pytest.mark.parametrize("first", [3, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 7, 10))])
def test_triton_in_its_interpreter(first):
    """In a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    command = [sys.executable, "-W", "ignore", "-c", IN_THE_INTERPRETER.format(first=first)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    every = json.loads(done.stdout)
    assert len(every) == 4 and all(map(right, every)), every


@pytest.mark.gpu
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_gpu(name, shape):
    errors = errors_of(name, shape, device="cuda")
    assert right(errors), errors


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
    """As on macOS and Windows, with Triton too where it is installed."""
    assert head_map_error(2, run=partial(triton_run, compiled=triton_launch.recorded)) < 1e-5
    with pytest.raises(LookupError, match="GROUP3.* is not among the PTX recorded .*install Triton"):
        head_map_error(3, run=partial(triton_run, compiled=triton_launch.recorded))


def test_recorded_triton_is_of_the_sources_that_are_here():
    """So that findings name the right lines."""
    texts = {path.name: path.read_text() for path in triton_launch.RECORDED.glob("*.ptx")}
    assert len(texts) == 8
    for name, text in texts.items():
        assert text.split()[2] == triton_record.sources(name.split("-")[0]), f"{name}: record it again"


def test_recorded_cuda_is_what_the_compiler_gives():
    """Apart from the compiler's version, which may be another one here."""
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
    assert right(errors_of("CUDA C++", shape, only=FORWARD, **OPTIONS["CUDA C++"]))
    with pytest.raises(LookupError, match="WIDTH32 is not among the PTX recorded .*install NVRTC"):
        operators.flash_forward(*torch.randn(3, 1, 1, 4, 20), run=cuda_cpp_run)
    cuda_launch.module.cache_clear()
