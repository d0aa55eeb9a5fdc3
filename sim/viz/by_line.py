"""A table of a kernel's source lines with the cost of each line."""

import inspect
from collections.abc import Iterable, Sequence
from html import escape
from types import CodeType
from typing import NamedTuple

from sim.events import Column
from sim.viz import LEFT_ALIGNED, View

Counters = dict[str, int]
Line = tuple[int, str, Counters]  # number, source, counters


class Listing(NamedTuple):
    """A function's name and source lines: the picklable part of a code object."""

    name: str
    lines: tuple[str, ...]


def listing(code: CodeType | Listing) -> Listing:
    """Return the Listing of a function."""
    return code if isinstance(code, Listing) else Listing(code.co_name, tuple(source(code)))


def by_line(
    code: Iterable[CodeType | Listing],
    lines: dict[tuple[str, int], Counters],
    declared: Sequence[Column] = (),
) -> View:
    """Return a View of the functions' source lines with their counters.

    lines: {(function, line): {name: number}}.
    declared: the observers' Columns. A counter in no Column is displayed under its own name.
    """
    # A device function called at two sites has two code objects with the same source.
    parts = list(dict.fromkeys(map(listing, code)))
    known = {name for column in declared for name in column.all_names}
    others = dict.fromkeys(name for counters in lines.values() for name in counters if name not in known)
    columns = [
        column for column in (*declared, *(Column(name, (name,)) for name in others)) if column.heading
    ]
    texts, bodies = [], []
    for name, text in parts:
        rows = [(number, line, lines.get((name, number), {})) for number, line in enumerate(text, 1)]
        if any(counters for *_, counters in rows) or name == parts[0][0]:
            texts.append(as_text(name, rows, columns))
            bodies.append(as_html(name, rows, columns))
    meaning = " ".join(column.meaning for column in columns if column.meaning)
    return View("\n\n".join(texts), "".join(bodies) + f"<small>{escape(meaning)}</small>")


def source(code: CodeType) -> list[str]:
    """Return a function's source lines from its `def` on, dedented; an empty list if there is no source."""
    try:
        text = inspect.getsourcelines(code)[0]
    except (OSError, TypeError):
        return []
    indent = len(text[0]) - len(text[0].lstrip())
    return [line.rstrip()[indent:] for line in text]


def table(rows: list[Line], columns: list[Column]) -> tuple[list[str], list[list[str]]]:
    """Return (headings of the columns that have entries, a row of texts per line)."""
    cells = [[entry(column, counters) for column in columns] for *_, counters in rows]
    used = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    return [columns[place].heading for place in used], [[row[place] for place in used] for row in cells]


def entry(column: Column, line: Counters) -> str:
    """Return the text of a table cell: a number with thousands separators, or "" for 0."""
    total = sum(line.get(name, 0) for name in column.names)
    detail = f" ({line.get(column.detail, 0):,})" if column.detail else ""
    return f"{total:,}{detail}" if total else ""


def as_text(name: str, rows: list[Line], columns: list[Column]) -> str:
    used, cells = table(rows, columns)
    widths = [max(len(heading), *(len(row[column]) for row in cells)) for column, heading in enumerate(used)]

    def joined(texts: Iterable[str]) -> str:
        return "  ".join(f"{text:>{width}}" for text, width in zip(texts, widths))

    body = [f"{joined(row)}  {number:>4}  {line}".rstrip() for row, (number, line, _) in zip(cells, rows)]
    return "\n".join([f"{joined(used)}  line  {name}", *body]) if rows else f"{name} has no source to show"


def indent_html(line: str) -> str:
    """Return a source line as HTML whose indentation survives without style sheets."""
    text = line.lstrip()
    return "&nbsp;" * (len(line) - len(text)) + escape(text)


def as_html(name: str, rows: list[Line], columns: list[Column]) -> str:
    if not rows:
        return f"<p>{escape(name)} has no source to show</p>"
    used, cells = table(rows, columns)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in used)
    body = "".join(
        f"<tr>{''.join(f'<td>{text}</td>' for text in row)}<td>{number}</td><td {LEFT_ALIGNED}><code"
        f" class='source'>{indent_html(line)}</code></td></tr>"
        for row, (number, line, _) in zip(cells, rows)
    )
    return (
        f"<table><thead><tr>{head}<th>line</th><th"
        f" {LEFT_ALIGNED}>{escape(name)}</th></tr></thead><tbody>{body}</tbody></table>"
    )
