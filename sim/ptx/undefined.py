"""Undefined values in registers, tracked from a load of unwritten local memory to the first use that may
have an effect.

Compilers load a local variable before it is certain that the thread has written it, and discard the value
with selp. A load of unwritten local memory is therefore not an error by itself. Each register that may hold
an undefined value has a second variable, its *origin*: (site, address) of the load, or False if the value
is defined. Copies and arithmetic propagate origins. A use of the value is reported: a branch, an address, a
store outside of local memory, an operand of an atomic or of a warp instruction.
"""

from sim.events import LOCAL, SPACE_SHIFT
from sim.isa.registers import WIDTHS
from sim.ptx.accesses import Access, address_text, parts
from sim.ptx.regions import WINDOWS
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Address, Instruction, Register, python_name

# Opcodes in translate.HANDLERS that only compute with registers
COMPUTING = {"setp", "mov", "cvta", "isspacep"}
LOADS, STORES = {"ld", "ldu"}, {"st"}
UNDEFINED = ("generic", "local")  # address spaces that may include local memory


def needs_origins(text, function):
    """Return whether registers of a function may hold values from unwritten local memory."""
    if not any(has_locals(each) for each in text.functions.values()):
        return False
    calls = any(isinstance(item, Instruction) and item.names[0] == "call" for item in function.body)
    return has_locals(function) or not function.entry or calls


def has_locals(function):
    """Return whether a function declares local memory."""
    return any(variable.space == "local" for variable in function.variables)


class Origins:
    """The statements that track origins in one function's source. `handled`: the opcodes that do more than
    compute with registers."""

    def __init__(self, writer, handled):
        self.writer, self.module = writer, writer.module
        self.handled = handled - COMPUTING
        self.active = self.module.tracks and needs_origins(self.module.text, writer.function)
        self.passing = self.active and self.module.passes_origins
        self.registers = self.find_registers() if self.active else set()

    def find_registers(self):
        """Return the names of the registers that may hold an undefined value."""
        found, changed = set(), True
        while changed:
            before = len(found)
            for item in self.writer.function.body:
                if isinstance(item, Instruction) and (
                    self.is_source(item) or self.computes(item) and read_and_written(item)[0] & found
                ):
                    found |= {register.name for register in results(item)}
            changed = len(found) > before
        return found

    def is_source(self, item):
        """Return whether an instruction loads from local memory or from a device function's parameter."""
        if item.names[0] not in LOADS:
            return False
        access = Access(item.opcode)
        if access.space == "param":
            name = getattr(item.operands[1].base, "name", None)
            return self.passing and not self.module.is_kernel_parameter(name)
        return access.space in UNDEFINED and not access.strong

    def computes(self, item):
        """Return whether an instruction only computes with registers."""
        return item.names[0] not in self.handled

    # --- names ----------------------------------------------------------------------------------------------

    def name(self, register):
        """Return the Python variable of a register's origin."""
        return f"{self.writer.name(register)}_origin"

    def names(self):
        """Return the names of all origin variables that the source uses."""
        return [f"{name}_origin" for key, name in self.writer.names.items() if key in self.registers]

    def of(self, *operands):
        """Return the expression for the first origin of these operands, or "" if all are known to be
        defined."""
        found = {r.name: r for operand in operands for r in registers_in(operand) if r.name in self.registers}
        return " or ".join(self.name(register) for register in found.values())

    # --- statements -----------------------------------------------------------------------------------------

    def check(self, *operands):
        """Emit a report of undefined operands."""
        if text := self.of(*operands):
            self.writer.emit(f"{self.module.report_undefined()}({text})")

    def before(self, item):
        """Emit the statements before an instruction: reports of undefined operands, and the origins of its
        results."""
        if self.computes(item):
            return self.set_origins(item, self.computed(item))
        is_load, is_store = item.names[0] in LOADS, item.names[0] in STORES
        access = Access(item.opcode) if is_load or is_store else None
        if is_store and (access.space == "param" and self.passing or may_be_local(access)):
            self.check(item.operands[0])  # `after` handles the values
        elif is_load:
            self.check(item.operands[1])
        else:
            self.check(*item.operands[len(results(item)) > 0 :])
        if is_load and self.is_source(item):
            return self.load(item, access)
        return self.set_origins(item, "False")

    def set_origins(self, item, text):
        """Emit the assignment of an origin to each result."""
        for register in results(item):
            if register.name in self.registers:
                self.writer.emit(f"{self.name(register)} = {text or 'False'}")

    def computed(self, item):
        """Return the expression for the origin of an instruction's results."""
        base, operands = item.names[0], item.operands
        if base == "selp":
            one, other, test = (self.of(operand) or "False" for operand in operands[1:])
            # selp discards the operand that it does not select, so only the selected operand's origin
            # counts.
            chosen = f"({one} if {self.writer.value(operands[3], 'pred')} else {other})"
            return chosen if test == "False" else f"({test}) or {chosen}"
        if base in ("and", "or"):
            return self.masked(item, base)
        return self.of(*operands[1:])

    def masked(self, item, base):
        """Return the origin of the result of `and` or `or`. A defined operand of all zeros (for `and`) or
        all ones (for `or`) determines the result, so the result is defined."""
        (_, a, b), ptx_type, tests = item.operands, item.names[-1], []
        for operand, other in ((a, b), (b, a)):
            if isinstance(operand, Register) and self.of(other):
                value, own = self.writer.value(operand, ptx_type), self.of(operand) or "False"
                if base == "or":
                    ones = (1 << WIDTHS.get(ptx_type, 1)) - 1
                    value = f"(not {value})" if ptx_type == "pred" else f"({value} ^ {ones:#x})"
                tests.append(f"not ({value} or {own})")
        origin = self.of(a, b)
        return f"False if {' or '.join(tests)} else ({origin})" if tests else origin

    def load(self, item, access):
        """Emit the origins of the registers that a load sets."""
        size, source = WIDTHS[access.type] // 8, item.operands[1]
        for i, part in enumerate(parts(item.operands[0])):
            if part is None:
                continue
            if access.space == "param":
                at = source.offset + i * size
                text = f"{self.on_parameter(find_origin)}({self.passed(source.base)}, {at}, {size})"
            else:
                place = address_text(self.writer, source, i * size)
                text = f"{self.module.origin_of_load(access.space, size)}({place})"
            self.writer.emit(f"{self.name(part)} = {text}")

    def after(self, item):
        """Emit the statements after an instruction: the origins of bytes to which an undefined value was
        stored."""
        if item.names[0] not in STORES:
            return
        access, (to, source, *_) = Access(item.opcode), item.operands
        is_parameter = access.space == "param" and self.passing
        if not is_parameter and not may_be_local(access):
            return
        size = WIDTHS[access.type] // 8
        for i, part in enumerate(parts(source) if access.count > 1 else (source,)):
            if not (origin := self.of(part)):
                continue
            if is_parameter:
                place = f"{self.passed(to.base)}, {to.offset + i * size}, {size}"
                self.writer.emit(f"{self.on_parameter(set_origin)}({place}, {origin})")
            else:
                place = address_text(self.writer, to, i * size)
                self.writer.emit(f"{self.module.store_undefined(access.space, size)}({place}, {origin})")

    # --- calls ----------------------------------------------------------------------------------------------

    def passed(self, parameter):
        """Return the name of the variable that holds the origins of a parameter's bytes: {byte: origin}."""
        return f"{python_name(parameter.name)}_origins"

    def on_parameter(self, function):
        """Return the name, among the globals of the generated code, of a function that handles the origins of
        a parameter."""
        return self.module.shared_name(function.__name__, lambda run: function)

    def declared(self, variables):
        """Return the names of the origins of a device function's parameters, in order."""
        return [self.passed(variable) for variable in variables] if self.passing else []

    def declare(self, variable):
        """Emit an empty set of origins for a call parameter or result."""
        if self.passing:
            self.writer.emit(f"{self.passed(variable)} = {{}}")

    def check_passed(self, arguments):
        """Emit a report of undefined bytes that are passed to a function of the device runtime."""
        for argument in self.declared(arguments):
            self.writer.emit(f"{self.module.report_undefined()}(next(iter({argument}.values()), False))")


def may_be_local(access):
    """Return whether an access may be a weak access to local memory."""
    return access.space in UNDEFINED and not access.strong


def results(item):
    """Return the registers that an instruction sets."""
    if not item.operands:
        return []
    read, written = read_and_written(item)
    names = written or (read if item.guard else set())
    first = () if isinstance(item.operands[0], Address) else registers_in(item.operands[0])
    return [register for register in first if register.name in names]


def find_origin(origins, at, size):
    """Return the first origin among a range of a parameter's bytes, or False."""
    return next((origins[byte] for byte in range(at, at + size) if byte in origins), False)


def set_origin(origins, at, size, origin):
    """Record the origin of a range of a parameter's bytes."""
    if origin:
        origins.update(dict.fromkeys(range(at, at + size), origin))


class LocalMemory:
    """The undefined bytes of local memory in one launch."""

    def __init__(self, memory):
        self.memory, self.context, self.reported = memory, memory.context, set()

    def origin(self, address, nbytes, site):
        """Return the origin of the first undefined byte in a range, or False if all bytes are defined."""
        region = self.memory.find(address) if address >> SPACE_SHIFT == LOCAL else None
        if region is None or region.written is None:
            return False
        begin = address - region.base
        written = region.written[begin : begin + nbytes]
        if written.all():
            return False
        # A byte without a recorded origin was never written, so this load is its origin.
        return region.origins.get(begin + int(written.argmin())) or (site, address)

    def make_origin(self, space, nbytes, site):
        """Return the function (address in the space) -> origin of the value that a load of `nbytes`
        returns."""
        window = WINDOWS.get(space, 0)
        return lambda address: self.origin(address + window, nbytes, site)

    def make_store(self, space, nbytes, site):
        """Return the function (address in the space, origin) that follows a store. Storing an undefined
        value makes local memory undefined; in other memory it is reported."""
        window = WINDOWS.get(space, 0)

        def store(address, origin):
            address += window
            if not origin:
                return
            if address >> SPACE_SHIFT != LOCAL:
                self.report(origin, site)
            elif region := self.memory.find(address):
                begin = address - region.base
                region.written[begin : begin + nbytes] = False
                region.origins.update(dict.fromkeys(range(begin, begin + nbytes), origin))

        return store

    def report(self, origin, site):
        """Announce the first use of an undefined value by a thread."""
        thread = self.context.thread
        key = thread.block.index, thread.linear, origin
        if origin and key not in self.reported:
            self.reported.add(key)
            read, use = self.context.witness("read", origin[0]), self.context.witness("uses the value", site)
            self.context.announce("unwritten", read, origin[1], use)
