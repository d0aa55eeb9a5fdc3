"""Finds the idle variables of a loop, which influence nothing but themselves, such as a count of iterations.

The test for endless loops (sim.progress) ignores them. Otherwise, a loop that counts how often it polls a
flag would never repeat a state. The analysis works on bytecode, which Python kernels and translated PTX
kernels share.
"""

import dis
import functools
import re

from sim.isa.table import INSTRUCTIONS

PREFIX = "__sim_"  # prefix of the names in rewritten code (sim.frontend.accesses)
OPERATOR = None  # placeholder on the stack for a function that replaces an operator
BACKWARD = "BACKWARD"  # part of the name of each jump that ends an iteration
# Instructions that compute a value from the values on the stack, with the number of values that each takes.
OPERATIONS = {"BINARY_OP": 2, "UNARY_NEGATIVE": 1, "UNARY_INVERT": 1, "UNARY_POSITIVE": 1}
LOADS = {"LOAD_FAST", "LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"}
CONSTANTS = {"LOAD_CONST", "LOAD_SMALL_INT"}
JUMPS = {*dis.hasjrel, *dis.hasjabs}  # the opcodes of all jumps
# Execution does not continue after these instructions, nor after returns and unconditional jumps.
ENDS = {"RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
ENDS |= {"RETURN_VALUE", "RETURN_CONST"}
NEUTRAL = {"NOP", "CACHE", "RESUME", "EXTENDED_ARG", "PRECALL"}  # leave the stack unchanged


def idle_variables(code, offset):
    """Return the names of the idle variables in the outermost loop around a bytecode offset.

    The result may lack some idle variables: an operand of anything but arithmetic counts as influential.
    """
    loops = loops_of(code)
    return next((names for first, last, names in loops if first <= offset <= last), frozenset())


@functools.lru_cache(maxsize=256)
def loops_of(code):
    """Return (first offset, last offset, idle variables) for each outermost loop of a code object."""
    instructions, found = list(dis.get_instructions(code)), []
    ranges = sorted((each.argval, each.offset) for each in instructions if BACKWARD in each.opname)
    for first, last in ranges:
        # A jump into a loop from outside extends the loop.
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return [(first, last, idle_among(loop_at(instructions, first, last))) for first, last in found]


def loop_at(instructions, first, last):
    """Return the instructions from offset `first` to `last` from which execution can return to `first`.

    Python 3.12 moves some parts of a loop behind the code that follows the loop.
    """
    sources = {}  # offset -> the offsets from which a thread can continue there
    for each, following in zip(instructions, [*instructions[1:], None]):
        if following and each.opname not in ENDS:
            sources.setdefault(following.offset, []).append(each.offset)
        if each.opcode in JUMPS:
            sources.setdefault(each.argval, []).append(each.offset)
    inside, waiting = set(), [first]
    while waiting:
        found = {offset for offset in sources.get(waiting.pop(), ()) if first <= offset <= last} - inside
        inside |= found
        waiting += found
    return [each for each in instructions if each.offset in inside]


def idle_among(instructions):
    """Return the idle variables of a loop that consists of these instructions."""
    # variable -> variables from which it is computed
    sources, influential = {}, set()
    # The values on the stack since the last instruction that is not arithmetic: for each, the variables from
    # which it is computed, or OPERATOR
    stack = []
    for each in instructions:
        count = each.argval if each.opname == "CALL" else OPERATIONS.get(each.opname, 0)
        if each.opname in LOADS:
            # Python 3.13 can load two variables with a single instruction.
            stack += [{name} for name in as_tuple(each.argval)]
        elif each.opname in CONSTANTS:
            stack.append(set())
        elif each.opname == "LOAD_GLOBAL" and is_operator(each.argval):
            stack.append(OPERATOR)
        elif count and is_arithmetic(each.opname, stack, count):
            operands = [stack.pop() for _ in range(count)]
            if each.opname == "CALL":
                stack.pop()
            stack.append(set().union(*operands))
        elif each.opname == "STORE_FAST":
            # A value from elsewhere, such as the index of a `for` loop, may show that the loop advances.
            known = stack and stack[-1] is not OPERATOR
            influential |= set() if known else {each.argval}
            sources.setdefault(each.argval, set()).update(stack.pop() if known else ())
        elif each.opname not in NEUTRAL:
            # A test, a call, a memory access, an unknown instruction, or an operation on an unknown value
            influential.update(as_tuple(each.argval) if "FAST" in each.opname else ())
            influential.update(*(value for value in stack if value is not OPERATOR))
            stack.clear()
    influential.update(*(value for value in stack if value is not OPERATOR))
    pending = list(influential)
    while pending:
        further = sources.get(pending.pop(), set()) - influential
        influential |= further
        pending += further
    return frozenset(sources.keys() - influential)


def original_name(name):
    """Return the name in the kernel of a variable that the rewriter may have split by its types."""
    return re.sub(rf"^{PREFIX}(.+)_\d+$", r"\1", name)


def as_tuple(names):
    return names if isinstance(names, tuple) else (names,)


def is_operator(name):
    """Return whether a global name in rewritten code refers to a function that replaces a Python operator."""
    return name.startswith(PREFIX) and f"operator.{name.removeprefix(PREFIX)}" in INSTRUCTIONS


def is_arithmetic(opname, stack, count):
    """Return whether an instruction computes a value from the `count` values on top of the stack."""
    calls = opname == "CALL"
    known = len(stack) >= count + calls and all(value is not OPERATOR for value in stack[-count:])
    return known and (not calls or stack[-count - 1] is OPERATOR)
