"""Lower a kernel's Python to text that Numba compiles: names, calls, loops, and what must be assigned."""
