"""HTML pages for --cuda-sim-report: one per test that launched a kernel, one for all launches outside tests,
and an index."""

import hashlib
import re
from html import escape

from sim.nouns import plural
from sim.report import Report
from sim.viz.page import page

OUTSIDE = "outside tests"  # the title of the page for launches that belong to no test
MAX_SHOWN = 50  # maximum number of launches shown per page
HEAD = (
    '<!doctype html><meta charset="utf-8"><title>{0}</title><style>body{{font:14px'
    " system-ui;margin:2em}}td,th{{padding:.2em .8em;text-align:left}}</style><h1>{0}</h1>"
)


def page_name(nodeid):
    """Return the file name of the page for one test."""
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid)[-80:]
    # The readable part may be truncated or collide, so the name also contains a hash.
    unique = hashlib.sha256(nodeid.encode()).hexdigest()
    return f"{readable}-{unique[:8]}.html"


def write_test(folder, nodeid, reports):
    """Write the page for one test and return its file name. Findings about host code come first, then
    launches with findings; equal reports appear once.

    reports: Reports and HostFindings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = page_name(nodeid)
    launches = [each for each in reports if isinstance(each, Report)]
    others = dict.fromkeys(str(each) for each in reports if not isinstance(each, Report))
    different = {str(report): report for report in launches}.values()
    ordered = sorted(different, key=lambda report: not report.findings)
    more = (
        f"<p>{plural(len(ordered) - MAX_SHOWN, 'further launch', 'further launches')}, not shown.</p>"
        if len(ordered) > MAX_SHOWN
        else ""
    )
    shown = "<hr>".join(page(report).html for report in ordered[:MAX_SHOWN])
    (folder / name).write_text(
        HEAD.format(escape(nodeid))
        + "".join(f"<pre>{escape(text)}</pre>" for text in others)
        + f"<p>{plural(len(launches), 'launch', 'launches')}</p>{shown}{more}",
        encoding="utf-8",
    )
    return name


def write_index(folder, tallies):
    """Write index.html, with a row per test, and return its path.

    tallies: {name of a test: its counts and its page}.
    """
    rows = "".join(
        f'<tr><td><a href="{escape(tally["page"])}">{escape(nodeid)}</a></td>'
        f"<td>{sum(tally['outcomes'].values()):,}</td>"
        f"<td>{escape(', '.join(f'{n} {kind}' for kind, n in tally['kinds'].items())) or 'none'}</td></tr>"
        for nodeid, tally in sorted(tallies.items())
    )
    table = f"<table><tr><th>test</th><th>launches</th><th>findings</th></tr>{rows}</table>"
    (folder / "index.html").write_text(HEAD.format("Simulated launches") + table, encoding="utf-8")
    return folder / "index.html"
