"""Parse source lines in Python or C++: assignments, atomics, and array elements.

Regular expressions are sufficient, because the advice that uses these results has a general fallback.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

CAS = re.compile(r"(?i)(?:cas|compare_and_swap)\s*\(\s*&?\s*(\w+)")
EXCHANGE = re.compile(r"(?i)(?:exch|xchg)\w*\s*\(\s*&?\s*(\w+)")
ATOMIC_CALL = re.compile(r"(?:atomic\.\w+|atomic\w*)\s*\(\s*&?\s*(\w+)")
FENCE = re.compile(r"threadfence(?:_system)?\s*\(")
HEADER = re.compile(r"(?:\}?\s*else\b|(?:if|for|while)\s*(?=\())")
LVALUE = re.compile(
    r"^(?:const\s+)?(?:[\w:]+[\s&*]+)*?(?P<star>\*?)(?P<name>\w+)\s*(?P<rest>(?:\[.*\]|\.\w+)*)$"
)
ATOMIC_OPERATORS = "+-|&^"  # operators of `target operator= value` that an atomic can perform
BEHIND_SUM = re.compile(r"[<>=?&|^]|\b(?:if|and|or)\b")  # operators with a lower precedence than a sum
PLACE = r"\(?(\*\s*\w+|\w+\s*\[[^\[\]]+\])\)?"
STEP = re.compile(rf"{PLACE}\s*(\+\+|--)|(\+\+|--)\s*{PLACE}")
OPERATORS = ("//", "<<", ">>", "**", *"+-*/|&^%")


@dataclass(frozen=True)
class Assignment:
    """A statement `target operator= value`. `operator` is "" for a plain assignment."""

    target: str
    name: str  # the identifier at the start of the target
    operator: str
    value: str
    is_element: bool  # whether the target is an element in memory rather than a variable


def stepped(source):
    """Return (text, element, operator) for `x[i]++` or similar inside a larger C++ expression, or None."""
    found, text = STEP.search(source), statement(source)
    if found is None or text in (found[0], f"({found[0]})"):
        return None
    return found[0], found[1] or found[4], (found[2] or found[3])[0]


def stored(text):
    """Return the Assignment that corresponds to Triton's tl.store(target, value, ...), or None."""
    found = re.match(r"tl\.store\((.*)\)$", text)
    parts = arguments(found[1]) if found else []
    named = re.match(r"\w+", parts[0]) if len(parts) > 1 else None
    return named and Assignment(parts[0], named[0], "", parts[1], True)


def arguments(text):
    """Split the text of a call's arguments at commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def statement(source):
    """Return the statement in a source line without a leading `if (...)` or similar, comment and
    semicolon."""
    source = re.sub(r"(^|[;{}])\s*//.*$|\s#\s.*$", r"\1", source).strip()  # in Python, // is a division
    while found := HEADER.match(source):
        rest = source[found.end() :]
        source = behind_brackets(rest) if rest.startswith("(") else rest.strip()
    return source.strip("{} ").split(";")[0].strip()


def behind_brackets(text):
    """Return the text after the bracket expression at the start of `text`, or "" if it is not closed."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return text[at + 1 :].strip()
    return ""


@lru_cache(maxsize=1024)  # a race for thousands of elements parses the same few lines again
def assignment(source):
    """Return the Assignment in a line of Python or C++, or None."""
    text = statement(source)
    if found := re.fullmatch(r"(?:(\+\+|--)(.+)|(.+?)(\+\+|--))", text):
        operator, target = found[1] or found[4], (found[2] or found[3]).strip()
        named = LVALUE.match(target)
        return named and Assignment(target, named["name"], operator[0], "1", target != named["name"])
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter == "=" and text[at + 1 : at + 2] != "=" and text[at - 1 : at] not in "<>!":
            left = text[:at].rstrip()
            operator = next((o for o in OPERATORS if left.endswith(o)), "")
            left = left[: len(left) - len(operator)].rstrip()
            named = LVALUE.match(left)
            target = left[named.start("star") :] if named else ""
            in_memory = named is not None and target != named["name"]
            return named and Assignment(target, named["name"], operator, text[at + 1 :].strip(), in_memory)
    return stored(text)


def element_of(taken):
    """Return the element that an Assignment copies unchanged, or None."""
    return taken and arguments(re.sub(r"^tl\.load\(|\)$", "", taken.value))[0]


def is_sum_or_extreme(value, name):
    """Return whether a value is exactly `name + ...`, `max(name, ...)` or `min(name, ...)`."""
    if value.startswith((f"max({name}, ", f"min({name}, ")):
        return behind_brackets(value[3:]) == ""
    added = value.removeprefix(f"{name} + ")
    return added != value and not BEHIND_SUM.search(re.sub(r"\([^()]*\)|\[[^][]*\]", "", added))


def mentions(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def assigned(name, text):
    """Return the matches in `text` of assignments to a name."""
    return re.findall(rf"\b{re.escape(name)}\s*(?:,\s*\w+\s*)*(?<![=!<>])=(?!=)", text)
