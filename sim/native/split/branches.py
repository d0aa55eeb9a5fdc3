"""Code for divergent branches and loops of a warp. sim.native.codegen.branches implements its functions."""

import ast

from sim.isa.table import GIVEN, INSTRUCTIONS, WARP_WIDE
from sim.native.lower.liveness import escaping_exits
from sim.native.split.regions import WARP, Regions, indent, result_of_test


def takes_mask(node):
    """Return whether a node contains a warp operation that takes a mask."""
    syncs = {getattr(part, "sync", None) for part in ast.walk(node)}
    return any(INSTRUCTIONS[sync].mask == GIVEN for sync in syncs & WARP_WIDE)


class Branches(Regions):
    """The regions of one kernel, and code for the branches at which lanes of a warp may diverge.

    `branches` is the number of such branches around the current statement. `votes` maps the test of each of
    them to the variable that contains its votes.
    """

    def __init__(self, *given):
        super().__init__(*given)
        self.branches, self.votes = 0, {}

    def can_diverge(self, node, at):
        """Return whether lanes of a warp may diverge at a statement (sim.native.codegen.branches).

        The statement is an `if` or `while` statement around an operation with a mask. All its paths end where
        it ends, so that the warp reconverges there. Code that records errors or writes the access log treats
        a divergence as an error.
        """
        return (
            at == WARP
            and isinstance(node, (ast.If, ast.While))
            and not self.module.has_sides
            and not escaping_exits([*node.body, *node.orelse])
            and not self.is_uniform(node.test)
            and takes_mask(node)
        )

    def vote(self, test, group=()):
        """Return the lines that evaluate the test of a divergent branch for each lane.

        group: statements that each lane executes before the test.
        """
        call = self.add_region([*group], result=result_of_test(test), expression=test)
        votes = self.votes[test]
        return [f"{votes} = 0", *self.thread_loop(WARP), f"    {votes} = add_vote({votes}, {call}, thread)"]

    def lower_branch(self, node, depth, group, check):
        """Return the lines for an `if` statement at which lanes may diverge. The lanes of one arm run first,
        and then those of the other arm. The parameters are the same as for `lower_compound`.

        check: the lines that a loop runs first in each iteration. A branch needs none.
        """
        votes = self.votes[node.test] = self.module.fresh_name("votes")
        lines = self.vote(node.test, group)
        self.branches += 1
        for arm, part in (("TAKES", node.body), ("SKIPS", node.orelse)):
            if part:
                body = [*self.lower_sequence(part, WARP, depth), f"end_arm(state, warp, {votes}, {arm})"]
                lines += [f"if begin_arm(state, warp, {votes}, {arm}):", *indent(body)]
        self.branches -= 1
        return lines

    def lower_loop(self, node, depth, group, check):
        """Return the lines for a `while` loop that lanes may leave after different numbers of iterations. The
        parameters are the same as for `lower_branch`."""
        votes = self.votes[node.test] = self.module.fresh_name("votes")
        left = self.module.fresh_name("left")
        # The last region of an iteration can also evaluate the test of the next one.
        is_joint = self.ends_in_group(node.body, node.test, WARP)
        before = self.vote(node.test) if is_joint else []
        self.branches += 1
        iteration = [
            *([] if is_joint else self.vote(node.test)),
            *check,
            f"{left} = leave_loop(state, warp, {votes}, {left})",
            f"if not continues_loop(state, {votes}):",
            "    break",
            *self.lower_sequence(node.body, WARP, depth + 1, node.test if is_joint else None),
        ]
        self.branches -= 1
        head = "while count_iteration(state, 32):"
        return [f"{left} = 0", *before, head, *indent(iteration), f"end_loop(state, warp, {left})"]
