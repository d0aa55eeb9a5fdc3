"""Basic blocks of a function, and an order in which structured code can run them.

Blocks that lie on a cycle form a Loop. If each loop of a region counts as one part, the region has no cycle
left, so its parts can be put into topological order. Code that goes through them from top to bottom, and runs
a part only if it is the next one, then reaches every block. Only a jump backwards needs iteration: its target
is in the same Loop, which starts again from its top. In this way any graph, even an irreducible one, becomes
nested `while` loops without a copy of a block.

Source: PTX ISA 9.7.12, "bra", "brx.idx", "ret", "exit".
"""

from dataclasses import dataclass, field

from sim.errors import LaunchError
from sim.ptx.syntax import Instruction, Label


@dataclass(eq=False)
class Block:
    """Instructions that run one after another, and a jump to one of `targets`.

    There is one target, or two if the jump has a guard (the first if the guard holds), or several if it has
    an index. A target None means that the function returns.
    """

    body: list = field(default_factory=list)
    branch: Instruction | None = None  # the conditional jump, if there is one
    targets: list = field(default_factory=list)
    sources: int = 0  # how many jumps lead to it
    number: int = -1  # the value of `go` at which it runs


@dataclass(eq=False)
class Loop:
    """Blocks and Loops in topological order, the entry first. Their numbers are `first` to `last`."""

    parts: list
    first: int = -1
    last: int = -1


def blocks_of(function):
    """Return the Blocks of a function in the order of its text, the entry first."""
    leaders, blocks, wanted = {}, [Block()], destinations(function)
    for item in function.body:
        if isinstance(item, Label):
            if blocks[-1].body and item.name in wanted:
                blocks.append(Block())
            leaders[item.name] = blocks[-1]
        elif isinstance(item, Instruction) and item.names[0] in ("bra", "brx", "ret", "exit"):
            end_block(blocks, item)
        else:
            blocks[-1].body.append(item)
    # A block without a jump continues with the next one. Labels are replaced by their blocks.
    for block, following in zip(blocks, [*blocks[1:], None]):
        goes = block.targets or [following]
        block.targets = [block_of_label(leaders, *t, function) if isinstance(t, tuple) else t for t in goes]
    return reachable_blocks(blocks)


def destinations(function):
    """Return the names of the labels that jumps go to. Compilers write many other labels, for debuggers."""
    jumps = (
        item for item in function.body if isinstance(item, Instruction) and item.names[0] in ("bra", "brx")
    )
    return {symbol.name for jump in jumps for symbol in labels(jump)}


def labels(jump):
    """Return the Symbols that a jump or a return may go to."""
    return jump.operands[1].parts if jump.names[0] == "brx" else jump.operands[:1]


def block_of_label(leaders, name, line, function):
    """Return the Block of a label. Errors: LaunchError."""
    if name not in leaders:
        raise LaunchError(
            f"PTX line {line}: {function.name} jumps to {name}, a label that its PTX does not have: an"
            " assembler would refuse it\n  libNVVM loses one at times under -lineinfo; compile without that"
        )
    return leaders[name]


def end_block(blocks, jump):
    """End the last block with a jump, and begin another."""
    ended, following = blocks[-1], Block()
    blocks.append(following)
    indexed = jump.names[0] == "brx"
    ended.branch = jump if jump.guard or indexed else None
    ended.targets = [(symbol.name, jump.line) for symbol in labels(jump)] or [None]
    if jump.guard and not indexed:
        ended.targets.append(following)


def reachable_blocks(blocks):
    """Return the blocks that the entry reaches, without empty ones. Count the jumps that lead to each."""

    def skip_empty(block):
        seen = set()
        while block is not None and not block.body and block.branch is None and id(block) not in seen:
            seen.add(id(block))
            block = block.targets[0]
        return block

    entry, found, waiting = blocks[0], [], [blocks[0]]
    entry.sources = 1
    seen = {id(entry)}
    while waiting:
        block = waiting.pop()
        found.append(block)
        block.targets = [skip_empty(target) for target in block.targets]
        # a conditional jump whose two targets are the same
        if block.branch and block.branch.names[0] != "brx" and block.targets[0] is block.targets[1]:
            block.branch, block.targets = None, block.targets[:1]
        for target in block.targets:
            if target is not None:
                target.sources += 1
                if id(target) not in seen:
                    seen.add(id(target))
                    waiting.append(target)
    return [block for block in blocks if id(block) in seen]


def order_blocks(blocks):
    """Return Blocks and Loops in topological order, numbered."""
    if blocks[0].sources > 1:
        # a jump back to the entry: an empty block becomes the entry, so that the loop is found
        blocks = [Block(targets=[blocks[0]], sources=1), *blocks]
    parts = arrange(blocks, blocks[0])
    number_parts(parts, 0)
    return parts


def arrange(blocks, entry):
    """Return the parts of a region that is entered at `entry`. Jumps back to the entry are left to the
    loop around."""
    inside = {id(block): block for block in blocks}
    parts = []
    for group in components(blocks, inside, entry):
        if len(group) == 1 and (group[0] is entry or group[0] not in group[0].targets):
            parts.append(group[0])
            continue
        # The loop's head is a block to which control comes from outside. If there are several (the graph is
        # irreducible), any of them will do: `go` selects the block that runs first.
        outside = [b for b in blocks if b not in group]
        head = next((b for b in group if any(b in o.targets for o in outside)), group[0])
        parts.append(Loop(arrange(group, head)))
    return parts


def components(blocks, inside, entry):
    """Return the strongly connected components in topological order (Kosaraju's algorithm), the entry's
    first. Jumps to `entry` do not count."""
    targets = {
        key: [id(t) for t in block.targets if id(t) in inside and t is not entry]
        for key, block in inside.items()
    }
    sources = {key: [] for key in inside}
    for key, found in targets.items():
        for target in found:
            sources[target].append(key)
    # First the blocks in postorder of the graph, then the components in the transposed graph.
    order, seen = [], set()
    for start in (entry, *blocks):
        order += postorder(id(start), targets, seen)
    position, seen = {key: at for at, key in enumerate(inside)}, set()
    groups = [sorted(postorder(start, sources, seen), key=position.get) for start in reversed(order)]
    return [[inside[key] for key in group] for group in groups if group]


def postorder(start, following, seen):
    """Return the nodes reachable from `start` without passing through `seen`, in depth-first postorder."""
    # an explicit stack: functions of thousands of blocks would exceed Python's recursion limit
    found, path = [], [] if start in seen else [(start, iter(following[start]))]
    seen.add(start)
    while path:
        here, rest = path[-1]
        ahead = next((other for other in rest if other not in seen), None)
        if ahead is None:
            found.append(here)
            path.pop()
        else:
            seen.add(ahead)
            path.append((ahead, iter(following[ahead])))
    return found


def number_parts(parts, following):
    """Give blocks consecutive numbers in their order. Return the next free number."""
    for part in parts:
        if isinstance(part, Loop):
            part.first = following
            following = number_parts(part.parts, following)
            part.last = following - 1
        else:
            part.number, following = following, following + 1
    return following
