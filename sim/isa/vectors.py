"""CUDA's vector types, such as float32x4 (alias float4). A vector has one to four components of one type,
which are called x, y, z and w.

A kernel constructs a vector from its components, or from a sequence of shorter vectors and numbers:
`cuda.float4(cuda.float2(1, 2), 3, 4)`.

Source: CUDA C++ Programming Guide, "Built-in Vector Types". The names are Numba's.
"""

import numpy as np

from sim.isa.conversions import cast

SCALARS = {
    "char": np.int8,
    "short": np.int16,
    "int": np.intc,
    "long": np.int_,
    "longlong": np.longlong,
    "float": np.float32,
    "double": np.float64,
    "uchar": np.uint8,
    "ushort": np.uint16,
    "uint": np.uintc,
    "ulong": np.uint,
    "ulonglong": np.ulonglong,
}
# Numba writes an x between a dtype and the number of components: float32x4 for CUDA's float4.
SEPARATED = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


class Vector:
    """A vector. Each vector type is a subclass with three class attributes: the `names` of the components,
    their `dtype`, and the function `convert`, which converts a number to that dtype."""

    __slots__ = ("x", "y", "z", "w")

    def __init__(self, *parts):
        numbers = [number for part in parts for number in (part if isinstance(part, Vector) else (part,))]
        if len(numbers) != len(self.names):
            raise TypeError(f"{type(self).__name__} takes {len(self.names)} numbers, got {len(numbers)}")
        for name, number in zip(self.names, numbers):
            setattr(self, name, self.convert(number))

    def __iter__(self):
        """Iterate over the components in the order x, y, z, w."""
        return (getattr(self, name) for name in self.names)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(map(str, self))})"


def vector_types():
    """Return {name: type} for every vector type under each of its names."""
    named = {f"{name}x": name for name in SEPARATED} | SCALARS
    types = {}
    for name, dtype in zip(named, map(np.dtype, named.values())):
        for count in (1, 2, 3, 4):
            members = {"__slots__": (), "names": "xyzw"[:count], "dtype": dtype}
            # The aliases of one type, such as float4 and float32x4, must be the same class.
            made = types.get(f"{dtype.name}x{count}") or type(f"{name}{count}", (Vector,), members)
            made.convert = staticmethod(cast(dtype))
            types[f"{name}{count}"] = made
    return types


VECTORS = vector_types()
