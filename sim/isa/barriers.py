"""Entries of what orders the threads of a block or grid, and their accesses: barriers, fences, and letting
others go first.

Sources: PTX ISA 9.7.13, "bar", "membar", "fence"; 9.7.15, "nanosleep". The types are Numba's.
"""

import functools
import inspect
from dataclasses import dataclass

from numpy import int32

from sim.isa.conversions import cast
from sim.isa.memory import memory_instruction
from sim.isa.table import (
    BLOCK,
    BLOCK_WIDE,
    GRID,
    SUSPENDING,
    Entry,
    kept,
    number_dtype,
    parameters_of,
    type_of,
)


@dataclass(frozen=True, eq=False)
class Barrier(Entry):
    """No thread of a block or grid (`scope`) goes on before all have come.

    In a vote each thread brings a number, one of `operands` {name: dtype, or None for any}, and all get one
    of `results` {name: dtype}: `meaning` (the result of some, another's number) -> the result with that one,
    beginning with `start`, in the order of the threads.
    """

    scope: str
    operands: dict
    results: dict
    start: object = 0

    def enter(self):
        SUSPENDING.add(self.name)
        if self.scope == BLOCK:
            BLOCK_WIDE.add(self.name)
        return super().enter()

    @property
    def parameters(self):
        """The names of a call's arguments."""
        return list(self.operands)

    def vote(self, numbers):
        """The result for these numbers, one of each thread."""
        (operand,), (result,) = self.operands.values(), self.results.values()
        converted = numbers if operand is None else map(cast(operand), numbers)
        result = kept(result)
        return functools.reduce(lambda *x: result(self.meaning(*x)), converted, result(self.start))


def barrier(name, source, scope, ptx=()):
    """Enter a barrier at which nothing is computed."""
    return Barrier(name, lambda: None, source, scope, {}, {}, ptx=ptx).enter()


def vote(*, source, start=0, name=None, ptx=(), stands_for=None):
    """Enter a function into the table as a barrier of a block at which every thread brings a number, and all
    get one result; returns the Barrier, which kernels call.

    The function is its meaning: (the result of some threads, another's number) -> the result with that one.
    It is called as it is, and compiled by Numba as it is. Its annotations are types, dtypes such as
    numpy.int32: that of the result (`->`), and of the number, which may be left out for any number.

    source     where it is specified, such as a section of the PTX ISA
    start      the result of no thread; then thread 0 comes, thread 1, and so on
    name, ptx, stands_for   as for sim.isa.instruction

    Errors: ValueError for a name that another function has, or a result without a dtype.
    """

    def enter(meaning):
        _, number = parameters_of(meaning, "result", "number")
        try:
            results = {"result": number_dtype(inspect.signature(meaning).return_annotation)}
        except TypeError:
            raise ValueError(
                f"the result of {meaning.__name__} has no dtype; wanted one, such as -> numpy.int32"
            ) from None
        operands = {number.name: type_of(meaning, number)}
        return Barrier(
            name or meaning.__name__, meaning, source, BLOCK, operands, results, start, ptx=ptx
        ).offered(stands_for)

    return enter


barrier("syncthreads", "PTX ISA bar.sync", BLOCK, ("bar.sync",))
barrier("this_grid", "CUDA C++ Programming Guide, grid synchronization", GRID)


@vote(source="PTX ISA bar.red", ptx=("bar.red.popc.u32",))
def syncthreads_count(votes, predicate) -> int32:
    return votes + 1 if predicate else votes


@vote(source="PTX ISA bar.red", start=1, ptx=("bar.red.and.pred",))
def syncthreads_and(votes, predicate) -> int32:
    return votes if predicate else 0


@vote(source="PTX ISA bar.red", ptx=("bar.red.or.pred",))
def syncthreads_or(votes, predicate) -> int32:
    return 1 if predicate else votes


VOTES = [syncthreads_count, syncthreads_and, syncthreads_or]


def fence(name, reach, scopes):
    """Enter a fence: what the thread did before it is there for those whom it reaches before what it does
    behind it."""

    def meaning(memory):
        memory.fence(reach)

    semantics = ("", "sc.", "acq_rel.", "acquire.", "release.")
    ptx = (
        *(f"membar.{scope}" for scope in scopes),
        *(f"fence.{s}{scope}" for s in semantics for scope in scopes),
    )
    return memory_instruction(name=name, source="PTX ISA membar, fence", ptx=ptx, yields=True)(meaning)


@memory_instruction(source="PTX ISA nanosleep", ptx=("nanosleep.u32",), yields=True)
def nanosleep(memory, nanoseconds):
    memory.yield_turn()


FENCES = [
    fence("threadfence_block", "block", ("cta",)),
    fence("threadfence", "grid", ("gl", "gpu", "cluster")),
    fence("threadfence_system", "grid", ("sys",)),
]
OF_NUMBA = [*VOTES, *FENCES, nanosleep]
