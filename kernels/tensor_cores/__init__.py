"""Instructions, tiles and launches of the kernels on tensor cores."""
