"""The advice about a barrier that some threads of the block do not reach.

The source shows why they do not reach it: the barrier is in a branch, after a return, or in a loop whose
number of iterations differs between threads.
"""

from sim.events import Advice, Step
from sim.findings import END_BEFORE_BARRIER

USUAL = (
    "move the barrier out of the branch (or the return after the barrier), so that every thread reaches it"
)
PATTERN = "barrier that some threads miss"


def advice_for_barriers(context, sites):
    """Return (fix, Advice or None) for barriers at which only some threads of a block wait.

    sites: the Sites of the barriers.
    """
    places = {place for site in sites if (place := place_of(context, site)) is not None}
    if len(places) != len(sites):
        return USUAL, None
    inside = [place for place in places if place.branches]
    if len(places) > 1 and len(inside) == len(places):
        return fix_of_several_barriers(sorted(places, key=lambda place: place.line)), None
    chosen = min(inside or places, key=lambda place: place.line, default=None)
    return (USUAL, None) if chosen is None or len(places) > 2 else chosen.advice()


def place_of(context, site):
    """Return the Place of a barrier in the kernel, or None if it is not known.

    If a compiler has inlined the function that contains the barrier, the Place describes the call in the
    kernel.
    """
    outline = context.outline(site)
    called = {chain[-1] for chain in site.calls}
    if outline is None or len(called) > 1:
        return None
    line = called.pop() if called else site.line
    home = outline.function(line)
    # The place is unknown: a function that is not inlined may be called in a branch.
    if home is None or not (site.function == context.kernel or "__global__" in outline.lines[home.first]):
        return None
    return Place(outline, line, site)


class Place:
    """The line of a barrier, or of a call that leads to it, in a kernel."""

    def __init__(self, outline, line, site):
        self.outline, self.line, self.site = outline, line, site
        self.node = outline.innermost(line)
        above = outline.holders(self.node, outline.root)
        self.branches = [node.first for node in above if node.kind == "branch"]
        self.loops = [node for node in above if node.kind == "loop"]

        self.barrier = "the call with the barrier" if site.calls else "the barrier"

    def advice(self):
        """Return (fix, Advice or None)."""
        if self.branches:
            return self.out_of_branches()
        if leaves := self.early_exits("return", self.outline.function(self.line)):
            return (
                f"replace the return on line {leaves[0].first} with a branch around the statements after it,"
                f" but keep {self.barrier} on line {self.line} outside of this branch, so that every thread"
                " reaches it",
                self.divided(),
            )
        for loop in self.loops[::-1]:
            if leaves := self.early_exits("leave", loop):
                text = self.outline.lines[leaves[0].first].strip()
                word = "break" if "break" in text else "continue"
                return (
                    f"replace the `{word}` on line {leaves[0].first} with a branch around the statements"
                    f" after it, but keep {self.barrier} on line {self.line} outside of this branch, so that"
                    " every thread reaches it in every iteration",
                    None,
                )
        if self.loops:
            return (
                "let every thread of the block execute the same number of iterations of the loop at line"
                f" {self.loops[-1].first}: if a thread has no work in an iteration, let it skip the work, but"
                f" not {self.barrier}",
                None,
            )
        return USUAL, None

    def out_of_branches(self):
        lines = sorted(self.branches)
        inner = [loop.first for loop in self.loops if loop.first > lines[0]]
        if inner:
            return (
                f"move the branch at line {lines[0]} into the loop at line {inner[0]}, so that every thread"
                f" of the block executes the loop, and keep {self.barrier} on line {self.line} outside of the"
                " branch",
                None,
            )
        several = len(lines) > 1
        named = f"branch{'es' * several} at line{'s' * several} {' and '.join(map(str, lines))}"
        return (
            f"move {self.barrier} on line {self.line} out of the {named}: {END_BEFORE_BARRIER}",
            self.divided(),
        )

    def divided(self):
        """Return the Advice that divides the branches around the barrier, or None if that is not possible."""
        node = self.node
        if self.site.calls or not self.outline.divisible(node):
            return None
        return Advice(PATTERN, (Step("divide", self.site.function, node.last, "nothing else", node.first),))

    def early_exits(self, kind, holder):
        """Return the Nodes of a kind ("return" or "leave") that leave a Node before the barrier."""
        found, waiting = [], [part for part in holder.parts if part.first < self.node.first]
        while waiting:
            node = waiting.pop()
            if node.kind == kind:
                found.append(node)
            inner = node.kind == "loop" and kind == "leave"
            waiting += () if inner else [part for part in node.parts if part.first < self.node.first]
        return sorted(found, key=lambda node: node.first)


def fix_of_several_barriers(places):
    """Return the fix for barriers in different branches, or in different arms of a branch."""
    lines = " and ".join(str(place.line) for place in places)
    first = min(line for place in places for line in place.branches)
    return (
        f"replace the barriers on lines {lines} with one barrier that every thread of the block reaches: end"
        f" the branch at line {first}, put the barrier after it, and put the statements that followed the old"
        " barriers into a second branch with the same condition"
    )
