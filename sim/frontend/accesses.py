"""Loads and stores, rewritten for the interpreter: `a[i, j]` becomes `load2(a, i, j, 17)`, and `a[i] = v`
becomes `store1(a, i, v, 18)`. The last argument is the number of the access's site.

Where the types of array and indices are known, the access is written out in place of the call, because a call
takes two and a half times as long.
"""

import ast
from math import prod

from sim.events import LOAD, SITE_SHIFT, SITES, STORE
from sim.frontend.loop_counts import loops_to_count
from sim.frontend.resolve import GEOMETRY, referent_of
from sim.frontend.tree import from_end, indices_of, is_of_shape
from sim.frontend.types import ANY, ArrayType, Number, Record, View, bits
from sim.memory.indices import FromEnd

PREFIX = "__sim_"  # begins every name that the rewriter adds to a kernel
MAX_INDICES = 5


def element_strides(array, type_):
    """Return the stride of each axis of the array called `array`, in elements: an int if the types
    determine it, otherwise an expression."""
    strides = [
        prod(type_.shape[axis + 1 :]) if type_.shape else f"{array}.s{axis}" for axis in range(type_.rank)
    ]
    return [*strides[:-1], 1 if type_.rowwise else strides[-1]]


INLINED_LOAD = "{array}.data[{flat}] if {inside} else {PREFIX}load{rank}({arguments}, {site})"
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


class Accesses(ast.NodeTransformer):
    """Prints the accesses of one Source.

    enabled: what the observers of the launch listen to; accesses that nobody listens to are not logged.
    constants: collects {name in the rewritten text: numpy constant}.
    """

    def __init__(self, source, types, enabled):
        self.source, self.types, self.enabled = source, types, enabled
        self.unassigned = set()  # ids of the Names that may be read before an assignment
        self.constants, self.calls, self.makers, self.temporaries = {}, {}, {}, 0
        self.counting = loops_to_count(source)

    # --- building blocks ------------------------------------------------------------------------------------

    def name(self, text, node, context=None):
        return ast.copy_location(ast.Name(PREFIX + text, context or ast.Load()), node)

    def call(self, function, arguments, node):
        return ast.copy_location(ast.Call(self.name(function, node), arguments, []), node)

    def site(self, action, node):
        """Return a constant node: the number of the site at `node`."""
        return ast.copy_location(ast.Constant(SITES.add(self.source.site(action, node))), node)

    def temporary(self, node):
        self.temporaries += 1
        return self.name(f"t{self.temporaries}", node).id

    def constant(self, value, node):
        name = self.name(f"c{len(self.constants)}", node)
        self.constants[name.id] = value
        return name

    # --- subscripts -----------------------------------------------------------------------------------------

    def indices(self, node):
        """Return the index expressions of a Subscript, or None if it is not an access to one element."""
        parts = indices_of(node)
        unusual = any(
            isinstance(part, (ast.Slice, ast.Starred)) or getattr(part, "value", None) is Ellipsis
            for part in parts
        )
        if unusual or is_of_shape(node) or not 1 <= len(parts) <= MAX_INDICES:
            return None
        return [self.constant(FromEnd(-back), part) if (back := from_end(part)) else part for part in parts]

    def join_subscripts(self, node):
        """Return `a[i][j]` as `a[i, j]` if all the indices together select one element of the array `a`."""
        owner, parts = node.value, indices_of(node)
        while isinstance(owner, ast.Subscript) and isinstance(self.types.of(owner.value), ArrayType):
            owner, parts = owner.value, [*indices_of(owner), *parts]
        type_ = self.types.of(owner)
        whole = isinstance(type_, ArrayType) and len(parts) == type_.rank
        if owner is node.value or not whole or not all(isinstance(self.types.of(i), Number) for i in parts):
            return node
        index = ast.copy_location(ast.Tuple(parts, ast.Load()), node)
        return ast.copy_location(ast.Subscript(owner, index, node.ctx), node)

    def visit_Subscript(self, node):
        node = self.join_subscripts(node)
        indices = self.indices(node)
        if is_of_shape(node) or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        site = self.site("load", node)
        if indices is None or isinstance(self.types.of(node.value), Record):
            return self.call("load_any", [*self.generic_operands(node), site], node)
        type_ = self.array_type(node.value, len(indices))
        if type_ is not None and all(map(self.repeatable, indices)):
            return self.inline(node.value, indices, site.value, type_, INLINED_LOAD)[0].value
        arguments = [self.visit(node.value), *map(self.visit, indices), site]
        return self.call(f"load{len(indices)}", arguments, node)

    def generic_operands(self, node):
        """Return the operands of load_any and store_any for a Subscript or a record's attribute: the array
        or record, and a tuple of indices."""
        parts = [ast.Constant(node.attr)] if isinstance(node, ast.Attribute) else indices_of(node)
        index = ast.Tuple([self.visit(part) for part in parts], ast.Load())
        return self.visit(node.value), ast.copy_location(index, node)

    def visit_Attribute(self, node):
        """Rewrite the load of a record's field."""
        if not isinstance(node.ctx, ast.Load) or not isinstance(self.types.of(node.value), Record):
            return self.generic_visit(node)
        return self.call("load_any", [*self.generic_operands(node), self.site("load", node)], node)

    def visit_Slice(self, node):
        ends = [
            part or ast.copy_location(ast.Constant(None), node)
            for part in (node.lower, node.upper, node.step)
        ]
        return self.call("slice", [*map(self.visit, ends)], node)

    def array_type(self, node, rank):
        """Return the type of the array with `rank` dimensions that `node` certainly holds; ANY if it
        possibly holds one; else None."""
        if (
            not isinstance(node, ast.Name)
            or id(node) in self.unassigned
            or referent_of(node).role == GEOMETRY
        ):
            return None
        type_ = self.types.of(node)
        if isinstance(type_, View):
            type_ = ANY
        return type_ if type_ == ANY or isinstance(type_, ArrayType) and type_.rank == rank else None

    def repeatable(self, node):
        """Return whether `node` may be evaluated twice at little cost: names, constants, plain sums and
        products."""
        if isinstance(node, ast.BinOp):
            parts = node.left, node.right
            return self.types.plain(node.op, *parts) and all(map(self.repeatable, parts))
        if isinstance(node, ast.Name):
            return referent_of(node).role != GEOMETRY and id(node) not in self.unassigned
        return isinstance(node, ast.Constant) and type(node.value) is int

    def inline(self, target, indices, site, type_, text):
        """Return statements that perform an access in place, without calling an accessor.

        text: the template, with `inside` for the test that the indices are in bounds, and `flat` for the
        position of the element. The access is logged if the indices are in bounds. If they are not, the
        accessor is called, and it reports the error.
        """
        conditions, flat = self.position(target, indices, type_)
        more, flat, noted = self.observe(target, site, type_, flat)
        arguments = ", ".join([target.id, *map(ast.unparse, indices)])
        known = {"array": target.id, "rank": len(indices), "arguments": arguments, "site": site}
        inside = " and ".join(conditions + more) or "True"
        made = ast.parse(text.format(inside=inside, flat=flat, noted=noted, PREFIX=PREFIX, **known))
        for part in ast.walk(made):
            ast.copy_location(part, target)
        return made.body

    def position(self, target, indices, type_):
        """Return, as text, the conditions that the indices have to satisfy, and the position of the
        element in the array."""
        array, rank, surely = target.id, len(indices), type_ != ANY
        sizes = (surely and type_.shape) or [f"{array}.n{axis}" for axis in range(rank)]
        strides = element_strides(array, type_) if surely else [f"{array}.s{axis}" for axis in range(rank)]
        conditions = [] if surely else [f"{PREFIX}type({array}) is {PREFIX}Array{rank}"]
        terms = []
        for index, size, stride in zip(indices, sizes, strides):
            back = self.constants.get(getattr(index, "id", None))
            from_end = type(back) is FromEnd
            own = name = f"{size} - {-back}" if from_end else self.index_text(index)
            bounds = ["0 <= {first}"] if from_end else self.bounds_conditions(index, size)
            if from_end or not isinstance(index, (ast.Name, ast.Constant)):
                name = self.temporary(target) if bounds else f"({own})"
            first = own if name == own else f"({name} := {own})"
            conditions += [question.format(first=first, name=name) for question in bounds]
            terms.append(name if stride == 1 else f"{name} * {stride}")
        return conditions, " + ".join(terms)

    def index_text(self, index):
        """Return an index as text: a literal if its type allows only one value."""
        type_ = self.types.of(index)
        return (
            str(type_.low) if bits(type_) is not None and type_.low == type_.high >= 0 else ast.unparse(index)
        )

    def observe(self, target, site, type_, flat):
        """Return, as text, what observers add to an access: the conditions, the position of the element
        (possibly held in a temporary), and the statement that marks a local element as written."""
        array, logged = target.id, self.logs(type_)
        watched = type_ != ANY and type_.local and self.enabled.unwritten
        if not (logged or watched):
            return [], flat, "pass"
        conditions, held = [], flat if flat.isdecimal() else self.temporary(target)
        first = flat if held == flat else f"({held} := {flat})"
        if watched and site & 3 == LOAD:
            conditions.append(f"{array}.written[{first}] == -1")
            first = held
        if logged:
            offset = f"({first} << {array}.shift)" if type_ == ANY else f"{first} * {type_.itemsize}"
            word = f"{site << SITE_SHIFT} + {array}.code + {offset}"
            conditions.append(f"{PREFIX}log({word}) is None")
            first = held
        return conditions, held, f"{array}.written[{first}] = -1" if watched and site & 3 == STORE else "pass"

    def logs(self, type_):
        """Return whether accesses to an array of this type are logged."""
        return self.enabled.accesses and (
            self.enabled.local or not (isinstance(type_, ArrayType) and type_.local)
        )

    def bounds_conditions(self, index, size):
        """Return, as text, the conditions under which an index lies in an axis of `size` elements (an int
        or an expression); none if the types prove it."""
        type_ = self.types.of(index)
        if bits(type_) is None:
            return [f"{PREFIX}type({{first}}) is {PREFIX}int and 0 <= {{name}} < {size}"]
        if type_.low < 0:
            return [f"0 <= {{first}} < {size}"]
        return [] if isinstance(size, int) and type_.high < size else [f"{{first}} < {size}"]

    def store(self, target, value):
        """Return the statements that store `value`, which is already rewritten, at the Subscript `target`."""
        field = isinstance(self.types.of(target.value), Record)
        target = target if field else self.join_subscripts(target)
        indices = None if field else self.indices(target)
        if indices is None:
            arguments = [*self.generic_operands(target), value, self.site("store", target)]
            return [ast.copy_location(ast.Expr(self.call("store_any", arguments, target)), target)]
        type_ = self.array_type(target.value, len(indices))
        if type_ is not None and all(map(self.repeatable, indices)):
            held = self.temporary(target)
            note = f"{PREFIX}values({held})" if self.logs(type_) else ""
            text, site = INLINED_STORE.format(value=held, note=note), self.site("store", target).value
            stored = self.inline(target.value, indices, site, type_, text)
            return [ast.copy_location(ast.Assign([ast.Name(held, ast.Store())], value), target), *stored]
        arguments = [self.visit(target.value), *map(self.visit, indices), value, self.site("store", target)]
        return [ast.copy_location(ast.Expr(self.call(f"store{len(indices)}", arguments, target)), target)]

    def visit_Assign(self, node):
        target = node.targets[0]
        field = isinstance(target, ast.Attribute) and isinstance(self.types.of(target.value), Record)
        if field or isinstance(target, ast.Subscript):
            return self.store(node.targets[0], self.visit(node.value))
        return self.generic_visit(node)
