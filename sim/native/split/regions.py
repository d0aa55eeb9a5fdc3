"""The functions of a kernel's regions. A region is the code that one thread runs between two synchronisation
points."""

import ast

from sim.frontend.tree import as_list, copied
from sim.native.codegen.symbols import GEOMETRY, home_of
from sim.native.lower.liveness import (
    definitely_assigned,
    escaping_exits,
    exposed_reads,
    names_assigned,
    names_read,
)
from sim.native.lower.loops import LoopCounter
from sim.native.split.rematerialize import Rematerializer

# Levels of synchronisation, in increasing order. A statement of a lower level can be part of a region.
THREAD, WARP, BLOCK = range(3)
# exit statement -> exit code of a region (sim.native.codegen.synchronization)
CODES = {"return": "END", "break": "BREAK", "continue": "CONTINUE"}


class Regions(Rematerializer):
    """The regions of one kernel, as text.

    `functions` contains the definition of each region, as a list of lines. `spilled` maps each spilled
    variable to the name of its dtype, and `needed` contains the variables that must be spilled if they live
    across a region boundary: those that a region reads before it assigns them. `generates` is false until
    `spill` is called. Until then, `needed` is collected, and no function is generated.

    name: the kernel's name, the prefix of all region names.
    """

    def __init__(self, module, name, parameters, statements, numba_types):
        super().__init__(module, parameters, statements, numba_types)
        # The name of a spill array must not collide with a variable, so choose a suffix that no name ends
        # with.
        self.name, self.suffix, self.spilled = name, "_of", {}
        while any(known.endswith(self.suffix) for known in module.taken):
            self.suffix += "_"
        self.functions, self.needed, self.generates = [], set(), False

    def spill(self, dtypes):
        """Assign a spill array to each variable in {variable: name of its dtype}. Generate functions from now
        on."""
        self.spilled, self.generates = dtypes, True
        self.spill_positions = {
            self.spill_name(variable): (position, dtype)
            for position, (variable, dtype) in enumerate(self.spilled.items())
        }

    def add_region(self, group, result=None, expression=None):
        """Add a function that runs statements for one thread, and return the text of a call to it.

        group: the statements.
        result: the text of the returned expression, or None.
        expression: the syntax tree of `result`, which shows the variables read.
        """
        wanted = exposed_reads([*group, *([ast.Expr(expression)] if expression else [])])
        changed = names_assigned(group)
        # On every path, the region stores each variable that it may assign. If some path does not assign the
        # variable, load its old value first.
        needed = wanted | changed - certain_assignments(group)
        self.needed |= wanted
        if not self.generates:
            return ""
        loads = [v for v in self.spilled if v in needed]
        stores = [self.spill_call("store", v, v) for v in self.spilled if v in changed]
        exits = escaping_exits(group)
        body = [
            *(f"{v} = {self.spill_call('load', v)}" for v in loads),
            *self.rematerialize(wanted),
            *self.statement_lines(group, stores),
            *stores,
        ]
        if exits or result:
            body.append(f"return {result or 'GO'}")
        return self.add_function(f"{self.name}_{len(self.functions) + 1}", body)

    def statement_lines(self, group, stores):
        """Return the lines of a region's statements, in which an exit from the region returns an exit code,
        and loops count their iterations."""
        counted, exits = LoopCounter(self.module), Exits(stores)
        parts = [exits.visit(counted.visit(copied(statement))) for statement in group]
        return unparse_lines([part for statement in parts for part in as_list(statement)])

    def add_function(self, name, body):
        """Add a function, and return the text of a call to it, which is also its signature.

        The free names of the body become the parameters.

        body: the lines of the function's body.
        """
        if not self.generates:
            return ""
        tree = ast.parse("\n".join(["def f():", *indent(body)]))
        names, local = names_read(tree), names_assigned([tree])
        for called in sorted(filter(home_of, names)):
            self.module.library(called)
        spill_arrays = [
            f"{spilled} = {self.spill_function('array', dtype)}(spill_buffer, {position}, spill_pitch)"
            for spilled, (position, dtype) in self.spill_positions.items()
            if spilled in names
        ]
        names |= {"spill_buffer", "spill_pitch"} if spill_arrays else set()
        known = ["state", "warp", "thread", "threads", "spill_buffer", "spill_pitch", *GEOMETRY]
        known += [*self.module.arrays, *self.module.declared, *sorted(self.loops), *self.parameters]
        signature = f"{name}({', '.join(part for part in known if part in names - local)})"
        self.functions.append([f"def {signature}:", *indent([*spill_arrays, *body])])
        return signature

    def spill_name(self, variable):
        """Return the name of the array over threads to which a variable is spilled."""
        return variable + self.suffix

    def spill_function(self, what, dtype):
        """Return the name of an intrinsic for spilled variables of this dtype.

        what: "load" or "store" for the value of one thread, or "array" for the values of all threads.
        """
        self.module.imports[f"spill_{what}"] = "sim.native.codegen.arrays"
        return self.module.constant(f"{what}_{dtype}", f'spill_{what}("{dtype}")')

    def spill_call(self, what, variable, *value):
        """Return the text that loads or stores the current thread's value of a spilled variable."""
        position, dtype = self.spill_positions[self.spill_name(variable)]
        given = "spill_buffer", str(position), "spill_pitch", "thread", *value
        return f"{self.spill_function(what, dtype)}({', '.join(given)})"


class Exits(ast.NodeTransformer):
    """A transformer that replaces each exit from a region by the `return` of an exit code. Exits are
    `return`, and `break` and `continue` of a loop that encloses the region.

    stores: the statements that store the thread's spilled variables. They run before the exit from a loop. A
        thread that returns needs no stores, because it runs no further region.
    """

    def __init__(self, stores):
        self.stores, self.depth = stores, 0

    def leave(self, name):
        stores = self.stores if name != "return" else []
        return ast.parse("\n".join([*stores, f"return {CODES[name]}"])).body

    def visit_Return(self, node):
        return self.leave("return")

    def visit_Break(self, node):
        return node if self.depth else self.leave("break")

    def visit_Continue(self, node):
        return node if self.depth else self.leave("continue")

    def visit_For(self, node):
        """Leave the `break` and `continue` of a loop inside the region unchanged."""
        self.depth += 1
        node = self.generic_visit(node)
        self.depth -= 1
        return node

    visit_While = visit_For

    def visit_FunctionDef(self, node):
        """Leave a nested function unchanged. Its `return` does not end the thread."""
        return node


def unparse_lines(statements):
    """Return the source text of statements as a list of lines."""
    return ast.unparse(ast.fix_missing_locations(ast.Module(statements, []))).split("\n")


def result_of_test(test):
    """Return the text of an expression that is 1 if a test is true, and otherwise 0."""
    return ast.unparse(ast.IfExp(test, ast.Constant(1), ast.Constant(0)))


def certain_assignments(group):
    """Return variables that are assigned on every path to the end of the statements, and on every path to a
    `break` or `continue` of a loop around them."""
    found = definitely_assigned(group)
    # None means that no path reaches the end, so no path reaches it without the assignments.
    found = names_assigned(group) if found is None else found
    for position, statement in enumerate(group):
        if escaping_exits([statement]) - {"return"}:
            before = definitely_assigned(group[:position])
            return found if before is None else found & before
    return found


def indent(lines):
    return ["    " + line for line in lines]
