"""The fixes for races, as sentences and as steps that a program can apply. Terms in braces are keys of
sim.observers.words."""

from sim.events import LOAD, STORE, Step
from sim.findings import END_BEFORE_BARRIER
from sim.observers.access_pair import NAMED_BARRIER
from sim.observers.call_lines import fix_between_functions
from sim.observers.copies import WAIT, WAIT_FOR_PHASE
from sim.observers.statements import assignment, atomic_target
from sim.observers.words import NUMBA, TRITON

CALLERS = "each of its {} threads"
EVERY = "where {everyone} reaches it"


def has_barrier_between(facts):
    """Return whether the source has a barrier between the two lines."""
    return any(facts.low < line < facts.high for line in facts.barriers)


def needs_two_barriers(facts):
    """Return whether the two lines are in a loop without any barrier. Such a loop needs two barriers."""
    return facts.loop is not None and not facts.barriers_in_loop


def branch_in_loop(facts):
    """Return the branch that contains both lines, if the loop around it has no barrier. Return None if there
    is no such branch, or if not every thread reaches the code after it.

    A barrier between the two lines would require the branch to be divided. One barrier after the branch is
    enough if the accesses race only in different iterations, so this fix is suggested first.
    """
    if facts.outline is None or facts.same_line or facts.named or not needs_two_barriers(facts):
        return None
    node = facts.outline.part(facts.loop, facts.low)
    fits = node is facts.outline.part(facts.loop, facts.high) and node and node.kind == "branch"
    return node if fits and facts.outline.all_reach_end(node) else None


def moved_view(facts):
    """Return (the view to move, the other view, the byte at which the moved view has to begin)."""
    named = sorted((site.line, name) for name, site in zip(facts.views, (facts.one, facts.other)))
    spans = [(*facts.span(name), name) for _, name in named]
    (_, end, stays), (_, _, moves) = sorted(spans, key=lambda span: (span[0], -span[1]))
    return moves, stays, end


def cause_of_views(facts):
    spans = [(name, *facts.span(name)) for name in sorted(facts.views)]
    used = ", ".join(f"{name} uses bytes {first} to {end - 1}" for name, first, end in spans)
    return f"{spans[0][0]} and {spans[1][0]} are two views of the same memory: {used}."


def fix_of_written_views(facts):
    moves, stays, end = moved_view(facts)
    return (
        f"move {moves} to byte {end} or later, after {stays}, and give the launch enough shared memory for"
        f" {stays} and {moves}; a barrier would only determine which of the two writes is lost"
    )


def fix_of_views(facts):
    moves, stays, end = moved_view(facts)
    apart = f"move {moves} to byte {end} or later, after {stays}"
    if facts.space == "global":
        apart = f"pass arrays that do not overlap as {stays} and {moves}"
    return f"if {stays} and {moves} are not meant to overlap, {apart}; otherwise, {general_fix(facts)}"


def general_fix(facts):
    """Return the general fix: a second launch for a race between blocks, a barrier for a race within a
    block or cluster."""
    if facts.several_blocks:
        return (
            "let each block write elements of its own, combine them with {atomics}, or end the kernel and"
            f" launch a second one for what comes after{grid_barrier_advice(facts, ', or ')}"
        )
    return fix_of_barrier(facts)


def grid_barrier_advice(facts, joint):
    """Return the advice to split one statement by a grid barrier, or "" if it does not apply."""
    if facts.language == TRITON or not facts.same_line or facts.loop or not steps_of_usual(facts):
        return ""
    return f"{joint}split line {facts.low}: read into a variable, then {{grid_barrier}}, then write"


def fix_of_phases(facts):
    if facts.same_line:
        return fix_of_phases_in_line(facts)
    again = f" and at the end of each iteration of the loop at line {facts.loop.first}" if facts.loop else ""
    sync = ", or synchronise all blocks there: {grid_barrier}, which every thread of the grid has to reach"
    if facts.language == TRITON:
        sync = ""
    return (
        f"end the kernel between lines {facts.low} and {facts.high}{again}, and launch a second one for what"
        f" comes after{sync}{branch_advice(facts) if sync else ''}"
    )


def fix_of_loop_with_grid_barrier(facts):
    """Return the fix for a loop that has a grid barrier on only one of the two paths between the two lines:
    within an iteration, or from one iteration to the next."""
    low, high = facts.low, facts.high
    outside = sorted(line for line in facts.barriers_in_loop if not low < line < high)
    if not has_barrier_between(facts):
        place = f"between lines {low} and {high}{branch_advice(facts)}"
    elif outside:
        return f"let every thread of the grid reach {{grid_barrier}} on line {outside[0]} in each iteration"
    else:
        place = f"after line {high} and before the loop returns to line {low}"
    return f"one more {{grid_barrier}}, which every thread of the grid has to reach, {place}"


def fix_of_phases_in_line(facts):
    """Return the fix for a statement in a loop in which a block reads what other blocks write."""
    line = facts.low
    sync = (
        f"split line {line}: read into a variable, then {{grid_barrier}}, then write; add a second"
        " {grid_barrier} at the end of each iteration; or "
    )
    if facts.language == TRITON:
        sync = ""
    return (
        f"{sync}launch the kernel once for each iteration of the loop at line {facts.loop.first}, let line"
        f" {line} read one array and write to another, and swap the two arrays between the launches"
    )


def branch_advice(facts):
    """Return the advice about a branch around the position of the barrier, or about a return before it."""
    outline = facts.outline
    node = outline and outline.between(facts.low, facts.high)
    if node is None or facts.named or outline.all_reach_end(node):
        return ""
    if branch := outline.outermost(node):
        return f" (outside of the branch at line {branch.first}: {END_BEFORE_BARRIER})"
    return "; replace a return before it with a branch around the statements that the other threads execute"


def between_lines(facts):
    """Return the place of a barrier between the two lines. The barrier follows the wait for a copy."""
    wait = facts.copy_waits and facts.copy_waits.between
    return f"between lines {wait} and {facts.high}" if wait else "between the two lines"


def fix_of_copy(facts):
    """Return the fix for an asynchronous copy that no thread waits for before another thread's access."""
    if facts.copy_waits.is_tracked:
        site = facts.other if facts.a.position in facts.copies else facts.one
        return f"{WAIT_FOR_PHASE} before {facts.line_of(site)}"
    return f"{WAIT}; after this wait, {fix_of_arms(facts) if is_in_arms(facts) else fix_of_barrier(facts)}"


def is_in_arms(facts):
    """Return whether the two accesses are in different arms of a branch, or of a branch of a caller."""
    return facts.branch or facts.branch_of_calls


def fix_of_barrier(facts):
    low, high = facts.low, facts.high
    again = f"after line {high} and before the loop returns to line {low}"
    if facts.same_line:
        return f"{{barrier}} between the passes over this line, {EVERY}"
    if not facts.in_one_function:
        return fix_between_functions(facts, EVERY)
    if has_barrier_between(facts):
        return fix_of_passed_barrier(facts, again)
    if branch := branch_in_loop(facts):
        return (
            f"{{barrier}} after the branch at line {branch.first} and before the loop returns to line"
            f" {facts.loop.first}, {EVERY}; if the two lines still race then, one more between them, outside"
            " of the branch"
        )
    if needs_two_barriers(facts):
        return f"{{barrier}} {between_lines(facts)}, and one more {again}, {EVERY}"
    return f"{{barrier}} {between_lines(facts)}, {EVERY}{branch_advice(facts)}"


def fix_of_passed_barrier(facts, again):
    """Return the fix for two lines that race although a barrier separates them.

    again: the words that say where to insert one more barrier, if a loop contains the two lines.
    """
    apart = ""
    if facts.named and facts.callers > facts.named[1]:
        number, count = facts.named
        apart = (
            f"let each group of {count} threads that exchange data call a named barrier with a number of its"
            f" own, or pass {facts.callers} as the number of threads if they form one group: {facts.callers}"
            f" threads call bar.sync {number}, {count}, and any {count} of them open it"
        )
        if facts.loop is None:
            return apart
    place = again if facts.loop else f"after line {facts.high}, before the two lines are executed again"
    return f"{apart}{'; and ' * bool(apart)}one more {{barrier}}, {place}, {EVERY}"


def insertion_steps(facts, node, what):
    """Return the Steps that insert `what` after a Node of the outline. Without a Node, return no steps."""
    return () if node is None else (Step("insert", facts.one.function, node.last, what, node.first),)


def steps_of_barrier(facts):
    what = barrier_for(facts)
    if facts.named:
        return ()
    outline, low, high, loop = facts.outline, facts.low, facts.high, facts.loop
    if outline is None:
        return ()
    if facts.copy_waits and facts.copy_waits.between:
        low = facts.copy_waits.between
    last = loop and outline.part(loop, high)
    after = insertion_steps(facts, last, what) if last and outline.all_reach_end(last) else ()
    if facts.same_line or has_barrier_between(facts) or branch_in_loop(facts):
        return after
    first = steps_between_lines(facts, low, high, what)
    return first + after if first and loop is not None and needs_two_barriers(facts) else first


def steps_between_lines(facts, low, high, what):
    """Return the Steps that insert `what` between two lines, at a place reached by every thread. If there is
    no such place, return no steps."""
    node = facts.outline.between(low, high)
    if node is None or facts.outline.all_reach_end(node):
        return insertion_steps(facts, node, what)
    if not facts.outline.divisible(node):
        return ()
    return (Step("divide", facts.one.function, node.last, what, node.first),)


def insertion_after_line(facts, line, what):
    return insertion_steps(facts, facts.outline and facts.outline.innermost(line), what)


def called_on(facts):
    """Return " (as on line 8)" if line 8 calls a function that contains the named barrier."""
    lines = [
        line for line in sorted(facts.named_lines) if not NAMED_BARRIER.search(facts.outline.lines[line])
    ]
    return f" (as on line {lines[0]})" if lines else ""


def fix_of_named_arms(facts):
    """Return the fix for two arms of a branch whose threads wait at the same named barrier, maybe on
    different lines."""
    number, count = facts.named
    if facts.branch and facts.loop and has_ordered_arms(facts):
        return (
            f"let the same {count} threads wait at a second named barrier, with another number, at the end of"
            f" each iteration of the loop at line {facts.loop.first}: bar.sync {number} orders line"
            f" {facts.one.line} before line {facts.other.line}, but not line {facts.other.line} before line"
            f" {facts.one.line} in the next iteration"
        )
    return (
        "in the arm whose access must come first, call {barrier} after the access; in the other arm, call it"
        f" before the access (lines {facts.low} and {facts.high}). " + f"All {count} threads have to call it"
    )


def has_ordered_arms(facts):
    """Return whether the first access precedes a call of a named barrier in its arm, and the second access
    follows one in its arm."""
    arms = [facts.outline.part(facts.branch, site.line) for site in (facts.one, facts.other)]
    lines = [[n for n in facts.named_lines if arm.first <= n <= arm.last] for arm in arms]
    return any(n > facts.one.line for n in lines[0]) and any(n < facts.other.line for n in lines[1])


def fix_of_arms(facts):
    if facts.named:
        return fix_of_named_arms(facts)
    branch, place = (facts.branch, "") if facts.branch else (facts.branch_of_calls, facts.calls.place)
    return (
        f"divide the branch at line {branch.first}{place} into two branches: first the arm whose access must"
        f" come first, then {{barrier}}, {EVERY}, then the other arm under its own condition"
    )


def fix_of_statements(facts):
    line = f"put the statements of line {facts.low} on lines of their own"
    known = all(map(facts.statement, (facts.one, facts.other)))
    if known and facts.actions == {STORE, LOAD} and not facts.colliding and not facts.several_blocks:
        return f"{line}, with {{barrier}} between the two, {EVERY}"
    return f"{line} and simulate again: the finding then names the two that race"


def applicable_steps(facts, steps):
    """Return the steps in a form that a program can apply. If Numba's atomics cannot name the element, return
    no steps.

    A statement on an edited line is first moved to a line of its own.
    """
    edited = {step.line for step in steps if step.action in ("atomic", "split", "guard")}
    if shared := facts.shared_lines(sorted(edited)):
        return tuple(Step("separate", facts.one.function, line, "statements") for line in shared)
    texts = [text for step in steps if step.action == "atomic" for text in elements_of(facts, step)]
    named = facts.language != NUMBA or all(map(atomic_target, texts))
    return tuple(steps) if named else ()


def elements_of(facts, step):
    """Return [text of the element for which a step inserts an atomic], or [] if the step inserts no
    atomic."""
    found = assignment(facts.outline.lines[step.line]) if facts.outline else None
    return [step.element] if step.element else [found.target] if found and found.is_element else []


def fix_of_passes(facts):
    return f"{launch_per_iteration(facts)}; an atomic would not put the iterations in order"


def launch_per_iteration(facts):
    """Return the advice to launch a kernel once for each iteration, or to synchronise the grid after each
    iteration."""
    loop = facts.loop or (facts.calls and facts.calls.loop)
    place = f"each iteration of the loop at line {loop.first}" if loop else "each iteration"
    sync = ", or synchronise all blocks there: {grid_barrier}, which every thread of the grid has to reach"
    if facts.language == TRITON:
        sync = ""
    return f"end the kernel after {place} and launch it again for the next{sync}"


def steps_of_alternation(facts):
    """Return the Step that inserts a grid barrier at the end of the loop's iterations."""
    last = facts.loop and facts.outline.part(facts.loop, facts.high)
    reached = last and facts.outline.all_reach_end(last)
    return insertion_steps(facts, last, "grid barrier") if reached else ()


def fix_of_waiting(facts):
    last = "; or end the kernel and launch a second one for what comes after" if facts.several_blocks else ""
    if not facts.several_blocks and facts.in_one_function and not facts.same_line and not facts.branch:
        last = f"; or {fix_of_barrier(facts)}"
    return (
        "let one thread execute an atomic after its access and {fence}, and let the other thread wait for"
        f" this atomic before its own access; or let both threads hold the same lock{last}"
    )


def steps_of_usual(facts):
    """Return the steps of the general fix. For a race between blocks, a grid barrier marks where the kernel
    can be split."""
    if facts.several_blocks and facts.branch:
        return steps_of_arms(facts)
    if facts.several_blocks and facts.same_line and not facts.colliding and facts.actions == {STORE, LOAD}:
        return steps_of_statement(facts)
    return steps_of_barrier(facts)


def barrier_for(facts):
    return "cluster barrier" if facts.in_cluster else "grid barrier" if facts.several_blocks else "barrier"


def steps_of_arms(facts):
    node = facts.branch
    if node is None or facts.named or not facts.outline.divisible(node):
        return ()
    what = f"branch{' of the grid' * facts.several_blocks}{' of the cluster' * facts.in_cluster}"
    return (Step("split", facts.one.function, node.first, what, facts.one.line),)


def fix_of_statement(facts):
    node = facts.outline.innermost(facts.one.line)
    branch = facts.outline.outermost(node)
    held = ""
    if branch and not facts.named and branch.first != facts.one.line:
        held = f" (outside of the branch at line {branch.first}: divide this branch at the barrier)"
    return f"split line {facts.one.line}: read into a variable, then {{barrier}}, {EVERY}{held}, then write"


def steps_of_statement(facts):
    """Return the Step that splits a statement, if the branches around the statement can be split there
    too."""
    node = facts.outline and facts.outline.innermost(facts.one.line)
    if node is None or facts.named or not facts.outline.divisible(node):
        return ()
    return (Step("split", facts.one.function, facts.one.line, barrier_for(facts)),)


def fix_of_missed_barrier(facts):
    line = facts.missed_barrier
    branch = facts.outline.outermost(facts.outline.innermost(line))
    return (
        f"move {{barrier}} on line {line} out of the branch at line {branch.first}, so that every thread of"
        f" the block reaches it: {END_BEFORE_BARRIER}"
    )


def steps_of_missed_barrier(facts):
    node = facts.outline.innermost(facts.missed_barrier)
    if not facts.outline.divisible(node):
        return ()
    return (Step("divide", facts.one.function, node.last, "nothing else", node.first),)


def fix_of_buffers(facts):
    name, number = facts.buffers
    more = int(number) + 1 if number.isdigit() else f"{number} + 1"
    store, load = sorted((facts.one, facts.other), key=lambda site: site.action != "store")
    instead = f"{{barrier}} before line {store.line}, {EVERY}"
    if store.line < load.line:
        instead = f"fill it on line {store.line} only after line {load.line} and {{barrier}}, {EVERY}"
    return f"give {name} one more buffer ({more} in its shape and after each %); or {instead}"


def steps_of_buffers(facts):
    name, number = facts.buffers
    return (Step("buffers", facts.one.function, facts.low, name, int(number)),) if number.isdigit() else ()
