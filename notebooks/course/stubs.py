"""Exercises that are not written yet: how their stubs are known, and the one sentence that a notebook shows
where it meets one."""

import sys


def stub_of(error):
    """ "exercise 1.2" where the error is the one that its stub raises, or was caused by it, else None."""
    while error is not None:
        if isinstance(error, NotImplementedError) and str(error).startswith("exercise "):
            return str(error)
        error = error.__cause__
    return None


def what_to_do(stub):
    """Return how to continue from the stub of "exercise 1.2"."""
    return f'Put your code in place of raise NotImplementedError("{stub}"), run both cells.'


def shorten_in_notebook():
    """In a notebook, show a stub's error as that advice, without the way through the code; nothing to do
    elsewhere."""
    ipython = sys.modules.get("IPython")
    if shell := ipython and ipython.get_ipython():
        shell.set_custom_exc((Exception,), show)


def show(shell, kind, error, trace, tb_offset=None):
    """IPython's own way to show an error; one that a stub caused gets a rendering of its own."""
    if stub := stub_of(error):
        error._render_traceback_ = lambda: [
            f"✗ {stub} is not written yet, and this cell needs it.",
            f"  {what_to_do(stub)}",
        ]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset, running_compiled_code=True)
