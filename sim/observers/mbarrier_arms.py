"""The fix for a race between two arms of a branch whose threads arrive at mbarriers and wait there.

A barrier of the block between the two arms would be wrong. An arm that waits for an arrival of the other arm
would then wait forever.
"""

import re
from dataclasses import dataclass

from sim.observers.call_lines import calls_of, known_functions, name_in

# Calls in C++, inline PTX or Python.
ARRIVAL = re.compile(r"mbarrier[._]arrive|\bbarrier_arrive_tx\b|(?:\.|->)arrive\w*\s*\(")
WAIT = re.compile(r"mbarrier[._]\w*wait|(?:\.|->)(?:arrive_and_)?wait\w*\s*\(")


@dataclass(frozen=True)
class Arm:
    """One arm of a branch: the line of an access in it, and its lines that use mbarriers."""

    line: int
    arrivals: list[int]
    waits: list[int]

    @property
    def arrives_after(self):
        return any(line >= self.line for line in self.arrivals)

    @property
    def waits_before(self):
        return any(line <= self.line for line in self.waits)

    @property
    def early_arrival(self):
        """The line of the arrival that has to follow the access, or None.

        An arrival before a wait does not count, because the wait may be for the same phase.
        """
        last = max((line for line in self.arrivals if line < self.line), default=None)
        if last is None or self.arrives_after:
            return None
        return None if any(last <= line <= self.line for line in self.waits) else last


def find_arms(facts):
    """Return the Arms of the two accesses, or None unless both use mbarriers.

    If the arms call the functions that contain the accesses, the mbarriers may be in these functions.
    """
    if facts.branch:
        sites = (facts.one, facts.other)
        places = [[(facts.outline, facts.outline.part(facts.branch, s.line), s.line)] for s in sites]
    elif facts.branch_of_calls:
        calls, sites = facts.calls, zip((facts.one, facts.other), facts.outlines, facts.calls.lines)
        places = [
            [
                (outline, outline.function(site.line), site.line),
                (calls.outline, calls.outline.part(facts.branch_of_calls, line), line),
            ]
            for site, outline, line in sites
        ]
    else:
        return None
    known = known_functions(facts.one, facts.outlines, facts.kernel, facts.outline_of)
    helpers = [helpers_with(pattern, known) for pattern in (ARRIVAL, WAIT)]
    arms = [arm_of(several, *helpers) for several in places]
    return arms if all(arms) else None


def arm_of(places, arriving, waiting):
    """Return the Arm at the first of several (Outline, Node, line of the access) that uses mbarriers, or
    None.

    arriving, waiting: the names of the functions that arrive at an mbarrier, or wait there.
    """
    for outline, node, line in places:
        arrivals = lines_with(ARRIVAL, arriving, outline, node)
        waits = lines_with(WAIT, waiting, outline, node)
        if arrivals or waits:
            return Arm(line, arrivals, waits)
    return None


def lines_with(pattern, names, outline, node):
    """Return the lines of a Node that match a pattern or call one of the named functions."""
    return [
        number
        for number, text in outline.text(node)
        if pattern.search(text) or (not defines(node, number) and any(calls_of(one, text) for one in names))
    ]


def defines(node, number):
    return node.kind == "function" and number == node.first


def helpers_with(pattern, known):
    """Return the names of the functions that match a pattern, directly or by the functions that they call.

    known: the result of `known_functions`.
    """
    texts = {}
    for outline, node, _ in known:
        texts[name_in(outline, node)] = "\n".join(text for _, text in outline.text(node))
    texts.pop(None, None)
    found = [name for name, text in texts.items() if pattern.search(text)]
    for helper in found:  # the list grows
        found += [name for name, text in texts.items() if name not in found and calls_of(helper, text)]
    return found


def fix_of_mbarriers(facts):
    """Return the fix for a race between the two Arms."""
    arms = facts.mbarrier_arms
    early = [
        f"only after the access on line {arm.line}, not before it on line {arm.early_arrival}"
        for arm in arms
        if arm.early_arrival
    ]
    late = [
        f"before the access on line {arm.line}, not only after it on line {arm.waits[0]}"
        for arm in arms
        if arm.waits and not arm.waits_before
    ]
    if early or late:
        texts = [f"arrive at the mbarrier {text}" for text in early] + [
            f"wait at the mbarrier {text}" for text in late
        ]
        return ", and ".join(texts)
    lines = "lines {} and {}".format(*sorted(arm.line for arm in arms))
    if all(arm.waits_before and arm.arrives_after for arm in arms):
        return (
            "initialise each mbarrier for all threads that arrive in a phase, let each wait test the parity"
            " of the phase that has to end, and let both arms access only the buffer of the mbarrier at which"
            f" they waited; both arms already wait before their accesses and arrive after them ({lines})"
        )
    return (
        "let the arm that must come first arrive at the mbarrier only after its access, and let the other arm"
        f" wait for this phase before its own ({lines})"
    )
