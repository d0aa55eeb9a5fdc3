"""Entries of what orders the threads of a block or grid, and their accesses: barriers, fences, and letting
others go first.

Sources: PTX ISA 9.7.13, "bar", "membar", "fence"; 9.7.15, "nanosleep". The types are Numba's.
"""

import functools
from dataclasses import dataclass

from numpy import int32

from sim.isa.memory import memory_instruction
from sim.isa.table import BLOCK, GRID, SUSPENDING, Entry


@dataclass(frozen=True, eq=False)
class Barrier(Entry):
    """No thread of a block or grid (`scope`) goes on before all have come.

    In a vote each brings a predicate, and all get the same result, of the type `result`: `meaning` (the
    result of some, another predicate) -> the result with that one, beginning with `start`.
    """

    scope: str
    result: object = None
    start: int = 0

    def enter(self):
        SUSPENDING.add(self.name)
        return super().enter()

    def vote(self, predicates):
        """The result for these predicates, of all threads."""
        return functools.reduce(self.meaning, predicates, self.start)


def nothing():
    """What a barrier without a vote computes."""


def counted(votes, predicate):
    return votes + 1 if predicate else votes


def both(votes, predicate):
    return votes if predicate else 0


def either(votes, predicate):
    return 1 if predicate else votes


BAR, RED = "PTX ISA bar.sync", "PTX ISA bar.red"
BARRIERS = [
    Barrier("syncthreads", nothing, BAR, BLOCK, ptx=("bar.sync",)),
    Barrier("syncthreads_count", counted, RED, BLOCK, int32, ptx=("bar.red.popc.u32",)),
    Barrier("syncthreads_and", both, RED, BLOCK, int32, 1, ptx=("bar.red.and.pred",)),
    Barrier("syncthreads_or", either, RED, BLOCK, int32, ptx=("bar.red.or.pred",)),
    Barrier("this_grid", nothing, "CUDA C++ Programming Guide, grid synchronization", GRID),
]
for _barrier in BARRIERS:
    _barrier.enter()
VOTES = [barrier for barrier in BARRIERS if barrier.result]
OF_BLOCKS = {barrier.name for barrier in BARRIERS if barrier.scope == BLOCK}


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
    memory.turn()


FENCES = [
    fence("threadfence_block", "block", ("cta",)),
    fence("threadfence", "grid", ("gl", "gpu", "cluster")),
    fence("threadfence_system", "grid", ("sys",)),
]
OF_NUMBA = [*VOTES, *FENCES, nanosleep]
