"""Views of dynamic shared memory that overlap, although the kernel uses them as separate arrays.

Every dynamic shared array begins at the same byte. If a kernel declares two of them, one of them has to be a
slice after the end of the other. Two arrays with the same dtype are compared only if one function assigns
both of them to variables, because a device function may declare the array of its caller again.

A kernel may reuse or reinterpret the bytes. A finding therefore requires four accesses to the same bytes:

    1. a store through one view
    2. a store through the other view, which overwrites that value before any load through the other view. A
       kernel that reinterprets bytes performs such a load
    3. a load of the new value through the view of the first store
    4. a load of the new value through the view of the second store

Step 2 has one exception, for kernels in which each of two arrays destroys values of the other array. Assume
that a value P of array A has overwritten a value of array B as in step 2, and that a store to B then
overwrites P. This store counts as step 2 even if P was loaded through B, unless P was also loaded through A.

A kernel that reuses the bytes reads a new value only through the view through which it was stored. If another
thread could store between these accesses, the launch has a race, which is reported instead.

Without the last access, the finding is a warning. It then requires that no thread of the launch loads through
the view of the second store. Without this condition, the warning would be wrong for a kernel that initialises
the bytes, then writes the bits of a number through one view, and reads the number through the other view.
"""

from dataclasses import dataclass, field

from sim.events import ATOMIC, SITES, STORE, Access, Finding


@dataclass
class Held:
    """The last store to a unit of memory, and the loads since then.

    view: the view through which it was stored (Binder.views), or None if it is unknown.
    store: the row (thread, site) of the store.
    lost: the (view, row) of the store whose value was overwritten in step 2, or None.
    reads: the rows of the first loads since then, by view.
    """

    view: object
    store: tuple
    lost: tuple | None
    reads: dict = field(default_factory=dict)


class OverlappingViews:
    """The accesses of a launch to dynamic shared memory. The observer Races creates it.

    unit: the number of bytes of the smallest element, or 1 if it is unknown.
    """

    def __init__(self, context):
        self.context, self.held = context, {}  # block -> {address in units: Held}
        self.found = {}  # the sites of all four accesses -> (block, address, rows of the accesses)
        self.unread = {}  # the sites of the first three accesses -> (block, address, rows of the accesses)
        self.loaded_views = set()
        sizes = {view[0].itemsize for view in context.views.values() if view is not None}
        self.unit = min(sizes, default=1)
        context.listeners["accesses"].append(self.accesses)
        context.listeners["block_ended"].append(lambda block, epoch: self.held.pop(block, None) and None)

    def accesses(self, batch):
        place = self.context.dynamic_shared
        if place is None:
            return
        held, views = self.held.setdefault(batch.block, {}), self.context.views
        inside = (batch.address >= place.base) & (batch.address < place.base + place.root.size)
        columns = (getattr(batch, name)[inside].tolist() for name in ("thread", "site", "address", "size"))
        for thread, site, address, size in zip(*columns):
            first, end = address // self.unit, -(-(address + size) // self.unit)
            view, row = views.get(site), (thread, site)
            for unit in range(first, end):
                if site & 3 == STORE:
                    held[unit] = self.stored(held.get(unit), view, row)
                elif unit in held:
                    self.loaded(batch.block, unit, held[unit], view, row)

    def stored(self, before, view, row):
        """Return the Held of a unit after a store.

        before: the Held of the unit before the store, or None.
        view, row: the view and the row (thread, site) of the store.
        """
        if before is None or view is None or before.view is None:
            return Held(view, row, None)
        if view == before.view:
            return Held(view, row, before.lost)
        is_lost = not before.reads.keys() - {before.view}
        # the exception to step 2, in which `before` is the store of P
        is_lost |= before.lost is not None and before.lost[0] == view and before.view not in before.reads
        return Held(view, row, (before.view, before.store) if is_lost else None)

    def loaded(self, block, unit, held, view, row):
        """Record a load or an atomic, and add a finding if it completes one. An atomic reads the bytes before
        it writes them, so it may reinterpret them."""
        if view is None or row[1] & 3 == ATOMIC:
            held.view = None
        held.reads.setdefault(view, row)
        self.loaded_views.add(view)
        if held.lost and held.view is not None and held.lost[0] in held.reads:
            complete = held.view in held.reads
            views = (held.lost[0], held.view) if complete else (held.lost[0],)
            rows = held.lost[1], held.store, *(held.reads[one] for one in views)
            key, new = tuple(site for _, site in rows), (block, unit * self.unit, rows)
            found = self.found if complete else self.unread
            # the lowest block and address, which do not depend on the order of execution
            found[key] = min(found.get(key, new), new, key=lambda one: (one[0][::-1], one[1]))

    def launch_finished(self, others):
        """Return the findings of the launch, unless it has other errors."""
        if any(finding.severity == "error" for finding in (*self.context.findings, *others)):
            return []
        views = self.context.views
        unread = [f for key, f in self.unread.items() if views[key[1]] not in self.loaded_views]
        unread = unread if None not in self.loaded_views else []  # a load through an unknown view
        return [self.finding(*found) for found in (*self.found.values(), *unread)]

    def finding(self, block, address, rows):
        words, complete = ("written", "written", "read", "read"), len(rows) == 4
        element = self.context.space.element(address)
        (first, name), (second, other) = (self.context.views[site] for _, site in rows[:2])
        same = first == second
        first, second = (name, other) if same else (f"an array of {first}", f"an array of {second}")
        return Finding(
            "misuse",
            "error" if complete else "warning",
            f"two dynamic shared arrays overlap: a store to {second} overwrites a value that was stored to"
            f" {first}, and "
            + ("both arrays are read afterwards" if complete else "only the first array is read afterwards"),
            tuple(
                Access(word, block, self.context.thread_index(thread), SITES[site])
                for word, (thread, site) in zip(words, rows)
            ),
            *element,
            reason="All dynamic shared arrays begin at the same byte.",
            fix="let the second array begin after the end of the first: cuda.shared.array(0, dtype)[n:],"
            " where n elements of its own type cover the first array"
            + ("" if complete else "; or remove the array that is never read"),
        )
