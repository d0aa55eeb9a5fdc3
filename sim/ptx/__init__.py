"""The PTX front end: runs PTX compiled from CUDA C++, Triton or Numba on the same engines as Python kernels.

The input is PTX text (`load_ptx`), or a .cu file compiled by NVRTC (`load_cuda`).

The output is a Module of kernels for `simulate`. Each kernel is translated once to the source of a Python
function, in which a register is a local variable and an instruction is one or more statements. At each
launch, that source receives its globals: functions that access memory, wait at barriers, or exchange values
between lanes. The engines and observers of Python kernels then run this source unchanged. `sim.native.ptx`
compiles the same source.

`sim.isa` defines the results of instructions. This package defines control flow, addresses, calls and the
layout of memory. An unsupported instruction is reported with its PTX line before the kernel starts.

Source: PTX ISA, chapters 4 to 11: "Syntax", "State Spaces, Types, and Variables", "Instruction Operands",
"Abstracting the ABI", "Memory Consistency Model", "Instruction Set", "Special Registers" and "Directives".

Read the files in this order:

    module            load_ptx, Module, Kernel: the public objects
    nvrtc, numba      CUDA C++ to PTX with NVRTC; Numba's argument layout
    host_headers      stand-ins for the headers of the C and C++ libraries
    tokens, operands, parse, syntax   PTX text to a syntax tree
    flow              the basic blocks of a function, ordered for structured code
    register_kinds    the registers that hold integers, and those that hold floats
    program           a kernel and the functions it calls, as Python source
    emit              the source of one function: control flow and register conversions
    translate         the statements of one instruction
    accesses, atomics, warps, calls, async_copies   statements of ld and st, atom, warp instructions,
                      indirect calls, cp.async
    unsupported       errors for unsupported instructions
    volatile, grid_sync, timed, subwords, field_updates, speculative   patterns that span several instructions
    inlined, tested_stores   a kernel with its calls inlined, and stores after tests, for volatile
    run, argument_bytes   one launch: memory layout, arguments, globals of the source
    memory            loads, stores and atomics by address
    regions, region_table, foreign   memory regions; the checks of an address; reasons why it is invalid
    special_registers  special registers as Python expressions
    undefined         undefined values, from a load of unwritten local memory to their first use
    copies, heap, variables, pointers, device_runtime   cp.async, malloc, __device__ variables, arrays behind
                      pointers in memory, printf
    origin            lines and names in the .cu or .py file from which the PTX was compiled
"""
