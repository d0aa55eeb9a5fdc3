"""Numba's kernels as PTX: the layout of their arguments.

Numba passes an array as the fields of a structure, one parameter each: meminfo and parent (null on a GPU),
the number of elements, bytes of an element, the data, then the shape and the strides in bytes. The elements
of a tuple are passed one by one.
"""

from sim.memory.argument import host_array


def flattened(arguments, names=None):
    """Return (values, names) of a launch of Numba's PTX for the arguments of a launch of the kernel.

    names: the kernel's parameter names. The pointer to an array's data becomes the array itself, which
    findings call by its parameter's name.
    """
    names = names or [f"argument{i}" for i in range(len(arguments))]
    found = [field for pair in zip(names, arguments, strict=True) for field in fields(*pair)]
    return [value for value, _ in found], [name for _, name in found]


def fields(name, argument):
    """Yield (value, name) of each parameter that an argument becomes."""
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
