"""Tests that every check rejects typical wrong answers of learners and accepts correct ones."""

import runpy
from pathlib import Path

import pytest

from course import check
from course.check.harness import CheckFailed

SEEDS = 1, 2, 3
# A CI run tests the first mutant of an exercise, one in twelve of the others, and one in forty correct
# answers.
# The solutions themselves are checked when the notebooks run.
OTHERS, RIGHT = 12, 40
LONG = {"ex10_3", "ex12_4"}  # take 6 and 8 CPU seconds
BOOKS = {
    path.stem: runpy.run_path(str(path))
    for path in sorted((Path(__file__).parent / "mutants").glob("lesson*.py"))
}
MUTANTS = [
    pytest.param(name, answer, id=f"{name}: {wrong}", marks=[pytest.mark.nightly] if place % OTHERS else [])
    for book in BOOKS.values()
    for name, answers in book["MUTANTS"].items()
    for place, (wrong, answer) in enumerate(answers)
]
RIGHTS = [
    pytest.param(
        name,
        answer,
        id=f"{name}: right answer {place}",
        marks=[pytest.mark.nightly] if number % RIGHT or name in LONG else [],
    )
    for number, (name, place, answer) in enumerate(
        (name, place, answer)
        for book in BOOKS.values()
        for name, answers in book["RIGHT"].items()
        for place, answer in enumerate(answers)
    )
]


@pytest.mark.parametrize("name, answer", MUTANTS)
def test_rejects_a_wrong_answer(name, answer, few, record_property):
    passed = [seed for seed in few(SEEDS, 1) if passes(getattr(check, name), answer, seed)]
    record_property("mutant", "passed" if passed else "rejected")
    assert not passed, f"{name} passes it with the seeds {passed}"


@pytest.mark.parametrize("name, answer", RIGHTS)
def test_passes_a_right_answer(name, answer, few):
    for seed in few(SEEDS, 1):
        getattr(check, name)(answer, seed=seed)


def test_accepts_large_scores_whose_rounding_depends_on_the_order():
    score = BOOKS["lesson11"]["score_masked_at_the_end"]  # multiplies every product by the scale
    check.ex11_1(score, seed=6045)  # once rejected: large products nearly cancelled


def test_every_check_has_mutants_and_a_right_answer():
    checks = [(f"lesson{lesson}", name) for lesson, names in check.lessons().items() for name in names]
    assert checks
    for book, name in checks:
        assert len(BOOKS[book]["MUTANTS"][name]) >= 5, name
        assert len(BOOKS[book]["RIGHT"][name]) >= 1, name


def passes(check_it, answer, seed):
    try:
        check_it(answer, seed=seed)
    except CheckFailed:
        return False
    return True
