"""Lowering of names. A name becomes a constant, a parameter of the generated function, or a runtime
function."""

import ast
import enum
from types import ModuleType

import numpy as np

from sim.frontend.names import is_number
from sim.frontend.resolve import VARIABLE, referent, referent_of
from sim.memory.argument import host_array
from sim.native.codegen.array_attributes import ATTRIBUTES
from sim.native.codegen.isa_functions import compiles
from sim.native.codegen.scalars import HALVES
from sim.native.codegen.symbols import GEOMETRY, MODULES, SPECIAL, home_of, in_text
from sim.native.lower.module import CannotLower, literal

FIELDS = "only the interpreter logs accesses to fields of records"
PLAIN = {*ATTRIBUTES, "dtype"}  # attributes of arrays that do not access memory


def as_item(target):
    """Return `p["field"]` for the assignment target `p.field`. Return any other target unchanged."""
    if not isinstance(target, ast.Attribute):
        return target
    field = ast.copy_location(ast.Constant(target.attr), target)
    return ast.copy_location(ast.Subscript(target.value, field, target.ctx), target)


class Names(ast.NodeTransformer):
    """A transformer for the names in one function.

    source: the Source of the function (sim.frontend.resolve).
    rename: {variable: its name in the lowered text}.
    needs: a set that collects the names needed by the function in addition to its parameters.
    """

    def __init__(self, module, source, rename):
        self.module, self.source, self.rename, self.needs = module, source, rename, set()

    def number(self, action, node):
        """Return a constant node that contains the index of a node's site.

        action: the kind of operation: "load", "store", "branch", "atomic", "loop" or "call".
        """
        return ast.Constant(self.module.site(self.source.site(action, node)))

    def cannot_lower(self, what, node):
        """Return a CannotLower that refers to the line of a node."""
        return CannotLower(what, self.source.site("call", node))

    def as_name(self, name, node, context=None):
        """Return a Name node for a name in the lowered text. Record the name in `needs` if it must be passed
        to the function."""
        if name in SPECIAL or name in self.module.arrays or name in self.module.declared:
            self.needs.add(name)
        return ast.copy_location(ast.Name(name, context or ast.Load()), node)

    def call(self, function, arguments, node):
        """Return a call to a runtime function, and add its import to the generated file."""
        function = self.as_name(self.module.library(function), node)
        return ast.copy_location(ast.Call(function, arguments, []), node)

    # --- nodes ----------------------------------------------------------------------------------------------

    def visit_Name(self, node):
        ref = getattr(node, "referent", None)
        if ref is None:  # an earlier lowering step inserted the name
            return node
        if ref.role == VARIABLE:
            return ast.copy_location(ast.Name(self.rename.get(node.id, node.id), node.ctx), node)
        return self.lower_referent(ref, node.id, node)

    def visit_arg(self, node):
        node.arg, node.annotation = self.rename.get(node.arg, node.arg), None
        return node

    def visit_Attribute(self, node):
        return self.lower_referent(node.referent, node.attr, node)

    def lower_referent(self, ref, name, node):
        """Return the expression that replaces a name or attribute of the kernel, given its Referent."""
        return getattr(self, f"of_{ref.role}")(ref, name, node)

    # --- one method per role of a Referent (sim.frontend.resolve) -------------------------------------------

    def of_axis(self, ref, name, node):
        """Lower an axis of a three-dimensional index or size, such as `threadIdx.x`."""
        return ast.copy_location(ast.Attribute(self.as_name(ref.name, node), name, node.ctx), node)

    def of_member(self, ref, name, node):
        """Lower an attribute of a value: a dtype, a record field, or an attribute of an array."""
        if isinstance(referent_of(node.value).value, ModuleType):
            raise self.cannot_lower(f"{ast.unparse(node)} has no compiled form", node)
        if name == "dtype" and (dtype := self.dtype_given(node)) is not None:
            return self.dtype(dtype, node)
        if not isinstance(node.ctx, ast.Load):
            return self.visit(as_item(node))
        if not self.module.logs or name in PLAIN and not self.module.has_field(name):
            return self.generic_visit(node)
        raise self.cannot_lower(FIELDS, node)

    def of_geometry(self, ref, name, node):
        """Lower a name for the position of a thread or a size of the grid, such as `threadIdx` or
        `laneid`."""
        if ref.name in GEOMETRY:
            return self.as_name(ref.name, node)
        if ref.name == "warpsize":
            return ast.copy_location(ast.Constant(32), node)
        return self.call("lane_of", [self.as_name("thread", node)], node)

    def of_function(self, ref, name, node):
        """Lower a function defined in sim.isa."""
        if not compiles(ref.entry):
            raise self.cannot_lower(
                f"{ref.entry.name} has no compiled form; its entry in sim.isa may declare one: native=...",
                node,
            )
        return self.as_name(self.module.library(in_text(ref.entry.name)), node)

    def of_dtype(self, ref, name, node):
        """Lower a dtype to the function that converts to it."""
        return self.dtype(ref.dtype, node)

    def of_cuda(self, ref, name, node):
        """Lower any other function of numba.cuda, which must be defined in the runtime library."""
        if not home_of(f"cuda_{ref.name}"):
            raise self.cannot_lower(f"cuda.{ref.name} has no compiled form", node)
        return self.as_name(self.module.library(f"cuda_{ref.name}"), node)

    def of_constant(self, ref, name, node):
        """Lower a captured value to a literal, or to a constant at the top of the generated file."""
        value, text = ref.value, literal(ref.value)
        if isinstance(value, np.generic) and value.dtype.name in HALVES:
            # Numba cannot type a captured float16, so convert a captured float at run time.
            plain = self.lower_referent(referent(float(value)), name, node)
            return ast.copy_location(ast.Call(self.dtype(value.dtype, node), [plain], []), node)
        if text is None:
            return self.of_object(ref, name, node)
        # Numba evaluates operators on literals as Python does, but on a captured bool by its own rules:
        # ~True is -2, and ~CAPTURED is False.
        if type(value) in (str, type(None)) or type(value) is bool and not hasattr(node, "is_operand"):
            return ast.copy_location(ast.Constant(value), node)
        return self.as_name(self.module.constant(name, text), node)

    def of_builtin(self, ref, name, node):
        """Lower a Python builtin. It keeps its name."""
        self.module.prints |= ref.name == "print"
        return self.as_name(ref.name, node)

    def of_device(self, ref, name, node):
        """Lower a device function used as a value."""
        device = self.device(ref.function)
        if device.needs:
            raise self.cannot_lower(
                f"{name} is used as a value, and depends on the thread that calls it", node
            )
        return self.as_name(device.name, node)

    def of_object(self, ref, name, node):
        """Lower a module, an enum member, a global array, or a function of math or numpy."""
        value, home = ref.value, getattr(ref.value, "__module__", None)
        own = getattr(value, "__name__", name)
        if isinstance(value, enum.Enum):
            return self.lower_referent(referent(value.value), name, node)
        if isinstance(value, ModuleType) and value.__name__ in MODULES:
            return self.as_name(MODULES[value.__name__], node)
        # Only functions of libdevice without an entry in sim.isa reach this method.
        if home == "numba.cuda.libdevice":
            raise self.cannot_lower(f"libdevice.{own} has no compiled form", node)
        if home in MODULES or isinstance(value, np.ufunc):
            module = self.as_name(MODULES.get(home, "np"), node)
            return ast.copy_location(ast.Attribute(module, own, ast.Load()), node)
        if host_array(value, "a global array") is not None:
            return self.as_name(self.module.array(value, name), node)
        raise self.cannot_lower(f"{ast.unparse(node)} has no compiled form", node)

    # --- types ----------------------------------------------------------------------------------------------

    def dtype(self, dtype, node):
        """Return the name of the function that converts a number to a dtype."""
        if not is_number(dtype):
            raise self.cannot_lower(f"{dtype} is not a numeric type", node)
        return self.as_name(self.module.library(in_text(f"numpy.{dtype.name}")), node)

    def dtype_given(self, node):
        """Return the dtype of `x` for an expression `x.dtype`, where `x` is an array parameter of the kernel.
        Return None for any other expression."""
        is_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        is_dtype = is_name and node.attr == "dtype"
        of_kernel = self.source.function is self.module.kernel
        return self.module.dtypes.get(node.value.id) if is_dtype and of_kernel else None
