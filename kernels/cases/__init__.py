"""Inputs, tolerances and shapes on which the kernels must be right, and small kernels that only measure
memory."""
