"""Conversion of a kernel to a generator, which yields at calls of functions in which the thread has to wait.

The kernel itself must call these functions, because a generator cannot yield in a function that it calls.
Resuming a generator takes a tenth of the time of a greenlet switch, and it needs no greenlet. A call of a
function in which a thread waits,

    r1 = warp_5(a, b)

becomes an expression that yields only if the thread has to wait:

    r1 = (warp_5_join(a, b) and (yield), thread.result)[1]
"""

import re


def joining(name):
    """Return the name of the global that lets a thread join a barrier or warp instruction without suspending
    it."""
    return f"{name}_join"


def as_generator(source, names):
    """Return the source of a kernel in which calls of the functions `names` are replaced by expressions that
    yield."""
    if not names:
        return source
    call, parts, done = re.compile(rf"\b({'|'.join(names)})\("), [], 0
    for found in call.finditer(source):
        end = closing_parenthesis(source, found.end())
        joined = f"{joining(found[1])}({source[found.end() : end]})"
        parts += [source[done : found.start()], f"({joined} and (yield), thread.result)[1]"]
        done = end + 1
    return "".join([*parts, source[done:]])


def closing_parenthesis(source, at):
    """Return the position of the parenthesis that closes the parenthesis before position `at`."""
    depth = 1
    for position in range(at, len(source)):
        depth += {"(": 1, ")": -1}.get(source[position], 0)
        if not depth:
            return position
    raise ValueError(f"no closing parenthesis after position {at}")
