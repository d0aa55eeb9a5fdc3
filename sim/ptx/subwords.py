"""Recognition of atomics on 8 and 16 bits that a program emulates by accesses to the surrounding word.

libcu++ computes the address of the word as `pointer & ~3` and changes only the bytes at `pointer`. The
simulator treats such an access as an access to these bytes. Otherwise, it would race with accesses to the
adjacent bytes, and it would be out of bounds if an array ends within the word.
"""

from typing import NamedTuple

import numpy as np

from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Address, Immediate, Instruction, Register

WORDS = {-4: "b32", -2: "b16"}  # mask that aligns the address -> type of the access
MASKS = {255: 1, 65535: 2}  # mask that selects the element in the word -> size of the element in bytes
MASK64 = (1 << 64) - 1


class Subword(NamedTuple):
    """The bytes of a word accessed by an emulated atomic. The register `pointer` contains their address."""

    pointer: Register
    nbytes: int


def nbytes_of(subword):
    """Return the size of a Subword in bytes, or None if `subword` is None."""
    return subword and subword.nbytes


class Subwords:
    """The emulated atomics in a function."""

    def __init__(self, function):
        instructions = [item for item in function.body if isinstance(item, Instruction)]
        self.definitions = {}  # register -> the instructions that write it
        for item in instructions:
            for name in read_and_written(item)[1]:
                self.definitions.setdefault(name, []).append(item)
        self.instructions = instructions

    def find(self, item):
        """Return the Subword to which a strong access applies, or None if the access applies to a whole
        element."""
        address = next((operand for operand in item.operands if isinstance(operand, Address)), None)
        if address is None or address.offset or not isinstance(address.base, Register):
            return None
        rounded = self.definition(address.base)
        if rounded is None or rounded.opcode != "and.b64":
            return None
        _, pointer, mask = rounded.operands
        if not isinstance(mask, Immediate) or self.definition(pointer) is None:
            return None
        width = WORDS.get((mask.value & MASK64) - (1 << 64))
        if width is None or item.names[-1] != width and not self.is_guess(item, address, width):
            return None
        return Subword(pointer, self.element_bytes(pointer) if width == "b32" else 1)

    def is_guess(self, item, address, width):
        """Return whether an access only reads the word that a compare-and-swap at the same address changes.

        The access is a load, or an atomic addition of 0. The program repeats the compare-and-swap if the
        value that was read is out of date.
        """
        if item.names[-1] != width.replace("b", "u"):
            return False
        adds = item.names[0] == "atom" and "add" in item.names
        if not adds and item.names[0] != "ld" or adds and getattr(item.operands[2], "value", None) != 0:
            return False
        swaps = (i for i in self.instructions if i.names[0] == "atom" and {"cas", width} <= {*i.names})
        return any(swap.operands[1] == address for swap in swaps)

    def definition(self, register):
        """Return the instruction that defines a register. Return None if the instruction is guarded, or if
        there are several."""
        found = self.definitions.get(getattr(register, "name", None), ())
        return found[0] if len(found) == 1 and found[0].guard is None else None

    def element_bytes(self, pointer):
        """Return the size of the element in bytes, determined by the mask that the program shifts to the
        element's position. Without such a mask, the size is 1."""
        shifts = self.offsets(pointer)
        for item in self.instructions:
            if item.names[0] == "shl" and getattr(item.operands[2], "name", None) in shifts:
                value = item.operands[1]
                moved = None if isinstance(value, Immediate) else self.definition(value)
                value = moved.operands[1] if moved is not None and moved.names[0] == "mov" else value
                if isinstance(value, Immediate) and value.value in MASKS:
                    return MASKS[value.value]
        return 1

    def offsets(self, pointer):
        """Return the names of the registers that contain `8 * (pointer % 4)` or an intermediate result."""
        found, more = {pointer.name}, True
        while more:
            steps = [i for i in self.instructions if i.names[0] in ("cvt", "shl", "and", "mov")]
            more = {
                item.operands[0].name
                for item in steps
                if getattr(item.operands[1], "name", None) in found and isinstance(item.operands[0], Register)
            } - found
            found |= more
        return found


class Word:
    """An array of one element: a word in a region. Bytes outside the region are zero."""

    __slots__ = ("bounds", "region", "size", "start")

    def __init__(self, region, address, size):
        self.region, self.size = region, size
        first, last = max(address, region.base), min(address + size, region.end)
        self.start = first - address  # the number of bytes of the word before the region
        self.bounds = slice(first - region.base, last - region.base)

    def __getitem__(self, _):
        return int.from_bytes(self.region.root[self.bounds].tobytes(), "little") << 8 * self.start

    def __setitem__(self, _, value):
        part = self.region.root[self.bounds]
        whole = value.to_bytes(self.size, "little")[self.start : self.start + len(part)]
        part[:] = np.frombuffer(whole, np.uint8)
