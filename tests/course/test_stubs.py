"""Tests of the message that a notebook cell shows if it needs an unfinished exercise.

Other errors must look as usual.
"""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course.stubs import shorten_in_notebook


@pytest.fixture
def shown(capsys):
    """Return shown(code), the complete output of a notebook shell with the course loaded for this cell."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("colors", "nocolor")
    shorten_in_notebook()

    def run(code):
        outcome = shell.run_cell(code)
        assert outcome.error_in_exec is not None  # "Run All" stops here.
        return capsys.readouterr().out

    yield run
    InteractiveShell.clear_instance()


SHORT = (
    "✗ exercise 1.2 is not written yet, and this cell needs it.\n  Put your code in place of raise"
    ' NotImplementedError("exercise 1.2"), run both cells.\n'
)


@pytest.mark.parametrize(
    "code",
    [
        'raise NotImplementedError("exercise 1.2")',
        (
            'try:\n    raise NotImplementedError("exercise 1.2")\nexcept Exception as error:\n    raise'
            ' RuntimeError("a thread failed") from error'
        ),
    ],
)
def test_a_stub_is_two_lines_alone_or_as_a_cause(shown, code):
    assert shown(code) == SHORT


@pytest.mark.parametrize(
    "code, said",
    [('raise NotImplementedError("later")', "NotImplementedError: later"), ("1 / 0", "ZeroDivisionError")],
)
def test_any_other_error_keeps_its_traceback(shown, code, said):
    output = shown(code)
    assert "Traceback (most recent call last)" in output and said in output
