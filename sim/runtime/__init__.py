"""Runs whole CUDA programs on the simulated GPU: `python -m sim run program.cu`.

The input is a .cu file with `main()`, or a library that `python -m sim build` made from one.

The output is the program's own output, findings as they occur, a summary, and an exit status.

nvcc compiles the program into a shared library that contains the host code and the PTX of its kernels. The
program does not call NVIDIA's runtime library, `libcudart`. It calls a small library of C stubs, which
`stubs` generates for exactly the functions that the program needs. Each stub calls a Python function of this
package. The host code therefore runs as machine code, and `simulate` runs each kernel launch.

Device memory has simulated addresses, so a pointer has the same value in a kernel, in a structure and on the
host. Managed and pinned memory is mapped into the process at its simulated address, so that the host can
access it through the same pointer.

Read the files in this order:

    command     the commands `run` and `build`
    build       find nvcc, compile a program
    process     the process in which the program runs: load the stubs and the program, call main()
    signatures  the C signatures of the runtime functions
    stubs       generate and compile the C stubs
    fatbin      extract the PTX from a compiled program
    device      the state of the simulated device: modules, launches, errors, streams and events
    memory      device memory: buffers at simulated addresses
    stream_order  the order of operations that streams, events and waits establish
    streams     host accesses that do not wait for streams
    call_sites  source lines of host calls
    unchecked   failed calls whose result the source ignores
    footprints  the memory that operations access, and unordered nodes of a graph
    stream_races  operations of different streams that access the same memory in no order
    stream_operations  execution of the operations of streams
    findings    findings about host code; output of all findings and of the summary
    handlers_memory, handlers_copies   allocation; copies, cudaMemset and variables
    copy_checks                        the direction of a copy, its unwritten bytes, overlapping areas
    handlers_launch, handlers_device   launches; devices, errors, streams and events
    handlers_graphs, handlers_driver   graphs; the driver API
    handlers_blas                      functions of cuBLAS, computed with numpy

Source: CUDA Runtime API (NVIDIA), and the header `crt/host_runtime.h` that nvcc includes in host code.
"""
