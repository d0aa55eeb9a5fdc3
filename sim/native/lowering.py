"""One function of a kernel rewritten: global names, calls, declarations, and, where that is asked for,
numbered accesses."""

import ast
import builtins
import copy
import enum
import inspect
from collections import Counter
from types import ModuleType

import numpy as np

from sim.events import Site
from sim.frontend.names import (
    MISSING,
    constant_shape,
    cuda_name,
    declared,
    device_function,
    dtype_or_none,
    entry_of,
    is_number,
    name_in_cuda,
    only_signature,
)
from sim.frontend.rebind import source_lines
from sim.frontend.tree import flat
from sim.isa.functions import Function
from sim.isa.table import INSTRUCTIONS
from sim.memory.declared import name_before
from sim.memory.spaces import host_array
from sim.native import unset
from sim.native.front import CannotLower, Declared, Device, literal
from sim.native.functions import compiles, text_name
from sim.native.kinds import HALVES
from sim.native.loops import LoopCounter, over_elements
from sim.native.variables import assigned
from sim.native.vocabulary import GEOMETRY, MODULES, RESERVED, SPECIAL, home_of

CALLED = {
    ast.LShift: text_name("operator.lshift"),
    ast.RShift: text_name("operator.rshift"),
    ast.FloorDiv: text_name("operator.floordiv"),
    ast.Mod: text_name("operator.mod"),
    ast.Pow: text_name("operator.pow"),
}
# Literal right operands for which LLVM's instruction is right.
SAFE = {
    ast.LShift: range(64),
    ast.RShift: range(64),
    ast.FloorDiv: range(1, 2**63),
    ast.Mod: range(1, 2**63),
    ast.Pow: (),
}


FIELDS = "accesses to fields of records are counted by fibers"
# attributes that are no field of a record
PLAIN = {"shape", "size", "ndim", "T", "real", "imag", "dtype", "itemsize", "nbytes", "strides"}


def as_item(target):
    """`p["field"]` for `p.field`, where it is assigned to."""
    return (
        ast.copy_location(
            ast.Subscript(target.value, ast.copy_location(ast.Constant(target.attr), target), target.ctx),
            target,
        )
        if isinstance(target, ast.Attribute)
        else target
    )


def as_value(index):
    """An index as an argument may be: `slice(a, b)` for a:b."""
    if isinstance(index, ast.Tuple):
        return ast.Tuple([*map(as_value, index.elts)], ast.Load())
    if not isinstance(index, ast.Slice):
        return index
    bounds = [index.lower, index.upper, *([index.step] if index.step else [])]
    return ast.Call(ast.Name("slice", ast.Load()), [bound or ast.Constant(None) for bound in bounds], [])


def is_field(node):
    """Whether a Subscript names the field of a record."""
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


class Lowering(ast.NodeTransformer):
    """Rewrites the names of one function; `rename` says what its own variables are called, `bound` what
    parameters stand for that are known."""

    def __init__(self, module, function, rename=None, bound=None):
        self.module, self.names, self.tree = (
            module,
            module.reachable[function],
            module.reachable[function].tree,
        )
        if bound:
            self.names = copy.copy(self.names)
            self.names.local, self.names.free = self.names.local - set(bound), {**self.names.free, **bound}
        self.name, self.text = (
            function.__name__,
            dict(enumerate(source_lines(function), function.__code__.co_firstlineno)),
        )
        self.rename = rename or {}
        self.needs = set()
        for name in self.names.local - set(self.rename):
            if home_of(name) or name in RESERVED:
                self.rename[name] = module.fresh(name)

    def body(self):
        """The function's statements, rewritten."""
        tree = copy.deepcopy(self.tree)
        unset.watch(self, tree)
        first = tree.body[0]
        documented = (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        )
        return self.statements(tree.body[documented:]) or [ast.Pass()]

    def statements(self, statements):
        return [part for statement in statements for part in flat(self.visit(statement))]

    def parameters(self):
        if self.tree.args.vararg or self.tree.args.kwarg or self.tree.args.kwonlyargs:
            raise CannotLower(
                f"{self.name} takes *arguments or keyword arguments", self.site("call", self.tree)
            )
        return [
            self.rename.get(argument.arg, argument.arg)
            for argument in [*self.tree.args.posonlyargs, *self.tree.args.args]
            if argument.arg in self.names.local
        ]

    def function(self, device):
        """The tree of a device function, what it needs first among its parameters."""
        body, parameters = (
            [LoopCounter(self.module).visit(statement) for statement in self.body()],
            self.parameters(),
        )
        device.needs |= self.needs | (
            {"state"}
            if any(isinstance(part, (ast.While, ast.For)) for part in ast.walk(self.tree))
            else set()
        )
        arguments = ast.arguments(
            [], [ast.arg(name) for name in [*sorted(device.needs), *parameters]], None, [], [], None, []
        )
        return ast.fix_missing_locations(
            ast.copy_location(ast.FunctionDef(device.name, arguments, body, [], None), self.tree)
        )

    def device(self, function):
        """The Device for a function that is not inlined."""
        devices = self.module.devices
        if function not in devices:
            devices[function] = device = Device(
                self.module.fresh_function(self.module.reachable[function].tree.name),
                needs={"state"} if self.module.watched else set(),
            )
            device.tree = Lowering(self.module, function).function(device)
            if device.recursive and device.needs:  # only now is it known what it must hand on to itself
                device.tree = Lowering(self.module, function).function(device)
        return devices[function]

    def site(self, kind, node):
        line = self.text.get(node.lineno, "")
        return Site(
            kind,
            self.name,
            node.lineno - self.tree.lineno + 1,
            node.col_offset,
            line.strip(),
            len(line) - len(line.lstrip()),
        )

    def number(self, kind, node):
        return ast.Constant(self.module.site(self.site(kind, node)))

    def cannot(self, what, node):
        return CannotLower(what, self.site("call", node))

    def as_name(self, name, node, context=None):
        if name in SPECIAL or name in self.module.arrays or name in self.module.declared:
            self.needs.add(name)
        return ast.copy_location(ast.Name(name, context or ast.Load()), node)

    def call(self, function, arguments, node):
        return ast.copy_location(
            ast.Call(self.as_name(self.module.library(function), node), arguments, []), node
        )

    # --- names ----------------------------------------------------------------------------------------------

    def visit_Name(self, node):
        if hasattr(node, "is_ours"):
            return node
        if node.id in self.names.local or not isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Name(self.rename.get(node.id, node.id), node.ctx), node)
        value = self.names.value(node.id)
        return self.builtin(node.id, node) if value is MISSING else self.standing_for(value, node.id, node)

    def visit_arg(self, node):
        node.arg, node.annotation = self.rename.get(node.arg, node.arg), None
        return node

    def visit_Attribute(self, node):
        owner = self.names.resolve(node.value)
        geometry = cuda_name(owner)
        if geometry in GEOMETRY:
            return ast.copy_location(ast.Attribute(self.as_name(geometry, node), node.attr, node.ctx), node)
        value = self.names.resolve(node)
        if value is MISSING and isinstance(owner, ModuleType):
            raise self.cannot(f"{ast.unparse(node)} has no compiled form", node)
        if value is MISSING and node.attr == "dtype" and (dtype := self.dtype_given(node)) is not None:
            return self.dtype(dtype, node)
        if value is not MISSING:
            return self.standing_for(value, node.attr, node)
        if not isinstance(node.ctx, ast.Load):
            return self.visit(as_item(node))
        if not self.module.sited or node.attr in PLAIN:
            return self.generic_visit(node)
        raise self.cannot(FIELDS, node)

    def standing_for(self, value, name, node):
        """The expression for a global object that the kernel calls `name`."""
        if isinstance(value, enum.Enum):
            return self.standing_for(value.value, name, node)
        known = name_in_cuda(value)
        if known in GEOMETRY:
            return self.as_name(known, node)
        if known == "warpsize":
            return ast.copy_location(ast.Constant(32), node)
        if isinstance(entry := entry_of(value), Function):
            if not compiles(entry):
                raise self.cannot(
                    f"{entry.name} has no compiled form; its entry in sim.isa may be given one, native=...",
                    node,
                )
            return self.as_name(self.module.library(text_name(entry.name)), node)
        if known == "laneid":
            return self.call("lane_of", [self.as_name("thread", node)], node)
        dtype = None if any(value is kind for kind in (int, float, bool, complex)) else dtype_or_none(value)
        if dtype is not None and not isinstance(value, str):
            return self.dtype(dtype, node)
        if known:
            if not home_of(f"cuda_{known}"):
                raise self.cannot(f"cuda.{known} has no compiled form", node)
            return self.as_name(self.module.library(f"cuda_{known}"), node)
        if isinstance(value, np.generic) and value.dtype.name in HALVES:
            return ast.copy_location(
                ast.Call(self.dtype(value.dtype, node), [self.standing_for(float(value), name, node)], []),
                node,
            )
        text = literal(value)
        if text is not None:
            return (
                ast.copy_location(ast.Constant(value), node)
                if type(value) in (bool, str, type(None))
                else self.as_name(self.module.constant(name, text), node)
            )
        return self.thing(value, name, node)

    def dtype(self, dtype, node):
        if not is_number(dtype):
            raise self.cannot(f"{dtype} is no number", node)
        if home_of(dtype.name):
            return self.as_name(self.module.library(dtype.name), node)
        self.module.imports["bool_" if dtype.name == "bool" else dtype.name] = "numba"
        return self.as_name("bool_" if dtype.name == "bool" else dtype.name, node)

    def thing(self, value, name, node):
        """A global that is neither a number nor a part of numba.cuda: a function, a module, an array."""
        home, own = getattr(value, "__module__", None), getattr(value, "__name__", name)
        if isinstance(value, ModuleType) and value.__name__ in MODULES:
            return self.as_name(MODULES[value.__name__], node)
        if home == "numba.cuda.libdevice":
            raise self.cannot(f"libdevice.{own} has no compiled form", node)
        if home in MODULES or isinstance(value, np.ufunc):
            return ast.copy_location(
                ast.Attribute(self.as_name(MODULES.get(home, "np"), node), own, ast.Load()), node
            )
        if getattr(builtins, own, None) is value:
            return self.builtin(own, node)
        if (function := device_function(value)) is not None:
            device = self.device(function)
            if device.needs:
                raise self.cannot(f"{name} is passed on as a value and needs to know its thread", node)
            return self.as_name(device.name, node)
        array = host_array(value, "a global array")
        if array is not None:
            return self.as_name(self.module.array(value, name), node)
        raise self.cannot(f"{ast.unparse(node)} has no compiled form", node)

    def builtin(self, name, node):
        """A builtin function, or ours in its place."""
        self.module.prints |= name == "print"
        return self.as_name(name, node)

    # --- calls ----------------------------------------------------------------------------------------------

    def visit_Call(self, node):
        if hasattr(node.func, "is_ours"):
            return self.generic_visit(node)
        value = self.names.resolve(node.func)
        called = name_in_cuda(value) or ""
        if called in ("shared.array", "local.array"):
            return self.declaration(called.split(".")[0], node)
        if called.split(".")[0] in self.module.waiting:
            return self.stop(called, node)
        if called == "const.array_like":
            return self.visit(node.args[0])
        if called in ("grid", "gridsize"):
            given = ("threadIdx", "blockIdx", "blockDim") if called == "grid" else ("blockDim", "gridDim")
            return self.call(
                f"{called}_{node.args[0].value}", [self.as_name(name, node) for name in given], node
            )
        if called == "lanemask_lt":
            return self.call("lanemask_lt", [self.as_name("thread", node)], node)
        if called.startswith("atomic."):
            arguments = [*map(self.visit, node.args), *(self.visit(k.value) for k in node.keywords)]
            return self.call(
                called.replace(".", "_") + "_at" * self.module.sited,
                [*arguments, *([self.number("atomic", node)] if self.module.sited else [])],
                node,
            )
        if (function := device_function(value)) is not None:
            return self.device_call(function, only_signature(value), node)
        own = value is MISSING and isinstance(node.func, ast.Name) and node.func.id not in self.names.local
        builtin = f"builtins.{node.func.id}.{len(node.args)}" if own else ""
        if builtin in INSTRUCTIONS and not any(isinstance(part, ast.Starred) for part in node.args):
            return self.call(text_name(builtin), [self.visit(argument) for argument in node.args], node)
        return (
            self.method_call(node)
            if value is MISSING and isinstance(node.func, ast.Attribute)
            else self.generic_visit(node)
        )

    def method_call(self, node):
        if node.func.attr == "bit_count":
            return self.call(text_name("popc"), [self.visit(node.func.value)], node)
        if node.func.attr == "reshape" and len(node.args) > 1:
            node.args = [ast.copy_location(ast.Tuple(node.args, ast.Load()), node)]
        node.func.value = self.visit(node.func.value)
        node.args, node.keywords = [*map(self.visit, node.args)], [*map(self.visit, node.keywords)]
        return node

    def stop(self, called, node):
        """A call at which the thread stops; sim.native.flat makes it a statement."""
        arguments = [
            self.visit(argument) for argument in [*node.args, *(keyword.value for keyword in node.keywords)]
        ]
        if called == "syncwarp" and not arguments:
            arguments = [ast.Constant(0xFFFFFFFF)]
        made = ast.copy_location(
            ast.Call(ast.Name(called.replace(".", "_"), ast.Load()), arguments, []), node
        )
        made.stops, made.site = (
            called,
            self.module.site(self.site("atomic" if called.startswith("atomic") else "call", node)),
        )
        self.module.operations[made.site] = called
        return made

    def device_call(self, function, signature, node):
        """A call of a device function; `signature`: the one that it was declared with (of Numba), or None."""
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return self.starred_call(function, signature, node)
        given = inspect.signature(function).bind(
            *node.args, **{keyword.arg: keyword.value for keyword in node.keywords}
        )
        given.apply_defaults()
        known = {} if signature else self.known_arguments(function, given.arguments)
        inlines = any(map(name_in_cuda, known.values())) or self.module.stops(function)
        arguments = [
            self.argument(argument, node)
            for name, argument in given.arguments.items()
            if not (inlines and name in known)
        ]
        if signature:
            arguments = [
                self.converted(kind, argument)
                for kind, argument in zip(signature.args, arguments, strict=True)
            ]
        if inlines:
            made = ast.copy_location(ast.Call(ast.Name(function.__name__, ast.Load()), arguments, []), node)
            made.inlines, made.bound, made.place = function, known, self.site("call", node)
        else:
            device = self.device(function)
            if device.tree is None:  # it is being lowered
                if self.module.reachable[function].tree is not self.tree:
                    raise self.cannot(f"{function.__name__} calls itself by way of {self.name}", node)
                device.recursive = True
            self.needs |= device.needs
            made = ast.copy_location(
                ast.Call(
                    ast.Name(device.name, ast.Load()),
                    [*(ast.Name(name, ast.Load()) for name in sorted(device.needs)), *arguments],
                    [],
                ),
                node,
            )
        return self.converted(signature.return_type, made) if signature else made

    def starred_call(self, function, signature, node):
        """f(a, *t): Numba compiles it for a tuple at the end."""
        if signature or node.keywords or self.module.stops(function):
            raise self.cannot(
                f"{ast.unparse(node)}, where {function.__name__} is inlined or declared with a signature, has"
                " no compiled form",
                node,
            )
        device = self.device(function)
        self.needs |= device.needs
        arguments = [
            *(ast.Name(name, ast.Load()) for name in sorted(device.needs)),
            *map(self.visit, node.args),
        ]
        return ast.copy_location(ast.Call(ast.Name(device.name, ast.Load()), arguments, []), node)

    def known_arguments(self, function, arguments):
        """{parameter: value} of those that stand for one known value: parameters that the function does not
        assign."""
        changed = assigned(self.module.reachable[function].tree.body)
        return {
            name: value
            for name, argument in arguments.items()
            if name not in changed and (value := self.known(argument)) is not MISSING
        }

    def known(self, argument):
        """The number, dtype, function, or tuple of numbers that an argument (an expression, or the value of a
        default) is known to stand for, or MISSING."""
        if isinstance(argument, ast.Constant):
            argument = argument.value
        if isinstance(argument, ast.Tuple):
            parts = tuple(map(self.known, argument.elts))
            return parts if literal(parts) is not None else MISSING
        value = self.names.resolve(argument) if isinstance(argument, ast.AST) else argument
        return (
            value
            if literal(value) is not None
            or dtype_or_none(value) is not None
            or name_in_cuda(value)
            or device_function(value) in self.module.reachable
            else MISSING
        )

    def converted(self, kind, node):
        """`node` converted to a Numba type, if that is a number's."""
        dtype = dtype_or_none(kind)
        return (
            node
            if dtype is None or not is_number(dtype)
            else ast.copy_location(ast.Call(self.dtype(dtype, node), [node], []), node)
        )

    def argument(self, argument, node):
        """What a device function is given: an expression, or the value of a default."""
        if isinstance(argument, ast.AST):
            return self.visit(argument)
        return ast.Constant(None) if argument is None else self.standing_for(argument, "default", node)

    def declaration(self, space, node):
        """The parameter that brings a shared or local array."""
        given = declared(node)
        dtype = (
            self.dtype_given(given["dtype"]) or dtype_or_none(self.names.resolve(given["dtype"]))
            if "dtype" in given
            else None
        )
        shape = constant_shape(given.get("shape"), self.constant)
        if dtype is None or shape is None or not is_number(dtype):
            raise self.cannot(f"cuda.{space}.array wants a constant shape and a numeric dtype", node)
        name = name_before(self.site("call", node)) or space
        array = Declared(
            space,
            None if space == "shared" and shape == (0,) else shape,
            "bool_" if dtype.name == "bool" else dtype.name,
            name,
            self.module.site(self.site("call", node)),
        )
        known = next(
            (known for known, same in self.module.declared.items() if same == array), None
        ) or self.module.fresh(f"{name}_{space}")
        self.module.declared[known] = array
        name = self.as_name(known, node)
        return name if space == "shared" else self.call("fresh", [name, self.as_name("thread", node)], node)

    def dtype_given(self, node):
        """The dtype for `x.dtype`, where x is a parameter of the kernel and an array, or None."""
        of_kernel = (
            self.module.reachable[self.module.kernel].tree is self.tree
            and isinstance(node, ast.Attribute)
            and node.attr == "dtype"
        )
        return (
            self.module.dtypes.get(node.value.id) if of_kernel and isinstance(node.value, ast.Name) else None
        )

    def constant(self, node):
        """The value of an expression of constants, or None."""
        try:
            known = {**self.names.globals, **self.names.free, **self.settled()}
            return eval(compile(ast.Expression(node), "<shape>", "eval"), known)
        except Exception:  # whatever evaluating it may raise
            return None

    def settled(self):
        """{variable: number} of the variables that only one statement assigns, and a literal, or 8 * 8, which
        Python makes one."""
        stored = Counter(
            part.id
            for part in ast.walk(self.tree)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        )
        stored.update(argument.arg for argument in ast.walk(self.tree.args) if isinstance(argument, ast.arg))
        return {
            node.targets[0].id: eval(ast.unparse(node.value))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and stored[node.targets[0].id] == 1
            and all(
                isinstance(part, (ast.Constant, ast.BinOp, ast.operator)) for part in ast.walk(node.value)
            )
        }

    # --- accesses, where they are numbered ------------------------------------------------------------------

    def visit_Subscript(self, node):
        owner = self.names.resolve(node.value)
        if isinstance(owner, enum.EnumMeta) and isinstance(node.slice, ast.Constant):
            return self.standing_for(owner[node.slice.value], node.slice.value, node)
        if not self.is_access(node) or not isinstance(node.ctx, ast.Load):
            self.count_from_end(node)
            return self.generic_visit(node)
        self.count_from_end(node)
        site = self.number("load", node)
        if is_field(node):
            raise self.cannot(FIELDS, node)
        return self.call("load", [self.visit(node.value), self.visit(node.slice), site], node)

    def count_from_end(self, node):
        """A literal index below 0 is meant to count from the end; alone, Numba knows that it is a literal."""
        parts = (
            node.slice.elts
            if isinstance(node.slice, ast.Tuple)
            else [node.slice]
            if self.is_access(node)
            else []
        )
        for axis, part in enumerate(parts):
            if (
                isinstance(part, ast.UnaryOp)
                and isinstance(part.op, ast.USub)
                and isinstance(part.operand, ast.Constant)
                and isinstance(node.value, ast.Name)
            ):
                back = self.call(
                    "from_end", [ast.Name(node.value.id, ast.Load()), ast.Constant(axis), part.operand], part
                )
                back.func.is_ours = True
                if isinstance(node.slice, ast.Tuple):
                    parts[axis] = back
                else:
                    node.slice = back

    def is_access(self, node):
        """Whether a Subscript is to be numbered: not an element of a shape or of a constant tuple, and not a
        slice, which reads nothing."""
        of_shape = isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides")
        sliced = isinstance(node.ctx, ast.Load) and any(
            isinstance(part, (ast.Slice, ast.Starred)) for part in ast.walk(node.slice)
        )
        return (
            self.module.sited
            and not of_shape
            and not sliced
            and not isinstance(self.names.resolve(node.value), tuple)
        )

    def visit_Assign(self, node):
        node.targets = [*map(as_item, node.targets)]
        target = node.targets[0]
        return (
            self.store(target, self.visit(node.value))
            if isinstance(target, ast.Subscript) and self.is_access(target)
            else self.generic_visit(node)
        )

    def store(self, target, value):
        self.count_from_end(target)
        array, index = self.visit(target.value), self.visit(target.slice)
        if is_field(target):
            raise self.cannot(FIELDS, target)
        return ast.copy_location(
            ast.Expr(
                self.call("store", [array, as_value(index), value, self.number("store", target)], target)
            ),
            target,
        )

    def visit_Compare(self, node):
        """`function is None`, `function != None`: known here."""
        parts = [node.left, *node.comparators]
        functions = [part for part in parts if device_function(self.names.resolve(part)) is not None]
        if (
            len(parts) == 2
            and functions
            and any(isinstance(part, ast.Constant) and part.value is None for part in parts)
        ):
            return ast.copy_location(ast.Constant(isinstance(node.ops[0], (ast.IsNot, ast.NotEq))), node)
        return self.generic_visit(node)

    def visit_BinOp(self, node):
        """What a shift by more than the width gives, or a division by 0, only a function of ours knows: LLVM
        leaves it open."""
        node = self.generic_visit(node)
        if type(node.op) in CALLED and not (
            isinstance(node.right, ast.Constant) and node.right.value in SAFE[type(node.op)]
        ):
            return self.call(CALLED[type(node.op)], [node.left, node.right], node)
        return node

    def visit_If(self, node):
        site = self.number("branch", node.test) if self.module.watched else None
        node = self.generic_visit(node)
        if site:
            node.test = self.call(
                "branch",
                [self.as_name("state", node), node.test, self.as_name("thread", node), site],
                node.test,
            )
        return node

    visit_IfExp = visit_If

    def visit_Assert(self, node):
        raised = ast.Raise(
            ast.Call(ast.Name("AssertionError", ast.Load()), [node.msg] if node.msg else [], []), None
        )
        ast.copy_location(raised, node)
        return self.visit(
            ast.fix_missing_locations(
                ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), node.test), [raised], []), node)
            )
        )

    def visit_While(self, node):
        site = self.module.site(self.site("loop", node))
        node = self.visit_If(node)
        node.loop_site = site
        return node

    def visit_For(self, node):
        site = self.module.site(self.site("loop", node))
        before, first = over_elements(self, node)
        if first:
            node.body, node.orelse = [*first, *self.statements(node.body)], self.statements(node.orelse)
        else:
            node = self.generic_visit(node)
        node.loop_site = site
        return [*before, node]
