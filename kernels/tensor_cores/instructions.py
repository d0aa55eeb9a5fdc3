"""Tensor-core and asynchronous-copy instructions as inline PTX, because Numba CUDA does not expose them.

    ldmatrix_x1 _x2 _x4 (_trans)   load 8×8 matrices of 16-bit values from shared memory into a warp's
                                   registers
    mma_bf16 mma_f16               D = A B + C on a tensor core: A 16×16, B 16×8, float32 accumulators;
                                   _k8: only the left half of A and the upper half of B
    cp_async_16 _8 _4              copy bytes from global to shared memory while the thread continues
    cp_async_commit, _wait_N       close a group of copies; wait until at most the N newest groups are pending
    pack_bf16 pack_f16             round two float32 values into the halves of a register
    low_bf16 high_bf16 …_f16       convert one of the halves of a register to float32
    float_pair floats_of           two float32 values as one int64, and back
    exp2_approx                    2^x, with an error of about 2 units in the last place

All of them require sm_80 or newer. Arrays of 16-bit values in shared memory are declared as int16, because
Numba cannot declare bfloat16 there.

On a GPU, the PTX runs. The simulator calls reference implementations instead: those of mma and ldmatrix are
    in sim.isa.tensor, which also defines which lane holds which element, and those of cp.async in
    sim.isa.copies. The reference implementations of pack and exp2_approx are in this file.

Source: PTX ISA 9.7.9.21 (cvt), 9.7.3 (ex2).
"""

import numpy as np
from llvmlite import ir
from ml_dtypes import bfloat16
from numba.cuda.extending import intrinsic
from numpy import float32, int64, uint32

from kernels.common.numba_parts import ConfigStack, UnsupportedError, cgutils, normalize_indices, types
from sim.isa import INSTRUCTIONS, function, memory_instruction

OLDEST = (8, 0)
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
SMALLEST = float(np.finfo(float32).tiny)  # the smallest normal float32
REGISTERS = {
    types.uint32: (I32, "r"),
    types.int32: (I32, "r"),
    types.float32: (F32, "f"),
    types.int64: (I64, "l"),
}


# --- PTX ----------------------------------------------------------------------------------------------------


def check_gpu(name):
    """Raise UnsupportedError when compiling for a GPU that lacks the instruction."""
    target = ConfigStack.top_or_none()
    # the simulator compiles without a target; every instruction is then available
    capability = getattr(target, "compute_capability", None) or OLDEST
    if tuple(capability) < OLDEST:
        raise UnsupportedError(
            f"{name} takes a GPU of compute capability 8.0 or newer, and this is for"
            f" {capability[0]}.{capability[1]}: use the float32 kernels there (q.float())"
        )


def assembled(builder, text, results, operands, effect=False):
    """Emit inline PTX, and return its result: one value, a struct of several, or none.

    operands: (constraint letter, value) pairs.
    effect: whether the instruction accesses memory or must not be reordered.
    """
    kinds = [REGISTERS[kind][0] for kind in results]
    given = ir.VoidType() if not kinds else kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)
    constraints = ["=" + REGISTERS[kind][1] for kind in results] + [letter for letter, _ in operands]
    values = [value for _, value in operands]
    signature = ir.FunctionType(given, [value.type for value in values])
    return builder.asm(
        signature, text, ",".join([*constraints, *["~{memory}"] * effect]), values, side_effect=effect
    )


def as_tuple(context, builder, kind, struct, count):
    parts = [builder.extract_value(struct, number) for number in range(count)]
    return context.make_tuple(builder, types.UniTuple(kind, count), parts)


def numbered(first, count):
    """Return `count` consecutive operands of inline PTX, such as "$4, $5"."""
    return ", ".join(f"${number}" for number in range(first, first + count))


def of_registers(name, text, operands, results):
    """Create an intrinsic whose operands and results are all registers.

    text: the PTX, with $0, $1, … for the results and then for the operands.
    operands, results: Numba types, keys of REGISTERS.
    """

    def check(*given):
        if len(given) != len(operands):
            raise TypeError(f"{name} takes {len(operands)} arguments, got {len(given)}")
        check_gpu(name)

    def code(context, builder, signature, arguments):
        letters = [REGISTERS[kind][1] for kind in operands]
        value = assembled(builder, text, results, [*zip(letters, arguments)])
        return value if len(results) == 1 else as_tuple(context, builder, results[0], value, len(results))

    answer = results[0] if len(results) == 1 else types.UniTuple(results[0], len(results))
    # Numba reads the number of arguments from the signature, so the function is generated with a fixed
    # number of parameters.
    names = ", ".join(f"x{number}" for number in range(len(operands)))
    source = f"def {name}(typing, {names}):\n    check({names})\n    return answer(*operands), code\n"
    space = {"check": check, "answer": answer, "operands": operands, "code": code}
    exec(source, space)
    return intrinsic(space[name])


def indices_of(context, builder, array_type, index_type, index):
    return normalize_indices(context, builder, index_type, index, array_type, array_type.dtype)[1]


def shared_address(context, builder, array_type, array, index_type, index):
    """Return the 32-bit address of array[index] in shared memory.

    It is computed as a short sum, in which ptxas can fold the constants.
    """
    struct = context.make_array(array_type)(context, builder, array)
    base = builder.addrspacecast(struct.data, ir.PointerType(struct.data.type.pointee, 3))
    address = builder.ptrtoint(base, I32)
    strides = cgutils.unpack_tuple(builder, struct.strides, array_type.ndim)
    for stride, at in zip(strides, indices_of(context, builder, array_type, index_type, index), strict=True):
        step = builder.mul(builder.trunc(stride, I32), builder.trunc(at, I32))
        address = builder.add(address, step)
    return address


def global_address(context, builder, array_type, array, index_type, index):
    """Return the 64-bit address of array[index] in global memory."""
    struct = context.make_array(array_type)(context, builder, array)
    indices = indices_of(context, builder, array_type, index_type, index)
    address = cgutils.get_item_pointer(context, builder, array_type, struct, indices, wraparound=False)
    return builder.ptrtoint(builder.addrspacecast(address, ir.PointerType(address.type.pointee, 1)), I64)


# --- ldmatrix -----------------------------------------------------------------------------------------------


def ldmatrix(count, transposed):
    """Create the intrinsic (tile, index) -> `count` registers.

    tile: an int16 array in shared memory.
    index: the position of the first of the 8 adjacent elements in the matrix row that this lane addresses.
    """
    name = f"ldmatrix_x{count}{'_trans' if transposed else ''}"
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
        f" {{{numbered(0, count)}}}, [${count}];"
    )

    @intrinsic
    def loaded(typing, tile, index):
        check_gpu(name)
        answer = types.uint32 if count == 1 else types.UniTuple(types.uint32, count)

        def code(context, builder, signature, arguments):
            address = shared_address(context, builder, tile, arguments[0], index, arguments[1])
            value = assembled(builder, text, [types.uint32] * count, [("r", address)], effect=True)
            return value if count == 1 else as_tuple(context, builder, types.uint32, value, count)

        return answer(tile, index), code

    return INSTRUCTIONS[name].replace_calls_of(loaded)


ldmatrix_x1, ldmatrix_x2, ldmatrix_x4 = (ldmatrix(count, False) for count in (1, 2, 4))
ldmatrix_x1_trans, ldmatrix_x2_trans, ldmatrix_x4_trans = (ldmatrix(count, True) for count in (1, 2, 4))


# --- mma ----------------------------------------------------------------------------------------------------


def mma(kind):
    """Create the intrinsics for D = A B + C with k = 16 and with k = 8.

    Their arguments are (a0 … a3, b0, b1: uint32, c0 … c3: float32) and (a0, a1, b0, c0 … c3); both return (d0
    … d3). Products are exact, and sums are rounded to float32.
    """

    def text(depth, a, b):
        return (
            f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 {{{numbered(0, 4)}}},"
            f" {{{numbered(4, a)}}}, {{{numbered(4 + a, b)}}}, {{{numbered(4 + a + b, 4)}}};"
        )

    u, f = types.uint32, types.float32
    whole = of_registers(f"mma_{kind}", text(16, 4, 2), [u] * 6 + [f] * 4, [f] * 4)
    left = of_registers(f"mma_{kind}_k8", text(8, 2, 1), [u] * 3 + [f] * 4, [f] * 4)

    for depth, intrinsic_of in ((16, whole), (8, left)):
        INSTRUCTIONS[f"mma_m16n8k{depth}_f32_{kind}"].replace_calls_of(intrinsic_of)
    return whole, left


(mma_bf16, mma_bf16_k8), (mma_f16, mma_f16_k8) = mma("bf16"), mma("f16")


# --- conversions and powers ---------------------------------------------------------------------------------


def pack(kind, dtype):
    """Create the intrinsic (low, high: float32) -> uint32, which rounds both to 16 bits, ties to even."""
    text = f"cvt.rn.{kind}x2.f32 $0, $2, $1;"
    packed = of_registers(f"pack_{kind}", text, [types.float32] * 2, [types.uint32])

    @function(name=f"pack_{kind}", native=None, replaces=packed, source="PTX ISA cvt")
    def semantics(low: float32, high: float32) -> uint32:
        both = np.array([low, high], float32)
        # cvt returns the canonical NaN 0x7FFF
        bits = np.where(np.isnan(both), np.uint16(0x7FFF), both.astype(dtype).view(np.uint16))
        return bits.view(uint32)[0]

    return packed


pack_bf16, pack_f16 = pack("bf16", bfloat16), pack("f16", np.float16)


def unpack(kind, half, text, dtype):
    """Create the intrinsic (both: uint32) -> float32, which converts one of two packed 16-bit values.

    half: 0 for the lower 16 bits, 1 for the upper.
    """
    name = f"{'high' if half else 'low'}_{kind}"
    unpacked = of_registers(name, text, [types.uint32], [types.float32])

    @function(name=name, native=None, replaces=unpacked, source="PTX ISA shl, and, cvt")
    def semantics(both: uint32) -> float32:
        return np.array([both], uint32).view(np.uint16)[half : half + 1].view(dtype).astype(float32)[0]

    return unpacked


WIDEN_HALF = "{{ .reg .b16 low, high; mov.b32 {{low, high}}, $1; cvt.f32.f16 $0, {}; }}"
low_bf16 = unpack("bf16", 0, "shl.b32 $0, $1, 16;", bfloat16)
high_bf16 = unpack("bf16", 1, "and.b32 $0, $1, 0xFFFF0000;", bfloat16)
low_f16 = unpack("f16", 0, WIDEN_HALF.format("low"), np.float16)
high_f16 = unpack("f16", 1, WIDEN_HALF.format("high"), np.float16)

# The compiler stores two float32 values with one instruction only if it can prove that the address is a
# multiple of 8.
float_pair = of_registers("float_pair", "mov.b64 $0, {$1, $2};", [types.float32] * 2, [types.int64])
floats_of = of_registers("floats_of", "mov.b64 {$0, $1}, $2;", [types.int64], [types.float32] * 2)


@function(name="float_pair", native=None, replaces=float_pair, source="PTX ISA mov")
def _float_pair(low: float32, high: float32) -> int64:
    return np.array([low, high], float32).view(np.int64)[0]


@function(name="floats_of", native=None, replaces=floats_of, source="PTX ISA mov")
def _floats_of(both: int64) -> (float32, float32):
    pair = np.array([both], np.int64).view(float32)
    return pair[0], pair[1]


exp2_approx = of_registers("exp2_approx", "ex2.approx.ftz.f32 $0, $1;", [types.float32], [types.float32])


@function(name="exp2_approx", ulps=2, replaces=exp2_approx, source="PTX ISA ex2.approx.ftz.f32")
def _exp2_approx(x: float32) -> float32:
    power = np.exp2(x)
    # .ftz: subnormal results are flushed to zero
    return 0.0 if power < SMALLEST else power


# --- cp.async -----------------------------------------------------------------------------------------------


def cp_async(size):
    """Create the intrinsic (tile, index, source, source index, valid), an asynchronous copy of `size` bytes.

    It copies from global to shared memory if `valid` equals `size`, and writes zeros if `valid` is 0. The
    data are visible after a commit and a wait.
    """
    # .cg bypasses L1 and exists only for 16 bytes
    name = f"cp_async_{size}"
    text = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global [$0], [$1], {size}, $2;"

    @intrinsic
    def copied(typing, tile, index, source, source_index, valid):
        check_gpu(name)

        def code(context, builder, signature, arguments):
            to = shared_address(context, builder, tile, arguments[0], index, arguments[1])
            given = global_address(context, builder, source, arguments[2], source_index, arguments[3])
            assembled(builder, text, [], [("r", to), ("l", given), ("r", arguments[4])], effect=True)
            return context.get_dummy_value()

        return types.void(tile, index, source, source_index, types.int32), code

    return INSTRUCTIONS[name].replace_calls_of(copied)


def ordering(name, text):
    """Create an intrinsic without operands that the compiler must not reorder."""

    @intrinsic
    def ordered(typing):
        check_gpu(name)

        def code(context, builder, signature, arguments):
            assembled(builder, text, [], [], effect=True)
            return context.get_dummy_value()

        return types.void(), code

    return ordered


def wait(groups):
    name = f"cp_async_wait_{groups}"
    waits = ordering(name, f"cp.async.wait_group {groups};")
    enter = memory_instruction(name=name, replaces=waits, source="PTX ISA cp.async.wait_group")
    enter(lambda memory: memory.receive(groups))
    return waits


cp_async_16, cp_async_8, cp_async_4 = map(cp_async, (16, 8, 4))
cp_async_commit = ordering("cp_async_commit", "cp.async.commit_group;")
INSTRUCTIONS["cp_async_commit"].replace_calls_of(cp_async_commit)
cp_async_wait_0, cp_async_wait_1, cp_async_wait_2 = map(wait, range(3))
