"""Names of a kernel in lowered text: constants at its head, parameters, and runtime functions."""

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

FIELDS = "accesses to fields of records are counted by the interpreter"
PLAIN = {*ATTRIBUTES, "dtype"}  # attributes that are never fields of a record


def as_item(target):
    """Return `p["field"]` for `p.field` as the target of an assignment."""
    if not isinstance(target, ast.Attribute):
        return target
    field = ast.copy_location(ast.Constant(target.attr), target)
    return ast.copy_location(ast.Subscript(target.value, field, target.ctx), target)


class Names(ast.NodeTransformer):
    """A printer of the names of one Source. `rename` maps its variables to their new names; `needs`
    collects the names that it needs besides its parameters."""

    def __init__(self, module, source, rename):
        self.module, self.source, self.rename, self.needs = module, source, rename, set()

    def number(self, action, node):
        return ast.Constant(self.module.site(self.source.site(action, node)))

    def cannot_lower(self, what, node):
        return CannotLower(what, self.source.site("call", node))

    def as_name(self, name, node, context=None):
        if name in SPECIAL or name in self.module.arrays or name in self.module.declared:
            self.needs.add(name)
        return ast.copy_location(ast.Name(name, context or ast.Load()), node)

    def call(self, function, arguments, node):
        function = self.as_name(self.module.library(function), node)
        return ast.copy_location(ast.Call(function, arguments, []), node)

    # --- nodes ----------------------------------------------------------------------------------------------

    def visit_Name(self, node):
        found = getattr(node, "referent", None)
        if found is None:  # a name that lowering has already inserted
            return node
        if found.role == VARIABLE:
            return ast.copy_location(ast.Name(self.rename.get(node.id, node.id), node.ctx), node)
        return self.lower_referent(found, node.id, node)

    def visit_arg(self, node):
        node.arg, node.annotation = self.rename.get(node.arg, node.arg), None
        return node

    def visit_Attribute(self, node):
        return self.lower_referent(node.referent, node.attr, node)

    def lower_referent(self, found, name, node):
        """Return the expression for a Referent that the kernel calls `name`."""
        return getattr(self, f"of_{found.role}")(found, name, node)

    # --- one method for each role of a referent -------------------------------------------------------------

    def of_axis(self, found, name, node):
        return ast.copy_location(ast.Attribute(self.as_name(found.name, node), name, node.ctx), node)

    def of_member(self, found, name, node):
        if isinstance(referent_of(node.value).value, ModuleType):
            raise self.cannot_lower(f"{ast.unparse(node)} has no compiled form", node)
        if name == "dtype" and (dtype := self.dtype_given(node)) is not None:
            return self.dtype(dtype, node)
        if not isinstance(node.ctx, ast.Load):
            return self.visit(as_item(node))
        if not self.module.logs or name in PLAIN and not self.module.has_field(name):
            return self.generic_visit(node)
        raise self.cannot_lower(FIELDS, node)

    def of_geometry(self, found, name, node):
        if found.name in GEOMETRY:
            return self.as_name(found.name, node)
        if found.name == "warpsize":
            return ast.copy_location(ast.Constant(32), node)
        return self.call("lane_of", [self.as_name("thread", node)], node)

    def of_function(self, found, name, node):
        if not compiles(found.entry):
            raise self.cannot_lower(
                f"{found.entry.name} has no compiled form; its entry in sim.isa may be given one, native=...",
                node,
            )
        return self.as_name(self.module.library(in_text(found.entry.name)), node)

    def of_dtype(self, found, name, node):
        return self.dtype(found.dtype, node)

    def of_cuda(self, found, name, node):
        if not home_of(f"cuda_{found.name}"):
            raise self.cannot_lower(f"cuda.{found.name} has no compiled form", node)
        return self.as_name(self.module.library(f"cuda_{found.name}"), node)

    def of_constant(self, found, name, node):
        value, text = found.value, literal(found.value)
        if isinstance(value, np.generic) and value.dtype.name in HALVES:
            plain = self.lower_referent(referent(float(value)), name, node)
            return ast.copy_location(ast.Call(self.dtype(value.dtype, node), [plain], []), node)
        if text is None:
            return self.of_object(found, name, node)
        if type(value) in (bool, str, type(None)):
            return ast.copy_location(ast.Constant(value), node)
        return self.as_name(self.module.constant(name, text), node)

    def of_builtin(self, found, name, node):
        """Return a builtin function, or the runtime function that replaces it."""
        self.module.prints |= found.name == "print"
        return self.as_name(found.name, node)

    def of_device(self, found, name, node):
        device = self.device(found.function)
        if device.needs:
            raise self.cannot_lower(f"{name} is passed on as a value and needs to know its thread", node)
        return self.as_name(device.name, node)

    def of_object(self, found, name, node):
        """Return the expression for a module, an array, or a function of a library."""
        value, home = found.value, getattr(found.value, "__module__", None)
        own = getattr(value, "__name__", name)
        if isinstance(value, enum.Enum):
            return self.lower_referent(referent(value.value), name, node)
        if isinstance(value, ModuleType) and value.__name__ in MODULES:
            return self.as_name(MODULES[value.__name__], node)
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
        if not is_number(dtype):
            raise self.cannot_lower(f"{dtype} is no number", node)
        return self.as_name(self.module.library(in_text(f"numpy.{dtype.name}")), node)

    def dtype_given(self, node):
        """Return the dtype for `x.dtype` if x is an array parameter of the kernel, else None."""
        asks = isinstance(node, ast.Attribute) and node.attr == "dtype" and isinstance(node.value, ast.Name)
        of_kernel = self.source.function is self.module.kernel
        return self.module.dtypes.get(node.value.id) if asks and of_kernel else None
