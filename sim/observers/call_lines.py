"""The lines of two accesses in different functions, in a function that leads to both.

A fix places a barrier between lines of one function. For an access in a device function, it therefore names
the line of the call.
"""

import re
from dataclasses import dataclass

HEADER = re.compile(r"\b(?!__launch_bounds__|__attribute__|__declspec)(\w+)\s*\(")


@dataclass(frozen=True)
class CallLines:
    """The two lines of a function that perform two accesses, directly or by a call, and the loop around
    them."""

    low: int
    high: int
    loop: object  # a Node, or None
    function: object  # a Node
    name: str  # the function's name in Sites


def common_caller(sites, outlines, kernel):
    """Return the CallLines of two Sites in different functions, or None if no function is known to lead to
    both.

    A chain of several calls is followed only if the compiler has inlined them.

    outlines: the Outlines of the two functions, or None for an unknown one.
    kernel: the name of the kernel.
    """
    if None in outlines:
        return None
    homes = [outline.function(site.line) for site, outline in zip(sites, outlines)]
    if None in homes:
        return None
    callers = list(zip(outlines, homes, sites))
    if outlines[0] is outlines[1]:
        nodes = functions(outlines[0].root)
        callers += [
            (outlines[0], node, sites[0]) for node in nodes if name_in_cpp(outlines[0], node) == kernel
        ]
    for outline, caller, named in callers:
        lines = [
            site.line if home is caller else line_of_call(outline, caller, site, name_of(site, own, home))
            for site, own, home in zip(sites, outlines, homes)
        ]
        if None not in lines:
            low, high = sorted(lines)
            return CallLines(low, high, outline.loop(low, high), caller, named.function)
    return None


def functions(node):
    """Return the functions in a Node, including the Node itself."""
    inside = [found for part in node.parts for found in functions(part)]
    return [node, *inside] if node.kind == "function" else inside


def name_of(site, outline, home):
    """Return the name of the function that contains a Site, or None if it is unknown.

    home: the Node of the function.
    """
    return name_in_cpp(outline, home) if site.file else site.function


def name_in_cpp(outline, node):
    """Return the name of the C++ function at a Node, or None if it is unknown."""
    header = " ".join(text for _, text in outline.text(node)).partition("{")[0]
    found = HEADER.search(header)
    return found[1] if found else None


def line_of_call(outline, caller, site, name):
    """Return the line of the function `caller` that calls the function `name`, which contains a Site.

    Return None if there is no such line, or more than one.
    """
    lines = {line for chain in site.calls for line in chain if caller.first <= line <= caller.last}
    if not site.calls and name:
        call = re.compile(rf"\b{re.escape(name)}\s*\(")
        lines = {line for line, text in outline.text(caller) if line > caller.first and call.search(text)}
    return lines.pop() if len(lines) == 1 else None


def fix_between_functions(facts, every):
    """Return the fix for two accesses in different functions. The barrier must be in a function that leads to
    both of them.

    every: the clause of the fix that requires all threads to reach the barrier.
    """
    calls = facts.calls
    if calls is None:
        return f"{{barrier}} between the two accesses, in the function that leads to both, {every}"
    low, high = calls.low, calls.high
    if low == high:
        return f"{{barrier}} between the two accesses, to both of which line {low} leads, {every}"
    place, again = (
        f"between lines {low} and {high}",
        f"after line {high} and before the loop returns to line {low}",
    )
    inside = facts.barriers_in_loop_of_calls if calls.loop else ()
    if any(low < line < high for line in inside):
        return f"one more {{barrier}}, {again}, {every}"
    twice = calls.loop and not inside
    return f"{{barrier}} {place}{f', and one more {again}' * bool(twice)}, {every}"
