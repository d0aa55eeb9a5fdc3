"""Decorator for cells that need a GPU. Without a GPU, they show recorded output with its date."""

import functools
import json
from pathlib import Path

RECORD = Path(__file__).parent / "recorded" / "live.json"


def live(cell):
    """Run the decorated cell, a function without arguments, if there is a GPU; otherwise print its recorded
    output."""
    import torch  # imported here, because lessons 03 to 06 do not need PyTorch

    if torch.cuda.is_available():
        return cell()
    print(f"No GPU here. {recorded()['source']}, with the solutions' kernels:\n")
    print(recorded()["cells"][cell.__name__])


@functools.cache
def recorded():
    """Return the recording, {"source": "Recorded on an NVIDIA H200, ...", "cells": {function name: output}}.

    `course.record.live` writes it.
    """
    return json.loads(RECORD.read_text(encoding="utf-8"))
