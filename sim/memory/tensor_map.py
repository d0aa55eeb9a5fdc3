"""tensor_map: the host function that describes an array for tensor copies (TMA), and tensor maps inside a
launch."""

from typing import Any, NamedTuple

import numpy as np

from sim.isa.invalid import InvalidOperand
from sim.isa.tensor_map import NBYTES, TensorMap, check

# numpy type -> type in a tensor map
NAMES = {"uint8": "u8", "int8": "u8", "uint16": "u16", "int16": "u16", "uint32": "u32", "int32": "s32"}
NAMES |= {"uint64": "u64", "int64": "s64", "float16": "f16", "float32": "f32", "float64": "f64"}
NAMES |= {"bfloat16": "bf16", "float8_e4m3fn": "u8", "float8_e5m2": "u8"}


class TensorMapBytes(np.ndarray):
    """The 128 bytes of a tensor map, in the form that a kernel accepts. `tensor` is the array that the map
    describes."""

    tensor: Any = None


def tensor_map(
    array: Any,
    box: tuple[int, ...],
    *,
    swizzle: int = 0,
    element_strides: tuple[int, ...] | None = None,
    fill: str = "zeros",
    dtype: str | None = None,
) -> TensorMapBytes:
    """Return the tensor map of an array for tensor copies, as 128 bytes (uint8).

    array: a numpy array of 1 to 5 dimensions, whose last axis is contiguous.
    box: the shape of the box that one instruction copies, axis by axis like array.shape.
    swizzle: 0, 32, 64 or 128 bytes.
    element_strides: for each axis of the array, an n such that the box contains every n-th element. A GPU
        ignores the n of the last axis.
    fill: the elements outside the array: "zeros" or "nan".
    dtype: "tf32", "tf32_ftz" or "f32_ftz" for a float32 array, if the copy rounds it.

    The coordinates of an instruction begin with the last axis, as in PTX. Pass the map to the kernel. The
    array need not be an argument of its own. Raise ValueError for a map that the driver refuses.

    Example: tensor_map(a, (64, 64), swizzle=128) for an array a of float16.
    """
    kind = dtype or NAMES.get(array.dtype.name)
    if kind is None:
        raise ValueError(f"a tensor map has no type for {array.dtype}; wanted one of {', '.join(NAMES)}")
    if array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise ValueError("the last axis of the array must be contiguous")
    if fill not in ("zeros", "nan"):
        raise ValueError(f"fill is {fill!r}; wanted 'zeros' or 'nan'")
    return tensor_map_bytes(
        array,
        # numpy aligns only large arrays. Simulated addresses are aligned, whatever the address on the host
        # is.
        array.__array_interface__["data"][0],
        kind,
        array.shape,
        array.strides,
        box,
        element_strides=element_strides,
        swizzle=swizzle,
        fill_nan=fill == "nan",
    )


def tensor_map_bytes(
    array: Any,
    address: int,
    kind: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    *,
    element_strides: tuple[int, ...] | None = None,
    swizzle: int = 0,
    fill_nan: bool = False,
) -> TensorMapBytes:
    """Return the tensor map of a tensor of any shape in the memory of an array.

    address: the tensor's first byte.
    kind: the type, one of sim.isa.tensor_map.TYPES.
    strides: the bytes between elements, axis by axis like shape. The last one is not used.

    The other parameters are the same as for `tensor_map`. Raise ValueError for a map that the driver refuses.
    """
    described = TensorMap(
        kind,
        address,
        tuple(reversed(shape)),
        tuple(reversed(strides[:-1])),
        tuple(reversed(box)),
        tuple(reversed(element_strides or (1,) * len(shape))),
        swizzle,
        fill_nan=fill_nan,
    )
    check(described)
    room = np.zeros(NBYTES + 64, np.uint8)
    begin = -room.__array_interface__["data"][0] % 64
    result = room[begin : begin + NBYTES].view(TensorMapBytes)
    result[:] = np.frombuffer(described.encode(), np.uint8)
    result.tensor = array
    return result


def described_arrays(arguments):
    """Return {name: array} for the arrays that tensor maps among the arguments describe."""
    leaves = [leaf for argument in arguments for leaf in argument.leaves()]
    given = {id(leaf.array) for leaf in leaves}
    return {
        f"{leaf.name}'s tensor": leaf.value.tensor
        for leaf in leaves
        if isinstance(leaf.value, TensorMapBytes) and id(leaf.value.tensor) not in given
    }


class Tile(NamedTuple):
    """The layout of a box that a tensor copy has written to shared memory.

    operation: the AsyncOperation of the copy.
    base: the address of its first byte within the block.
    room: the number of bytes from its first to its last byte.
    pitch: the number of bytes from the start of one row to the start of the next.
    swizzle: the width of the swizzle in bytes.
    flat: whether the box has at most two dimensions, so that its rows are in the same order as in the tensor.
    """

    operation: Any
    base: int
    room: int
    pitch: int
    swizzle: int
    flat: bool


class Located:
    """A tensor map whose tensor has been found in a launch: the TensorMap, the allocation that contains the
    tensor, and the offset of the tensor in this allocation."""

    __slots__ = ("map", "allocation", "offset")

    def __init__(self, raw, space):
        self.map = TensorMap.decode(raw)
        self.allocation, self.offset = locate(self.map.address, space)

    def spans(self, coordinates):
        """Return the offsets in the box, the simulated addresses and the lengths in bytes of the parts of a
        box that lie inside the tensor."""
        in_box, in_tensor, length = self.map.rows(coordinates)
        return in_box, in_tensor + self.offset + self.allocation.base, length


def locate(address, space):
    """Return (allocation, offset) for an address in global memory. It can be a simulated address or an
    address of the host.

    Raise InvalidOperand if no array of the launch is there.
    """
    for allocation in space.allocations:
        if allocation.space != "global":
            continue
        host = allocation.root.__array_interface__["data"][0]
        for base in (allocation.base, host):
            if base <= address < base + max(allocation.root.size, 1):
                return allocation, address - base
    raise InvalidOperand(
        f"the tensor map describes memory at {address:#x}, which belongs to no array of the launch",
        "A tensor map contains only the address of its array.",
        "make the map with sim.tensor_map, or from the address of device memory in a whole program; or also"
        " pass the array to the kernel",
    )
