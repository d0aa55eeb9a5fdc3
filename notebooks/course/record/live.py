"""Record on a GPU the output of the cells under @live, and print the JSON of
notebooks/course/recorded/live.json.

    python -m course.record.live > live.json
"""

import io
import json
import runpy
import sys
from contextlib import redirect_stdout
from datetime import date
from importlib.metadata import version
from tempfile import TemporaryDirectory
from unittest.mock import patch

import matplotlib

matplotlib.use("agg")

import torch

from course.bootstrap import ROOT


def main():
    """Run the solution of each lesson that has a cell under @live."""
    cells = {}
    for source in sorted((ROOT / "solutions").glob("[0-9]*.py")):
        if "@live" in source.read_text(encoding="utf-8"):
            print(source.stem, file=sys.stderr, flush=True)
            cells |= printed(source)
    gpu, versions = (
        torch.cuda.get_device_name(),
        f"numba-cuda {version('numba-cuda')}, torch {torch.__version__}",
    )
    print(
        json.dumps({"source": f"Recorded on an {gpu}, {date.today()}, {versions}", "cells": cells}, indent=1)
    )


def printed(source):
    """Run one lesson as a program, and return {function name: printed output} for its @live cells."""
    cells = {}

    def live(cell):
        with redirect_stdout(io.StringIO()) as text:
            cell()
        cells[cell.__name__] = text.getvalue().rstrip()

    with (
        TemporaryDirectory() as state,
        patch.dict("os.environ", COURSE_QUIET="1", COURSE_STATE_DIR=state),
        patch("course.live", live),
        patch("course.show_figure", lambda figure, words: None),
        patch("course.figures.show_figure", lambda figure, words: None),
        redirect_stdout(sys.stderr),
    ):
        runpy.run_path(str(source), run_name="__main__")
    return cells


if __name__ == "__main__":
    main()
