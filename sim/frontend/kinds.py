"""What kind of number each expression of a kernel is, as far as the text tells: which operators can stay Python's own.

Inside a kernel `a * b` must give what Numba gives (see sim.isa.operators), which costs a call. Where both operands are surely integers too small to overflow
int64, or both surely numpy floats, Python and numpy agree with Numba, and the operator stays. A kind is a number of bits (an integer of at
most that magnitude), FLOAT, an ArrayKind, or ANY. The inference is flow-insensitive: a variable's kind is the join over all its assignments, found by
going round until nothing changes; what still grows after a few rounds (a counter, an accumulator) is ANY, which is always right and only slower.
"""
import ast
from dataclasses import dataclass

import numpy as np

from sim.frontend.source import MISSING, Names, path

FLOAT = "float"  # a numpy float16, float32 or float64 scalar
ANY = "any"
NONE = None  # not assigned so far
MOST_BITS = 62

GEOMETRY = {"threadIdx": 10, "blockIdx": 31, "blockDim": 11, "gridDim": 31}
SMALL = {"laneid": 5, "warpsize": 6, "ndim": 4, "size": 40}
LENGTH = 40  # bits of a length or a dimension
FLOAT_MATH = {"exp", "sqrt", "log", "sin", "cos", "tanh", "exp2", "log2", "log10", "pow", "fabs", "erf"}
ADDITIVE, BITWISE = (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr, ast.BitXor)
ROUNDS = 4


@dataclass(frozen=True)
class ArrayKind:
    """An array of `rank` dimensions whose elements, once loaded, are of kind `element`. What else the text tells saves looking it up at each load:
    the constant `shape` of a declared array, and whether the last axis is contiguous (`rowwise`)."""

    element: object
    rank: int
    itemsize: int
    rowwise: bool = True
    shape: tuple | None = None


def bits(kind):
    """Whether `kind` is an integer's, that is, a number of bits."""
    return isinstance(kind, int)


def join(a, b):
    if a == b or b is NONE:
        return a
    if a is NONE:
        return b
    if isinstance(a, ArrayKind) and isinstance(b, ArrayKind) and (a.element, a.rank, a.itemsize) == (b.element, b.rank, b.itemsize):
        return ArrayKind(a.element, a.rank, a.itemsize, a.rowwise and b.rowwise)
    return max(a, b) if bits(a) and bits(b) else ANY


def element_kind(dtype):
    """The kind that a load from an array of `dtype` gives."""
    if dtype.kind == "f":
        return FLOAT
    return 31 if dtype == np.int32 else ANY


def kind_of_value(value):
    """The kind of a launch argument, a global or a free variable. Bits are rounded up, so that few specialisations arise."""
    if isinstance(value, (bool, np.bool_, np.int8, np.int16, np.int32)):  # a narrow integer keeps its width, which Python's operators would not drop
        return ANY
    if isinstance(value, (int, np.signedinteger)):
        rounded = -(-int(value).bit_length() // 8) * 8
        return rounded if rounded <= 40 else ANY
    if isinstance(value, (float, np.floating)):
        return FLOAT
    if hasattr(value, "allocation") and value.dtype.names is None and hasattr(value, "data"):  # an array with a fast path
        return ArrayKind(element_kind(value.dtype), value.ndim, value.dtype.itemsize, value.strides[-1] == value.dtype.itemsize)
    return ANY


class Kinds:
    """The kinds of a function's variables and expressions. `parameters` maps parameter names to kinds; `dtype_of` turns what stands where a dtype may stand
    into a numpy dtype or None."""

    def __init__(self, function, tree, parameters, dtype_of):
        self.names, self.dtype_of = Names(function), dtype_of
        self.variables = dict.fromkeys((argument.arg for argument in ast.walk(tree.args) if isinstance(argument, ast.arg)), ANY) | dict(parameters)
        self.assignments = [node for node in ast.walk(tree) if isinstance(
            node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr, ast.FunctionDef, ast.With, ast.Lambda, ast.comprehension))]
        self.rounds, self.changed = 0, True
        while self.changed:
            self.rounds, self.changed = self.rounds + 1, False
            for node in self.assignments:
                self.assign(node)
        self.widths = {}
        self.widths = self.widths_of_variables()

    def bind(self, target, kind):
        if isinstance(target, ast.Name):
            before = self.variables.get(target.id, NONE)
            joined = join(before, kind)
            if joined != before:
                self.variables[target.id] = ANY if self.rounds > ROUNDS else joined
                self.changed = True
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.bind(element, kind)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, ANY)

    def assign(self, node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.bind_value(target, node.value)
        elif isinstance(node, ast.AugAssign):
            self.bind(node.target, self.operation(node.op, self.of(node.target), self.of(node.value)))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            self.bind(node.target, self.of(node.value) if node.value else ANY)
        elif isinstance(node, ast.For):
            self.bind(node.target, self.of_iteration(node.iter))
        elif isinstance(node, ast.comprehension):
            self.bind(node.target, ANY)
        elif isinstance(node, ast.Lambda) or (isinstance(node, ast.FunctionDef) and node is not self.assignments[0]):
            for argument in node.args.args:
                self.bind(ast.Name(argument.arg), ANY)
        elif isinstance(node, ast.With):
            for item in node.items:
                self.bind(item.optional_vars, ANY)

    def bind_value(self, target, value):
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            for left, right in zip(target.elts, value.elts):
                self.bind(left, self.of(right))
        elif isinstance(target, (ast.Tuple, ast.List)):
            geometry = isinstance(value, ast.Call) and path(value.func).split(".")[-1] in ("grid", "gridsize")
            shape = isinstance(value, ast.Attribute) and value.attr == "shape"
            self.bind(target, 42 if geometry else LENGTH if shape else ANY)
        else:
            self.bind(target, self.of(value))

    def of_iteration(self, node):
        """The kind of what a `for` loop over `node` yields."""
        if isinstance(node, ast.Call) and path(node.func) in ("range", "prange") and node.args:
            kinds = [self.of(argument) for argument in node.args]
            return NONE if NONE in kinds else max(kinds) if all(map(bits, kinds)) else ANY
        return ANY

    # --- expressions ------------------------------------------------------------------------------------------------------

    def of(self, node):
        return getattr(self, "of_" + type(node).__name__.lower(), lambda _: ANY)(node)

    def of_constant(self, node):
        return kind_of_value(node.value)

    def of_name(self, node):
        if node.id in self.variables:
            return self.variables[node.id]
        if node.id in self.names.local:
            return NONE
        value = self.names.value(node.id)
        return ANY if value is MISSING or isinstance(value, np.ndarray) else kind_of_value(value)

    def of_attribute(self, node):
        owner = path(node.value).split(".")[-1]
        if node.attr in "xyz" and owner in GEOMETRY:
            return GEOMETRY[owner]
        if node.attr in SMALL:
            return SMALL[node.attr]
        value = self.names.resolve(node)
        return ANY if value is MISSING else kind_of_value(value)

    def of_subscript(self, node):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return LENGTH
        array = self.of(node.value)
        rank = len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else 1
        if array is NONE:
            return NONE
        return array.element if isinstance(array, ArrayKind) and array.rank == rank else ANY

    def of_call(self, node):
        called = path(node.func).split(".")
        if called[-1] == "array" and called[-2:-1] and called[-2] in ("shared", "local"):
            return self.of_declaration(node)
        if called[-1] in ("grid", "gridsize") and is_one(node.args) or called == ["len"]:
            return 42
        if called in (["min"], ["max"]):
            kinds = [self.of(argument) for argument in node.args]
            return kinds[0] if len(set(kinds)) == 1 else max(kinds) if all(map(bits, kinds)) else NONE if NONE in kinds else ANY
        if called[0] == "math" and called[-1] in FLOAT_MATH:
            return FLOAT
        dtype = self.dtype_of(self.names.resolve(node.func))
        return FLOAT if dtype is not None and dtype.kind == "f" else ANY

    def of_declaration(self, node):
        """`cuda.shared.array(shape, dtype)`: the kind of array that it makes."""
        given = dict(zip(("shape", "dtype"), node.args)) | {k.arg: k.value for k in node.keywords}
        dtype = self.dtype_of(self.names.resolve(given["dtype"])) if "dtype" in given else None
        shape = self.constant_shape(given.get("shape"))
        if dtype is None or dtype.names is not None or dtype.hasobject or not shape or 0 in shape:  # (0,): the dynamic bytes, of which there may be none
            return ANY
        return ArrayKind(element_kind(dtype), len(shape), dtype.itemsize, shape=shape)

    def constant_shape(self, node):
        """The shape that `node` spells with constants, as a tuple, or None."""
        if isinstance(node, ast.Tuple):
            sides = [self.constant_shape(element) for element in node.elts]
            return tuple(side[0] for side in sides) if all(side and len(side) == 1 for side in sides) else None
        value = node.value if isinstance(node, ast.Constant) else self.names.resolve(node)
        if isinstance(value, (int, np.integer)):
            value = (value,)
        return tuple(map(int, value)) if isinstance(value, tuple) and all(isinstance(n, (int, np.integer)) for n in value) else None

    def width(self, node):
        """The width in bits of a signed integer that surely is narrower than 64: a load, a conversion, geometry, or a variable that is assigned once, from
        one. Else None."""
        if isinstance(node, ast.Name):
            return self.widths.get(node.id)
        if isinstance(node, ast.Call):
            dtype = self.dtype_of(self.names.resolve(node.func))
            return 8 * dtype.itemsize if dtype is not None and dtype.kind == "i" and dtype.itemsize < 8 else None
        if isinstance(node, ast.Attribute):
            owner = path(node.value).split(".")[-1]
            return 32 if node.attr in "xyz" and owner in GEOMETRY or node.attr in ("laneid", "warpsize") else None
        array = self.of(node.value) if isinstance(node, ast.Subscript) else None
        loaded = isinstance(array, ArrayKind) and array.element in (7, 15, 31) and self.of(node) == array.element
        return array.element + 1 if loaded else None

    def widths_of_variables(self):
        """{name: width} of the variables that always have one width. To be asked before the tree is rewritten."""
        widths = {}
        for target, value in [pair for node in self.assignments for pair in assigned_pairs(node)]:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    widths.setdefault(part.id, set()).add(self.width(value) if part is target and value is not None else None)
        return {name: only for name, (only, *more) in widths.items() if not more}

    def of_ifexp(self, node):
        return join(self.of(node.body), self.of(node.orelse))

    def of_unaryop(self, node):
        return self.of(node.operand) if isinstance(node.op, (ast.USub, ast.UAdd)) else ANY

    def of_binop(self, node):
        return self.operation(node.op, self.of(node.left), self.of(node.right))

    def operation(self, op, left, right):
        """The kind of `left op right`, whichever way it is computed."""
        if NONE in (left, right):
            return NONE
        if not all(k == FLOAT or bits(k) for k in (left, right)):
            return ANY
        if isinstance(op, ast.Div) or FLOAT in (left, right):
            return FLOAT if isinstance(op, (*ADDITIVE, ast.Mult, ast.Div)) else ANY
        grown = (max(left, right) + 1 if isinstance(op, ADDITIVE) else left + right if isinstance(op, ast.Mult)
                 else max(left, right) if isinstance(op, (ast.FloorDiv, ast.Mod, ast.RShift, *BITWISE)) else MOST_BITS + 1)
        return grown if grown <= MOST_BITS else ANY

    def alike(self, left, right):
        """Whether Python compares these two expressions as Numba does."""
        kinds = {FLOAT if self.of(node) == FLOAT else bits(self.of(node)) for node in (left, right)}
        return len(kinds) == 1 and False not in kinds or is_none(left) or is_none(right)

    def plain(self, op, left, right):
        """Whether Python's own operator gives Numba's result on these two expressions, without a call and without raising."""
        a, b = self.of(left), self.of(right)
        if a == b == FLOAT:
            return isinstance(op, (*ADDITIVE, ast.Mult, ast.Div))
        if not bits(a) or not bits(b) or not bits(self.operation(op, a, b)):
            return False
        if isinstance(op, (ast.FloorDiv, ast.Mod, ast.RShift)):
            return isinstance(right, ast.Constant) and right.value > 0
        return not isinstance(op, ast.Div)


def assigned_pairs(node):
    """(target, expression) of what an assignment, a `for` or a `with` assigns; (target, None) where no expression has just that value."""
    value = node.value if isinstance(node, ast.Assign) else None
    for target in getattr(node, "targets", None) or [getattr(node, "target", None) or ast.Tuple([])]:
        alike = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
        yield from zip(target.elts, value.elts) if alike else [(target, value)]


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def is_one(args):
    return len(args) == 1 and isinstance(args[0], ast.Constant) and args[0].value == 1
