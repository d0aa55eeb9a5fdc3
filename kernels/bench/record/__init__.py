"""Programs that run on a GPU and record the data in kernels/data that lessons show."""
