"""The Python statements of one PTX instruction.

Most instructions only compute with registers, and `sim.isa.registers` provides an expression for them.
For opcodes that need more than an expression, such as memory accesses, waits or calls, HANDLERS contains
functions that emit the statements.

Source: PTX ISA 9.7, "Instructions".
"""

from sim.events import ADDRESS_MASK
from sim.isa.ptx_types import REALS, SIGNED
from sim.isa.registers import CARRY, JOINED, ORDERINGS, WIDTHS, Missing, comparisons_of, find_operation
from sim.ptx import wgmma
from sim.ptx.accesses import SPACES, Access, address_text, atomic, load, parts, store
from sim.ptx.async_copies import cp_async, entry_of
from sim.ptx.bulk import bulk, proxy_fence
from sim.ptx.calls import size_of
from sim.ptx.clusters import cluster_barrier, mapa
from sim.ptx.regions import WINDOWS
from sim.ptx.shared_pointers import any_function_stores_shared_pointers, stores_shared_pointers
from sim.ptx.syntax import Address, Group, Immediate, Register, Symbol, python_name
from sim.ptx.warps import form_of, width_check

# Instructions without an effect on results: prefetches, cache policies, scheduling hints.
IGNORED = set("prefetch prefetchu applypriority discard createpolicy griddepcontrol pmevent".split())


def types_of(item):
    """Yield (type, operand) for the operands whose type shows the kind of their register (see
    register_kinds)."""
    base = item.names[0]
    try:
        if base in ("ld", "ldu", "st", "atom", "red"):
            access = Access(item.opcode)
            for operand in item.operands:
                if not isinstance(operand, Address) and access.type in REALS:
                    yield from ((access.type, part) for part in parts(operand))
            for operand in item.operands:
                if isinstance(operand, Address):
                    yield "b64", operand.base
        elif base == "wgmma":
            yield from wgmma.types_of(item)
        elif base == "mma" or base == "wmma" and "mma" in item.names:
            form = form_of(item.opcode)
            yield from zip(form.results, parts(item.operands[0]))
            yield from zip(form.operands, (p for operand in item.operands[1:] for p in parts(operand)))
        elif base not in (HANDLERS.keys() - {"setp"}) and not item.opcode.startswith("selp.b"):
            operation = find_operation(plain_comparison(item.opcode)[0])
            yield from zip(operation.operands, item.operands[1:])
            yield from zip(operation.results, parts(item.operands[0]) if item.operands else ())
    except Missing:
        return


def instruction(writer, item):
    """Emit the statements of an instruction. Raise Missing for an unsupported instruction."""
    base = item.names[0]
    if base in HANDLERS:
        HANDLERS[base](writer, item)
    elif base not in IGNORED:
        compute(writer, item)


def compute(writer, item):
    """Emit an instruction that only computes with registers, as sim.isa defines it."""
    operation = find_operation(item.opcode)
    to, *given = item.operands
    values = [writer.value(o, ptx_type) for o, ptx_type in zip(given, operation.operands)]
    if CARRY in operation.operands:
        values.append("carry")
    if len(values) != len(operation.operands) or len(given) > len(values):
        raise Missing(f"{item.opcode} with these operands")
    text = operation.of(values)
    if CARRY in operation.results:
        writer.emit(f"low, carry = {text}")
        text = "low"
    writer.assign(to, text, operation.results[0], operation.in_range)


# --- comparisons, moves -------------------------------------------------------------------------------------


def plain_comparison(opcode):
    """Return (opcode without its Boolean operator, the operator or None) for a setp. Return (opcode, None)
    for any other opcode."""
    parts = opcode.split(".")
    joined = next((part for part in parts if part in JOINED), None) if parts[0] == "setp" else None
    return ".".join(part for part in parts if part != joined), joined


def setp(writer, item):
    """Emit setp, which sets a predicate, or two predicates p|q. The result can be combined with a third
    predicate (PTX ISA 9.7.6)."""
    plain, joined = plain_comparison(item.opcode)
    # The operator .and, .or or .xor combines the comparison with the third predicate.
    to, a, b, *third = item.operands
    results = []
    if writer.module.compares:
        operands = comparisons_of(plain)[0].operands
        given = ", ".join(writer.value(o, k) for o, k in zip((a, b), operands))
        number = next(writer.module.comparisons)
        writer.emit(f"if {number} not in compared_enough: compared({number}, {given})")
    for register, operation in zip(parts(to), comparisons_of(plain)):
        if register is not None:
            signed = operation.operands[0] in SIGNED and operation.text in ORDERINGS
            read = writer.biased_value if signed else writer.value
            given = (read(o, k) for o, k in zip((a, b), operation.operands))
            results.append((register, operation.text.format(*given)))
    if not third:
        for register, test in results:
            writer.assign(register, test, "pred")
        return
    sign, other = JOINED[joined], writer.value(third[0], "pred")
    # One statement assigns both results, because the third predicate can also be a destination.
    names = ", ".join(writer.name(register) for register, _ in results)
    writer.emit(f"{names} = {', '.join(f'({test}) {sign} {other}' for _, test in results)}")


def mov(writer, item):
    """Emit mov. Its source is a register, a constant or an address, and a vector is packed or unpacked (PTX
    ISA 9.7.9)."""
    ptx_type, (to, source) = item.names[-1], item.operands
    if ptx_type not in WIDTHS:
        raise Missing(item.opcode)
    if isinstance(to, Group):
        writer.assign(to, writer.value(source, f"b{WIDTHS[ptx_type]}"), f"b{WIDTHS[ptx_type]}")
        return
    same = isinstance(source, Register) and writer.kinds[to.name] == writer.kinds[source.name]
    if same and WIDTHS.get(to.type) == WIDTHS.get(source.type):
        writer.emit(f"{writer.name(to)} = {writer.name(source)}")
        return
    floating = writer.kinds[to.name] in REALS and isinstance(source, Immediate)
    as_it_is = ptx_type in REALS or ptx_type == "pred"
    read_as = writer.kinds[to.name] if floating else ptx_type if as_it_is else f"b{WIDTHS[ptx_type]}"
    writer.assign(to, writer.value(source, read_as), read_as, True)


def cvta(writer, item):
    """Emit cvta, which converts a generic address to an address in a state space, or the reverse.

    The two addresses differ by the base of the space's window (PTX ISA 6.4.1.1, "Generic Addressing").
    """
    names, (to, source) = item.names, item.operands
    space = next((n.split("::")[0] for n in names if n.split("::")[0] in SPACES), None)
    text = writer.value(source, next(n for n in names if n in WIDTHS).replace("u", "b"))
    # A kernel parameter whose address is taken is stored in constant memory.
    window = WINDOWS["const" if space == "param" else space]
    sign = "-" if "to" in names else "+"
    if space == "shared" and sign == "-" and any_function_stores_shared_pointers(writer.module):
        site = writer.module.site("load")
        strip = writer.module.new_name("strip", lambda run: run.shared_pointers.make_strip(site))
        text = f"{strip}({text})"
    elif space == "shared" and sign == "+" and writer.module.analysis(stores_shared_pointers):
        text += f" + {writer.module.shared_name('shared_tag', lambda run: run.shared_pointers.tag)}()"
    writer.assign(to, f"{text} {sign} {window:#x}" if window else text, "b64", not window)


def isspacep(writer, item):
    """Emit isspacep, which tests whether a generic address is in the window of a state space."""
    space, (to, source) = item.names[1].split("::")[0], item.operands
    # The upper bits of a generic address contain the number of the window.
    # Each window has 2**34 bytes (SPACE_SHIFT), and the bits above ADDRESS_MASK contain a tag
    # (sim.ptx.shared_pointers).
    number = WINDOWS["const" if space == "param" else space] >> 34
    address = writer.value(source, "b64")
    if writer.module.analysis(stores_shared_pointers):
        address = f"({address} & {ADDRESS_MASK:#x})"
    writer.assign(to, f"{address} >> 34 == {number}", "pred")


# --- waiting ------------------------------------------------------------------------------------------------


def barrier(writer, item):
    """Emit bar or barrier, which waits for all threads of the block or for a given number of threads. The
    modifier .red adds a reduction."""
    operands, does = list(item.operands), set(item.names[1:]) - {"cta", "aligned"}
    if "cluster" in does:
        return cluster_barrier(writer, item)
    if "warp" in does:
        return warp(writer, item)
    if "red" in does:
        to, number, predicate = operands[0], operands[1], operands[-1]
        count, vote = operands[2] if len(operands) > 3 else None, entry_of(".".join(["bar", *does]))
        name, result = writer.module.barrier(number, count, vote), next(n for n in does if n in WIDTHS)
        writer.assign(to, f"{name}({writer.value(predicate, 'pred')})", result, True)
        return
    if does == {"sync"} and len(operands) == 1 and isinstance(operands[0], Immediate):
        writer.emit(f"{writer.module.whole_barrier(None, operands[0].value)}()")
        return
    if does not in ({"sync"}, {"arrive"}) or not 1 + ("arrive" in does) <= len(operands) <= 2:
        raise Missing(f"{item.opcode} with these operands")
    values = [writer.value(operand, "u32") for operand in operands]
    writer.emit(f"{writer.module.named_barrier('sync' in does)}({', '.join(values)})")


def mbarrier(writer, item):
    """Emit an mbarrier instruction (PTX ISA 9.7.13.15)."""
    names, operands = item.names, list(item.operands)
    if "pending_count" in names:
        return compute(writer, item)
    entry = entry_of(".".join(n for n in names if n not in ORDERING))
    # An arrival at a barrier of another block returns no state.
    gives = entry.name not in WITHOUT_RESULT and not isinstance(operands[0], Address)
    to = operands.pop(0) if gives else None
    where, *given = operands
    least, most = OPERANDS[entry.name]
    if not isinstance(where, Address) or not least <= len(given) <= most:
        raise Missing(f"{item.opcode} with these operands")
    ptx_type = "b64" if entry.name == "mbarrier_test_wait" else "u32"
    space = "shared" if {"shared", "shared::cta", "shared::cluster"} & set(names) else "generic"
    values = [repr(space), address_text(writer, where)]
    values += [writer.value(operand, ptx_type) for operand in given[:1]]
    # Without a scope, PTX assumes .cta. However, CUTLASS omits the scope at barriers that order blocks of a
    # cluster. Therefore, only an explicit .cta limits the order to the block.
    reach = None if "relaxed" in names else "block" if "cta" in names else "grid"
    waits = any(item is test for test in writer.waits)
    name = writer.module.transfer(entry.name, reach, waits)
    writer.assign(to, f"{name}({', '.join(values)})", "pred" if "wait" in entry.name else "u64", True)


# Modifiers of mbarrier that do not select an entry of sim.isa.
ORDERING = set("release acquire relaxed cta cluster shared shared::cta shared::cluster".split())
WITHOUT_RESULT = set("mbarrier_init mbarrier_inval mbarrier_expect_tx mbarrier_complete_tx".split())
# entry -> (minimum, maximum) number of the operands after the address. The last operand of try_wait is a time
# limit, which is ignored.
OPERANDS = {"mbarrier_init": (1, 1), "mbarrier_inval": (0, 0)}
OPERANDS |= dict.fromkeys(("mbarrier_arrive", "mbarrier_arrive_drop"), (0, 1))
OPERANDS |= dict.fromkeys(("mbarrier_expect_tx", "mbarrier_complete_tx"), (1, 1))
OPERANDS |= dict.fromkeys(("mbarrier_arrive_expect_tx", "mbarrier_arrive_drop_expect_tx"), (1, 1))
OPERANDS |= dict.fromkeys(("mbarrier_arrive_noComplete", "mbarrier_arrive_drop_noComplete"), (1, 1))
OPERANDS |= dict.fromkeys(("mbarrier_test_wait", "mbarrier_test_wait_parity"), (1, 2))


def copy(writer, item):
    """Emit an asynchronous copy."""
    return bulk(writer, item) if "bulk" in item.names else cp_async(writer, item)


def fence(writer, item):
    """Emit a fence."""
    if "proxy" in item.names:
        return proxy_fence(writer, item)
    if "mbarrier_init" in item.names:
        writer.emit(f"{writer.module.transfer(entry_of(item.opcode).name)}()")
        return
    writer.emit(f"{writer.module.fence_call(entry_of(item.opcode))}()")


def sleep(writer, item):
    """Emit nanosleep, which suspends the thread for a given time."""
    writer.emit(f"{writer.module.sleep_call()}({writer.value(item.operands[0], 'u32')})")


def warp(writer, item):
    """Emit a warp instruction, whose lanes read each other's operands."""
    form = form_of(item.opcode)
    given = item.operands[1:] if form.results else item.operands
    given = [part for operand in given for part in parts(operand)]
    values = {i: writer.value(given[i], ptx_type) for i, ptx_type in zip(form.order, form.operands)}
    check = width_check(writer, item) if item.names[0] == "shfl" else None
    if check:
        writer.emit(f"{check}({values[2]})")
    name = writer.module.warp_call(form.entry)
    text = f"{name}({', '.join(values[i] for i in form.order)})"
    assign_results(writer, item, form.results, text, len(values) == len(given))


def ldmatrix(writer, item):
    """Emit ldmatrix, whose operands are in memory."""
    names = item.names
    space = next((n for n in names if n.split("::")[0] == "shared"), None)
    form = form_of(".".join(n for n in names if n != space))
    _, where = item.operands
    # ldmatrix accesses shared memory. Without .shared, its address is generic (PTX ISA 9.7.14.5, `ldmatrix`).
    name = writer.module.warp_call(form.entry, "shared" if space else "generic")
    assign_results(writer, item, form.results, f"{name}({address_text(writer, where)})")


def stmatrix(writer, item):
    """Emit stmatrix, which stores registers of the whole warp."""
    names = item.names
    space = next((n for n in names if n.split("::")[0] == "shared"), None)
    form = form_of(".".join(n for n in names if n != space))
    where, registers = item.operands
    values = [writer.value(part, "b32") for part in parts(registers)]
    if not isinstance(where, Address) or len(values) != len(form.entry.operands):
        raise Missing(f"{item.opcode} with these operands")
    name = writer.module.warp_call(form.entry, "shared" if space else "generic")
    writer.emit(f"{name}({', '.join([address_text(writer, where), *values])})")


def wmma(writer, item):
    """Emit a wmma instruction, which multiplies fragments, or loads or stores one fragment with the whole
    warp."""
    names, operands = item.names, list(item.operands)
    if "mma" in names:
        return warp(writer, item)
    space = next((n for n in names if n.split("::")[0] in ("shared", "global")), None)
    form = form_of(".".join(n for n in names if n != space))
    registers, where = operands[:2] if "load" in names else operands[1::-1]
    if not isinstance(where, Address) or len(operands) > 3:
        raise Missing(f"{item.opcode} with these operands")
    given = [address_text(writer, where)]
    if "store" in names:
        count, ptx_type = form.entry.put.count, "b64" if "f64" in names else "b32"
        given += [writer.value(part, ptx_type) for part in parts(registers)]
        if len(given) != 1 + count:
            raise Missing(f"{item.opcode} with these operands")
    if len(operands) == 3:
        given.append(f"stride={writer.value(operands[2], 'u32')}")
    name = writer.module.warp_call(form.entry, space.split("::")[0] if space else "generic")
    assign_results(writer, item, form.results, f"{name}({', '.join(given)})")


def assign_results(writer, item, results, text, fits=True):
    """Emit the assignment of a warp instruction's results to its registers. Raise Missing if they do not
    match.

    results: the PTX types of the results.
    text: the expression for the results.
    fits: whether the operands match the operands of the instruction.
    """
    targets = parts(item.operands[0]) if results else ()
    if not fits or len(targets) > len(results) or len(targets) < len(results) - (results[1:] == ("pred",)):
        raise Missing(f"{item.opcode} with these operands")
    if len(results) < 2:
        text = f"int({text})" if results and results[0] not in ("pred", "f32") else text
        writer.assign(targets[0] if results else None, text, *(results or ("pred",)))
        return
    for part, part_name, ptx_type in zip(targets, writer.unpack_tuple(text, len(results)), results):
        if part is not None:
            plain = part_name if ptx_type in ("pred", "f32", "f64") else f"int({part_name})"
            writer.assign(part, plain, ptx_type)


# --- calls --------------------------------------------------------------------------------------------------


def call(writer, item):
    """Emit a direct or indirect call of a function."""
    operands = list(item.operands)
    returns = operands.pop(0).parts if isinstance(operands[0], Group) else ()
    # The results come first, then the function, then the arguments. An indirect call ends with its prototype.
    function, *rest = operands
    given = rest[0].parts if rest and isinstance(rest[0], Group) else ()
    if isinstance(function, Symbol):
        name = writer.module.callee_name(function.name)
    elif not isinstance(function, Register) or not rest or not isinstance(rest[-1], Symbol):
        raise Missing(f"{item.opcode} of a pointer, without .callprototype or .calltargets")
    else:
        sizes = (tuple(size_of(writer.function, one, item.line) for one in some) for some in (returns, given))
        callee = writer.module.pointer_call(*sizes)
        name = f"{callee}(functions, {writer.value(function, 'b64')})"
    arguments = [python_name(g.name) for g in given]
    results = [python_name(r.name) for r in returns]
    if isinstance(function, Register) or writer.module.is_defined(function.name):
        arguments += writer.origins.declared(given)
        results += writer.origins.declared(returns)
    else:
        writer.origins.check_passed(given)
    text = f"{name}({', '.join(arguments)})"
    writer.emit(f"{', '.join(results)} = {text}" if results else text)


def trap(writer, item):
    """Emit trap, which aborts the kernel."""
    writer.emit(f"{writer.module.trap()}()")


# opcode -> the function that emits its statements
HANDLERS = {
    base: handler
    for handler, bases in {
        setp: "setp",
        mov: "mov",
        cvta: "cvta",
        isspacep: "isspacep",
        load: "ld ldu",
        store: "st",
        atomic: "atom red",
        barrier: "bar barrier",
        fence: "membar fence",
        sleep: "nanosleep",
        warp: "shfl vote match activemask redux elect mma movmatrix",
        ldmatrix: "ldmatrix",
        stmatrix: "stmatrix",
        wgmma.change_registers: "setmaxnreg",
        wmma: "wmma",
        copy: "cp",
        wgmma.translate: "wgmma",
        mbarrier: "mbarrier",
        mapa: "mapa getctarank",
        call: "call",
        trap: "trap brkpt",
    }.items()
    for base in bases.split()
}
