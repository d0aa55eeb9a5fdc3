"""The table of instructions: one entry each, from which typing, suspension, masks, lanes and both engines'
code derive.

An entry is a function, its meaning, under `instruction`. Of a warp's instruction it is given the lanes that
take part (a mask of 32 bits), then each operand as a row of 32 values, one for each lane, and fills a row for
each result. Results are the keyword-only parameters; annotations are the types. The interpreter calls the
function, the native engine compiles it. What one thread does by itself is a Function (sim.isa.functions).

An entry is found by its name in the dialect, without `cuda.` ("shfl_sync", "libdevice.fmaf_rn", "math.exp"):
INSTRUCTIONS[name]; and by its name in PTX ("fma.rn.f32"): by_ptx(name).
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sim.isa.conversions import cast

INSTRUCTIONS: dict[str, "Entry"] = {}  # name in the dialect -> entry
PTX: dict[str, "Entry"] = {}  # name in PTX -> entry
BY_PARTS: dict[tuple[Any, ...], "Entry"] = {}  # parts of a name in PTX, in any order -> entry
# id of an object that kernels call -> the entry that it stands for; those objects, which stay
STANDING_FOR: dict[int, "Entry"] = {}
SUBSTITUTES: list[object] = []
# names at which a thread waits, and of those what the lanes of a warp, or the threads of a block, do
# together; entries add theirs
SUSPENDING: set[str] = set()
WARP_WIDE: set[str] = set()
BLOCK_WIDE: set[str] = set()
YIELDING = {"atomic"}  # names at which a thread may let others go first; entries add theirs
# which lanes take part: those of the mask that the call gives first, whichever are here, all 32
GIVEN, CONVERGED, ALL = "given", "converged", "all"
FULL = 0xFFFFFFFF
THREAD, WARP, BLOCK, GRID = "thread", "warp", "block", "grid"  # scopes
MODIFIERS = ("ftz", "full")  # of PTX's names, which no meaning here heeds: subnormal numbers stay


class Like(str):
    """The type of a result: the one that the operand of this name has."""


Type = np.dtype | Like | None  # None: any number


@dataclass(frozen=True)
class Touch:
    """Memory that an entry touches: it `does` read, write or change elements of the array that `operand`
    names, in `space` (shared, global, local, or any), of `size` bytes per thread (0: one element)."""

    operand: str
    does: str
    space: str = "any"
    size: int = 0


@dataclass(frozen=True, eq=False)
class Entry:
    """What every entry has: its `name` in the dialect, the others (`also`), its names in `ptx`, its
    `meaning`, the `source` that specifies it, and the memory that it `touches` (a tuple of Touch)."""

    name: str
    meaning: Callable[..., Any]
    source: str
    also: tuple[str, ...] = field(default=(), kw_only=True)
    ptx: tuple[str, ...] = field(default=(), kw_only=True)
    touches: tuple[Touch, ...] = field(default=(), kw_only=True)

    def enter(self) -> Self:
        """Into the table; returns the entry."""
        for name in (self.name, *self.also):
            known = INSTRUCTIONS.get(name)
            if known and place_of(known.meaning) != place_of(self.meaning):
                raise ValueError(
                    f"there is an instruction {name} already, of {known.meaning.__module__}; give this one a"
                    " name of its own: instruction(name=...)"
                )
            INSTRUCTIONS[name] = self
        PTX.update(dict.fromkeys(self.ptx, self))
        BY_PARTS.update(dict.fromkeys(map(parts_of, self.ptx), self))
        return self

    def offered(self, instead: object = None) -> Self:
        """The same, for kernels to call the entry, or what stands for it on a GPU."""
        self.enter()
        self.stands_for(self if instead is None else instead)
        return self

    def __call__(self, *operands: Any) -> Any:
        raise TypeError(
            f"{self.name} is an instruction of the simulated GPU: only a kernel that is simulated can call it"
        )

    @property
    def parameters(self) -> list[str]:
        """The names of a call's arguments."""
        return list(inspect.signature(self.meaning).parameters)

    def in_order(self, given: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call, by position. Errors: TypeError for more, fewer or others."""
        rest = self.parameters[len(given) :]
        if len(given) > len(self.parameters) or named.keys() != set(rest):
            got = ", ".join([str(len(given))] + [f"{name}=" for name in named])
            raise TypeError(
                f"{self.name} takes {len(self.parameters)} arguments,"
                f" {', '.join(self.parameters) or 'none'}; got {got}"
            )
        return (*given, *map(named.get, rest))

    def stands_for(self, called: Any) -> Any:
        """Let `called`, a Numba CUDA intrinsic, say, mean this entry wherever a simulated kernel calls it;
        returns it."""
        STANDING_FOR[id(called)] = self
        SUBSTITUTES.append(called)
        return called


def place_of(function: Callable[..., Any]) -> tuple[str | None, str]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function))


def under(prefix: str) -> dict[str, "Entry"]:
    """{name behind the prefix: entry} of a namespace of the dialect, such as "libdevice"."""
    begin = f"{prefix}."
    return {name.removeprefix(begin): entry for name, entry in INSTRUCTIONS.items() if name.startswith(begin)}


def by_ptx(name: str) -> Entry:
    """Return the entry of a PTX instruction by its full name, such as "fma.rn.f32" or "shfl.sync.idx.b32",
    with its modifiers in any order.

    Errors: KeyError for one that is not in the table.
    """
    plain = ".".join(part for part in name.split(".") if part not in MODIFIERS)
    found = PTX.get(name) or BY_PARTS.get(parts_of(name)) or BY_PARTS.get(parts_of(plain))
    if found is not None:
        return found
    raise KeyError(
        f"no instruction {name} in the table (sim.isa.table.PTX lists those there are); give it an entry:"
        " sim.isa.instruction(ptx=...)"
    )


# parts of a name in PTX whose order says which operand they describe: types, and layouts of matrices
POSITIONAL = re.compile(r"([subf]|bf|tf)\d+(x\d)?|e\dm\d(x\d)?|pred|row|col")


def parts_of(name: str) -> tuple[Any, ...]:
    """Return what identifies a PTX instruction in whatever order its modifiers stand, as ptxas accepts them:
    its first part, its types in their order, its layouts in their order, and the other parts sorted."""
    base, *parts = name.split(".")
    positional = [part for part in parts if POSITIONAL.fullmatch(part)]
    layouts = [part for part in positional if part in ("row", "col")]
    types = [part for part in positional if part not in layouts]
    return base, *types, *layouts, *sorted(part for part in parts if part not in positional)


@dataclass(frozen=True, eq=False)
class Instruction(Entry):
    """What the lanes of a warp do together.

    `operands`: {name: dtype, or None for any number}; `results`: {name: dtype, or Like an
        operand}; `mask`: GIVEN, CONVERGED or ALL; `reads`: (lane, *its operands) -> the lane whose operand
        it reads, for a shuffle; `orders`: whether it orders memory accesses of the lanes; `fetch`: (memory,
        *arguments) -> the operands, where these stand in memory.
    """

    operands: dict[str, Type]
    results: dict[str, Type]
    mask: str
    reads: Callable[..., int] | None = None
    orders: bool = False
    fetch: Callable[..., Any] | None = None
    scope = WARP

    @property
    def parameters(self) -> list[str]:
        """The names of a call's arguments."""
        operands = list(inspect.signature(self.fetch).parameters)[1:] if self.fetch else list(self.operands)
        return (["mask"] if self.mask == GIVEN else []) + operands

    @property
    def default(self) -> tuple[int, ...]:
        """The arguments of a call that gives none."""
        return (FULL,) if self.mask == GIVEN else ()

    def converted(self, values: Sequence[Any]) -> list[Any]:
        """The operands of one lane, as the meaning takes them."""
        return [
            one_number(self.name, value) if dtype is None else cast(dtype)(value)
            for value, dtype in zip(values, self.operands.values())
        ]

    def alone(self, operands: Sequence[Any]) -> Any:
        """What a lane has from a group that it does not belong to: its own operand, or 0."""
        given = dict(zip(self.operands, operands))
        return self.result(
            [given[type_] if isinstance(type_, Like) else kept(type_)(0) for type_ in self.results.values()]
        )

    def carried_out(self, lanes: int, operands: dict[int, Sequence[Any]]) -> dict[int, Any]:
        """{lane: result} of the lanes (a mask) whose operands are {lane: values}."""
        members = sorted(operands)
        rows = [
            absent_filled(
                [operands[lane][position] if lane in operands else None for lane in range(32)], members
            )
            for position in range(len(self.operands))
        ]
        results = {name: [None] * 32 for name in self.results}
        self.meaning(lanes, *rows, **results)
        converts = [kept(type_) for type_ in self.results.values()]
        return {
            lane: self.result([convert(row[lane]) for convert, row in zip(converts, results.values())])
            for lane in members
        }

    def result(self, parts: Sequence[Any]) -> Any:
        return tuple(parts) if len(parts) > 1 else parts[0] if parts else None


def one_number(name: str, value: Any) -> Any:
    """`value`, if a lane can hand it to another: a register holds a number."""
    if not isinstance(value, (int, float, complex, np.generic)):
        raise TypeError(
            f"{name} hands one number from lane to lane, got {value!r}; hand the elements over one by one"
        )
    return value


def kept(type_: Any) -> Callable[[Any], Any]:
    """The conversion of a result to its type, a narrow integer keeping its width; of one that has an
    operand's type, none."""
    if isinstance(type_, Like):
        return lambda value: value
    convert = cast(type_)
    return (lambda value: type_.type(convert(value))) if type_.kind == "i" and type_.itemsize < 8 else convert


def absent_filled(row: Sequence[Any], members: Sequence[int]) -> Sequence[Any]:
    """A row of operands with what a lane that is not there has: bits that nobody wrote."""
    if len(members) == 32:
        return row
    like = row[members[0]]
    fill = like if isinstance(like, bool) else absent(like)
    return [fill if value is None else value for value in row]


def absent(value: Any) -> Any:
    """What a register holds that nobody wrote, as a number of the type of `value`: NaN, or a conspicuous
    integer."""
    dtype = np.dtype(np.int64) if isinstance(value, int) else np.asarray(value).dtype
    bits = np.full(dtype.itemsize, 0xA5 if dtype.kind in "iu" else 0xFF, np.uint8).view(dtype)[0]
    return int(bits) if isinstance(value, int) else bits


def instruction(
    *,
    mask: str = ALL,
    source: str,
    name: str | None = None,
    reads: Callable[..., int] | None = None,
    orders: bool = False,
    fetch: Callable[..., Any] | None = None,
    stands_for: object = None,
    ptx: tuple[str, ...] = (),
    touches: tuple[Touch, ...] = (),
) -> Callable[[Callable[..., None]], Instruction]:
    """Enter a function into the table as an instruction of a warp; returns the Instruction, which kernels
    call.

    The function is its meaning: it takes `lanes` (int, a mask of those that take part), then each operand as
    a row of 32 values, and fills the rows of its results, which are its keyword-only parameters: `row[lane] =
    value`. It is called as it is, and compiled by Numba as it is: numbers, tuples, loops, and plain functions
    of the same kind that it calls.
    Annotations are types: a dtype such as numpy.int8 converts an operand or result; of a result, Like("a")
        says that it has the type of operand a; an operand without one is any number. A call in a kernel gives
        one number for each operand and has the lane's result, a tuple if there are several.

    mask        ALL (the default): all 32 lanes must come, a missing one is a finding; GIVEN: a call's first
                argument says which; CONVERGED: whichever are here
    source      where it is specified, such as a section of the PTX ISA
    name        what findings call it, by default the function's name
    reads       (lane, *operands of that lane) -> the lane whose operands it reads: reading from one that
                takes no part is a finding
    orders      whether it orders memory accesses between its lanes, as bar.warp.sync does
    fetch       (memory, *arguments) -> a tuple of the operands, if a call's arguments are not these but say
                where they stand: memory.read(array, index, size) gives `size` bytes
    stands_for  what kernels call instead, on a GPU: a Numba CUDA intrinsic, or a device function around
                inline PTX
    ptx         its names in PTX, such as "shfl.sync.idx.b32": a tuple
    touches     the memory that it touches: a tuple of Touch

    Errors: ValueError for a name that another function has, or a type that is no dtype and no operand's.
    """

    def enter(meaning: Callable[..., None]) -> Instruction:
        _, *parameters = parameters_of(meaning, "lanes")
        typed = {p.name: type_of(meaning, p) for p in parameters}
        results = {p.name: typed.pop(p.name) for p in parameters if p.kind is p.KEYWORD_ONLY}
        entry = Instruction(
            name or meaning.__name__,
            meaning,
            source,
            typed,
            results,
            mask,
            reads,
            orders,
            fetch,
            ptx=ptx,
            touches=touches,
        )
        check(entry)
        entry.offered(stands_for)
        SUSPENDING.add(entry.name)
        WARP_WIDE.add(entry.name)
        return entry

    return enter


def parameters_of(meaning: Callable[..., Any], *first: str) -> list[inspect.Parameter]:
    """The parameters of a meaning, which begins with these. Errors: ValueError if it has fewer."""
    parameters = list(inspect.signature(meaning).parameters.values())
    if len(parameters) < len(first):
        raise ValueError(
            f"{meaning.__name__} has {len(parameters)} parameters; a meaning of this kind begins with"
            f" {', '.join(first)}"
        )
    return parameters


def type_of(meaning: Callable[..., None], parameter: inspect.Parameter) -> Type:
    """The dtype of a parameter, Like another's, or None."""
    given = parameter.annotation
    try:
        if isinstance(given, Like):
            return given
        return None if given is parameter.empty else number_dtype(given)
    except TypeError:
        raise ValueError(
            f"{meaning.__name__}: {parameter.name} has the type {given!r}; wanted a dtype such as"
            " numpy.int32, or Like(operand)"
        ) from None


def number_dtype(given: Any) -> np.dtype:
    """The dtype of numbers that an annotation names; TypeError if it names none."""
    dtype = np.dtype(given)
    if dtype.hasobject:
        raise TypeError(f"{given!r} is no type of numbers")
    return dtype


def check(entry: Instruction) -> None:
    """Every result has a type."""
    for result, type_ in entry.results.items():
        if type_ is None or isinstance(type_, Like) and type_ not in entry.operands:
            raise ValueError(
                f"result {result} of {entry.name} has no type; wanted a dtype such as numpy.int32, or Like"
                f" one of its operands ({', '.join(entry.operands)})"
            )


def name_of(value: Any) -> str | None:
    """The name of the instruction that an object a kernel calls is, or stands for; else None."""
    entry = STANDING_FOR.get(id(value))
    return entry.name if entry else None
