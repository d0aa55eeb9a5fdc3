"""Cells that only a GPU can run: run where there is one, and elsewhere shown as they were recorded, with the
date."""

import functools
import json
from pathlib import Path

RECORD = Path(__file__).parent / "recorded" / "live.json"


def live(cell):
    """Run a cell, a function without arguments, at once if there is a GPU; else print what it printed on
    ours. For use as a decorator."""
    import torch  # here, as lessons 03 to 06 can do without

    if torch.cuda.is_available():
        return cell()
    print(f"No GPU here. {recorded()['source']}, with the solutions' kernels:\n")
    print(recorded()["cells"][cell.__name__])


@functools.cache
def recorded():
    """{"source": "Recorded on an NVIDIA H200, ...", "cells": {a cell's function: what it printed}};
    `course.record.live` writes it."""
    return json.loads(RECORD.read_text(encoding="utf-8"))
