"""The basic blocks of a function, and an order in which structured code can execute them.

Blocks on a common cycle form a Loop. If each Loop counts as one part, the parts of a region form an acyclic
graph, so they have a topological order. Code that visits the parts in this order, and executes a part only if
it is the jump target, reaches every block by forward jumps. Only a backward jump needs another iteration. Its
target is in the same Loop, which starts again at its top. In this way, any control-flow graph, even an
irreducible graph, becomes nested `while` loops without duplicated blocks.

Source: PTX ISA 9.7.12, "Control Flow Instructions" (bra, brx.idx, ret, exit).
"""

from dataclasses import dataclass, field

from sim.errors import LaunchError
from sim.ptx.syntax import Instruction, Label


@dataclass(eq=False)
class Block:
    """A basic block: instructions that execute one after another, and then a jump to one of `targets`.

    An unconditional jump has one target. A guarded jump has two targets, and jumps to the first one if the
    guard is true. An indexed jump has several targets. A target None represents a return from the function.
    """

    body: list = field(default_factory=list)
    branch: Instruction | None = None  # the conditional jump, if there is one
    targets: list = field(default_factory=list)
    sources: int = 0  # the number of jumps to the block
    number: int = -1  # the value of `go` that selects the block


@dataclass(eq=False)
class Loop:
    """Blocks and nested Loops in topological order, beginning with the entry. Their numbers are `first` to
    `last`."""

    parts: list
    first: int = -1
    last: int = -1


def blocks_of(function):
    """Return the Blocks of a function in the order of the text, beginning with the entry."""
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
    # A block without a jump falls through to the next block. Replace the labels of all targets by their
    # blocks.
    for block, following in zip(blocks, [*blocks[1:], None]):
        goes = block.targets or [following]
        block.targets = [block_of_label(leaders, *t, function) if isinstance(t, tuple) else t for t in goes]
    return reachable_blocks(blocks)


def destinations(function):
    """Return the names of the labels that are jump targets.

    Compilers also emit many labels for debuggers. These need no blocks.
    """
    jumps = (
        item for item in function.body if isinstance(item, Instruction) and item.names[0] in ("bra", "brx")
    )
    return {symbol.name for jump in jumps for symbol in labels(jump)}


def labels(jump):
    """Return the Symbols of a branch's possible target labels. A return has no labels."""
    return jump.operands[1].parts if jump.names[0] == "brx" else jump.operands[:1]


def block_of_label(leaders, name, line, function):
    """Return the Block at which a label begins. Raise LaunchError if the label does not exist."""
    if name not in leaders:
        raise LaunchError(
            f"PTX line {line}: {function.name} jumps to {name}, but its PTX does not define this label: an"
            " assembler would refuse it\n  libNVVM sometimes loses a label under -lineinfo; compile without"
            " this option"
        )
    return leaders[name]


def end_block(blocks, jump):
    """End the last block with a jump, and append a new block."""
    ended, following = blocks[-1], Block()
    blocks.append(following)
    indexed = jump.names[0] == "brx"
    # An unconditional jump is represented by its target alone.
    ended.branch = jump if jump.guard or indexed else None
    ended.targets = [(symbol.name, jump.line) for symbol in labels(jump)] or [None]
    if jump.guard and not indexed:
        ended.targets.append(following)


def reachable_blocks(blocks):
    """Return the non-empty blocks that are reachable from the entry.

    Also count the jumps to each block, in its attribute `sources`.
    """

    def skip_empty(block):
        seen = set()
        while block is not None and not block.body and block.branch is None and id(block) not in seen:
            seen.add(id(block))
            block = block.targets[0]
        return block

    # A call of the function is counted as a jump to its entry.
    entry, found, waiting = blocks[0], [], [blocks[0]]
    entry.sources = 1
    seen = {id(entry)}
    while waiting:
        block = waiting.pop()
        found.append(block)
        block.targets = [skip_empty(target) for target in block.targets]
        # A conditional jump whose two targets are equal is unconditional.
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
    """Return the Blocks and Loops of a function in topological order, and number the blocks."""
    if blocks[0].sources > 1:
        # The entry is a jump target. Insert an empty block before the entry, so that the loop that begins at
        # the entry is found.
        blocks = [Block(targets=[blocks[0]], sources=1), *blocks]
    # The numbers follow the order of the parts, so that each Loop has consecutive numbers.
    parts = arrange(blocks, blocks[0])
    number_parts(parts, 0)
    return parts


def arrange(blocks, entry):
    """Return the parts of a region in topological order. Jumps back to the entry belong to the enclosing
    loop.

    entry: the region's entry block.
    """
    inside = {id(block): block for block in blocks}
    parts = []
    for group in components(blocks, inside, entry):
        if len(group) == 1 and (group[0] is entry or group[0] not in group[0].targets):
            parts.append(group[0])
            continue
        # The head of the loop is a block that is the target of a jump from outside. An irreducible loop has
        # several such blocks, and any of them can be the head, because `go` selects the block that runs
        # first.
        outside = [b for b in blocks if b not in group]
        head = next((b for b in group if any(b in o.targets for o in outside)), group[0])
        parts.append(Loop(arrange(group, head)))
    return parts


def components(blocks, inside, entry):
    """Return the strongly connected components in topological order, beginning with the entry's component.

    The algorithm is Kosaraju's. Jumps to `entry` are ignored.

    inside: {id: Block} for the blocks of the region.
    """
    targets = {
        key: [id(t) for t in block.targets if id(t) in inside and t is not entry]
        for key, block in inside.items()
    }
    sources = {key: [] for key in inside}
    for key, found in targets.items():
        for target in found:
            sources[target].append(key)
    # First compute the postorder of the graph. Then find the components by searching the transposed graph in
    # reverse postorder.
    order, seen = [], set()
    for start in (entry, *blocks):
        order += postorder(id(start), targets, seen)
    position, seen = {key: at for at, key in enumerate(inside)}, set()
    groups = [sorted(postorder(start, sources, seen), key=position.get) for start in reversed(order)]
    return [[inside[key] for key in group] for group in groups if group]


def postorder(start, following, seen):
    """Return the nodes reachable from `start`, in depth-first postorder, and add them to `seen`. Nodes
    already in `seen` are skipped."""
    # Use an explicit stack: a function with thousands of blocks would exceed Python's recursion limit.
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
    """Number the blocks consecutively in this order, and return the next free number."""
    for part in parts:
        if isinstance(part, Loop):
            part.first = following
            following = number_parts(part.parts, following)
            part.last = following - 1
        else:
            part.number, following = following, following + 1
    return following


def blocks_in(part):
    """Return all Blocks in a Block or Loop, including those of nested Loops."""
    return [block for inner in part.parts for block in blocks_in(inner)] if isinstance(part, Loop) else [part]


def first_instruction(loop):
    """Return the instruction whose line represents the loop in findings: its backward branch, if it has
    one."""
    blocks = blocks_in(loop)
    for block in blocks:
        back = any(target is not None and target.number <= block.number for target in block.targets)
        if block.branch is not None and back:
            return block.branch
    return next((i for block in blocks for i in block.body), None)


def assign_homes(parts, around, home, heads):
    """Record the enclosing Loop of each block, and the entry block of each loop."""
    for part in parts:
        if isinstance(part, Loop):
            heads.add(id(blocks_in(part)[0]))
            assign_homes(part.parts, part, home, heads)
        else:
            home[id(part)] = around
