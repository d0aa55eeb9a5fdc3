"""The names that lowered text may use, and the module that defines each."""

import functools
import importlib

from sim.isa.table import BLOCK_WIDE, INSTRUCTIONS, WARP_WIDE

HOMES = (
    "sim.native.codegen.thread_index",
    "sim.native.codegen.synchronization",
    "sim.native.codegen.elements",
    "sim.native.codegen.access_log",
    "sim.native.codegen.atomics",
    "sim.native.codegen.half_operators",
    "sim.native.codegen.vectors",
)
GEOMETRY = ("threadIdx", "blockIdx", "blockDim", "gridDim")
SPECIAL = ("state", "thread", *GEOMETRY)  # names that a function may need besides its parameters
# what comes before `state` among the parameters of a whole kernel
GRID_PARAMETERS = ("first_position", "end_position", "grid_shape", "block_shape", "while_limit", "for_limit")
MODULES = {"math": "math", "cmath": "cmath", "numpy": "np", "operator": "operator", "_operator": "operator"}
RESERVED = {
    *SPECIAL,
    *MODULES.values(),
    "numba",
    "compiled",
    "kernel",
    "recursive",
    "spill_buffer",
    "SPILLED",
    "warp",
    "threads",
    "exit_code",
    "bounds",
    "position",
    *GRID_PARAMETERS,
}  # names that every lowered text has


@functools.cache
def homes():
    """Return {name: module} of every function that the modules in HOMES offer to lowered text."""
    return {name: home for home in HOMES for name in importlib.import_module(home).EXPORTED}


# maker -> the module that makes from an entry of sim.isa the function that lowered text calls
MAKERS = {
    "isa": "sim.native.codegen.isa_functions",
    "warp": "sim.native.codegen.lanes",
    "unused": "sim.native.codegen.lanes",  # without its results
    "all": "sim.native.codegen.lanes",  # a vote of a block
}


def in_text(name, maker="isa"):
    """Return the name in lowered text for a name of sim.isa's table."""
    return f"{maker}_{name.replace('.', '_')}"


@functools.lru_cache(maxsize=1)
def entries(count):
    """Return {name in lowered text: entry} of the table. `count`, the table's length, is the cache key."""
    of_warp = {in_text(name, maker): name for name in WARP_WIDE for maker in ("warp", "unused")}
    of_block = {in_text(name, "all"): name for name in BLOCK_WIDE}
    names = {in_text(name): name for name in INSTRUCTIONS} | of_warp | of_block
    return {text: INSTRUCTIONS[name] for text, name in names.items()}


def entry_of(name):
    """Return the entry of the table with this name in lowered text, or None."""
    return entries(len(INSTRUCTIONS)).get(name)


def home_of(name):
    return MAKERS[name.partition("_")[0]] if entry_of(name) else homes().get(name)


def offering(module, make):
    """Return the `__getattr__` of a module in MAKERS, which calls `make(entry, maker)`."""

    def __getattr__(name):
        if entry_of(name) is None or home_of(name) != module:
            raise AttributeError(f"module {module} has no attribute {name!r}")
        return make(entry_of(name), name.partition("_")[0])

    return __getattr__
