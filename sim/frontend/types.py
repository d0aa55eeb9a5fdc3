"""The type of each variable and expression of a kernel, as Numba infers it, and the interval in which an
integer lies: from both follows which operators can stay Python's own, and which indices need no check.

A type is a Number (a kind of sim.isa.promotion, and for integers the lowest and the highest value, if known),
an ArrayType, a tuple of types, or ANY. Inference goes round the versions of the variables (sim.frontend.ssa)
until nothing changes. A variable is a Python int for certain where its interval is known; a counter that
still grows after a few rounds has none, which is always right and only slower.
"""

import ast
import functools
import operator
from dataclasses import dataclass, replace

import numpy as np
from ml_dtypes import bfloat16

from sim.frontend.names import MISSING, constant_shape, declared, dtype_or_none, names_in, only_signature
from sim.frontend.resolve import AXIS, bound_arguments, builtin_called, source_of, stands_for
from sim.frontend.ssa import Versions, stored_names, version_of
from sim.isa import operators, promotion
from sim.isa.barriers import VOTES
from sim.isa.promotion import COMPLEX, INTEGRAL, KIND, SIGNED, UNSIGNED
from sim.isa.table import INSTRUCTIONS, WARP_WIDE, Like

ANY = "any"
NONE = "none"  # the type of None
UNKNOWN = None  # not found so far
MOST_BITS = 62
ROUNDS = 4
LENGTH, LONG = 40, 42  # bits of a length or a dimension, and of a position in a grid
GEOMETRY = {
    "threadIdx": (0, 1023),
    "blockIdx": (0, 2**31 - 1),
    "blockDim": (1, 1024),
    "gridDim": (1, 2**31 - 1),
}
ADDITIVE, BITWISE = (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr, ast.BitXor)
RULES = {
    **dict.fromkeys((ast.Add, ast.Sub, ast.Mult), promotion.arithmetic),
    ast.Div: promotion.division,
    **dict.fromkeys((ast.FloorDiv, ast.Mod), promotion.real_division),
    ast.Pow: promotion.exponentiation,
    **dict.fromkeys((ast.LShift, ast.RShift), promotion.shift),
    **dict.fromkeys(BITWISE, promotion.bitwise),
}
UNARY = {ast.USub: "operator.neg", ast.UAdd: "operator.pos", ast.Invert: "operator.invert"}
NUMBER_BUILTINS = {
    "min": operators.minimum,
    "max": operators.maximum,
    "abs": operators.absolute,
    "round": operators.round_,
    "int": operators.int_,
    "float": operators.float_,
    "bool": operators.bool_,
    "complex": operators.complex_,
    "divmod": operators.divmod_,
    "pow": operators.pow_,
    "sum": operators.sum_,
}
EXACT = {  # as Python has them; at the corners of two intervals they are at their lowest and highest
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
PYTHON = (np.float16, np.float32, np.float64)  # floats that Python's operators treat as Numba does


@dataclass(frozen=True)
class Number:
    """With `low` and `high`: a Python int, neither less nor more than these; without: whatever sim.isa has
    for the kind."""

    kind: type
    low: int | None = None
    high: int | None = None

    @property
    def bits(self):
        """Those of the magnitude, if it is known."""
        return None if self.low is None else max(self.high, ~self.low).bit_length()


def signed(kind, bits):
    """A Number of either sign."""
    return Number(kind, -(1 << bits), (1 << bits) - 1)


def natural(kind, bits):
    """A Number that is not negative."""
    return Number(kind, 0, (1 << bits) - 1)


@dataclass(frozen=True)
class ArrayType:
    """An array of `rank` dimensions. What else the text tells saves looking it up at each load: the constant
    `shape` of a declared array, whether the last axis is contiguous (`rowwise`), and whether it is `local`
    memory."""

    element: object
    rank: int
    itemsize: int
    rowwise: bool = True
    shape: tuple | None = None
    local: bool = False


LENGTHS = natural(int, LENGTH)
INT32, INT64, BOOL = signed(np.int32, 31), Number(int), Number(bool)
OF_CUDA = {  # what functions and attributes of cuda give whose type does not hang on their arguments
    "laneid": Number(np.int32, 0, 31),
    "warpsize": Number(np.int32, 32, 32),
    "grid": natural(int, LONG),
    "gridsize": natural(int, LONG),
    "lanemask_lt": Number(np.uint32),
    **{vote.name: INT32 for vote in VOTES},
}


def bits(kind):
    """The bits of an integer that is surely a Python int, else None."""
    return kind.bits if isinstance(kind, Number) else None


def is_float(kind):
    return isinstance(kind, Number) and kind.kind in PYTHON


def join(a, b):
    """The type of a variable that holds now an `a`, now a `b`: Numba's unification."""
    if a == b or b is UNKNOWN:
        return a
    if a is UNKNOWN:
        return b
    if isinstance(a, Number) and isinstance(b, Number):
        kind = unified(a.kind, b.kind)
        return ANY if kind is None else Number(kind, *hull(a, b))
    if (
        isinstance(a, ArrayType)
        and isinstance(b, ArrayType)
        and (a.element, a.rank, a.itemsize, a.local) == (b.element, b.rank, b.itemsize, b.local)
    ):
        return ArrayType(a.element, a.rank, a.itemsize, a.rowwise and b.rowwise, local=a.local)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(map(join, a, b))
    return ANY


def hull(a, b):
    """The interval of a Number that is now `a`, now `b`: the larger one if it holds both, else one whose ends
    are powers of two, so that a counter takes few steps to grow."""
    if None in (a.low, b.low):
        return ()
    ends = low, high = min(a.low, b.low), max(a.high, b.high)
    if ends in ((a.low, a.high), (b.low, b.high)):
        return ends
    return (low and -(1 << (~low).bit_length()) if low < 0 else 0), max((1 << high.bit_length()) - 1, 0)


@functools.cache
def unified(a, b):
    if a is b:
        return a
    if not {a, b} & COMPLEX:
        return promotion.unified(a, b)
    return (
        None
        if bfloat16 in (a, b)
        else KIND[np.promote_types(*(np.int64 if kind is int else kind for kind in (a, b))).type]
    )


def element_type(dtype):
    """The type that a load from an array of `dtype` gives."""
    kind = KIND.get(dtype.type)
    return ANY if kind is None else INT32 if kind is np.int32 else Number(kind)


def type_of_argument(value):
    """The type of a launch argument. Intervals are rounded up, so that few specialisations arise."""
    if isinstance(value, tuple):
        return tuple(map(type_of_argument, value))
    kind = type_of_value(value)
    few = -(-(bits(kind) or 0) // 8) * 8
    if bits(kind) is None:
        return kind
    return Number(int) if few > 40 else natural(int, few) if value >= 0 else signed(int, few)


def type_of_value(value):
    """The type of a constant: a literal, a global or a free variable; and of a launch argument that is no
    integer."""
    if value is None:
        return NONE
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            return Number(np.uint64)
        return Number(int, value, value) if value.bit_length() <= MOST_BITS else Number(int)
    if type(value) in KIND:
        return Number(KIND[type(value)])
    if isinstance(value, tuple):
        return tuple(map(type_of_value, value))
    # an array with a fast path
    if hasattr(value, "allocation") and value.dtype.names is None and hasattr(value, "data"):
        return ArrayType(
            element_type(value.dtype),
            value.ndim,
            value.dtype.itemsize,
            value.strides[-1] == value.dtype.itemsize,
        )
    return ANY


def of_function(entry, given):
    """The type of what a Function of the table gives."""
    if UNKNOWN in given:
        return UNKNOWN
    if len(given) != entry.count or not all(isinstance(kind, Number) for kind in given):
        return ANY
    version = entry.version(*(kind.kind for kind in given))
    if version is None or version.results is None:
        return ANY
    several = isinstance(version.results, tuple)
    found = [of_result(kind, entry.fast) for kind in (version.results if several else (version.results,))]
    return tuple(found) if several else found[0]


def of_result(result, fast):
    """A Number of the type `result`; a signed integer is a Python int, unless a `fast` way may have kept it
    as it came."""
    dtype = np.dtype(result)
    kind = KIND[dtype.type]
    return Number(kind) if fast or kind not in SIGNED - {int} else signed(kind, 8 * dtype.itemsize - 1)


@functools.cache
def probed(function, kinds):
    """The type of what a function of ours gives for numbers of these kinds, by asking it."""
    try:
        with np.errstate(all="ignore"):
            return type_of_result(function(*(kind(1) for kind in kinds)))
    except Exception:  # nothing is known of a function that takes no such numbers
        return ANY


def type_of_result(value):
    if isinstance(value, tuple):
        return tuple(map(type_of_result, value))
    return Number(KIND[type(value)]) if type(value) in KIND else ANY


def operation(op, left, right):
    """The type of `left op right`."""
    if UNKNOWN in (left, right):
        return UNKNOWN
    if not (isinstance(left, Number) and isinstance(right, Number)) or type(op) not in RULES:
        return ANY
    kind = RULES[type(op)](left.kind, right.kind)
    if kind is not int or None in (left.bits, right.bits):
        return ANY if kind is None else Number(kind)
    result = Number(int, *interval(op, left, right))
    return result if result.low is not None and result.bits <= MOST_BITS else Number(int)


def interval(op, a, b):
    """The lowest and the highest result of `op` on two Numbers whose intervals are known; () if that is not
    known."""
    if isinstance(op, BITWISE):
        return bitwise_interval(op, a, b)
    if isinstance(op, ast.Mod):
        most = max(abs(b.low), abs(b.high))
        high = b.high - 1 if b.low > 0 else most
        return (0, min(high, a.high) if a.low >= 0 else high) if b.low > 0 else (-most, most)
    if isinstance(op, ast.FloorDiv) and b.low <= 0:  # i // 0 is 0
        most = max(abs(a.low), abs(a.high))
        return -most, most
    if isinstance(op, ast.RShift) and not 0 <= b.low <= b.high < 64:
        return min(a.low, 0), max(a.high, 0)
    exact = EXACT.get(type(op))
    if exact is None or isinstance(op, ast.LShift) and not 0 <= b.low <= b.high <= MOST_BITS:
        return ()
    corners = [exact(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def bitwise_interval(op, a, b):
    natural_highs = [number.high for number in (a, b) if number.low >= 0]
    if isinstance(op, ast.BitAnd) and natural_highs:
        return 0, min(natural_highs)
    most = 1 << max(a.bits, b.bits)
    return 0 if len(natural_highs) == 2 else -most, most - 1


class Types:
    """The types of the variables and expressions of a Source. `parameters` maps parameter names to types;
    `block` is the launch's, (x, y, z); `results` remembers what device functions return,
    {(function, types): type}."""

    def __init__(self, source, parameters, block=None, results=None):
        self.results, tree = {} if results is None else results, source.tree
        self.geometry = GEOMETRY | (
            {"threadIdx": [(0, n - 1) for n in block], "blockDim": [(n, n) for n in block]} if block else {}
        )
        self.block = block
        named = [part.arg for part in ast.walk(tree.args) if isinstance(part, ast.arg)]
        self.parameters, self.fixed = dict(parameters), set(named) - stored_names(tree.body)
        self.versions = Versions(named, tree.body, lambda node: stands_for(node).value, self.is_none)
        self.found = {}
        rounds, changed = 0, True
        while changed:
            rounds, changed = rounds + 1, False
            for version in self.versions.all:
                before = self.found.get(version)
                after = join(before, self.of_version(version))
                if after != before:
                    self.found[version] = widened(after) if rounds > ROUNDS else after
                    changed = True

    def is_none(self, test):
        """Whether `x is None` holds for an argument, which Numba knows by its type; None for any other
        condition."""
        asks = (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], (ast.Is, ast.IsNot))
            and isinstance(test.comparators[0], ast.Constant)
            and test.comparators[0].value is None
        )
        kind = (
            self.parameters.get(test.left.id, ANY)
            if asks and isinstance(test.left, ast.Name) and test.left.id in self.fixed
            else ANY
        )
        return None if kind == ANY else (kind == NONE) == isinstance(test.ops[0], ast.Is)

    def of_version(self, version):
        if version.same is not None:
            return self.found.get(version.settled())
        if version.incoming is not None:
            return functools.reduce(
                join,
                (self.found.get(other) for _, other in version.comes_from() if other is not None),
                UNKNOWN,
            )
        how, node, positions = version.source
        if how is None:
            return ANY
        found = (
            self.parameters.get(version.name, ANY)
            if how == "parameter"
            else self.of_iteration(node)
            if how == "element"
            else self.of(node)
        )
        for position in positions:
            found = part(found, position)
        return found

    def result(self):
        """The type of what the function returns."""
        returned = [self.of(node.value) if node.value else NONE for node in self.versions.returns] + [
            NONE
        ] * self.versions.falls_through
        return functools.reduce(join, returned, UNKNOWN)

    def of_iteration(self, node):
        """The type of what a `for` loop over `node` yields."""
        name = builtin_called(node)
        if name == "range" and node.args:
            return self.of_range([self.of(argument) for argument in node.args])
        if name == "enumerate":
            count = natural(int, LENGTH) if len(node.args) == 1 else INT64
            return count, self.of_iteration(node.args[0])
        if name == "zip":
            return tuple(map(self.of_iteration, node.args))
        return part(self.of(node), None)

    def of_range(self, given):
        if UNKNOWN in given:
            return UNKNOWN
        if not all(isinstance(kind, Number) and kind.kind in INTEGRAL for kind in given):
            return ANY
        kinds = {kind.kind for kind in given}
        if kinds <= UNSIGNED:
            return Number(np.uint64)
        narrow, known = kinds <= SIGNED - {int}, all(kind.bits is not None for kind in given)
        if not known:
            return INT32 if narrow else INT64
        return Number(np.int32 if narrow else int, *range_interval(*given))

    # --- expressions ----------------------------------------------------------------------------------------

    def of(self, node):
        return getattr(self, "of_" + type(node).__name__.lower(), lambda _: ANY)(node)

    def of_constant(self, node):
        return type_of_value(node.value)

    def of_name(self, node):
        version = version_of(node)
        if version is not None:
            return self.found.get(version)
        value = stands_for(node).value
        return ANY if value is MISSING or isinstance(value, np.ndarray) else type_of_value(value)

    def of_attribute(self, node):
        found = stands_for(node)
        if found.kind == AXIS and node.attr in "xyz":
            return Number(np.int32, *of_axis(self.geometry[found.name], "xyz".index(node.attr)))
        if found.name in OF_CUDA:
            return OF_CUDA[found.name]
        array = self.of(node.value)
        if isinstance(array, ArrayType):
            return {
                "shape": (LENGTHS,) * array.rank,
                "strides": (signed(int, LENGTH),) * array.rank,
                "size": LENGTHS,
                "ndim": natural(int, 4),
                "T": replace(array, rowwise=False, shape=None),
                "itemsize": natural(int, 8),
            }.get(node.attr, ANY)
        if node.attr in ("shape", "ndim", "size"):
            return {"ndim": natural(int, 4), "size": LENGTHS}.get(node.attr, ANY)
        return ANY if found.value is MISSING else type_of_value(found.value)

    def of_subscript(self, node):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return LENGTHS
        held, indices = (
            self.of(node.value),
            node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice],
        )
        if held is UNKNOWN:
            return UNKNOWN
        if isinstance(held, ArrayType):
            whole = len(indices) == held.rank and not any(
                isinstance(index, (ast.Slice, ast.Starred)) for index in indices
            )
            return (
                held.element
                if whole and all(isinstance(self.of(index), (Number, type(UNKNOWN))) for index in indices)
                else ANY
            )
        return part(held, node.slice.value if isinstance(node.slice, ast.Constant) else None)

    def of_tuple(self, node):
        return (
            tuple(map(self.of, node.elts))
            if not any(isinstance(element, ast.Starred) for element in node.elts)
            else ANY
        )

    def of_namedexpr(self, node):
        return self.of(node.value)

    def of_ifexp(self, node):
        known = getattr(node, "known", None)
        return (
            join(self.of(node.body), self.of(node.orelse))
            if known is None
            else self.of(node.body if known else node.orelse)
        )

    def of_boolop(self, node):
        return functools.reduce(join, map(self.of, node.values))

    def of_compare(self, node):
        return BOOL

    def of_unaryop(self, node):
        kind = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            return BOOL
        if not isinstance(kind, Number):
            return kind if kind is UNKNOWN else ANY
        version = INSTRUCTIONS[UNARY[type(node.op)]].version(kind.kind)
        if version is None or kind.kind not in SIGNED or kind.bits is None:
            return ANY if version is None else Number(version.results)
        if isinstance(node.op, ast.USub):  # of the lowest integer it is that again
            return Number(int, -kind.high, -kind.low) if kind.kind is int else signed(int, kind.bits)
        return (
            Number(int, kind.low, kind.high)
            if isinstance(node.op, ast.UAdd)
            else Number(int, ~kind.high, ~kind.low)
        )

    def of_binop(self, node):
        return operation(node.op, self.of(node.left), self.of(node.right))

    # --- calls ----------------------------------------------------------------------------------------------

    def of_call(self, node):
        """What a call gives, by what it calls."""
        given = [self.of(argument) for argument in node.args]
        return getattr(self, f"call_{getattr(node, 'calls', '')}", lambda *_: ANY)(node, given)

    def call_dtype(self, node, given):
        dtype = node.func.referent.dtype
        kind = KIND.get(dtype.type)
        narrow = kind in SIGNED - {int}
        return ANY if kind is None else signed(kind, 8 * dtype.itemsize - 1) if narrow else Number(kind)

    def call_function(self, node, given):
        return of_function(node.func.referent.entry, given)

    def call_object(self, node, given):
        called = stands_for(node.func).value
        return self.asked(called, given) if isinstance(called, np.ufunc) else ANY

    def given(self, node):
        """{parameter: type} of a call of a device function; None where that is not known, or where one copy
        of the function must serve all calls."""
        function = stands_for(node.func).function
        arguments = (
            None
            if function is None or "shared" in names_in(function.__code__)
            else bound_arguments(function, node)
        )
        return (
            None
            if arguments is None
            else {
                name: general(self.of(value) if isinstance(value, ast.AST) else type_of_value(value))
                for name, value in arguments.items()
            }
        )

    def call_device(self, node, _):
        """The type of what a device function returns."""
        called, given = node.func.referent, self.given(node)
        signature = only_signature(called.value)
        if signature is not None:
            return element_type(dtype) if (dtype := dtype_or_none(signature.return_type)) is not None else ANY
        if given is None or UNKNOWN in given.values():
            return UNKNOWN if given else ANY
        key = called.function, tuple(given.items())
        if key not in self.results:
            self.results[key], source = UNKNOWN, source_of(called.function)  # while it calls itself
            self.results[key] = Types(source, given, self.block, self.results).result() if source else ANY
        return self.results[key]

    def call_builtin(self, node, given):
        name = node.func.referent.name
        if name == "len":
            return LENGTHS
        if name in ("min", "max") and len(given) > 1 and all(bits(kind) is not None for kind in given):
            least = min if name == "min" else max
            ends = least(kind.low for kind in given), least(kind.high for kind in given)
            return Number(functools.reduce(join, given).kind, *ends)
        if name == "abs" and isinstance(given[0], Number) and given[0].kind in SIGNED:
            return Number(given[0].kind)
        if len(given) == 1 and isinstance(given[0], tuple) and name in ("min", "max", "sum"):
            given = list(given[0])
        if name == "sum":
            return functools.reduce(functools.partial(operation, ast.Add()), given, INT64)
        return self.asked(NUMBER_BUILTINS.get(name), given)

    def call_position(self, node, given):
        one = OF_CUDA[node.func.referent.name]
        dimensions = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else 0
        return one if dimensions == 1 else (one,) * dimensions if dimensions in (2, 3) else ANY

    def call_wait(self, node, given):
        name = node.func.referent.name
        return self.of_instruction(INSTRUCTIONS[name], given) if name in WARP_WIDE else OF_CUDA.get(name, ANY)

    def call_atomic(self, node, given):
        return given[0].element if given and isinstance(given[0], ArrayType) else ANY

    def call_same(self, node, given):
        return given[0]

    def call_cuda(self, node, given):
        name = node.func.referent.name
        loads = name.rpartition(".")[2].startswith("ld")
        return OF_CUDA.get(name) or (self.call_atomic(node, given) if loads else ANY)

    call_lanes = call_cuda

    def of_instruction(self, entry, given):
        """The type of what an instruction of a warp gives: a tuple if it has several results."""
        given = dict(zip(entry.parameters, given))
        kinds = [
            given.get(kind, ANY) if isinstance(kind, Like) else Number(KIND[kind.type])
            for kind in entry.results.values()
        ]
        kinds = [Number(kind.kind) if isinstance(kind, Number) else kind for kind in kinds]
        return tuple(kinds) if len(kinds) > 1 else kinds[0] if kinds else NONE

    def asked(self, function, given):
        """The type of what a function of ours gives."""
        if UNKNOWN in given:
            return UNKNOWN
        return (
            probed(function, tuple(kind.kind for kind in given))
            if function is not None and all(isinstance(kind, Number) for kind in given)
            else ANY
        )

    def call_declaration(self, node, _):
        """`cuda.shared.array(shape, dtype)`: the type of array that it makes."""
        given, local = declared(node), node.func.referent.name == "local.array"
        dtype = stands_for(given["dtype"]).dtype if "dtype" in given else None
        shape = constant_shape(given.get("shape"), self.versions.known)
        # (0,): the dynamic bytes, of which there may be none
        if dtype is None or dtype.names is not None or dtype.hasobject or not shape or 0 in shape:
            return ANY
        if local and dtype.itemsize > 8:  # has no fast path where stores are noted
            return ANY
        return ArrayType(element_type(dtype), len(shape), dtype.itemsize, shape=shape, local=local)

    def alike(self, left, right):
        """Whether Python compares these two expressions as Numba does."""
        kinds = [self.of(left), self.of(right)]
        return all(map(is_float, kinds)) or all(bits(kind) is not None for kind in kinds) or NONE in kinds

    def plain(self, op, left, right):
        """Whether Python's own operator gives Numba's result on these two expressions, without a call and
        without raising."""
        a, b = self.of(left), self.of(right)
        if is_float(a) and is_float(b):
            return isinstance(op, (*ADDITIVE, ast.Mult, ast.Div))
        if bits(a) is None or bits(b) is None or bits(operation(op, a, b)) is None:
            return False
        if isinstance(op, (ast.FloorDiv, ast.Mod)):
            return b.low > 0
        return b.low >= 0 if isinstance(op, (ast.LShift, ast.RShift)) else not isinstance(op, ast.Div)


def range_interval(*ends):
    """The lowest and the highest number in a range between Numbers."""
    start, stop = (Number(int, 0, 0), *ends) if len(ends) == 1 else ends[:2]
    if len(ends) < 3 or ends[2].low > 0:
        return start.low, max(stop.high - 1, start.low)
    down = ends[2].high < 0
    return min(start.low, stop.low + down), start.high if down else max(start.high, stop.high)


def of_axis(ends, axis):
    """The interval of one of x, y and z, of which `ends` is that of all, or a list."""
    return ends[axis] if isinstance(ends, list) else ends


def widened(kind):
    """A type without the bits that keep growing."""
    if isinstance(kind, tuple):
        return tuple(map(widened, kind))
    return (
        Number(kind.kind) if isinstance(kind, Number) and kind.bits is not None and kind.kind is int else kind
    )


def general(kind):
    """A type with little of what sets one call of a device function apart from another."""
    if not isinstance(kind, Number) or kind.bits is None or kind.kind not in (int, np.int32):
        return kind
    few = next((few for few in (31, LONG) if kind.bits <= few), None)
    return Number(kind.kind) if few is None else (natural if kind.low >= 0 else signed)(kind.kind, few)


def part(kind, position):
    """The type of one part of a value of type `kind`; position None: of any."""
    if kind is UNKNOWN:
        return UNKNOWN
    if isinstance(kind, tuple) and isinstance(position, int):
        return kind[position] if -len(kind) <= position < len(kind) else ANY
    if isinstance(kind, tuple):
        alike = len({one.kind if isinstance(one, Number) else one for one in kind}) == 1
        return functools.reduce(join, kind) if alike else ANY
    return kind.element if isinstance(kind, ArrayType) and kind.rank == 1 else ANY
