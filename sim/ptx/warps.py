"""Instructions of warps by their names in PTX: the entry of the table, the types of operands and results, and
which operand of the table is which of PTX."""

from typing import NamedTuple

from sim.isa import shuffles as _shuffles  # noqa: F401  enters its instructions
from sim.isa.registers import Missing, type_name
from sim.isa.table import ALL, INSTRUCTIONS, PTX, Instruction

# name in PTX -> (entry, kinds of its operands, results, which operand each is)
BY_MASK = {
    "vote.sync.all.pred": ("all_sync", ("b32", "pred"), ("pred",), (1, 0)),
    "vote.sync.any.pred": ("any_sync", ("b32", "pred"), ("pred",), (1, 0)),
    "vote.sync.uni.pred": ("eq_sync", ("b32", "pred"), ("pred",), (1, 0)),
    "vote.sync.ballot.b32": ("ballot_sync", ("b32", "pred"), ("b32",), (1, 0)),
    "match.any.sync.b32": ("match_any_sync", ("b32", "b32"), ("b32",), (1, 0)),
    "match.any.sync.b64": ("match_any_sync", ("b32", "b64"), ("b32",), (1, 0)),
    "match.all.sync.b32": ("match_all_sync", ("b32", "b32"), ("b32", "pred"), (1, 0)),
    "match.all.sync.b64": ("match_all_sync", ("b32", "b64"), ("b32", "pred"), (1, 0)),
    "bar.warp.sync": ("syncwarp", ("b32",), (), (0,)),
    "activemask.b32": ("activemask", (), ("u32",), ()),
    "elect.sync": ("elect.sync", ("b32",), ("b32", "pred"), (0,)),
}
BY_MASK |= {
    f"shfl.sync.{mode}.b32": (
        f"shfl.sync.{mode}",
        ("b32", "b32", "u32", "u32"),
        ("b32", "pred"),
        (3, 0, 1, 2),
    )
    for mode in ("idx", "up", "down", "bfly")
}
BY_MASK |= {
    f"redux.sync.{name}": (f"redux.sync.{name}", ("b32", name[-3:]), (name[-3:],), (1, 0))
    for name in (
        *(f"{o}.{t}" for o in ("add", "min", "max") for t in ("u32", "s32")),
        "and.b32",
        "or.b32",
        "xor.b32",
    )
}


class Form(NamedTuple):
    """How PTX spells an instruction of warps."""

    entry: Instruction
    operands: tuple[str, ...]
    results: tuple[str, ...]
    order: tuple[int, ...]  # of the entry's operands, in PTX's


def form_of(opcode):
    """The Form of an instruction of warps. Errors: Missing."""
    plain = ".".join(part for part in opcode.split(".") if part != "aligned")
    if plain in BY_MASK:
        name, *rest = BY_MASK[plain]
        return Form(INSTRUCTIONS[name], *rest)
    entry = PTX.get(plain)
    if not isinstance(entry, Instruction) or entry.mask != ALL:
        raise Missing(opcode)
    operands, results = (
        tuple(map(bits_or_float, kinds.values())) for kinds in (entry.operands, entry.results)
    )
    return Form(entry, operands, results, tuple(range(len(operands))))


def bits_or_float(dtype):
    """PTX's name of a type, of one word's bits where that is all that it says."""
    return "b32" if dtype is None else type_name(dtype).replace("u32", "b32")
