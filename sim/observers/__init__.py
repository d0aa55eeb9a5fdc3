"""Observers receive the events of a launch (`sim.events`) and return findings or counters.

The input is the stream of events: batches of accesses, barriers, fences, asynchronous copies, refused
accesses. The output consists of findings, and of counters for the launch and for each source line. The
observers in DEFAULT check every launch for errors. The observers in COUNTERS measure a launch, and run only
if the user requests them.

Read the files in this order:

    bounds         out-of-bounds accesses, and negative indices
    misuse         a launch without any effect, a value of the wrong type for an atomic
    uninitialized  reads of memory that was never written; written contains the masks of written bytes, and
                   remote_reads finds reads of other blocks' shared memory
    order          happens-before between threads; clocks has the vector clocks and their unions, phases the
                   clocks of barriers, and invalidation the order for kernels that invalidate mbarriers;
                   event_log passes events to orders that are computed on demand; ordering has the base class
                   of the observers that need the order
    races          unordered accesses to the same byte by two threads; quick_test settles most epochs, cells
                   groups accesses by byte, pairs selects the pairs that race, race_findings words the
                   findings; copies checks accesses near asynchronous copies, after the quick test in settled
    advice         the cause and the likely fix of a race: the first row of the table in advice_patterns whose
                   condition is true of the facts; advice_conditions has some of the conditions; access_pair,
                   call_lines, extents, statements, tickets, exchanges, double_checks, early_waits,
                   copy_waits, critical_sections and plain_releases determine the facts; fixes, atomic_fixes
                   and mbarrier_arms contain the sentences of the fixes; atomic_types lists the element types
                   for which each language has atomics
    racy_indices   indices that depend on a race; index_origins finds the lines that compute an index
    poison         findings that are consequences of an earlier finding
    words          the terms of findings in each kernel language
    epochs         the base class of the counters banks, coalescing and branches
    traffic        accesses and bytes by array, memory space and line
    async_proxy    bulk copies and wgmma: accesses before their end, missing proxy fences; async_findings has
                   the messages, async_units the state of memory, clusters checks accesses to other blocks of
                   a cluster, lifetimes checks that operations end before their blocks, and stages checks that
                   phases end before they expect bytes again
    trace          a recording of all events
    pipeline       a recording of bulk copies, wgmma and phases
"""

from sim.observers.banks import Banks
from sim.observers.bounds import Bounds
from sim.observers.branches import Branches
from sim.observers.coalescing import Coalescing
from sim.observers.misuse import Misuse
from sim.observers.pipeline import Pipeline
from sim.observers.races import Races
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic
from sim.observers.uninitialized import Uninitialized

DEFAULT = (Bounds, Races, Uninitialized, Misuse)
COUNTERS = (Banks, Branches, Coalescing, Traffic)

__all__ = ["COUNTERS", "DEFAULT", "Bounds", "Misuse", "Races", "Uninitialized"]
__all__ += ["Banks", "Branches", "Coalescing", "Pipeline", "Trace", "Traffic"]
