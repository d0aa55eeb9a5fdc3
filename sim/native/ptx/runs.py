"""Compilation of a run: a sequence of PTX instructions without a jump or synchronisation point, which becomes
one LLVM function."""

import ast
import functools

from llvmlite import ir
from numba import boolean, float32, float64, int32, int64, types
from numba.core import cgutils

from sim.isa.registers import WIDTHS, find_operation
from sim.isa.table import by_ptx
from sim.native.codegen.linking import intrinsic_of
from sim.native.codegen.shadow import DIVERGED, UNWRITTEN, set_error, watch_atomic, watch_store
from sim.native.ptx.evaluate import Evaluator, parse_expression
from sim.native.ptx.memory import is_undefined, make_locator, mark_undefined, reset_local, watch_ptx_load
from sim.native.ptx.values import FLOATS, HALF, I64, Integer, Predicate
from sim.ptx.regions import WINDOWS

# PTX type -> Numba type. All integer registers are int64.
NUMBA = {"f32": float32, "f64": float64, "pred": boolean, "index": int32}
# Special registers: name in the text of a run -> expression in the generated module.
SPECIAL = {f"{name}_{axis}": f"{operation}.{axis}" for axis in "xyz" for name, operation in (
    ("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))}  # fmt: skip
SPECIAL |= {"linear": "thread"}
PACKED = "f16x2", "bf16x2"  # two halves in one register


def numba_type_of(ptx_type):
    """Return the Numba type of a variable that has this PTX type."""
    return NUMBA.get(ptx_type, int64)


def ptx_run(name, inputs, outputs, calls, text):
    """Return the intrinsic that executes a run. It takes the inputs, and returns the outputs as one value, a
    tuple, or None.

    name: the intrinsic's name.
    inputs, outputs: {variable: PTX type}. A type is f32, f64, pred, or an integer type such as u32.
    calls: {function that accesses memory: (operation, *arguments)}. If there are any, the first parameters of
        the intrinsic are the table of regions, the thread, and the launch state.
    text: the Python statements that sim.ptx generates.
    """
    first = ["table", "thread", "state"] if calls else []
    given = [*map(numba_type_of, inputs.values())]
    results = [*map(numba_type_of, outputs.values())]
    result_type = results[0] if len(results) == 1 else types.Tuple(results) if results else types.void
    signature = result_type(*[int64] * len(first), *given)

    def code(context, builder, signature, arguments):
        run = RunCompiler(context, builder, calls, arguments[: len(first)])
        for (key, ptx_type), found in zip(inputs.items(), arguments[len(first) :]):
            # An index such as threadIdx.x is an int32 in generated code, and never negative.
            run.names[key] = run.of_code(found, "u32" if ptx_type == "index" else ptx_type)
        run.run(parse_statements(text))
        # Between runs, integers of all widths are passed as int64.
        ptx_types = {key: ptx_type if ptx_type in NUMBA else "b64" for key, ptx_type in outputs.items()}
        found = [run.code_of(run.names[key], ptx_type) for key, ptx_type in ptx_types.items()]
        if len(found) == 1:
            return found[0]
        return context.make_tuple(builder, result_type, found) if found else context.get_dummy_value()

    return intrinsic_of(name, [*first, *inputs], lambda typing, *given: (signature, code))


@functools.lru_cache(maxsize=4096)
def parse_statements(text):
    """Return the syntax trees of Python statements."""
    return ast.parse(text).body


class RunCompiler(Evaluator):
    """An Evaluator for the statements of one run.

    calls: the calls of the run, as in `ptx_run`.
    machine: the LLVM values of the table, the thread and the launch state.
    """

    def __init__(self, context, builder, calls, machine):
        super().__init__(context, builder, {}, self.call)
        self.calls, self.machine = calls, machine
        for name, (operation, *rest) in calls.items():
            if operation == "float":
                ptx_type, bits = rest
                self.names[name] = self.of_bits(self.to_integer(bits), ptx_type)

    def call(self, name, given):
        """Emit a call to a function in `calls`. Return NotImplemented for any other name."""
        if name not in self.calls:
            return NotImplemented
        operation, *rest = self.calls[name]
        return getattr(self, f"do_{operation}")(*rest, *given)

    def call_helper(self, function, *codes):
        """Emit a call to an int64 runtime helper."""
        return function.helper.call(self.context, self.builder, *codes)

    # --- memory ---------------------------------------------------------------------------------------------

    def locate(self, watched, ptx_type, space, count, site, address):
        """Emit the address translation and the checks of an access, and return pointers to its elements on
        the host.

        watched: the check of the access.
        ptx_type: the type of an element.
        space: the state space.
        count: the number of elements.
        site: the index of the access in the kernel.
        address: the address within the state space.
        """
        size, (table, thread, state) = WIDTHS[ptx_type] // 8, self.machine
        address = self.add(self.to_integer(address), self.to_integer(WINDOWS.get(space, 0)))
        codes = table, I64(site), self.resize(address, 64), thread, state
        first = self.call_helper(make_locator(watched, size * count), *codes)
        addresses = [first, *(self.builder.add(first, I64(size * i)) for i in range(1, count))]
        element = FLOATS.get(ptx_type) or ir.IntType(8 * size)
        return [self.builder.inttoptr(at, element.as_pointer()) for at in addresses]

    def do_load(self, ptx_type, space, count, site, address):
        """Emit a load of `count` elements."""
        pointers = self.locate(watch_ptx_load, ptx_type, space, count, site, address)
        values = tuple(self.of_code(self.builder.load(pointer), ptx_type) for pointer in pointers)
        return values[0] if count == 1 else values

    def do_row(self, lanes, space, site, address):
        """Emit the load of an operand for `ldmatrix`.

        The lanes below `lanes` load a row of four 32-bit values. The other lanes get zeros.
        """
        word, (_, thread, _) = ir.IntType(32), self.machine
        row = cgutils.alloca_once_value(self.builder, ir.Constant(ir.ArrayType(word, 4), None))
        pointers = [self.builder.gep(row, [word(0), word(i)]) for i in range(4)]
        for pointer in pointers:
            self.builder.store(word(0), pointer)
        lane = self.builder.and_(thread, I64(31))
        with self.builder.if_then(self.builder.icmp_signed("<", lane, I64(lanes))):
            for pointer, value in zip(pointers, self.do_load("u32", space, 4, site, address)):
                self.builder.store(self.resize(value, 32), pointer)
        return tuple(self.of_code(self.builder.load(pointer), "u32") for pointer in pointers)

    def do_store(self, ptx_type, space, count, site, address, *values):
        """Emit a store of one value per element."""
        pointers = self.locate(watch_store, ptx_type, space, count, site, address)
        for pointer, value in zip(pointers, values):
            self.builder.store(self.code_of(value, ptx_type), pointer)

    def do_atomic(self, operation, ptx_type, space, site, address, *operands):
        """Emit an atomic operation, and return the old value.

        Threads run one after another, so a plain load and a plain store suffice.
        """
        (pointer,) = self.locate(watch_atomic, ptx_type, space, 1, site, address)
        old = self.of_code(self.builder.load(pointer), ptx_type)
        new = self.combine(operation, [old, *operands])
        self.builder.store(self.code_of(new, ptx_type), pointer)
        return old

    def combine(self, operation, given):
        """Return the value that an atomic stores to an element.

        given: the old value, followed by the operands. A 16-bit float is represented by an integer with its
            bits.
        """
        _, name, ptx_type = operation.split(".")
        if ptx_type in PACKED:
            text = find_operation(f"{name}.{ptx_type}").of(["a", "b"])
            names = dict(zip("ab", given, strict=True))
            return Evaluator(self.context, self.builder, names).value(parse_expression(text))
        semantics = by_ptx(operation).semantics
        if ptx_type in HALF:
            numbers = [self.of_bits(self.to_integer(value), ptx_type) for value in given]
            return self.bits(self.to_float(self.apply(semantics, numbers, {}), ptx_type))
        return self.apply(semantics, given, {})

    def do_renew(self, position, first, nbytes):
        """Emit code that fills a thread's local variable with poison, and return its simulated address."""
        table, thread, _ = self.machine
        self.call_helper(reset_local, table, I64(position), thread)
        # With the bounds of the thread index, the arithmetic fits into 64 bits.
        offset = self.mul(Integer(thread, 0, 1023), self.to_integer(nbytes))
        return self.add(self.names[first], offset)

    # --- undefined values (sim.ptx.undefined): in compiled code, an origin is a predicate -------------------

    def do_origin(self, space, nbytes, address):
        """Emit a test whether loaded bytes are undefined, and return the predicate."""
        found = self.call_helper(is_undefined, *self.local(space, nbytes, address))
        return Predicate(self.builder.icmp_signed("!=", found, I64(0)))

    def do_store_undefined(self, space, nbytes, address, origin):
        """Emit code that marks stored bytes as undefined if `origin` is true."""
        with self.builder.if_then(self.to_predicate(origin)):
            self.call_helper(mark_undefined, *self.local(space, nbytes, address), self.machine[2])

    def do_report(self, origin):
        """Emit code that sets the flag UNWRITTEN if an undefined value is used."""
        with self.builder.if_then(self.to_predicate(origin)):
            self.call_helper(set_error, self.machine[2], I64(UNWRITTEN))

    def local(self, space, nbytes, address):
        """Return the LLVM values of the table, the generic address, the thread and the number of bytes."""
        table, thread, _ = self.machine
        address = self.add(self.to_integer(address), self.to_integer(WINDOWS.get(space, 0)))
        return table, self.resize(address, 64), thread, I64(nbytes)

    def do_trap(self):
        """Emit `trap`, which sets an error flag. The interpreter produces the finding."""
        self.call_helper(set_error, self.machine[2], I64(DIVERGED))
