"""Parsers for source lines in Python or C++, which find assignments, atomics and array elements.

Regular expressions suffice, because advice based on the results has a general fallback.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

CAS = re.compile(r"(?i)(?:cas|compare_and_swap)\s*\(\s*&?\s*(\w+)")
EXCHANGE = re.compile(r"(?i)(?:exch|xchg)\w*\s*\(\s*&?\s*(\w+)")
ATOMIC_CALL = re.compile(r"(?:atomic\.\w+|atomic\w*)\s*\(\s*&?\s*(\w+)")
READING_ATOMIC = re.compile(r"(?:\bcuda\.)?\batomic\.(add|cas)\(|\batomic(Add|CAS)\(")
READING_CALL = re.compile(rf"{READING_ATOMIC.pattern}|\btl\.load\(")
FENCE = re.compile(r"threadfence(?:_system)?\s*\(")
HEADER = re.compile(r"(?:\}?\s*else\b|(?:if|for|while)\s*(?=\())")
LVALUE = re.compile(
    r"^(?:const\s+)?(?:[\w:]+[\s&*]+)*?(?P<star>\*?)(?P<name>\w+)\s*(?P<rest>(?:\[.*\]|(?:\.|->)\w+)*)$"
)
# A field, .name or ["name"], after an element of a record array.
FIELD = re.compile(r"\.(\w+)|\[([\"'])(\w+)\2\]")
CALL_OF_ATOMIC = re.compile(r"(?:cuda\.)?atomic\.\w+(?=\()")
POINTER = re.compile(r"tl\.\w+\(\s*(\w+) \+ ")  # a pointer to an element in Triton: x + i
EXTREME = re.compile(r"(?:\w*(?:\.|::))*(?:f|__h)?(min|max)(?:imum|f|2)?(?=\()")
# a function that adds or subtracts floating-point values, rounded to nearest like atomicAdd
SUM_CALL = re.compile(r"(?:__h(add|sub)2?(?:_rn)?|__[fd](add|sub)_rn)(?=\()")
CONDITIONAL = re.compile(
    r"(?P<then>.+) if (?P<test>.+) else (?P<other>.+)|(?P<test2>.+) \? (?P<then2>.+) : (?P<other2>.+)"
)
ATOMIC_OPERATORS = "+-|&^"  # the operators of `target operator= value` for which an atomic exists
LOOSER_THAN_SUM = re.compile(r"[<>=?&|^]|\b(?:if|and|or)\b")  # operators with a lower precedence than a sum
SUM = re.compile(r"[+-]")
STORE_OR_CALL = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|\w\s*\(")
PLACE = r"\(?(\*\s*\w+|\w+\s*\[[^\[\]]+\])\)?"
STEP = re.compile(rf"{PLACE}\s*(\+\+|--)|(\+\+|--)\s*{PLACE}")
COMPARISON = re.compile(r"(?:^|!|=|(?<!<)<|(?<!>)>)$")  # the text before the = of a comparison
OPERATORS = ("//", "<<", ">>", "**", *"+-*/|&^%")


@dataclass(frozen=True)
class Assignment:
    """A statement `target operator= value`. The operator is "" for a plain assignment."""

    target: str
    name: str  # the identifier at the start of the target
    operator: str
    value: str
    is_element: bool  # whether the target is an element in memory rather than a variable


@lru_cache(maxsize=4096)
def statements(source):
    """Return (offset, text) for each statement on a source line.

    A semicolon inside parentheses, as in the header of a `for` loop, does not separate statements.
    """
    source = re.sub(r"(^|[;{}])\s*//.*$|\s#\s.*$", r"\1", source)
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(f"{source};"):
        depth += (letter in "([") - (letter in ")]")
        if letter == ";" and depth == 0:
            if source[begin:at].strip("{} \t"):
                found.append((begin, source[begin:at].strip()))
            begin = at + 1
    return tuple(found)


@lru_cache(maxsize=4096)
def statement_of(site):
    """Return the statement at the column of a Site."""
    offset = site.column - site.indent
    return next((text for at, text in reversed(statements(site.source)) if at <= offset), site.source)


def may_perform(text, action):
    """Return whether a C++ statement can perform an access of this kind to an element.

    action: "load", "store" or "atomic".
    """
    found, is_atomic = assignment(text), ATOMIC_CALL.search(text) is not None
    if action != "load":
        return is_atomic if action != "store" else found is not None and found.is_element
    value = text if found is None or found.operator else found.value
    return not is_atomic and re.search(r"\w\s*\[|\*\s*\w|->|\(", value) is not None


def index_of(site, name):
    """Return (text of the index, its offset in the line) for the access at a Site to an array.

    Return None if the source does not show the index.

    name: the name of the array.
    """
    offset = max(site.column - site.indent, 0)
    here = site.source[offset:]
    if CALL_OF_ATOMIC.match(here):
        found = (*arguments(inside_brackets(here[here.index("(") :])), "")[1]
        if after_brackets(found) == "" and found.startswith("("):
            found = inside_brackets(found)
        return (found, site.source.index(found, offset)) if found else None
    if POINTER.match(here) and POINTER.match(here)[1] == name:
        found = arguments(inside_brackets(here[here.index("(") :]))[0].partition(" + ")[2]
        return found, site.source.index(found, offset)
    statement = statement_of(site)
    # Compilers of CUDA C++ give all accesses of a statement the column at which it starts.
    is_exact = not site.file or not here.startswith(statement)
    text = here if is_exact and re.match(rf"{re.escape(name)}\s*\[", here) else statement
    starts = [found.end() - 1 for found in re.finditer(rf"\b{re.escape(name)}\s*\[", text)]
    if text is not here:
        starts = starts_of_action(starts, text, name, site.kind)
    if not starts:
        return None
    found, rest = inside_brackets(text[starts[0] :]), after_brackets(text[starts[0] :])
    if rest.startswith("[") and not FIELD.match(rest):
        return None
    return found, site.source.index(text) + starts[0] + 1


def starts_of_action(starts, text, name, action):
    """Return the positions of the brackets that can belong to an access, or [] if the brackets contain
    different indices.

    starts: the positions at which the array's brackets open in a statement.
    text: the statement.
    name: the name of the array.
    action: "load", "store" or "atomic".
    """
    found = assignment(text)
    if found is not None and found.is_element and found.name == name:
        if action == "store":
            starts = starts[:1]
        elif not found.operator:
            starts = starts[1:]
    return starts if len({inside_brackets(text[start:]) for start in starts}) == 1 else []


def lines_of_value(lines, value):
    """Return (lines, names): the numbers of the lines that assign variables on which `value` depends, and the
    names that these lines and the value use. The dependence can be indirect.

    lines: pairs (number, text).
    """
    names, found = set(re.findall(r"[^\W\d]\w*", value)), frozenset()
    setting = [(n, assignment(text)) for n, line in lines for _, text in statements(line)]
    while True:
        used = [(n, a) for n, a in setting if a and not a.is_element and a.name in names]
        if found == frozenset(n for n, _ in used):
            return found, frozenset(names)
        found = frozenset(n for n, _ in used)
        names.update(name for _, a in used for name in re.findall(r"[^\W\d]\w*", a.value))


def atomic_target(target):
    """Return the arguments (array, index) of a Numba atomic on an element, or None if there are none.

    For x[i], they are x and i. For the field x[i].n, they are x["n"] and i.
    """
    named = re.match(r"\w+(?:\[\"\w+\"\])?(?=\[)", target)
    if named is None:
        return None
    index, rest = inside_brackets(target[named.end() :]), after_brackets(target[named.end() :])
    field = FIELD.fullmatch(rest)
    if field is None:
        return None if rest else (named[0], index)
    return f'{named[0]}["{field[1] or field[3]}"]', index


def find_extreme(value, name):
    """Return ("min" or "max", the other operand) if a value is the minimum or maximum of `name` and another
    operand. Return None otherwise.

    Both min(name, x) and `x if x < name else name` are recognised.
    """
    call = EXTREME.match(value)
    if call and after_brackets(value[call.end() :]) == "":
        parts = arguments(inside_brackets(value[call.end() :]))
        others = [part for part in parts if part != name]
        return (call[1], others[0]) if len(parts) == 2 and len(others) == 1 else None
    found = CONDITIONAL.fullmatch(value)
    then, test, other = (
        (found[part] or found[f"{part}2"] for part in ("then", "test", "other")) if found else ("", "", "")
    )
    sides = re.fullmatch(r"\(?(.+?) ([<>])=? (.+?)\)?", test)
    if sides is None or {sides[1], sides[3]} != {then, other} or name not in (then, other) or then == other:
        return None
    smaller = sides[1] if sides[2] == "<" else sides[3]
    return "min" if then == smaller else "max", other if then == name else then


def find_call_of_sum(value, name):
    """Return ("+" or "-", the other operand) if a value is a call that adds an operand to `name` or subtracts
    one from it, such as __hadd(name, x). Return None otherwise."""
    call = SUM_CALL.match(value)
    if call is None or after_brackets(value[call.end() :]) != "":
        return None
    parts, adds = arguments(inside_brackets(value[call.end() :])), "add" in (call[1], call[2])
    if len(parts) != 2 or parts.count(name) != 1 or not adds and parts[0] != name:
        return None
    return "+" if adds else "-", parts[1 - parts.index(name)]


def find_step(source, scalar=None):
    """Return (text, element, operator) for `x[i]++`, or a similar step, inside a larger C++ expression.
    Return None if there is none.

    scalar: the name of a variable in memory, or None.
    """
    found, text = STEP.search(source), statement(source)
    if found is None and scalar:
        found = re.search(STEP.pattern.replace(PLACE, rf"\(?\b({re.escape(scalar)})\b\)?"), source)
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
    """Return the statement on a source line, stripped of any leading `if (...)` or similar header, trailing
    comment and semicolon."""
    source = re.sub(r"(^|[;{}])\s*//.*$|\s#\s.*$", r"\1", source).strip()  # in Python, // is a division
    while found := HEADER.match(source):
        rest = source[found.end() :]
        source = after_brackets(rest) if rest.startswith("(") else rest.strip()
    return source.strip("{} ").split(";")[0].strip()


def closing_bracket(text):
    """Return the position of the bracket that closes the opening bracket at the start of a text."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return at
    return len(text)


def after_brackets(text):
    """Return the text after the bracket expression at the start of `text`, or "" if it is not closed."""
    return text[closing_bracket(text) + 1 :].strip()


def inside_brackets(text):
    return text[1 : closing_bracket(text)].strip()


@lru_cache(maxsize=1024)  # a race on thousands of elements asks for the same few lines each time
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
        if depth == 0 and letter == "=" and text[at + 1 : at + 2] != "=" and not COMPARISON.search(text[:at]):
            left = text[:at].rstrip()
            operator = next((o for o in OPERATORS if left.endswith(o)), "")
            left = left[: len(left) - len(operator)].rstrip()
            named = LVALUE.match(left)
            target = left[named.start("star") :] if named else ""
            in_memory = named is not None and target != named["name"]
            return named and Assignment(target, named["name"], operator, text[at + 1 :].strip(), in_memory)
    return stored(text)


def stored_variable(text):
    """Return the variable to which a C++ statement assigns, if the statement can store to no other memory and
    declares no variable. Return None otherwise."""
    found = assignment(text)
    if found is None or found.is_element or not text.startswith((found.name, "++", "--")):
        return None
    return None if STORE_OR_CALL.search(EXTREME.sub("", found.value)) else found.name


def with_plain_reads(text, target):
    """Return a statement in which each call that only reads the element `target` is replaced by `target`.

    Such calls are Triton's loads, additions of 0, and compare-and-swaps of equal values:
    `cuda.atomic.cas(n, 0, 0, 0)`.
    """
    for call in READING_CALL.finditer(text):
        operands = arguments(inside_brackets(text[call.end() - 1 :]))
        operation = call[1] or call[2]
        read = element_read_by(operation, operands) if operation else operands[0]
        if read == (plain_name(target) if operation else target):
            end = call.end() + closing_bracket(text[call.end() - 1 :])
            return text[: call.start()] + target + with_plain_reads(text[end:], target)
    return text


def element_read_by(operation, operands):
    """Return the element (see `plain_name`) that an atomic only reads, or None if it may change the element.

    operation: "add", "Add", "cas" or "CAS".
    """
    values = 1 if operation.lower() == "add" else 2
    if len(operands) < values + 1 or operands[-1] != operands[-values] or values == 1 and operands[-1] != "0":
        return None
    place = operands[:-values]
    if len(place) == 2:
        return f"{place[0]}[{place[1]}]"
    return plain_name(place[0][1:] if place[0].startswith("&") else f"*{place[0]}")


def plain_name(element):
    """Return the text of an element. Replace `*p` and `(*p)` by `p[0]`."""
    found = re.fullmatch(r"\(?\*\s*(\w+)\)?", element)
    return f"{found[1]}[0]" if found else element


def reads_only(text):
    """Return whether each compare-and-swap of a statement compares and stores the same value."""
    calls = [call for call in READING_ATOMIC.finditer(text) if (call[1] or call[2]).lower() == "cas"]
    read = [element_read_by("cas", arguments(inside_brackets(text[call.end() - 1 :]))) for call in calls]
    return bool(calls) and None not in read


def element_of(taken):
    """Return the element copied unchanged by an Assignment, or None."""
    return taken and arguments(re.sub(r"^tl\.load\(|\)$", "", taken.value))[0]


def find_operation(value, name):
    """Return (operator, operand) if a value is `name operator operand`, or the minimum or maximum of `name`
    and the operand, so that one atomic can compute it. Return None otherwise.

    operator: one of ATOMIC_OPERATORS, "min" or "max".
    """
    found = find_extreme(value, name) or find_call_of_sum(value, name) or find_operator(value, name)
    return None if found and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", found[1]) else found


def find_operator(value, name):
    """Return (operator, operand) if a value is `name operator operand` or `operand + name`, else None."""
    if value.endswith(f" + {name}") and not LOOSER_THAN_SUM.search(value[: -len(name)]):
        return "+", value[: -len(f" + {name}")]
    operator, operand = value[len(name) :][1:2], value[len(name) :][3:]
    if not value.startswith(f"{name} ") or operator not in tuple(ATOMIC_OPERATORS) or not operand:
        return None
    rest = re.sub(r"\([^()]*\)|\[[^][]*\]", "", operand)
    if operator in "&|^":
        rest = re.sub(r"<<|>>", "", rest)
    # In `n - a + b`, the rest `a + b` is not the operand, because `+` is evaluated after `-`.
    divided = LOOSER_THAN_SUM.search(rest) or operator == "-" and SUM.search(rest)
    return None if divided or not value[len(name) :].startswith(f" {operator} ") else (operator, operand)


def elements(text, name, scalar=False):
    """Return all substrings `name[...]` of a text, each with the record field that follows it, and all
    substrings `*name` and `name->field`.

    scalar: whether the name is a variable in memory. The name by itself is then an element, too.
    """
    found, name = [], re.escape(name)
    for match in re.finditer(rf"\b{name}\s*\[", text):
        end = match.end() + closing_bracket(text[match.end() - 1 :])
        field = FIELD.match(text, end)
        found.append(text[match.start() : field.end() if field else end])
    found += re.findall(rf"\b{name}\s*->\s*\w+(?![\w.]|\s*[\[(]|->)", text)
    for match in re.finditer(rf"\*\s*{name}\b(?!\s*\[)", text):
        before = text[: match.start()].rstrip()
        if not re.search(r"[\w)\]]$", before) or before.endswith("return"):  # otherwise, `*` multiplies
            found.append(match[0])
    if scalar:
        found += re.findall(rf"(?<![\w.*>:]){name}\b(?:\.\w+)*(?!\w|\s*[\[(]|->)", text)
    return found


def mentions(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def assigned(name, text):
    """Return the matches in `text` of assignments to a name."""
    return re.findall(rf"\b{re.escape(name)}\s*(?:,\s*\w+\s*)*(?<![=!<>])=(?!=)", text)


def sliced(name, text):
    """Return the matches in `text` of assignments of an array's slice to the array's own name."""
    name = re.escape(name)
    return re.findall(rf"\b{name}\s*=\s*{name}\s*\[[^\]\n]*:", text)


def values_assigned(name, text):
    """Return the values that `text` assigns to a name, each up to the end of its line or statement."""
    return re.findall(rf"\b{re.escape(name)}\s*(?<![=!<>])=(?!=)\s*([^;\n#]+)", text)


def value_in_full(name, text):
    """Return the value that `text` assigns to a name, followed by the values of the names in it."""
    found, names = [], [name]
    for each in names:  # the list grows
        values = values_assigned(each, text)
        found += values
        names += sorted(set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", " ".join(values))).difference(names))
    return "\n".join(found)
