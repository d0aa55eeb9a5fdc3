"""PTX loads, stores and atomics by address, with the same checks and the same access log as array accesses
in Python kernels.

A generic address is an address in the simulated address space (sim.memory.spaces). An address within a
state space is the generic address minus the base of that space's window. The global window begins at 0, so
a global address is also generic (PTX ISA 6.4.1.1, "Generic Addressing").

The `make_...` methods return one function per instruction and launch. The function caches the region of its
most recent access in closure variables, because the next access is likely to be in the same region.
"""

from bisect import bisect_right
from math import prod

import numpy as np

from sim.events import (
    ADDRESS_BITS,
    CONST,
    GLOBAL,
    LOAD,
    LOCAL,
    SHARED,
    SITE_SHIFT,
    SPACE_SHIFT,
    STORE,
    Finding,
)
from sim.memory.array import only_read
from sim.memory.atomics import FailedAtomic
from sim.memory.spaces import poisoned
from sim.memory.transfer import Alignment
from sim.ptx.regions import GAP, GENERIC, VIEWS, WINDOWS, Frames, Region, poison, whole_array
from sim.ptx.undefined import LocalMemory


class Memory:
    """The memory of one launch: global and constant regions, shared regions of the running block, and local
    regions of the running thread. `place` is the position at which threads wait when they yield."""

    def __init__(self, scheduler, place):
        self.scheduler, self.context, self.space = scheduler, scheduler.context, scheduler.context.space
        self.place = place
        self.alignment = Alignment.of(self.context)
        # Global and constant regions and their base addresses, in ascending order
        self.fixed, self.bases = [], []
        self.heap = None  # the Heap of this run
        self.local = LocalMemory(self)
        self.slots = {SHARED: [], LOCAL: []}  # allocations with one copy per block or thread

    # --- what there is --------------------------------------------------------------------------------------

    def reserve(self, name, space, nbytes, align, itemsize, shape, copies, root=None, key=None):
        """Return a new allocation.

        shape: the shape by which findings index its elements; None for one dimension.
        copies: the number of copies, such as one per thread.
        root: its bytes; by default zeros.
        key: see AddressSpace.add.
        """
        root = np.zeros(nbytes, np.uint8) if root is None else root
        shape = shape or (max(nbytes // itemsize, 1),)
        strides = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
        home = 0, itemsize, shape, strides
        allocation = self.space.add(name, space, root, home, copies, align=align, key=key)
        allocation.alignment = align
        return allocation

    def make_addressable(self, allocation):
        """Make an allocation accessible to threads."""
        space = allocation.base >> SPACE_SHIFT
        if space in self.slots:
            self.slots[space].append(allocation)
            return
        region = Region(allocation, allocation.root)
        at = bisect_right(self.bases, region.base)
        self.bases.insert(at, region.base)
        self.fixed.insert(at, region)

    def block_region(self, allocation):
        """Return the running block's Region of a shared allocation."""
        shared = self.context.thread.block.shared
        region = shared.get(allocation)
        if region is None:
            nbytes = allocation.root.size
            fresh = poisoned(nbytes, None, self.context.poison)
            root = np.zeros(nbytes, np.uint8) if allocation.reserved else fresh
            region = shared[allocation] = Region(allocation, root)
        return region

    def frames(self, allocation):
        """Return the running thread's Frames of a local allocation."""
        thread = self.context.thread
        return thread.block.shared.setdefault((allocation, thread.linear), Frames())

    def push_frame(self, allocation):
        """Allocate local memory for a call by the running thread. Return its address in the local space.

        Errors: RecursionError if too many calls are active.
        """
        frames, nbytes = self.frames(allocation), allocation.root.size
        place = frames.depth * len(self.context.thread.block.threads) + self.context.thread.linear
        if place >= allocation.copies:
            raise RecursionError(f"{frames.depth} calls deep, and no more room for {allocation.name}")
        if frames.depth == len(frames.regions):
            base = allocation.base + place * nbytes
            frames.regions.append(Region(allocation, poisoned(nbytes, None), base))
        region = frames.regions[frames.depth]
        frames.depth += 1
        region.root[:] = poisoned(nbytes, None)
        region.written = np.zeros(nbytes, bool) if self.context.enabled.unwritten else None
        region.origins = {}
        return region.base - WINDOWS["local"]

    def pop_frame(self, allocation):
        """Release the local memory of the call that returns."""
        self.frames(allocation).depth -= 1

    def find(self, address):
        """Return the Region that contains a generic address, or None."""
        space = address >> SPACE_SHIFT
        if space in (GLOBAL, CONST):
            # Regions do not overlap, so only the last one that begins at or below the address can contain
            # it.
            at = bisect_right(self.bases, address) - 1
            return self.fixed[at] if at >= 0 and address < self.fixed[at].end else None
        for allocation in self.slots.get(space, ()):
            if allocation.base <= address < allocation.base + allocation.root.size * allocation.copies:
                if space == SHARED:
                    return self.block_region(allocation)
                return self.frames(allocation).find(address)
        return None

    def owner(self, space):
        """Return a function that returns the owner of a space's regions: the running block, the running
        thread, or None. A cached region is valid while the owner is unchanged."""
        context = self.context
        if space == "shared":
            return lambda: context.thread.block
        if space == "local":
            return lambda: context.thread
        return lambda: None

    # --- plain accesses -------------------------------------------------------------------------------------

    def dispatch_by_space(self, make, space):
        """Return `make(space)`. For generic addresses, return a function that dispatches on the address's
        space."""
        if space != GENERIC:
            return make(space)
        made = [make(name) for name in ("global", "const", "shared", "local")]
        windows = [WINDOWS[name] for name in ("global", "const", "shared", "local")]

        def access(address, *values):
            # The bits above the window's size contain the number of the space.
            number = address >> SPACE_SHIFT & 3
            return made[number](address - windows[number], *values)

        return access

    def make_load(self, ptx_type, space, count, site, reports=True):
        """Return the function (address in the space) -> element, or tuple of `count` elements.

        reports: whether loads of unwritten local memory are reported.
        """
        return self.dispatch_by_space(
            lambda name: self.make_load_in(ptx_type, name, count, site, reports), space
        )

    def make_load_in(self, ptx_type, space, count, site, reports=True):
        """Return the load function for one state space."""
        size, reach, window, log, code, shift = self.access_layout(ptx_type, space, count, site)
        owner, known, base, last, view = self.owner(space), None, 0, -1, None
        owned = space in ("shared", "local")

        # Fast path: the access is within the cached region, it is aligned, and the owner is unchanged.
        # `last` is the highest valid offset, or -1 if the region's alignment is not guaranteed; `reach` is
        # the access size minus 1.
        def load(address):
            nonlocal known, base, last, view
            offset = address + window - base
            if not 0 <= offset <= last or offset & reach or owned and owner() is not known:
                region = self.check_access(address + window, reach + 1, site, "read")
                if region is None:
                    return poison(ptx_type) if count == 1 else (poison(ptx_type),) * count
                known, base, last = owner(), region.base, region.last(reach + 1)
                view, offset = region.view(ptx_type, size), address + window - base
            if log is not None:
                log(code + address)
            first = offset >> shift
            return view[first] if count == 1 else tuple(view[first : first + count])

        return self.report_unwritten(load, size * count, site) if space == "local" and reports else load

    def report_unwritten(self, load, nbytes, site):
        """Return a load from local memory that also reports bytes that the thread has not written."""
        if not self.context.enabled.unwritten:
            return load
        origin = self.local.make_origin("local", nbytes, site)
        return lambda address: self.local.report(origin(address), site) or load(address)

    def record_written(self, store, nbytes):
        """Return a function that stores to local memory and records which bytes the thread has written."""
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
        return self.dispatch_by_space(lambda name: self.make_store_in(ptx_type, name, count, site), space)

    def make_store_in(self, ptx_type, space, count, site):
        """Return the store function for one state space."""
        size, reach, window, log, code, shift = self.access_layout(ptx_type, space, count, site)
        owner, known, base, last, view, values = self.owner(space), None, 0, -1, None, self.context.values
        owned = space in ("shared", "local")

        def store(address, *given):
            nonlocal known, base, last, view
            offset = address + window - base
            if not 0 <= offset <= last or offset & reach or owned and owner() is not known:
                region = self.check_access(address + window, reach + 1, site, "written")
                if region is None:
                    return
                known, base, last = owner(), region.base, region.last(reach + 1)
                view, offset = region.view(ptx_type, size), address + window - base
            if log is not None:
                log(code + address)
                values.append(given[0] if count == 1 else given)
            first = offset >> shift
            for position, value in enumerate(given, first):
                view[position] = value

        return self.record_written(store, size * count) if space == "local" else store

    def access_layout(self, ptx_type, space, count, site):
        """Return the constants of an access: (bytes per element, bytes of the access minus 1, window base,
        function that appends to the access log or None, log entry for address 0, log2 of the bytes per
        element)."""
        size = np.dtype(VIEWS[ptx_type]).itemsize
        bits, window = (size * count).bit_length() - 1, WINDOWS[space]
        logs = self.context.log is not None and (space != "local" or self.context.enabled.local)
        log = self.context.log.append if logs else None
        code = (site << SITE_SHIFT) + (bits << ADDRESS_BITS) + window
        return size, size * count - 1, window, log, code, size.bit_length() - 1

    # --- atomics --------------------------------------------------------------------------------------------

    def make_atomic(self, ptx_type, space, site, reach, combine, writes=True, releases=False, replaces=False):
        """Return the function (address, operand, ...) -> old element. It sets the element to combine(old,
        operand, ...).

        reach: the threads among which it is atomic: "block" or "grid".
        writes: whether it writes, or a function (old, operand, ...) -> whether it writes.
        releases: whether a fence precedes it.
        replaces: whether the new value is independent of the old one.
        """
        if replaces:
            self.context.overwriting.add(site)
        return self.dispatch_by_space(
            lambda name: self.make_atomic_in(ptx_type, name, site, reach, combine, writes, releases), space
        )

    def make_atomic_in(self, ptx_type, space, site, reach, combine, writes=True, releases=False):
        """Return the atomic function for one state space."""
        size, _, window, log, code, shift = self.access_layout(ptx_type, space, 1, site)
        context, place = self.context, self.place
        if reach == "block":
            context.block_scoped[site] = STORE if writes else LOAD
        log, values, yield_before_atomic = context.log, context.values, self.scheduler.yield_before_atomic

        def change(address, *operands):
            # A release is modelled as a fence before the access.
            if releases:
                context.announce_ordering("fenced", reach)
            # A thread that repeats an atomic without effect is spinning, so other threads run first.
            key = site, address, operands
            yield_before_atomic(key, place)
            region = self.check_access(address + window, size, site, "changed")
            if region is None:
                return poison(ptx_type)
            view, position = region.view(ptx_type, size), (address + window - region.base) >> shift
            old = view[position]
            new = combine(old, *operands)
            if log is not None:
                log.append(code + address)
                values.append(new)
            wrote = writes if isinstance(writes, bool) else writes(old, *operands)
            if wrote:
                view[position] = new
            context.thread.failed_atomic = FailedAtomic(key, view, position, old) if new == old else None
            context.announce_ordering("atomic_done", address + window, wrote, reach)
            return old

        return change

    def make_strong(self, action, ptx_type, space, access, atomic, plain, relied_on=False):
        """Return a strong load or store, which does not race with other strong ones. A load first lets
        other threads run.

        A volatile access to shared memory counts as a weak one. So does a volatile load on whose value the
        program relies (sim.ptx.volatile).

        atomic, plain: the site numbers of the strong and the weak form.
        """
        loads = action == "load"

        def make(name):
            if access.volatile and (name in ("shared", "local") or relied_on):
                if not loads:
                    return self.make_store_in(ptx_type, name, 1, plain)
                load = self.make_load_in(ptx_type, name, 1, plain)
                return lambda address: self.yield_turn() or load(address)
            combine = (lambda old: old) if loads else lambda old, value: value
            return self.make_atomic_in(
                ptx_type, name, atomic, access.reach, combine, not loads, access.release
            )

        self.context.strong[atomic] = LOAD if loads else STORE
        if not loads:
            self.context.overwriting.add(atomic)
        return self.dispatch_by_space(make, space)

    def yield_turn(self):
        """Let other threads run before the current one."""
        self.scheduler.yield_turn(self.place)

    # --- what may be wrong ----------------------------------------------------------------------------------

    def check_access(self, address, size, site, what, multiple=None, name="an access"):
        """Return the Region of an access of `size` bytes at a generic address. Return None after reporting
        an access that is not allowed.

        multiple: the required alignment, by default the size.
        name: the instruction's name in the finding about alignment.
        """
        region = self.find(address)
        if region is None or address + size > region.end:
            self.report_outside(address, site, what, region)
            return None
        if self.alignment.refuses(name, region.allocation, address, size, multiple or size, site, what):
            return None
        if region.allocation.space == "heap" and not self.heap.check_access(
            region, address, size, site, what
        ):
            return None
        # Checked last, so that an address outside of the array is reported as such.
        if what != "read" and not region.allocation.writable:
            error = only_read(whole_array(self.context, region.allocation))
            error.site = site
            raise error
        return region

    def nearest(self, address):
        """Return the nearest allocation within GAP bytes in the address's space, or None."""
        near = [a for a in self.space.allocations if a.base >> SPACE_SHIFT == address >> SPACE_SHIFT]
        distance = lambda a: max(a.base - address, address - a.base - a.root.size * a.copies, 0)  # noqa: E731
        found = min(near, key=distance, default=None)
        return found if found is not None and distance(found) < GAP else None

    def report_outside(self, address, site, what, region):
        """Report an access outside of all allocations, relative to the nearest one."""
        allocation = region.allocation if region else self.nearest(address)
        if allocation is None:
            self.context.findings.append(self.no_array_finding(address, site, what))
            return
        array = whole_array(self.context, allocation)
        start = allocation.base
        if allocation.copies > 1:
            start += self.context.thread.linear * allocation.root.size
            start = self.frames(allocation).base_below(address, start)
        # The first element touched by the access that lies outside the array
        position = address if address < start else max(address, start + allocation.root.size)
        self.context.refuse(site, what, array, ((position - start) // array.itemsize,))

    def no_array_finding(self, address, site, what):
        """Return the finding for an address that is near no array."""
        earlier = self.space.addresses.find_argument(address)
        if earlier is not None:
            return Finding(
                "out-of-bounds",
                "error",
                f"address {address:#x} is in no array of this launch",
                (self.context.witness(what, site),),
                reason=f"It is in {earlier.name} of an earlier launch, which has stored the pointer.",
                fix=f"give {earlier.name} to this launch too: a launch can use the arrays that it gets, and"
                " the variables of its module",
            )
        where = "the null pointer, or near it" if 0 <= address < 4096 else "far from all memory of the launch"
        if 0 <= address < 4096 and self.heap is not None and self.heap.failed_allocations:
            where += (
                f"; malloc has returned that, as the heap of {self.context.spec.heap_bytes:,} bytes is full"
            )
        return Finding(
            "out-of-bounds",
            "error",
            f"address {address:#x} is in no array",
            (self.context.witness(what, site),),
            reason=f"It is {where}.",
            fix="look at where the pointer comes from: an argument that was not given, or an index that"
            " wrapped around",
        )
