"""Tables that a notebook shows as HTML and a terminal as aligned text."""

import re
from dataclasses import dataclass
from html import escape

NUMBER = re.compile(r"[-−+]?\d.*|")  # matches cells that are aligned to the right; a cell may be empty


def show_table(header, *rows, title=""):
    """Show a table.

    `header` and each row have the same number of cells. Numbers must already be formatted; they are aligned
    to the right.
    """
    # imported here so that the package loads without Jupyter
    from IPython.display import display

    display(Table(title, [*map(str, header)], [[*map(str, row)] for row in rows]))


@dataclass(frozen=True)
class Table:
    """A formatted table. `str(table)` returns text, and a notebook shows HTML."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"a row has {len(row)} cells: {row}; the header has {len(self.header)}")

    @property
    def columns(self):
        """Return [(whether the column is numeric, width in characters)], one pair per column."""
        for name, *cells in zip(self.header, *self.rows):
            yield all(map(NUMBER.fullmatch, cells)), max(map(len, (name, *cells)))

    def __str__(self):
        lines = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, (number, width) in zip(row, self.columns)
            ).rstrip()
            for row in (self.header, *self.rows)
        ]
        return "\n".join([self.title, *lines] if self.title else lines)

    __repr__ = __str__

    def _repr_html_(self):
        sides = ["right" if number else "left" for number, _ in self.columns]
        head, *body = (
            "".join(
                f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in zip(row, sides)
            )
            for tag, row in [("th", self.header), *(("td", row) for row in self.rows)]
        )
        title = f'<caption style="text-align:left">{escape(self.title)}</caption>' if self.title else ""
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
