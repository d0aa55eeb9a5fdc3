"""PTX loads, stores and atomics by address. They have the same checks and the same access log as array
accesses in Python kernels.

A generic address is an address in the simulated address space (sim.memory.spaces). An address within a state
space is the generic address minus the base of the space's window. The global window begins at 0, so a global
address is also a generic address (PTX ISA 6.4.1.1, "Generic Addressing").

Each `make_...` method returns one function per instruction and launch. The function caches the region of its
most recent access in closure variables, because the next access is likely to be in the same region.
"""

import numpy as np

from sim.events import ADDRESS_BITS, LOAD, SITE_SHIFT, SPACE_SHIFT, STORE
from sim.memory.atomics import FailedAtomic
from sim.ptx.region_table import RegionTable
from sim.ptx.regions import GENERIC, VIEWS, WINDOWS, poison
from sim.ptx.struct_copies import StructCopier
from sim.ptx.subwords import Word
from sim.ptx.undefined import LocalMemory

WORD = 4  # size in bytes of the word on which libcu++ emulates smaller atomics
HALF = 2  # size in bytes of an element of a packed atomic
# number of elements of a vector -> the function (view, index of the first element) that returns them. A slice
# of numpy scalars takes three times as long.
ELEMENTS = {
    2: lambda view, i: (view[i], view[i + 1]),
    4: lambda view, i: (view[i], view[i + 1], view[i + 2], view[i + 3]),
    8: lambda view, i: (*ELEMENTS[4](view, i), *ELEMENTS[4](view, i + 4)),
}


class Memory(RegionTable):
    """The memory of one launch, and the functions that access it.

    place: the WaitPoint of threads that let other threads run.
    """

    def __init__(self, scheduler, place):
        super().__init__(scheduler.context)
        self.scheduler, self.place = scheduler, place
        self.local, self.struct_copier = LocalMemory(self), StructCopier(self)

    # --- plain accesses -------------------------------------------------------------------------------------

    def dispatch_by_space(self, make, space, site, what):
        """Return `make(space)`. For generic addresses, return a function that selects the state space by the
        address.

        site, what: the site number of the access, and the word for it in findings.
        """
        if space != GENERIC:
            return make(space)
        made = [make(name) for name in ("global", "const", "shared", "local")]
        windows = [WINDOWS[name] for name in ("global", "const", "shared", "local")]

        def access(address, *values):
            if address >> ADDRESS_BITS:
                address = self.shared_pointers.strip(address, site, what)
            # The upper bits of an address contain the number of the state space, the lower ones the offset.
            number = address >> SPACE_SHIFT & 3
            return made[number](address - windows[number], *values)

        return access

    def make_load(self, ptx_type, space, count, site, reports=True):
        """Return the function (address in the space) that loads an element, or a tuple of `count` elements.

        reports: whether loads of unwritten local memory are reported.
        """
        return self.dispatch_by_space(
            lambda name: self.make_load_in(ptx_type, name, count, site, reports), space, site, "read"
        )

    def make_load_in(self, ptx_type, space, count, site, reports=True):
        """Return the load function for one state space."""
        size, reach, window, log, code, shift = self.access_layout(ptx_type, space, count, site)
        owner, known, base, start, last, view = self.owner(space), None, 0, 0, -1, None
        owned, context, elements = space in ("shared", "local"), self.context, ELEMENTS.get(count)

        # On the fast path, the access is within the cached region, it is aligned, and the region has the same
        # owner. `last` is the highest valid offset, or -1 if the alignment of the region is not guaranteed.
        # `reach` is the size of the access minus 1, which is also the mask of the address bits that must be
        # 0.
        def load(address):
            nonlocal known, base, start, last, view
            offset = address + window - base
            if not 0 <= offset <= last or offset & reach or owned and owner() is not known:
                region = self.check_access(address + window, reach + 1, site, "read")
                if region is None:
                    return poison(ptx_type) if count == 1 else (poison(ptx_type),) * count
                known, base, last = owner(), region.base, region.last(reach + 1)
                start, view, offset = base - window, region.view(ptx_type, size), address + window - base
            if log is not None:
                log(code + address)
            first = offset >> shift
            return view[first] if count == 1 else elements(view, first)

        # These functions do the same for logged accesses, and take two thirds of the time.
        def load_fixed(address):
            offset = address - start
            if offset & reach or not 0 <= offset <= last:
                return load(address)
            log(code + address)
            return view[offset >> shift]

        def load_shared(address):
            offset = address - start
            if offset & reach or not 0 <= offset <= last or context.thread.block is not known:
                return load(address)
            log(code + address)
            return view[offset >> shift]

        def load_vector(address):
            offset = address - start
            if offset & reach or not 0 <= offset <= last or owned and context.thread.block is not known:
                return load(address)
            log(code + address)
            return elements(view, offset >> shift)

        if space == "local":
            return self.report_unwritten(load, size * count, site) if reports else load
        if log is None:
            return load
        return load_vector if count > 1 else load_shared if owned else load_fixed

    def report_unwritten(self, load, nbytes, site):
        """Return a load from local memory that also reports unwritten bytes."""
        if not self.context.enabled.unwritten:
            return load
        origin = self.local.make_origin("local", nbytes, site)
        return lambda address: self.local.report(origin(address), site) or load(address)

    def record_written(self, store, nbytes):
        """Return a function that stores to local memory and records which bytes were written."""
        if not self.context.enabled.unwritten:
            return store
        window = WINDOWS["local"]

        def recording(address, *values):
            region = self.find(address + window)
            if region is not None:
                begin = address + window - region.base
                region.written[begin : begin + nbytes] = True
            store(address, *values)

        return recording

    def make_store(self, ptx_type, space, count, site):
        """Return the function (address in the space, value, ...) that stores `count` elements."""
        return self.dispatch_by_space(
            lambda name: self.make_store_in(ptx_type, name, count, site), space, site, "written"
        )

    def make_store_in(self, ptx_type, space, count, site):
        """Return the store function for one state space."""
        size, reach, window, log, code, shift = self.access_layout(ptx_type, space, count, site)
        owner, known, base, start, last, view = self.owner(space), None, 0, 0, -1, None
        owned, context, values = space in ("shared", "local"), self.context, self.context.values

        def store(address, *given):
            nonlocal known, base, start, last, view
            offset = address + window - base
            if not 0 <= offset <= last or offset & reach or owned and owner() is not known:
                region = self.check_access(address + window, reach + 1, site, "written")
                if region is None:
                    return
                known, base, last = owner(), region.base, region.last(reach + 1)
                start, view, offset = base - window, region.view(ptx_type, size), address + window - base
            if log is not None:
                log(code + address)
                values.append(given[0] if count == 1 else given)
            first = offset >> shift
            if count == 1:
                view[first] = given[0]
                return
            for position, value in enumerate(given, first):
                view[position] = value

        def store_one(address, value):
            offset = address - start
            if offset & reach or not 0 <= offset <= last or owned and context.thread.block is not known:
                return store(address, value)
            log(code + address)
            values.append(value)
            view[offset >> shift] = value

        if space == "local":
            return self.record_written(store, size * count)
        return store if count > 1 or log is None else store_one

    def access_layout(self, ptx_type, space, count, site):
        """Return the constants of an access.

        These are (bytes per element, bytes of the access minus 1, base of the window, function that appends
        to the access log or None, log entry for address 0, log2 of the bytes per element).
        """
        size = np.dtype(VIEWS[ptx_type]).itemsize
        bits, window = (size * count).bit_length() - 1, WINDOWS[space]
        logs = self.context.log is not None and (space != "local" or self.context.enabled.local)
        log = self.context.log.append if logs else None
        code = (site << SITE_SHIFT) + (bits << ADDRESS_BITS) + window
        return size, size * count - 1, window, log, code, size.bit_length() - 1

    # --- atomics --------------------------------------------------------------------------------------------

    def make_atomic(
        self, ptx_type, space, site, reach, combine, writes, releases, replaces, nbytes=None, packed=False
    ):
        """Return the function (address, operand, ...) that performs an atomic and returns the old element.

        reach: the threads among which the operation is atomic: "block" or "grid".
        combine: the function (old, operand, ...) that returns the new element.
        writes: whether the atomic writes, or a function (old, operand, ...) that returns whether it writes.
        releases: whether a fence precedes the atomic.
        replaces: whether the new element is independent of the old one.
        nbytes: the size in bytes of the element if the atomic on a word emulates an atomic on a smaller
            element (see sim.ptx.subwords), otherwise None.
        packed: whether the element contains two halves, each of which is updated atomically.
        """
        if replaces:
            self.context.overwriting.add(site)
        rest = site, reach, combine, writes, releases, nbytes, packed
        make = lambda name: self.make_atomic_in(ptx_type, name, *rest)  # noqa: E731
        return self.dispatch_by_space(make, space, site, "changed")

    def make_atomic_in(self, ptx_type, space, site, reach, combine, writes, releases, nbytes, packed=False):
        """Return the atomic function for one state space."""
        width = np.dtype(VIEWS[ptx_type]).itemsize  # in bytes; an emulated element is a part of it
        element = f"u{8 * nbytes}" if nbytes else ptx_type
        size, _, window, log, code, shift = self.access_layout(element, space, 1, site)
        half_code = code - (1 << ADDRESS_BITS)  # a log entry contains log2 of the size
        context, place = self.context, self.place
        if reach == "block":
            context.block_scoped[site] = STORE if writes else LOAD
        log, values, yield_before_atomic = context.log, context.values, self.scheduler.yield_before_atomic
        tests = callable(writes)  # whether it is a compare-and-swap

        def change(address, *operands):
            # A release is modelled as a fence before the access.
            if releases:
                context.announce_ordering("fenced", reach)
            # A thread that repeats an atomic without effect is spinning, so let other threads run first. The
            # key identifies the atomic and its operands: by equal keys, the scheduler recognises that the
            # thread is spinning.
            key = site, address, operands
            yield_before_atomic(key, place)
            region = self.check_access(address + window, size, site, "changed")
            if region is None:
                return poison(ptx_type)
            if nbytes:
                view, position = Word(region, address + window & -width, width), 0
            else:
                view, position = region.view(ptx_type, size), (address + window - region.base) >> shift
            old = view[position]
            new = combine(old, *operands)
            if log is not None and packed:
                log.extend((half_code + address, half_code + address + HALF))
                values.extend((new & 0xFFFF, new >> 16))
            elif log is not None:
                log.append(code + address)
                values.append(new >> 8 * (address % width) & (1 << 8 * size) - 1 if nbytes else new)
            wrote = writes if isinstance(writes, bool) else writes(old, *operands)
            if wrote:
                view[position] = new
            elif tests and old != operands[0]:
                self.scheduler.let_retry()
            thread = context.thread
            last = thread.failed_atomic
            thread.failed_atomic = FailedAtomic(key, view, position, old, last) if new == old else None
            context.changes += thread.failed_atomic is None
            context.announce_ordering("atomic_done", address + window, wrote, reach)
            if packed:
                context.announce_ordering("atomic_done", address + window + HALF, wrote, reach)
            # An atomic on a part of a word also reads the value written by an earlier atomic on the whole
            # word.
            if size < WORD:
                context.announce_ordering("atomic_done", (address & -WORD) + window, False, reach)
            return old

        return change

    def make_strong(self, action, ptx_type, space, access, atomic, plain, relied_on=False, nbytes=None):
        """Return a strong load or store, which does not race with other strong accesses. A load first lets
        other threads run.

        A volatile access to shared memory counts as a weak access, and so does a volatile load on whose value
        the program relies (sim.ptx.volatile).

        action: "load" or "store".
        access: the Access.
        atomic, plain: the site numbers of the strong and of the weak form.
        relied_on: whether the program relies on the value.
        nbytes: see make_atomic.
        """
        loads = action == "load"

        def make(name):
            if access.volatile and (name in ("shared", "local") or relied_on):
                if not loads:
                    return self.make_store_in(ptx_type, name, 1, plain)
                load = self.make_load_in(ptx_type, name, 1, plain)
                # Let other threads run, because only they can change the value. A plain load reads the whole
                # word.
                aligned = -np.dtype(VIEWS[ptx_type]).itemsize if nbytes else -1
                return lambda address: self.yield_turn() or load(address & aligned)
            combine = (lambda old: old) if loads else lambda old, value: value
            rest = access.reach, combine, not loads, access.release, nbytes
            return self.make_atomic_in(ptx_type, name, atomic, *rest)

        # Observers treat accesses at this site as atomic, but findings describe them as loads or stores.
        self.context.strong[atomic] = LOAD if loads else STORE
        if not loads:
            self.context.overwriting.add(atomic)
        return self.dispatch_by_space(make, space, plain, "read" if loads else "written")

    def yield_turn(self):
        """Let other threads run before the current thread continues."""
        self.scheduler.yield_turn(self.place)
