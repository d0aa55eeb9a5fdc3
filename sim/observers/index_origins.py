"""The source lines that compute the index of an access.

If the index is an argument of a device function, these include lines of the function's callers.
"""

import functools
import re

from sim.events import leading_name
from sim.observers.call_lines import known_functions, name_of
from sim.observers.statements import arguments, index_of, inside_brackets, lines_of_value

MOST_CALLERS = 8  # the maximum number of functions whose lines are searched
NO_ORIGINS = frozenset(), frozenset()


class IndexOrigins:
    """The origins of the indices of one launch, see `origins_of`."""

    def __init__(self, context):
        self.context, self.known = context, functools.cache(self.find)

    def __call__(self, access, name):
        """Return (places, names) for the index of an Access to an array."""
        return self.known(access.site, source_name(access, name)) if name else NO_ORIGINS

    def find(self, site, name):
        if site is None:
            return NO_ORIGINS
        return origins_of(site, name, self.context.outline, self.context.kernel)


def source_name(access, name):
    """Return the name of the array on the source line. In a device function, the array is a parameter."""
    site = access.site
    # Compilers of CUDA C++ give a load the column at which its statement starts.
    is_known = site is None or index_of(site, name) or site.file and site.kind == "load"
    return name if is_known else leading_name(access) or name


def origins_of(site, name, outline_of, kernel):
    """Return (places, names) for the index of an access to an array.

    The places are the pairs (function in Sites, line) of the lines that compute the index. The names are
    those that the index and these lines use.

    site: the Site of the access.
    name: the name of the array in the source.
    outline_of: a function that maps a Site to an Outline, or to None.
    kernel: the name of the kernel.
    """
    outline, found = outline_of(site), index_of(site, name)
    home = outline and outline.function(site.line)
    if not home or not found:
        return frozenset(), frozenset()
    known = known_functions(site, (outline,), kernel, outline_of)
    places, names = set(), set()
    # (Outline, Node, name in Sites, name in calls, value) of the values whose lines are searched
    waiting = [(outline, home, site.function, name_of(site, outline, home), found[0])]
    searched = []
    while waiting and len(searched) < MOST_CALLERS:
        outline, home, function, called, value = waiting.pop()
        searched.append(home)
        lines, used = lines_of_value(outline.text(home), value)
        places |= {(function, line) for line in lines}
        names |= used
        parameters = [parameter for parameter in parameters_of(outline, home, called) if parameter in used]
        for caller in known if parameters else ():
            if not any(caller[1] is node for node in searched):
                waiting += passed_values(caller, called, parameters_of(outline, home, called), used)
    return frozenset(places), frozenset(names)


def passed_values(caller, called, parameters, used):
    """Yield an entry of `waiting` in `origins_of` for each call of a function.

    The value of an entry consists of the arguments for the parameters in `used`.

    caller: (Outline, Node, name in Sites).
    called: the name of the called function.
    """
    outline, home, function = caller
    lines = outline.text(home)
    text = "\n".join(line for _, line in lines)
    own = re.match(r"\s*def\s+(\w+)", text) or re.search(r"(\w+)\s*\(", text)
    begin = len(lines[0][1])
    for call in re.finditer(rf"(?<![\w.]){re.escape(called)}\s*\(", text):
        given = arguments(inside_brackets(text[call.end() - 1 :]))
        values = [value for parameter, value in zip(parameters, given) if parameter in used]
        if call.start() > begin and values:
            yield outline, home, function, own and own[1], "; ".join(values)


def parameters_of(outline, home, name):
    """Return the names of the parameters of the function at a Node, in order."""
    text = "\n".join(line for _, line in outline.text(home))
    found = re.search(rf"\b{re.escape(name)}\s*\(", text) if name else None
    parts = arguments(inside_brackets(text[found.end() - 1 :])) if found else []
    named = (re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*(?:=.*)?$", part, re.S) for part in parts)
    return [match[1] if match else "" for match in named]
