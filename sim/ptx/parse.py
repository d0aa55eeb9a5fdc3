"""A parser for PTX modules.

Source: PTX ISA, chapter 4, "Syntax", and chapter 11, "Directives".
"""

import re
from dataclasses import replace

from sim.errors import LaunchError
from sim.isa.registers import WIDTHS
from sim.ptx.operands import Operands
from sim.ptx.syntax import FORMATS, Function, Group, Label, Location, Register, Symbol, Text, Variable

# The directives that are parsed, and those that are skipped (PTX ISA, chapter 11).
LINKING = {".visible", ".extern", ".weak", ".common"}
SPACES = {".global", ".const", ".shared", ".local", ".param"}
FLAGS = {".noreturn", ".blocksareclusters", ".explicitcluster"}  # directives without arguments
LIMITS = {
    ".maxclusterrank",
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".reqnctapercluster",
}
SKIPPED = {".pragma", ".calltargets", ".abi_preserve", ".abi_preserve_control"}


INLINE = re.compile(r"// begin inline asm.*?// end inline asm", re.S)


def parse(text):
    """Return the Text of a PTX module. Raise LaunchError with the first line that cannot be parsed."""
    # LLVM repeats the location in inline assembly, and adds the number of the line within the assembly.
    return Parser(INLINE.sub(lambda asm: re.sub(r"(?m)^\s*\.loc\b.*$", "", asm[0]), text)).module()


class Parser(Operands):
    """A recursive-descent parser for a PTX module."""

    def __init__(self, text):
        super().__init__(text)
        self.number, self.result = 0, Text(lines=text.splitlines())

    # --- the module -----------------------------------------------------------------------------------------

    def module(self):
        """Parse the whole module."""
        while self.next:
            self.directive()
        return self.result

    def directive(self):
        """Parse a directive at module level."""
        token = self.next or self.take()
        if token in LINKING:
            self.take()
            self.directive()
        elif token in (".entry", ".func"):
            self.function()
        elif token in SPACES:
            variable = self.variable(self.take())
            known = self.result.variables.get(variable.name)
            # An extern declaration may precede the definition.
            if known is None or known.count is None:
                self.result.variables[variable.name] = variable
        elif token == ".version":
            self.take()
            self.take()
        elif token == ".target":
            self.take()
            self.result.target, *_ = self.comma_list(self.take)
        elif token == ".address_size":
            self.take()
            if self.integer() != 64:
                raise self.error("sim runs only modules with 64-bit addresses: .address_size 64", self.at - 1)
        elif token == ".file":
            self.file()
        elif token == ".section":
            self.section()
        elif token == ".alias":
            self.alias()
        elif token in SKIPPED:
            self.list_until(";", self.take)
        else:
            raise self.error(f"{token!r} is not a directive that sim supports")

    def file(self):
        """Parse a .file directive."""
        self.take()
        number = self.integer()
        name, *_ = self.comma_list(self.take)
        self.result.files[number] = name[1:-1].encode().decode("unicode_escape")

    def alias(self):
        """Parse an .alias directive, which defines a second name for a declared function."""
        self.take()
        name, function = self.list_until(";", self.take)
        if function not in self.result.functions:
            raise self.error(f"{function!r} is not a function that is declared before its alias", self.at - 1)
        self.result.functions[name] = self.result.functions[function]

    def section(self):
        """Skip a .section directive, which contains debug information (DWARF)."""
        self.take()
        self.take()
        self.take("{")
        depth = 1
        while depth:
            token = self.take()
            depth += (token == "{") - (token == "}")

    # --- variables ------------------------------------------------------------------------------------------

    def variable(self, space):
        """Parse a declaration, from the token after its state space to its semicolon."""
        variable = self.declaration(space)
        self.take(";")
        return variable

    def declaration(self, space):
        """Parse a declaration from the token after its state space, without the semicolon."""
        line, align, vector = self.line(), self.alignment(), 1
        if self.next in (".v2", ".v4"):
            vector = int(self.take()[2:])
        ptx_type = self.take()[1:]
        if ptx_type not in WIDTHS:
            raise self.error(f"{ptx_type!r} is not a type of a variable", self.at - 1)
        self.alignment()  # skip .ptr .align, the alignment of the memory to which the pointer refers
        name, count = self.take(), vector
        while self.accept("["):
            count = None if self.next == "]" else count * self.integer()
            self.take("]")
        initial, pointers = self.initial(ptx_type) if self.accept("=") else (None, ())
        if count is None and initial is not None:
            # The length of an array without a size is the length of its initialiser.
            count = len(initial) * 8 // WIDTHS[ptx_type]
        return Variable(
            space[1:], name, ptx_type, count, max(align, WIDTHS[ptx_type] // 8), line, initial, pointers
        )

    def alignment(self):
        """Parse the attributes of a declaration, and return its alignment in bytes."""
        align = 1
        while self.next in (".align", ".ptr", ".attribute") or self.next in SPACES or self.next in LINKING:
            directive = self.take()
            if directive == ".align":
                align = self.integer()
            if directive == ".attribute":  # .managed: the host can access the variable (sim.runtime)
                self.take("(")
                self.comma_list(self.take)
                self.take(")")
        return align

    def initial(self, ptx_type):
        """Parse an initialiser, and return (bytes, pointers).

        pointers: a tuple of (byte offset, Symbol).
        """
        size, data, pointers = WIDTHS[ptx_type] // 8, bytearray(), []
        whole, depth = ptx_type[0] in "bsu", 0
        while True:
            token = self.next
            if token == "{":
                depth += 1
                self.take()
            elif token == "}":
                depth -= 1
                self.take()
            elif (
                whole and token.isdecimal() and int(token) < 1 << 8 * size
            ):  # the fast path, for tables of 100,000 values
                data += int(token).to_bytes(size, "little")
                self.take()
            elif not self.accept(","):
                data += self.initial_number(ptx_type, size, pointers, len(data))
            if depth == 0:
                return bytes(data), tuple(pointers)

    def initial_number(self, ptx_type, size, pointers, offset):
        """Parse one value of an initialiser, and return its bytes.

        An address is recorded in `pointers`. The bytes of an address are 0 until the launch assigns
        addresses.
        """
        operand = self.operand()
        if isinstance(operand, Symbol):
            pointers.append((offset, operand))
            return bytes(size)
        if operand.float_width and WIDTHS[ptx_type] not in FORMATS:
            raise self.error(f"a float cannot be the initial value of a .{ptx_type}", self.at - 1)
        return operand.bits(WIDTHS[ptx_type]).to_bytes(size, "little")

    # --- functions ------------------------------------------------------------------------------------------

    def function(self):
        entry, line = self.take() == ".entry", self.line()
        returns = self.parameter_list() if self.next == "(" else ()
        name = self.take()
        parameters = self.parameter_list() if self.next == "(" else ()
        function = Function(name, entry, returns, parameters, line)
        while self.next in LIMITS or self.next in SKIPPED or self.next in FLAGS:
            token = self.take()
            if token in LIMITS:
                function.limits[token[1:]] = tuple(self.comma_list(self.integer))
            elif token in SKIPPED:
                self.list_until(";", self.take)
        # A prototype ends with a semicolon, and a definition has a body in braces.
        known = self.result.functions.get(name)
        if not self.accept(";"):
            self.body(function)
        # A prototype may come before or after the definition, so do not replace a definition by a prototype.
        if known is None or known.body is None:
            self.result.functions[name] = function

    def parameter_list(self):
        """Parse a parenthesised list of parameters."""
        self.take("(")
        return tuple(self.list_until(")", self.parameter))

    def parameter(self):
        """Parse a parameter, which is in the .param or .reg space."""
        space = self.take()
        if space != ".reg":
            return self.declaration(space)
        ptx_type = self.take()[1:]
        return Variable("reg", self.take(), ptx_type, 1, 1, self.line())

    def body(self, function):
        """Parse a function body in braces."""
        function.body, self.location = [], None
        self.locations = {}  # (file, line, column) -> the most recent Location with these values
        self.take("{")
        passed = (v for v in (*function.returns, *function.parameters) if v.space == "reg")
        self.scopes = [{v.name: Register(v.name, v.type) for v in passed}]
        self.tables = {}  # name of a .branchtargets table -> its labels
        self.braces = (0,)  # the identifiers of the open braces; the outermost one is 0
        self.labels = {}  # (identifier of a brace, name) -> unique label
        self.jumps = {}  # index of a jump -> the identifiers of the open braces there
        while self.scopes:
            self.statement(function)
        # A label may follow the jumps to it, so resolve jumps once the whole body has been parsed.
        for at, braces in self.jumps.items():
            function.body[at] = self.resolve_jump(function.body[at], braces)

    def resolve_jump(self, jump, braces):
        """Return a branch with the unique names of its labels. The labels of a brx.idx come from its
        .branchtargets table."""
        if jump.opcode.startswith("brx"):
            name = getattr(jump.operands[1], "name", None) if len(jump.operands) == 2 else None
            table = self.tables.get(name)
            if table is None:
                raise LaunchError(f"PTX line {jump.line}: {jump.opcode} needs an index and .branchtargets")
            labels = tuple(Symbol(self.resolve_label(part.name, braces)) for part in table.parts)
            return replace(jump, operands=(jump.operands[0], Group(labels)))
        if len(jump.operands) != 1 or not isinstance(jump.operands[0], Symbol):
            raise LaunchError(f"PTX line {jump.line}: {jump.opcode} needs a label")
        return replace(jump, operands=(Symbol(self.resolve_label(jump.operands[0].name, braces)),))

    def resolve_label(self, name, braces):
        """Return the unique name of a label, from the innermost enclosing scope that declares the label."""
        found = (self.labels[brace, name] for brace in reversed(braces) if (brace, name) in self.labels)
        return next(found, name)

    def label(self, function):
        """Parse a label. Its scope is the enclosing pair of braces."""
        line, name, brace = self.line(), self.take(), self.braces[-1]
        self.take(":")
        if (brace, name) in self.labels:
            raise LaunchError(f"PTX line {line}: the label {name} is defined twice")
        self.labels[brace, name] = f"{name} {brace}" if brace else name
        function.body.append(Label(self.labels[brace, name]))

    def statement(self, function):
        """Parse a statement of a function body."""
        token = self.next
        if token == "{":
            self.take()
            self.scopes.append({})
            self.braces += (self.at,)
        elif token == "}":
            self.take()
            self.scopes.pop()
            self.braces = self.braces[:-1]
        elif token == ".reg":
            self.registers()
        elif token in SPACES:
            variable = self.variable(self.take())
            function.variables.append(variable)
            if variable.space == "param":  # each executed call has its own parameters
                function.body.append(variable)
        elif token == ".loc":
            self.loc()
        elif token == ";":
            self.take()
        elif token == ".branchtargets":
            self.branch_targets(function)
        elif token in SKIPPED or token == ".callprototype":
            self.list_until(";", self.take)
        elif self.tokens[self.at + 1 : self.at + 2] == [":"]:
            self.label(function)
        else:
            # No directive fits, so the statement is an instruction.
            item = self.instruction()
            if item.names[0] in ("bra", "brx"):
                self.jumps[len(function.body)] = self.braces
            function.body.append(item)

    def branch_targets(self, function):
        """Parse the table of labels of a brx.idx. The label before the directive is the name of the table."""
        if not function.body or not isinstance(function.body[-1], Label):
            raise self.error(".branchtargets needs a label before it")
        self.take()
        name, labels = function.body.pop().name, self.list_until(";", self.take)
        self.tables[name] = Group(tuple(map(Symbol, labels)))

    def registers(self):
        """Parse a .reg declaration."""
        self.take()
        ptx_type = self.take()[1:]
        if ptx_type in ("v2", "v4"):
            raise self.error("registers that are vectors are not supported", self.at - 1)
        if ptx_type not in WIDTHS:
            raise self.error(f"{ptx_type!r} is not a type of a register", self.at - 1)
        self.comma_list(lambda: self.register_names(ptx_type))
        self.take(";")

    def register_names(self, ptx_type):
        """Parse one name in a register declaration, or a range such as %r<10>. A register in nested braces
        gets a unique name."""
        name, scope = self.take(), self.scopes[-1]
        # Braces open a scope, so registers in different braces can have the same PTX name.
        self.number += 1
        inner = f"{self.number}." if len(self.scopes) > 1 else ""
        if self.accept("<"):
            count = self.integer()
            self.take(">")
            for i in range(count):
                scope[f"{name}{i}"] = Register(f"{name}{i}{inner}", ptx_type)
        else:
            scope[name] = Register(name + inner, ptx_type)

    def loc(self):
        """Parse a .loc directive."""
        self.take()
        place, inlined = [self.integer() for _ in range(3)], None
        while self.accept(","):
            what = self.take()
            if what == "function_name":
                self.take()
                if self.accept("+"):
                    self.integer()
            elif what == "inlined_at":
                call = self.integer(), self.integer(), self.integer()
                inlined = self.locations.get(call) or Location(*call)
        # The call at `inlined_at` can itself be in inlined code. Its caller is then in the most recent .loc
        # with the same file, line and column.
        self.location = self.locations[tuple(place)] = Location(*place, inlined)
