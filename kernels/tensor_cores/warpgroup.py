"""Instructions of warp groups as inline PTX: wgmma, and others of compute capability 9.0a.

    wgmma(n, kind, ...)      create the product D = A B + D or D = A B, with A 64×K and B K×n
    matrix_descriptor        describe a matrix in shared memory for a product
    wgmma_fence              order accesses to the registers of a matrix before the next product
    wgmma_commit, _wait_N    close a group of products; wait until at most the N newest groups are pending
    fence_proxy_async        order generic accesses to shared memory before those of products and bulk copies
    stmatrix_x1 _x2 _x4      store 8×8 matrices of 16-bit values from a warp's registers to shared memory
    elect_one                choose one lane of a warp
    uniform                  move a value that all lanes share to a uniform register
    more_registers, fewer_registers   change the number of registers of each thread in a warp group

The registers of a matrix are a tuple. A product works on its accumulators while the thread continues. The
compiler must not move accesses to them across the fence or the wait, so these instructions take the tuple and
return it:

    total = wgmma_fence(total)
    total = product(total, of_a, of_b, True)
    wgmma_commit()
    total = wgmma_wait_0(total)

The simulator runs the reference implementations of sim.isa.wgmma, and reports an access to a tuple that has
not passed through a fence or a wait.

Source: PTX ISA 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

import functools

from llvmlite import ir
from numba.cuda.extending import intrinsic
from numpy import uint32

from kernels.common.numba_parts import ConfigStack, UnsupportedError, cgutils, types
from kernels.tensor_cores.instructions import (
    I32,
    I64,
    REGISTERS,
    assembled,
    numbered,
    of_registers,
    shared_address,
)
from sim.isa import GIVEN, INSTRUCTIONS, instruction
from sim.isa.register_counts import register_change
from sim.isa.wgmma import Variant, product

ACCUMULATORS = {"f32": types.float32, "f16": types.uint32, "s32": types.int32}
SWIZZLE_MODES = {128: 1, 64: 2, 32: 3}


def check_gpu(name):
    """Raise UnsupportedError when compiling for a GPU without warp-group instructions."""
    capability = tuple(getattr(ConfigStack.top_or_none(), "compute_capability", None) or (9, 0))
    if capability[:2] != (9, 0):
        raise UnsupportedError(
            f"{name} takes a GPU of compute capability 9.0, and this is for {capability[0]}.{capability[1]}"
        )


@functools.cache
def wgmma(n, kind, kind_b=None, result="f32", a_in_registers=False, mn_major_a=False, mn_major_b=False,
          negate_a=False, negate_b=False):  # fmt: skip
    """Create the intrinsic (accumulators, a, b, scale_d) -> accumulators, a product of a warp group.

    n: the number of columns of B and D, a multiple of 8 up to 256.
    kind, kind_b: the PTX types of A and B, such as "bf16". By default, they are equal.
    result: the PTX type of D. Each thread has n / 2 accumulators as float32 or int32, or n / 4 registers with
        two float16 each.
    a_in_registers: whether a is a tuple of four registers instead of a matrix descriptor.
    mn_major_a, mn_major_b: whether the elements of a column of A, or of a row of B, are adjacent in memory.
    negate_a, negate_b: whether the matrix is multiplied by -1.

    scale_d says whether D is added to the product; otherwise, the product replaces it.
    """
    types_of = result, kind, kind_b or kind
    variant = Variant(n, a_in_registers, mn_major_a, mn_major_b, negate_a, negate_b)
    entry = product(types_of, variant)
    name, shape = entry.name, entry.shape
    number_type, count = ACCUMULATORS[result], entry.count
    llvm, letter = REGISTERS[number_type]
    a_count = 4 if a_in_registers else 1
    a_text = f"{{{numbered(2 * count, 4)}}}" if a_in_registers else f"${2 * count}"
    b_text, scale = f"${2 * count + a_count}", f"${2 * count + a_count + 1}"
    constants = "" if result == "s32" else f", {-1 if negate_a else 1}, {-1 if negate_b else 1}"
    if kind in ("f16", "bf16"):
        constants += ("" if a_in_registers else f", {int(mn_major_a)}") + f", {int(mn_major_b)}"
    text = (
        f"{{ .reg .pred scaled; setp.ne.b32 scaled, {scale}, 0;"
        f" wgmma.mma_async.sync.aligned.{shape}.{'.'.join(types_of)}"
        f" {{{numbered(0, count)}}}, {a_text}, {b_text}, scaled{constants}; }}"
    )
    constraints = [f"={letter}"] * count + [str(i) for i in range(count)]
    constraints += ["r"] * 4 if a_in_registers else ["l"]
    constraints += ["l", "r", "~{memory}"]

    @intrinsic
    def multiplied(typing, accumulators, a, b, scale_d):
        tuple_type = types.UniTuple(number_type, count)
        a_type = types.UniTuple(types.uint32, 4) if a_in_registers else types.uint64

        def code(context, builder, signature, arguments):
            check_gpu(name)
            values = cgutils.unpack_tuple(builder, arguments[0], count)
            values += cgutils.unpack_tuple(builder, arguments[1], 4) if a_in_registers else [arguments[1]]
            values += [arguments[2], builder.zext(arguments[3], I32)]
            signature = ir.FunctionType(
                ir.LiteralStructType([llvm] * count), [value.type for value in values]
            )
            made = builder.asm(signature, text, ",".join(constraints), values, side_effect=True)
            parts = [builder.extract_value(made, i) for i in range(count)]
            return context.make_tuple(builder, tuple_type, parts)

        return tuple_type(tuple_type, a_type, types.uint64, types.boolean), code

    return entry.replace_calls_of(multiplied)


def passing(name, text):
    """Create the intrinsic (registers) -> registers that executes an instruction without operands and
    returns the registers. The compiler therefore cannot move an access to them across the instruction."""

    @intrinsic
    def passed(typing, registers):
        def code(context, builder, signature, arguments):
            check_gpu(name)
            count = signature.return_type.count
            llvm, letter = REGISTERS[signature.return_type.dtype]
            values = cgutils.unpack_tuple(builder, arguments[0], count)
            constraints = [f"={letter}"] * count + [str(i) for i in range(count)] + ["~{memory}"]
            made = builder.asm(
                ir.FunctionType(ir.LiteralStructType([llvm] * count), [llvm] * count),
                text,
                ",".join(constraints),
                values,
                side_effect=True,
            )
            parts = [builder.extract_value(made, i) for i in range(count)]
            return context.make_tuple(builder, signature.return_type, parts)

        return registers(registers), code

    return INSTRUCTIONS[name].replace_calls_of(passed)


def plain(name, text):
    """Create the intrinsic () that executes an instruction without operands."""

    @intrinsic
    def executed(typing):
        def code(context, builder, signature, arguments):
            check_gpu(name)
            assembled(builder, text, [], [], effect=True)
            return context.get_dummy_value()

        return types.void(), code

    return executed


wgmma_fence = passing("wgmma_fence", "wgmma.fence.sync.aligned;")
wgmma_commit = INSTRUCTIONS["wgmma_commit"].replace_calls_of(
    plain("wgmma_commit", "wgmma.commit_group.sync.aligned;")
)
wgmma_wait_0, wgmma_wait_1, wgmma_wait_2 = (
    passing(f"wgmma_wait_{groups}", f"wgmma.wait_group.sync.aligned {groups};") for groups in range(3)
)


@intrinsic
def matrix_descriptor(typing, tile, index, leading, stride, swizzle):
    """Return the descriptor of the matrix that starts at tile[index].

    leading, stride: the two offsets in bytes, see sim.isa.matrix_descriptor.
    swizzle: 0, 32, 64 or 128 bytes.
    """

    def code(context, builder, signature, arguments):
        check_gpu("matrix_descriptor")
        address = shared_address(context, builder, tile, arguments[0], index, arguments[1])
        fields = [(address, 0), (arguments[2], 16), (arguments[3], 32)]
        bits = ir.Constant(I64, 0)
        for value, shift in fields:
            field = builder.and_(builder.lshr(value, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))
            bits = builder.or_(bits, builder.shl(builder.zext(field, I64), ir.Constant(I64, shift)))
        mode = ir.Constant(I64, 0)
        for nbytes, number in SWIZZLE_MODES.items():
            is_it = builder.icmp_unsigned("==", arguments[4], ir.Constant(I32, nbytes))
            mode = builder.select(is_it, ir.Constant(I64, number), mode)
        return builder.or_(bits, builder.shl(mode, ir.Constant(I64, 62)))

    return types.uint64(tile, index, types.int32, types.int32, types.int32), code


INSTRUCTIONS["matrix_descriptor"].replace_calls_of(matrix_descriptor)
fence_proxy_async = INSTRUCTIONS["fence_proxy_async_shared"].replace_calls_of(
    plain("fence_proxy_async", "fence.proxy.async.shared::cta;")
)


# --- other instructions -------------------------------------------------------------------------------------


def stmatrix(count, transposed):
    """Create the intrinsic (tile, index, registers ...), which stores `count` matrices of 8×8 16-bit values.

    tile: an int16 array in shared memory.
    index: the position of the first of the 8 adjacent elements in the matrix row that this lane stores.
    """
    name = f"stmatrix_x{count}{'_trans' if transposed else ''}"
    text = (
        f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
        f" [$0], {{{numbered(1, count)}}};"
    )
    registers = ", ".join(f"r{i}" for i in range(count))

    def typed(tile, index):
        def code(context, builder, signature, arguments):
            check_gpu(name)
            address = shared_address(context, builder, tile, arguments[0], index, arguments[1])
            operands = [("r", address), *(("r", value) for value in arguments[2:])]
            assembled(builder, text, [], operands, effect=True)
            return context.get_dummy_value()

        return types.void(tile, index, *[types.uint32] * count), code

    # Numba reads the number of arguments from the signature.
    space = {"typed": typed}
    exec(f"def stored(typing, tile, index, {registers}):\n    return typed(tile, index)\n", space)
    return INSTRUCTIONS[name].replace_calls_of(intrinsic(space["stored"]))


stmatrix_x1, stmatrix_x2, stmatrix_x4 = (stmatrix(count, False) for count in (1, 2, 4))
stmatrix_x1_trans, stmatrix_x2_trans, stmatrix_x4_trans = (stmatrix(count, True) for count in (1, 2, 4))


@functools.cache
def set_registers(way, count):
    """Create the intrinsic () that changes the number of registers per thread in the calling warp group.

    way: "inc" or "dec".
    """
    entry = register_change(way, count)
    return entry.replace_calls_of(plain(entry.name, f"setmaxnreg.{way}.sync.aligned.u32 {count};"))


def more_registers(count):
    """Return the intrinsic () that raises the number of registers per thread to `count`."""
    return set_registers("inc", count)


def fewer_registers(count):
    """Return the intrinsic () that lowers the number of registers per thread to `count`."""
    return set_registers("dec", count)


elect_one = of_registers(
    "elect_one",
    "{ .reg .pred one; elect.sync _|one, $1; selp.u32 $0, 1, 0, one; }",
    [types.uint32],
    [types.uint32],
)


@instruction(mask=GIVEN, name="elect_one", replaces=elect_one, source="PTX ISA elect.sync")
def _elect_one(lanes, *, chosen: uint32):
    """Return 1 in the lowest participating lane, and 0 in the others."""
    for lane in range(32):
        chosen[lane] = lanes & -lanes == 1 << lane


uniform = of_registers("uniform", "redux.sync.max.u32 $0, $2, $1;", [types.uint32] * 2, [types.uint32])


@instruction(mask=GIVEN, name="uniform", replaces=uniform, source="PTX ISA redux.sync")
def _uniform(lanes, value: uint32, *, result: uint32):
    """Return the largest value of the participating lanes. ptxas keeps it in a uniform register."""
    largest = max([int(value[lane]) for lane in range(32) if lanes >> lane & 1])
    for lane in range(32):
        result[lane] = largest
