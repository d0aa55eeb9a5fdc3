"""What sim.arithmetic, sim.mathematics and sim.intrinsics are made of: Numba's typing, conversions, and IEEE's rounding."""
