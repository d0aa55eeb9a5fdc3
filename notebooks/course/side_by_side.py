"""Shows PTX from several languages side by side, and highlights the instructions of selected source lines."""

import re
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

INSTRUCTION = re.compile(r"\s*(@!?%\w+\s+)?[a-z][\w.]*(\s|;)")
MARK = "▶ "


def show_ptx(title, columns):
    """Show PTX texts next to each other.

    columns: {name: (ptx, lines)}, where `lines` are the source lines to highlight.
    """
    # imported here so that the package loads without Jupyter
    from IPython.display import display

    display(SideBySide(title, {name: [*marked(*given)] for name, given in columns.items()}))


def instructions(ptx):
    """Yield (source line or 0, instruction or label) for the body of the first kernel, in order."""
    body = ptx[ptx.index(".entry") :]
    name = re.search(r"\.entry\s+(\S+?)\(", body)[1]
    line = 0
    for text in body[body.index("\n{") : body.index("\n}")].splitlines():
        if place := re.match(r"\s*\.loc\s+1\s+(\d+)", text):
            line = int(place[1]) or line
        elif INSTRUCTION.match(text) or re.match(r"\$L__BB\w+:", text):
            short = " ".join(text.strip().rstrip(";").split())
            yield line, re.sub(rf"{re.escape(name)}_param_", "param ", short)


def count(ptx, beginning="", lines=None):
    """Count the instructions that begin with a prefix.

    lines: source lines to which the count is restricted, or None for all.
    """
    return sum(
        not text.startswith("$") and bare(text).startswith(beginning) and (lines is None or line in lines)
        for line, text in instructions(ptx)
    )


def bare(instruction):
    """Return an instruction without its guard predicate."""
    return re.sub(r"^@!?%\w+ ", "", instruction)


def marked(ptx, lines):
    """Return [(instruction or label, whether it belongs to one of the source lines)] for a kernel."""
    return (
        (text, line in lines and not text.startswith("$") and text != "ret")
        for line, text in instructions(ptx)
    )


@dataclass(frozen=True)
class SideBySide:
    """Columns of PTX. `str()` returns text, and a notebook shows HTML."""

    title: str
    columns: dict[str, list[tuple[str, bool]]]

    def heads(self):
        for name, rows in self.columns.items():
            there = sum(not text.startswith("$") for text, _ in rows)
            yield f"{name}: {there} instructions, {sum(mark for _, mark in rows)} marked"

    def __str__(self):
        cells = [
            [head, *((MARK if mark else "  ") + text for text, mark in rows)]
            for head, rows in zip(self.heads(), self.columns.values())
        ]
        widths = [max(map(len, column)) for column in cells]
        rows = zip_longest(*cells, fillvalue="")
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
        return "\n".join([self.title, *lines])

    __repr__ = __str__

    def _repr_html_(self):
        head = "".join(f'<th style="text-align:left">{escape(head)}</th>' for head in self.heads())
        cell = '<td style="text-align:left;vertical-align:top"><pre style="font:11px monospace">'
        body = "".join(f"{cell}{code}</pre></td>" for code in map(code_of, self.columns.values()))
        title = f'<caption style="text-align:left">{escape(self.title)}</caption>'
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"


def code_of(rows):
    """Return the lines of one column as HTML.

    Highlighted lines have both a background colour and a mark, for readers who cannot distinguish colours.
    """
    return "\n".join(
        f'<b style="background:#F0E442;color:black">{MARK}{escape(text)}</b>' if mark else f"  {escape(text)}"
        for text, mark in rows
    )
