"""Tests of the arrays that the functions of `cuda.atomic` accept: those for which Numba compiles them."""

import runpy

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, types
from numba.cuda import cudadecl
from numba.np.numpy_support import from_dtype

from sim import ThreadError, simulate
from sim.isa.atomics import ENTRIES, is_compiled

ENGINES = ["fibers", "threads", "native", "auto"]
SCALARS = [*types.integer_domain, *types.real_domain, *types.complex_domain, types.float16, types.boolean]
RECORD = np.dtype([("count", np.int32), ("byte", np.uint8)])
# function of cuda.atomic -> the end of the name of its template in cudadecl
TEMPLATES = {name: name.removesuffix("_") for name in ENTRIES}


def numba_compiles(name, array):
    """Return whether Numba's typing of cuda.atomic accepts an array type."""
    operands = [array.dtype] * len(ENTRIES[name].operands)
    index = types.intp if array.ndim < 2 else types.UniTuple(types.intp, array.ndim)
    template = getattr(cudadecl, f"Cuda_atomic_{TEMPLATES[name]}")(None)
    return template.generic((array, *[index] * ENTRIES[name].indexed, *operands), {}) is not None


@pytest.mark.parametrize("name", ENTRIES)
def test_the_table_agrees_with_the_typing_of_numba(name):
    compiled = set()
    for scalar in SCALARS:
        for dimensions in range(4):
            array = types.Array(scalar, dimensions, "C")
            expected = numba_compiles(name, array)
            dtype = np.dtype(bool if scalar is types.boolean else scalar.name)
            assert is_compiled(ENTRIES[name], dtype, dimensions) == expected, array
            assert is_compiled(ENTRIES[name], scalar, dimensions) == expected, array
            compiled.add(expected)
    assert compiled == {False, True}


ARGUMENTS = {1: "0, 1", 2: "0, 0, 1"}  # number of operands -> index and operands


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Return {function: a kernel that calls the function on the first element of an array}."""
    texts = ["from sim import cuda\n"]
    for name, entry in ENTRIES.items():
        arguments = ARGUMENTS[len(entry.operands)] if entry.indexed else "0, 1"
        texts.append(f"def {name}(x):\n    cuda.atomic.{name}(x, {arguments})\n")
    path = tmp_path_factory.mktemp("atomics") / "kernels_of_atomics.py"
    path.write_text("\n".join(texts))
    return runpy.run_path(str(path))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_kernel_runs_only_if_numba_compiles_it(name, engine, kernels):
    for dtype in ("bool", "int8", "uint8", "int16", "int32", "uint64", "float16", "float32", "complex64"):
        x, launch = np.zeros(4, dtype), simulate(kernels[name], engine=engine)[1, 1]
        if numba_compiles(name, types.Array(from_dtype(x.dtype), 1, "C")):
            assert launch(x).errors == ()
            continue
        with pytest.raises(ThreadError, match=rf"x has {dtype}\b.*, for which Numba does not compile"):
            launch(x)
        assert not x.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_other_arrays_that_numba_rejects(engine, kernels):
    for x in (np.zeros(4, ml_dtypes.bfloat16), np.zeros(4, RECORD)):
        with pytest.raises(ThreadError, match="cuda.atomic.add takes arrays of int32, uint32"):
            simulate(kernels["add"], engine=engine)[1, 1](x)
    for x in (np.zeros((2, 2), np.int32), np.zeros(4, np.float32)):
        with pytest.raises(ThreadError, match="or uint64 and one dimension; x has"):
            simulate(kernels["compare_and_swap"], engine=engine)[1, 1](x)


def add_to_a_field(x):
    cuda.atomic.add(x["count"], 0, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_field_has_the_dtype_of_its_values(engine):
    x = np.zeros(4, RECORD)
    assert simulate(add_to_a_field, engine=engine)[1, 1](x).errors == () and x["count"][0] == 1
