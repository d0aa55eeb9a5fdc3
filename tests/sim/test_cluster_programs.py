"""Tests of whole CUDA programs whose launches have clusters of blocks as an attribute."""

import subprocess
import sys
from pathlib import Path

import pytest

from sim import LaunchError
from sim.runtime.build import find_nvcc

PROGRAM = Path(__file__).parent / "programs" / "clusters.cu"


def have_nvcc():
    try:
        return bool(find_nvcc())
    except LaunchError:
        return False


def run(*options):
    """Return the output of `python -m sim run` for the program."""
    options = [f"--option={option}" for option in ("-arch=sm_90", *options)]
    command = [sys.executable, "-m", "sim", "run", *options, str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(not have_nvcc(), reason="nvcc or gcc is not installed")
def test_a_launch_attribute_makes_clusters():
    text = run("-DFIXED")
    assert "0 32640 98176" in text and "no findings" in text
    text = run()
    assert "use-after-free: sum[0] in shared memory of block 0 is read by another block" in text
    assert "1 finding" in text


@pytest.mark.nightly
@pytest.mark.skipif(not have_nvcc(), reason="nvcc or gcc is not installed")
def test_a_captured_launch_keeps_its_clusters():
    text = run("-DFIXED", "-DCAPTURED")
    assert "0 32640 98176" in text and "no findings" in text
    assert "use-after-free: sum[0] in shared memory of block 0 is read by another block" in run("-DCAPTURED")
