"""Classification of the arguments of a launch: arrays, records, tuples and numbers."""

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from sim.errors import LaunchError

# The types of arguments that count as a single number.
NUMBER_TYPES = int, float, complex, np.bool_, np.number, Enum, type(None)


@dataclass(frozen=True, eq=False, slots=True)
class Argument:
    """An argument of a launch, or an item of an argument that is a tuple.

    name: the name of the parameter. The items of a tuple are called name[0], name[1], ...
    value: the argument passed by the caller.
    array: a numpy array over the memory of the array, CPU tensor or record. For a record, the numpy array has
        no dimensions. For numbers and tuples, it is None.
    parts: for a tuple, the Arguments of its items, otherwise None.
    """

    name: str
    value: Any
    array: np.ndarray | None = None
    parts: tuple["Argument", ...] | None = None

    @property
    def is_record(self) -> bool:
        return isinstance(self.value, np.void)

    def leaves(self):
        """Yield the argument itself, or the items of a tuple at any depth of nesting."""
        if self.parts is None:
            yield self
        else:
            for part in self.parts:
                yield from part.leaves()


def classify(name: str, value: Any) -> Argument:
    """Return the Argument for a value. Raise LaunchError for an array with a dtype not supported by GPUs."""
    if isinstance(value, tuple):
        return Argument(name, value, None, tuple(classify(f"{name}[{i}]", x) for i, x in enumerate(value)))
    if isinstance(value, np.void):
        return Argument(name, value, np.asarray(value))  # the array shares the record's memory
    return Argument(name, value, host_array(value, name))


def check_argument(argument: Argument) -> None:
    """Raise LaunchError if a Python kernel does not support the argument."""
    for leaf in argument.leaves():
        name, value = leaf.name, leaf.value
        if leaf.is_record or isinstance(value, (np.longdouble, np.clongdouble)):
            check_dtype(value.dtype, name)
        number = isinstance(value, NUMBER_TYPES) or type(value).__module__ == "ml_dtypes"
        if leaf.array is None and not number:
            raise LaunchError(
                f"argument {name} is a {type(value).__name__}; a kernel takes numpy arrays, CPU tensors,"
                " numbers, records and tuples of them"
            )
        if type(value) is int and not -(2**63) <= value < 2**64:
            raise LaunchError(f"argument {name} is {value}; a kernel takes integers of 64 bits at most")


def arrays_of(arguments: tuple[Argument, ...]) -> dict[str, np.ndarray]:
    """Return {name: array} for all arrays and records among the arguments, including items of tuples."""
    leaves = (leaf for argument in arguments for leaf in argument.leaves())
    return {leaf.name: leaf.array for leaf in leaves if leaf.array is not None}


def of_parts(value, parts):
    """Return a tuple of the same type as `value` (possibly a named tuple), with `parts` as its items."""
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def host_array(value, name):
    """Return a numpy array for a numpy array or CPU tensor, or None for any other argument."""
    if isinstance(value, np.ndarray):
        array = value
    elif type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr"):
        array = tensor_array(value, name)
    else:
        return None
    check_dtype(array.dtype, name)
    return array


def check_dtype(dtype, name):
    """Raise LaunchError for an unsupported dtype.

    Arrays of strings are refused, although Numba can compile kernels for them.
    """
    base = dtype.base
    if base.names:
        for field in base.names:
            check_dtype(base[field], f"{name}, field {field}")
        return
    too_wide = base.itemsize > {"f": 8, "c": 16}.get(base.kind, np.inf)
    if base.kind in "OSU" or base.type is np.void or not base.isnative or too_wide:
        text = base.kind in "SU"
        wanted = "text as numbers, with .view(np.uint8 or np.uint32)" if text else "convert with .astype()"
        raise LaunchError(
            f"argument {name}: a GPU does not support dtype {base}\n"
            f"  wanted a native boolean, integer, floating-point or complex dtype; {wanted}"
        )


def tensor_array(tensor, name):
    """Return a numpy array that shares its memory with a CPU tensor. The bits of a bfloat16 tensor are
    reinterpreted."""
    if tensor.device.type != "cpu":
        raise LaunchError(
            f"argument {name} is a tensor on {tensor.device}; the simulator works on host memory\n"
            f"  simulate with {name}.cpu(), or launch the kernel itself for the GPU"
        )
    tensor = tensor.detach()
    if str(tensor.dtype) != "torch.bfloat16":
        # tensor.numpy() would prevent torch from resizing the storage later, as FSDP does with parameters.
        return np.from_dlpack(tensor)
    return np.from_dlpack(tensor.view(sys.modules["torch"].int16)).view(ml_dtypes.bfloat16)
