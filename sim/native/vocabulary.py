"""The names that lowered text may use, and the module that has each."""

import functools
import importlib

from sim.isa.table import WARP_WIDE

HOMES = (
    "sim.native.threads",
    "sim.native.regions",
    "sim.native.lanes",
    "sim.native.elements",
    "sim.native.views",
    "sim.native.logged",
    "sim.native.scalars",
    "sim.native.atomics",
    "sim.native.halves",
    "sim.native.vectors",
)
GEOMETRY = ("threadIdx", "blockIdx", "blockDim", "gridDim")
SPECIAL = ("state", "thread", *GEOMETRY)  # what a function may need besides its parameters
# what comes before `state` among the parameters of a whole kernel
WALK = ("first_position", "end_position", "grid_shape", "block_shape", "most_rounds", "most_trips")
MODULES = {"math": "math", "cmath": "cmath", "numpy": "np", "operator": "operator", "_operator": "operator"}
RESERVED = {
    *SPECIAL,
    *MODULES.values(),
    "numba",
    "compiled",
    "generator",
    "kernel",
    "warp",
    "threads",
    "answer",
    "bounds",
    "position",
    *WALK,
}  # names that lowered text has of itself


@functools.cache
def homes():
    """{name: module} of every function that the modules in HOMES offer to lowered text."""
    return {name: home for home in HOMES for name in importlib.import_module(home).OFFERED}


def in_text(name):
    """A name of the table as lowered text has it."""
    return name.replace(".", "_")


@functools.cache
def warp_wide(count):
    """{name in lowered text: name} of the instructions of warps, of which there are `count`."""
    return {in_text(name): name for name in sorted(WARP_WIDE)}


def instruction_of(name):
    """The instruction of a warp that `warp_NAME` or `unused_NAME` carries out, or None."""
    before, _, rest = name.partition("_")
    return warp_wide(len(WARP_WIDE)).get(rest) if before in ("warp", "unused") else None


def home_of(name):
    if instruction_of(name):
        return "sim.native.lanes"
    if name.startswith("all_"):  # a vote of a block
        return "sim.native.regions"
    return "sim.native.functions" if name.startswith("isa_") else homes().get(name)
