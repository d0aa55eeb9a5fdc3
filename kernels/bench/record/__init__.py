"""Programs that record, on a GPU, the data in kernels/data that lessons show."""
