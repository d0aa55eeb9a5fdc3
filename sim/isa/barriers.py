"""Entries for instructions that order threads and their accesses to memory: barriers, block-wide votes,
fences and nanosleep. The types are Numba's.

Source: PTX ISA 9.7.13, "Parallel Synchronization and Communication Instructions" (bar, membar, fence);
"Miscellaneous Instructions" (nanosleep).
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
    """A barrier. No thread of the block or grid (`scope`) continues before all threads have arrived.

    At a barrier with a vote, each thread passes a number, and all threads receive the same result.
    `semantics` is the function (result so far, number of the next thread) that returns the new result. It is
    folded over the threads in order, beginning with `start`.

    operands: {name: dtype, or None for a number of any type}. Empty without a vote.
    results: {name: dtype}. Empty without a vote.
    """

    scope: str
    operands: dict
    results: dict
    start: object = 0

    def add(self):
        """Add the barrier to the table, as an instruction at which threads wait."""
        SUSPENDING.add(self.name)
        if self.scope == BLOCK:
            BLOCK_WIDE.add(self.name)
        return super().add()

    @property
    def parameters(self):
        """The names of the parameters of a call."""
        return list(self.operands)

    def vote(self, numbers):
        """Return the result of the vote for these numbers, one per thread."""
        (operand,), (result,) = self.operands.values(), self.results.values()
        converted = numbers if operand is None else map(cast(operand), numbers)
        result = result_converter(result)
        return functools.reduce(lambda *x: result(self.semantics(*x)), converted, result(self.start))


def barrier(name, source, scope, ptx=()):
    """Add a barrier without a vote to the table."""
    return Barrier(name, lambda: None, source, scope, {}, {}, ptx=ptx).add()


def vote(*, source, start=0, name=None, ptx=(), replaces=None):
    """Return a decorator that adds a function to the table, as a block-wide barrier with a vote.

    The decorator returns the Barrier, to be called by kernels. The function takes (result so far, number of
    the next thread) and returns the new result. The interpreter calls it, and Numba compiles it. Its return
    annotation is the dtype of the result, such as numpy.int32. The annotation of the number is a dtype.
    Without an annotation, a number of any type is accepted.

    source: the specification, such as a section of the PTX ISA.
    start: the initial result. It is combined with the number of thread 0, then with that of thread 1, and so
        on.
    name, ptx, replaces: as in sim.isa.instruction.

    Raise ValueError if the name belongs to another function, or if the result has no dtype.
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
        ).expose(replaces)

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
    """Add a memory fence to the table.

    No thread within `reach` observes an access of the calling thread after the fence before an access that
    precedes the fence.

    reach: "block" or "grid".
    scopes: the PTX scopes, such as "cta" or "gpu".
    """

    def semantics(memory):
        memory.fence(reach)

    # The simulator does not distinguish these orderings, so it cannot report a fence whose ordering is too
    # weak.
    orderings = ("", "sc.", "acq_rel.", "acquire.", "release.")
    ptx = (
        *(f"membar.{scope}" for scope in scopes),
        *(f"fence.{ordering}{scope}" for ordering in orderings for scope in scopes),
    )
    return memory_instruction(name=name, source="PTX ISA membar, fence", ptx=ptx, yields=True)(semantics)


@memory_instruction(source="PTX ISA nanosleep", ptx=("nanosleep.u32",), yields=True)
def nanosleep(memory, nanoseconds):
    memory.yield_turn()


# The simulator has a single GPU, and treats the scopes cluster, gpu and sys alike: they reach the whole grid.
FENCES = [
    fence("threadfence_block", "block", ("cta",)),
    fence("threadfence", "grid", ("gl", "gpu", "cluster")),
    fence("threadfence_system", "grid", ("sys",)),
]
OF_NUMBA = [*VOTES, *FENCES, nanosleep]
