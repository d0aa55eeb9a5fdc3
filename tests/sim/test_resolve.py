"""Tests of how the front end resolves names and calls, before either engine uses the result."""

import ast
import inspect
import math
from builtins import min as lowest

import numpy as np
import pytest
from numba import cuda, float32

from sim.frontend import resolve
from sim.frontend.resolve import referent_of, source_of
from sim.frontend.ssa import Versions
from sim.frontend.tree import all_nodes
from sim.native.lower.name_lowering import Names

TILE, SIDES = 4, (2, 3)


@cuda.jit(device=True)
def halved(x):
    return x / 2


def kernel(x, out):
    tile = cuda.shared.array(shape=(TILE, SIDES[1]), dtype=float32)
    i, lane = cuda.grid(1), cuda.laneid
    tile[cuda.threadIdx.x, 0] = float32(lane)
    cuda.syncthreads()
    cuda.atomic.add(out, 0, halved(x[i]))
    out[1] = lowest(math.exp(x[0]), x.sum()) + np.sqrt(len(x)) + cuda.not_in_this_numba(x, math)


@pytest.fixture(scope="module")
def tree():
    return source_of(kernel).tree


def test_names(tree):
    found = {ast.unparse(node): node.referent.role for node in ast.walk(tree) if hasattr(node, "referent")}
    assert found == {
        **dict.fromkeys(("tile", "i", "lane", "x", "out"), resolve.VARIABLE),
        **dict.fromkeys(("TILE", "SIDES"), resolve.CONSTANT),
        **dict.fromkeys(("cuda", "math", "np", "np.sqrt"), resolve.OBJECT),
        **dict.fromkeys(("cuda.threadIdx", "cuda.laneid"), resolve.GEOMETRY),
        **dict.fromkeys(("lowest", "len"), resolve.BUILTIN),
        "cuda.threadIdx.x": resolve.AXIS,
        "float32": resolve.DTYPE,
        "halved": resolve.DEVICE,
        "math.exp": resolve.FUNCTION,
        "x.sum": resolve.MEMBER,
        **dict.fromkeys(
            (
                "cuda.shared",
                "cuda.shared.array",
                "cuda.grid",
                "cuda.syncthreads",
                "cuda.atomic",
                "cuda.atomic.add",
                "cuda.not_in_this_numba",
            ),
            resolve.CUDA,
        ),
    }


def test_calls(tree):
    found = {ast.unparse(node.func): node.calls for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert found == {
        "cuda.shared.array": resolve.DECLARATION,
        "cuda.grid": resolve.POSITION,
        "float32": resolve.DTYPE,
        "cuda.syncthreads": resolve.WAIT,
        "cuda.atomic.add": resolve.ATOMIC,
        "halved": resolve.DEVICE,
        "lowest": resolve.BUILTIN,
        "math.exp": resolve.FUNCTION,
        "x.sum": resolve.MEMBER,
        "np.sqrt": resolve.OBJECT,
        "len": resolve.BUILTIN,
        "cuda.not_in_this_numba": resolve.CUDA,
    }


def test_a_declaration_and_its_shape():
    """Declare arrays whose shapes are a global, an item of a tuple, and a variable with a single value."""

    def declares():
        n = 8 * 8
        return cuda.local.array((TILE, SIDES[1], n), float32)

    source = source_of(declares)
    (call,) = source.calls(resolve.DECLARATION)
    versions = Versions((), source.tree.body, lambda node: referent_of(node).value)
    assert call.declares.space == "local" and versions.shape(call.declares.shape) == (4, 3, 64)


def test_compiled_text_has_something_for_each_kind_of_name():
    kinds = {value for name, value in vars(resolve).items() if name.isupper() and isinstance(value, str)}
    calls = {*resolve.CALLS.values(), resolve.ATOMIC, resolve.WAIT}
    assert {kind for kind in kinds - calls - {resolve.VARIABLE} if not hasattr(Names, f"of_{kind}")} == set()


def test_all_nodes_are_those_of_python_in_the_same_order():
    tree = ast.parse(inspect.getsource(resolve) + "match x:\n    case [1, *_]:\n        del y[a:b, ...]\n")
    assert all_nodes(tree) == [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
