"""A kernel's syntax tree with each access and loop back-edge numbered, and each operator that Numba types differently made a call.

`a[i, j]` becomes `load2(a, i, j, 17)`, `a[i] = v` becomes `store1(a, i, v, 18)`, `while` bodies begin with `tick(19)`, `x * y` becomes `mul(x, y)` unless
the kinds say that Python agrees with Numba, and a literal 0.5 becomes a numpy float64. Line numbers stay the file's.
"""
import ast
import copy
import itertools
from math import prod

import numpy as np

from sim.errors import LaunchError
from sim.events import SITE_SHIFT, SITES, Site
from sim.frontend.kinds import ANY, FLOAT, ArrayKind, bits
from sim.frontend.source import MISSING, path
from sim.memory.array import FromEnd

PREFIX = "__sim_"  # of every name that the rewritten kernel gets from us
OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "power",
             ast.LShift: "lshift", ast.RShift: "rshift", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}
COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
COUNTING = ("clz", "popc")
MAX_INDICES = 5


def element_strides(array, kind):
    """For each axis of the array called `array`, the stride in elements, as a number where the text tells it."""
    strides = [prod(kind.shape[axis + 1:]) if kind.shape else f"{array}.s{axis}" for axis in range(kind.rank)]
    return [*strides[:-1], 1 if kind.rowwise else strides[-1]]


INLINED_STORE = """
if {{inside}}:
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
    """Rewrites one function, for a launch whose accesses are `logged`, and whose branches are `watched`, or not. `constants` collects the names that stand for numpy constants."""

    def __init__(self, function_name, first_line, text, kinds, aliases, unassigned, logged, watched):
        self.function_name, self.first_line, self.text = function_name, first_line, text
        self.unassigned = unassigned  # ids of the Names whose variable may have no value yet
        self.kinds, self.aliases, self.logged, self.watched = kinds, aliases, logged, watched
        self.constants, self.temporaries = {}, 0

    # --- building blocks --------------------------------------------------------------------------------------------------

    def name(self, text, node, context=None):
        return ast.copy_location(ast.Name(PREFIX + text, context or ast.Load()), node)

    def call(self, function, arguments, node):
        return ast.copy_location(ast.Call(self.name(function, node), arguments, []), node)

    def site(self, kind, node):
        """A constant: the number of the site at `node`."""
        line = self.text[node.lineno].strip() if node.lineno in self.text else ""
        number = SITES.add(Site(kind, self.function_name, node.lineno - self.first_line + 1, node.col_offset, line))
        return ast.copy_location(ast.Constant(number), node)

    def temporary(self, node):
        self.temporaries += 1
        return self.name(f"t{self.temporaries}", node).id

    # --- numbers ----------------------------------------------------------------------------------------------------------

    def visit_Constant(self, node):
        if type(node.value) not in (float, complex):
            return node
        return self.constant(np.float64(node.value) if type(node.value) is float else np.complex128(node.value), node)

    def constant(self, value, node):
        name = self.name(f"c{len(self.constants)}", node)
        self.constants[name.id] = value
        return name

    def visit_Name(self, node):
        """A name imported from numba.cuda whose value changes from thread to thread becomes an attribute."""
        if not isinstance(node.ctx, ast.Load):
            return node
        if node.id in self.aliases:
            return ast.copy_location(ast.Attribute(self.name("cuda", node), self.aliases[node.id], ast.Load()), node)
        if id(node) not in self.unassigned:
            return node
        zero = self.constant(np.float32(0) if self.kinds.of(node) == FLOAT else 0, node)
        otherwise = self.call("unassigned", [ast.Constant(node.id), zero, self.site("load", node)], node)
        return ast.copy_location(ast.IfExp(ast.Compare(node, [ast.IsNot()], [self.name("unset", node)]), node, otherwise), node)

    def visit_BinOp(self, node):
        plain = self.kinds.plain(node.op, node.left, node.right)
        operator = OPERATORS.get(type(node.op))
        self.generic_visit(node)
        return node if plain or operator is None else self.call(operator, [node.left, node.right], node)

    def visit_Compare(self, node):
        """Numba compares an int64 with a uint64, or with a float32, as float64; Python does not."""
        parts = [node.left, *node.comparators]
        if any(type(sign) not in COMPARISONS for sign in node.ops) or all(self.kinds.alike(a, b) for a, b in itertools.pairwise(parts)):
            return self.generic_visit(node)
        lefts, rights = [self.visit(node.left)], []
        for part in parts[1:-1]:
            held = ast.copy_location(ast.Name(self.temporary(part), ast.Store()), part)
            rights.append(ast.copy_location(ast.NamedExpr(held, self.visit(part)), part))
            lefts.append(ast.copy_location(ast.Name(held.id, ast.Load()), part))
        rights.append(self.visit(parts[-1]))
        pairs = [self.call(COMPARISONS[type(sign)], [left, right], node) for sign, left, right in zip(node.ops, lefts, rights)]
        return pairs[0] if len(pairs) == 1 else ast.copy_location(ast.BoolOp(ast.And(), pairs), node)

    def visit_UnaryOp(self, node):
        kind, width = self.kinds.of(node.operand), self.kinds.width(node.operand)
        plain = isinstance(kind, int) or kind == "float" and not isinstance(node.op, ast.Invert)
        wraps = isinstance(node.op, ast.USub) and width and not (bits(kind) and kind < width - 1)
        self.generic_visit(node)
        if wraps:  # minus the lowest integer is itself, in the operand's width
            return self.call("neg", [node.operand, ast.copy_location(ast.Constant(width), node)], node)
        return node if plain or isinstance(node.op, ast.Not) else self.call(UNARY[type(node.op)], [node.operand], node)

    def visit_Call(self, node):
        """`cuda.clz`, `cuda.popc` and `abs` work in the width of their operand's type, which an int has lost: `clz(a[i])` becomes `clz(a[i], 32)`."""
        if path(node.func).endswith((".shared.array", ".local.array")):
            self.check_shape(node)
        called = self.kinds.names.resolve(node.func)
        counts = getattr(called, "__name__", "") in COUNTING and getattr(called, "__module__", "").startswith("numba.cuda")
        counts = counts or called is MISSING and path(node.func) == "abs" and "abs" not in self.kinds.names.local
        width = self.kinds.width(node.args[0]) if counts and len(node.args) == 1 else None
        self.generic_visit(node)
        if width:
            node.args.append(ast.copy_location(ast.Constant(width), node))
        return node

    def check_shape(self, node):
        """A declared array's shape consists of numbers and of names: what is computed from names Numba does not take for a constant."""
        given = node.args[:1] or [keyword.value for keyword in node.keywords if keyword.arg == "shape"]
        for part in [part for shape in given for part in ast.walk(shape)]:
            computed = isinstance(part, (ast.BinOp, ast.UnaryOp, ast.Call, ast.IfExp)) or isinstance(part, ast.Attribute) and part.attr == "shape"
            if computed and any(isinstance(name, ast.Name) for name in ast.walk(part)):
                raise LaunchError(f"{ast.unparse(part)} in the shape of a declared array is no constant for Numba: {self.function_name} line "
                                  f"{node.lineno - self.first_line + 1}  {self.text.get(node.lineno, '').strip()}\n"
                                  "  wanted numbers, or names of numbers that stand outside the kernel: give the result such a name there, WIDTH = TILE + 1")

    # --- accesses ---------------------------------------------------------------------------------------------------------

    def indices(self, node):
        """The index expressions of a Subscript, or None if it is a slice, a shape's element, or otherwise not an element access."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        unusual = any(isinstance(part, (ast.Slice, ast.Starred)) or isinstance(part, ast.Constant) and part.value is Ellipsis for part in parts)
        of_shape = isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides")
        return None if unusual or of_shape or not 1 <= len(parts) <= MAX_INDICES else [*map(self.counted_from_the_end, parts)]

    def counted_from_the_end(self, index):
        if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and isinstance(index.operand, ast.Constant) and type(index.operand.value) is int:
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
        """The kind of the array of `rank` dimensions that the variable `node` surely holds; ANY where it may; None where it does not."""
        if not isinstance(node, ast.Name) or id(node) in self.unassigned or node.id in self.aliases:
            return None
        kind = self.kinds.of(node)
        return kind if kind == ANY or isinstance(kind, ArrayKind) and kind.rank == rank else None

    def repeatable(self, node):
        """Whether evaluating `node` twice costs little and changes nothing: names, constants and plain sums and products of them."""
        if isinstance(node, ast.BinOp):
            return self.kinds.plain(node.op, node.left, node.right) and self.repeatable(node.left) and self.repeatable(node.right)
        if isinstance(node, ast.Name):
            return node.id not in self.aliases and id(node) not in self.unassigned
        return isinstance(node, ast.Constant) and type(node.value) is int

    def inlined(self, target, indices, site, kind, text):
        """Statements: `text` with `inside`, whether the indices are, and `flat`, which element that is, in place of a call of an accessor: two and a half times
        as fast, and most of what a kernel does is load and store. Where the indices are inside, the access is logged."""
        array, firsts, names = target.id, [], []
        for index in indices:
            own = ast.unparse(index)
            name = own if isinstance(index, (ast.Name, ast.Constant)) else self.temporary(target)
            names.append(name)
            firsts.append(own if name == own else f"({name} := {own})")
        rank, surely = len(indices), kind != ANY
        sizes = surely and kind.shape or [f"{array}.n{axis}" for axis in range(rank)]
        strides = element_strides(array, kind) if surely else [f"{array}.s{axis}" for axis in range(rank)]
        inside = " and ".join([*([] if surely else [f"{PREFIX}type({array}) is {PREFIX}Array{rank}"]), *(
            f"0 <= {first} < {size}" if bits(self.kinds.of(index)) else f"{PREFIX}type({first}) is {PREFIX}int and 0 <= {name} < {size}"
            for index, first, name, size in zip(indices, firsts, names, sizes))])
        flat = " + ".join(name if stride == 1 else f"{name} * {stride}" for name, stride in zip(names, strides))
        if self.logged:
            held = self.temporary(target)
            offset = f"({held} := {flat})" + (f" * {kind.itemsize}" if surely else f" << {array}.shift")
            inside, flat = f"{inside} and {PREFIX}log({site << SITE_SHIFT} + {array}.code + ({offset})) is None", held
        arguments = ", ".join([array, *map(ast.unparse, indices)])
        statements = ast.parse(text.format(inside=inside, flat=flat, array=array, rank=rank, arguments=arguments, site=site, PREFIX=PREFIX)).body
        for part in [part for statement in statements for part in ast.walk(statement)]:
            ast.copy_location(part, target)
        return statements

    def inline_load(self, target, indices, site, kind):
        return self.inlined(target, indices, site, kind, "{array}.data[{flat}] if {inside} else {PREFIX}load{rank}({arguments}, {site})")[0].value

    def store(self, target, value):
        """The statements that store `value` (an expression already rewritten) where the Subscript `target` says."""
        indices = self.indices(target)
        if indices is None:
            target = self.generic_visit(target)
            return [ast.copy_location(ast.Assign([target], value), target)]
        kind = self.kind_of_array(target.value, len(indices))
        if kind is not None and all(map(self.repeatable, indices)):
            held = self.temporary(target)
            stored = self.inlined(target.value, indices, self.site("store", target).value, kind, INLINED_STORE.format(value=held, note=NOTE_VALUE.format(value=held) if self.logged else ""))
            return [ast.copy_location(ast.Assign([ast.Name(held, ast.Store())], value), target), *stored]
        arguments = [self.visit(target.value), *map(self.visit, indices), value, self.site("store", target)]
        return [ast.copy_location(ast.Expr(self.call(f"store{len(indices)}", arguments, target)), target)]

    def visit_Assign(self, node):
        if not any(isinstance(part, ast.Subscript) for target in node.targets for part in ast.walk(target)):
            return self.generic_visit(node)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            return self.store(node.targets[0], self.visit(node.value))
        held = self.temporary(node)
        statements = [ast.Assign([ast.Name(held, ast.Store())], self.visit(node.value))]
        for target in node.targets:
            statements += self.unpack(target, ast.Name(held, ast.Load()))
        return [ast.copy_location(statement, node) for statement in statements]

    def unpack(self, target, value):
        """Statements that assign `value` to `target`, in which Subscripts may stand anywhere in a tuple."""
        if isinstance(target, ast.Subscript):
            return self.store(target, ast.copy_location(value, target))
        later = []

        def stand_in(part):
            if isinstance(part, ast.Subscript):
                name = self.temporary(part)
                later.extend(self.store(part, ast.copy_location(ast.Name(name, ast.Load()), part)))
                return ast.Name(name, ast.Store())
            if isinstance(part, (ast.Tuple, ast.List)):
                part.elts = [stand_in(element) for element in part.elts]
            return part

        return [ast.Assign([stand_in(target)], value), *later]

    def visit_AugAssign(self, node):
        operator = OPERATORS.get(type(node.op))
        if not isinstance(node.target, ast.Subscript) or self.indices(node.target) is None or operator is None:
            return self.augment_name(node, operator)
        parts = [node.target.value, *self.indices(node.target)]
        held = [part if isinstance(part, (ast.Name, ast.Constant)) else None for part in parts]
        statements = []
        for position, part in enumerate(parts):
            if held[position] is None:
                name = self.temporary(part)
                statements.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], self.visit(part)), node))
                held[position] = ast.copy_location(ast.Name(name, ast.Load()), part)
        plain = self.kinds.plain(node.op, node.target, node.value)
        element = held[1] if len(held) == 2 else ast.Tuple(held[1:], ast.Load())
        place = [ast.copy_location(ast.Subscript(copy.copy(held[0]), element, context), node.target) for context in (ast.Load(), ast.Store())]
        self.unassigned |= {id(part.value) for part in place} if id(held[0]) in self.unassigned else set()
        value, old = self.visit(node.value), self.visit(place[0])
        new = ast.copy_location(ast.BinOp(old, node.op, value), node) if plain else self.call(operator, [old, value], node)
        return [*statements, *self.store(place[1], new)]

    def augment_name(self, node, operator):
        """`x += y` on a variable."""
        once = id(node.target) not in self.unassigned and (isinstance(node.target, ast.Subscript) or self.kinds.plain(node.op, node.target, node.value))
        if operator is None or once:
            return self.generic_visit(node)
        old = copy.deepcopy(node.target)
        old.ctx = ast.Load()
        self.unassigned |= {id(old)} if id(node.target) in self.unassigned else set()
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.call(operator, [self.visit(old), self.visit(node.value)], node)), node)

    # --- branches ---------------------------------------------------------------------------------------------------------

    def visit_If(self, node):
        self.generic_visit(node)
        if self.watched:
            node.test = self.call("branch", [node.test, self.site("branch", node.test)], node.test)
        return node

    visit_IfExp = visit_If

    # --- loops ------------------------------------------------------------------------------------------------------------

    def visit_While(self, node):
        tick = ast.copy_location(ast.Expr(self.call("tick", [self.site("loop", node)], node)), node)
        self.visit_If(node)
        node.body.insert(0, tick)
        return node
