"""Helpers for the number tests: Numba CUDA's typing without a GPU, and a comparison in which -0 differs from
0 and NaN equals NaN."""

from functools import cache, lru_cache
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from numba import types
from numba.cuda.descriptor import cuda_target
from numba.cuda.types.ext_types import bfloat16

# One sample per kind, as the simulator represents it.
# A Python int is an int64, whereas a numpy int32 has kept its width.
SAMPLES = {
    types.boolean: True, types.int8: np.int8(3), types.int16: np.int16(3), types.int32: np.int32(3),
    types.int64: 3,
    types.uint8: np.uint8(3), types.uint16: np.uint16(3), types.uint32: np.uint32(3),
    types.uint64: np.uint64(3),
    types.float16: np.float16(1.5), bfloat16: ml_dtypes.bfloat16(1.5), types.float32: np.float32(1.5),
    types.float64: np.float64(1.5),
    types.complex64: np.complex64(1.5 + 1j), types.complex128: np.complex128(1.5 + 1j),
}  # fmt: skip
REAL = [kind for kind in SAMPLES if not isinstance(kind, types.Complex)]
NAMES = {"bool": "bool", "bool_": "bool", "int": "int64", "bfloat16": "__nv_bfloat16", "float": "float64"}


@lru_cache
def context():
    cuda_target.typing_context.refresh()
    return cuda_target.typing_context


@cache
def resolved(function, operands):
    try:
        return context().resolve_function_type(function, operands, {}).return_type
    except Exception:  # The typing context raises a different exception for each cause.
        return None


class NumbaCuda:
    """Numba CUDA's type inference for operands given by the names of their types."""

    samples = SAMPLES
    real = REAL
    names = {str(kind): kind for kind in SAMPLES}

    def result(self, function, *operands):
        """Return the name of the type that the compiler infers for function(*operands), or None if there is
        none.

        For a tuple, return one name per item.
        """
        kind = resolved(function, tuple(self.names.get(operand, operand) for operand in operands))
        return tuple(map(str, kind)) if isinstance(kind, types.BaseTuple) else kind and str(kind)

    def grid(self, count, kinds):
        """Return each combination of `count` kinds, with its samples."""
        for pair in product(kinds, repeat=count):
            yield pair, tuple(SAMPLES[kind] for kind in pair)

    def differences(self, ours, theirs, count, kinds=SAMPLES, width=True):
        """Return the combinations of kinds that `ours` types differently, {names: (ours, the compiler's)}.

        Without `width`, an int64 is accepted where the compiler infers a narrower signed type.
        """
        known = (lambda name: name) if width else widened
        pairs = {
            pair: (outcome(ours, *values), known(self.result(theirs, *pair)))
            for pair, values in self.grid(count, kinds)
        }
        return {tuple(map(str, pair)): both for pair, both in pairs.items() if both[0] != both[1]}


def widened(name):
    if isinstance(name, tuple):
        return tuple(map(widened, name))
    return "int64" if name in ("int8", "int16", "int32") else name


def outcome(function, *operands):
    """Return the name of the result's type, or None for a TypeError."""
    try:
        return name_of(function(*operands))
    except TypeError:
        return None


def name_of(value):
    """Return the name of the Numba type that a simulated value represents. For a tuple, return one name per
    item."""
    if isinstance(value, tuple):
        return tuple(map(name_of, value))
    name = type(value).__name__
    return NAMES.get(name, name)


def same(got, wanted):
    """Return whether two values are equal. -0 differs from 0, and NaN equals NaN."""
    got, wanted = complex(got), complex(wanted)
    parts = zip((got.real, got.imag), (wanted.real, wanted.imag))
    return all((a != a and b != b) or (a == b and np.signbit(a) == np.signbit(b)) for a, b in parts)


@pytest.fixture(scope="session")
def numba_cuda():
    return NumbaCuda()


@pytest.fixture(name="name_of", scope="session")
def name_of_fixture():
    return name_of


@pytest.fixture(name="same", scope="session")
def same_fixture():
    return same


@pytest.fixture(autouse=True)
def quiet():
    """Suppress numpy's warnings about overflow and division by zero, as a launch does."""
    with np.errstate(all="ignore"):
        yield
