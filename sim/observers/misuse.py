"""misuse: what ran without an error and still cannot have been meant: a launch that wrote nothing, a floating-point value for an integer's atomic."""
from sim.events import GLOBAL, LOAD, Finding, Observer


class Misuse(Observer):
    """Finding `misuse`, a warning: an atomic that mixes dtypes; or no thread wrote to any of the launch's arrays, and no other tool has found a reason."""

    def launch_started(self, context):
        self.context, self.wrote = context, False

    def accesses(self, batch):
        self.wrote = self.wrote or bool(((batch.kind != LOAD) & (batch.space == GLOBAL)).any())

    def atomic_narrowed(self, access, array, index):
        place = f"{array.name}[{', '.join(map(str, index))}]"
        yield Finding("misuse", "warning", f"an atomic on {place} is given a {type(access.value).__name__}, and {array.name} is an array of {array.dtype}",
                      (access,), array.name, index, reason="The value is converted to the array's type first, so its fraction is lost.",
                      fix="make the array floating-point, or convert the value on purpose: numba.int32(value)")

    def launch_finished(self, context):
        arrays = [allocation.name for allocation in context.space.allocations if allocation.space == "global"]
        if arrays and not self.wrote and not context.findings:
            yield Finding("misuse", "warning", f"the launch wrote to none of its arrays ({', '.join(arrays)})",
                          reason="Every thread ended, and nothing that the host can see has changed.",
                          fix="look at the guards (do they let any thread through?) and at the grid (is it as large as the data?)")
