"""Code rules that `make lint` checks.

Imports follow the layers, no import or name is unused, the code is formatted, and the types are correct.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from course.bootstrap import ROOT
from course.commands import SPELLED

LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def run(*command, cwd=ROOT):
    """Run Python code in a new process. Return its exit status and its output on one line."""
    surroundings = os.environ | {"PYTHONPATH": str(cwd / "notebooks")}
    outcome = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=surroundings, capture_output=True, text=True
    )
    return outcome.returncode, " ".join((outcome.stdout + outcome.stderr).split())


def test_imports_point_down():
    status, said = run("-c", LINT_IMPORTS, "--no-logo", "--no-cache")
    assert status == 0, said


def test_nothing_is_imported_or_named_in_vain():
    status, said = run("-m", "ruff", "check", "--output-format", "concise")
    assert status == 0, said


def test_code_is_formatted():
    status, said = run("-m", "ruff", "format", "--check")
    assert status == 0, said


def test_words_are_spelled_correctly():
    status, said = run("-m", "codespell_lib", *SPELLED)
    assert status == 0, said


def test_types_of_the_public_api(tmp_path):
    """Run mypy with Any for all of torch's declarations, which would take 14 of 18 CPU seconds to read."""
    text, config = (ROOT / "pyproject.toml").read_text(encoding="utf-8"), tmp_path / "mypy.toml"
    others = 'module = ["greenlet.*", '
    assert others in text
    config.write_text(text.replace(others, others + '"torch", "torch.*", '), encoding="utf-8")
    of_any = "--allow-subclassing-any", "--allow-untyped-decorators", "--no-warn-unused-ignores"
    status, said = run("-m", "mypy", "--config-file", config, *of_any)
    assert status == 0, said


@pytest.mark.nightly
def test_types_of_the_public_api_and_of_torch():
    status, said = run("-m", "mypy")
    assert status == 0, said


FOLDERS = ["", "docs/", "docs/log/", "sim/", "kernels/", ".github/*/"]
TEXTS = [text for folder in FOLDERS for text in ROOT.glob(f"{folder}*.md")]


def anchors(text):
    """Return the anchors of a page's headings as they appear in links."""
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.relative_to(ROOT).as_posix())
def test_links_of_a_text_lead_somewhere(text):
    dead, prose = [], re.sub(r"```.*?```|`[^`]*`", "", text.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        target = (text.parent / path) if path else text
        if "://" in link:
            continue
        if not target.exists() or anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            dead.append(link)
    assert dead == []


NAMED = re.compile(r"`((?:sim|kernels|notebooks|tests)/[\w/.]+)`(?: \(((?:`\w+`(?:, )?)+))?")


def test_the_design_page_names_files_and_functions_that_exist():
    """Check each path in docs/design.md, and each function or class that follows a path in parentheses."""
    wrong = []
    for path, names in NAMED.findall((ROOT / "docs/design.md").read_text(encoding="utf-8")):
        file = ROOT / path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        missing = [
            name for name in re.findall(r"\w+", names) if not re.search(rf"\b(?:def|class) {name}\b", text)
        ]
        if not file.exists() or missing:
            wrong.append((path, *missing))
    assert wrong == []


nightly = pytest.mark.nightly
LAYERS = "inside sim, a launch stands on the engine, the engine on memory, memory on the vocabulary"
TOOLS = "observers and viz know only events, recordings, device and errors, and not each other"
RING = "no modules import each other in a ring"
KINDS = "inside kernels, the kinds of attention stand on shared code, and do not import each other"
PACKAGES = "course stands on kernels and sim, which know nothing of each other"


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("sim/errors.py", "import torch", "no torch in sim, outside triton_host"),
        pytest.param("sim/errors.py", "import numba", "no numba in sim, outside native", marks=nightly),
        pytest.param("sim/events.py", "import sim.engine", LAYERS, marks=nightly),
        pytest.param("sim/observers/__init__.py", "import sim.memory", TOOLS, marks=nightly),
        pytest.param("kernels/__init__.py", "import sim", PACKAGES, marks=nightly),
        ("kernels/common/tiles.py", "import kernels.flash.forward", RING),
        ("kernels/flash/forward.py", "import kernels.conv.tiles", KINDS),
    ],
)
def test_an_import_that_points_up_is_caught(tmp_path, module, line, broken):
    for name in ("sim", "kernels", "notebooks/course"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    status, said = run("-c", LINT_IMPORTS, "--no-logo", "--no-cache", cwd=tmp_path)
    assert status == 1 and f"{broken} BROKEN" in said, said
