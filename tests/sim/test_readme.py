"""Tests that run the first example of both READMEs and compare its output with the message shown there."""

import re
import subprocess
import sys

import pytest

from course.bootstrap import ROOT

PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
MESSAGE = re.compile(r"```\n(KernelBug.*?)```", re.DOTALL)


# Run example.py in a Python that cannot import the optional packages.
WITHOUT_OPTIONAL = """
import runpy, sys
sys.modules |= dict.fromkeys(["numba", "numba_cuda", "torch"])
runpy.run_path("example.py")
"""


@pytest.mark.parametrize(
    ("readme", "command"),
    [
        ("README.md", ["example.py"]),
        ("sim/README.md", ["example.py"]),
        ("sim/README.md", ["-c", WITHOUT_OPTIONAL]),
    ],
    ids=["README", "sim", "sim without Numba"],
)
def test_the_first_example(readme, command, tmp_path):
    text = (ROOT / readme).read_text(encoding="utf-8")
    program, message = PROGRAM.search(text)[1], MESSAGE.search(text)[1]
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, "-X", "utf8", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert outcome.returncode == 1 and outcome.stderr.endswith(f"sim.errors.{message}"), outcome.stderr


def test_the_second_example_of_the_simulator(tmp_path, monkeypatch):
    first, second = re.findall(
        r"```python\n(.*?)```", (ROOT / "sim" / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )[:2]
    (tmp_path / "readme_example.py").write_text(first.replace("simulate(tree_sum)[1, 64](x, out)", "", 1))
    monkeypatch.syspath_prepend(tmp_path)
    import readme_example as example

    exec(second, vars(example))
