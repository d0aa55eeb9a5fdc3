"""Asynchronous non-bulk copies (cp.async). A thread starts copies from global to shared memory, continues,
and waits for them later.

An element is identified as in memory.read: by (array, index) in Python kernels, and by (state space, address)
in PTX.

Source: PTX ISA 9.7.9.25.3, "Non-bulk copy": cp.async, cp.async.commit_group, cp.async.wait_group,
cp.async.wait_all.
"""

import numpy as np

from sim.isa.invalid import InvalidOperand
from sim.isa.memory import memory_instruction


def cp_async(size):
    """Add the cp.async for copies of `size` bytes to the table.

    The copy reads `valid` bytes from the source (the operand src-size in PTX), and fills the remaining bytes
    of the destination with zeros.
    """

    def semantics(memory, tile, index, source, source_index, valid):
        if not 0 <= valid <= size:
            raise InvalidOperand(
                f"cp.async copies {valid:,} bytes of its source to {size} bytes",
                f"The number of bytes that it reads (src-size) is at least 0 and at most {size}.",
                f"limit the number of remaining bytes on both sides: min(max(remaining, 0), {size})",
            )
        # The simulator reads the source when the copy starts. A write to the source before the copy is
        # complete is a race, so `send` also needs the Spot of the source.
        read = memory.source(source, source_index, valid, size) if valid else None
        if valid == size:
            data = read.memory.copy()
        else:
            data = np.zeros(size, np.uint8)
            data[:valid] = read.memory if valid else 0
        memory.send(tile, index, data, read)

    memory_instruction(name=f"cp_async_{size}", source="PTX ISA cp.async")(semantics)


# PTX allows these sizes: .ca copies 4, 8 or 16 bytes, and .cg copies 16 bytes.
for _size in (4, 8, 16):
    cp_async(_size)


@memory_instruction(source="PTX ISA cp.async.commit_group", ptx=("cp.async.commit_group",))
def cp_async_commit(memory):
    """Commit all of the thread's uncommitted copies to a new group."""
    memory.commit()


@memory_instruction(source="PTX ISA cp.async.wait_group", ptx=("cp.async.wait_group",))
def cp_async_wait(memory, groups):
    """Wait until at most the newest `groups` groups of the thread are pending."""
    memory.receive(groups)


@memory_instruction(source="PTX ISA cp.async.wait_all", ptx=("cp.async.wait_all",))
def cp_async_wait_all(memory):
    """Wait for all copies of the thread, committed or not."""
    memory.commit()
    memory.receive(0)
