"""A complete report as HTML: launch, findings, counters, source lines with costs, and figures if there is a
trace."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from sim.recording import Recording
from sim.viz import LEFT_ALIGNED, View
from sim.viz.memory_map import memory_map
from sim.viz.timeline import timeline

if TYPE_CHECKING:
    from sim.report import Report

MOST_MAPS = 2
Counted = dict[tuple[str, str], dict[str, int]]  # {(space, name): counters}


def page(report: Report) -> View:
    """Return the View of a Report. Its text is the report's text."""
    parts = [f"<b>{escape(report.headline)}</b>"]
    parts += [f"<div>{escape(line)}</div>" for line in report.summary()]
    parts += [f'<pre class="{found.severity}">{escape(found.message)}</pre>' for found in report.findings]
    if report.counters.get("arrays"):
        parts += ["<h4>Memory traffic by array</h4>", arrays_table(report.counters["arrays"])]
    if report.counters.get("lines"):
        parts += ["<h4>Cost by source line</h4>", report.by_line().body]
    if report.async_events:
        parts.append(report.pipeline().body)
    parts += [view.body for view in figures(report.trace)]
    return View(str(report), "".join(parts))


def figures(trace: Recording | None) -> Iterator[View]:
    """Yield the timeline of the lowest block and memory maps of the first shared arrays, or of global arrays
    if there are none."""
    if trace is None or not len(trace):
        return
    yield timeline(trace)
    shared = [home.name for home in trace.arrays if home.space == "shared"]
    for name in (shared or [home.name for home in trace.arrays])[:MOST_MAPS]:
        yield memory_map(trace, name)


def arrays_table(arrays: Counted) -> str:
    counted_at_all = {name for counted in arrays.values() for name in counted}
    actions = [action for action in ("load", "store", "atomic") if f"{action}s" in counted_at_all]
    head = "".join(f"<th>{action}s</th><th>bytes</th>" for action in actions)
    rows = "".join(
        f"<tr><td {LEFT_ALIGNED}><code>{escape(name)}</code></td><td {LEFT_ALIGNED}>{space}</td>"
        + "".join(
            f"<td>{counted.get(f'{action}s', 0):,}</td><td>{counted.get(f'{action}_bytes', 0):,}</td>"
            for action in actions
        )
        + "</tr>"
        for (space, name), counted in arrays.items()
    )
    return (
        f"<table><thead><tr><th {LEFT_ALIGNED}>array</th><th"
        f" {LEFT_ALIGNED}>memory</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
