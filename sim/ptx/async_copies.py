"""Translation of asynchronous copies.

Source: PTX ISA 9.7.9.25, "Asynchronous copy".
"""

from sim.isa.registers import Missing
from sim.isa.table import by_ptx
from sim.ptx.accesses import address_text
from sim.ptx.syntax import Not


def entry_of(opcode):
    """Return the entry of sim.isa for a PTX opcode. Raise Missing if there is none."""
    try:
        return by_ptx(opcode)
    except KeyError:
        raise Missing(opcode) from None


def cp_async(writer, item):
    """Emit cp.async, a copy to shared memory. Only a wait guarantees that the copy is complete."""
    operands, does = item.operands, set(item.names[1:])
    if "mbarrier" in does:
        return cp_async_mbarrier(writer, item)
    if len(does) == 2 and (what := does & ASYNCHRONOUS.keys()):
        values = [writer.value(operand, "u32") for operand in operands]
        if len(values) != ("wait_group" in what):
            raise Missing(f"{item.opcode} with these operands")
        writer.emit(f"{writer.module.transfer(ASYNCHRONOUS[what.pop()])}({', '.join(values)})")
        return
    if "L2::cache_hint" in does:
        operands = operands[:-1]  # without the cache policy
    to, source, size, *taken = operands
    if not does <= COPYING or len(does & {"ca", "cg"}) != 1 or "async" not in does or len(taken) > 1:
        raise Missing(item.opcode)
    # PTX allows 4, 8 and 16 bytes with .ca, but only 16 with .cg (PTX ISA 9.7.9.25.3.1, `cp.async`).
    sizes = (16,) if "cg" in does else (4, 8, 16)
    if getattr(size, "value", None) not in sizes:
        raise Missing(f"{item.opcode} of a size other than {', '.join(map(str, sizes))} bytes")
    name = writer.module.transfer(f"cp_async_{size.value}")
    places = f"'shared', {address_text(writer, to)}, 'global', {address_text(writer, source)}"
    writer.emit(f"{name}({places}, {source_bytes(writer, size.value, *taken)})")


def cp_async_mbarrier(writer, item):
    """Emit cp.async.mbarrier.arrive, which arrives at the mbarrier once the thread's copies are complete."""
    (where,) = item.operands
    space, plain = shared_or_generic(item.names)
    name = writer.module.transfer(entry_of(plain).name)
    writer.emit(f"{name}({space!r}, {address_text(writer, where)})")


def shared_or_generic(names):
    """Return (state space, opcode without the modifier .shared) for an address in shared memory or a generic
    address."""
    spaces = {"shared", "shared::cta"} & set(names)
    return "shared" if spaces else "generic", ".".join(n for n in names if n not in spaces)


# modifier of a cp.async that has no memory operands -> entry of sim.isa
ASYNCHRONOUS = {
    "commit_group": "cp_async_commit",
    "wait_group": "cp_async_wait",
    "wait_all": "cp_async_wait_all",
}
# the modifiers of a cp.async that copies
COPYING = {"async", "ca", "cg", "shared", "shared::cta", "global", "L2::cache_hint"}
COPYING |= {"L2::64B", "L2::128B", "L2::256B"}


def source_bytes(writer, size, taken=None):
    """Return the expression for the number of bytes read by a copy.

    It is the operand src-size, or 0 if the predicate ignore-src is true.

    size: the number of bytes written by the copy.
    taken: the operand src-size or ignore-src, or None.
    """
    if taken is None:
        return str(size)
    if getattr(taken, "type", "") == "pred" or isinstance(taken, Not):
        return f"0 if {writer.value(taken, 'pred')} else {size}"
    return writer.value(taken, "u32")
