"""Entries for warp instructions (`Instruction`), and the decorator that adds them to the table.

The first parameter of the semantics is `lanes`, the mask of the participating lanes. Each operand is a
further parameter: a row of 32 values, one per lane. The results are keyword-only parameters. They are also
rows, which the function fills. Annotations are types.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from sim.isa.conversions import cast
from sim.isa.table import (
    ALL,
    FULL,
    GIVEN,
    SUSPENDING,
    WARP,
    WARP_WIDE,
    Entry,
    Like,
    Touch,
    Type,
    parameters_of,
    result_converter,
    type_of,
)


@dataclass(frozen=True, eq=False)
class Instruction(Entry):
    """An instruction executed jointly by the lanes of a warp.

    operands: {name: dtype, or None for a number of any type}.
    results: {name: dtype, or Like(name of an operand)}.
    mask: the participating lanes: GIVEN, CONVERGED or ALL.
    reads: for a shuffle, the function (lane, *operands of this lane) that returns the source lane.
    orders: whether it orders accesses to memory among the participating lanes.
    fetch: the function (memory, *arguments) that returns the operands, for an instruction whose operands are
        in memory.
    put: the function (memory, *arguments) by which each lane writes to memory after all lanes have arrived.
        If the instruction has operands, the arguments are an address and the results.
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
        """The names of the parameters of a call."""
        operands = list(inspect.signature(self.fetch).parameters)[1:] if self.fetch else list(self.operands)
        operands = ["tile", "index", *operands] if self.put and self.operands else operands
        return (["mask"] if self.mask == GIVEN else []) + operands

    @property
    def default(self) -> tuple[int, ...]:
        """The operands if the call passes none: the full mask if the instruction takes a mask."""
        return (FULL,) if self.mask == GIVEN else ()

    def converted(self, values: Sequence[Any]) -> list[Any]:
        """Return the operands of one lane, converted to the declared types."""
        return [convert(value) for convert, value in zip(self.converters, values)]

    @cached_property
    def converters(self) -> list[Callable[[Any], Any]]:
        """The functions that check or convert the operands."""
        check = partial(check_number, self.name)
        return [check if dtype is None else cast(dtype) for dtype in self.operands.values()]

    def result_outside_mask(self, operands: Sequence[Any]) -> Any:
        """Return the result for a lane that is missing from its own mask: the lane's operand, or 0."""
        given, types = dict(zip(self.operands, operands)), self.results.values()
        return self.result([given[of] if isinstance(of, Like) else result_converter(of)(0) for of in types])

    def execute(self, lanes: int, operands: dict[int, Sequence[Any]]) -> dict[int, Any]:
        """Return {lane: result}.

        lanes: the mask of the participating lanes.
        operands: {lane: values of its operands}. Non-participating lanes can be missing.
        """
        members = sorted(operands)
        rows = [
            fill_absent(
                [operands[lane][position] if lane in operands else None for lane in range(32)], members
            )
            for position in range(len(self.operands))
        ]
        columns = self.columns(lanes, rows)
        return {lane: self.result([convert(row[lane]) for convert, row in columns]) for lane in members}

    def columns(self, lanes: int, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, list[Any]]]:
        """Return (function that converts to its type, row of 32 values) of each result."""
        results: dict[str, list[Any]] = {name: [None] * 32 for name in self.results}
        self.semantics(lanes, *rows, **results)
        return list(zip(self.result_converters, results.values()))

    @cached_property
    def result_converters(self) -> list[Callable[[Any], Any]]:
        """The functions that convert the results to their types."""
        return [result_converter(type_) for type_ in self.results.values()]

    def exchange(self, operands: Sequence[Sequence[Any]]) -> list[Any] | None:
        """Return the results of a shuffle for all 32 lanes, or None for an instruction that computes.

        operands: the operands of each lane.
        """
        if self.reads is None:
            return None
        values, *others = zip(*operands)
        moved = moves(self, *others)
        if moved is None:
            return None
        sources, further = moved
        results = [values[lane] for lane in sources]
        return list(zip(results, *further)) if further else results

    def result(self, parts: Sequence[Any]) -> Any:
        """Return the results of a lane as the return value of a call: a tuple, a single value, or None."""
        return tuple(parts) if len(parts) > 1 else parts[0] if parts else None


class Opaque:
    """A value that can only be moved. Any other operation raises TypeError."""

    def __bool__(self) -> bool:
        raise TypeError

    def __eq__(self, other: object) -> bool:
        raise TypeError


@lru_cache(maxsize=1024)
def moves(entry: Instruction, *others: Sequence[Any]) -> tuple[list[int], list[list[Any]]] | None:
    """Return (source lane of each lane, rows of further results) of a shuffle by all 32 lanes. Return None if
    the instruction does more than to move the values of its first operand.

    The lanes of a warp often repeat a shuffle with other values, so the result is cached.

    others: the rows of 32 values of the operands after the first one.
    """
    typed, *_ = entry.operands.values()
    if typed is not None:
        return None
    values = [Opaque() for _ in range(32)]
    lanes = {id(value): lane for lane, value in enumerate(values)}
    rows = [list(map(convert, row)) for convert, row in zip(entry.converters[1:], others)]
    try:
        (_, moved), *further = entry.columns(FULL, [values, *rows])
        return [lanes[id(value)] for value in moved], [list(map(*column)) for column in further]
    except (TypeError, KeyError):
        return None


def check_number(name: str, value: Any) -> Any:
    """Return `value` if it is a single number. A shuffle exchanges one register per lane, so it cannot pass
    an array or a tuple.

    Raise TypeError for anything else.
    """
    if not isinstance(value, (int, float, complex, np.generic)):
        raise TypeError(
            f"{name} exchanges one number between lanes, got {value!r}; exchange the elements one by one"
        )
    return value


def fill_absent(row: Sequence[Any], members: Sequence[int]) -> Sequence[Any]:
    """Return a row of operands, with unwritten bits in place of the missing values of non-participating
    lanes."""
    if len(members) == 32:
        return row
    # The semantics can read any lane of a row, so absent lanes need a value of the correct type. The value is
    # conspicuous, so that a read of an absent lane is noticed in the result.
    like = row[members[0]]
    fill = like if isinstance(like, bool) else unwritten_bits(like)
    return [fill if value is None else value for value in row]


def unwritten_bits(value: Any) -> Any:
    """Return the content of a never-written register, in the type of `value`.

    It is NaN for a float, and a conspicuous bit pattern (0xA5...) for an integer.
    """
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
    replaces: object = None,
    ptx: tuple[str, ...] = (),
    touches: tuple[Touch, ...] = (),
) -> Callable[[Callable[..., None]], Instruction]:
    """Return a decorator that adds a function to the table, as a warp instruction.

    The decorator returns the Instruction, to be called by kernels. The function takes `lanes` (an int, the
    mask of the participating lanes), and then each operand as a row of 32 values. It fills the rows of its
    results, which are its keyword-only parameters: `row[lane] = value`. The interpreter calls the function
    unchanged, and Numba compiles it unchanged. It can therefore use only numbers, tuples, loops, and plain
    functions with the same restrictions.

    Annotations are types. A dtype such as numpy.int8 converts an operand or a result. Like("a") declares a
    result with the type of operand `a`. An operand without an annotation accepts a number of any type. In a
    kernel, a call passes one number per operand. It returns the result of the calling lane, or a tuple of
    several results.

    mask: the participating lanes. ALL (the default) requires all 32 lanes, and a missing lane is reported.
        With GIVEN, the first argument of a call is the mask. With CONVERGED, the lanes converged at the call
        participate.
    source: the specification, such as a section of the PTX ISA.
    name: the name shown in findings. By default, it is the function's name.
    reads: the function (lane, *operands of this lane) that returns the source lane. A read from a
        non-participating lane is reported.
    orders: whether it orders accesses to memory among its lanes, as bar.warp.sync does.
    fetch: the function (memory, *arguments) that returns a tuple of operands, for calls whose arguments are
        addresses. memory.read(array, index, size) returns `size` bytes.
    put: the function (memory, *arguments) by which each lane writes to memory after all lanes have arrived.
        If the instruction has operands, a call passes an address and the operands, and `put` receives the
        address and the results.
    replaces: the object called by kernels on a GPU: an intrinsic of Numba CUDA, or a device function around
        inline PTX.
    ptx: its PTX names, such as ("shfl.sync.idx.b32",).
    touches: its memory effects, a tuple of Touch.

    Raise ValueError if the name belongs to another function, or if a type is neither a dtype nor Like an
    operand.
    """

    def add_entry(semantics: Callable[..., None]) -> Instruction:
        _, *parameters = parameters_of(semantics, "lanes")
        typed = {p.name: type_of(semantics, p) for p in parameters}
        # Keyword-only parameters are results, and all others are operands.
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
        entry.expose(replaces)
        SUSPENDING.add(entry.name)
        WARP_WIDE.add(entry.name)
        return entry

    return add_entry


def check(entry: Instruction) -> None:
    """Raise ValueError if a result has no type, or is Like a nonexistent operand."""
    for result, type_ in entry.results.items():
        if type_ is None or isinstance(type_, Like) and type_ not in entry.operands:
            raise ValueError(
                f"result {result} of {entry.name} has no type; wanted a dtype such as numpy.int32, or Like"
                f" one of its operands ({', '.join(entry.operands)})"
            )
