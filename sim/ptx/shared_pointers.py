"""Pointers to shared memory that another block or a later launch uses.

Shared memory has the same addresses in every block, so a pointer does not show which block took it. If a
kernel stores generic pointers to shared memory, the simulator adds a tag to the upper bits of these pointers,
which identifies the launch and the block. Each generic access compares the tag with the running block. All
other kernels use plain addresses.
"""

import itertools
import weakref

from sim.events import ADDRESS_BITS, ADDRESS_MASK, SHARED, SPACE_SHIFT, Finding, index_text
from sim.ptx.accesses import access_of
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Instruction

BLOCK_BITS, LAUNCH_BITS = 16, 12  # the bits of a tag, which follow the bits of an address
LAUNCHES, NUMBERS = {}, itertools.count(1)  # number of a launch modulo 2**LAUNCH_BITS -> (kernel, grid)
OWN = (
    "Each block has its own shared memory: a pointer to shared memory is valid only in the block that took"
    " it, and only until that block ends."
)
ASSUMED = "The compiler has assumed that a pointer in global memory does not refer to shared memory."
# opcodes whose result is a pointer if an operand is one
DERIVING = {"add", "sub", "mov", "selp", "cvta", "and", "or", "mad"}


def stores_shared_pointers(function):
    """Return whether a function stores a generic pointer to shared memory outside shared memory, or passes
    it to another function. Kernels that map addresses of their cluster do not count."""
    items = [item for item in function.body or () if isinstance(item, Instruction)]
    # because the blocks of a cluster can access each other's shared memory
    if any(item.names[0] in ("mapa", "getctarank") for item in items):
        return False
    found, before = set(), -1
    while len(found) > before:
        before = len(found)
        for item in items:
            made = item.names[0] == "cvta" and "shared" in item.names and "to" not in item.names
            read, written = read_and_written(item)
            if made or item.names[0] in DERIVING and read & found:
                found |= written
    return any(stores_pointer(item, found) for item in items) if found else False


def stores_pointer(item, pointers):
    """Return whether an instruction stores one of these registers outside shared memory."""
    if item.names[0] == "atom":
        return bool({r.name for o in item.operands[2:] for r in registers_in(o)} & pointers)
    access = access_of(item, ("st",))
    if access is None or access.space == "shared":
        return False
    address, value = ({r.name for r in registers_in(operand)} for operand in item.operands)
    # A generic address computed from a pointer to shared memory is in shared memory too.
    return bool(value & pointers) and not (access.space == "generic" and address & pointers)


def any_function_stores_shared_pointers(program):
    """Return `stores_shared_pointers` for any function in the module of a Program."""
    key = any_function_stores_shared_pointers, None
    if key not in program.analyses:
        program.analyses[key] = any(map(stores_shared_pointers, program.text.functions.values()))
    return program.analyses[key]


class SharedPointers:
    """The tags of one run of a launch."""

    def __init__(self, run):
        self.context, self.launch = run.context, run.launch
        store = run.store
        if store.tagged_launch() is not run.launch:
            number = next(NUMBERS) % (1 << LAUNCH_BITS)
            store.tagged_launch, store.launch_number = weakref.ref(run.launch), number
            LAUNCHES[number] = run.launch.function.__name__, run.launch.grid
        self.number = store.launch_number

    def tag(self):
        """Return the tag of the running block, shifted above the bits of an address."""
        x, y, z = self.context.thread.block.index
        width, height, _ = self.launch.grid
        block = (x + width * (y + height * z)) % (1 << BLOCK_BITS)
        return (self.number << BLOCK_BITS | block) << ADDRESS_BITS

    def strip(self, address, site, what):
        """Return a generic address without its tag. Report a tag of another block or launch.

        If the address is not in shared memory, or if its upper bits are not a tag, return it unchanged.
        """
        if not self.is_tagged(address):
            return address
        if address & ~ADDRESS_MASK != self.tag():
            self.report(address, site, what)
        return address & ADDRESS_MASK

    def make_strip(self, site):
        """Return the function (generic address) that strips the tag of an address that the program converts
        to an address in shared memory."""
        return lambda address: self.strip(address, site, "read")

    def is_tagged(self, address):
        """Return whether an address is a tagged pointer to shared memory."""
        tagged = address >> ADDRESS_BITS + BLOCK_BITS in LAUNCHES
        return tagged and address >> SPACE_SHIFT & 3 == SHARED

    def report(self, address, site, what):
        """Report an access through a pointer of another block or launch, or through a pointer for which the
        compiler has assumed another state space."""
        self.context.findings.append(self.finding(address >> ADDRESS_BITS, site, what))

    def finding(self, tag, site, what):
        """Return the finding for an access through a pointer with this tag."""
        number, block = tag >> BLOCK_BITS, tag & (1 << BLOCK_BITS) - 1
        kernel, (width, height, _) = LAUNCHES[number]
        index = block % width, block // width % height, block // (width * height)
        owner = f"block {index_text(index)}"
        if number != self.number:
            owner += f" of an earlier launch of {kernel}"
        return Finding(
            "out-of-bounds",
            "error",
            f"shared memory of {owner} is {what} through a pointer",
            (self.context.witness(what, site),),
            reason=ASSUMED if tag << ADDRESS_BITS == self.tag() else OWN,
            fix="keep the data in global memory if another block or a later launch uses it",
        )
