"""PTX compiled: the statements that sim.ptx writes for the interpreter, each run of them made LLVM's code at
once, in loops over the threads of a block as the Python front end has them (sim.native.split.fission)."""
