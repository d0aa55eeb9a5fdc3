"""Tests of the lessons as a browser shows them, in headless Chromium.

Pages made by nbconvert are tested in light and dark themes, narrow and wide, with and without scripts. In
JupyterLab itself, "Run All" of a stub must stop, and keys must move a slider. Screenshots are saved in the
folder that COURSE_SCREENSHOTS names, if it is set.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs a browser: pip install playwright, playwright install chromium"
)
import nbformat  # noqa: E402
from nbconvert import HTMLExporter  # noqa: E402

from course import build, copies, lab  # noqa: E402
from course.bootstrap import ROOT  # noqa: E402

pytestmark = pytest.mark.nightly
LESSONS = sorted((ROOT / "solutions").glob("[0-9]*.ipynb"))
# Script that finds layout faults in a page: elements that scroll sideways, and labels that overlap.
FAULTS = """() => {
    const page = document.documentElement, wide = box => box.scrollWidth > box.clientWidth + 1;
    const found = wide(page) ? [`the page is ${page.scrollWidth} pixels wide`] : [];
    for (const text of document.querySelectorAll(".jp-RenderedMarkdown, .jp-InputArea pre, .jp-RenderedHTML"))
        if (wide(text)) found.push(`scrolls sideways: ${text.textContent.trim().slice(0, 60)}`);
    for (const svg of document.querySelectorAll("svg")) {
        const labels = [...svg.querySelectorAll("text")].filter(label => label.textContent.trim());
        const boxes = labels.map(label => label.getBoundingClientRect());
        boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
            const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (width > 2 && height > 4)
                found.push(`labels overlap: ${labels[i].textContent} and ${labels[j].textContent}`);
        }));
    }
    return found;
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        system = shutil.which("chromium") or shutil.which("chromium-browser")
        try:
            chromium = started.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except playwright.Error as missing:
            pytest.skip(f"no Chromium: playwright install chromium ({str(missing).splitlines()[0]})")
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Return opened(lesson, theme, width, scripts=True), which opens the lesson's page without network
    access."""

    def open_page(lesson, theme, width, scripts=True):
        html, _ = HTMLExporter(template_name="lab", theme=theme).from_filename(lesson)
        file = tmp_path / f"{lesson.stem}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=theme, java_script_enabled=scripts
        )
        context.route("http*://**", lambda route: route.abort())
        page = context.new_page()
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in browser.contexts:
        context.close()


def keep(page, name):
    """Save a screenshot if COURSE_SCREENSHOTS is set."""
    if folder := os.environ.get("COURSE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("width", [900, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_nothing_is_cut_off_or_covered(opened, lesson, theme, width):
    page = opened(lesson, theme, width)
    keep(page, f"{lesson.stem}-{theme}-{width}")
    assert page.evaluate(FAULTS) == []
    for details in page.locator("details").all():
        details.evaluate("details => details.open = true")
        assert details.evaluate(
            "details => details.scrollHeight > details.querySelector('summary').offsetHeight"
        )
    assert page.evaluate(FAULTS) == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_sliders_move_by_keys_and_buttons(opened, lesson):
    page = opened(lesson, "light", 1400)
    for scene in page.locator(".sim-live").all():
        slider, words = scene.locator("input[type=range]"), scene.locator("output")
        back, on = scene.locator("button").all()
        steps = int(slider.get_attribute("max"))
        assert steps > 0 and slider.input_value() == "0"
        first = words.text_content()
        slider.focus()
        page.keyboard.press("ArrowRight")
        assert slider.input_value() == "1"
        page.keyboard.press("ArrowLeft")
        assert slider.input_value() == "0" and words.text_content() == first
        on.click()
        assert slider.input_value() == "1"
        back.click()
        back.click()
        assert slider.input_value() == "0" and words.text_content() == first


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_without_scripts_all_pictures_are_there(opened, lesson):
    page = opened(lesson, "light", 900, scripts=False)
    for scene in page.locator(".sim-static").all():
        assert scene.is_visible() and scene.locator("img").count() >= 1
    for image in page.locator("img").all():
        assert image.bounding_box()["width"] > 50


# JupyterLab itself ------------------------------------------------------------------------------------------


@pytest.fixture
def jupyterlab(tmp_path):
    """Return jupyterlab(notebook), the address at which JupyterLab shows a copy of this file."""
    served = tmp_path / "my_lessons"
    served.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment = (
        os.environ | home | {"JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"), "COURSE_QUIET": "0"}
    )
    whole = {
        "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}
    }  # Cells outside the visible area exist in the page too.
    for plugin, settings in (lab.SETTINGS | whole).items():
        file = tmp_path / "settings" / f"{plugin.replace(':', '/')}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--IdentityProvider.token=",
         *lab.as_root([]), f"--ServerApp.root_dir={served}"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def address(notebook):
        shutil.copy(notebook, served)
        for _ in range(600):
            try:
                urlopen(f"http://127.0.0.1:{port}/api").close()
                break
            except OSError:
                assert server.poll() is None, "JupyterLab did not start"
                time.sleep(0.2)
        return f"http://127.0.0.1:{port}/lab/tree/{notebook.name}"

    yield address
    server.terminate()
    server.wait(30)


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_opening_a_lesson_leaves_it_saved(browser, jupyterlab, tmp_path, folder):
    lesson = tmp_path / "made" / "01_online_softmax.ipynb"
    # The course copies lessons in the same way, but only once.
    copies.copy_solutions(ROOT / folder, lesson.parent)
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(jupyterlab(lesson))
    page.get_by_text("| Idle").wait_for(timeout=120_000)
    marked = page.locator(".lm-TabBar-tab.jp-mod-dirty")
    page.wait_for_timeout(3000)
    assert marked.count() == 0
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.type("# mine")
    marked.wait_for(timeout=10_000)  # An actual change does mark the notebook as modified.
    page.close()


def test_run_all_of_a_stub_stops_at_the_first_exercise_with_two_lines(browser, jupyterlab):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(jupyterlab(ROOT / "notebooks" / "01_online_softmax.ipynb"))
    page.get_by_text("| Idle").wait_for(timeout=120_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('li[data-command="runmenu:run-all"]').click()
    told = page.locator(".jp-OutputArea-output", has_text="not written yet")
    told.first.wait_for(timeout=240_000)
    keep(page, "run-all")
    assert told.count() == 1
    first, second = told.first.inner_text().strip().splitlines()
    assert first.startswith(("✗ exercise 1.0", "✗ exercise 1.1"))
    assert "raise NotImplementedError" in second
    assert page.get_by_text("Would you like to get notified about official Jupyter news").count() == 0
    page.close()


SCENE = """from sim.viz import Scene

scene = Scene("squares", 130, 50)
scene.cells += [(10 + 30 * step, 10, 26, 26) for step in range(4)]
scene.steps += [(f"step {step}", [(step, "store", "")]) for step in range(4)]
scene.view()"""


def test_keys_move_a_slider_in_jupyterlab_and_press_its_buttons(browser, jupyterlab, tmp_path):
    """Press keys on a slider that JupyterLab also uses as shortcuts: arrows select another cell, Enter edits
    a cell."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(SCENE)], metadata=nbformat.from_dict(build.METADATA)
    )
    nbformat.write(notebook, tmp_path / "scene.ipynb")
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(jupyterlab(tmp_path / "scene.ipynb"))
    page.get_by_text("| Idle").wait_for(timeout=120_000)
    page.locator(".jp-CodeCell .cm-content").click()
    page.keyboard.press("Shift+Enter")
    slider = page.locator(".sim-live input[type=range]")
    slider.wait_for(timeout=120_000)

    def moved_by(*keys):
        """Return the slider's value after each key."""
        return [page.keyboard.press(key) or slider.input_value() for key in keys]

    slider.focus()
    arrows = ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown")
    assert moved_by(*arrows, "End", "Home") == ["1", "2", "1", "0", "3", "0"]
    page.locator(".sim-live button").last.focus()
    assert moved_by("Enter", "Space") == ["1", "2"]
    page.close()
