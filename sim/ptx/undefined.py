"""Undefined values in registers. An undefined value comes from a load of unwritten local memory, or from a
register that no instruction has set. It is tracked to the first use that can have an effect.

Compilers load a local variable before it is certain that the thread has written it, and discard the value
with selp if it is not needed. Therefore, a load of unwritten local memory is not an error by itself. Each
register that may contain an undefined value has a second variable, its *origin*: the (site, address) of the
load, or False if the value is defined. The origin of a register that no instruction has set is (site of the
first instruction that reads it, None). Copies and arithmetic propagate origins. The use of the value is
reported if it is a branch, an address, a store outside local memory, or an operand of an atomic or a warp
instruction.
"""

from sim.events import LOCAL, SPACE_SHIFT
from sim.isa.registers import WIDTHS
from sim.ptx.accesses import Access, address_text, parts
from sim.ptx.regions import WINDOWS
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Address, Instruction, Register, Symbol, python_name
from sim.ptx.unset_registers import first_reader, registers_read_unset

# The opcodes in translate.HANDLERS that only compute with registers.
COMPUTING = {"setp", "mov", "cvta", "isspacep"}
LOADS, STORES = {"ld", "ldu"}, {"st"}
UNDEFINED = ("generic", "local")  # the state spaces of accesses that can reach local memory


def needs_origins(text, function):
    """Return whether registers of a function can contain values from unwritten local memory."""
    if not any(has_locals(each) for each in text.functions.values()):
        return False
    calls = any(isinstance(item, Instruction) and item.names[0] == "call" for item in function.body)
    return has_locals(function) or not function.entry or calls


def has_locals(function):
    """Return whether a function declares variables in local memory."""
    return any(variable.space == "local" for variable in function.variables)


class Origins:
    """The statements in the source of one function that track the origins of undefined values.

    handled: the opcodes that do more than compute with registers.
    """

    def __init__(self, writer, handled):
        self.writer, self.module = writer, writer.module
        self.handled = handled - COMPUTING
        self.local = self.module.tracks and needs_origins(self.module.text, writer.function)
        unset = registers_read_unset(writer.blocks, guarded=True) if self.module.tracks else set()
        self.unset = unset - writer.products.names  # a wgmma reports its registers itself
        self.active = bool(self.local or self.unset)
        self.passing = self.local and self.module.passes_origins
        self.registers = self.find_registers()

    def find_registers(self):
        """Return the names of the registers that may contain an undefined value."""
        found, changed = set(self.unset), self.active
        while changed:
            before = len(found)
            for item in self.writer.function.body:
                if isinstance(item, Instruction) and (
                    self.is_source(item)
                    or (self.computes(item) or self.exchanges(item))
                    and read_and_written(item)[0] & found
                ):
                    found |= {register.name for register in results(item)}
            changed = len(found) > before
        return found

    def is_source(self, item):
        """Return whether an instruction loads from local memory, or from a parameter of a device function."""
        if item.names[0] not in LOADS or not self.local:
            return False
        access = Access(item.opcode)
        if access.space == "param":
            base = item.operands[1].base  # the register contains the address of a parameter of the kernel
            passed = isinstance(base, Symbol) and not self.module.is_kernel_parameter(base.name)
            return self.passing and passed
        return access.space in UNDEFINED and not access.strong

    def computes(self, item):
        """Return whether an instruction only computes with registers."""
        return item.names[0] not in self.handled

    def exchanges(self, item):
        """Return whether an instruction is a shuffle that passes the origins of its values to other lanes."""
        return self.module.exchanges_origins and item.names[0] == "shfl"

    # --- names ----------------------------------------------------------------------------------------------

    def name(self, register):
        """Return the name of the Python variable for the origin of a register."""
        return f"{self.writer.name(register)}_origin"

    def names(self):
        """Return the names of all origin variables that the source uses."""
        return [f"{name}_origin" for key, name in self.writer.names.items() if key in self.registers]

    def of(self, *operands):
        """Return the expression for the first origin among these operands, or "" if all operands are
        certainly defined."""
        found = {r.name: r for operand in operands for r in registers_in(operand) if r.name in self.registers}
        return " or ".join(self.name(register) for register in found.values())

    # --- statements -----------------------------------------------------------------------------------------

    def initial_value(self, name):
        """Return the expression for the value of an unset register, or None if it is not tracked."""
        if name not in self.unset:
            return None
        _, register = first_reader(self.writer.function, name)
        return self.module.unset_value(self.writer.kinds[name], register.type)

    def initial_origin(self, name):
        """Return the expression for the origin of a register before an instruction has set it."""
        if name not in self.unset:
            return "False"
        self.module.item, _ = first_reader(self.writer.function, name)
        return self.module.unset_origin()

    def check(self, *operands):
        """Emit a report for undefined operands."""
        if text := self.of(*operands):
            self.writer.emit(f"({text}) and {self.module.report_undefined()}({text})")

    def before(self, item):
        """Emit the statements that precede an instruction. They report undefined operands, and set the
        origins of the results."""
        if self.computes(item):
            return self.set_origins(item, self.computed(item))
        if self.exchanges(item) and (origin := self.of(item.operands[1])):
            self.check(*item.operands[2:])
            return self.writer.emit(f"thread.origin = {origin}")
        is_load, is_store = item.names[0] in LOADS, item.names[0] in STORES
        # The value of a store to local memory is allowed to be undefined: only the address is a use.
        access = Access(item.opcode) if is_load or is_store else None
        if is_store and (access.space == "param" and self.passing or may_be_local(access)):
            self.check(item.operands[0])  # because `after` handles the stored values
        elif is_load:
            self.check(item.operands[1])
        else:
            self.check(*item.operands[len(results(item)) > 0 :])
        if is_load and self.is_source(item):
            return self.load(item, access)
        return self.set_origins(item, "False")

    def set_origins(self, item, text):
        """Emit the assignment of an origin to each result of an instruction."""
        for register in results(item):
            if register.name in self.registers:
                self.writer.emit(f"{self.name(register)} = {text or 'False'}")

    def computed(self, item):
        """Return the expression for the origin of an instruction's results."""
        base, operands = item.names[0], item.operands
        if base == "selp":
            one, other, test = (self.of(operand) or "False" for operand in operands[1:])
            # selp discards one of its operands, so only the origin of the selected operand counts.
            chosen = f"({one} if {self.writer.value(operands[3], 'pred')} else {other})"
            return chosen if test == "False" else f"({test}) or {chosen}"
        if base in ("and", "or"):
            return self.masked(item, base)
        return self.of(*operands[1:])

    def masked(self, item, base):
        """Return the expression for the origin of the result of `and` or `or`.

        If an operand is defined and consists of zeros (for `and`) or ones (for `or`), it alone determines the
        result. The result is then defined.
        """
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
        """Emit the assignment of origins to the registers set by a load."""
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
        """Emit the statements that follow an instruction. After a store of an undefined value, they record
        the origins of the bytes. After a shuffle, they record the origin of the result."""
        if self.exchanges(item) and self.of(item.operands[1]):
            for register in results(item):
                if register.name in self.registers:
                    text = "False" if register.type == "pred" else "thread.origin"
                    self.writer.emit(f"{self.name(register)} = {text}")
            return self.writer.emit("thread.origin = False")
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

    def forget_padding(self, item, token):
        """Emit the assignment of no origin to the registers of a load if it copies the padding of a structure
        (sim.ptx.struct_copies).

        token: the name of the variable with the load's Token.
        """
        for name in [self.name(r) for r in results(item) if r.name in self.registers]:
            self.writer.emit(f"{name} = {name} if {token}.missing is None else False")

    # --- calls ----------------------------------------------------------------------------------------------

    def passed(self, parameter):
        """Return the name of the variable with the origins of a parameter's bytes, {byte: origin}."""
        return f"{python_name(parameter.name)}_origins"

    def on_parameter(self, function):
        """Return the name of a global in the generated source: a function that reads or sets the origins of
        the parameters of a call."""
        return self.module.shared_name(function.__name__, lambda run: function)

    def declared(self, variables):
        """Return, in order, the names of the variables that contain the origins of these parameters."""
        return [self.passed(variable) for variable in variables] if self.passing else []

    def declare(self, variable):
        """Emit an empty dictionary of origins for a parameter or result of a call."""
        if self.passing:
            self.writer.emit(f"{self.passed(variable)} = {{}}")

    def check_passed(self, arguments):
        """Emit reports for undefined bytes passed to a function of the device runtime."""
        for argument in self.declared(arguments):
            self.writer.emit(f"{self.module.report_undefined()}(next(iter({argument}.values()), False))")


def may_be_local(access):
    """Return whether an access may be a weak access to local memory."""
    return access.space in UNDEFINED and not access.strong


def results(item):
    """Return the registers set by an instruction."""
    if not item.operands:
        return []
    read, written = read_and_written(item)
    names = written or (read if item.guard else set())
    first = () if isinstance(item.operands[0], Address) else registers_in(item.operands[0])
    return [register for register in first if register.name in names]


def find_origin(origins, at, size):
    """Return the first origin in a range of a parameter's bytes, or False if all bytes are defined."""
    return next((origins[byte] for byte in range(at, at + size) if byte in origins), False)


def set_origin(origins, at, size, origin):
    """Record the origin of a range of a parameter's bytes. An origin of False means that the bytes are
    defined."""
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
        first = region.marks.find(0, begin, begin + nbytes)
        if first < 0:
            return False
        # A byte without a recorded origin was never written, so this load is the origin.
        return region.origins.get(first) or (site, address)

    def make_origin(self, space, nbytes, site):
        """Create a function that takes an address in the state space, and returns the origin of the value
        that a load of `nbytes` bytes reads there."""
        window = WINDOWS.get(space, 0)
        return lambda address: self.origin(address + window, nbytes, site)

    def make_store(self, space, nbytes, site):
        """Return the function (address in the space, origin) that runs after a store.

        A store of an undefined value makes bytes of local memory undefined. A store to other memory is
        reported.
        """
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
        """Report the first use of an undefined value by the running thread."""
        thread = self.context.thread
        key = thread.block.index, thread.linear, origin
        if origin and key not in self.reported:
            self.reported.add(key)
            # A shuffle adds the access of the lane that loaded the value.
            read = origin[2] if len(origin) > 2 else self.context.witness("read", origin[0])
            use = self.context.witness("uses the value", site)
            self.context.announce("unwritten", read, origin[1], use)
