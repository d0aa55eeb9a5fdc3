"""The fast path for accesses to single elements of arrays.

The front end turns `a[i, j]` into `load2(a, i, j, site)` and `a[i, j] = v` into `store2(a, i, j, v, site)`.
These functions are generated from one template, once for each number of dimensions. They check the bounds,
append an integer to the access log if an observer is subscribed, and access the element.

`Array.load` and `Array.store` handle all other cases: negative or invalid indices, numpy's narrow integers,
tuples, slices, and objects that are not arrays.
"""

import numpy as np

from sim.events import SITE_SHIFT
from sim.isa.conversions import cast
from sim.memory.array import FAST, MAX_FAST_RANK, WATCHED, Array, read_only_error
from sim.memory.record import Record

TEMPLATE = """
def load{rank}(x, {indices}, site):
    if type(x) is Array{rank} and {inside}:
        flat = {flat}
        {announce}
        return x.data[flat]
    if type(x) is Watched{rank} and {inside} and x.written[flat := {flat}] == -1:
        {announce_local}
        return x.data[flat]
    if type(x) is tuple:
        return x[{indices}]
    if {narrow}:
        return load{rank}(x, {widened}, site)
    return load_any(x, ({indices},), site)

def store{rank}(x, {indices}, value, site):
    if type(x) is Array{rank} and {inside}:
        flat = {flat}
        {announce}
        {value}
    elif type(x) is Watched{rank} and {inside}:
        x.written[flat := {flat}] = -1
        {announce_local}
        {value_local}
    elif {narrow}:
        return store{rank}(x, {widened}, value, site)
    else:
        return store_any(x, ({indices},), value, site)
    try:
        x.cells[flat] = value
    except (TypeError, ValueError, OverflowError):
        convert(x, flat, value)
"""


def template(logged, local):
    """Return the source of all fast accessors.

    logged: whether an access appends its site, size and address to the log, as one integer.
    local: whether accesses to local memory are logged as well.
    """
    # `x.code` contains the address of the first element, and x.shift is log2 of the element's size.
    announce = f"log((site << {SITE_SHIFT}) + x.code + (flat << x.shift))"
    parts = []
    for rank in range(1, MAX_FAST_RANK + 1):
        axes = range(rank)
        parts.append(
            TEMPLATE.format(
                rank=rank,
                indices=", ".join(f"i{a}" for a in axes),
                inside=" and ".join(f"type(i{a}) is int and 0 <= i{a} < x.n{a}" for a in axes),
                narrow=" or ".join(f"type(i{a}) in INTEGERS" for a in axes),
                widened=", ".join(f"int(i{a}) if type(i{a}) in INTEGERS else i{a}" for a in axes),
                flat=" + ".join(f"i{a} * x.s{a}" for a in axes),
                announce=announce if logged else "pass",
                value="values(value)" if logged else "pass",
                announce_local=announce if local else "pass",
                value_local="values(value)" if local else "pass",
            )
        )
    return "".join(parts)


INTEGERS = frozenset(np.dtype(letter).type for letter in np.typecodes["AllInteger"])
BUILTINS = {own.__name__: own for own in (type, int, slice, TypeError, ValueError, OverflowError)}
# Each variant is compiled once, at import. A launch executes only one of the variants.
CODE = {
    (logged, local): compile(template(logged, local), "<accessors>", "exec")
    for logged, local in ((False, False), (True, False), (True, True))
}


def convert(x, flat, value):
    """Convert a value to the dtype of the array, and store it.

    Stores call this function after the memory has rejected the original value.
    """
    if not x.writable:
        raise read_only_error(x) from None
    x.cells[flat] = cast(x.dtype)(value)


def load_any(x, index, site):
    if isinstance(x, Array):
        return x.load(index, site)
    if isinstance(x, Record):
        return x.load(index[0], site)
    return x[index[0] if len(index) == 1 else index]


def store_any(x, index, value, site):
    if isinstance(x, Array):
        x.store(index, value, site)
    elif isinstance(x, Record):
        x.store(index[0], value, site)
    else:
        x[index[0] if len(index) == 1 else index] = value


# The prefixes of the names used by rewritten kernels.
OFFERED = ("load", "store", "Array", "log", "values", "convert")
GENERAL = load_any, store_any, convert


def accessors(log, values, local):
    """Return {name: function} with load1 ... store5, and with the other names used by inlined accesses.

    log: the list to which accesses are appended, or None.
    values: the list to which the stored values are appended.
    local: whether accesses to local memory are logged as well.
    """
    # The generated functions use these names as globals.
    names = {known.__name__: known for known in (*FAST.values(), *WATCHED.values(), *GENERAL)}
    names["INTEGERS"] = INTEGERS
    if log is not None:
        names |= {"log": log.append, "values": values.append}
    exec(CODE[log is not None, log is not None and local], names)
    return BUILTINS | {name: known for name, known in names.items() if name.startswith(OFFERED)}
