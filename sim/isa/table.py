"""The table of instructions. Typing, waiting, masks, lanes and the code of both engines are derived from its
entries.

The semantics of an entry is a plain function. For a warp's instruction (`instruction`) it takes the mask of
the lanes that take part, then each operand as a row of 32 values, one for each lane, and fills a row for each
result. The results are its keyword-only parameters; annotations are the types. The interpreter calls the
function, the native engine compiles it. What one thread computes by itself is a Function (sim.isa.functions).

INSTRUCTIONS[name] finds an entry by its name in Python kernels, without `cuda.`: "shfl_sync",
"libdevice.fmaf_rn", "math.exp". by_ptx(name) finds it by its PTX name: "fma.rn.f32".
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sim.isa.conversions import cast
from sim.nouns import plural

INSTRUCTIONS: dict[str, "Entry"] = {}  # name in Python kernels -> entry
PTX: dict[str, "Entry"] = {}  # name in PTX -> entry
BY_NAME_PARTS: dict[tuple[Any, ...], "Entry"] = {}  # parts of a PTX name, in canonical order -> entry
# id of an object that kernels call -> the entry that it stands for. SUBSTITUTES keeps the objects alive, so
# that no id is reused.
ENTRY_OF_OBJECT: dict[int, "Entry"] = {}
SUBSTITUTES: list[object] = []
# Names of instructions at which a thread waits; of these, the instructions of a warp and those of a block.
# Entries add their own names.
SUSPENDING: set[str] = set()
WARP_WIDE: set[str] = set()
BLOCK_WIDE: set[str] = set()
YIELDING = {"atomic"}  # instructions at which other threads may run; entries add theirs
# Lanes that take part: those in the mask that is the call's first argument; those that are converged; all 32.
GIVEN, CONVERGED, ALL = "given", "converged", "all"
FULL = 0xFFFFFFFF
THREAD, WARP, BLOCK, GRID = "thread", "warp", "block", "grid"  # scopes
MODIFIERS = ("ftz", "full")  # modifiers in PTX names that are ignored here: subnormal numbers stay


class Like(str):
    """The type of a result that has the type of the operand with this name."""


Type = np.dtype | Like | None  # None: any number


@dataclass(frozen=True)
class Touch:
    """The memory that an entry touches.

    operand: the name of the operand that is an array.
    does: "read", "write" or "change".
    space: "shared", "global", "local" or "any".
    size: bytes per thread; 0 means one element.
    """

    operand: str
    does: str
    space: str = "any"
    size: int = 0


@dataclass(frozen=True, eq=False)
class Entry:
    """An instruction in the table.

    name, also: its names in Python kernels.
    semantics: its reference implementation, a function.
    source: the document that specifies it.
    ptx: its names in PTX.
    touches: the memory that it touches, a tuple of Touch.
    """

    name: str
    semantics: Callable[..., Any]
    source: str
    also: tuple[str, ...] = field(default=(), kw_only=True)
    ptx: tuple[str, ...] = field(default=(), kw_only=True)
    touches: tuple[Touch, ...] = field(default=(), kw_only=True)

    def add(self) -> Self:
        """Put the entry into the table and return it."""
        for name in (self.name, *self.also):
            known = INSTRUCTIONS.get(name)
            if known and full_name(known.semantics) != full_name(self.semantics):
                raise ValueError(
                    f"there is an instruction {name} already, of {known.semantics.__module__}; give this one"
                    " a name of its own: instruction(name=...)"
                )
            INSTRUCTIONS[name] = self
        PTX.update(dict.fromkeys(self.ptx, self))
        BY_NAME_PARTS.update(dict.fromkeys(map(name_parts, self.ptx), self))
        return self

    def expose(self, instead: object = None) -> Self:
        """Register this entry, and expose to kernels either it or the object that they call in its place
        on a GPU; return the entry."""
        self.add()
        self.stands_for(self if instead is None else instead)
        return self

    def __call__(self, *operands: Any) -> Any:
        raise TypeError(
            f"{self.name} is an instruction of the simulated GPU: only a kernel that is simulated can call it"
        )

    @property
    def parameters(self) -> list[str]:
        """The names of a call's arguments."""
        return list(inspect.signature(self.semantics).parameters)

    def in_order(self, given: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call by position. Errors: TypeError for too many, too few or unknown
        ones."""
        rest = self.parameters[len(given) :]
        if len(given) > len(self.parameters) or named.keys() != set(rest):
            got = ", ".join([str(len(given))] + [f"{name}=" for name in named])
            raise TypeError(
                f"{self.name} takes {plural(len(self.parameters), 'argument')},"
                f" {', '.join(self.parameters) or 'none'}; got {got}"
            )
        return (*given, *map(named.get, rest))

    def stands_for(self, called: Any) -> Any:
        """Let `called`, such as a Numba CUDA intrinsic, mean this entry wherever a simulated kernel calls
        it; return it."""
        ENTRY_OF_OBJECT[id(called)] = self
        SUBSTITUTES.append(called)
        return called


def full_name(function: Callable[..., Any]) -> tuple[str | None, str]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function))


def entries_under(prefix: str) -> dict[str, "Entry"]:
    """Return {name after the prefix: entry} for a namespace such as "libdevice"."""
    begin = f"{prefix}."
    return {name.removeprefix(begin): entry for name, entry in INSTRUCTIONS.items() if name.startswith(begin)}


def by_ptx(name: str) -> Entry:
    """Return the entry of a PTX instruction by its full name, such as "fma.rn.f32" or "shfl.sync.idx.b32",
    with its modifiers in any order.

    Errors: KeyError for one that is not in the table.
    """
    plain = ".".join(part for part in name.split(".") if part not in MODIFIERS)
    found = PTX.get(name) or BY_NAME_PARTS.get(name_parts(name)) or BY_NAME_PARTS.get(name_parts(plain))
    if found is not None:
        return found
    raise KeyError(
        f"no instruction {name} in the table (sim.isa.table.PTX lists those there are); give it an entry:"
        " sim.isa.instruction(ptx=...)"
    )


# Parts of a PTX name whose order matters, because it says which operand they describe: types, and layouts of
# matrices.
POSITIONAL = re.compile(r"([subf]|bf|tf)\d+(x\d)?|e\dm\d(x\d)?|pred|row|col")


def name_parts(name: str) -> tuple[Any, ...]:
    """Return what identifies a PTX instruction in whatever order its modifiers stand, as ptxas accepts them:
    its first part, its types in their order, its layouts in their order, and the other parts sorted."""
    base, *parts = name.split(".")
    positional = [part for part in parts if POSITIONAL.fullmatch(part)]
    layouts = [part for part in positional if part in ("row", "col")]
    types = [part for part in positional if part not in layouts]
    return base, *types, *layouts, *sorted(part for part in parts if part not in positional)


@dataclass(frozen=True, eq=False)
class Instruction(Entry):
    """An instruction that the lanes of a warp execute together.

    operands: {name: dtype, or None for any number}.
    results: {name: dtype, or Like an operand}.
    mask: GIVEN, CONVERGED or ALL.
    reads: for a shuffle, (lane, *its operands) -> the lane whose operand it reads.
    orders: whether it orders the lanes' memory accesses.
    fetch: (memory, *arguments) -> the operands, if these are in memory.
    put: (memory, *arguments), what each lane writes to memory after all lanes have come.
    """

    operands: dict[str, Type]
    results: dict[str, Type]
    mask: str
    reads: Callable[..., int] | None = None
    orders: bool = False
    fetch: Callable[..., Any] | None = None
    put: Callable[..., None] | None = None
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
        """Return the operands of one lane, converted for the semantics."""
        return [
            check_number(self.name, value) if dtype is None else cast(dtype)(value)
            for value, dtype in zip(values, self.operands.values())
        ]

    def result_outside_mask(self, operands: Sequence[Any]) -> Any:
        """Return what a lane gets if it names a group that does not contain it: its own operand, or 0."""
        given, types = dict(zip(self.operands, operands)), self.results.values()
        return self.result([given[of] if isinstance(of, Like) else result_converter(of)(0) for of in types])

    def execute(self, lanes: int, operands: dict[int, Sequence[Any]]) -> dict[int, Any]:
        """Return {lane: result} for the lanes (a mask) whose operands are {lane: values}."""
        members = sorted(operands)
        rows = [
            fill_absent(
                [operands[lane][position] if lane in operands else None for lane in range(32)], members
            )
            for position in range(len(self.operands))
        ]
        results = {name: [None] * 32 for name in self.results}
        self.semantics(lanes, *rows, **results)
        converts = [result_converter(type_) for type_ in self.results.values()]
        return {
            lane: self.result([convert(row[lane]) for convert, row in zip(converts, results.values())])
            for lane in members
        }

    def result(self, parts: Sequence[Any]) -> Any:
        return tuple(parts) if len(parts) > 1 else parts[0] if parts else None


def check_number(name: str, value: Any) -> Any:
    """Return `value` if a lane can pass it to another lane: a register holds one number."""
    if not isinstance(value, (int, float, complex, np.generic)):
        raise TypeError(
            f"{name} hands one number from lane to lane, got {value!r}; hand the elements over one by one"
        )
    return value


def result_converter(type_: Any) -> Callable[[Any], Any]:
    """Return the conversion of a result to its type, in which a narrow integer keeps its width; the
    identity for `Like` types."""
    if isinstance(type_, Like):
        return lambda value: value
    convert = cast(type_)
    return (lambda value: type_.type(convert(value))) if type_.kind == "i" and type_.itemsize < 8 else convert


def fill_absent(row: Sequence[Any], members: Sequence[int]) -> Sequence[Any]:
    """Return a row of operands in which the lanes that do not take part have bits that nobody wrote."""
    if len(members) == 32:
        return row
    like = row[members[0]]
    fill = like if isinstance(like, bool) else unwritten_bits(like)
    return [fill if value is None else value for value in row]


def unwritten_bits(value: Any) -> Any:
    """Return the content of a register that nobody wrote, as a number of the type of `value`: NaN, or a
    conspicuous integer."""
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
    put: Callable[..., None] | None = None,
    stands_for: object = None,
    ptx: tuple[str, ...] = (),
    touches: tuple[Touch, ...] = (),
) -> Callable[[Callable[..., None]], Instruction]:
    """Add a function to the table, as an instruction of a warp. Return the Instruction, which kernels
    call.

    The function takes `lanes` (int, a mask of the lanes that take part), then each operand as a row of 32
    values. It fills the rows of its results, which are its keyword-only parameters: `row[lane] = value`. It
    is called as it is, and compiled by Numba as it is: use numbers, tuples, loops, and plain functions of the
    same kind.

    Annotations are types. A dtype such as numpy.int8 converts an operand or a result. Like("a") gives a
    result the type of operand a. An operand without an annotation is any number. A call in a kernel passes
    one number for each operand and returns the lane's result, or a tuple if there are several.

    mask: ALL (the default): all 32 lanes have to arrive, and a missing one is a finding. GIVEN: the first
        argument of a call is the mask. CONVERGED: the lanes that happen to be together.
    source: the specification, such as a section of the PTX ISA.
    name: the name in findings; by default the function's own.
    reads: (lane, *operands of that lane) -> the lane whose operands it reads. Reading from a lane that takes
        no part is a finding.
    orders: whether it orders memory accesses between its lanes, as bar.warp.sync does.
    fetch: (memory, *arguments) -> a tuple of the operands, if a call's arguments say where the operands are;
        memory.read(array, index, size) returns `size` bytes.
    put: (memory, *arguments), what each lane writes to memory after all lanes have come.
    stands_for: the object that kernels call in its place on a GPU: a Numba CUDA intrinsic, or a device
        function around inline PTX.
    ptx: its names in PTX, a tuple such as ("shfl.sync.idx.b32",).
    touches: the memory that it touches, a tuple of Touch.

    Errors: ValueError for a name that another function has, or a type that is neither a dtype nor an
    operand's.
    """

    def add_entry(semantics: Callable[..., None]) -> Instruction:
        _, *parameters = parameters_of(semantics, "lanes")
        typed = {p.name: type_of(semantics, p) for p in parameters}
        results = {p.name: typed.pop(p.name) for p in parameters if p.kind is p.KEYWORD_ONLY}
        entry = Instruction(
            name or semantics.__name__,
            semantics,
            source,
            typed,
            results,
            mask,
            reads,
            orders,
            fetch,
            put,
            ptx=ptx,
            touches=touches,
        )
        check(entry)
        entry.expose(stands_for)
        SUSPENDING.add(entry.name)
        WARP_WIDE.add(entry.name)
        return entry

    return add_entry


def parameters_of(semantics: Callable[..., Any], *first: str) -> list[inspect.Parameter]:
    """Return a semantics function's parameters after the required leading `first`. Errors: ValueError if
    they are missing."""
    parameters = list(inspect.signature(semantics).parameters.values())
    if len(parameters) < len(first):
        raise ValueError(
            f"{semantics.__name__} has {len(parameters)} parameters; a semantics function of this kind begins"
            f" with {', '.join(first)}"
        )
    return parameters


def type_of(semantics: Callable[..., None], parameter: inspect.Parameter) -> Type:
    """Return a parameter's type: a dtype, `Like` (the type of another operand), or None."""
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
    """Return the dtype of numbers that an annotation names. Errors: TypeError if it names none."""
    dtype = np.dtype(given)
    if dtype.hasobject:
        raise TypeError(f"{given!r} is no type of numbers")
    return dtype


def check(entry: Instruction) -> None:
    """Raise ValueError if a result has no type."""
    for result, type_ in entry.results.items():
        if type_ is None or isinstance(type_, Like) and type_ not in entry.operands:
            raise ValueError(
                f"result {result} of {entry.name} has no type; wanted a dtype such as numpy.int32, or Like"
                f" one of its operands ({', '.join(entry.operands)})"
            )


def name_of(value: Any) -> str | None:
    """Return the name of the instruction that an object is, or stands for; else None."""
    entry = ENTRY_OF_OBJECT.get(id(value))
    return entry.name if entry else None
