"""What a finding about a race says of its reason and of its likely remedy."""

from sim.events import ATOMIC, SITES


def reason(a, b, equal, replaced, scoped):
    """`replaced`: one of the two writes is followed by another of its thread, so it decides nothing;
    `scoped`: the two are in different blocks, and one is atomic for its own block only."""
    if equal:
        return "Both write the same value, so the result is the same whichever comes last."
    if scoped:
        return "The scope of one is its own block (.cta), so that towards other blocks it is not atomic."
    if a.site & 3 == b.site & 3 == ATOMIC:
        return (
            "Each is atomic, but their elements overlap without being the same, and such atomics are not"
            " atomic towards each other."
        )
    if a.block != b.block:
        return "Blocks run in any order and at the same time, so either may come first."
    return "Either may come first." if replaced else "Either may come first, and the result depends on which."


def fix(a, b, equal, colliding, scoped, lacks_fence, synchronizes, barriers):
    """The likely remedy. `scoped`: as in reason; `colliding`: several threads write this element;
    `lacks_fence`: fences would do; `synchronizes`: threads act on what atomics tell them; `barriers`:
    function -> lines on which barriers have opened."""
    one, other = SITES[a.site], SITES[b.site]
    same_line = (one.function, one.line) == (other.function, other.line)
    if equal:
        return (
            "let one thread write it; or, if it is meant, simulate with observers that include"
            " Races(allow_equal_writes=True)"
        )
    if scoped:
        return "the scope of the whole device: .gpu, or the function without _block in its name"
    if a.site & 3 == b.site & 3 == ATOMIC:
        return "let both work on one array of one dtype, or on bytes of their own"
    if lacks_fence and colliding:
        return (
            "cuda.threadfence() after the atomic that takes the lock, and again before the atomic that gives"
            " it back"
        )
    if lacks_fence:
        reach = "" if a.block == b.block else "; cuda.threadfence_block() is for threads of one block only"
        return f"cuda.threadfence() between this write and the atomic that tells of it{reach}"
    if colliding and (same_line or reads_before(other, one)):
        return (
            "cuda.atomic (cuda.atomic.add for +=), or let each thread write an element of its own, or let one"
            f" thread do it for all{', or let all hold one lock of atomics' if synchronizes else ''}"
        )
    if synchronizes and not barriers.get(one.function):
        last = (
            "; or end the kernel and launch a second one for what comes after" if a.block != b.block else ""
        )
        return (
            "let one of them wait for an atomic that the other does behind it, after cuda.threadfence(), or"
            f" let both hold one lock of atomics{last}"
        )
    if a.block != b.block:
        return (
            "let each block write elements of its own, combine them with cuda.atomic, or end the kernel and"
            " launch a second one for what comes after"
        )
    return barrier(one, other, same_line, barriers)


def reads_before(one, other):
    """Whether `one` reads on a line above that of `other`, as where x[0] = x[0] + 1 stands on two lines."""
    return one.action == "load" and one.function == other.function and one.line < other.line


def barrier(one, other, same_line, barriers):
    """The remedy between threads of one block."""
    low, high = sorted((one.line, other.line))
    if same_line:
        return (
            "cuda.syncthreads() between the passes over this line, where every thread of the block reaches it"
        )
    if one.function == other.function and any(low < line < high for line in barriers.get(one.function, ())):
        return (
            f"one more cuda.syncthreads(), behind line {high} and before the loop comes back to line {low},"
            " where every thread of the block reaches it"
        )
    return "cuda.syncthreads() between the two lines, where every thread of the block reaches it"
