"""The observers: they watch a launch through the events of `sim.events`, and report findings or counters.

A launch's events enter: accesses in batches, barriers, fences, copies, refused accesses. Findings leave, and
counters for the launch and for each source line. The observers in DEFAULT look for errors in every launch.
Those in COUNTERS count what a launch did, and have to be asked for.

Read the files in this order:

    bounds         accesses outside an array, and negative indices
    misuse         a launch that writes nothing, a value of the wrong type for an atomic
    uninitialized  reads of memory that nobody has written
    order          happens-before between threads
    races          two threads that touch the same byte in no order; cells finds the bytes, copies checks
                   asynchronous copies
    advice         the cause and the likely fix of a race: a table of patterns over facts; extents, statements
                   and tickets find the facts, fixes words the fixes
    poison         findings that are the consequence of an earlier finding
    words          the terms of findings in each language
    epochs         the base of the counters: banks, coalescing, branches
    traffic        accesses and bytes by array, memory space and line
    trace          a recording of every event
"""

from sim.observers.banks import Banks
from sim.observers.bounds import Bounds
from sim.observers.branches import Branches
from sim.observers.coalescing import Coalescing
from sim.observers.misuse import Misuse
from sim.observers.races import Races
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic
from sim.observers.uninitialized import Uninitialized

DEFAULT = (Bounds, Races, Uninitialized, Misuse)
COUNTERS = (Banks, Branches, Coalescing, Traffic)

__all__ = ["COUNTERS", "DEFAULT", "Bounds", "Misuse", "Races", "Uninitialized"]
__all__ += ["Banks", "Branches", "Coalescing", "Trace", "Traffic"]
