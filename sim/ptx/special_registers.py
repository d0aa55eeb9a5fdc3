"""Special registers as Python expressions. The simulator models a single multiprocessor.

Source: PTX ISA, chapter 10, "Special Registers".
"""

from sim.isa.registers import Missing
from sim.ptx.grid_sync import HIGH, LOW
from sim.ptx.regions import RESERVED
from sim.ptx.timed import CLOCKS

# register with three components -> Python expression, with a placeholder for the index of the component
COORDINATES = {"tid": "thread.index[{}]", "ctaid": "thread.block.index[{}]"}
# register with a single component -> Python expression
SPECIALS = {
    "laneid": "thread.lane",
    "warpid": "thread.warp",
    "lanemask_eq": "(1 << thread.lane)",
    "lanemask_lt": "((1 << thread.lane) - 1)",
    "lanemask_le": "((2 << thread.lane) - 1)",
    "lanemask_gt": "(0xFFFFFFFF & -(2 << thread.lane))",
    "lanemask_ge": "(0xFFFFFFFF & -(1 << thread.lane))",
    "smid": "0",
    "nsmid": "1",
    "gridid": "0",
    "cluster_ctarank": "thread.block.rank",
    "cluster_nctarank": "len(thread.block.cluster)",
}


def expression(program, name):
    """Return the expression for a special register in the source of a Program. Raise Missing for an
    unsupported register."""
    stem, _, axis = name.partition(".")
    if stem in COORDINATES and axis in tuple("xyz"):
        return COORDINATES[stem].format("xyz".index(axis))
    if stem in ("ntid", "nctaid") and axis in tuple("xyz"):
        return program.shared_name(f"{stem}_{axis}", lambda run: run.extent(stem, axis))
    if stem in ("cluster_nctaid", "nclusterid") and axis in tuple("xyz"):
        return program.shared_name(f"{stem}_{axis}", lambda run: run.extent(stem, axis))
    # Without an explicit cluster launch, each block is a cluster by itself (PTX ISA, chapter 10).
    if stem in ("cluster_ctaid", "clusterid") and axis in tuple("xyz"):
        size = program.shared_name(f"cluster_nctaid_{axis}", lambda run: run.extent("cluster_nctaid", axis))
        return f"(thread.block.index[{'xyz'.index(axis)}] {'%' if stem == 'cluster_ctaid' else '//'} {size})"
    if stem == "is_explicit_cluster":
        return program.shared_name(stem, lambda run: run.extent(stem, None))
    if stem in ("nwarpid", "dynamic_smem_size", "total_smem_size", "aggr_smem_size"):
        return program.shared_name(stem, lambda run: run.extent(stem, None))
    if stem == RESERVED.name:
        program.used.add("shared")
        return program.shared_name(stem, lambda run: run.address(RESERVED))
    if stem in (HIGH, LOW):
        return program.shared_name(stem, lambda run: run.workspace_address(stem))
    # All clock registers read the same simulated clock.
    if stem in CLOCKS:
        return program.shared_name("clock", lambda run: run.context.clock.read) + "()"
    if stem in SPECIALS:
        return SPECIALS[stem]
    raise Missing(f"%{name} is neither declared nor a special register that sim supports")
