"""The PTX front end: runs PTX compiled from CUDA C++, Triton or Numba on the same engines as Python kernels.

PTX text enters (`load_ptx`) or a .cu file (`load_cuda`). A Module of kernels leaves. Each kernel is
translated once to the source of a Python function, in which a register is a variable and an instruction is a
statement. A launch gives that source its globals: functions that access memory, wait at barriers, or exchange
values between the lanes of a warp. Then the same engines and observers run as for kernels in Python.
`sim.native.ptx` compiles the same source.

Read the files in this order:

    module            load_ptx, Module, Kernel: what users hold
    nvrtc, numba      CUDA C++ to PTX by NVRTC; how Numba lays out arguments
    tokens, operands, parse, syntax   PTX text to a syntax tree
    flow              the basic blocks of a function, ordered for structured code
    register_kinds    which registers hold integers, and which hold floats
    program           a kernel and the functions that it calls, as Python source
    emit              the source of one function: control flow, and conversions of registers
    translate         the statements of one instruction
    accesses, atomics, warps, calls   the same for ld and st, atom, warp instructions, calls by pointer
    volatile, grid_sync   patterns that span several instructions
    run               one launch: memory laid out, arguments bound, globals of the source
    memory, regions   loads, stores and atomics by address
    undefined         undefined values, from a load of unwritten local memory to their use
    copies, heap, variables, device_runtime   cp.async, malloc, __device__ variables, printf
    origin            lines and names of the .cu or .py file from which the PTX was made
"""
