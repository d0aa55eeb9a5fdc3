"""Indirect calls: the addresses of functions, and findings for pointers that do not refer to a function with
the expected signature.

Source: PTX ISA 9.7.12, "Control Flow Instructions" (call).
"""

from sim.events import Finding
from sim.isa.registers import WIDTHS
from sim.ptx.origin import plain_name

# Function addresses are above the addresses of all memory, so that no data pointer equals a function address.
CODE = 1 << 44
OF_MODULE = 1 << 24  # the number of bytes of function addresses that are reserved for each module
STEP = 16  # the number of bytes between two function addresses
FUNCTIONS = range(CODE, CODE + (OF_MODULE << 16), STEP)  # the function addresses of the first 65,536 modules
NEVER_WRITTEN = (1 << 64) - 1  # a pointer that was loaded from poisoned memory has all bits set


def function_address(text, name):
    """Return the address of a function of the module, given the function's name or an alias."""
    return code_base(text) + STEP * list(text.functions).index(text.functions[name].name)


def code_base(text):
    """Return the first of a module's function addresses."""
    return CODE + OF_MODULE * text.number


def size_of(function, operand, line):
    """Return the size in bytes of an argument or result of the call on this line.

    If the operand is the name of a parameter and several declarations have this name, the last declaration
    before the call applies.

    operand: a register, or a Symbol with the name of a parameter.
    """
    if hasattr(operand, "type"):
        return WIDTHS[operand.type] // 8
    declared = [v for v in function.variables if v.name == operand.name and v.line <= line]
    return max(declared, key=lambda variable: variable.line).bytes


def function_table(text, names):
    """Return the source line that defines `functions`: {address: (function, sizes of results, sizes of
    parameters, name)}. Sizes are in bytes.

    names: {PTX name: Python name, or None for a function without a body}.
    """
    rows = []
    for name, python in names.items():
        function = text.functions[name]
        sizes = [tuple(v.bytes for v in some) for some in (function.returns, function.parameters)]
        rows.append(f"{function_address(text, name)}: ({python}, {sizes[0]}, {sizes[1]}, {name!r})")
    return f"functions = {{{', '.join(rows)}}}"


class Callee:
    """The target of one indirect call. The generated code calls this object to look up the function.

    code: the first function address of the module.
    returns, arguments: the sizes in bytes of the call's results and arguments.
    passes_origins: whether the function also returns the origins of its results.
    """

    def __init__(self, context, code, site, returns, arguments, passes_origins):
        self.context, self.code, self.site = context, code, site
        self.returns, self.arguments, self.passes_origins = returns, arguments, passes_origins

    def __call__(self, functions, address):
        """Return the function at an address. If there is no matching function, report a finding and return a
        function whose results are poison."""
        function, returns, takes, name = functions.get(address, (None, None, None, None))
        # Compare only sizes, because parameters in PTX do not have C++ types.
        if function is None or (returns, takes) != (self.returns, self.arguments):
            self.context.findings.append(self.finding(address, name, returns, takes, function is not None))
            return self.poison
        return function

    def poison(self, *arguments):
        """Return poison instead of the function's results."""
        # All bits of the poison are set, as in memory.
        results = tuple((1 << 8 * size) - 1 for size in self.returns)
        results += tuple({} for _ in results) if self.passes_origins else ()
        return results[0] if len(results) == 1 else results or None

    def finding(self, address, name, returns, takes, defined):
        """Return the finding for an invalid call."""
        if name is None:
            unset = f"{address:#x}, which is the value of unwritten memory and of refused reads"
            what = {0: "the null pointer", NEVER_WRITTEN: unset}.get(
                address, f"address {address:#x}, which is not a function"
            )
            reason = "Unassigned pointers and elements beyond the end of a table are not functions."
            fix = "look at where the pointer comes from: guard the index, or set every entry of the table"
            if address in FUNCTIONS and not self.code <= address < self.code + OF_MODULE:
                what = f"address {address:#x}, which is a function of another module"
                reason = "A kernel can call only the functions of its own module."
                fix = "compile both kernels in one module, or store the pointer by a kernel of this module"
        elif not defined:
            what = f"{plain_name(name)}, which the module declares and does not define"
            reason = "A virtual function that no class overrides cannot be called."
            fix = "define the function, or let the pointer name another one"
        else:
            what = (
                f"{plain_name(name)}, which takes {format_sizes(takes)} and returns"
                f" {format_sizes(returns)}, with {format_sizes(self.arguments)} for"
                f" {format_sizes(self.returns)}"
            )
            reason = "A call must have the arguments and results of the function that it reaches."
            fix = "declare the pointer with the type of the functions to which it points"
        witness = self.context.witness("calls", self.site)
        return Finding(
            "invalid-call",
            "error",
            f"a call through a pointer reaches {what}",
            (witness,),
            reason=reason,
            fix=fix,
            from_poison=address == NEVER_WRITTEN,
        )


def format_sizes(sizes):
    """Format the sizes of some parameters for a message."""
    return " and ".join(f"{size} bytes" for size in sizes) or "nothing"
