"""Mutations and standard breakers of a solution in CUDA C++.

The solution is a text, in which one token, argument or statement is changed.
"""

import itertools
import re

TOKEN = re.compile(
    r"(?P<comment>//.*)|(?P<number>\d+\.\d*f?|\d+u?)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<sign><<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>&|^])"
)
OTHER = {
    "<": ["<=", ">="],
    "<=": ["<", ">"],
    ">": [">=", "<="],
    ">=": [">", "<"],
    "==": ["!="],
    "!=": ["=="],
    "+": ["-"],
    "-": ["+"],
    "*": ["+", "/"],
    "/": ["*"],
    "%": ["/"],
    "<<": [">>"],
    ">>": ["<<"],
    "+=": ["-=", "="],
    "-=": ["+="],
    "*=": ["/="],
    "/=": ["*="],
    "&&": ["||"],
    "||": ["&&"],
    "min": ["max"],
    "max": ["min"],
    "fminf": ["fmaxf"],
    "fmaxf": ["fminf"],
    "blockDim": ["gridDim"],
    "gridDim": ["blockDim"],
    "blockIdx": ["threadIdx"],
    "threadIdx": ["blockIdx"],
    "x": ["y"],
    "__shfl_xor_sync": ["__shfl_down_sync"],
}
EITHER_WAY = {"min", "max", "fminf", "fmaxf", "for", "if", "while"}
TYPES = r"\b(float|int|unsigned)\s*$"


def is_cpp(exercise):
    """Return whether the answer is a CUDA C++ string, which has a name in capital letters."""
    return exercise.answer.isupper()


def altered_cells(exercise):
    """Yield (label, text of the cell) for every mutation, like power.mutations.altered_cells for Python."""
    lines, (begin, end) = exercise.cell.split("\n"), exercise.lines
    before, text, after = (
        "\n".join(part) for part in (lines[:begin], lines[begin : end - 1], lines[end - 1 :])
    )
    for place, length, new, what in sorted({*tokens(text), *arguments(text), *statements(text)}):
        line = text[:place].count("\n") + 1
        yield f"line {line}: {what}", f"{before}\n{text[:place]}{new}{text[place + length :]}\n{after}"


def tokens(text):
    """Yield (position, length, replacement, description) for every token."""
    for found in TOKEN.finditer(text):
        old, place = found[0], found.start()
        declares = old in "*&" and re.search(TYPES, text[:place])
        others = numbers(old) if found["number"] else [] if declares else OTHER.get(old, [])
        for new in others:
            yield place, len(old), new, f"{old} becomes {new}, of {near(text, place)}"


def numbers(old):
    if "." in old:
        value = float(old.rstrip("f"))
        return [f"{value + 1}f", *([f"{value / 2}f"] if value else [])]
    value, unsigned = int(old.rstrip("u")), "u" if old.endswith("u") else ""
    return [f"{value + 1}{unsigned}", f"({value - 1}{unsigned})"]


def arguments(text):
    """Yield an exchange of each pair of adjacent arguments of a call."""
    for call in re.finditer(r"(\w+)\(", text):
        if call[1] not in EITHER_WAY:
            parts = list(split(text, call.end()))
            for number, ((a, b), (c, d)) in enumerate(itertools.pairwise(parts), 1):
                new = text[c:d].strip() + text[b:c] + " " + text[a:b].strip()
                yield a, d - a, new, f"arguments {number} and {number + 1} swapped, of {call[1]}"


def split(text, start):
    """Yield (begin, end) of each argument of a call whose first argument begins at `start`."""
    depth, begin = 0, start
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth < 0 or (text[place] == "," and not depth):
            yield begin, place
            begin = place + 1
        if depth < 0:
            return


def statements(text):
    """Yield mutations that remove a statement, make a condition always true, or make a conditional expression
    always use the same one of its two values.

    Declarations are kept.
    """
    depth, begin = 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth == 0 and sign in ";{}":
            first = place + 1 - len(text[begin : place + 1].lstrip())
            if sign == ";" and not re.match(r"(const )?(float|int|unsigned)\b", text[first:]):
                yield first, place - first, "", f"dropped: {near(text, first)}"
            begin = place + 1
    for test in re.finditer(r"\bif \(", text):
        (a, b) = next(split(text, test.end()))
        yield a, b - a, "true", f"always true: {text[a:b]}"
    for choice in re.finditer(r"= ([^=;?]+ \? ([^:;]+) : ([^;]+));", text):
        for which in (2, 3):
            yield choice.start(1), len(choice[1]), choice[which], f"always {choice[which]}"


def near(text, place):
    """Return the beginning of the line that contains a position."""
    line = text[text.rfind("\n", 0, place) + 1 :].partition("\n")[0]
    return line.strip()[:60]


# Standard breakers ------------------------------------------------------------------------------------------

LOOP = re.compile(r"for \(int (\w+) = ([^;]+); \1 < ([^;]+); (?:\1\+\+|\1 \+= ([^)]+))\)")


def breakers(exercise):
    """Return [(label, answer)]: each argument ignored, an input modified, a limit on the size, no maximum."""
    text = exercise.solution
    return [(label, made) for label, made in rewritten(text) if made != text]


def rewritten(text):
    head, end = text.partition("# BEGIN SOLUTION")[0], text.index("    # END SOLUTION")
    body = head.rindex("\n") + 1
    for kind, name in re.findall(r"(float\*|int|float) (\w+)[,)]", head):
        if kind == "float*":
            made = f"{text[:end]}    ((float*){name})[0] = 3.0f;\n{text[end:]}"
            yield f"writes into {name} at the end", made
        else:
            yield f"ignores {name}", f"{text[:body]}    {name} = 1;\n{text[body:]}"
    for number in ("0.0f", "-50.0f", "100.0f"):
        yield f"{number} for the maximum", re.sub(r"fmaxf\(.*\)(?=[;,])", number, text)
    for number in ("-1e9f", "-1e4f", "-10.0f"):
        yield f"{number} for -inf", text.replace("MINUS_INFINITY", number)
    yield "goes round six times at most", LOOP.sub(capped, text)


def capped(loop):
    name, first, last, step = loop.groups()
    end = f"min((int)({last}), (int)({first}) + 6 * (int)({step or 1}))"
    return f"for (int {name} = {first}; {name} < {end}; {name} += {step or 1})"
