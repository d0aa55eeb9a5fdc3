"""Recognition of copies of structures, which include the unwritten bytes between the members (padding).

A compiler copies `struct { char a; int b; }` with a load and a store of 8 bytes. The program writes only the
members, so the load reads 3 unwritten bytes. This is not an error if other bytes of the structure are
written, and if the program computes only with written bytes of the loaded registers. The unwritten bytes also
count as unwritten at the destination.

This module finds such loads and stores in the PTX. In a launch, each of these loads produces a Token, and the
stores pass the Token to the observers (`Context.copies`), or to the local and heap memory of this package.
"""

from dataclasses import dataclass

import numpy as np

from sim.events import ADDRESS_MASK, LOCAL, SPACE_SHIFT
from sim.isa.registers import WIDTHS
from sim.ptx.accesses import Access, access_of, address_text, parts
from sim.ptx.demanded_bytes import demanded_bytes
from sim.ptx.regions import WINDOWS
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Group, Instruction, Register, Symbol

LOADS, STORES = {"ld", "ldu"}, {"st"}
MAX_SKIPPED = 8  # the maximum number of bytes between loads of one structure that other loads copy
SHARING = ("generic", "global", "shared", "local")  # the state spaces in which memory can be unwritten


class StructCopies:
    """The loads and stores of one function that may copy a structure with padding.

    windows: {id(load): (first byte, end)}, the bytes of the structure, relative to the address of the load.
    sources: {id(store): [(token name, byte offset in the load, byte offset in the store, bytes)]}.
    """

    def __init__(self, function):
        self.windows, self.sources, self.tokens = {}, {}, {}
        items = [item for item in function.body if isinstance(item, Instruction)]
        narrowest = narrowest_store(items)
        written, readers = {}, {}
        for item in items:
            for register in registers_in(item.operands[0]) if item.operands else ():
                if not reads_first(item):
                    written.setdefault(register.name, []).append(item)
            for name in read_and_written(item)[0]:
                readers.setdefault(name, []).append(item)
        loads = [item for item in items if is_weak_load(item, written)]
        self.readers, self.once = readers, {name for name, by in written.items() if len(by) == 1}
        sizes = {
            part.name: WIDTHS[Access(load.opcode).type] // 8
            for load in loads
            for part in registers_in(load.operands[0])
        }
        demand = demanded_bytes(
            items, lambda item, name: name in sizes and self.copies(item, name, sizes[name])
        )
        chosen = {}  # id(load) -> the offsets of the bytes with which the function computes
        for load in loads:
            computed = frozenset(
                i * sizes[part.name] + byte
                for i, part in enumerate(parts(load.operands[0]))
                if isinstance(part, Register)
                for byte in range(min(demand.get(part.name, 0), sizes[part.name]))
            )
            first, end = byte_range(load)
            if len(computed) < end - first:
                chosen[id(load)] = computed
        for item, window in structure_windows(function.body, chosen):
            # Padding requires a store that is narrower than the structure.
            if window[1] - window[0] > narrowest:
                self.add(item, (*window, item.line, chosen[id(item)]))

    def copies(self, item, name, size):
        """Return whether an instruction only copies a loaded register: it stores the register, or packs it
        into a wider one that is only stored."""
        if is_plain_store(item, size, name):
            return True
        packed = self.packed(item)
        whole = packed and WIDTHS[item.names[-1]] // 8
        return bool(packed) and all(
            is_plain_store(use, whole, packed.name) for use in self.readers.get(packed.name, ())
        )

    def packed(self, item):
        """Return the register into which a `mov` packs several registers, or None."""
        if item.names[0] != "mov" or item.guard or not isinstance(item.operands[1], Group):
            return None
        to = item.operands[0]
        return to if isinstance(to, Register) and to.name in self.once else None

    def add(self, load, window):
        """Record a load and the stores of its registers."""
        size = WIDTHS[Access(load.opcode).type] // 8
        token = self.tokens[id(load)] = next(registers_in(load.operands[0]))
        self.windows[id(load)] = window
        for i, part in enumerate(parts(load.operands[0])):
            for use in self.readers.get(getattr(part, "name", None), ()):
                self.add_use(use, part, (token, i * size), 0, size)

    def add_use(self, use, register, source, offset, size):
        """Record a use of a loaded register, or of a register into which it was packed.

        source: (token, byte offset in the load).
        offset, size: the first byte and the number of bytes of the loaded register in `register`.
        """
        if (access := access_of(use, STORES)) is not None:
            for j, value in enumerate(parts(use.operands[1])):
                if value == register:
                    found = *source, j * WIDTHS[access.type] // 8 + offset, size
                    known = self.sources.setdefault(id(use), [])
                    known += [found] * (found not in known)
        elif not offset and (packed := self.packed(use)) is not None:
            for j, value in enumerate(use.operands[1].parts):
                if value == register:
                    for store in self.readers.get(packed.name, ()):
                        self.add_use(store, packed, source, j * size, size)

    # --- statements -----------------------------------------------------------------------------------------

    def initialise(self, writer):
        """Emit the initial value of each token."""
        for register in self.tokens.values():
            writer.emit(f"{token_name(writer, register)} = None")

    def after(self, writer, item):
        """Emit the statement that follows a load or store that may copy a structure."""
        if (token := self.tokens.get(id(item))) is not None:
            access, window = Access(item.opcode), self.windows[id(item)]
            size = access.count * WIDTHS[access.type] // 8
            site = writer.module.site("load")
            name = writer.module.new_name(
                "copied", lambda run: run.memory.struct_copier.make_load(access.space, size, window, site)
            )
            writer.emit(f"{token_name(writer, token)} = {name}({address_text(writer, item.operands[1])})")
            writer.origins.forget_padding(item, token_name(writer, token))
        elif sources := self.sources.get(id(item)):
            space = Access(item.opcode).space
            name = writer.module.new_name("copied", lambda run: run.memory.struct_copier.make_store(space))
            given = "".join(
                f"({token_name(writer, token)}, {', '.join(map(str, rest))}), " for token, *rest in sources
            )
            writer.emit(f"{name}({address_text(writer, item.operands[0])}, ({given}))")


def token_name(writer, register):
    """Return the name of the Python variable for the Token of the load that sets a register first."""
    return f"{writer.name(register)}_token"


def reads_first(item):
    """Return whether the first operand of an instruction is not a result."""
    return not read_and_written(item)[1] and item.guard is None


def narrowest_store(items):
    """Return the number of bytes of the narrowest store, or 1 if the function calls others."""
    if any(item.names[0] == "call" for item in items):
        return 1
    stores = [access for item in items if (access := access_of(item, STORES)) is not None]
    sizes = [WIDTHS[access.type] // 8 for access in stores if access.space != "param"]
    return min(sizes, default=16)


def is_weak_load(item, written):
    """Return whether a load can read a structure, and its registers are set only there."""
    access = access_of(item, LOADS)
    if access is None or access.space not in SHARING or access.strong or access.type[0] == "f":
        return False
    named = [part for part in parts(item.operands[0]) if isinstance(part, Register)]
    return (
        bool(named)
        and isinstance(item.operands[1].base, (Register, Symbol))
        and all(len(written.get(register.name, ())) == 1 for register in named)
    )


def is_plain_store(item, nbytes, name):
    """Return whether an instruction stores a register as an element of `nbytes` bytes, and does not use the
    register otherwise."""
    access = access_of(item, STORES)
    if access is None or item.guard and item.guard[0].name == name:
        return False
    address = {register.name for register in registers_in(item.operands[0])}
    same = WIDTHS[access.type] == 8 * nbytes and access.type[0] != "f"
    return same and not access.strong and access.space in SHARING and name not in address


def structure_windows(body, chosen):
    """Yield (load, (first byte, end)) for the chosen loads, relative to the address of the load.

    A load that is narrower than the padding reads only padding. The loads of the other members have the same
    base register and near offsets. A load of more than 16 bits, or a group of loads of one type, is more
    likely to copy members or elements of an array. The structure is then assumed to consist of the bytes of
    the load.
    """
    run = []
    for item in [*body, None]:
        if isinstance(item, Instruction) and item.names[0] not in ("bra", "bar", "barrier", "call"):
            if id(item) in chosen:
                run.append(item)
            continue
        for base in dict.fromkeys(item.operands[1].base for item in run):
            mine = [load for load in run if load.operands[1].base == base]
            yield from windows_of(sorted(mine, key=lambda load: load.operands[1].offset))
        run = []


def windows_of(loads):
    """Yield (load, (first byte, end)) for loads in ascending order of their offsets from one base."""
    groups = []
    for load in loads:
        begin, end = byte_range(load)
        if not groups or begin > groups[-1][-1][2] + MAX_SKIPPED:
            groups.append([])
        groups[-1].append((load, begin, end))
    for group in groups:
        mixed = len({Access(load.opcode).type for load, _, _ in group}) > 1
        for load, begin, end in group:
            if mixed and WIDTHS[Access(load.opcode).type] <= 16:
                yield load, (group[0][1] - begin, group[-1][2] - begin)
            else:
                yield load, (0, end - begin)


def byte_range(load):
    """Return (first byte, end) of a load, relative to its base register."""
    access, begin = Access(load.opcode), load.operands[1].offset
    return begin, begin + access.count * WIDTHS[access.type] // 8


@dataclass
class Token:
    """One execution of a load that may copy a structure.

    position: the position of the load in the access log, or None if it is not logged.
    missing: a mask of the unwritten bytes that the load read, if it read local memory or the heap and only
        some bytes of the structure are written. Otherwise None.
    """

    position: int | None
    missing: np.ndarray | None
    address: int
    site: int


class StructCopier:
    """The copies of structures in one launch."""

    def __init__(self, memory):
        self.memory, self.context = memory, memory.context

    def last_entry(self, address):
        """Return the position of the last log entry if it is an access to this address, otherwise None."""
        log = self.context.log
        if not log or log[-1] & ADDRESS_MASK != address:
            return None
        return self.context.logged + len(log) - 1

    def make_load(self, space, nbytes, window, site):
        """Return the function (address in the space) that returns the Token of a load.

        window: the first byte and the end of the structure, relative to the address; the line of the load in
            the PTX; and the offsets of the bytes with which the program computes.
        """
        base, (first, end, _, computed), loads = WINDOWS.get(space, 0), window, self.context.copied_loads

        def load(address):
            address += base
            position = self.last_entry(address)
            if position is not None:
                loads[position] = window
            return Token(position, self.missing(address, nbytes, first, end, computed), address, site)

        return load

    def missing(self, address, nbytes, first, end, computed):
        """Return the mask of unwritten bytes for a Token. Return None if the program computes with such a
        byte."""
        region = self.tracked(address)
        if region is None:
            return None
        at = address - region.base
        found = ~region.written[at : at + nbytes]
        if (
            not found.any()
            or found[list(computed)].any()
            or not region.written[max(at + first, 0) : at + end].any()
        ):
            return None
        # The heap has already recorded the load as a suspect.
        if (suspects := getattr(region, "suspects", None)) and suspects[-1][2] == address:
            suspects.pop()
        return found

    def tracked(self, address):
        """Return the Region of an address in local memory or the heap whose written bytes are known, or
        None."""
        region = self.memory.find(address)
        known = region is not None and (address >> SPACE_SHIFT == LOCAL or region.allocation.space == "heap")
        return region if known and region.written is not None else None

    def make_store(self, space):
        """Return the function (address in the space, sources) that runs after a store.

        sources: (Token or None, byte offset in the load, byte offset in the store, bytes) for each part.
        """
        base, stores = WINDOWS.get(space, 0), self.context.copied_stores

        def store(address, sources):
            address += base
            sources = [source for source in sources if source[0]]
            logged = [(token.position, *rest) for token, *rest in sources if token.position is not None]
            if logged and (position := self.last_entry(address)) is not None:
                stores[position] = logged
            sources = [source for source in sources if source[0].missing is not None]
            if sources:
                self.store_missing(address, sources)

        return store

    def store_missing(self, address, sources):
        """Make bytes of the destination unwritten. In an array of the host, report a number if all of its
        bytes are unwritten."""
        missing = np.zeros(max(to + nbytes for _, _, to, nbytes in sources), bool)
        for token, at, to, nbytes in sources:
            missing[to : to + nbytes] = token.missing[at : at + nbytes]
        region, token = self.memory.find(address), sources[0][0]
        if region is None or not missing.any():
            return
        begin = address - region.base
        if self.tracked(address) is not None:
            region.written[begin : begin + len(missing)] &= ~missing
            origin = token.site, token.address
            region.origins.update({begin + int(i): origin for i in np.flatnonzero(missing)})
        elif region.allocation.hides_number(begin, missing):
            access = self.context.witness("read", token.site)
            self.context.announce("unwritten", access, token.address)
