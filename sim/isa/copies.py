"""cp.async: a thread starts copies from global to shared memory, continues, and waits for them later.

An element is given as in memory.read: (array, index) in Python kernels, (state space, address) in PTX.

Source: PTX ISA 9.7.9.25.3, "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

import numpy as np

from sim.isa.memory import memory_instruction


def cp_async(size):
    """Add the copy of `size` bytes. Of these, `valid` bytes are read from the source, and the rest are
    zeros."""

    def semantics(memory, tile, index, source, source_index, valid):
        if not 0 <= valid <= size:
            raise ValueError(f"cp_async_{size} takes 0 to {size} bytes of its source, got {valid}")
        data, read = np.zeros(size, np.uint8), None
        if valid:
            read = memory.source(source, source_index, valid, size)
            data[:valid] = read.memory
        memory.send(tile, index, data, read)

    memory_instruction(name=f"cp_async_{size}", source="PTX ISA cp.async")(semantics)


for _size in (4, 8, 16):
    cp_async(_size)


@memory_instruction(source="PTX ISA cp.async.commit_group", ptx=("cp.async.commit_group",))
def cp_async_commit(memory):
    memory.commit()


@memory_instruction(source="PTX ISA cp.async.wait_group", ptx=("cp.async.wait_group",))
def cp_async_wait(memory, groups):
    """Wait for all groups except the newest `groups`."""
    memory.receive(groups)


@memory_instruction(source="PTX ISA cp.async.wait_all", ptx=("cp.async.wait_all",))
def cp_async_wait_all(memory):
    memory.commit()
    memory.receive(0)
