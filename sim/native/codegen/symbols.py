"""The names available to generated code, and the modules that define them."""

import functools
import importlib

from sim.isa.table import BLOCK_WIDE, INSTRUCTIONS, WARP_WIDE

# The modules that export functions to generated code. Each module lists these functions in EXPORTED.
HOMES = (
    "sim.native.codegen.thread_index",
    "sim.native.codegen.synchronization",
    "sim.native.codegen.elements",
    "sim.native.codegen.local_arrays",
    "sim.native.codegen.access_log",
    "sim.native.codegen.sides",
    "sim.native.codegen.branches",
    "sim.native.codegen.atomics",
    "sim.native.codegen.half_operators",
    "sim.native.codegen.vectors",
)
GEOMETRY = ("threadIdx", "blockIdx", "blockDim", "gridDim")
# the names that a generated function can take as parameters, in addition to the source function's parameters
SPECIAL = ("state", "thread", *GEOMETRY)
# the parameters of the grid function that precede `state`
GRID_PARAMETERS = ("first_position", "end_position", "grid_shape", "block_shape", "while_limit", "for_limit")
# library module available to kernels -> its name in generated code
MODULES = {"math": "math", "cmath": "cmath", "numpy": "np", "operator": "operator", "_operator": "operator"}
# The names used by the templates of generated code. A kernel variable with such a name is renamed.
RESERVED = {
    *SPECIAL,
    *MODULES.values(),
    "numba",
    "translated",
    "kernel",
    "recursive",
    "spill_buffer",
    "spill_pitch",
    "SPILLED",
    "warp",
    "threads",
    "exit_code",
    "bounds",
    "position",
    *GRID_PARAMETERS,
}


@functools.cache
def exported_functions():
    """Return {name of a function: module that exports it} for the modules in HOMES."""
    return {name: home for home in HOMES for name in importlib.import_module(home).EXPORTED}


# prefix of a name in generated code -> module whose __getattr__ makes the function for an entry of sim.isa
MAKERS = {
    "isa": "sim.native.codegen.isa_functions",
    "warp": "sim.native.codegen.lanes",
    "branch": "sim.native.codegen.lanes",  # a warp instruction in a divergent branch
    "unused": "sim.native.codegen.lanes",  # a warp instruction without its results
    "all": "sim.native.codegen.lanes",  # a vote of all threads of a block
}


def in_text(name, maker="isa"):
    """Return the name of an entry of sim.isa in generated code.

    maker: the prefix, a key of MAKERS.
    """
    return f"{maker}_{name.replace('.', '_')}"


@functools.lru_cache(maxsize=1)
def entries_by_text(count):
    """Return {name in generated code: entry of sim.isa}.

    count: the size of the instruction table. It is only a cache key, because a package may add instructions.
    """
    of_warp = {in_text(name, maker): name for name in WARP_WIDE for maker in ("warp", "branch", "unused")}
    of_block = {in_text(name, "all"): name for name in BLOCK_WIDE}
    names = {in_text(name): name for name in INSTRUCTIONS} | of_warp | of_block
    return {text: INSTRUCTIONS[name] for text, name in names.items()}


def entry_of(name):
    """Return the entry of sim.isa with this name in generated code, or None if there is none."""
    return entries_by_text(len(INSTRUCTIONS)).get(name)


def home_of(name):
    """Return the module that defines this name used in generated code, or None if no module does."""
    return MAKERS[name.partition("_")[0]] if entry_of(name) else exported_functions().get(name)


def make_getattr(module, make):
    """Return the `__getattr__` of a module in MAKERS. It makes a function by calling `make(entry, maker)`."""

    def __getattr__(name):
        if entry_of(name) is None or home_of(name) != module:
            raise AttributeError(f"module {module} has no attribute {name!r}")
        return make(entry_of(name), name.partition("_")[0])

    return __getattr__
