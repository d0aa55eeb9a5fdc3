"""Builds the site: the pages of docs/site, the lessons with their outputs, the guides, the index of findings
and the reference of the API, with Sphinx. Then finds dead links.

`stage` copies all pages into one folder and rewrites their links. Sphinx turns the folder into HTML.

Usage: python notebooks/course docs [FOLDER]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from course.bootstrap import ROOT

PAGES = {  # page of the repository -> page of the site; further ones are listed by `pages`
    "README.md": "index.md",  # links to the README lead to the first page
    "sim/README.md": "simulator/guide.md",
    "sim/SANITIZER.md": "simulator/compute-sanitizer.md",
    "sim/PACKAGE.md": "simulator/package.md",
    "docs/cuda_programs.md": "simulator/cuda-programs.md",
    "docs/triton.md": "simulator/triton-programs.md",
    "docs/cuda_programs_ledger.md": "simulator/cuda-programs-ledger.md",
    "docs/upstream_reports.md": "simulator/upstream-reports.md",
    "kernels/README.md": "kernels/index.md",
    "kernels/cuda_cpp/README.md": "kernels/cuda-cpp.md",
    "kernels/triton/README.md": "kernels/triton.md",
    "docs/site/index.md": "index.md",
    "docs/site/lessons.md": "lessons/index.md",
    "docs/site/findings.md": "findings/index.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^()\s<>]+(?:\([^()\s]*\))?)>?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
SOLUTION = re.compile(r"^ *# (?:BEGIN SOLUTION [\d.]+|END SOLUTION)\n?", re.MULTILINE)
HIDDEN = {
    "tags": ["hide-input"],
    "mystnb": {"code_prompt_show": "Show the code", "code_prompt_hide": "Hide the code"},
}
INSTALL = "python -m pip install -c constraints.txt -r docs/site/requirements.txt"


def main(arguments: list[str]) -> int:
    """Write the site to a folder, by default `site`.

    Return 1 if Sphinx fails or a link is dead, and 2 if the arguments are invalid or Sphinx is missing.
    """
    if len(arguments) > 1 or arguments and arguments[0].startswith("-"):
        print(f"docs takes the name of one folder; given: {' '.join(arguments)}", file=sys.stderr)
        return 2
    site = Path(arguments[0]) if arguments else ROOT / "site"
    if site.exists() and not site.is_dir():
        print(f"{site} is no folder: give the name of one, which may be new", file=sys.stderr)
        return 2
    if missing := [
        name for name in ("sphinx", "furo", "myst_nb", "sphinx_copybutton") if not find_spec(name)
    ]:
        print(f"docs needs {', '.join(missing)}. Install them:\n  {INSTALL}", file=sys.stderr)
        return 2
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        stage(Path(folder))
        if status := run_sphinx(Path(folder), site):
            return status
    dead = dead_links(site)
    print(*dead, sep="\n", file=sys.stderr)
    count, links = (
        len(list(site.rglob("*.html"))),
        sum(len(Links(p.read_text("utf-8")).targets) for p in site.rglob("*.html")),
    )
    seconds = time.monotonic() - began
    print(f"{site / 'index.html'}: {count} pages, {links:,} links, {len(dead)} dead; {seconds:.0f} s")
    return int(bool(dead))


def run_sphinx(source: Path, site: Path) -> int:
    """Write the HTML of the staged pages. Return the exit status; a warning is an error."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        str(source),
        str(site),
    ]
    paths = [str(ROOT), str(ROOT / "notebooks"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    status = subprocess.run([*command, "-d", str(source / ".doctrees")], env=environment).returncode
    (site / ".buildinfo").unlink(missing_ok=True)
    return status


# --- the folder of pages ------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Return {page of the repository: page of the site}, with paths relative to the two roots."""
    found = dict(PAGES)
    for path in (ROOT / "docs/site").rglob("*.md"):
        found.setdefault(relative(path), relative(path).removeprefix("docs/site/"))
    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        if path.read_text(encoding="utf-8").startswith("# "):
            found.setdefault(relative(path), relative(path))
    for path in (ROOT / "sim/pages").glob("*.md"):
        found[relative(path)] = f"findings/{path.name}"
    for path in (ROOT / "solutions").glob("[0-9]*.ipynb"):
        found[f"solutions/{path.name}"] = found[f"notebooks/{path.name}"] = f"lessons/{path.name}"
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def stage(folder: Path, lessons: set[str] | None = None) -> None:
    """Write the pages that Sphinx reads into a folder.

    lessons: the lessons to include, {"04_what_can_go_wrong"}; all by default.
    """
    places = pages()
    if lessons is not None:
        places = {
            page: place
            for page, place in places.items()
            if not place.endswith(".ipynb") or Path(page).stem in lessons
        }
    shutil.copytree(ROOT / "docs/site/static", folder / "static", dirs_exist_ok=True)
    shutil.copy(ROOT / "docs/site/conf.py", folder)
    for page, place in places.items():
        if page == "README.md" or page.startswith("notebooks/"):
            continue
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if page.endswith(".ipynb"):
            text = lesson_page(Path(page).stem, places, folder)
        else:
            text = rewrite_links((ROOT / page).read_text(encoding="utf-8"), page, places, folder)
            text = fill_in(text, page, places)
        (folder / place).write_text(text, encoding="utf-8")


def fill_in(text: str, page: str, places: dict[str, str]) -> str:
    """Return a page of docs/site with its generated part: the lists of lessons and findings, and the finding
    of the first page."""
    from sim import pages as index_of_findings

    if page == "docs/site/lessons.md":
        lessons = sorted(Path(place).stem for name, place in places.items() if name.startswith("solutions/"))
        return text.replace("{lessons}", tree(lessons))
    if page == "docs/site/findings.md":
        names = index_of_findings.names()
        rows = [f"| [{name}]({name}.md) | {index_of_findings.page(name).meaning} |" for name in names]
        table = "\n".join(["| name | meaning |", "|---|---|", *rows])
        return text.replace(
            "{findings}", f"{table}\n\n{tree([f'{name} <{name}>' for name in names], hidden=True)}"
        )
    if page == "docs/site/index.md":
        documents = [place.removesuffix(".md") for place in places.values() if place.startswith("docs/")]
        text = text.replace("{more}", "\n".join(sorted(name for name in documents if name not in text)))
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        return text.replace("{finding}", re.search(r"```\n(KernelBug: .*?)\n```", readme, re.DOTALL)[1])
    return text


def tree(names, hidden=False) -> str:
    """Return a table of contents in MyST."""
    options = ":hidden:\n" if hidden else ":maxdepth: 1\n"
    return "\n".join(["```{toctree}", options, *names, "```"])


# --- links --------------------------------------------------------------------------------------------------


def rewrite_links(text: str, page: str, places: dict[str, str], folder: Path) -> str:
    """Return a page's Markdown with each link to a file of the repository replaced by a link within the site.
    A link to a file that is no page of the site becomes plain text. Images are copied into the folder."""

    def replaced(match):
        image, label, target = match.groups()
        parts = urlsplit(target)
        if parts.scheme or not parts.path:
            return match[0]
        path = os.path.normpath(f"{Path(page).parent.as_posix()}/{unquote(parts.path)}").replace(os.sep, "/")
        here = Path(places[page]).parent
        if image or path.endswith((".png", ".svg")):
            copy = folder / "files" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy)
            return f"{image}[{label}]({os.path.relpath(f'files/{path}', here)})"
        place = (
            places.get(path)
            or places.get(f"{path}/README.md")
            or ("lessons/index.md" * (path == "solutions"))
        )
        if not place:
            return label
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return f"[{label}]({os.path.relpath(place, here).replace(os.sep, '/')}{fragment})"

    pieces = CODE.split(text)
    # Every second piece is code. Code within a label of a link must stay in its piece.
    if any(piece.count("[") != piece.count("]") for piece in pieces[::2]):
        blocks = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(b if b.startswith("```") else LINK.sub(replaced, b) for b in blocks)
    return "".join(piece if number % 2 else LINK.sub(replaced, piece) for number, piece in enumerate(pieces))


def lesson_page(stem: str, places: dict[str, str], folder: Path) -> str:
    """Return a lesson as a notebook: the executed solution, with each exercise's stub before its folded
    solution."""
    solved = json.loads((ROOT / f"solutions/{stem}.ipynb").read_text(encoding="utf-8"))
    posed = json.loads((ROOT / f"notebooks/{stem}.ipynb").read_text(encoding="utf-8"))
    cells = []
    for cell, stub in zip(solved["cells"], posed["cells"], strict=True):
        source = "".join(cell["source"])
        if "guess" in cell["metadata"].get("tags", []):
            continue  # a reader cannot write a guess on a page
        if cell["cell_type"] == "markdown":
            text = rewrite_links(source, f"solutions/{stem}.ipynb", places, folder)
            if cells:  # further titles, of second sittings, would appear in the list of lessons
                text = re.sub(r"^# ", "## ", text)
            cells.append(cell | {"source": text})
        elif "# BEGIN SOLUTION" in source:
            cells.append(stub | {"outputs": [], "metadata": {}})
            folded = cell | {"source": SOLUTION.sub("", source), "metadata": {"tags": ["hide-input"]}}
            cells.append(folded | {"id": f"{cell['id']}-solution"})
        else:
            hidden = cell["metadata"].get("jupyter", {}).get("source_hidden")  # as in JupyterLab
            cells.append(cell | {"metadata": HIDDEN if hidden else {}})
    for cell in cells:
        if cell["cell_type"] == "code":  # Sphinx does not resolve links in outputs
            text = json.dumps(cell["outputs"])
            cell["outputs"] = json.loads(
                re.sub(r'((?:href=\\"|\]\()\d\d[a-z]?_\w+)\.ipynb', r"\1.html", text)
            )
    return json.dumps(solved | {"cells": cells}, ensure_ascii=False)


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
