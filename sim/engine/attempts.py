"""Recognition of threads that repeat a failed atomic forever, such as an attempt to take a lock that no
thread releases.

The comparison of states (sim.progress) runs several iterations of each thread. With 256,000 threads, this
takes longer than the time limit of a loop. The test in this file does not run threads. It examines the
bytecode of the loop in which each thread waits, and the element of memory that the thread's last atomic read.
"""

import dis
import re
from types import FrameType

import numpy as np

from sim.idle_variables import CONSTANTS, LOADS, NEUTRAL, PREFIX, as_tuple, is_operator, loops_of
from sim.isa.atomics import ENTRIES
from sim.memory.atomics import Atomic

# Instructions that neither access memory nor keep a value on the stack from one iteration to the next.
HARMLESS = {*CONSTANTS, *NEUTRAL, "BINARY_OP", "COMPARE_OP", "CALL", "POP_TOP", "PUSH_NULL", "COPY", "SWAP"}
HARMLESS |= {"UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT", "TO_BOOL", "NOT_TAKEN"}
JUMPS = "POP_JUMP", "JUMP_"
# Instructions that load or store local variables. The last three exist since Python 3.12.
LOCALS = {*LOADS, "STORE_FAST", "LOAD_FAST_CHECK", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"}
MEMBERS = {"atomic", *ENTRIES, "threadfence", "threadfence_block", "threadfence_system"}
# Prefixes of the names of functions that code generated from PTX may call in such a loop.
FUNCTIONS_OF_PTX = "atomic_", "load_", "threadfence", "tick"


def nothing_changes(context):
    """Return whether every thread that can run repeats a failed atomic. Return False in case of doubt.

    If the result is True, no thread changes memory any more, so all these atomics fail again. Call this
    function only while no thread is running.

    In the common loop of a kernel (sim.frontend.polling), all threads do the same. If one of them repeats a
    failed atomic there, the others do so too, and so do the threads of blocks that have not started.
    """
    if context.asynchronous or context.clustered:
        return False
    # found: whether any thread repeats a failed atomic. is_common: whether such a thread is in the common
    # loop. are_common: whether other threads are in the common loop, or may still enter it.
    found, is_common, are_common = False, False, bool(context.pending)
    for block in context.live:
        waking = {*block.round, *block.ready}
        for thread in block.threads:
            if thread.done or thread.waits not in (None, "turn") and thread not in waking:
                continue
            if thread.waits is None and thread.frame is None and thread.fiber is not None:
                are_common = True  # the thread has not started
                continue
            if thread.waits != "turn":
                return False
            frame = thread.frame
            if not isinstance(frame, FrameType):
                *_, frame = thread.fiber.frames()
            in_common_loop = is_in_common_loop(frame, context)
            if repeats_failed_atomic(thread, frame, context.stateless):
                found, is_common = True, is_common or in_common_loop
            elif in_common_loop:
                are_common = True
            else:
                return False
    return is_common or found and not are_common


def is_in_common_loop(frame, context):
    """Return whether a frame's position is in the common loop of the kernel."""
    code, lines = context.common_loop
    return frame.f_code is code and frame.f_lineno in lines


def repeats_failed_atomic(thread, frame, known):
    """Return whether a thread that waits for its turn repeats a failed atomic on unchanged memory.

    frame: its innermost frame of a kernel's function.
    known: {(id of a code object, position): result of `is_stateless`}, in which new results are stored.
    """
    failed = thread.failed_atomic
    if failed is None or not (failed.repeated and failed.would_fail_again()):
        return False
    place = id(frame.f_code), frame.f_lasti
    if place not in known:
        known[place] = is_stateless(frame)
    return known[place]


def is_stateless(frame):
    """Return whether all iterations of the loop around a frame's position have the same effect, as long as
    memory does not change. Return False if this is uncertain.

    The result is True if the loop consists of atomics, fences and arithmetic, and no iteration uses a value
    that an earlier iteration computed. A counter that affects nothing else is allowed.
    """
    inside = [
        (first, last, idle) for first, last, idle in loops_of(frame.f_code) if first <= frame.f_lasti <= last
    ]
    if not inside:
        return False
    first, last, idle = inside[0]
    loop = [each for each in dis.get_instructions(frame.f_code) if first <= each.offset <= last]
    return all(is_harmless(each, frame) for each in loop) and carried_variables(loop) <= idle


def is_harmless(instruction, frame):
    """Return whether a bytecode instruction is part of arithmetic, a jump, an atomic or a fence."""
    name, opname = instruction.argval, instruction.opname
    if opname in LOCALS or opname == "LOAD_DEREF":
        return not any(callable(frame.f_locals.get(one)) for one in as_tuple(name))
    if opname == "LOAD_GLOBAL":
        value = frame.f_globals.get(name)
        if isinstance(value, int | float | np.generic) or is_operator(name) or name == PREFIX + "tick":
            return True
        of_ptx = frame.f_code.co_filename.startswith("<PTX") and name.startswith(FUNCTIONS_OF_PTX)
        return of_ptx or isinstance(getattr(value, "atomic", value), Atomic)
    if opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return name in MEMBERS
    return opname in HARMLESS or opname.startswith(JUMPS)


def carried_variables(loop):
    """Return the variables that a loop assigns, and that an iteration may read before it assigns them.

    loop: the instructions of the loop. The function computes which of its variables are live at its start.
    """
    steps = [local_accesses(each) for each in loop]
    stored = {name for accesses in steps for is_store, name in accesses if is_store}
    position = {each.offset: number for number, each in enumerate(loop)}
    live, before = [set() for _ in range(len(loop) + 1)], None
    while live != before:
        before = list(map(set, live))
        for number in reversed(range(len(loop))):
            target = position.get(loop[number].argval) if loop[number].opname.startswith(JUMPS) else None
            after = live[number + 1] | (set() if target is None else live[target])
            for is_store, name in reversed(steps[number]):
                after = after - {name} if is_store else after | {name} & stored
            live[number] = after
    return live[0]


def local_accesses(instruction):
    """Return (whether the access is a store, name) for each access of an instruction to a local variable."""
    if instruction.opname not in LOCALS:
        return []
    actions = re.findall("(LOAD|STORE)_FAST", instruction.opname)
    return [(action == "STORE", name) for action, name in zip(actions, as_tuple(instruction.argval))]
