"""Calls through a pointer: the addresses of functions, and findings for pointers that name no function, or
one of another type.

Source: PTX ISA 9.7.12, "call".
"""

from sim.events import Finding
from sim.isa.registers import WIDTHS
from sim.ptx.origin import plain_name

# Functions have addresses above all memory, so that no pointer to data is one of them.
CODE = 1 << 44
STEP = 16  # bytes from one function's address to the next
NEVER_WRITTEN = (1 << 64) - 1  # a pointer read from poisoned memory: all bits are set


def function_address(text, name):
    """Return the address of a function of a module, by its name or by an alias."""
    return CODE + STEP * list(text.functions).index(text.functions[name].name)


def size_of(function, operand, line):
    """Return the bytes of an argument or result of a call on this line. It is a register, or the name of a
    parameter; of several declarations of that name, the last one before the call counts."""
    if hasattr(operand, "type"):
        return WIDTHS[operand.type] // 8
    declared = [v for v in function.variables if v.name == operand.name and v.line <= line]
    return max(declared, key=lambda variable: variable.line).bytes


def function_table(text, names):
    """Return the line of source that defines `functions`: {address: (function, bytes of its results, bytes of
    its parameters, name)}.

    names: {function's name in PTX: its name in Python, or None if it has no body}.
    """
    rows = []
    for name, python in names.items():
        function = text.functions[name]
        sizes = [tuple(v.bytes for v in some) for some in (function.returns, function.parameters)]
        rows.append(f"{function_address(text, name)}: ({python}, {sizes[0]}, {sizes[1]}, {name!r})")
    return f"functions = {{{', '.join(rows)}}}"


class Callee:
    """The function that a pointer names, at one call.

    returns, arguments: the bytes of each result and of each argument that the call passes.
    passes_origins: whether the function also returns the origins of its results.
    """

    def __init__(self, context, site, returns, arguments, passes_origins):
        self.context, self.site, self.returns, self.arguments = context, site, returns, arguments
        self.passes_origins = passes_origins

    def __call__(self, functions, address):
        """Return the function at an address. If there is none that fits, append a finding, and return a
        function whose results are poison."""
        function, returns, takes, name = functions.get(address, (None, None, None, None))
        if function is None or (returns, takes) != (self.returns, self.arguments):
            self.context.findings.append(self.finding(address, name, returns, takes, function is not None))
            return self.poison
        return function

    def poison(self, *arguments):
        results = tuple((1 << 8 * size) - 1 for size in self.returns)
        results += tuple({} for _ in results) if self.passes_origins else ()
        return results[0] if len(results) == 1 else results or None

    def finding(self, address, name, returns, takes, defined):
        if name is None:
            unset = f"{address:#x}, as memory holds that nobody has written, or a refused read gives"
            what = {0: "the null pointer", NEVER_WRITTEN: unset}.get(
                address, f"address {address:#x}, where no function is"
            )
            reason = "A pointer that no assignment has set, or an index beyond a table of functions, is none."
            fix = "look at where the pointer comes from: guard the index, or set every entry of the table"
        elif not defined:
            what = f"{plain_name(name)}, which the module declares and does not define"
            reason = "A virtual function that no class overrides is none that can be called."
            fix = "define the function, or let the pointer name another one"
        else:
            what = (
                f"{plain_name(name)}, which takes {format_sizes(takes)} and returns"
                f" {format_sizes(returns)}, with {format_sizes(self.arguments)} for"
                f" {format_sizes(self.returns)}"
            )
            reason = "Arguments and results of a call have to be those of the function that it reaches."
            fix = "give the pointer the type of its functions"
        witness = self.context.witness("calls", self.site)
        return Finding(
            "invalid-call",
            "error",
            f"a call through a pointer reaches {what}",
            (witness,),
            reason=reason,
            fix=fix,
        )


def format_sizes(sizes):
    """Format the sizes of some parameters."""
    return " and ".join(f"{size} bytes" for size in sizes) or "nothing"
