"""Operands that must be equal in all lanes of a warp: the address and the stride of a matrix that `wmma`
loads or stores.

Source: CUDA C++ Programming Guide, "Warp Matrix Functions" (mptr and ldm must be the same for all threads of
the warp); PTX ISA, "wmma.load" and "wmma.store" (the behaviour is undefined otherwise).
"""

from sim.isa.invalid import InvalidOperand


class EqualOperands:
    """The operands that the lanes of one block have passed to their last call at each place."""

    def __init__(self):
        # (warp, id of the code object, position in it) -> {lane: (its Thread, address, stride)}
        self.given = {}

    def compare(self, name, thread, frame, address, stride):
        """Record the operands of the current thread. If this thread is the last one of its warp to arrive,
        and two lanes have passed different operands, raise InvalidOperand.

        name: the instruction as it is named in findings.
        """
        given = self.given.setdefault((thread.warp, id(frame.f_code), frame.f_lasti), {})
        if thread.lane in given:  # all lanes have completed the recorded call
            given.clear()
        given[thread.lane] = thread, address, stride
        if all(given.get(lane) for lane in lanes(thread.block.lanes_alive[thread.warp])):
            first, *others = (given[lane] for lane in sorted(given))
            for other in others:
                if other[1:] != first[1:]:
                    raise different_operands(name, first, other)


def lanes(mask):
    return (lane for lane in range(mask.bit_length()) if mask >> lane & 1)


def different_operands(name, first, other):
    """Return the InvalidOperand for two lanes. Each is described by (its Thread, address, stride)."""
    (one, address, stride), (two, other_address, other_stride) = first, other
    if address != other_address:
        operand, values = "address", f"addresses that are {abs(other_address - address):,} bytes apart"
    else:
        operand, values = "stride", f"the strides {stride} and {other_stride}"
    return InvalidOperand(
        f"lanes {one.lane} and {two.lane} of a warp pass {values} to {name}",
        "The lanes of a warp access one matrix together, so the address and the stride must be the same in"
        " all lanes. With different values, the behaviour is undefined.",
        f"compute the {operand} only from values that all lanes of the warp share; the instruction itself"
        " distributes the elements of the matrix over the lanes",
        threads=(one, two),
    )
