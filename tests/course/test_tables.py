"""Tests that a lesson's table has the same cells as text and as HTML."""

import pytest

from course.tables import Table

TABLE = Table("times", ["tokens", "who"], [["1,024", "kernels"], ["8", "<eager>"]])


def test_text_is_aligned_numbers_to_the_right():
    assert str(TABLE) == "times\ntokens  who\n 1,024  kernels\n     8  <eager>"


def test_html_has_the_same_cells():
    html = TABLE._repr_html_()
    assert html.count("<tr>") == 3 and 'style="text-align:right">1,024</td>' in html
    assert "&lt;eager&gt;" in html and '<caption style="text-align:left">times</caption>' in html


def test_an_empty_cell_leaves_a_column_of_numbers():
    assert str(Table("", ["n"], [["10"], [""]])) == " n\n10\n"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a row has 1 cells: .*; the header has 2"):
        Table("", ["a", "b"], [["1"]])
