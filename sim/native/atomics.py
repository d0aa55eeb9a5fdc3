"""What compiled kernels do with memory and Numba lacks on the CPU: atomics, and loads and stores with a hint
for the cache."""

from numba import types
from numba.extending import overload

from sim.isa.atomics import ENTRIES
from sim.isa.functions import SAME
from sim.native.checks import NARROWED, dirty
from sim.native.elements import change
from sim.native.functions import compiled_copy, compiled_value
from sim.native.internal import LIKE_CODE, always
from sim.native.kinds import converter
from sim.native.logged import log_access

IN_TEXT = change, log_access  # what occurs in functions made from text
HINTS = {
    **dict.fromkeys(("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), "x, index"),
    **dict.fromkeys(("stcg", "stcs", "stwb", "stwt"), "x, index, value"),
}
OFFERED = {*(f"cuda_{name}" for name in HINTS)}


def to_element(x, value):
    """`value` converted to the type of the array's elements."""


@overload(to_element, **LIKE_CODE)
def element_of(x, value):
    convert = converter(x.dtype)
    return lambda x, value: convert(value)


def operand(x, value):
    """The same, as an atomic takes it when nobody has looked at it before: a number that loses its fraction
    makes the launch DIRTY, so that somebody else says so."""


@overload(operand, **LIKE_CODE)
def narrowed(x, value):
    if not (isinstance(x.dtype, types.Integer) and isinstance(value, (types.Float, types.Complex))):
        return lambda x, value: to_element(x, value)

    def narrow(x, value):
        dirty(x.numbers, NARROWED)
        return to_element(x, value)

    return narrow


def atomic(entry, placed):
    """The compiled form of an atomic, for arrays of any type; `placed`: it notes where it was called."""
    combine = compiled_copy(entry.native) if entry.native is not SAME else compiled_value(entry.meaning)
    given = [f"operand(x, {name})" for name in entry.operands]
    old_and = ", ".join(f"values[{position}]" for position in range(len(given)))
    parameters = ", ".join(["x", *["index"] * entry.indexed, *entry.operands, *["place"] * placed])
    lines = [
        f"def combined(old, values):\n    return combine(old, {old_and})",
        "combined = always(combined)",
        f"def atomic({parameters}):",
        *(["    index = 0"] if not entry.indexed else []),
        *(["    log_access(x, index, place)"] if placed else []),
        f"    return change(x, index, combined, ({', '.join(given)},))",
    ]
    exec("\n".join(lines), names := {**globals(), "combine": combine})
    return always(names["atomic"])


for _name, _entry in ENTRIES.items():
    for _placed in (False, True):
        OFFERED.add(f"atomic_{_name}{'_at' * _placed}")
        globals()[f"atomic_{_name}{'_at' * _placed}"] = atomic(_entry, _placed)


for _name, _parameters in HINTS.items():
    exec(
        f"@always\ndef cuda_{_name}({_parameters}):\n    "
        + ("x[index] = value" if "value" in _parameters else "return x[index]")
    )
