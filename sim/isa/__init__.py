"""What a GPU's instructions mean: operators, conversions, functions of numbers, and the types that Numba gives them. Knows nothing of the rest of sim."""
