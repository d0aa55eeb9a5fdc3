"""Failed host calls whose error the program never reads.

The compiled program does not show whether it uses the result of a call, because the machine code differs with
the compiler and its options. The source text of the call's line shows it. A call's result is ignored if the
call is a whole statement, such as `cudaFree(p);`. Calls inside a macro's arguments, such as
`CHECK(cudaFree(p))`, count as checked, and so do calls whose source file is missing.
"""

import re
from functools import lru_cache
from pathlib import Path

from sim.runtime.call_sites import CallSite
from sim.runtime.errors import error_name, error_text
from sim.runtime.signatures import BLAS, DRIVER

# comments, literals and preprocessor lines, which `code_of` replaces by blanks
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.DOTALL | re.MULTILINE,
)
# the text that may precede a call in its statement, without the contents of parentheses
BEGINNING = re.compile(
    r"\s*(?:(?:case\b[^:?]*:|default\s*:|else\b|do\b|(?:if|for|while|switch)\s*(?:constexpr\s*)?\(\))\s*)*"
    r"(?:(?!\s*return\b)[^;]*,\s*)?(?:::\s*)?"
)
CALL_LINES = 4  # the number of lines, from the call's line on, that are searched for the call's name
VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")  # suffixes of symbols that the source does not contain


def ignores_result(site: CallSite, name: str) -> bool:
    """Return whether the source ignores the result of the call of `name` at `site`.

    A launch with `<<<...>>>` has no result, so its error is ignored there.
    """
    text = code_of(site.file) if site.line else ""
    lines = text.split("\n")
    if name.startswith("__cudaLaunchKernel") or "<<<" in "".join(lines[site.line - 1 : site.line]):
        return True
    start = sum(len(line) + 1 for line in lines[: site.line - 1])
    end = start + sum(len(line) + 1 for line in lines[site.line - 1 : site.line - 1 + CALL_LINES])
    called = re.compile(rf"\b{VERSION.sub('', name)}\s*(?:<[^;()]*>\s*)?\(")
    found = next(called.finditer(text, start, end), None)
    return found is not None and is_statement(text, found.start(), found.end())


def is_statement(text: str, start: int, inside: int) -> bool:
    """Return whether a call is a whole statement, or an operand of a comma in a statement.

    start: the position of the called name.
    inside: the position after the opening parenthesis.
    """
    before, depth = [], 0
    for character in reversed(text[:start]):
        depth += (character == ")") - (character == "(")
        if depth < 0 or depth == 0 and character in ";{}":
            break
        if depth == 0 or depth == 1 and character == ")":
            before.append(character)
    depth_after, at = 1, inside
    while at < len(text) and depth_after:
        depth_after += (text[at] == "(") - (text[at] == ")")
        at += 1
    follows = text[at:].lstrip()[:1]
    return depth >= 0 and follows in (";", ",") and bool(BEGINNING.fullmatch("".join(reversed(before))))


@lru_cache
def code_of(file: str) -> str:
    """Return the text of a source file without comments and literals, or "" if the file is missing."""
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def verdict_and_fix(name: str, code: int) -> tuple[str, str]:
    """Return the verdict and the fix of a failed call."""
    if name.startswith(("__cudaLaunchKernel", "cudaLaunchKernel")):
        return (
            "this launch failed, but the program never checked for an error",
            "call cudaGetLastError() after each launch",
        )
    error = (
        f"returned {code}"
        if name in DRIVER or name in BLAS
        else f"failed with {error_name(code)}: {error_text(code)}"
    )
    return f"{name} {error}, but the program never checked the error", "check the result of each call"
