"""Products of warp groups (wgmma.mma_async): all 128 threads of four consecutive warps arrive, and then the
product is computed.

The result is computed at once, although a GPU may compute it at any time until the threads wait for it. A
program can observe the difference only by an early access to the registers of the product
(sim.memory.products), or to its matrices in shared memory (sim.observers). All such accesses are reported.

The reads of each warp, of its 16 rows of A and of all of B, are a separate operation, because PTX does not
order the memory accesses of one warp before a product of another warp.

Source: PTX ISA 9.7.15.5, "Asynchronous wgmma.mma_async operation".
"""

import numpy as np

from sim.engine.descriptors import check_descriptor, doubts
from sim.engine.warp import format_lanes
from sim.events import Finding
from sim.isa import wgmma
from sim.isa.conversions import cast
from sim.isa.matrix_descriptor import decode
from sim.isa.wgmma import THREADS, WARPS
from sim.memory.async_proxy import issue_async
from sim.memory.products import (
    Fragment,
    IssuedProduct,
    products_of,
    report_early_access,
    report_missing_fence,
    report_unset_register,
)
from sim.nouns import plural

WARPGROUP = "warp group"  # a value of Thread.waits
LANES = THREADS // WARPS


class Arrivals:
    """The threads of a warp group that have arrived at one product or setmaxnreg.

    entry: the entry of the instruction in sim.isa.
    operands: {thread's number in its group: (accumulators, A or its descriptor, descriptor of B, scale_d)}.
        For setmaxnreg, the Moment of the thread instead.
    """

    __slots__ = "entry", "threads", "operands"

    def __init__(self, entry):
        self.entry, self.threads, self.operands = entry, {}, {}


def arrive(scheduler, memory, product, operands, frame, site):
    """Let the current thread take part in a product, and wait until all threads of the warp group have
    arrived. Return the thread's accumulators and the IssuedProduct."""
    thread = scheduler.context.thread
    # The threads must be at the same call in the source, but may be at different instructions of the same
    # form.
    key = thread.warp // WARPS, product.name, id(frame.f_code), frame.f_lasti
    arrivals = thread.block.warpgroup_arrivals.setdefault(key, Arrivals(product))
    number = thread.linear % THREADS
    arrivals.threads[number], arrivals.operands[number], thread.frame = thread, operands, frame
    if len(arrivals.threads) == THREADS:
        del thread.block.warpgroup_arrivals[key]
        complete(scheduler, memory, arrivals, site)
        return thread.result
    return scheduler.wait(WARPGROUP, frame)


def complete(scheduler, memory, arrivals, site):
    """Compute the product, give each thread its accumulators, and wake all threads except the current one."""
    context, product, running = scheduler.context, arrivals.entry, scheduler.context.thread
    threads = [arrivals.threads[number] for number in range(THREADS)]
    accumulators, a, b, scale = zip(*(arrivals.operands[number] for number in range(THREADS)))
    issue = IssuedProduct(product.shape, site)
    given = {"scale-d": scale, "descriptor of B": b} | (
        {} if product.variant.a_in_registers else {"descriptor of A": a}
    )
    context.findings += different_operands(context, threads, given, site)
    scheduler.enter(threads[0])  # findings about the descriptors name this thread
    chunks_b, of_b, doubted = read_matrix(context, memory, decode(b[0]), product, "b", site)
    if product.variant.a_in_registers:
        matrix_a, of_a = product.fragments(np.array(a, np.int64)), None
    else:
        chunks_a, of_a, of_other = read_matrix(context, memory, decode(a[0]), product, "a", site)
        doubted = of_other + doubted
        matrix_a = product.matrix(chunks_a, "a")
    d = product.accumulators(np.array(accumulators, product.register)) if scale[0] else None
    results = product.distributed(product.semantics(d, matrix_a, product.matrix(chunks_b, "b")))
    for warp in range(WARPS):
        scheduler.enter(threads[LANES * warp])
        rows = [] if of_a is None else [of_a[len(of_a) // WARPS * warp :][: len(of_a) // WARPS]]
        reads = byte_runs(np.concatenate([part.reshape(-1) for part in (*rows, of_b)]))
        doubts_of_warp = () if warp else tuple(doubted)
        issue.operations.append(issue_async(context, "wgmma", reads, (), site, site, doubts=doubts_of_warp))
    for thread, row in zip(threads, results):
        products_of(thread).open.append(issue)
        thread.result = row, issue
        if thread is not running:
            thread.block.ready.append(thread)
    scheduler.enter(running)


def read_matrix(context, memory, descriptor, product, of, site):
    """Return (bytes, simulated addresses, doubts about the layout) of the chunks of a matrix in shared
    memory. Report a descriptor that leads outside shared memory, or is misaligned."""
    variant = product.variant
    mn_major, count = (variant.mn_major_a, 64) if of == "a" else (variant.mn_major_b, variant.n)
    addresses = descriptor.chunks(mn_major, count)
    data, found = memory.shared_chunks(addresses)
    check_descriptor(context, descriptor, of.upper(), addresses, found, site)
    return data, found, doubts(context, descriptor, of.upper(), mn_major, count, found, site)


def byte_runs(addresses):
    """Return the (address, bytes) of the runs of adjacent chunks."""
    chunks = np.unique(addresses[addresses >= 0])
    starts = np.flatnonzero(np.diff(chunks, prepend=-1) != 16)
    lengths = np.diff(starts, append=len(chunks)) * 16
    return list(zip(chunks[starts].tolist(), lengths.tolist()))


# --- calls --------------------------------------------------------------------------------------------------


def call_of_python(scheduler, memory, product):
    """Return the function that a Python kernel calls for a product."""
    context, register = scheduler.context, cast(np.dtype(product.register))

    def call(frame, accumulators, a, b, scale_d=True):
        site = memory.site("load")
        # No fence is necessary between two products of the same shape on the same accumulators.
        check_fragment(context, accumulators, product.shape, site, "accumulators", product.count)
        values = tuple(map(register, tuple.__iter__(accumulators)))
        if product.variant.a_in_registers:
            check_fragment(context, a, None, site, "registers for A", 4)
            a = tuple(map(int, tuple.__iter__(a)))
        operands = values, a if isinstance(a, tuple) else int(a), int(b), bool(scale_d)
        results, issue = arrive(scheduler, memory, product, operands, frame, site)
        return Fragment.of(results, context, issue)

    return call


def check_fragment(context, registers, shape, site, what, count):
    """Report registers of a Python kernel that require a wgmma.fence before a product.

    shape: the shape of the product if the registers are its accumulators, otherwise None.

    Raise TypeError if the registers are not a tuple of `count` numbers.
    """
    if not isinstance(registers, tuple) or len(registers) != count:
        raise TypeError(f"wgmma takes a tuple of {count} {what}, got {registers!r}")
    state = products_of(context.thread)
    fragment = registers if isinstance(registers, Fragment) else None
    pending = fragment is not None and fragment.issue is not None
    if not state.fenced:
        report_missing_fence(context, site)
        state.fenced = True
    elif fragment is None:
        report_missing_fence(context, site, ("written", site))
    elif fragment.touched is not None:
        report_missing_fence(context, site, ("read", fragment.touched))
    elif pending and fragment.issue.shape != shape:
        report_early_access(context, "read", site, fragment.issue)


def call_of_ptx(scheduler, memory, product, frame, site, names):
    """Return the function that a PTX kernel calls for a product.

    names: the names of the registers with the accumulators, and of those with A.
    """
    context, (accumulators, of_a) = scheduler.context, names

    def call(*operands):
        state = products_of(context.thread)
        check_registers(context, state, accumulators, of_a, product.shape, site)
        read = accumulators + of_a if operands[-1] else of_a
        unset = next((name for name in read if name in state.registers.unset), None)
        if unset is not None:
            report_unset_register(context, site, unset, unset in of_a)
        state.registers.unset -= {*accumulators, *of_a}
        results, issue = arrive(scheduler, memory, product, operands, frame, site)
        state.registers.written |= dict.fromkeys(accumulators, issue)
        state.registers.read |= dict.fromkeys(of_a, issue)
        return results

    return call


def check_registers(context, state, accumulators, of_a, shape, site):
    """Report named registers that need a wgmma.fence before a product, or that another product uses."""
    registers = state.registers
    if not state.fenced:
        report_missing_fence(context, site)
        state.fenced = True
        registers.touched.clear()
    touched = next(
        (registers.touched[name] for name in (*accumulators, *of_a) if name in registers.touched), None
    )
    if touched is not None:
        report_missing_fence(context, site, touched)
    for name in accumulators:
        issue = registers.written.get(name)
        if issue is not None and issue.shape != shape:
            report_early_access(context, "changed", site, issue, name)
            break
    for word, names, pending in (
        ("read", of_a, registers.written),
        ("changed", accumulators, registers.read),
    ):
        for name in names:
            if name in pending:
                report_early_access(context, word, site, pending[name], name)
                break


def declarer(context, names):
    """Return the function that records the registers which the thread has not set yet."""

    def declare():
        products_of(context.thread).registers.unset |= names

    return declare


def toucher(context, site, reads, writes, constant=False, moved=False):
    """Return the function that records which registers of products a PTX instruction accesses.

    reads, writes: the names of the registers.
    constant: whether the instruction sets a constant, which a compiler can move after the fence. It counts as
        an access before the fence if the thread has executed a fence since it last waited for a product.
    moved: whether the compiler has moved the instruction from before a fence to after it.

    A read between a fence and the first product needs no further fence: it obtains the old value, because the
    product starts later. Compilers emit such reads, for example in a setp that computes scale-d.
    """
    read, written = dict.fromkeys(reads, ("read", site)), dict.fromkeys(writes, ("written", site))

    def touch():
        state = context.thread.products
        if state is None:
            return
        registers = state.registers
        if registers.written or registers.read:
            for names, word in ((reads, "read"), (writes, "written")):
                for name in names:
                    issue = registers.written.get(name)
                    if issue is None and word == "written":
                        issue = registers.read.get(name)
                    if issue is not None:
                        report_early_access(context, word, site, issue, name)
        registers.unset.difference_update(writes)
        if not (moved or state.fence_is_new):
            registers.touched |= read
        if not (moved or constant and state.fence_is_new):
            registers.touched |= written

    return touch


def mover(context, site, to, source):
    """Return the function that records a move between registers of products."""

    def move():
        state = context.thread.products
        if state is None:
            return
        registers = state.registers
        issue = registers.written.get(to) or registers.read.get(to)
        if issue is not None and registers.written.get(source) is not issue:
            report_early_access(context, "written", site, issue, to)
        registers.move(to, source)

    return move


# --- findings -----------------------------------------------------------------------------------------------


def different_operands(context, threads, given, site):
    """Yield a finding for each operand that must be equal in all threads of a warp group and is not."""
    for name, values in given.items():
        number = next((i for i, value in enumerate(values) if value != values[0]), None)
        if number is not None:
            first, other = (f"{value:#x}" for value in (values[0], values[number]))
            yield Finding(
                "wgmma",
                "error",
                f"the {name} of a wgmma differs within the warp group: {first} and {other}",
                tuple(context.witness("calls", site, threads[i]) for i in (0, number)),
                reason="All threads of a warp group pass the same descriptors and scale-d to a wgmma.",
                fix=f"compute the {name} from values that are equal in all four warps",
            )


def missing_threads_finding(scheduler, block):
    """Return the finding for a product or setmaxnreg at which some threads of the warp group never arrive."""
    (group, *_), arrivals = min(block.warpgroup_arrivals.items(), key=lambda item: item[0][0])
    changes = not isinstance(arrivals.entry, wgmma.Product)
    size = min(THREADS, len(block.threads) - THREADS * group) if changes else THREADS
    missing = [number for number in range(size) if number not in arrivals.threads]
    warps = sorted({number // LANES for number in missing})
    first = arrivals.threads[min(arrivals.threads)]
    lost = [t for t in block.threads if t.linear // THREADS == group and t.linear % THREADS in missing][:1]
    whole = len(missing) == LANES * len(warps)
    who = (
        f"warp{'s' * (len(warps) > 1)} {format_lanes([WARPS * group + warp for warp in warps])}"
        if whole
        else plural(len(missing), "thread")
    )
    name, instruction = ("setmaxnreg",) * 2 if changes else ("wgmma", "wgmma.mma_async")
    return Finding(
        "warp-divergence",
        "error",
        f"{who} of the warp group of threads {THREADS * group} to {THREADS * group + size - 1} take"
        f"{'s' * (whole and len(warps) == 1 or len(missing) == 1)} no part in a {name}",
        (scheduler.waiting_witness(first), *map(scheduler.waiting_witness, lost)),
        reason=f"All threads of a warp group, four whole warps, must execute the same {instruction}.",
        fix="let all four warps reach this line, and launch a multiple of 128 threads",
    )
