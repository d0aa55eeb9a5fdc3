"""Barriers, votes of a block, fences and nanosleep: entries for instructions that order threads and their
accesses.

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
    number_dtype,
    parameters_of,
    result_converter,
    type_of,
)


@dataclass(frozen=True, eq=False)
class Barrier(Entry):
    """A barrier: no thread of a block or grid (`scope`) continues before all have arrived.

    In a vote each thread contributes a number, and all get the same result. `semantics` is a function (result
    of some threads, another thread's number) -> result with that thread. It begins with `start`, in the order
    of the threads.

    operands: {name: dtype, or None for any number}, empty without a vote.
    results: {name: dtype}, empty without a vote.
    """

    scope: str
    operands: dict
    results: dict
    start: object = 0

    def add(self):
        SUSPENDING.add(self.name)
        if self.scope == BLOCK:
            BLOCK_WIDE.add(self.name)
        return super().add()

    @property
    def parameters(self):
        """The names of a call's arguments."""
        return list(self.operands)

    def vote(self, numbers):
        """Return the result for these numbers, one of each thread."""
        (operand,), (result,) = self.operands.values(), self.results.values()
        converted = numbers if operand is None else map(cast(operand), numbers)
        result = result_converter(result)
        return functools.reduce(lambda *x: result(self.semantics(*x)), converted, result(self.start))


def barrier(name, source, scope, ptx=()):
    """Add a barrier without a vote."""
    return Barrier(name, lambda: None, source, scope, {}, {}, ptx=ptx).add()


def vote(*, source, start=0, name=None, ptx=(), stands_for=None):
    """Add a function to the table as a barrier of a block with a vote. Return the Barrier, which kernels
    call.

    The function is a reference implementation: (result of some threads, another thread's number) -> result
    with that thread. The interpreter calls it, and Numba compiles it. Its annotations are dtypes such as
    numpy.int32: of the result (`->`), and of the number, which may be left out to allow any number.

    source: where the instruction is specified, such as a section of the PTX ISA.
    start: the result without any thread; thread 0 is combined with it, then thread 1, and so on.
    name, ptx, stands_for: as for sim.isa.instruction.

    Errors: ValueError for a name that another function has, or for a result without a dtype.
    """

    def add_entry(semantics):
        _, number = parameters_of(semantics, "result", "number")
        try:
            results = {"result": number_dtype(inspect.signature(semantics).return_annotation)}
        except TypeError:
            raise ValueError(
                f"the result of {semantics.__name__} has no dtype; wanted one, such as -> numpy.int32"
            ) from None
        operands = {number.name: type_of(semantics, number)}
        return Barrier(
            name or semantics.__name__, semantics, source, BLOCK, operands, results, start, ptx=ptx
        ).expose(stands_for)

    return add_entry


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
    """Add a fence: threads within `reach` see the thread's accesses before the fence before those after
    it."""

    def semantics(memory):
        memory.fence(reach)

    orderings = ("", "sc.", "acq_rel.", "acquire.", "release.")
    ptx = (
        *(f"membar.{scope}" for scope in scopes),
        *(f"fence.{ordering}{scope}" for ordering in orderings for scope in scopes),
    )
    return memory_instruction(name=name, source="PTX ISA membar, fence", ptx=ptx, yields=True)(semantics)


@memory_instruction(source="PTX ISA nanosleep", ptx=("nanosleep.u32",), yields=True)
def nanosleep(memory, nanoseconds):
    memory.yield_turn()


FENCES = [
    fence("threadfence_block", "block", ("cta",)),
    fence("threadfence", "grid", ("gl", "gpu", "cluster")),
    fence("threadfence_system", "grid", ("sys",)),
]
OF_NUMBA = [*VOTES, *FENCES, nanosleep]
