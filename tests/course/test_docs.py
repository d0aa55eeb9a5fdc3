"""Tests of the site: pages and links are staged correctly, the link check finds broken links, and Sphinx
builds the pages."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from course import docs
from course.bootstrap import ROOT
from course.progress import exercises

LESSON = "00_start_here"


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Return the folder of pages for Sphinx, with all lessons."""
    folder = tmp_path_factory.mktemp("pages")
    docs.stage(folder)
    return folder


def links(text):
    """Yield the targets of links and images outside of code blocks."""
    for block in re.split(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL):
        yield from (match[3] for match in docs.LINK.finditer(re.sub(r"`[^`\n]+`", "", block)))


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a><a href="b.html#gone">y</a><a href="c.html">z</a>'
    )
    (tmp_path / "b.html").write_text(
        '<h1 id="there">b</h1><a href="https://example.org">out</a><a href="#there">up</a>'
    )
    assert docs.dead_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]


def test_every_link_of_a_staged_page_leads_to_a_file(staged):
    count = 0
    for page in staged.rglob("*.md"):
        for target in links(page.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            if path and not re.match(r"\w+:", path):
                count += 1
                assert (page.parent / path).is_file(), f"{page.relative_to(staged)}: {target}"
    assert count > 100


def test_links_are_rewritten(tmp_path):
    places = {
        "docs/a.md": "docs/a.md",
        "sim/README.md": "simulator/guide.md",
        "notebooks/01.ipynb": "lessons/01.ipynb",
    }
    text = "[guide](../sim/README.md#engines) [01](../notebooks/01.ipynb) [`code`](../sim/launch.py) [out](https://x.org)"
    expected = "[guide](../simulator/guide.md#engines) [01](../lessons/01.ipynb) `code` [out](https://x.org)"
    assert docs.rewrite_links(text, "docs/a.md", places, tmp_path) == expected
    code = "`[a](../sim/README.md)`\n```\n[a](../sim/README.md)\n```\n"
    assert docs.rewrite_links(code, "docs/a.md", places, tmp_path) == code


def test_a_lesson_has_the_stub_before_the_folded_solution(staged):
    cells = json.loads((staged / "lessons/04_what_can_go_wrong.ipynb").read_text(encoding="utf-8"))["cells"]
    folded = [n for n, cell in enumerate(cells) if cell["metadata"] == {"tags": ["hide-input"]}]
    assert len(folded) == len(exercises()["04"])
    for number in folded:
        assert "raise NotImplementedError" in "".join(cells[number - 1]["source"])
        assert "SOLUTION" not in "".join(cells[number]["source"])


def test_every_lesson_and_finding_is_listed(staged):
    lessons = (staged / "lessons/index.md").read_text(encoding="utf-8")
    findings = (staged / "findings/index.md").read_text(encoding="utf-8")
    assert all(path.stem in lessons for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    assert all(f"({path.name})" in findings for path in (ROOT / "sim/pages").glob("*.md"))
    assert "{" not in re.sub(r"```\{toctree\}", "", lessons + findings)


def test_the_first_page_shows_the_finding_of_the_readme(staged):
    page = (staged / "index.md").read_text(encoding="utf-8")
    assert "\nKernelBug: race-global: " in page and "\n  → race-global\n```" in page


def test_every_page_is_in_a_table_of_contents(staged):
    listed = set()
    for page in staged.rglob("*.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            names = [re.sub(r".*<(.*)>", r"\1", line) for line in block.split() if line[0] not in ":"]
            listed |= {(page.parent / name).resolve() for name in re.findall(r"[\w./-]+", " ".join(names))}
    pages = {
        page.with_suffix("").resolve() for ending in ("md", "ipynb") for page in staged.rglob(f"*.{ending}")
    }
    assert pages - listed == {(staged / "index").resolve()}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the built site with one lesson."""
    pytest.importorskip("myst_nb")
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("site")
    docs.stage(folder / "pages", {LESSON})
    assert docs.run_sphinx(folder / "pages", folder / "html") == 0
    return folder / "html"


@pytest.mark.nightly
def test_the_pages_of_the_api_have_shapes_and_errors(site):
    sim, kernels = ((site / f"api/{name}.html").read_text(encoding="utf-8") for name in ("sim", "kernels"))
    assert all(
        f'id="sim.{name}"' in sim for name in ("simulate", "Report", "KernelBug", "empty", "DeviceSpec")
    )
    assert 'id="kernels.conv_attention"' in kernels and "(B, H, N, d)" in kernels
    assert re.search(r"Raise</strong> LaunchError", sim)


@pytest.mark.nightly
def test_the_site_has_a_search_and_links_only_to_missing_lessons(site):
    assert (site / "searchindex.js").is_file() and (site / "search.html").is_file()
    lessons = {path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")} - {LESSON}
    assert [
        dead
        for dead in docs.dead_links(site)
        if Path(dead.partition(": ")[2]).name.split(".")[0] not in lessons
    ] == []


# the widths of a laptop and a phone in pixels
WIDTHS = 1280, 390
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    """Return headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs a browser: pip install playwright")
    with playwright.sync_playwright() as started:
        system = shutil.which("chromium") or shutil.which("chromium-browser")
        chromium = started.chromium.launch(executable_path=system, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_pages_fit_the_window_in_both_themes(site, browser, width, theme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    for name in ("index", f"lessons/{LESSON}", "findings/race-shared", "simulator/guide", "api/sim"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate(SIDEWAYS) <= 0, name
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
        assert lightness > 200 if theme == "light" else lightness < 60, (name, colour)
        if folder := os.environ.get("COURSE_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/site-{name.replace('/', '-')}-{width}-{theme}.png")
    page.close()


@pytest.mark.nightly
def test_the_search_finds_a_page(site, browser):
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=misaligned")
    page.wait_for_selector("#search-results a[href*='findings/misaligned-address']", timeout=20_000)
    page.close()
