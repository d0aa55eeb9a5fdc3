"""What a GPU's instructions mean: the table of instructions, operators, conversions, functions of numbers,
and the types that Numba gives them. Knows nothing of the rest of sim."""

from sim.isa import warp as _warp  # noqa: F401  enters its instructions
from sim.isa.table import ALL, CONVERGED, GIVEN, Like, instruction

__all__ = ["ALL", "CONVERGED", "GIVEN", "Like", "instruction"]
