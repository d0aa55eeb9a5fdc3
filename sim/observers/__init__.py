"""The tools, by name. `COUNTERS` count what a launch did; they are not among those that watch by default."""

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
