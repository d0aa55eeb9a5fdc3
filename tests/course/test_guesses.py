"""Tests of the reader's guesses: the comparison, the stored table, and the answers of all lessons."""

import ast
import itertools
import re
import tomllib

import jupytext
import numpy as np
import pytest

from course import guess as a_guess
from course.bootstrap import ROOT
from course.guess import FOLDER, NONE_YET, agrees, guess, guessed

SOURCES = {file.stem.partition("_")[0]: file for file in sorted((ROOT / "solutions").glob("[0-9]*.py"))}
BLANK = re.compile(r"`___`")


@pytest.fixture(autouse=True)
def state_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "state"))


def printed(capsys, *question, **guesses):
    guess(*question, **guesses)
    return capsys.readouterr().out.splitlines()


def test_a_right_and_a_wrong_guess_are_compared_and_stored(capsys):
    reason = "each round halves the number of states, and 32 = 2⁵"
    assert printed(capsys, "01 thirty-two readers", rounds=5) == [f"✓ rounds: 5: {reason}"]
    assert guessed() == {"01 thirty-two readers": {"rounds": "5"}}
    wrong = printed(capsys, "01 thirty-two readers", rounds=31)
    assert wrong == [f"rounds: you guessed 31. The answer is 5: {reason}"]
    assert guessed() == {"01 thirty-two readers": {"rounds": "31"}}


def test_without_a_guess_no_answer_is_shown_and_nothing_is_stored(capsys):
    assert printed(capsys, "01 two readers", m=..., l=..., o=...) == [NONE_YET]
    assert guessed() == {}


def test_some_blanks_may_be_left_open(capsys):
    assert printed(capsys, "01 two readers", m=2, l=..., o=...) == ["✓ m: 2"]


@pytest.mark.parametrize(
    "given, answer, expected",
    [
        (5, {"is": 5}, True),
        (5.0, {"is": 5}, True),
        ("5", {"is": 5}, True),
        (6, {"is": 5}, False),
        ("five", {"is": 5}, False),
        (1.5, {"is": 1.5032}, True),
        (1.4, {"is": 1.5032}, False),
        (90, {"is": 100, "within": 0.1}, True),
        (-0.37, {"is": -0.37}, True),
        (float("nan"), {"is": 1.0}, False),
        (True, {"is": True}, True),
        (1, {"is": True}, False),
        (True, {"is": 1}, False),
        (None, {"is": 1}, False),
        ("  NaN. ", {"is": "nan"}, True),
        ("not a number", {"is": "nan", "also": ["not a number"]}, True),
        ([50, 0], {"is": [0, 50]}, True),
        ({0, 50}, {"is": [0, 50]}, True),
        ([0, 0, 50], {"is": [0, 50]}, False),
        (50, {"is": [0, 50]}, False),
        (-150, {"is": [-150]}, True),
        (150, {"is": [-150]}, False),
        ("0, 50", {"is": [0, 50]}, True),
        ("50 and 0", {"is": [0, 50]}, True),
        ("0, 50, 86", {"is": [0, 50]}, False),
        ("inf and nan", {"is": ["inf", "nan"]}, True),
        ("[nan, inf]", {"is": ["inf", "nan"]}, True),
        ("nan", {"is": ["inf", "nan"]}, False),
        ("", {"is": [-150]}, False),
        (np.array([0, 50]), {"is": [0, 50]}, True),
        ("a b c", {"is": ["a", "b", "c"]}, True),
        (False, {"is": "no"}, True),
        (True, {"is": "no"}, False),
        (True, {"is": "yes", "also": ["y"]}, True),
        (["nan", "inf"], {"is": ["inf", "nan"]}, True),
        ((3, 8), {"is": [3, 8], "in_order": True}, True),
        ((8, 3), {"is": [3, 8], "in_order": True}, False),
        ((3,), {"is": [3, 8], "in_order": True}, False),
    ],
)
def test_a_guess_agrees_with_equal_numbers_texts_and_lists(given, answer, expected):
    assert agrees(given, answer) is expected


def test_a_wrong_guess_is_not_shown_as_the_answer(capsys):
    # "you guessed -150. The answer is -150" says nothing
    for question, given in [
        ("01 maximum from zero", {"wrong_rows": ..., "noticed": -150}),
        ("01 without a maximum", {"correct_rows": "0 and 50", "others_show": "inf, nan"}),
        ("00 neighbours", {"as_expected": False}),
    ]:
        assert all(line.startswith("✓ ") for line in printed(capsys, question, **given))
    wrong = printed(capsys, "01 maximum from zero", wrong_rows=[], noticed=...)
    assert wrong[0].startswith("wrong rows: you guessed nothing. The answer is -100, -103, -104, -150: ")


def test_an_unknown_question_and_wrong_blanks_are_errors():
    with pytest.raises(ValueError, match="lesson 01 has no question 'readers'; it has without a maximum"):
        guess("01 readers", rounds=...)
    with pytest.raises(TypeError, match="blanks of '01 orders' are different_results, .* cell has results"):
        guess("01 orders", results=...)
    assert a_guess is guess


def calls(source):
    """Return [(number of blanks in the Markdown cell above, {question: names of its blanks})] of a lesson's
    cells with guesses."""
    return [
        (blanks(above), dict(map(question_of, ast.parse(cell.source).body)))
        for above, cell in itertools.pairwise(jupytext.read(source).cells)
        if "guess" in cell.metadata.get("tags", [])
    ]


def question_of(statement):
    return statement.value.args[0].value, [word.arg for word in statement.value.keywords]


def blanks(cell):
    return len(BLANK.findall(cell.source)) if cell.cell_type == "markdown" else 0


@pytest.mark.parametrize("lesson", SOURCES)
def test_each_blank_of_a_lesson_has_one_place_for_a_guess_and_an_answer(lesson):
    found = calls(SOURCES[lesson])
    assert [count for count, _ in found] == [sum(map(len, asked.values())) for _, asked in found]
    assert sum(map(blanks, jupytext.read(SOURCES[lesson]).cells)) == sum(count for count, _ in found)
    file = FOLDER / f"{lesson}.toml"
    answers = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    assert {question: names for _, asked in found for question, names in asked.items()} == {
        f"{lesson} {name}": list(wanted) for name, wanted in answers.items()
    }


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda file: file.stem)
def test_each_answer_agrees_with_itself(file):
    for question, wanted in tomllib.loads(file.read_text(encoding="utf-8")).items():
        for blank, answer in wanted.items():
            assert set(answer) <= {"is", "because", "also", "within", "in_order"}, (question, blank)
            assert agrees(answer["is"], answer), (question, blank)
