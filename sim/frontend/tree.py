"""A parser of functions into syntax trees that use only a few kinds of statements.

An assignment that loads or stores an array element has exactly one target, and the statements follow Python's
order of evaluation. `a[i] += v` becomes `a[i] = a[i] + v`. `a[i, n], n = v, n + 1` becomes
`part, n_2 = v, n + 1`, `a[i, n] = part`, `n = n_2`. Line numbers and columns still refer to the source file.
"""

import ast
import copy
import dis
import functools
import inspect
import math
import textwrap

from sim.frontend.names import codes_in, names_in

# AST class of an operator -> its name in the `operator` module; its entry in sim.isa is called operator.NAME
COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}
OPERATORS = COMPARISONS | UNARY | BINARY


def tree_of(function):
    """Return the function's FunctionDef without decorators, or None if it has no source (code from exec, a
    lambda, a C function).

    The returned tree has two extra attributes:

        tree.variables: names of the function's variables, including the ones added by Simplify
        tree.lines: {line number: text}
    """
    try:
        lines, start = inspect.getsourcelines(function)
        text = "".join(lines)
        tree = ast.parse(textwrap.dedent(text))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        return None
    ast.increment_lineno(node, max(start, 1) - 1)
    indent_columns(node, len(text) - len(text.lstrip()))
    node.decorator_list, node.returns = [], None
    return simplify(node, function, lines)


def indent_columns(tree, indent):
    """Shift all columns by the indentation that dedent removed, so that they match the file again."""
    for node in all_nodes(tree):
        if hasattr(node, "col_offset"):
            node.col_offset += indent
            node.end_col_offset += indent


def simplify(tree, function, lines):
    """Return the tree with literals folded and assignments simplified."""
    tree = Fold().visit(tree)
    codes = list(codes_in(function.__code__))
    variables = (name for code in codes for name in (*code.co_varnames, *code.co_cellvars))
    simplify = Simplify({*names_in(function.__code__), *variables})
    tree = simplify.visit(tree)
    tree.lines = dict(enumerate(lines, function.__code__.co_firstlineno))
    tree.variables = {*function.__code__.co_varnames, *function.__code__.co_cellvars, *simplify.made}
    return tree


# The fields of AST nodes that are not searched: the context of a name (Load, Store, Del), and fields that
# contain no nodes.
OTHER_FIELDS = {"ctx", "id", "attr", "arg", "kind", "type_comment"}


@functools.cache
def fields_with_nodes(node_class):
    """Return the fields of a class of AST nodes that can contain nodes, without the context of names."""
    fields = () if issubclass(node_class, ast.Constant) else node_class._fields
    return tuple(field for field in fields if field not in OTHER_FIELDS)


def all_nodes(node):
    """Return a node and all nodes below it, level by level, but without the contexts of names.

    This takes a third of the time of the function in `ast`. Lowering calls it hundreds of times per kernel.
    """
    nodes = [node]
    for parent in nodes:
        for field in fields_with_nodes(type(parent)):
            part = getattr(parent, field, None)
            if isinstance(part, ast.AST):
                nodes.append(part)
            elif isinstance(part, list):
                nodes += [item for item in part if isinstance(item, ast.AST)]
    return nodes


def copied(node):
    """Return a copy of a tree. Attributes that are not fields of their nodes keep their values.

    This takes a quarter of the time of `copy.deepcopy`, which also copies such values.
    """
    made = type(node).__new__(type(node))
    vars(made).update(vars(node))
    for field in fields_with_nodes(type(node)):
        part = getattr(node, field, None)
        if isinstance(part, ast.AST):
            setattr(made, field, copied(part))
        elif isinstance(part, list):
            setattr(made, field, [copied(item) if isinstance(item, ast.AST) else item for item in part])
    return made


def indices_of(node):
    """Return the index expressions of a Subscript."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def is_of_shape(node):
    """Return whether a Subscript indexes a `shape` or `strides` attribute."""
    return isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides")


def from_end(index):
    """Return n if the index is the literal -n, which counts from the end of an axis; else None."""
    match index:
        case ast.UnaryOp(ast.USub(), ast.Constant(int(back))):
            return back
    return None


def as_list(result):
    """Return the result of visiting a statement as a list."""
    return result if isinstance(result, list) else [result]


def has(node, *classes):
    """Return whether `node` contains a node of one of these classes."""
    return any(isinstance(part, classes) for part in all_nodes(node))


class Fold(ast.NodeTransformer):
    """Constant folding of operations on literals, with the results of Python's own compiler.

    Numba compiles bytecode, in which `2**64 - 1` is a single uint64, and not an int64 that wrapped around.
    """

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        return self.folded(node) if is_literal(node.left) and is_literal(node.right) else node

    def visit_UnaryOp(self, node):
        """Fold an operator of a literal. Only the minus sign of a negative number remains an operator,
        because Python has no literals for negative numbers."""
        node = self.generic_visit(node)
        return self.folded(node) if is_literal(node.operand) else node

    def folded(self, node):
        """Return the literal that Python's compiler computes for an operation on literals, or the node if
        there is none."""
        code = compile(ast.Expression(node), "literals", "eval")
        if any(done.opname.startswith(("BINARY", "UNARY")) for done in dis.get_instructions(code)):
            # Python's compiler did not fold this operation, because it raises an exception (1 / 0) or has a
            # large result.
            return node
        value = eval(code)
        # Complex, infinite and NaN results have no literal that parses back to the same value.
        if isinstance(value, complex) or isinstance(value, float) and not math.isfinite(value):
            return node
        literal = ast.parse(repr(value), mode="eval").body
        for part in all_nodes(literal):
            ast.copy_location(part, node)
        return literal


def integer_of(node):
    """Return the value of a folded literal integer, such as 5 or -5, or None for any other node."""
    match node:
        case ast.Constant(int(value)) if value is not True and value is not False:
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value))) if value is not True and value is not False:
            return -value
    return None


def is_literal(node):
    """Return whether a node is a numeric literal, optionally signed."""
    match node:
        case ast.Constant(bool() | int() | float()) | ast.UnaryOp(_, ast.Constant(bool() | int() | float())):
            return True
    return False


# field of a Subscript -> name of the temporary for its value, so that `a[f()] += v` calls f() only once
STEMS = {"value": "owner", "slice": "index"}


class Simplify(ast.NodeTransformer):
    """A transformer that splits assignments into simple assignments.

    taken: names that new variables must avoid.
    made: names of the new variables.
    """

    def __init__(self, taken):
        self.taken, self.made = taken, set()

    def fresh(self, stem):
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}_{number}"
        self.taken.add(name)
        self.made.add(name)
        return name

    def evaluate_once(self, node, stem, before):
        """Evaluate `node` only once. Return a function that builds an expression for the value, to be called
        for each use.

        The expression is a copy of `node` if it is a name or a literal. Otherwise `node` is assigned once to
        a new variable, by a statement appended to `before`, and the expression reads that variable.
        """
        if isinstance(node, ast.Tuple):
            parts = [self.evaluate_once(part, stem, before) for part in node.elts]
            return lambda: ast.copy_location(ast.Tuple([part() for part in parts], ast.Load()), node)
        # This is a literal, possibly with a sign.
        if isinstance(getattr(node, "operand", node), ast.Constant):
            return lambda: copy.deepcopy(node)
        name = node.id if isinstance(node, ast.Name) else self.fresh(stem)
        if not isinstance(node, ast.Name):
            before.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return lambda: ast.copy_location(ast.Name(name, ast.Load()), node)

    def visit_AugAssign(self, node):
        target, before = node.target, []
        if isinstance(target, ast.Subscript) and has(target.slice, ast.Slice, ast.Starred):
            return node
        fields = [(field, stem) for field, stem in STEMS.items() if hasattr(target, field)]
        parts = {field: self.evaluate_once(getattr(target, field), stem, before) for field, stem in fields}

        def again(context):
            made = copy.copy(target)
            vars(made).update({field: part() for field, part in parts.items()}, ctx=context())
            return made

        new = ast.copy_location(ast.BinOp(again(ast.Load), node.op, node.value), node)
        return located([*before, ast.Assign([again(ast.Store)], new)], node)

    def visit_AnnAssign(self, node):
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return as_list(self.visit(*located([ast.Assign([node.target], node.value)], node)))

    def visit_Assign(self, node):
        # `a = b = v`: evaluate v once, then assign from left to right.
        target, before = node.targets[0], []
        if len(node.targets) > 1:
            value = self.evaluate_once(node.value, "value", before)
            single = located([ast.Assign([target], value()) for target in node.targets], node)
            return [*located(before, node), *(part for one in single for part in as_list(self.visit(one)))]
        if isinstance(target, ast.Attribute):
            return node
        if isinstance(target, ast.Subscript):
            # Python evaluates the right-hand side before the subscript of the target.
            if has(node.value, ast.Call) and (
                has(target.slice, ast.Call, ast.Subscript) or not isinstance(target.value, ast.Name)
            ):
                node.value = self.evaluate_once(node.value, "value", before)()
            return located([*before, node], node) if before else node
        if isinstance(target, ast.Name) or not has(target, ast.Subscript, ast.Attribute):
            return node
        later = []
        node.targets = [self.put_off(target, later)]
        return located([node, *later], node)

    def put_off(self, target, later):
        """Replace array elements in `target`, and every target after them, by temporaries.

        Append the real assignments to `later`, so that they run from left to right after the whole right-hand
        side has been evaluated.
        """
        if isinstance(target, (ast.Tuple, ast.List)):
            target.elts = [self.put_off(part, later) for part in target.elts]
            return target
        if isinstance(target, ast.Starred) or isinstance(target, ast.Name) and not later:
            return target
        name = self.fresh(target.id if isinstance(target, ast.Name) else "part")
        later.append(ast.Assign([target], ast.Name(name, ast.Load())))
        return ast.Name(name, ast.Store())


def located(statements, node):
    """Copy the position of `node` to each statement that lacks one, and return `statements`."""
    return [ast.fix_missing_locations(ast.copy_location(statement, node)) for statement in statements]


class SplitByType:
    """A renaming of the variables that change their type.

    A variable gets one name for each of its types. Conversions are inserted where versions of different types
    merge.

    type_of(version): returns a key that identifies the type.
    torn: the variables that need several names.
    fresh(name): returns a new name that resembles `name`.
    converted(node, type): returns an expression that converts `node` to the type.
    """

    def __init__(self, statements, versions, type_of, torn, fresh, converted):
        self.versions, self.type_of, self.torn = versions, type_of, torn
        self.fresh, self.converted = fresh, converted
        self.names = {}  # (variable, type) -> name
        if self.torn:
            for version in versions.all:
                self.name(version.settled())
            for node in [part for statement in statements for part in all_nodes(statement)]:
                version = getattr(node, "version", None) if isinstance(node, ast.Name) else None
                if version is not None and version.name in self.torn:
                    node.id = self.name(version.settled())
            insert(statements, self.conversions())

    def name(self, version):
        """Return the name for a version. The first type of a variable keeps the original name."""
        key = version.name, self.type_of(version)
        if version.name in self.torn and key not in self.names:
            first = all(name != version.name for name, _ in self.names)
            self.names[key] = version.name if first else self.fresh(version.name)
        return self.names.get(key, version.name)

    def conversions(self):
        """Return the conversions to insert, {(where, id of a statement or of a list): [statement]}.

        A phi needs a conversion at the end of each incoming path that has another name for the variable.
        """
        added = {}
        for phi in self.versions.phis:
            for (where, node), version in phi.comes_from():
                if version is not None and self.name(version) != self.name(phi):
                    read = ast.Name(self.name(version), ast.Load())
                    target = ast.Name(self.name(phi), ast.Store())
                    target.version, made = phi, ast.Assign([target], self.converted(read, self.type_of(phi)))
                    added.setdefault((where, id(node)), []).append(made)
        return added


def torn_variables(versions, type_of):
    """Return the variables that change type where versions merge. An unknown type (None) does not count as a
    change."""
    pairs = [
        (phi, version) for phi in versions.phis for _, version in phi.comes_from() if version is not None
    ]
    return {phi.name for phi, version in pairs if len({type_of(phi), type_of(version)} - {None}) == 2}


def insert(statements, added):
    """Insert the statements in `added` into `statements` and all nested statement lists, in place.

    added: {("before", id of a statement) or ("end", id of a list): [statement]}.
    """
    before = [(statement, added.get(("before", id(statement)), [])) for statement in statements]
    for statement in statements:
        for part in (getattr(statement, "body", None), getattr(statement, "orelse", None)):
            if isinstance(part, list) and not isinstance(statement, ast.FunctionDef):
                insert(part, added)
    end = added.get(("end", id(statements)), [])
    last = statements[-1] if statements else None
    statements[:] = [part for statement, first in before for part in (*located(first, statement), statement)]
    statements += located(end, last) if last else end
