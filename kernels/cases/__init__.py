"""Test cases for every kernel: inputs, references, shapes and tolerances.

Read `table.py` first. It has one Case per kernel, with inputs, a call, the reference and the shared memory
that each launch declares. `kernels.bench.compare`, the PTX tests and compute-sanitizer iterate over it.

    case.py                                  the fields of a Case
    exact.py, attention.py, shared_memory.py calls, references and shared-memory sizes used in the table
    tolerances.py                            relative errors, and their limits
    conv.py, latent.py, multi_token.py       many shapes for one kind of attention, with errors_of(shape)
    memory_patterns.py, matrix_patterns.py   small kernels that only exercise memory (lessons 08 and 16)
"""
