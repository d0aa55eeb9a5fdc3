"""Lines of calls: two accesses in different functions, seen from a function that leads to both.

For the advice about a barrier, the line of an access in a device function is the line of the call.
"""

import re
from dataclasses import dataclass

HEADER = re.compile(r"\b(?!__launch_bounds__|__attribute__|__declspec)(\w+)\s*\(")


@dataclass(frozen=True)
class CallLines:
    """The lines in one function that perform two accesses, directly or by a call, and their loop."""

    low: int
    high: int
    loop: object  # a Node, or None
    function: object  # a Node
    name: str  # the function's name in Sites


def common_caller(sites, outlines, kernel):
    """Return the CallLines of two Sites in different functions, or None.

    Calls through several functions are followed only if the compiler has inlined them.

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
    """Return the functions in a Node."""
    inside = [found for part in node.parts for found in functions(part)]
    return [node, *inside] if node.kind == "function" else inside


def name_of(site, outline, home):
    """Return the name of the function that contains a Site."""
    return name_in_cpp(outline, home) if site.file else site.function


def name_in_cpp(outline, node):
    """Return the name of a function in C++, or None."""
    header = " ".join(text for _, text in outline.text(node)).partition("{")[0]
    found = HEADER.search(header)
    return found[1] if found else None


def line_of_call(outline, caller, site, name):
    """Return the only line of a function that leads to a Site in the function `name`, or None."""
    lines = {line for chain in site.calls for line in chain if caller.first <= line <= caller.last}
    if not site.calls and name:
        call = re.compile(rf"\b{re.escape(name)}\s*\(")
        lines = {line for line, text in outline.text(caller) if line > caller.first and call.search(text)}
    return lines.pop() if len(lines) == 1 else None


def fix_between_functions(facts, every):
    """Return the fix if one access is in a device function: the barrier belongs into the function that calls
    it.

    every: the text that demands that all threads reach the barrier.
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
