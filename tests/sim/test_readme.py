"""The simulator's README says what really happens: its example is run, and must give the message that stands
below it."""

import re
from pathlib import Path

import pytest

from sim import KernelBug

README = (Path(__file__).parents[2] / "sim" / "README.md").read_text(encoding="utf-8")


def test_the_example(tmp_path, monkeypatch):
    (first, message), second = (
        re.search(r"```python\n(.*?)```\n```\n(.*?)```", README, re.DOTALL).groups(),
        re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1],
    )
    (tmp_path / "readme_example.py").write_text(first.replace("simulate(tree_sum)[1, 64](x, out)", "", 1))
    monkeypatch.syspath_prepend(tmp_path)
    import readme_example as example

    with pytest.raises(KernelBug) as caught:
        example.simulate(example.tree_sum)[1, 64](example.x, example.out)
    assert f"KernelBug: {caught.value}\n" == message
    exec(second, vars(example))
