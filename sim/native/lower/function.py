"""Lowering of one function: its statements, its operators, and the sites of its memory accesses for the
access log."""

import ast
import enum

from sim.frontend.resolve import DEVICE, copied_tree, referent, referent_of
from sim.frontend.ssa import Versions
from sim.frontend.tree import BINARY, as_list, from_end, has, is_of_shape, located
from sim.native.codegen.symbols import RESERVED, home_of, in_text
from sim.native.lower import definite_assignment
from sim.native.lower.calls import Calls
from sim.native.lower.loops import LoopCounter, lower_element_loop
from sim.native.lower.module import Device
from sim.native.lower.name_lowering import FIELDS, as_item

# Operator -> the literal right operands for which the LLVM instruction has Python's semantics. With any other
# right operand, the operator calls a runtime function.
SAFE = {ast.LShift: range(64), ast.RShift: range(64), **dict.fromkeys((ast.FloorDiv, ast.Mod, ast.Pow), ())}


def is_field(node):
    """Return whether a Subscript selects a field of a record, as in `r["x"]`."""
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


class Lowering(Calls):
    """A transformer that lowers one function.

    module: the Module of the kernel.
    function: the Python function.
    rename: {variable: new name}, if the function is inlined.
    known: {parameter: Referent} for the parameters whose value is known during lowering.
    """

    def __init__(self, module, function, rename=None, known=()):
        super().__init__(module, module.reachable[function].with_known(known), rename or {})
        self.tree = self.source.tree
        # A local variable must not hide a runtime function, so rename it.
        for name in self.source.local - set(self.rename):
            if home_of(name) or name in RESERVED:
                self.rename[name] = module.fresh_name(name)

    def body(self):
        """Return the lowered statements of the function, without its docstring."""
        tree = copied_tree(self.tree)
        names = {part.arg for part in ast.walk(tree.args) if isinstance(part, ast.arg)} & self.source.local
        self.versions = Versions(names, tree.body, lambda node: referent_of(node).value)
        definite_assignment.insert_checks(self, tree)
        return self.statements(tree.body[ast.get_docstring(tree) is not None :]) or [ast.Pass()]

    def statements(self, statements):
        """Return the lowered form of statements. One statement can become several statements."""
        return [part for statement in statements for part in as_list(self.visit(statement))]

    def parameters(self):
        """Return the names of the function's parameters in the lowered text. Parameters whose value is known
        during lowering are left out."""
        if self.tree.args.vararg or self.tree.args.kwarg or self.tree.args.kwonlyargs:
            raise self.cannot_lower(f"{self.source.name} takes *arguments or keyword arguments", self.tree)
        return [
            self.rename.get(argument.arg, argument.arg)
            for argument in [*self.tree.args.posonlyargs, *self.tree.args.args]
            if argument.arg in self.source.local
        ]

    def function(self, device):
        """Return the syntax tree of a device function. The names in `device.needs` become its first
        parameters."""
        body = [LoopCounter(self.module).visit(statement) for statement in self.body()]
        device.needs |= self.needs | ({"state"} if has(self.tree, ast.While, ast.For) else set())
        names = [ast.arg(name) for name in (*sorted(device.needs), *self.parameters())]
        arguments = ast.arguments([], names, None, [], [], None, [])
        return located([ast.FunctionDef(device.name, arguments, body, [], None)], self.tree)[0]

    def device(self, function):
        """Return the Device for a function called without inlining. The function is lowered on first use."""
        devices = self.module.devices
        if function not in devices:
            devices[function] = device = Device(
                self.module.fresh_function(self.module.reachable[function].tree.name),
                needs={"state"} if self.module.logs else set(),
            )
            device.tree = Lowering(self.module, function).function(device)
            # The recursive call was lowered before `needs` was complete, so lower the function again.
            if device.recursive and device.needs:
                device.tree = Lowering(self.module, function).function(device)
        return devices[function]

    # --- memory accesses, and their sites in the log --------------------------------------------------------

    def visit_Subscript(self, node):
        """Lower a subscript. If accesses are logged, attach the index of its site to the array."""
        owner = referent_of(node.value).value
        if isinstance(owner, enum.EnumMeta) and isinstance(node.slice, ast.Constant):
            return self.lower_referent(referent(owner[node.slice.value]), node.slice.value, node)
        if not isinstance(owner, tuple) and not is_of_shape(node):
            node.slice = self.from_the_end(node.slice)
        if not self.is_access(node):
            return self.generic_visit(node)
        if is_field(node):
            raise self.cannot_lower(FIELDS, node)
        site = self.number("load" if isinstance(node.ctx, ast.Load) else "store", node)
        node = self.generic_visit(node)
        node.value = self.call("with_site", [node.value, site], node)
        return node

    def from_the_end(self, index):
        """Mark negative literal indices with `from_end`, because they count from the end of a dimension."""
        if isinstance(index, ast.Tuple):
            index.elts = [*map(self.from_the_end, index.elts)]
        return self.call("from_end", [index.operand], index) if from_end(index) else index

    def is_access(self, node):
        """Return whether a Subscript is logged as a memory access.

        Elements of shapes and of constant tuples are not in memory. A slice loads nothing by itself.
        """
        sliced = isinstance(node.ctx, ast.Load) and has(node.slice, ast.Slice, ast.Starred)
        of_tuple = isinstance(referent_of(node.value).value, tuple)
        return self.module.logs and not (sliced or of_tuple or is_of_shape(node))

    def visit_Assign(self, node):
        node.targets = [*map(as_item, node.targets)]
        return self.generic_visit(node)

    def visit_Compare(self, node):
        """Lower a comparison. A comparison of a device function with None is evaluated during lowering."""
        parts = [node.left, *node.comparators]
        functions = any(referent_of(part).role == DEVICE for part in parts)
        none = any(isinstance(part, ast.Constant) and part.value is None for part in parts)
        if functions and none and len(parts) == 2:
            return ast.copy_location(ast.Constant(isinstance(node.ops[0], (ast.IsNot, ast.NotEq))), node)
        return self.generic_visit(node)

    def visit_BinOp(self, node):
        """Lower a binary operator.

        In LLVM, a division by zero is undefined, and so is a shift by at least the width of the operand.
        These operators therefore call a runtime function unless the right operand is a safe literal.
        """
        node.left.is_operand = node.right.is_operand = True
        node = self.generic_visit(node)
        if type(node.op) in SAFE and not (
            isinstance(node.right, ast.Constant) and node.right.value in SAFE[type(node.op)]
        ):
            return self.call(in_text(f"operator.{BINARY[type(node.op)]}"), [node.left, node.right], node)
        return node

    def visit_UnaryOp(self, node):
        if not isinstance(node.op, ast.Not):
            node.operand.is_operand = True
        return self.generic_visit(node)

    def visit_If(self, node):
        """Lower a branch. If branches are logged, log the decision of each thread."""
        site = self.number("branch", node.test) if self.module.logs else None
        node = self.generic_visit(node)
        if site:
            given = [self.as_name("state", node), node.test, site]
            node.test = self.call("log_branch", given, node.test)
        return node

    visit_IfExp = visit_If

    def visit_Assert(self, node):
        """Lower `assert test` to `if not test: raise AssertionError(...)`."""
        error = ast.Call(ast.Name("AssertionError", ast.Load()), [node.msg] if node.msg else [], [])
        fails = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error, None)], [])
        return self.visit(*located([fails], node))

    def visit_Import(self, node):
        raise self.cannot_lower("an import in a kernel has no compiled form", node)

    visit_ImportFrom = visit_Import

    def visit_While(self, node):
        """Lower a `while` loop, and mark it with the index of its site, for findings."""
        site = self.number("loop", node).value
        node = self.visit_If(node)
        node.loop_site = site
        return node

    def visit_For(self, node):
        """Lower a `for` loop. A loop over an array becomes a loop over the array's indices."""
        site = self.number("loop", node).value
        before, first = lower_element_loop(self, node)
        if first:
            node.body, node.orelse = [*first, *self.statements(node.body)], self.statements(node.orelse)
        else:
            node = self.generic_visit(node)
        node.loop_site = site
        return [*before, node]
