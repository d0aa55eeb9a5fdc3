"""Time the solutions' kernels of the ladder on a GPU, and count their work in the simulator.

    python -m course.record.ladder > notebooks/course/recorded/ladder.json

Without a GPU, only the work is counted. With arguments such as `05 11`, only these rungs are measured, and
the others keep their record. Progress and errors go to stderr. A rung that fails is left out, and the exit
status is then 1.
"""

import json
import os
import sys
import traceback

import torch

from course.bootstrap import ROOT
from course.brought import definitions, execute_definitions
from course.ladder import count, measure, recorded
from course.rungs import RUNGS
from kernels.bench.timing import machine


def main():
    """Print the record, and return the exit status."""
    os.chdir(ROOT / "solutions")
    chosen, failed, gpu = sys.argv[1:] or list(RUNGS), 0, torch.cuda.is_available()
    steps = {} if chosen == list(RUNGS) else recorded()["steps"]
    for lesson in chosen:
        notebook = ROOT / "solutions" / f"{RUNGS[lesson].file}.ipynb"
        try:
            names = execute_definitions(definitions(notebook), notebook)
            answers = [names[name] for name in RUNGS[lesson].names]
            steps[lesson] = {"counted": count(lesson, *answers)} | (measure(lesson, *answers) if gpu else {})
            print(lesson, steps[lesson], file=sys.stderr, flush=True)
        except Exception:
            failed = 1
            print(f"lesson {lesson} failed", file=sys.stderr)
            traceback.print_exc()
    print(json.dumps((machine() if gpu else {}) | {"steps": steps}, indent=1))
    return failed


if __name__ == "__main__":
    sys.exit(main())
