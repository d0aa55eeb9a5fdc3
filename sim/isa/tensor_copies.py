"""Tensor copies (cp.async.bulk.tensor): TMA copies of a box of a tensor with 1 to 5 dimensions, in tile mode.

The tensor map is 128 bytes at (map, map_index). Coordinates begin with the innermost dimension.

Source: PTX ISA 9.7.9.25.5, "Tensor copy": cp.async.bulk.tensor, cp.reduce.async.bulk.tensor; 5.5.3, "Tiled
    Mode"."""

import numpy as np

from sim.isa.bulk import bulk_instruction, combine

ALIGNMENT = 128  # alignment in bytes of the address in shared memory (PTX ISA, cp.async.bulk.tensor)
# type in a tensor map -> PTX type of a reduction
REDUCED = {"u8": "u32", "f32_ftz": "f32", "tf32": "f32", "tf32_ftz": "f32"}


def load_box(memory, located, tile, index, spans, data, barrier):
    """Issue the copy of a box to the shared memory of one block."""
    kind = located.map
    target = memory.bulk_spot(tile, index, kind.room, ALIGNMENT, "store")
    if target.address is not None:
        placed = target.memory.copy()
        placed[kind.places(target.address)] = data
        data = placed
    targets = [memory.target(target, data)]
    pending = memory.issue("tensor copy", spans, targets, "mbarrier", barrier, nbytes=kind.nbytes)
    if pending:
        memory.note_tile(target.address, kind, pending.operation)


def gather(memory, located, coordinates):
    """Return (Spots of the parts of a box that are inside the tensor, the bytes of the whole box)."""
    in_box, addresses, length = located.spans(coordinates)
    spans = [memory.tensor_spot(located, int(address), length, "load") for address in addresses]
    data = located.map.fill().copy()
    for begin, spot in zip(in_box.tolist(), spans):
        data[begin : begin + length] = spot.memory
    return spans, located.map.converted(data)


@bulk_instruction(source="PTX ISA cp.async.bulk.tensor")
def cp_async_bulk_tensor_load(memory, tile, index, map, map_index, coordinates, where, place):
    """Copy a box to shared memory. The mbarrier at (where, place) counts its bytes."""
    located, barrier = memory.tensor_map(map, map_index, coordinates), memory.barrier(where, place)
    if barrier is not None:
        spans, data = gather(memory, located, coordinates)
        load_box(memory, located, tile, index, spans, data, barrier)


@bulk_instruction(source="PTX ISA cp.async.bulk.tensor")
def cp_async_bulk_tensor_multicast(memory, tile, index, map, map_index, coordinates, where, place, mask):
    """Copy a box to the same address in the blocks of the cluster whose bits are set in `mask`."""
    located = memory.tensor_map(map, map_index, coordinates)
    spans, data = gather(memory, located, coordinates)
    for rank in memory.ranks(mask):
        with memory.in_block(rank):
            barrier = memory.barrier(where, place)
            if barrier is not None:
                load_box(memory, located, tile, index, spans, data, barrier)


def store_box(memory, map, map_index, coordinates, tile, index, kind, combined=None):
    located = memory.tensor_map(map, map_index, coordinates)
    described = located.map
    source = memory.bulk_spot(tile, index, described.room, ALIGNMENT, "load")
    if source.address is None:
        return
    places = described.places(source.address)
    data = source.memory[places]
    in_box, addresses, length = located.spans(coordinates)
    action = "store" if combined is None else "atomic"
    targets = [
        memory.target(
            memory.tensor_spot(located, int(address), length, action), data[begin : begin + length], combined
        )
        for begin, address in zip(in_box.tolist(), addresses)
    ]
    read = [source]
    if 0 < len(in_box) * length < described.nbytes:
        # The parts of the box outside the tensor need no values.
        inside = [places[begin : begin + length] for begin in in_box.tolist()]
        read = [part for offsets in inside for part in runs(source, offsets)]
    memory.issue(kind, read, targets, "group", element=described.itemsize if combined else 16)


def runs(spot, offsets):
    """Split a Spot into one Spot for each run of adjacent bytes among the given offsets, which are ascending
    or swizzled."""
    ends = np.flatnonzero(np.diff(offsets) != 1) + 1
    return [
        type(spot)(spot.address + int(part[0]), spot.memory[part[0] : part[-1] + 1])
        for part in np.split(offsets, ends)
    ]


@bulk_instruction(source="PTX ISA cp.async.bulk.tensor")
def cp_async_bulk_tensor_store(memory, map, map_index, coordinates, tile, index):
    """Copy a box from shared to global memory. The parts of the box outside the tensor are not written."""
    store_box(memory, map, map_index, coordinates, tile, index, "tensor copy")


@bulk_instruction(source="PTX ISA cp.reduce.async.bulk.tensor")
def cp_reduce_async_bulk_tensor(memory, map, map_index, coordinates, tile, index, operation):
    """Combine a box from shared memory with global memory, element by element and atomically."""
    kind = memory.tensor_map(map, map_index, coordinates).map.type
    combined = combine(operation, REDUCED.get(kind, kind))
    store_box(memory, map, map_index, coordinates, tile, index, "tensor reduction", combined)
