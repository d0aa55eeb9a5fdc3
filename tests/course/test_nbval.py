"""Tests that nbval can fail.

With the project's settings, it passes a stored notebook as built, and fails one with a changed output.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from course import build
from course.bootstrap import ROOT

TINY = Path(__file__).parent / "tiny" / "01_tiny.py"


def test_one_changed_output_fails_that_cell_alone(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "notebooks").mkdir()
    shutil.copy(TINY, tmp_path / "solutions" / "01_tiny.py")
    build.write(tmp_path)
    built = (tmp_path / "solutions" / "01_tiny.ipynb").read_text(encoding="utf-8")
    (tmp_path / "as_built.ipynb").write_text(built, encoding="utf-8")
    (tmp_path / "changed.ipynb").write_text(built.replace("[2, 4]", "[2, 5]"), encoding="utf-8")

    outcome = run_nbval(tmp_path / "as_built.ipynb", tmp_path / "changed.ipynb")

    assert outcome.returncode == 1, outcome.stdout
    failed = [line for line in outcome.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1 and "::Cell 3" in failed[0], outcome.stdout
    assert "'[2, 5]' == '[2, 4]'" in outcome.stdout
    assert "9 passed" in outcome.stdout


def run_nbval(*notebooks):
    """Run pytest on these notebooks in a separate process, with the project's settings and conftest."""
    settings = [
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={ROOT}",
        "-o",
        "pythonpath=. tests/course",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-rf",
    ]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *notebooks],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
