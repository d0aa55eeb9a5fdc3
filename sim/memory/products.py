"""Pending products of warp groups (wgmma) in each thread, and the registers that these products use.

A product uses its registers until the thread waits for its group. In Python kernels, the registers of a
matrix are a tuple (`Fragment`), which records the product that sets them. In PTX, each register has a name
(`PendingRegisters`).

Source: PTX ISA 9.7.15.7, "Asynchronous wgmma Proxy Operations": wgmma.fence, wgmma.commit_group,
wgmma.wait_group.
"""

from sim.events import Finding
from sim.memory.async_proxy import finish_async


class IssuedProduct:
    """A wgmma product that has been issued.

    shape: its shape, such as "m64n128k16".
    site: the site of its instruction.
    operations: the AsyncOperation of each warp.
    committed: whether a thread has committed it to a group.
    """

    __slots__ = "shape", "site", "operations", "committed"

    def __init__(self, shape, site):
        self.shape, self.site, self.operations, self.committed = shape, site, [], False


class ThreadProducts:
    """The products of one thread.

    open: the products that are not committed to a group yet.
    groups: the committed groups for which the thread has not waited, oldest first.
    fenced: whether the thread has executed a wgmma.fence.
    fence_is_new: whether it has executed a wgmma.fence since its last wait that completed a product.
    registers: the PendingRegisters of a PTX kernel.
    """

    __slots__ = "open", "groups", "fenced", "fence_is_new", "registers"

    def __init__(self):
        self.open, self.groups, self.registers = [], [], PendingRegisters()
        self.fenced = self.fence_is_new = False

    def is_pending(self, issue):
        """Return whether the thread has not yet waited for a product."""
        return issue in self.open or any(issue in group for group in self.groups)


def products_of(thread):
    """Return the ThreadProducts of a thread, created on first use."""
    if thread.products is None:
        thread.products = ThreadProducts()
    return thread.products


class Products:
    """The wgmma instructions without operands in memory, as executed by the current thread.

    memory: the sim.memory.transfer.Memory of the instruction.
    """

    def __init__(self, memory):
        self.context = memory.context
        self.state = products_of(memory.context.thread)

    def fence(self, registers):
        self.state.fenced = self.state.fence_is_new = True
        self.state.registers.touched.clear()
        return self.passed(registers)

    def commit(self):
        for issue in self.state.open:
            issue.committed = True
        self.state.groups.append(self.state.open)
        self.state.open = []

    def wait(self, groups, registers):
        """Wait until at most the newest `groups` groups are pending. Return the registers, which the thread
        may use again unless a pending product sets them."""
        done = []
        while len(self.state.groups) > groups:
            done += self.state.groups.pop(0)
        self.state.registers.release(done)
        if done:
            self.state.fence_is_new = False
            finish_async(self.context, [operation for issue in done for operation in issue.operations])
        return self.passed(registers)

    def passed(self, registers):
        """Return a Fragment with the same registers, which no pending product sets. Return registers that a
        pending product sets unchanged."""
        if registers is None or isinstance(registers, Fragment) and self.state.is_pending(registers.issue):
            return registers
        return Fragment.of(tuple.__iter__(registers), self.context)


class Fragment(tuple):
    """One thread's registers for a matrix, in a Python kernel. Fences, waits and products return a Fragment.

    issue: the product that sets the registers, or None.
    touched: the site at which the kernel has read one of the registers since the last fence or wait, or None.
    """

    context = issue = touched = None

    @classmethod
    def of(cls, registers, context, issue=None):
        fragment = cls(registers)
        fragment.context, fragment.issue = context, issue
        return fragment

    def __getitem__(self, index):
        self.read()
        return super().__getitem__(index)

    def __iter__(self):
        self.read()
        return super().__iter__()

    def read(self):
        """Record that the kernel reads the registers. Report it if a product still sets them.

        A read between a fence and the first product needs no further fence (sim.engine.warpgroup.toucher).
        """
        if self.touched is None and (self.issue or not products_of(self.context.thread).fence_is_new):
            self.touched = self.context.sites.current("load")
            if self.issue is not None:
                report_early_access(self.context, "read", self.touched, self.issue)


class PendingRegisters:
    """The named registers of a thread that pending products use, or that need a fence before the next
    product.

    written: {name of an accumulator: the IssuedProduct that sets it}.
    read: {name of a register with a fragment of A: the IssuedProduct that reads it}.
    touched: {name: (word for the access, site)} for the accesses since the last wgmma.fence.
    unset: the names of registers that no instruction has set.
    """

    __slots__ = "written", "read", "touched", "unset"

    def __init__(self):
        self.written, self.read, self.touched, self.unset = {}, {}, {}, set()

    def release(self, issues):
        """Forget the registers of completed products, because the thread may use them again."""
        if issues:
            self.written = {name: issue for name, issue in self.written.items() if issue not in issues}
            self.read = {name: issue for name, issue in self.read.items() if issue not in issues}

    def move(self, to, source):
        """Copy the state of a register to the destination of a move, because compilers rename registers by
        moves."""
        for names in (self.written, self.touched):
            if source in names:
                names[to] = names[source]
            else:
                names.pop(to, None)
        (self.unset.add if source in self.unset else self.unset.discard)(to)


# --- findings -----------------------------------------------------------------------------------------------


def report_early_access(context, word, site, issue, name=None):
    """Report an access to the registers of a product before the thread has waited for it.

    word: "read" or "written".
    name: the register, or None for the registers of a Python kernel.
    """
    state = products_of(context.thread)
    which = f"register {name} of a wgmma is" if name else "registers of a wgmma are"
    if not state.is_pending(issue):
        reason = "The access does not depend on the wait, so the compiler may move it before the wait."
        fix = "pass the registers through the wait, and use its result: acc = wgmma_wait_0(acc)"
    elif issue.committed:
        reason = "A wgmma may access its registers until a wgmma.wait_group has waited for its group."
        fix = "wait before this line: wgmma.wait_group 0, or the number of newer groups that may still run"
    else:
        reason = (
            "A wgmma may access its registers until the thread has waited for its group, and this wgmma does"
            " not belong to a group yet."
        )
        fix = "put wgmma.commit_group after the wgmma, and wgmma.wait_group before this line"
    context.findings.append(
        Finding(
            "wgmma",
            "error",
            f"{which} {word} while the product may still be running",
            (context.witness(word, site), context.witness("issued", issue.site)),
            reason=reason,
            fix=fix,
        )
    )


def report_missing_fence(context, site, touched=None):
    """Report a product whose registers were accessed after the last wgmma.fence.

    touched: (word, site) of the access, or None if the thread has executed no fence at all.
    """
    verdict = "a wgmma is issued without a wgmma.fence before it"
    witnesses = [context.witness("issued", site)]
    if touched is not None:
        verdict = f"a wgmma uses registers that were {touched[0]} after the last wgmma.fence"
        witnesses.append(context.witness(*touched))
    context.findings.append(
        Finding(
            "wgmma",
            "error",
            verdict,
            tuple(witnesses),
            reason="Only the fence orders accesses to accumulators and fragments of A before a wgmma.",
            fix="put wgmma.fence between the last access to these registers and the wgmma",
        )
    )


def report_unset_register(context, site, name, of_a):
    """Report a product that reads a register which no instruction has set.

    of_a: whether the register belongs to the fragment of A, and not to the accumulators.
    """
    start = "set the accumulators to zero before the first product, or pass scale-d = 0 to it"
    context.findings.append(
        Finding(
            "uninitialized-read",
            "error",
            f"a wgmma reads register {name}, which no instruction has set",
            (context.witness("read", site),),
            reason="The register has an undefined value"
            + ("." if of_a else ", to which a product with scale-d = 1 adds."),
            fix="load the fragment of A before the product" if of_a else start,
        )
    )
