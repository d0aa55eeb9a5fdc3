"""The argument layout of Numba's kernels in PTX.

Numba passes an array as the fields of a structure, and each field is a kernel parameter: meminfo and parent
(null on a GPU), the number of elements, the bytes per element, the data pointer, the shape, and the strides
in bytes. A tuple is passed element by element.
"""

from sim.memory.argument import host_array


def flattened(arguments, names=None):
    """Return (values, names) of the PTX parameters for the arguments of a kernel.

    `values` contains the array itself in place of its data pointer.

    arguments: the arguments of the Python kernel.
    names: the names of the kernel's parameters, under which findings report the arrays.
    """
    names = names or [f"argument{i}" for i in range(len(arguments))]
    found = [field for pair in zip(names, arguments, strict=True) for field in fields(*pair)]
    return [value for value, _ in found], [name for _, name in found]


def fields(name, argument):
    """Yield (value, name) for each PTX parameter of an argument."""
    if isinstance(argument, tuple):
        for position, part in enumerate(argument):
            yield from fields(f"{name}[{position}]", part)
        return
    array = host_array(argument, name)
    if array is None:
        yield argument, name
        return
    yield from (
        (0, f"{name}.meminfo"),
        (0, f"{name}.parent"),
        (array.size, f"{name}.size"),
        (array.itemsize, f"{name}.itemsize"),
    )
    yield argument, name
    for what, numbers in (("shape", array.shape), ("strides", array.strides)):
        for axis, number in enumerate(numbers):
            yield number, f"{name}.{what}[{axis}]"
