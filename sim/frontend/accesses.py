"""Loads and stores, rewritten for the interpreter.

`a[i, j]` becomes `load2(a, i, j, 17)`, and `a[i] = v` becomes `store1(a, i, v, 18)`. The last argument is the
number of the access site. If the types of the array and the indices are known, the access is inlined instead,
because a call takes 2.5 times as long.
"""

import ast
from math import prod

from sim.events import LOAD, SITE_SHIFT, SITES, STORE
from sim.frontend.loop_counts import loops_to_count
from sim.frontend.resolve import ATOMIC, GEOMETRY, referent_of
from sim.frontend.tree import all_nodes, from_end, indices_of, is_of_shape
from sim.frontend.types import ANY, ArrayType, Number, Record, View, bits
from sim.memory.indices import FromEnd

PREFIX = "__sim_"  # prefix of every name that the rewriter adds to a kernel
MAX_INDICES = 5


def element_strides(array, type_):
    """Return the strides of the array called `array`, in elements: an int if its type determines the stride,
    otherwise an expression."""
    strides = [
        prod(type_.shape[axis + 1 :]) if type_.shape else f"{array}.s{axis}" for axis in range(type_.rank)
    ]
    return [*strides[:-1], 1 if type_.rowwise else strides[-1]]


# Templates of inlined accesses. If an index is out of bounds, the accessor is called and reports it.
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
    """A rewriter for the loads and stores of one Source.

    enabled: the events to which the launch's observers are subscribed. Other accesses are not logged.
    constants: the rewriter adds {name in the rewritten text: numpy constant} to this dict.
    """

    def __init__(self, source, types, enabled):
        self.source, self.types, self.enabled = source, types, enabled
        self.unassigned = set()  # Ids of Name nodes that may be read before an assignment.
        self.constants, self.calls, self.makers, self.temporaries = {}, {}, {}, 0
        self.counting = loops_to_count(source)
        # the variables that decide how often a loop repeats (sim.frontend.polling.deciding_variables): {id of
        # the loop: variables}, and {number of the loop's site: variables}
        self.deciding, self.deciding_at = {}, {}
        # {id of a loop: its Search}, and {number of the loop's site: its Search}
        self.searches, self.searches_at = {}, {}
        # number of an access site -> the type of the array's elements, and the variable or None
        self.elements = {}
        # (dtype, variable or None) of the views of dynamic shared memory
        self.dynamic = set()
        # numbers of the sites that access an element
        self.accessed = {SITES.add(source.site("atomic", call)) for call in source.calls(ATOMIC)}

    # --- node construction ----------------------------------------------------------------------------------

    def name(self, text, node, context=None):
        return ast.copy_location(ast.Name(PREFIX + text, context or ast.Load()), node)

    def call(self, function, arguments, node):
        return ast.copy_location(ast.Call(self.name(function, node), arguments, []), node)

    def site(self, action, node):
        """Return a constant node with the number of the site at `node`."""
        number = SITES.add(self.source.site(action, node))
        if action in ("load", "store") and isinstance(node, ast.Subscript | ast.Attribute):
            self.accessed.add(number)
            element = getattr(self.types.of(node.value), "element", ANY)
            self.elements[number] = element, getattr(node.value, "id", None)
        return ast.copy_location(ast.Constant(number), node)

    def temporary(self, node):
        """Return the name of a new temporary variable."""
        self.temporaries += 1
        return self.name(f"t{self.temporaries}", node).id

    def constant(self, value, node):
        """Return a new name for a value that cannot be written as a literal."""
        name = self.name(f"c{len(self.constants)}", node)
        self.constants[name.id] = value
        return name

    # --- subscripts -----------------------------------------------------------------------------------------

    def indices(self, node):
        """Return the index expressions of a Subscript, or None if it does not access a single element."""
        parts = indices_of(node)
        unusual = any(
            isinstance(part, (ast.Slice, ast.Starred)) or getattr(part, "value", None) is Ellipsis
            for part in parts
        )
        if unusual or is_of_shape(node) or not 1 <= len(parts) <= MAX_INDICES:
            return None
        return [self.constant(FromEnd(-back), part) if (back := from_end(part)) else part for part in parts]

    def join_subscripts(self, node):
        """Return `a[i][j]` as `a[i, j]` if the combined indices select one element of the array `a`."""
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
        of_tuple = isinstance(self.types.of(node.value), tuple)
        if of_tuple or is_of_shape(node) or not isinstance(node.ctx, ast.Load):
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
        """Return the operands of load_any and store_any for a Subscript or a record field: the array or
        record, and a tuple of indices."""
        parts = [ast.Constant(node.attr)] if isinstance(node, ast.Attribute) else indices_of(node)
        index = ast.Tuple([self.visit(part) for part in parts], ast.Load())
        return self.visit(node.value), ast.copy_location(index, node)

    def visit_Attribute(self, node):
        """Rewrite a load of a record field."""
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
        """Return the ArrayType of `node` if it is certainly an array with `rank` dimensions.

        Return ANY if the type is not certain, so that the inlined code must check it. Return None if the
        access cannot be inlined.
        """
        if (
            not isinstance(node, ast.Name)
            or id(node) in self.unassigned
            or referent_of(node).role == GEOMETRY
        ):
            return None
        type_ = self.types.of(node)
        # The layout of a View is unknown, so the inlined code has to check its class at run time.
        if isinstance(type_, View):
            type_ = ANY
        return type_ if type_ == ANY or isinstance(type_, ArrayType) and type_.rank == rank else None

    def repeatable(self, node):
        """Return whether evaluating `node` twice is cheap and has no side effects: names, constants, plain
        sums and products."""
        if isinstance(node, ast.BinOp):
            parts = node.left, node.right
            return self.types.plain(node.op, *parts) and all(map(self.repeatable, parts))
        if isinstance(node, ast.Name):
            return referent_of(node).role != GEOMETRY and id(node) not in self.unassigned
        return isinstance(node, ast.Constant) and type(node.value) is int

    def inline(self, target, indices, site, type_, text):
        """Return statements that perform an access without calling an accessor.

        text: a template with the fields `inside`, the bounds test, and `flat`, the position of the element.

        The inlined code logs an access in bounds. Otherwise, it calls the accessor, which reports the error.
        """
        conditions, flat = self.position(target, indices, type_)
        more, flat, noted = self.observe(target, site, type_, flat)
        arguments = ", ".join([target.id, *map(ast.unparse, indices)])
        known = {"array": target.id, "rank": len(indices), "arguments": arguments, "site": site}
        inside = " and ".join(conditions + more) or "True"
        made = ast.parse(text.format(inside=inside, flat=flat, noted=noted, PREFIX=PREFIX, **known))
        for part in all_nodes(made):
            ast.copy_location(part, target)
        return made.body

    def position(self, target, indices, type_):
        """Return the bounds conditions on the indices and the position of the element in the array, as
        text."""
        array, rank, surely = target.id, len(indices), type_ != ANY
        sizes = (surely and type_.shape) or [f"{array}.n{axis}" for axis in range(rank)]
        strides = element_strides(array, type_) if surely else [f"{array}.s{axis}" for axis in range(rank)]
        # If the type is uncertain, the access is inlined for the usual class of array, after a check of the
        # class.
        conditions = [] if surely else [f"{PREFIX}type({array}) is {PREFIX}Array{rank}"]
        terms = []
        for index, size, stride in zip(indices, sizes, strides):
            back = self.constants.get(getattr(index, "id", None))
            # A negative literal, which counts from the end, has been replaced by a FromEnd constant.
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
        """Return an index as text: a literal if its interval contains only one value."""
        type_ = self.types.of(index)
        return (
            str(type_.low) if bits(type_) is not None and type_.low == type_.high >= 0 else ast.unparse(index)
        )

    def observe(self, target, site, type_, flat):
        """Return the additions that observers require, as text.

        These are extra conditions, the position of the element (in a temporary if it is an expression), and a
        statement that marks an element of local memory as written.
        """
        array, logged = target.id, self.logs(type_)
        watched = type_ != ANY and type_.local and self.enabled.unwritten
        if not (logged or watched):
            return [], flat, "pass"
        conditions, held = [], flat if flat.isdecimal() else self.temporary(target)
        first = flat if held == flat else f"({held} := {flat})"
        # An unwritten element fails the condition, so the accessor runs and reports the read. The mark -1
        # means that all bytes of the element are written.
        if watched and site & 3 == LOAD:
            conditions.append(f"{array}.written[{first}] == -1")
            first = held
        if logged:
            offset = f"({first} << {array}.shift)" if type_ == ANY else f"{first} * {type_.itemsize}"
            # `log` returns None, so the condition is always true. It serves only for its side effect.
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
        """Return the conditions, as text, under which an index is inside an axis with `size` elements (an int
        or an expression).

        Return an empty list if the types prove that the index is in bounds.
        """
        type_ = self.types.of(index)
        if bits(type_) is None:
            return [f"{PREFIX}type({{first}}) is {PREFIX}int and 0 <= {{name}} < {size}"]
        if type_.low < 0:
            return [f"0 <= {{first}} < {size}"]
        return [] if isinstance(size, int) and type_.high < size else [f"{{first}} < {size}"]

    def store(self, target, value):
        """Return statements that store `value`, an expression already rewritten, to the Subscript
        `target`."""
        field = isinstance(self.types.of(target.value), Record)
        # A field of a record has no subscripts to join.
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
