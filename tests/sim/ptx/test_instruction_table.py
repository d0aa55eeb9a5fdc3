"""Test that the table of PTX instructions (sim/PTX.md) is current, and has the manual's instructions."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptx.instruction_table import HEAD, PAGE, forms, statement, table

MANUAL = Path(__file__).with_name("manual_names.txt")
# The assembler supports these only for GPUs before sm_70.
OLD = {"shfl", "vote"}


def test_the_table_of_instructions_is_current():
    assert PAGE.read_text(encoding="utf-8") == table(), "run python tests/sim/ptx/instruction_table.py"


def test_the_table_has_the_instructions_of_the_manual():
    manual = set(MANUAL.read_text(encoding="utf-8").partition("\n")[2].split())
    names = (re.sub(r"\(.*?\)", "", name) for _, name, _ in forms())
    listed = {re.match(r"\w+", part)[0] for name in names for part in name.split(", ")}
    assert listed == manual


def ptxas():
    """Return the path of the assembler in NVIDIA's package or on the PATH, or None."""
    nvidia = pytest.importorskip("nvidia")
    found = [path for folder in nvidia.__path__ for path in Path(folder).glob("*/bin/ptxas*")]
    return str(found[0]) if found else shutil.which("ptxas")


@pytest.mark.nightly
def test_the_assembler_accepts_the_examples(tmp_path):
    assembler = ptxas() or pytest.skip("ptxas is not installed")

    def accepts(form):
        number, (_, name, example) = form
        for target in ("sm_90a", "sm_100a"):
            path = tmp_path / f"{number}_{target}.ptx"
            text = f"{HEAD}    {statement(example)}\n    ret;\n}}".replace("sm_90a", target)
            path.write_text(text, encoding="utf-8")
            command = [assembler, f"-arch={target}", "-o", f"{path}.cubin", path]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return True
        return name in OLD

    with ThreadPoolExecutor(2) as pool:
        refused = [form for form, good in zip(forms(), pool.map(accepts, enumerate(forms()))) if not good]
    assert not refused
