"""Tests with random kernels (kernel_texts): fibers and the native engine agree bit for bit, and the types are
Numba's.

To test more of them: FUZZ=0:300 python -m pytest tests/sim/test_fuzz.py
"""

import importlib.util
import os
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types
from numba.core.errors import NumbaError
from numba.cuda import dispatcher

from kernel_texts import Text
from numba_types import compare, numba_types
from sim import simulate

ASKED = os.environ.get("FUZZ")
SEEDS = range(*map(int, (ASKED or "0:6").split(":")))
TYPES = dict(
    f32="float32",
    f64="float64",
    i8="int8",
    i16="int16",
    i32="int32",
    i64="int64",
    u8="uint8",
    u32="uint32",
    u64="uint64",
)
SIGNATURE = {name: getattr(types, dtype)[::1] for name, dtype in TYPES.items()} | {
    "as_float": types.float64[:, ::1],
    "as_whole": types.int64[:, ::1],
    "n": types.int64,
}
AWKWARD = [0, 1, 2, 5, 100]


def kernel_of(seed, folder):
    path = folder / f"fuzz_{seed}.py"
    path.write_text(Text(seed).kernel())
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.kernel


def arguments(seed):
    """Return arrays of 32 numbers that include the limits of each type, and output arrays."""
    draw, arrays = np.random.default_rng(seed), []
    for dtype in map(np.dtype, TYPES.values()):
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype.kind in "iu" else [-1e30, 1e30]
        common = draw.integers(0 if dtype.kind == "u" else -9, 9, 32).astype(dtype)
        arrays.append(
            np.where(
                draw.random(32) < 0.2, np.array([*ends, *AWKWARD], dtype)[draw.integers(0, 7, 32)], common
            ).astype(dtype)
        )
    return *arrays, np.zeros((32, 7)), np.zeros((32, 7), np.int64), 3


def launched(kernel, seed, engine):
    given = arguments(seed)
    simulate(kernel, engine=engine)[1, 32](*given)
    return given[-3:-1]


@pytest.fixture(
    params=[
        pytest.param(seed, marks=[] if ASKED or place < 2 else [pytest.mark.nightly])
        for place, seed in enumerate(SEEDS)
    ]
)
def drawn(request, tmp_path, monkeypatch):
    """Return (kernel, seed) for a kernel that Numba accepts.

    Numba rejects one in six, for example because of & on a float.
    """
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))
    kernel = kernel_of(request.param, tmp_path)
    try:
        numba_types(kernel, SIGNATURE.values())
    except NumbaError as error:
        pytest.skip(f"Numba refuses it: {str(error)[:200]}")
    return kernel, request.param


@pytest.mark.filterwarnings("ignore")
def test_both_engines_agree(drawn):
    for fibers, native in zip(launched(*drawn, "fibers"), launched(*drawn, "native")):
        same = (fibers.view(np.int64) == native.view(np.int64)) | (fibers != fibers) & (native != native)
        assert same.all(), (np.argwhere(~same)[0], fibers[~same][:4], native[~same][:4])


@pytest.mark.filterwarnings("ignore")
def test_types_are_numbas(drawn):
    compare(drawn[0], SIGNATURE)
