"""The course: builds the lessons, checks the learner's answers, and provides the helpers that lessons import.

The inputs are the lessons' sources (solutions/NN_topic.py) and the learner's answers in notebooks. The
outputs are the published notebooks and a verdict for each answer. `from course import ...` gives a lesson the
checks, the progress list, the progress bar, figures, tables, GPU cells, and functions brought over from other
lessons.

Read the files in this order:

    build                   a lesson's source -> exercise notebook and executed solution
    check/                  one module of checks per lesson, and the harness that runs them
    stubs, outdated         messages about unfinished exercises and outdated definitions
    progress, contents      the progress list, and the map of the lessons
    guess                   the reader's guesses, and the answers to them (guesses/)
    brought, definitions    functions and definitions that another lesson defines
    live, record/           cells that need a GPU, and programs that record their output
    ladder, rungs           the speed of the learner's own kernels, lesson by lesson
    ptx, cuda_cpp           compiler output of a kernel, and kernels in CUDA C++ strings
    ranks                   local process groups for torch.distributed
    find_the_block          the training task of lesson 15
    figures, tables, pictures, scenes, fragments, side_by_side   figures and tables
    command_line, manual, commands   `python notebooks/course COMMAND`
    bootstrap, doctor, processes     the set-up and its diagnosis, with the standard library only
    copies, lab             the learner's copies, and JupyterLab
    docs                    the site (docs/site)
"""

import sys

# Each of `brought`, `guess`, `live`, `progress` and `progress_bar` is both a module and a function in that
# module. These imports make the package attribute the function.
try:
    from course import check
    from course.brought import brought
    from course.figures import show_figure
    from course.guess import guess
    from course.live import live
    from course.outdated import watch_cells
    from course.progress import progress
    from course.progress_bar import progress_bar
    from course.stubs import shorten_in_notebook
    from course.tables import show_table
except ModuleNotFoundError as missing:
    remedy = (
        f"{sys.executable} has no {missing.name}. The course runs in its own .venv: make lab, or"
        " python notebooks/course lab (on Windows: py)"
    )
    if sys.argv[:1] == ["-m"]:  # python -m course, which would end in a traceback
        sys.exit(remedy)
    raise ModuleNotFoundError(remedy, name=missing.name) from None

__all__ = ["brought", "check", "guess", "live", "progress", "progress_bar", "show_figure", "show_table"]

shorten_in_notebook()
watch_cells()
