"""Looks up the cases of tests/corpus by name, and launches them."""

import inspect
import runpy
from pathlib import Path

from sim import simulate

FOLDER = Path(__file__).parent.parent / "corpus"
FILES = sorted(set(FOLDER.glob("*.py")) - {FOLDER / "test_corpus.py", FOLDER / "conftest.py"})
CASES = {
    f"{path.stem}.{name}": vars(case)
    for path in FILES
    for name, case in runpy.run_path(str(path)).items()
    if hasattr(case, "buggy")
}


def launched(case, twin, kernel=None, **options):
    """Launch a case's `twin`, or another `kernel` in its place.

    Return the report, and the arguments by name after the launch.
    """
    kernel = kernel or case[twin].py_func
    launch = case.get(f"{twin}_launch", case["launch"])
    arguments = case.get(f"{twin}_arguments", case["arguments"])()
    options = {"on_finding": "report", **case.get("options", {}), **options}
    report = simulate(kernel, **options)[launch](*arguments)
    return report, dict(zip(inspect.signature(kernel).parameters, arguments))
