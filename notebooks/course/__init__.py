"""Names for lessons to import: the checks, the progress list, the progress bar, figures, tables, GPU cells,
and functions brought over from other lessons."""

# Each of `brought`, `live`, `progress` and `progress_bar` is both a module and a function in that module.
# These imports make the package attribute the function.
from course import check
from course.brought import brought
from course.figures import show_figure
from course.live import live
from course.outdated import watch_cells
from course.progress import progress
from course.progress_bar import progress_bar
from course.stubs import shorten_in_notebook
from course.tables import show_table

__all__ = ["brought", "check", "live", "progress", "progress_bar", "show_figure", "show_table"]

shorten_in_notebook()
watch_cells()
