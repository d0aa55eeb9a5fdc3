"""The table of instructions, and the base class `Entry` of its entries.

An entry's *semantics* is its reference implementation, a plain Python function whose annotations are types.
Both engines derive everything else from the entry: type conversions, waiting, lane masks and generated code.
The entry of a warp instruction is an `Instruction` (sim.isa.warp_instruction), and the entry of an
instruction of a single thread is a `Function` (sim.isa.functions).

INSTRUCTIONS[name] finds an entry by its name in Python kernels, without `cuda.`: "shfl_sync",
"libdevice.fmaf_rn", "math.exp". by_ptx(name) finds it by its PTX name: "fma.rn.f32".
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sim.isa.conversions import cast
from sim.nouns import plural

INSTRUCTIONS: dict[str, "Entry"] = {}  # name in Python kernels -> entry
PTX: dict[str, "Entry"] = {}  # PTX name -> entry
BY_NAME_PARTS: dict[tuple[Any, ...], "Entry"] = {}  # result of name_parts() -> entry
# id of an object called by kernels -> the entry that simulates it. SUBSTITUTES keeps these objects alive,
# because Python can reuse the id of a freed object.
ENTRY_OF_OBJECT: dict[int, "Entry"] = {}
SUBSTITUTES: list[object] = []
# The names of the instructions at which a thread may have to wait. The subsets WARP_WIDE and BLOCK_WIDE
# synchronise a warp or a block. An entry adds its name when it is registered.
SUSPENDING: set[str] = set()
WARP_WIDE: set[str] = set()
BLOCK_WIDE: set[str] = set()
ASYNCHRONOUS: set[str] = set()  # the names of the instructions of the async proxy, and of its fences
YIELDING = {"atomic"}  # the names of the instructions before which the scheduler is allowed to switch threads
# The participating lanes of an instruction
GIVEN = "given"  # the first argument is the mask of these lanes
CONVERGED = "converged"  # the converged lanes
ALL = "all"  # all 32 lanes
FULL = 0xFFFFFFFF  # the mask of all 32 lanes
THREAD, WARP, BLOCK, GRID = "thread", "warp", "block", "grid"  # the scopes of an instruction
WARPGROUP = "warp group"  # a further scope: four consecutive warps
# Modifiers ignored by by_ptx. The entries of the table keep subnormals; sim.isa.registers implements .ftz.
MODIFIERS = ("ftz", "full")


class Like(str):
    """A result type: the type of the operand with this name."""


Type = np.dtype | Like | None  # None means a number of any type


@dataclass(frozen=True)
class Touch:
    """A memory effect of an entry.

    operand: the name of the array operand.
    does: "read", "write" or "change" (read-modify-write).
    space: "shared", "global", "local" or "any".
    size: the number of bytes per thread, or 0 for one element.
    """

    operand: str
    does: str
    space: str = "any"
    size: int = 0


@dataclass(frozen=True, eq=False)
class Entry:
    """An instruction in the table.

    name, also: its names in Python kernels.
    semantics: its reference implementation.
    source: the document and section that specify it.
    ptx: its PTX names.
    touches: its memory effects.
    """

    name: str
    semantics: Callable[..., Any]
    source: str
    also: tuple[str, ...] = field(default=(), kw_only=True)
    ptx: tuple[str, ...] = field(default=(), kw_only=True)
    touches: tuple[Touch, ...] = field(default=(), kw_only=True)

    def add(self) -> Self:
        """Add the entry to the table under all its names, and return it.

        Raise ValueError if any of the names belongs to another function.
        """
        for name in (self.name, *self.also):
            # An entry whose semantics has the same qualified name is replaced. add_names relies on this, and
            # so does a notebook cell that is run again.
            known = INSTRUCTIONS.get(name)
            if known and full_name(known.semantics) != full_name(self.semantics):
                raise ValueError(
                    f"{known.semantics.__module__} already defines an instruction {name}; give this one"
                    " another name: instruction(name=...)"
                )
            INSTRUCTIONS[name] = self
        PTX.update(dict.fromkeys(self.ptx, self))
        BY_NAME_PARTS.update(dict.fromkeys(map(name_parts, self.ptx), self))
        return self

    def expose(self, instead: object = None) -> Self:
        """Add the entry to the table, and return it. Simulated kernels execute the entry when they call
        `instead`, or when they call the entry itself if `instead` is None."""
        self.add()
        self.replace_calls_of(self if instead is None else instead)
        return self

    def __call__(self, *operands: Any) -> Any:
        raise TypeError(
            f"{self.name} is an instruction of the simulated GPU: only a kernel that is simulated can call it"
        )

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters of a call."""
        return list(inspect.signature(self.semantics).parameters)

    def in_order(self, given: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call by position.

        Raise TypeError for missing, surplus or unknown arguments.
        """
        rest = self.parameters[len(given) :]
        if len(given) > len(self.parameters) or named.keys() != set(rest):
            got = ", ".join([str(len(given))] + [f"{name}=" for name in named])
            raise TypeError(
                f"{self.name} takes {plural(len(self.parameters), 'argument')},"
                f" {', '.join(self.parameters) or 'none'}; got {got}"
            )
        return (*given, *map(named.get, rest))

    def replace_calls_of(self, called: Any) -> Any:
        """Make simulated kernels execute this entry when they call `called`, such as an intrinsic of Numba
        CUDA. Return `called`."""
        ENTRY_OF_OBJECT[id(called)] = self
        SUBSTITUTES.append(called)
        return called


def full_name(function: Callable[..., Any]) -> tuple[str | None, str]:
    """Return the module and the qualified name of a function."""
    return getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function))


def entries_under(prefix: str) -> dict[str, "Entry"]:
    """Return {name without the prefix: entry} for a namespace, such as "libdevice"."""
    begin = f"{prefix}."
    return {name.removeprefix(begin): entry for name, entry in INSTRUCTIONS.items() if name.startswith(begin)}


def by_ptx(name: str) -> Entry:
    """Return the entry for the full name of a PTX instruction, such as "fma.rn.f32" or "shfl.sync.idx.b32".
    The modifiers can be in any order.

    Raise KeyError if the table has no such instruction.
    """
    plain = ".".join(part for part in name.split(".") if part not in MODIFIERS)
    # Try the exact spelling first, then any order of the modifiers, then the name without the modifiers that
    # the table ignores.
    found = PTX.get(name) or BY_NAME_PARTS.get(name_parts(name)) or BY_NAME_PARTS.get(name_parts(plain))
    if found is not None:
        return found
    raise KeyError(
        f"no instruction {name} in the table (sim.isa.table.PTX lists all instructions); add an entry with"
        " sim.isa.instruction(ptx=...)"
    )


# The parts of a name whose order matters, because their positions identify the operands to which they belong:
# the types, and the matrix layouts .row and .col.
POSITIONAL = re.compile(r"([subf]|bf|tf)\d+(x\d)?|e\dm\d(x\d)?|pred|row|col")
LAYOUTS = "row", "col"


def name_parts(name: str) -> tuple[Any, ...]:
    """Return a key common to all spellings of one PTX instruction. ptxas accepts most modifiers in any order.

    The key consists of the opcode, the types in order, the layouts in order, and the remaining modifiers,
    sorted.
    """
    base, *parts = name.split(".")
    positional = [part for part in parts if POSITIONAL.fullmatch(part)]
    layouts = [part for part in positional if part in LAYOUTS]
    types = [part for part in positional if part not in layouts]
    return base, *types, *layouts, *sorted(part for part in parts if part not in positional)


@functools.cache
def with_types_last(opcode: str) -> str:
    """Return a PTX opcode with its types after all other modifiers, as in the manual.

    ptxas also accepts the types before other modifiers.
    """
    base, *parts = opcode.split(".")
    types = [part for part in parts if POSITIONAL.fullmatch(part) and part not in LAYOUTS]
    return ".".join([base, *(part for part in parts if part not in types), *types])


def result_converter(type_: Any) -> Callable[[Any], Any]:
    """Return the function that converts a result to its type. For a `Like` type, that function is the
    identity.

    A signed integer of less than 64 bits becomes a numpy scalar, so that it keeps its width.
    """
    if isinstance(type_, Like):
        return lambda value: value
    convert = cast(type_)
    return (lambda value: type_.type(convert(value))) if type_.kind == "i" and type_.itemsize < 8 else convert


def parameters_of(semantics: Callable[..., Any], *first: str) -> list[inspect.Parameter]:
    """Return the parameters of a semantics function. They must begin with the parameters in `first`.

    Raise ValueError if there are fewer parameters.
    """
    parameters = list(inspect.signature(semantics).parameters.values())
    if len(parameters) < len(first):
        raise ValueError(
            f"{semantics.__name__} has {len(parameters)} parameters; a semantics function of this kind begins"
            f" with {', '.join(first)}"
        )
    return parameters


def type_of(semantics: Callable[..., None], parameter: inspect.Parameter) -> Type:
    """Return the type of a parameter: a dtype, `Like`, or None for a number of any type.

    Raise ValueError if the annotation is not a numeric type.
    """
    given = parameter.annotation
    try:
        if isinstance(given, Like):
            return given
        return None if given is parameter.empty else number_dtype(given)
    except TypeError:
        raise ValueError(
            f"{semantics.__name__}: {parameter.name} has the type {given!r}; wanted a dtype such as"
            " numpy.int32, or Like(operand)"
        ) from None


def number_dtype(given: Any) -> np.dtype:
    """Return the numeric dtype that an annotation denotes.

    Raise TypeError for any other annotation.
    """
    dtype = np.dtype(given)
    if dtype.hasobject:
        raise TypeError(f"{given!r} is not a numeric type")
    return dtype


def name_of(value: Any) -> str | None:
    """Return the name of the instruction represented by an object, or None."""
    entry = ENTRY_OF_OBJECT.get(id(value))
    return entry.name if entry else None
