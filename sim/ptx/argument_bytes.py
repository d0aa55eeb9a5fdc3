"""Arguments of a launch as bytes, in the formats of a PTX kernel's parameters."""

import numpy as np

from sim.errors import LaunchError
from sim.nouns import plural

POINTERS = "u64", "b64", "s64"  # PTX types of parameters that can be pointers


def pointer_bytes(place):
    """Return the bytes of a pointer argument, in little-endian order.

    place: (Allocation, byte offset).
    """
    allocation, offset = place
    return (allocation.base + offset).to_bytes(8, "little")


def takes_pointer(parameter, array):
    """Return whether a parameter takes the address of an array.

    A pointer is a 64-bit integer. CuTe DSL declares it as a structure of 8 bytes, `.b8 p[8]`. If the argument
    is an array of 8 bytes, it is the structure itself.
    """
    if parameter.type == "b8" and parameter.count == 8:
        return array.nbytes != 8
    return parameter.type in POINTERS


def check_elements(name, arrays, nbytes):
    """Raise LaunchError if an array's elements are wider than the type to which the pointer in the source
    points.

    numpy defaults to float64, which CUDA kernels rarely use.

    name: the name of the argument.
    nbytes: the number of bytes per element in the source.
    """
    dtype = arrays[name].dtype if name in arrays else np.dtype(np.uint8)
    if dtype.kind in "iuf" and dtype.itemsize > nbytes > 1:
        raise LaunchError(
            f"in the kernel's source, {name} points to elements of {plural(nbytes, 'byte')}, got an array of"
            f" {dtype}; pass {name}.astype(numpy.{dtype.name.rstrip('0123456789')}{8 * nbytes})"
        )


def argument_bytes(name, value, parameter):
    """Return the bytes of an argument in the format of its parameter. Raise LaunchError if it does not
    fit."""
    ptx_type, nbytes = parameter.type, parameter.bytes
    # CuTe DSL declares empty structures as `.b8 p[1]`.
    empty = ptx_type == "b8" and isinstance(value, np.ndarray) and value.ndim > 0
    if parameter.count != 1 or empty or isinstance(value, bytes):
        return structure_bytes(name, value, nbytes)
    if value is None and ptx_type in POINTERS:
        return bytes(nbytes)  # a null pointer
    if not isinstance(value, (int, float, np.generic, np.ndarray)) or np.ndim(value):
        raise LaunchError(
            f"{name} is a .{ptx_type} of {plural(nbytes, 'byte')}: wanted a number, got a"
            f" {type(value).__name__}"
        )
    if ptx_type in ("f32", "f64", "f16"):
        return np.array(value, f"f{nbytes}").tobytes()
    if isinstance(value, (float, np.floating)):
        # A numpy float of the parameter's size is passed as its bit pattern, because .b32 and .u32 parameters
        # can contain floats.
        if nbytes == np.asarray(value).dtype.itemsize and isinstance(value, np.generic):
            return value.tobytes()
        raise LaunchError(
            f"{name} is a .{ptx_type}: wanted an integer, got {value!r}; pass a float as numpy.float32(x)"
        )
    number = int(value)
    if not -(1 << 8 * nbytes - 1) <= number < 1 << 8 * nbytes:
        raise LaunchError(f"{name} is a .{ptx_type} of {plural(nbytes, 'byte')}, which cannot hold {number}")
    # Negative numbers are passed in two's complement.
    return (number & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")


def structure_bytes(name, value, nbytes):
    """Return the bytes of a structure argument, which is given as bytes or as a numpy object.

    Raise LaunchError if the size is wrong.
    """
    raw = value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(raw, bytes) and len(raw) == nbytes:
        return raw
    got = plural(len(raw), "byte") if isinstance(raw, bytes) else f"a {type(value).__name__}"
    wanted = "wanted a bytes object or a numpy record of this size"
    raise LaunchError(f"{name} is a structure of {plural(nbytes, 'byte')}: {wanted}, got {got}")
