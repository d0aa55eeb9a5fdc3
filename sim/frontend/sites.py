"""A kernel's syntax tree with each access and loop back-edge numbered, and each operator that Numba types
differently made a call.

`a[i, j]` becomes `load2(a, i, j, 17)`, `a[i] = v` becomes `store1(a, i, v, 18)`, `while` bodies begin with
`tick(19)`, `x * y` becomes `mul(x, y)` unless the types say that Python agrees with Numba, and a literal 0.5
becomes a numpy float64. Line numbers stay the file's.
"""

import ast
import itertools
from math import prod

import numpy as np

from sim.events import LOAD, SITES, STORE
from sim.frontend.bases import Bases, word
from sim.frontend.names import is_number
from sim.frontend.resolve import GEOMETRY, builtin_called, stands_for
from sim.frontend.types import ANY, ArrayType, Number, bits, is_float, join
from sim.isa.conversions import cast
from sim.isa.promotion import SIGNED
from sim.memory.array import FromEnd

PREFIX = "__sim_"  # of every name that the rewritten kernel gets from us
OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "power",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}
COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
BY_WIDTH = ("clz", "popc", "abs")  # whose result hangs on the width of an integer
NARROW = SIGNED - {int}
SHORT = (np.int8, np.int16)  # narrow enough to keep a float32 that they meet
MAX_INDICES = 5
UNSET = object()  # what a variable holds to which nothing has been assigned


def held_as(kind):
    """The kind of a Number as the interpreter holds it: a signed integer of 32 bits and more is an int. None
    for what is no Number."""
    return None if not isinstance(kind, Number) else int if kind.kind is np.int32 else kind.kind


def element_strides(array, kind):
    """For each axis of the array called `array`, the stride in elements, as a number where the text tells
    it."""
    strides = [
        prod(kind.shape[axis + 1 :]) if kind.shape else f"{array}.s{axis}" for axis in range(kind.rank)
    ]
    return [*strides[:-1], 1 if kind.rowwise else strides[-1]]


INLINED_STORE = """
if {{inside}}:
    {{noted}}
    {note}
    try:
        {{array}}.cells[{{flat}}] = {value}
    except ({{PREFIX}}TypeError, {{PREFIX}}ValueError, {{PREFIX}}OverflowError):
        {{PREFIX}}convert({{array}}, {{flat}}, {value})
else:
    {{PREFIX}}store{{rank}}({{arguments}}, {value}, {{site}})
"""
NOTE_VALUE = PREFIX + "values({value})"


class Rewriter(ast.NodeTransformer):
    """Prints one Source for fibers, for a launch of which so much is `heard`. `constants` collects the names
    that stand for numpy constants, `calls` those that stand for device functions: {name: (expression, types
    of its parameters)}."""

    def __init__(self, source, types, heard):
        self.source, self.types, self.heard = source, types, heard
        self.unassigned = set()  # ids of the Names whose variable may have no value yet
        self.constants, self.calls, self.temporaries = {}, {}, 0
        self.loops = 0  # how many the node that is visited stands in
        self.bases = Bases(types.versions, PREFIX)

    # --- building blocks ------------------------------------------------------------------------------------

    def name(self, text, node, context=None):
        return ast.copy_location(ast.Name(PREFIX + text, context or ast.Load()), node)

    def call(self, function, arguments, node):
        return ast.copy_location(ast.Call(self.name(function, node), arguments, []), node)

    def site(self, kind, node):
        """A constant: the number of the site at `node`."""
        return ast.copy_location(ast.Constant(SITES.add(self.source.site(kind, node))), node)

    def temporary(self, node):
        self.temporaries += 1
        return self.name(f"t{self.temporaries}", node).id

    # --- numbers --------------------------------------------------------------------------------------------

    def visit_Constant(self, node):
        if type(node.value) not in (float, complex):
            return node
        return self.constant(
            np.float64(node.value) if type(node.value) is float else np.complex128(node.value), node
        )

    def constant(self, value, node):
        name = self.name(f"c{len(self.constants)}", node)
        self.constants[name.id] = value
        return name

    def visit_Name(self, node):
        """A name imported from numba.cuda whose value changes from thread to thread becomes an attribute."""
        if not isinstance(node.ctx, ast.Load):
            return node
        if stands_for(node).name == "laneid":
            return ast.copy_location(ast.Attribute(self.name("cuda", node), "laneid", ast.Load()), node)
        if id(node) not in self.unassigned:
            return node
        kind = self.types.of(node)
        zero = self.constant(kind.kind(0) if isinstance(kind, Number) else 0, node)
        otherwise = self.call(
            "unassigned",
            [ast.Constant(node.version.name if node.version else node.id), zero, self.site("load", node)],
            node,
        )
        return ast.copy_location(
            ast.IfExp(ast.Compare(node, [ast.IsNot()], [self.name("unset", node)]), node, otherwise), node
        )

    def visit_BinOp(self, node):
        plain, kinds = (
            self.types.plain(node.op, node.left, node.right),
            [self.types.of(node.left), self.types.of(node.right)],
        )
        operator = OPERATORS.get(type(node.op))
        self.generic_visit(node)
        if plain or operator is None:
            return node
        return self.call(
            operator,
            [self.sized(part, kind, SHORT) for part, kind in zip((node.left, node.right), kinds)],
            node,
        )

    def visit_Compare(self, node):
        """Numba compares an int64 with a uint64, or with a float32, as float64; Python does not."""
        parts = [node.left, *node.comparators]
        if any(type(sign) not in COMPARISONS for sign in node.ops) or all(
            self.types.alike(a, b) for a, b in itertools.pairwise(parts)
        ):
            return self.generic_visit(node)
        lefts, rights = [self.visit(node.left)], []
        for part in parts[1:-1]:
            held = ast.copy_location(ast.Name(self.temporary(part), ast.Store()), part)
            rights.append(ast.copy_location(ast.NamedExpr(held, self.visit(part)), part))
            lefts.append(ast.copy_location(ast.Name(held.id, ast.Load()), part))
        rights.append(self.visit(parts[-1]))
        pairs = [
            self.call(COMPARISONS[type(sign)], [left, right], node)
            for sign, left, right in zip(node.ops, lefts, rights)
        ]
        return pairs[0] if len(pairs) == 1 else ast.copy_location(ast.BoolOp(ast.And(), pairs), node)

    def visit_UnaryOp(self, node):
        kind = self.types.of(node.operand)
        wide = bits(kind) is not None and (kind.kind is int or kind.bits < 8 * kind.kind(0).itemsize - 1)
        plain = wide or is_float(kind) and not isinstance(node.op, ast.Invert)
        self.generic_visit(node)
        return (
            node
            if plain or isinstance(node.op, ast.Not)
            else self.call(UNARY[type(node.op)], [self.sized(node.operand, kind)], node)
        )

    def sized(self, node, kind, narrow=NARROW):
        """`node`, of this type, as an integer that has kept its width, where Numba's result hangs on it and
        an int has lost it."""
        if not isinstance(kind, Number) or kind.kind not in narrow or kind.bits is None:
            return node
        name = f"{PREFIX}{kind.kind.__name__}"
        self.constants[name] = kind.kind
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [node], []), node)

    def converted(self, node, kind):
        """`node` converted to the type `kind`, a Number."""
        name, convert = f"{PREFIX}to_{kind.__name__}", cast(kind)
        self.constants[name] = lambda value: value if value is UNSET else convert(value)
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [node], []), node)

    def alike(self, parts, kind):
        """The expressions `parts`, of which the program chooses one, as the type `kind` that they share."""
        held = [held_as(self.types.of(part)) for part in parts]
        return [
            (
                self.visit(part)
                if None in (held_as(kind), was) or was is held_as(kind)
                else self.converted(self.visit(part), held_as(kind))
            )
            for part, was in zip(parts, held)
        ]

    def visit_BoolOp(self, node):
        node.values = self.alike(node.values, self.types.of(node))
        return node

    def visit_Return(self, node):
        if node.value is not None:
            (node.value,) = self.alike([node.value], join(self.types.of(node.value), self.types.result()))
        return node

    def visit_Call(self, node):
        """`abs`, `cuda.clz` and the like look at the width of their operand's type, which an int has lost:
        `clz(a[i])` becomes `clz(int32(a[i]))`."""
        called, written = stands_for(node.func), node.func
        kinds, given = [self.types.of(argument) for argument in node.args], self.types.given(node)
        dtype = called.dtype if len(node.args) == 1 else None
        by_width = (called.entry.name if called.entry else called.name).rpartition(".")[2] in BY_WIDTH
        self.generic_visit(node)
        if dtype is not None and is_number(dtype) and not node.keywords:
            node.func = self.name(f"cast_{dtype}", node)
            self.constants[node.func.id] = cast(dtype)
        elif given:
            name = self.name(f"f{len(self.calls)}", node)
            self.calls[name.id], node.func = (written, tuple(given.items())), name
        node.func.referent = called
        node.args = [
            self.sized(argument, kind, NARROW if by_width else SHORT)
            for argument, kind in zip(node.args, kinds)
        ]
        return node

    # --- accesses -------------------------------------------------------------------------------------------

    def indices(self, node):
        """The index expressions of a Subscript, or None if it is a slice, a shape's element, or otherwise not
        an element access."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        unusual = any(
            isinstance(part, (ast.Slice, ast.Starred))
            or isinstance(part, ast.Constant)
            and part.value is Ellipsis
            for part in parts
        )
        of_shape = isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides")
        return (
            None
            if unusual or of_shape or not 1 <= len(parts) <= MAX_INDICES
            else [*map(self.counted_from_the_end, parts)]
        )

    def counted_from_the_end(self, index):
        if (
            isinstance(index, ast.UnaryOp)
            and isinstance(index.op, ast.USub)
            and isinstance(index.operand, ast.Constant)
            and type(index.operand.value) is int
        ):
            return self.constant(FromEnd(-index.operand.value), index)
        return index

    def visit_Subscript(self, node):
        indices = self.indices(node)
        if indices is None or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        site = self.site("load", node)
        kind = self.kind_of_array(node.value, len(indices))
        if kind is not None and all(map(self.repeatable, indices)):
            return self.inline_load(node.value, indices, site.value, kind)
        arguments = [self.visit(node.value), *map(self.visit, indices), site]
        return self.call(f"load{len(indices)}", arguments, node)

    def kind_of_array(self, node, rank):
        """The kind of the array of `rank` dimensions that the variable `node` surely holds; ANY where it may;
        None where it does not."""
        if not isinstance(node, ast.Name) or id(node) in self.unassigned or stands_for(node).kind == GEOMETRY:
            return None
        kind = self.types.of(node)
        return kind if kind == ANY or isinstance(kind, ArrayType) and kind.rank == rank else None

    def repeatable(self, node):
        """Whether evaluating `node` twice costs little and changes nothing: names, constants and plain sums
        and products of them."""
        if isinstance(node, ast.BinOp):
            return (
                self.types.plain(node.op, node.left, node.right)
                and self.repeatable(node.left)
                and self.repeatable(node.right)
            )
        if isinstance(node, ast.Name):
            return stands_for(node).kind != GEOMETRY and id(node) not in self.unassigned
        return isinstance(node, ast.Constant) and type(node.value) is int

    def inlined(self, target, indices, site, kind, text):
        """Statements: `text` with `inside`, whether the indices are, and `flat`, which element that is, in
        place of a call of an accessor: two and a half times as fast, and most of what a kernel does is load
        and store. Where the indices are inside, the access is logged."""
        array, rank, surely = target.id, len(indices), kind != ANY
        sizes = (surely and kind.shape) or [f"{array}.n{axis}" for axis in range(rank)]
        strides = element_strides(array, kind) if surely else [f"{array}.s{axis}" for axis in range(rank)]
        conditions = [] if surely else [f"{PREFIX}type({array}) is {PREFIX}Array{rank}"]
        names = []
        for index, size in zip(indices, sizes):
            own = name = ast.unparse(index)
            asked = self.asked(index, size)
            if not isinstance(index, (ast.Name, ast.Constant)):
                name = self.temporary(target) if asked else f"({own})"
            names.append(name)
            first = own if name == own else f"({name} := {own})"
            conditions += [question.format(first=first, name=name) for question in asked]
        flat = " + ".join(
            name if stride == 1 else f"{name} * {stride}" for name, stride in zip(names, strides)
        )
        noted, logged, watched = "pass", self.logs(kind), surely and kind.local and self.heard.unwritten
        first = flat
        if logged or watched:
            held = self.temporary(target)
            first, flat = f"({held} := {flat})", held
        if watched and site & 3 == LOAD:
            conditions.append(f"{array}.written[{first}] == -1")
            first = flat
        if logged:
            offset = f"{first} * {kind.itemsize}" if surely else f"({first} << {array}.shift)"
            conditions.append(f"{PREFIX}log({self.base(target, site)} + {offset}) is None")
            first = flat
        if watched and site & 3 == STORE:
            noted = f"{array}.written[{first}] = -1"
        arguments = ", ".join([array, *map(ast.unparse, indices)])
        statements = ast.parse(
            text.format(
                inside=" and ".join(conditions) or "True",
                noted=noted,
                flat=flat,
                array=array,
                rank=rank,
                arguments=arguments,
                site=site,
                PREFIX=PREFIX,
            )
        ).body
        for part in [part for statement in statements for part in ast.walk(statement)]:
            ast.copy_location(part, target)
        return statements

    def logs(self, kind):
        """Whether accesses to an array of this type are logged."""
        return self.heard.accesses and (self.heard.local or not (isinstance(kind, ArrayType) and kind.local))

    def base(self, target, site):
        """What an access at `site` to the array `target` adds to its position to log it, as text."""
        once = self.bases.known(target.id) and isinstance(self.types.of(target), ArrayType)
        return self.bases.name(target.id, site) if self.loops and once else word(target.id, site)

    def asked(self, index, size):
        """What there is to ask about an index, for it to be within an axis of so many elements (a number, or
        an expression), as text: nothing where the types tell."""
        kind = self.types.of(index)
        if bits(kind) is None:
            return [f"{PREFIX}type({{first}}) is {PREFIX}int and 0 <= {{name}} < {size}"]
        if kind.low < 0:
            return [f"0 <= {{first}} < {size}"]
        return [] if isinstance(size, int) and kind.high < size else [f"{{first}} < {size}"]

    def inline_load(self, target, indices, site, kind):
        return self.inlined(
            target,
            indices,
            site,
            kind,
            "{array}.data[{flat}] if {inside} else {PREFIX}load{rank}({arguments}, {site})",
        )[0].value

    def store(self, target, value):
        """The statements that store `value` (an expression already rewritten) where the Subscript `target`
        says."""
        indices = self.indices(target)
        if indices is None:
            target = self.generic_visit(target)
            return [ast.copy_location(ast.Assign([target], value), target)]
        kind = self.kind_of_array(target.value, len(indices))
        if kind is not None and all(map(self.repeatable, indices)):
            held = self.temporary(target)
            stored = self.inlined(
                target.value,
                indices,
                self.site("store", target).value,
                kind,
                INLINED_STORE.format(
                    value=held, note=NOTE_VALUE.format(value=held) if self.logs(kind) else ""
                ),
            )
            return [ast.copy_location(ast.Assign([ast.Name(held, ast.Store())], value), target), *stored]
        arguments = [self.visit(target.value), *map(self.visit, indices), value, self.site("store", target)]
        return [ast.copy_location(ast.Expr(self.call(f"store{len(indices)}", arguments, target)), target)]

    def visit_Assign(self, node):
        if isinstance(node.targets[0], ast.Subscript):
            return self.store(node.targets[0], self.visit(node.value))
        return self.generic_visit(node)

    # --- branches -------------------------------------------------------------------------------------------

    def visit_If(self, node):
        self.generic_visit(node)
        if self.heard.branches:
            node.test = self.call("branch", [node.test, self.site("branch", node.test)], node.test)
        return node

    def visit_IfExp(self, node):
        node.body, node.orelse = self.alike([node.body, node.orelse], self.types.of(node))
        node.test, site = self.visit(node.test), self.site("branch", node.test)
        if self.heard.branches:
            node.test = self.call("branch", [node.test, site], node.test)
        return node

    # --- loops ----------------------------------------------------------------------------------------------

    def visit_For(self, node):
        """A `range` gives Python's ints, also where it has only unsigned ends."""
        kind = self.types.of_iteration(node.iter)
        unsigned = (
            isinstance(node.target, ast.Name)
            and isinstance(kind, Number)
            and kind.kind is np.uint64
            and builtin_called(node.iter) == "range"
        )
        self.loops += 1
        self.generic_visit(node)
        self.loops -= 1
        if unsigned:
            node.body.insert(
                0,
                ast.copy_location(
                    ast.Assign(
                        [node.target], self.converted(ast.Name(node.target.id, ast.Load()), np.uint64)
                    ),
                    node,
                ),
            )
        return node

    def visit_While(self, node):
        tick = ast.copy_location(ast.Expr(self.call("tick", [self.site("loop", node)], node)), node)
        self.loops += 1
        self.visit_If(node)
        self.loops -= 1
        node.body.insert(0, tick)
        return node
