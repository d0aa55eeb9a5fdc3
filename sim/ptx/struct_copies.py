"""Recognition of copies of structures, which include the unwritten bytes between the members (padding).

A compiler copies `struct { char a; int b; }` with a load and a store of 8 bytes. The program writes only the
members, so the load reads 3 unwritten bytes. This is no fault if the loaded registers are only stored again,
and if other bytes of the structure are written. The bytes at the destination are then unwritten as well.

This module finds such loads and stores in the text. At run time, each of these loads produces a Token, and
the stores pass it to the observers (`Context.copies`), or to the local and heap memory of this package.
"""

from dataclasses import dataclass

import numpy as np

from sim.events import ADDRESS_MASK, LOCAL, SPACE_SHIFT
from sim.isa.registers import WIDTHS
from sim.ptx.accesses import Access, access_of, address_text, parts
from sim.ptx.regions import WINDOWS
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Instruction, Register, Symbol

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
        loads = [item for item in items if is_pure_load(item, written, readers)]
        for item, window in structure_windows(function.body, {id(item) for item in loads}):
            # Padding requires a store that is narrower than the structure.
            if window[1] - window[0] > narrowest:
                self.add(item, window, readers)

    def add(self, load, window, readers):
        """Record a load and the stores of its registers."""
        size = WIDTHS[Access(load.opcode).type] // 8
        named = [part for part in parts(load.operands[0]) if part is not None]
        token = self.tokens[id(load)] = named[0]
        self.windows[id(load)] = window
        for i, part in enumerate(parts(load.operands[0])):
            for store in readers.get(getattr(part, "name", None), ()):
                for j, value in enumerate(parts(store.operands[1])):
                    if value == part:
                        found = token, i * size, j * size, size
                        known = self.sources.setdefault(id(store), [])
                        known += [found] * (found not in known)

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
            window += (item.line,)
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


def is_pure_load(item, written, readers):
    """Return whether the registers of a load are set only there, and are read only by stores of equal
    elements."""
    access = access_of(item, LOADS)
    if access is None or access.space not in SHARING or access.strong or access.type[0] == "f":
        return False
    named = [part for part in parts(item.operands[0]) if isinstance(part, Register)]
    uses = [use for register in named for use in readers.get(register.name, ()) if use is not item]
    return (
        bool(uses)
        and isinstance(item.operands[1].base, (Register, Symbol))
        and all(len(written.get(register.name, ())) == 1 for register in named)
        and all(is_plain_store(use, access, {r.name for r in named}) for use in uses)
    )


def is_plain_store(item, loaded, names):
    """Return whether an instruction stores elements of the width of a load, and does not use the loaded
    registers otherwise."""
    access = access_of(item, STORES)
    if access is None or item.guard and item.guard[0].name in names:
        return False
    address = {register.name for register in registers_in(item.operands[0])}
    same = WIDTHS[access.type] == WIDTHS[loaded.type] and access.type[0] != "f"
    return same and not access.strong and access.space in SHARING and not address & names


def structure_windows(body, chosen):
    """Yield (load, (first byte, end)) for the chosen loads, relative to the address of the load.

    A load that is narrower than the padding reads only padding. The loads of the other members have the same
    base register and near offsets. Loads of more than 16 bits, or of only one type, are more likely to copy
    members or the elements of an array, so the structure is assumed to consist of the bytes of the load.
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
    missing: a mask of its unwritten bytes if it read local memory or the heap, and only some bytes of the
        structure are written. Otherwise None.
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

        window: the first byte and the end of the structure, relative to the address, and the line of the load
            in the PTX.
        """
        base, (first, end, _), loads = WINDOWS.get(space, 0), window, self.context.copied_loads

        def load(address):
            address += base
            position = self.last_entry(address)
            if position is not None:
                loads[position] = window
            return Token(position, self.missing(address, nbytes, first, end), address, site)

        return load

    def missing(self, address, nbytes, first, end):
        """Return the mask of unwritten bytes for a Token."""
        region = self.tracked(address)
        if region is None:
            return None
        at = address - region.base
        found = ~region.written[at : at + nbytes]
        if not found.any() or not region.written[max(at + first, 0) : at + end].any():
            return None
        # The heap has recorded the load as a suspect.
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
        """Make bytes of the destination unwritten. In an array of the host, report a number whose bytes are
        all unwritten."""
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
