"""The cases of every kernel: inputs, references, shapes and tolerances.

Read `table.py` first. It has one Case for each kernel, with inputs, a call, the reference and the shared
memory that each launch declares. `kernels.bench.compare`, the PTX tests and compute-sanitizer go through it.

    case.py                                  what a Case holds
    exact.py, attention.py, shared_memory.py the calls, references and shared bytes that the table names
    tolerances.py                            relative errors, and the largest that is allowed
    conv.py, latent.py, multi_token.py       many shapes for one kind of attention, with errors_of(shape)
    memory_patterns.py, matrix_patterns.py   small kernels that only measure memory (lessons 08 and 16)
"""
