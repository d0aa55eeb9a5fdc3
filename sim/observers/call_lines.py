"""The lines of a common caller that perform two accesses in different functions, directly or by calls.

A fix inserts a barrier between two lines of one function. If an access is in a device function, the fix
therefore names the line that calls this function.
"""

import re
from dataclasses import dataclass

from sim.events import Site
from sim.observers.statements import assignment, mentions

HEADER = re.compile(r"\b(?!__launch_bounds__|__attribute__|__declspec)(\w+)\s*\(")
MOST_FUNCTIONS = 32  # the maximum number of Python functions in which calls are searched


@dataclass(frozen=True)
class CallLines:
    """The two lines of a function that perform two accesses, directly or by a call, and the loop around these
    lines.

    place: " of f" if the lines are counted from the beginning of a function f that contains neither access.
    outer: the loop of a caller around the only call of the function, or None.
    calls: whether the two accesses belong to two calls if `low` equals `high`.
    """

    low: int
    high: int
    loop: object  # a Node, or None
    function: object  # a Node
    name: str  # the function's name in Sites
    place: str = ""
    outer: object = None
    calls: bool = False
    outline: object = None  # the Outline of the function
    lines: tuple[int, ...] = ()  # the lines of the first and of the second access
    names: tuple[str | None, ...] = ()  # the names of the functions that contain the two accesses

    @property
    def branch(self):
        """The branch whose different arms contain the two calls, or None."""
        if self.low != self.high:
            return self.outline.branch(*self.lines)
        text, around = self.outline.lines[self.low], reversed(self.outline.path(self.low))
        branches = (node for node in around if node.kind == "branch" and len(node.parts) == 2)
        found = next((n for n in branches if all(arm.first <= self.low <= arm.last for arm in n.parts)), None)
        arms = re.split(r"\belse\b", text)
        if found is None or not self.calls or len(arms) != 2:
            return None
        in_arms = [[bool(calls_of(name, arm)) for arm in arms] for name in self.names]
        return found if in_arms in ([[True, False], [False, True]], [[False, True], [True, False]]) else None


def common_caller(sites, outlines, kernel, outline_of):
    """Return the CallLines of two Sites in different functions, or None if no known function performs both
    accesses.

    Prefer a function in which different lines perform the two accesses, directly or by calls. Follow a
    chain of several calls only if the compiler has inlined these calls.

    outlines: the Outlines of the two functions, or None for an unknown one.
    kernel: the name of the kernel.
    outline_of: a function that maps a Site to an Outline, or to None.
    """
    if None in outlines:
        return None
    homes = [outline.function(site.line) for site, outline in zip(sites, outlines)]
    if None in homes:
        return None
    names = [name_of(*one) for one in zip(sites, outlines, homes)]
    known = known_functions(sites[0], outlines, kernel, outline_of)
    found = []
    for outline, caller, name in [*zip(outlines, homes, (site.function for site in sites)), *known]:
        lines = [
            site.line if home is caller else line_of_call(outline, caller, site, of)
            for site, of, home in zip(sites, names, homes)
        ]
        if None not in lines:
            low, high = sorted(lines)
            own = sites[0].file or any(caller is home for home in homes)
            found.append(
                CallLines(
                    low,
                    high,
                    outline.loop(low, high),
                    caller,
                    name,
                    "" if own else f" of {name}",
                    loop_around(name_in(outline, caller), caller, known),
                    all(calls_of(of, outline.lines[low]) for of in names),
                    outline,
                    tuple(lines),
                    tuple(names),
                )
            )
    return min(found, key=lambda lines: lines.low == lines.high, default=None)


def known_functions(site, outlines, kernel, outline_of):
    """Return (Outline, Node, name in Sites) of each function that may perform the accesses, directly or by
    calls: all functions of a C++ file, beginning with the kernel; or a Python kernel and the functions that
    it calls directly or indirectly."""
    if site.file:
        nodes = functions(outlines[0].root)
        nodes = sorted(nodes, key=lambda node: name_in_cpp(outlines[0], node) != kernel)
        return [(outlines[0], node, site.function) for node in nodes]
    found, names = [], [kernel]
    for name in names:  # the loop appends to this list
        outline = outline_of(Site("call", name, 1, 0, ""))
        home = outline and outline.function(1)
        if home is not None and len(found) < MOST_FUNCTIONS:
            found.append((outline, home, name))
            text = "\n".join(line for _, line in outline.text(home))
            names += sorted(set(re.findall(r"(?<![.\w])(\w+)\s*\(", text)).difference(names))
    return found


def loop_around(name, function, known):
    """Return the loop around the only call of a function, or None.

    known: (Outline, Node, name in Sites) of the possible callers.
    """
    places = [
        (outline, line)
        for outline, caller, _ in known
        if caller is not function
        for line, text in outline.text(caller)
        if line > caller.first and name and calls_of(name, text)
    ]
    return places[0][0].loop(places[0][1]) if len(places) == 1 else None


def calls_of(name, text):
    """Return the places where a text calls a function, as matches of a regular expression."""
    return re.findall(rf"\b{re.escape(name)}\s*\(", text) if name else []


def functions(node):
    """Return the functions in a Node, including the Node itself."""
    inside = [found for part in node.parts for found in functions(part)]
    return [node, *inside] if node.kind == "function" else inside


def name_of(site, outline, home):
    """Return the name of the function that contains a Site, or None if this name is unknown.

    home: the Node of the function.
    """
    return name_in_cpp(outline, home) if site.file else site.function


def name_in(outline, node):
    """Return the name of the function at a Node, or None if it is unknown."""
    found = re.match(r"\s*def\s+(\w+)", outline.lines[node.first])
    return found[1] if found else name_in_cpp(outline, node)


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
        lines = {line for line, text in outline.text(caller) if line > caller.first and calls_of(name, text)}
    return lines.pop() if len(lines) == 1 else None


def is_polled(site, outline_of, kernel):
    """Return whether the condition of a `while` loop performs an access, directly or by a call.

    outline_of, kernel: see `common_caller`.
    """
    outline = outline_of(site)
    if outline is None:
        return False
    lines = [site.line, *(line for chain in site.calls for line in chain)]
    home = outline.function(site.line)
    if site.file and not site.calls and home:
        name = name_of(site, outline, home)
        lines += [line for line, text in outline.lines.items() if line > home.last and calls_of(name, text)]
    if any(is_condition_of_loop(line, outline) for line in lines):
        return True
    return not site.file and home is not None and is_polled_by_calls(site, outline, kernel, outline_of)


def is_polled_by_calls(site, outline, kernel, outline_of):
    """Return whether a Python function returns the value of an access to the condition of a `while` loop,
    directly or through other functions.

    outline: the Outline of the function that contains the Site.
    """
    places, known = [(site.function, outline, site.line)], known_functions(site, (), kernel, outline_of)
    for name, within, line in places:  # the loop appends to this list
        if not returns_value_of(within, line):
            continue
        for caller_outline, caller, caller_name in known:
            for at, text in caller_outline.text(caller):
                if at == caller.first or not calls_of(name, text):
                    continue
                if is_condition_of_loop(at, caller_outline):
                    return True
                place = caller_name, caller_outline, at
                places += [place] * (place not in places)
    return False


def returns_value_of(outline, line):
    """Return whether a Python function returns a value from this line: by a `return` on the line, or of a
    variable that the line assigns."""
    found = assignment(outline.lines[line])
    returned = [
        text for _, text in outline.text(outline.function(line)) if text.lstrip().startswith("return")
    ]
    return outline.lines[line].lstrip().startswith("return") or bool(
        found and not found.is_element and any(mentions(text, found.name) for text in returned)
    )


def is_condition_of_loop(line, outline):
    """Return whether a line contains the condition of a `while` loop."""
    loop, text = outline.headed(line), outline.lines.get(line, "")  # the line can be in a header
    if loop is None:
        loop = outline.loop(line)
        return loop is not None and loop.last == line and re.search(r"\}\s*while\b", text) is not None
    return "while" in text


def fix_between_functions(facts, every):
    """Return the fix for two accesses in different functions. The barrier must be in a function that
    performs both accesses, directly or by calls.

    every: the clause of the fix that requires all threads to reach the barrier.
    """
    calls = facts.calls
    if calls is None and None in facts.outlines:
        return f"{{barrier}} between the two accesses, {every}"
    if calls is None:
        return (
            f"{{barrier}} between the two accesses, in a function that calls the functions of both, {every}"
        )
    low, high, place = calls.low, calls.high, calls.place
    if low == high and calls.calls:
        return f"{{barrier}} between the two calls on line {low}{place}, {every}"
    if low == high:
        return f"{{barrier}} between the two accesses, in the function that line {low}{place} calls, {every}"
    between = f"between lines {low} and {high}{place}"
    again = f"after line {high} and before the loop returns to line {low}"
    inside = facts.barriers_in_loop_of_calls if calls.loop else ()
    if any(low < line < high for line in inside):
        return f"one more {{barrier}}, {again}, {every}"
    twice = f", and one more {again}" if calls.loop and not inside else ""
    if calls.outer and not calls.loop:
        twice = f", and one more at the end of each iteration of the loop at line {calls.outer.first}"
    return f"{{barrier}} {between}{twice}, {every}"
