"""Lowering of calls: synchronisation points, device functions, declarations of arrays, and functions of
sim.isa."""

import ast

from sim.frontend.names import MISSING, dtype_or_none, is_number, only_signature
from sim.frontend.resolve import (
    ATOMIC,
    CONSTANT,
    CUDA,
    DTYPE,
    FUNCTION,
    GEOMETRY,
    bound_arguments,
    builtin_called,
    first_argument,
    referent,
    referent_of,
)
from sim.frontend.tree import located
from sim.isa.table import INSTRUCTIONS
from sim.memory.declared import name_before
from sim.native.codegen.symbols import in_text
from sim.native.lower.liveness import names_assigned, names_read
from sim.native.lower.module import Declared, literal
from sim.native.lower.name_lowering import Names

# The expressions that replace `cuda.grid` and `cuda.gridsize`, for one axis.
POSITIONS = {
    "grid": "blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis}",
    "gridsize": "blockDim.{axis} * gridDim.{axis}",
}


class Calls(Names):
    """A transformer for the calls in one function.

    The roles of a call are defined in sim.frontend.resolve. Each role that requires more than renaming the
    called function has its own method.
    """

    def visit_Call(self, node):
        by_position = getattr(node, "calls", "") in (FUNCTION, ATOMIC)
        if node.keywords and (by_position or builtin_called(node) not in ("", "enumerate", "print", "zip")):
            raise self.cannot_lower(
                f"{ast.unparse(node.func)} with keyword arguments has no compiled form", node
            )
        return getattr(self, f"call_{getattr(node, 'calls', '')}", self.generic_visit)(node)

    def call_same(self, node):
        """Replace a call that only returns its first argument by that argument."""
        return self.visit(first_argument(node))

    def call_position(self, node):
        """Replace `cuda.grid(n)` or `cuda.gridsize(n)` by arithmetic with thread and block indices."""
        (ndim,) = (*node.args, *(keyword.value for keyword in node.keywords))
        text = ", ".join(POSITIONS[node.func.referent.name].format(axis=axis) for axis in "xyz"[: ndim.value])
        made = ast.parse(f"({text})", mode="eval").body
        self.needs |= names_read(made)
        return located([ast.Expr(made)], node)[0].value

    def call_lanes(self, node):
        """Lower a call that returns the mask of the lanes below the thread's own lane."""
        return self.call("lanemask_lt", [self.as_name("thread", node)], node)

    def call_atomic(self, node):
        """Lower an atomic operation. If accesses are logged, attach the site of the access to its array."""
        called, arguments = node.func.referent.name.replace(".", "_"), [*map(self.visit, node.args)]
        if self.module.logs:
            arguments[0] = self.call("with_site", [arguments[0], self.number("atomic", node)], node)
        return self.call(called, arguments, node)

    def call_builtin(self, node):
        """Lower a call to a Python builtin. sim.isa defines the builtins for numbers; Numba compiles all
        other calls."""
        name = f"builtins.{node.func.referent.name}.{len(node.args)}"
        numbers = not any(
            isinstance(part, ast.Starred) or isinstance(getattr(part, "value", None), str)
            for part in node.args
        )
        # `bool` also accepts a tuple, which only Numba's own version supports.
        if name in INSTRUCTIONS and numbers and INSTRUCTIONS[name].semantics is not bool:
            return self.call(in_text(name), [self.visit(argument) for argument in node.args], node)
        return self.generic_visit(node)

    def call_cuda(self, node):
        """Lower a call to a function of numba.cuda that no other method lowers. The result of `this_grid()`
        can be any number, because a launch has only one grid."""
        if node.func.referent.name.endswith("this_grid"):
            return ast.copy_location(ast.Constant(0), node)
        return self.generic_visit(node)

    def call_member(self, node):
        """Lower a method call, such as `x.reshape(a, b)`."""
        if self.module.is_grid_sync(node):
            return self.sync_point("this_grid", [], node)
        if not isinstance(node.func, ast.Attribute):
            raise self.cannot_lower(f"a call of {ast.unparse(node.func)} has no compiled form", node)
        # Python's `int.bit_count` has the semantics of `popc`.
        if node.func.attr == "bit_count":
            return self.call(in_text("popc"), [self.visit(node.func.value)], node)
        # `x.reshape(a, b)` means `x.reshape((a, b))`.
        if node.func.attr == "reshape" and len(node.args) > 1:
            node.args = [ast.copy_location(ast.Tuple(node.args, ast.Load()), node)]
        node.func.value = self.visit(node.func.value)
        node.args, node.keywords = [*map(self.visit, node.args)], [*map(self.visit, node.keywords)]
        return node

    def call_wait(self, node):
        """Lower a call that is a synchronisation point.

        Its attributes `sync` (the name of the instruction) and `site` mark it for sim.native.lower.hoisting,
        which moves the call into a statement of its own.
        """
        called, arguments = node.func.referent.name, node.args
        if node.keywords:
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            try:
                arguments = INSTRUCTIONS[called].in_order(arguments, named)
            except TypeError as error:
                raise self.cannot_lower(str(error), node) from None
        arguments = [*map(self.visit, arguments)]
        # Without an argument, `syncwarp` synchronises all lanes.
        if called == "syncwarp" and not arguments:
            arguments = [ast.Constant(0xFFFFFFFF)]
        return self.sync_point(called, arguments, node)

    def sync_point(self, name, arguments, node):
        """Return the lowered call of a synchronising instruction.

        name: the name of the instruction.
        arguments: the lowered arguments.
        """
        function = ast.Name(name.replace(".", "_"), ast.Load())
        made = ast.copy_location(ast.Call(function, arguments, []), node)
        made.sync, made.site = name, self.number("call", node).value
        self.module.operations[made.site] = name
        return made

    # --- device functions -----------------------------------------------------------------------------------

    def call_device(self, node):
        """Lower a call to a device function.

        If the function has to be inlined, the result is a placeholder call with the attribute
        `inlined_function`. sim.native.lower.hoisting expands the placeholder.
        """
        found = node.func.referent
        function, signature = found.function, only_signature(found.value)
        given = bound_arguments(function, node)
        if given is None:
            return self.unpacked(function, signature, node)
        # A declared signature converts the arguments, so the values passed must not replace the parameters.
        known = {} if signature else self.known_arguments(function, given)
        inlines = any(part.in_cuda for part in known.values()) or self.module.must_inline(function)
        remaining = [part for name, part in given.items() if not (inlines and name in known)]
        arguments = [self.argument(part, node) for part in remaining]
        if signature:
            arguments = [*map(self.convert, signature.args, arguments)]
        if inlines:
            made = ast.copy_location(ast.Call(ast.Name(function.__name__, ast.Load()), arguments, []), node)
            made.inlined_function, made.known_referents = function, known
            made.call_site = self.source.site("call", node)
        else:
            made = self.device_call(self.device(function), function, arguments, node)
        return self.convert(signature.return_type, made) if signature else made

    def device_call(self, device, function, arguments, node):
        """Return a call to a device function. Its first arguments are the names in `device.needs`.

        device: the function's Device.
        function: the Python function.
        arguments: the other arguments, as lowered syntax trees.
        """
        if device.tree is None:  # the function is still being lowered, so this call is recursive
            if self.source.function is not function:
                raise self.cannot_lower(f"{function.__name__} calls itself through {self.source.name}", node)
            device.recursive = True
        self.needs |= device.needs
        needs = [ast.Name(name, ast.Load()) for name in sorted(device.needs)]
        made = ast.Call(ast.Name(device.name, ast.Load()), [*needs, *arguments], [])
        return ast.copy_location(made, node)

    def unpacked(self, function, signature, node):
        """Lower a call with starred arguments, such as `f(a, *t)`. Numba requires that the tuple comes
        last."""
        if not any(isinstance(part, ast.Starred) for part in node.args):
            raise self.cannot_lower(
                f"{ast.unparse(node)} does not fit the parameters of {function.__name__}", node
            )
        if signature or node.keywords or self.module.must_inline(function):
            of = f"{ast.unparse(node)}, where {function.__name__} is inlined or declared with a signature,"
            raise self.cannot_lower(f"{of} has no compiled form", node)
        return self.device_call(self.device(function), function, [*map(self.visit, node.args)], node)

    def known_arguments(self, function, arguments):
        """Return {parameter: Referent} for the parameters whose value is known during lowering and never
        changes, because the function does not assign them."""
        changed = names_assigned(self.module.reachable[function].tree.body)
        known = {name: self.known_referent(part) for name, part in arguments.items() if name not in changed}
        return {name: found for name, found in known.items() if found is not None}

    def known_referent(self, argument):
        """Return the Referent of an argument whose value is known during lowering, or None if it is not
        known.

        Known values are numbers, dtypes, functions, and tuples of numbers.

        argument: an expression, or the value of a parameter's default.
        """
        if isinstance(argument, ast.Tuple):
            parts = [*map(self.known_referent, argument.elts)]
            found = referent(tuple(part.value for part in parts if part is not None))
            return found if len(found.value) == len(parts) and literal(found.value) is not None else None
        if isinstance(argument, ast.Constant):
            argument = argument.value
        found = referent_of(argument) if isinstance(argument, ast.AST) else referent(argument)
        if found.role == CONSTANT:
            return None if literal(found.value) is None else found
        part_of_cuda = found.value is not MISSING and found.role in (FUNCTION, DTYPE, CUDA, GEOMETRY)
        return found if part_of_cuda or found.function in self.module.reachable else None

    def argument(self, argument, node):
        """Return the lowered form of an argument to a device function.

        argument: an expression, or the value of a parameter's default.
        node: the call, for messages.
        """
        if isinstance(argument, ast.AST):
            return self.visit(argument)
        if argument is None:
            return ast.Constant(None)
        return self.lower_referent(referent(argument), "default", node)

    def convert(self, numba_type, node):
        """Return an expression that converts `node` to a numeric Numba type. For any other type, return
        `node` itself."""
        dtype = dtype_or_none(numba_type)
        if dtype is None or not is_number(dtype):
            return node
        return ast.copy_location(ast.Call(self.dtype(dtype, node), [node], []), node)

    # --- arrays ---------------------------------------------------------------------------------------------

    def call_declaration(self, node):
        """Lower the declaration of a shared or local array.

        Each array becomes a parameter of the kernel. The parameter for a local array has the arrays of all
        threads as its rows, and the declaration selects the thread's row.
        """
        space, dtype_node = node.declares.space, node.declares.dtype
        dtype = self.dtype_given(dtype_node) or referent_of(dtype_node).dtype
        shape = self.versions.shape(node.declares.shape)
        if dtype is None or shape is None or not is_number(dtype) or any(size < 0 for size in shape):
            raise self.cannot_lower(f"cuda.{space}.array requires a constant shape and a numeric dtype", node)
        site = self.source.site("call", node)
        name = name_before(site) or space
        # In CUDA, an array of shape 0 is a view of dynamic shared memory.
        shape = None if space == "shared" and shape == (0,) else shape
        whole = node.declares.variable is not None
        array = Declared(space, shape, dtype, name, self.module.site(site), whole)
        # Inlining can produce several copies of one declaration. They all refer to the same array.
        known = next((known for known, declared in self.module.declared.items() if declared == array), None)
        known = known or self.module.fresh_name(f"{name}_{space}")
        self.module.declared[known] = array
        name = self.as_name(known, node)
        if space == "shared":
            return name
        return self.call("declare_local", [name, self.as_name("thread", node)], node)
