"""Findings about misaligned accesses: their addresses are not multiples of the required alignment."""

from dataclasses import replace

from sim.events import SITES, UNTYPED_POISON, Finding
from sim.nouns import plural


class Alignment:
    """A check that addresses have the alignment required by an instruction.

    An address can be aligned although the declaration of the array does not guarantee it. The alignment then
    depends on the sizes of other arrays (AddressSpace.shifting). These sizes are known only when the launch
    ends. For each array, only the widest access at the lowest address is reported, so that the finding does
    not depend on the order of threads.
    """

    def __init__(self, context):
        self.context, self.lowest = context, {}  # allocation -> (rank, multiple, finding)
        context.listeners["launch_finished"].append(self.by_luck)

    @classmethod
    def of(cls, context):
        """Return the Alignment of the launch. It is created on first use."""
        context.alignment = context.alignment or cls(context)
        return context.alignment

    def refuses(self, name, allocation, address, size, multiple, site, what, poison=UNTYPED_POISON):
        """Return whether an access must be refused because its address is misaligned. Report such an
        access.

        poison: the byte that fills the result of a refused read.
        """
        findings, thread = self.context.findings, self.context.thread
        if address % multiple:
            finding = self.misaligned(name, address, size, multiple, site, what)
            findings.append(replace(finding, undefined=what != "written", poison=poison))
            return True
        if allocation.alignment % multiple:
            line = SITES[site].line
            rank = -multiple, address, thread.block.index[::-1], thread.index[::-1], line
            if allocation not in self.lowest or rank < self.lowest[allocation][0]:
                unsure = self.unsure(allocation, address, multiple, site, what)
                self.lowest[allocation] = rank, multiple, unsure
        return False

    def by_luck(self, context):
        """Yield findings for the accesses that are aligned only because another array has a suitable size."""
        for allocation, (_, multiple, finding) in self.lowest.items():
            other = context.space.shifting(allocation, multiple)
            if other is not None:
                where = f"after {other.name}, which has {plural(other.root.size, 'byte')}"
                where = "elsewhere on the stack" if other is allocation else where
                reason = (
                    f"In this launch it does, but only by luck: the compiler may place it {where}. A GPU"
                    " stops the kernel at a misaligned access."
                )
                yield replace(finding, reason=reason)

    def misaligned(self, name, address, size, multiple, site, what):
        element = self.context.space.element(address)
        _, itemsize, shape, _ = self.context.space.find(address).home
        length = multiple // itemsize
        column = f"begin at an index that is a multiple of {length}"
        if len(shape) > 1:
            column = (
                f"begin at a column that is a multiple of {length}, in rows whose length is also a multiple"
                f" of {length}"
            )
        return self.finding(
            "error",
            f"{name} needs {size} bytes at an address that is a multiple of {multiple}, but {element} is"
            f" {plural(address % multiple, 'byte')} past one",
            element,
            site,
            what,
            reason='A GPU stops the kernel with the error "misaligned address".',
            fix=column if length > 1 else f"begin at an address that is a multiple of {multiple} bytes",
        )

    def unsure(self, allocation, address, multiple, site, what):
        element = self.context.space.element(address)
        return self.finding(
            "warning",
            f"{element} has to lie at a multiple of {multiple} bytes, but {element.array}"
            f" is declared with alignment {allocation.alignment}",
            element,
            site,
            what,
            fix=f"declare {element.array} with alignment={multiple}",
        )

    def finding(self, severity, message, element, site, what, **why):
        witness = self.context.witness(what, site)
        return Finding("misaligned-address", severity, message, (witness,), *element, **why)
