"""The source of a kernel with the costs of each line next to it."""

import inspect
from collections.abc import Callable, Iterable
from html import escape
from types import CodeType
from typing import NamedTuple

from sim.viz import LEFT_ALIGNED, View

Counters = dict[str, int]
Line = tuple[int, str, Counters]  # number, source, counters

# every other counter of a line is a warp operation: a shuffle, a vote, a match, syncwarp
COUNTED = set(
    "loads stores atomics load_bytes store_bytes atomic_bytes requests sectors fewest_sectors shared_requests"
    " wavefronts fewest_wavefronts ways syncthreads grid.sync branches divergent".split()
)
# heading -> function that makes the entry from a line's counters; empty columns are left out
COLUMNS: dict[str, Callable[[Counters], int | str | None]] = {
    "loads": lambda line: line.get("loads"),
    "stores": lambda line: line.get("stores"),
    "atomics": lambda line: line.get("atomics"),
    "bytes": lambda line: sum(line.get(f"{what}_bytes", 0) for what in ("load", "store", "atomic")),
    "sectors (fewest)": lambda line: pair(line, "sectors", "fewest_sectors"),
    "wavefronts (fewest)": lambda line: pair(line, "wavefronts", "fewest_wavefronts"),
    "ways": lambda line: line.get("ways"),
    "branches (divergent)": lambda line: pair(line, "branches", "divergent"),
    "barriers": lambda line: line.get("syncthreads", 0) + line.get("grid.sync", 0),
    "warp ops": lambda line: sum(n for name, n in line.items() if name not in COUNTED),
}
MEANING = (
    "sectors: pieces of 32 bytes of global memory that warps touched, and the fewest possible. wavefronts:"
    " how often shared memory had to serve, the fewest possible, and the worst ways of a bank conflict."
)


class Listing(NamedTuple):
    """A function's name and the lines of its source: the part of a code object that can be pickled."""

    name: str
    lines: tuple[str, ...]


def listing(code: CodeType | Listing) -> Listing:
    """Return the Listing of a function."""
    return code if isinstance(code, Listing) else Listing(code.co_name, tuple(source(code)))


def by_line(code: Iterable[CodeType | Listing], lines: dict[tuple[str, int], Counters]) -> View:
    """Return a View of these functions with their counters. `lines`: {(function, line): {name: number}}."""
    parts = list(map(listing, code))
    texts, bodies = [], []
    for name, text in parts:
        rows = [(number, line, lines.get((name, number), {})) for number, line in enumerate(text, 1)]
        if any(counters for *_, counters in rows) or name == parts[0][0]:
            texts.append(as_text(name, rows))
            bodies.append(as_html(name, rows))
    return View("\n\n".join(texts), "".join(bodies) + f"<small>{MEANING}</small>")


def source(code: CodeType) -> list[str]:
    """The lines of a function from its `def` on, without common indentation; none without a source."""
    try:
        text = inspect.getsourcelines(code)[0]
    except (OSError, TypeError):
        return []
    indent = len(text[0]) - len(text[0].lstrip())
    return [line.rstrip()[indent:] for line in text]


def table(rows: list[Line]) -> tuple[list[str], list[list[str]]]:
    """(headings that have entries, a row of texts for each line)."""
    used = [heading for heading, value in COLUMNS.items() if any(value(counters) for *_, counters in rows)]
    return used, [[written(COLUMNS[heading](counters)) for heading in used] for *_, counters in rows]


def pair(line: Counters, name: str, other: str) -> str | None:
    return f"{line[name]:,} ({line[other]:,})" if line.get(name) else None


def written(entry: int | str | None) -> str:
    """A table's entry: numbers with commas, nothing for 0 and None."""
    return f"{entry:,}" if isinstance(entry, int) and entry else entry or ""


def as_text(name: str, rows: list[Line]) -> str:
    used, cells = table(rows)
    widths = [max(len(heading), *(len(row[column]) for row in cells)) for column, heading in enumerate(used)]

    def joined(texts: Iterable[str]) -> str:
        return "  ".join(f"{text:>{width}}" for text, width in zip(texts, widths))

    body = [f"{joined(row)}  {number:>4}  {line}".rstrip() for row, (number, line, _) in zip(cells, rows)]
    return "\n".join([f"{joined(used)}  line  {name}", *body]) if rows else f"{name} has no source to show"


def indented(line: str) -> str:
    """A source line as HTML that keeps its indentation even where style sheets are stripped."""
    text = line.lstrip()
    return "&nbsp;" * (len(line) - len(text)) + escape(text)


def as_html(name: str, rows: list[Line]) -> str:
    if not rows:
        return f"<p>{escape(name)} has no source to show</p>"
    used, cells = table(rows)
    head = "".join(f"<th>{heading}</th>" for heading in used)
    body = "".join(
        f"<tr>{''.join(f'<td>{text}</td>' for text in row)}<td>{number}</td><td {LEFT_ALIGNED}><code"
        f" class='source'>{indented(line)}</code></td></tr>"
        for row, (number, line, _) in zip(cells, rows)
    )
    return (
        f"<table><thead><tr>{head}<th>line</th><th"
        f" {LEFT_ALIGNED}>{escape(name)}</th></tr></thead><tbody>{body}</tbody></table>"
    )
