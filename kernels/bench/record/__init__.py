"""Programs that record on a GPU, in kernels/data, what lessons show."""
