"""A run of PTX instructions without a jump or a synchronisation point, compiled as one function."""

import ast
import functools

from llvmlite import ir
from numba import boolean, float32, float64, int32, int64, types
from numba.core import cgutils

from sim.isa.registers import WIDTHS
from sim.isa.table import by_ptx
from sim.native.codegen.linking import intrinsic_of
from sim.native.codegen.shadow import DIVERGED, UNWRITTEN, set_error, watch_atomic, watch_store
from sim.native.ptx.evaluate import Evaluator
from sim.native.ptx.memory import forget, is_undefined, locator, reset_local, watch_ptx_load
from sim.native.ptx.values import FLOATS, I64, Integer, Predicate
from sim.ptx.regions import WINDOWS

# what a value is -> its type in Numba: a float, a predicate, or a whole number, as 64 bits
NUMBA = {"f32": float32, "f64": float64, "pred": boolean, "index": int32}
SPECIAL = {f"{name}_{axis}": f"{operation}.{axis}" for axis in "xyz" for name, operation in (
    ("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))}  # fmt: skip
SPECIAL |= {"linear": "thread"}  # a name in the text of a run -> the kernel's


def numba_type_of(ptx_type):
    return NUMBA.get(ptx_type, int64)


def ptx_run(name, inputs, outputs, calls, text):
    """Return the function of `inputs` ({name: type}: f32, f64, pred, or an integer type such as u32) that
    returns the `outputs`: one value, a tuple, or None.

    `text`: statements in Python, as sim.ptx writes them.
    `calls`: {function of memory that they call: (operation, ...)}. If there are any, the first
        parameters are the table of memory, the thread and the state.
    """
    first = ["table", "thread", "state"] if calls else []
    given = [*map(numba_type_of, inputs.values())]
    results = [*map(numba_type_of, outputs.values())]
    returns = results[0] if len(results) == 1 else types.Tuple(results) if results else types.void
    signature = returns(*[int64] * len(first), *given)

    def code(context, builder, signature, arguments):
        run = RunCompiler(context, builder, calls, arguments[: len(first)])
        for (key, ptx_type), found in zip(inputs.items(), arguments[len(first) :]):
            run.names[key] = run.of_code(found, "u32" if ptx_type == "index" else ptx_type)
        run.run(parse_statements(text))
        held = {key: ptx_type if ptx_type in NUMBA else "b64" for key, ptx_type in outputs.items()}
        found = [run.code_of(run.names[key], ptx_type) for key, ptx_type in held.items()]
        if len(found) == 1:
            return found[0]
        return context.make_tuple(builder, returns, found) if found else context.get_dummy_value()

    return intrinsic_of(name, [*first, *inputs], lambda typing, *given: (signature, code))


@functools.lru_cache(maxsize=4096)
def parse_statements(text):
    return ast.parse(text).body


class RunCompiler(Evaluator):
    """An evaluator of a run. `calls`: the operations of its functions of memory. `machine`: the table, the
    thread, the state."""

    def __init__(self, context, builder, calls, machine):
        super().__init__(context, builder, {}, self.call)
        self.calls, self.machine = calls, machine
        for name, (operation, *rest) in calls.items():
            if operation == "float":
                ptx_type, bits = rest
                self.names[name] = self.of_bits(self.to_integer(bits), ptx_type)

    def call(self, name, given):
        if name not in self.calls:
            return NotImplemented
        operation, *rest = self.calls[name]
        return getattr(self, f"do_{operation}")(*rest, *given)

    def call_helper(self, function, *codes):
        """Return a call of an int64 runtime helper."""
        return function.helper.call(self.context, self.builder, *codes)

    # --- memory ---------------------------------------------------------------------------------------------

    def locate(self, watched, ptx_type, space, count, site, address):
        """Return pointers to the accessed elements."""
        size, (table, thread, state) = WIDTHS[ptx_type] // 8, self.machine
        address = self.add(self.to_integer(address), self.to_integer(WINDOWS.get(space, 0)))
        codes = table, I64(site), self.resize(address, 64), thread, state
        where = self.call_helper(locator(watched, size * count), *codes)
        places = [where, *(self.builder.add(where, I64(size * i)) for i in range(1, count))]
        element = FLOATS.get(ptx_type) or ir.IntType(8 * size)
        return [self.builder.inttoptr(at, element.as_pointer()) for at in places]

    def do_load(self, ptx_type, space, count, site, address):
        pointers = self.locate(watch_ptx_load, ptx_type, space, count, site, address)
        values = tuple(self.of_code(self.builder.load(pointer), ptx_type) for pointer in pointers)
        return values[0] if count == 1 else values

    def do_row(self, lanes, space, site, address):
        """Return the running thread's four 32-bit values if its lane is below `lanes`, else zeros."""
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
        pointers = self.locate(watch_store, ptx_type, space, count, site, address)
        for pointer, value in zip(pointers, values):
            self.builder.store(self.code_of(value, ptx_type), pointer)

    def do_atomic(self, operation, ptx_type, space, site, address, *operands):
        (pointer,) = self.locate(watch_atomic, ptx_type, space, 1, site, address)
        old = self.of_code(self.builder.load(pointer), ptx_type)
        new = self.apply(by_ptx(operation).semantics, [old, *operands], {})
        self.builder.store(self.code_of(new, ptx_type), pointer)
        return old

    def do_renew(self, position, first, nbytes):
        """Make the thread's local memory fresh, and return the address of its bytes."""
        table, thread, _ = self.machine
        self.call_helper(reset_local, table, I64(position), thread)
        mine = self.mul(Integer(thread, 0, 1023), self.to_integer(nbytes))
        return self.add(self.names[first], mine)

    # --- undefined values (sim.ptx.undefined): an origin is a predicate here --------------------------------

    def do_origin(self, space, nbytes, address):
        found = self.call_helper(is_undefined, *self.local(space, nbytes, address))
        return Predicate(self.builder.icmp_signed("!=", found, I64(0)))

    def do_store_undefined(self, space, nbytes, address, origin):
        with self.builder.if_then(self.to_predicate(origin)):
            self.call_helper(forget, *self.local(space, nbytes, address), self.machine[2])

    def do_report(self, origin):
        with self.builder.if_then(self.to_predicate(origin)):
            self.call_helper(set_error, self.machine[2], I64(UNWRITTEN))

    def local(self, space, nbytes, address):
        """Return the table, the generic address, the thread and the bytes of an access."""
        table, thread, _ = self.machine
        address = self.add(self.to_integer(address), self.to_integer(WINDOWS.get(space, 0)))
        return table, self.resize(address, 64), thread, I64(nbytes)

    def do_trap(self):
        self.call_helper(set_error, self.machine[2], I64(DIVERGED))
