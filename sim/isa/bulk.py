"""Bulk copies (cp.async.bulk) between global and shared memory, which a thread starts and the async proxy
performs.

An element is identified as in memory.read (sim.isa.memory). In PTX, a location in the shared memory of
another block of the cluster has the state space "cluster".

Source: PTX ISA 9.7.9.25.4, "Bulk copy": cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.prefetch,
cp.async.bulk.commit_group, cp.async.bulk.wait_group; 9.7.13.4, "membar, fence": fence.proxy.
"""

import numpy as np
from ml_dtypes import bfloat16

from sim.isa.memory import memory_instruction
from sim.isa.table import ASYNCHRONOUS

ALIGNMENT = 16  # bytes, of both addresses and the size (PTX ISA, cp.async.bulk)
GLOBAL, SHARED = 0, 2  # the numbers of state spaces (sim.sites)


def bulk_instruction(**more):
    """Return a decorator like memory_instruction, for an instruction of the async proxy."""

    def add_entry(semantics):
        entry = memory_instruction(**more)(semantics)
        ASYNCHRONOUS.add(entry.name)
        return entry

    return add_entry


def check_size(memory, size, barrier=None):
    """Report a finding if the size is not a multiple of 16 bytes. Return whether the copy can be
    performed."""
    return memory.check_bulk_size(size, ALIGNMENT, barrier)


@bulk_instruction(source="PTX ISA cp.async.bulk")
def cp_async_bulk_load(memory, tile, index, source, source_index, size, where, place):
    """Copy `size` bytes to shared memory. The mbarrier at (where, place) counts these bytes."""
    barrier = memory.barrier(where, place)
    if barrier is None or not check_size(memory, size, barrier):
        return
    source = memory.bulk_spot(source, source_index, size, ALIGNMENT, "load")
    target = memory.bulk_spot(tile, index, size, ALIGNMENT, "store")
    memory.issue("bulk copy", [source], [memory.target(target, source.memory.copy())], "mbarrier", barrier)


@bulk_instruction(source="PTX ISA cp.async.bulk")
def cp_async_bulk_multicast(memory, tile, index, source, source_index, size, where, place, mask):
    """Copy `size` bytes to the same address in the blocks of the cluster whose bits are set in `mask`."""
    if not check_size(memory, size):
        return
    source = memory.bulk_spot(source, source_index, size, ALIGNMENT, "load")
    for rank in memory.ranks(mask):
        with memory.in_block(rank):
            barrier = memory.barrier(where, place)
            target = memory.bulk_spot(tile, index, size, ALIGNMENT, "store")
            if barrier is not None:
                data = memory.target(target, source.memory.copy())
                memory.issue("bulk copy", [source], [data], "mbarrier", barrier)


@bulk_instruction(source="PTX ISA cp.async.bulk")
def cp_async_bulk_store(memory, target, target_index, tile, index, size):
    """Copy `size` bytes from shared to global memory. The copy belongs to the thread's next bulk async-
    group."""
    if not check_size(memory, size):
        return
    source = memory.bulk_spot(tile, index, size, ALIGNMENT, "load")
    spot = memory.bulk_spot(target, target_index, size, ALIGNMENT, "store")
    memory.issue("bulk copy", [source], [memory.target(spot, source.memory.copy())], "group")


# the operations of cp.reduce.async.bulk -> their numpy functions
REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype),
}
# the PTX types of cp.reduce.async.bulk -> the types of their elements
ELEMENTS = {"f16": np.float16, "bf16": bfloat16, "f32": np.float32, "f64": np.float64}
ELEMENTS |= {
    f"{letter}{bits}": np.dtype(f"{'i' if letter == 's' else 'u'}{bits // 8}")
    for letter in "usb"
    for bits in (32, 64)
}


def combine(operation, ptx_type):
    """Return the function (old bytes, data bytes) for a reduction of elements of a PTX type."""
    dtype, reduce = np.dtype(ELEMENTS[ptx_type]), REDUCTIONS[operation]

    def combined(old, data):
        return np.ascontiguousarray(reduce(old.view(dtype), data.view(dtype)).astype(dtype)).view(np.uint8)

    return combined


@bulk_instruction(source="PTX ISA cp.reduce.async.bulk")
def cp_reduce_async_bulk_store(memory, target, target_index, tile, index, size, operation, ptx_type):
    """Combine `size` bytes from shared memory with global memory, element by element and atomically."""
    if not check_size(memory, size):
        return
    source = memory.bulk_spot(tile, index, size, ALIGNMENT, "load")
    spot = memory.bulk_spot(target, target_index, size, ALIGNMENT, "atomic")
    element = np.dtype(ELEMENTS[ptx_type]).itemsize
    data = memory.target(spot, source.memory.copy(), combine(operation, ptx_type))
    memory.issue("bulk reduction", [source], [data], "group", element=element)


@bulk_instruction(source="PTX ISA cp.reduce.async.bulk")
def cp_reduce_async_bulk_cluster(
    memory, tile, index, source, source_index, size, where, place, operation, ptx_type
):
    """Combine `size` bytes with the shared memory of a block of the cluster. The mbarrier counts these
    bytes."""
    barrier = memory.barrier(where, place)
    if barrier is None or not check_size(memory, size, barrier):
        return
    source = memory.bulk_spot(source, source_index, size, ALIGNMENT, "load")
    spot = memory.bulk_spot(tile, index, size, ALIGNMENT, "atomic")
    element = np.dtype(ELEMENTS[ptx_type]).itemsize
    data = memory.target(spot, source.memory.copy(), combine(operation, ptx_type))
    memory.issue("bulk reduction", [source], [data], "mbarrier", barrier, element=element)


@bulk_instruction(source="PTX ISA cp.async.bulk.commit_group", ptx=("cp.async.bulk.commit_group",))
def cp_async_bulk_commit_group(memory):
    """Commit all uncommitted bulk operations of the thread to a new bulk async-group."""
    memory.commit_bulk()


@bulk_instruction(source="PTX ISA cp.async.bulk.wait_group", ptx=("cp.async.bulk.wait_group",))
def cp_async_bulk_wait_group(memory, groups):
    """Wait until at most the newest `groups` bulk async-groups of the thread are pending."""
    memory.wait_bulk(groups, sources=False)


@bulk_instruction(source="PTX ISA cp.async.bulk.wait_group", ptx=("cp.async.bulk.wait_group.read",))
def cp_async_bulk_wait_group_read(memory, groups):
    """Wait until all bulk async-groups except the newest `groups` have read their sources."""
    memory.wait_bulk(groups, sources=True)


@bulk_instruction(source="PTX ISA cp.async.bulk.wait_group")
def cp_async_bulk_wait_all(memory):
    """Wait for all bulk async-groups of the thread."""
    memory.wait_bulk(0, sources=False)


@bulk_instruction(source="PTX ISA cp.async.bulk.wait_group")
def cp_async_bulk_wait_all_read(memory):
    """Wait until all bulk async-groups of the thread have read their sources."""
    memory.wait_bulk(0, sources=True)


@bulk_instruction(source="PTX ISA membar, fence", ptx=("fence.mbarrier_init.release.cluster",))
def fence_mbarrier_init(memory):
    """Order initialisations of mbarriers before a relaxed arrival at the barrier of the cluster."""
    memory.context.announce_ordering("fenced", "grid")


def proxy_fence(name, spaces, *ptx):
    """Add a fence between the generic proxy and the async proxy to the table.

    spaces: the numbers of the state spaces.
    """

    def semantics(memory):
        memory.fence_proxy(spaces)

    return bulk_instruction(name=name, source="PTX ISA membar, fence", ptx=ptx)(semantics)


PROXY_FENCES = [
    proxy_fence("fence_proxy_async", (GLOBAL, SHARED), "fence.proxy.async"),
    proxy_fence("fence_proxy_async_global", (GLOBAL,), "fence.proxy.async.global"),
    proxy_fence(
        "fence_proxy_async_shared",
        (SHARED,),
        "fence.proxy.async.shared::cta",
        "fence.proxy.async.shared::cluster",
    ),
]
