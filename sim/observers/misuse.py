"""misuse: kernels that run without an error but cannot do what their author intended.

Examples are a launch that writes nothing, a floating-point value for an integer atomic, and a variable read
before it is assigned.
"""

from sim.events import GLOBAL, LOAD, Element, Finding, Observer


def unassigned_variable(access, name):
    return Finding(
        "unassigned-variable",
        "warning",
        f"the variable {name} is read, but this thread has not assigned a value to it",
        (access,),
        reason="Numba gives such a variable the value 0 where Python would raise an error.",
        fix=f"assign {name} before the branches: 0, or the value that it should have",
    )


def without_effect(space):
    """Yield a finding about a launch that wrote to none of its arrays, unless one of them is empty.

    space: the AddressSpace.
    """
    # Consider only arguments of the launch: a variable of the module can belong to a library.
    arrays = [a for a in space.allocations if a.keep is not None and a.space == "global"]
    # A kernel whose data is empty can legitimately have nothing to write.
    if arrays and all(a.root.size for a in arrays):
        yield Finding(
            "misuse",
            "warning",
            f"the launch wrote to none of its arrays ({', '.join(a.name for a in arrays)})",
            reason="Every thread ended, but nothing that the host can see has changed.",
            fix=(
                "look at the guards (do they let any thread through?) and at the grid (is it as large as"
                " the data?)"
            ),
        )


class Misuse(Observer):
    """An observer that reports `misuse` and `unassigned-variable`, both as warnings.

    A `misuse` is an atomic that mixes dtypes, or a launch that writes to none of its arrays. Such a launch is
    reported only if none of the arrays is empty, if there is no other finding, and if either no thread read
    an array or the kernel contains no store.
    """

    local = lone_barriers = False

    def launch_started(self, context):
        self.context, self.wrote, self.read, self.unset = context, False, False, {}

    def accesses(self, batch):
        # The host can access only global memory, so stores to other memory do not count.
        if self.wrote and self.read:
            return
        self.wrote = self.wrote or bool(((batch.action != LOAD) & (batch.space == GLOBAL)).any())
        self.read = self.read or bool((batch.space == GLOBAL).any())

    def atomic_narrowed(self, access, array, index):
        element = Element(array.name, index)
        yield Finding(
            "misuse",
            "warning",
            f"an atomic on {element} is given a {type(access.value).__name__}, and {array.name} is an"
            f" array of {array.dtype}",
            (access,),
            *element,
            reason="The value is converted to the array's type first, which changes it.",
            fix="make the array floating-point, or convert the value on purpose: numba.int32(value)",
        )

    def unassigned(self, access, name):
        place = access.block[::-1], access.thread[::-1]  # the finding names the lowest thread
        if access.site not in self.unset or place < self.unset[access.site][0]:
            self.unset[access.site] = place, unassigned_variable(access, name)

    def launch_finished(self, context):
        yield from (finding for _, finding in self.unset.values())
        # A kernel that has read its data can legitimately have nothing to write.
        chose = self.read and context.stores
        if not (self.wrote or context.wrote or chose or context.findings):
            yield from without_effect(context.space)
