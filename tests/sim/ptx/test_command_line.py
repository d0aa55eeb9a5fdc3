"""python -m sim, and the example of sim/README.md with a .cu file."""

import re
from pathlib import Path

import pytest

from sim.__main__ import main

FILES = Path(__file__).parent / "cuda"
README = (Path(__file__).parents[3] / "sim" / "README.md").read_text(encoding="utf-8")
BUG = [str(FILES / "sum_in_shared.ptx"), "--entry", "bug", "--grid", "2", "--block", "64"]


def test_a_bug_is_printed_and_is_the_exit_status(capsys):
    assert main([*BUG, "float32[128]", "float32[2]=0"]) == 1
    text = capsys.readouterr().out
    assert "race-shared: part[1]" in text
    assert "sum_in_shared.cu line 8" in text


def test_a_right_kernel_gives_0(capsys):
    file = str(FILES / "guard_forgotten.ptx")
    arguments = ["70", "0.5", "float32[70]", "float32[70]=1"]
    assert main([file, "--entry", "mended", "--grid", "3", "--block", "32", *arguments]) == 0
    assert "no findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([BUG[0]], "which kernel? --entry is one of bug, mended"),
        ([BUG[0], "--entry", "sum"], "no kernel sum"),
        ([*BUG, "floats"], "argument 'floats' is no number, array or file"),
        ([*BUG, "float99[3]"], "argument 'float99[3]': data type 'float99' not understood"),
        ([*BUG, "float32[3]=x"], "argument 'float32[3]=x': could not convert string to float"),
        ([*BUG, "empty:float99[3]"], "argument 'empty:float99[3]': data type 'float99' not understood"),
        ([*BUG, "1"], "was launched with 1 arguments"),
        (["nothing.ptx"], "nothing.ptx"),
    ],
)
def test_what_is_wrong_is_said_and_gives_2(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_example_of_the_readme(tmp_path, monkeypatch):
    """Its .cu file, its six lines and its message."""
    pytest.importorskip("cuda.bindings.nvrtc")
    found = re.search(r"```cuda\n(.*?)```\n```python\n(.*?)```\n```\n(.*?)```", README, re.DOTALL)
    source, lines, message = found.groups()
    (tmp_path / "reverse.cu").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert len(lines.strip().splitlines()) == 6
    from sim import KernelBug

    with pytest.raises(KernelBug) as caught:
        exec(lines, {})
    assert f"KernelBug: {caught.value}\n" == message
