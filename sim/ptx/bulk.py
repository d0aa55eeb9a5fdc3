"""Translation of bulk copies and of fences between proxies.

Source: PTX ISA 9.7.9.25.4, "Bulk copy"; 9.7.13.4, "membar, fence".
"""

from sim.isa.bulk import ELEMENTS, REDUCTIONS
from sim.isa.registers import Missing
from sim.isa.table import by_ptx
from sim.ptx.accesses import address_text
from sim.ptx.syntax import Group


def bulk(writer, item):
    """Emit cp.async.bulk or cp.reduce.async.bulk."""
    names = item.names
    if "prefetch" in names:
        return  # a prefetch into the L2 cache has no effect on results
    if names[-1] == "commit_group" or "wait_group" in names:
        entry = by_ptx(item.opcode)
        values = [writer.value(operand, "u32") for operand in item.operands]
        writer.emit(f"{writer.module.transfer(entry.name)}({', '.join(values)})")
        return
    operands = list(item.operands)
    if "L2::cache_hint" in names:
        operands.pop()  # drop the cache policy
    if "tensor" in names:
        return tensor(writer, item, operands)
    spaces = [state_space(name) for name in names if state_space(name)]
    if len(spaces) != 2:
        raise Missing(f"{item.opcode} without state spaces")
    target, source, size, *rest = operands
    values = [repr(spaces[0]), address_text(writer, target), repr(spaces[1]), address_text(writer, source)]
    values.append(writer.value(size, "u32"))
    name = entry_name(names, spaces)
    if "global" != spaces[0]:
        values += ["'shared'", address_text(writer, rest.pop(0))]
    if "multicast::cluster" in names:
        values.append(writer.value(rest.pop(0), "u16"))
    if "reduce" in names:
        operation, ptx_type = next(n for n in names if n in REDUCTIONS), names[-1]
        if ptx_type not in ELEMENTS:
            raise Missing(item.opcode)
        values += [repr(operation), repr(ptx_type)]
    if rest:
        raise Missing(f"{item.opcode} with these operands")
    writer.emit(f"{writer.module.transfer(name)}({', '.join(values)})")


def tensor(writer, item, operands):
    """Emit cp.async.bulk.tensor or cp.reduce.async.bulk.tensor in tile mode."""
    names, loads = item.names, "bulk_group" not in item.names
    if any(name.startswith(("im2col", "tile::", "cta_group::2")) for name in names):
        raise Missing(f"{item.opcode} in a mode other than tile")
    rank = next(int(name[0]) for name in names if name in ("1d", "2d", "3d", "4d", "5d"))
    map, tile, *rest = (operands[1], operands[0], *operands[2:]) if loads else operands
    (given,) = map.coordinates
    parts = given.parts if isinstance(given, Group) else (given,)
    if len(parts) != rank:
        raise Missing(f"{item.opcode} with {len(parts)} coordinates")
    where = f"'generic', {address_text(writer, map)}, ({', '.join(writer.value(p, 's32') for p in parts)},)"
    shared = f"'shared', {address_text(writer, tile)}"
    if not loads:
        name = "cp_async_bulk_tensor_store"
        values = [where, shared]
        if "reduce" in names:
            name = "cp_reduce_async_bulk_tensor"
            values.append(repr(next(n for n in names if n in REDUCTIONS)))
    else:
        name = "cp_async_bulk_tensor_load"
        values = [shared, where, f"'shared', {address_text(writer, rest.pop(0))}"]
        if "multicast::cluster" in names:
            name = "cp_async_bulk_tensor_multicast"
            values.append(writer.value(rest.pop(0), "u16"))
    if rest:
        raise Missing(f"{item.opcode} with these operands")
    writer.emit(f"{writer.module.transfer(name)}({', '.join(values)})")


def entry_name(names, spaces):
    """Return the name of the entry of sim.isa for a copy between two state spaces."""
    if "reduce" in names:
        return "cp_reduce_async_bulk_store" if spaces[0] == "global" else "cp_reduce_async_bulk_cluster"
    if "multicast::cluster" in names:
        return "cp_async_bulk_multicast"
    return "cp_async_bulk_store" if spaces[0] == "global" else "cp_async_bulk_load"


def state_space(name):
    """Return the state space that a modifier names, or None. An address in shared::cluster contains the rank
    of its block, so shared::cluster is not a separate space here."""
    plain = name.split("::")[0]
    return plain if plain in ("global", "shared") else None


def proxy_fence(writer, item):
    """Emit a fence between proxies. Only fences for the async proxy have an effect."""
    names = [name for name in item.names if name != "bulk"]
    if not any(name.startswith("async") for name in names):
        return  # the simulator has no other proxies, and only the host writes tensor maps
    if any("::generic" in name for name in names):
        opcode = "fence.proxy.async.shared::cta"  # .sync_restrict implies shared memory
    else:
        opcode = ".".join(names)
    writer.emit(f"{writer.module.transfer(by_ptx(opcode).name)}()")
