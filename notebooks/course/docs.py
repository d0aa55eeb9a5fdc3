"""Builds the HTML documentation of the public API of sim and kernels (pdoc) and of the lessons, and finds
dead links.

Usage: python notebooks/course docs [FOLDER]
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from course.bootstrap import ROOT

API = "sim sim.events sim.observers sim.recording sim.report sim.isa sim.viz sim.engine.base kernels".split()
# internal packages, documented for contributors to sim
INNER = ["sim.native", "sim.frontend", "sim.memory", "sim.host", "sim.cuda"]
STYLE = "body{max-width:50em;margin:2em auto;padding:0 1em;font:16px/1.5 system-ui,sans-serif}"


def main(arguments: list[str]) -> int:
    """Write the documentation to a folder, by default `site`.

    Return 1 if a link is dead and 2 if the arguments are invalid.
    """
    if len(arguments) > 1 or arguments and arguments[0].startswith("-"):
        print(f"docs takes the name of one folder; given: {' '.join(arguments)}", file=sys.stderr)
        return 2
    site = Path(arguments[0]) if arguments else ROOT / "site"
    if site.exists() and not site.is_dir():
        print(f"{site} is no folder: give the name of one, which may be new", file=sys.stderr)
        return 2
    print("API, from docstrings")
    write_api(site / "api")
    for notebook in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        print(notebook.stem)
        write_lesson(notebook, site / "lessons" / f"{notebook.stem}.html")
    (site / "index.html").write_text(index(site), encoding="utf-8")
    dead = dead_links(site)
    print(*dead, sep="\n", file=sys.stderr)
    print(f"{site / 'index.html'}: {len(list(site.rglob('*.html')))} pages, {len(dead)} dead links")
    return int(bool(dead))


def write_api(folder: Path) -> None:
    import pdoc

    import kernels

    vars(kernels).update(
        {name: getattr(kernels, name) for name in kernels.__all__}
    )  # Access the attributes, because `kernels` imports its functions on first use.
    pdoc.render.configure(docformat="markdown", show_source=False)
    pdoc.pdoc(*API, *(f"!{name}" for name in INNER), output_directory=folder)


def write_lesson(notebook: Path, page: Path) -> None:
    """Write a published lesson as HTML.

    Links to other lessons are kept; links to other project files become plain text.
    """
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter(embed_images=True).from_filename(str(notebook))
    html = re.sub(r'href="(\d\d[a-z]?_\w+)\.ipynb', r'href="\1.html', html)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(re.sub(r'<a href="\.\.?/[^"]*"', "<a", html), encoding="utf-8")


def index(site: Path) -> str:
    """Write the start page, which links to all others."""

    def links(pages):
        items = (f'<li><a href="{p.relative_to(site).as_posix()}">{p.stem}</a></li>' for p in pages)
        return f"<ul>{''.join(items)}</ul>"

    return (
        f'<!doctype html><meta charset="utf-8"><title>Attention kernels</title><style>{STYLE}</style>'
        f"<h1>Attention kernels, from a pencil to a GPU</h1>"
        f"<h2>Lessons</h2>{links(sorted((site / 'lessons').glob('*.html')))}"
        f"<h2>API</h2>{links([site / 'api' / (name.replace('.', '/') + '.html') for name in API])}"
    )


class Links(HTMLParser):
    """Parser that collects a page's links and link targets."""

    def __init__(self, text: str):
        super().__init__()
        self.targets, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.targets.append(value)
            if name in ("id", "name") and value:
                self.places.add(unquote(value))


def dead_links(site: Path) -> list[str]:
    """Return "page: target" for each link within the site that does not resolve."""
    pages = {page.resolve(): Links(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    return [
        f"{page.relative_to(site.resolve())}: {target}"
        for page, links in pages.items()
        for target in links.targets
        if not leads_somewhere(page, urlsplit(target), pages)
    ]


def leads_somewhere(page, target, pages) -> bool:
    """Return whether a link of `page` is external or resolves to an existing page and anchor."""
    if target.scheme or target.netloc:
        return True
    there = (page.parent / unquote(target.path)).resolve() if target.path else page
    if there not in pages:
        return there.is_file()
    return not target.fragment or unquote(target.fragment) in pages[there].places
