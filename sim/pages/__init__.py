"""The index of findings: one page for each kind of finding, such as race-shared.md in this folder.

`python -m sim explain race-shared` prints a page, and `python -m sim explain` lists the pages. Each message
ends with the name of its page: `→ race-shared`.

To add a page:

1. Add the kind to `KINDS` in sim/events.py, or to `HOST_KINDS` in sim/runtime/findings.py.
2. Copy the page of a similar kind to KIND.md, and change it. `parse` defines the parts of a page; a page
   without one of them raises PageError. Each language (LANGUAGES) has a form, with the code with the bug
   and the fixed code, or the reason why there is none. The bug must be reported as KIND and as nothing else.
3. Run `python tests/sim/test_pages.py KIND`. It runs the forms and writes the message into the page.
"""

import difflib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HOME = Path(__file__).parent
LANGUAGES = ("Numba", "CUDA C++", "Triton")
PARTS = ("Why it is wrong on a GPU", "Fix", "Manual")


class PageError(ValueError):
    """A page without the parts that `parse` expects."""


@dataclass(frozen=True)
class Form:
    """A minimal program with the bug, in one language.

    language: one of LANGUAGES.
    bug: the program, or the kernel's file.
    command: the command line that runs a CUDA C++ file; otherwise "".
    message: the message that the program's run prints; "" in all forms except the first.
    fixed: the program without the bug.
    """

    language: str
    bug: str
    command: str
    message: str
    fixed: str


@dataclass(frozen=True)
class Page:
    """A page of the index.

    name: the kind of the finding.
    title: the name in words.
    meaning: one sentence that defines the finding.
    why: the reason why the code is wrong on a GPU.
    fix: the usual fixes.
    manual: the section of the manual that states the rule.
    forms: the minimal programs; the first one has a message.
    reasons: for each language without a form, why the finding does not occur there.
    text: the whole page, in Markdown.
    """

    name: str
    title: str
    meaning: str
    why: str
    fix: str
    manual: str
    forms: tuple[Form, ...]
    reasons: dict[str, str]
    text: str


def names() -> tuple[str, ...]:
    """Return the names of all pages, in alphabetical order."""
    return tuple(sorted(path.stem for path in HOME.glob("*.md")))


def reference(name: str) -> str:
    """Return the last line of a message, which names its page: "  → race-shared"."""
    return f"  → {name}"


def insert_line(message: str, line: str) -> str:
    """Return a message with another line inserted before its reference."""
    text, _, last = message.rpartition("\n")
    return f"{text}\n{line}\n{last}"


@cache
def page(name: str) -> Page:
    """Return a page. Raise KeyError, with the nearest name, if there is none."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1, cutoff=0.4)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise KeyError(f"no page is called {name!r}{hint}")
    return parse(name, (HOME / f"{name}.md").read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Page:
    """Return the Page for a text in Markdown. Raise PageError if a part is missing.

    A page consists of:
    - "# NAME: title", and one paragraph, the meaning;
    - the sections of PARTS;
    - one section for each of LANGUAGES, with the code blocks of `parse_form` or with a paragraph without
      code. At least one has code.
    """
    top, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    heading = re.match(rf"# {name}: (.+)\n\n(.+)\n\s*\Z", top)
    if not heading:
        raise PageError(f"{name}.md: wanted '# {name}: title', an empty line and one paragraph first")
    parts = {title: body.strip() for title, _, body in (each.partition("\n") for each in sections)}
    if [*parts] != [*PARTS, *LANGUAGES]:
        raise PageError(
            f"{name}.md: the sections are {', '.join(parts)}; wanted {', '.join([*PARTS, *LANGUAGES])}"
        )
    texts = {language: parts[language] for language in LANGUAGES}
    reasons = {language: text for language, text in texts.items() if text and "```" not in text}
    forms = tuple(parse_form(name, each, texts[each]) for each in LANGUAGES if each not in reasons)
    if not forms:
        raise PageError(
            f"{name}.md: no language has a program; wanted at least one of {', '.join(LANGUAGES)}"
        )
    return Page(name, *heading.groups(), *(parts[part] for part in PARTS), forms, reasons, text)


def parse_form(name: str, language: str, text: str) -> Form:
    """Return the Form of a section: the code, for CUDA C++ the command, at most one message, and the fixed
    code. Raise PageError if the section contains other code blocks."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code = "cuda" if language == "CUDA C++" else "python"
    kinds = [kind for kind, _ in blocks]
    command = ["sh"] * (code == "cuda")
    if kinds not in ([code, *command, code], [code, *command, "", code]):
        raise PageError(
            f"{name}.md, {language}: the code blocks are {kinds}; wanted {[code, *command, code]}, or with"
            " the message in a block without a language before the last"
        )
    texts = [body for _, body in blocks]
    line = texts[1].strip() if command else ""
    message = texts[-2].rstrip("\n") if "" in kinds else ""
    return Form(language, texts[0], line, message, texts[-1])


def main(given: list[str]) -> int:
    """Print the page that `given` names, or the list of pages. Return 2 if there is no such page."""
    if not given:
        width = max(map(len, names()))
        print(*(f"{name:{width}}  {page(name).title}" for name in names()), sep="\n")
        print("\npython -m sim explain NAME prints the page of a kind.")
        return 0
    for name in given:
        try:
            print(page(name.removeprefix("→").strip()).text.rstrip())
        except KeyError as error:
            line = f"python -m sim explain: {error.args[0]}; `python -m sim explain` lists all pages"
            print(line, file=sys.stderr)
            return 2
    return 0
