"""Bulk copies (TMA) and transaction barriers as inline PTX, because Numba CUDA does not expose them.

    mbarrier_init            initialise a barrier in shared memory, an element of an int64 array
    mbarrier_arrive          arrive at a barrier
    mbarrier_arrive_copies   arrive once the copies (cp.async) that this thread has started are complete
    mbarrier_expect          arrive, and add the bytes of copies that the phase waits for
    mbarrier_try_wait        test whether the phase with a parity is complete
    fence_mbarrier_init      make initialised barriers visible to the cluster
    bulk_load, bulk_store    copy adjacent bytes from global to shared memory, or back
    tensor_load, tensor_store   copy a box of a tensor, described by a tensor map
    bulk_commit              close a group of stores
    bulk_wait, bulk_wait_read   wait for all groups, or until they have read their sources

All of them require compute capability 9.0. Sizes and addresses are multiples of 16 bytes. A tensor map is an
array of 128 bytes: sim.tensor_map makes one for the simulator, and cuTensorMapEncodeTiled one for a GPU. A
thread that writes a tile executes fence_proxy_async (kernels.tensor_cores.warpgroup) before a store.

On a GPU, the PTX runs. The simulator runs the reference implementations of sim.isa.bulk, tensor_copies and
mbarrier.

Source: PTX ISA 9.7.9.25.4, "Bulk copy"; 9.7.9.25.5, "Tensor copy"; 9.7.13.15, "mbarrier".
"""

from llvmlite import ir
from numba.cuda.extending import intrinsic

from kernels.common.numba_parts import ConfigStack, UnsupportedError, cgutils, types
from kernels.tensor_cores.instructions import I32, assembled, global_address, shared_address
from sim.isa import INSTRUCTIONS

OLDEST = (9, 0)
COUNTED = "mbarrier::complete_tx::bytes"
# kind of operand -> constraint letter, and the number of arguments of the intrinsic
KINDS = {"shared": ("r", 2), "global": ("l", 2), "number": ("r", 1), "coordinates": ("r", 1)}


def check_gpu(name):
    """Raise UnsupportedError when compiling for a GPU without bulk copies."""
    capability = tuple(getattr(ConfigStack.top_or_none(), "compute_capability", None) or OLDEST)
    if capability[:2] < OLDEST:
        raise UnsupportedError(
            f"{name} takes a GPU of compute capability 9.0 or newer, and this is for"
            f" {capability[0]}.{capability[1]}"
        )


def operand_values(context, builder, kind, given, values):
    """Return the operands of inline PTX for one operand of an intrinsic.

    given, values: the types and values of its arguments.
    """
    if kind == "shared":
        return [shared_address(context, builder, given[0], values[0], given[1], values[1])]
    if kind == "global":
        return [global_address(context, builder, given[0], values[0], given[1], values[1])]
    if kind == "number":
        return [context.cast(builder, values[0], given[0], types.int32)]
    parts = cgutils.unpack_tuple(builder, values[0], len(given[0]))
    return [context.cast(builder, part, kind, types.int32) for part, kind in zip(parts, given[0])]


def bulk_instruction(entry, text, *kinds, arguments, result=types.void):
    """Create the intrinsic for an instruction, and let the simulator run an entry of sim.isa in its place.

    text: the PTX, with {} for each operand. The result, if any, is $0.
    kinds: the kinds of the operands, in the order of the entry's parameters.
    arguments: the order of the operands in the text, as positions in `kinds`.
    """
    name, count = entry.replace("cp_async_", ""), sum(KINDS[kind][1] for kind in kinds)

    def build(typing, *given):
        def code(context, builder, signature, values):
            check_gpu(name)
            operands, at = [], 0
            for kind in kinds:
                size = KINDS[kind][1]
                part = given[at : at + size], values[at : at + size]
                operands.append([(KINDS[kind][0], v) for v in operand_values(context, builder, kind, *part)])
                at += size
            ordered = [operands[position] for position in arguments]
            first = 0 if result is types.void else 1
            texts, flat = [], []
            for group in ordered:
                names = [f"${first + len(flat) + i}" for i in range(len(group))]
                texts.append(", ".join(names))
                flat += group
            results = [] if result is types.void else [types.uint32]
            made = assembled(builder, text.format(*texts), results, flat, effect=True)
            if result is types.void:
                return context.get_dummy_value()
            return builder.icmp_unsigned("!=", made, ir.Constant(I32, 0))

        return result(*given), code

    # Numba requires functions with a fixed number of parameters.
    names = ", ".join(f"a{i}" for i in range(count))
    space = {"build": build}
    exec(f"def {name}(typing{', ' * bool(count)}{names}):\n    return build(typing, {names})", space)
    return INSTRUCTIONS[entry].replace_calls_of(intrinsic(space[name]))


mbarrier_init = bulk_instruction(
    "mbarrier_init", "mbarrier.init.shared::cta.b64 [{}], {};", "shared", "number", arguments=(0, 1)
)
mbarrier_arrive = bulk_instruction(
    "mbarrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [{}];", "shared", arguments=(0,)
)
mbarrier_expect = bulk_instruction(
    "mbarrier_arrive_expect_tx",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};",
    "shared",
    "number",
    arguments=(0, 1),
)
mbarrier_try_wait = bulk_instruction(
    "mbarrier_test_wait_parity",
    "{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{}], {}; selp.u32 $0, 1, 0, p; }}",
    "shared",
    "number",
    arguments=(0, 1),
    result=types.boolean,
)
fence_mbarrier_init = bulk_instruction(
    "fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", arguments=()
)
bulk_load = bulk_instruction(
    "cp_async_bulk_load",
    f"cp.async.bulk.shared::cluster.global.{COUNTED} [{{}}], [{{}}], {{}}, [{{}}];",
    "shared",
    "global",
    "number",
    "shared",
    arguments=(0, 1, 2, 3),
)
bulk_store = bulk_instruction(
    "cp_async_bulk_store",
    "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};",
    "global",
    "shared",
    "number",
    arguments=(0, 1, 2),
)
tensor_load = bulk_instruction(
    "cp_async_bulk_tensor_load",
    f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{COUNTED} [{{}}], [{{}}, {{{{{{}}}}}}], [{{}}];",
    "shared",
    "global",
    "coordinates",
    "shared",
    arguments=(0, 1, 2, 3),
)
tensor_store = bulk_instruction(
    "cp_async_bulk_tensor_store",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [{}, {{{}}}], [{}];",
    "global",
    "coordinates",
    "shared",
    arguments=(0, 1, 2),
)
bulk_commit = bulk_instruction("cp_async_bulk_commit_group", "cp.async.bulk.commit_group;", arguments=())
WAITS = {"cp_async_bulk_wait_all": "", "cp_async_bulk_wait_all_read": ".read"}
bulk_wait, bulk_wait_read = (
    bulk_instruction(entry, f"cp.async.bulk.wait_group{read} 0;", arguments=())
    for entry, read in WAITS.items()
)
mbarrier_arrive_copies = bulk_instruction(
    "cp_async_mbarrier_arrive_noinc",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{}];",
    "shared",
    arguments=(0,),
)
