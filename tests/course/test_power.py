"""What the checks can tell: solutions pass for every seed; mutations, standard breakers and readers' wrong
answers are rejected, readers' right ones accepted.

By default a fixed choice of each, with --all everything: 1,000 seeds for each solution, 20 for each wrong
answer.
"""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from power.breakers import breakers
from power.equivalents import EQUIVALENT
from power.judge import verdict
from power.lessons import exercises
from power.mutations import mutations
from readers import attacks01_08, lessons01_08

LESSONS = [f"{lesson:02}" for lesson in range(1, 9)]  # those whose mutations have all been looked at
EXERCISES = {check: exercise for lesson in LESSONS for check, exercise in exercises(lesson).items()}
CHOSEN = 4  # mutations, and breakers, of each exercise in a plain run
SEEDS = range(20)

every_exercise = pytest.mark.parametrize("check", EXERCISES)


def answers(kind):
    """A parameter for each answer of this kind, WRONG or RIGHT."""
    books = [getattr(book, kind) for book in (lessons01_08, attacks01_08)]
    return pytest.mark.parametrize(
        "check, label, answer",
        [(check, *pair) for book in books for check, pairs in book.items() for pair in pairs],
    )


@every_exercise
def test_a_solution_passes_for_every_seed(check, few):
    solution = EXERCISES[check].solution
    rejected = {seed: said for seed in few(range(1000), 1) if (said := verdict(check, solution, seed))}
    assert not rejected


@every_exercise
def test_mutations_are_rejected(check, few, record_property):
    exercise = EXERCISES[check]
    every = [(label, cell) for label, cell in mutations(exercise) if label not in EQUIVALENT.get(check, {})]
    accepted = []
    for label, cell in few(shuffled(every), CHOSEN):
        answer = made(exercise, cell, label)
        taken = answer and accepts(check, answer, few)
        record_property("mutations", "accepted" if taken else "rejected")
        accepted += [label] if taken else []
    assert not accepted


@every_exercise
def test_the_reviewed_equivalents_are_mutations(check):
    labels = [label for label, _ in mutations(EXERCISES[check])]
    assert set(EQUIVALENT.get(check, {})) <= set(labels)


@every_exercise
def test_breakers_are_rejected(check, few, record_property):
    accepted = []
    for label, answer in few(shuffled(list(breakers(EXERCISES[check]))), CHOSEN):
        taken = accepts(check, answer, few)
        record_property("breakers", "accepted" if taken else "rejected")
        accepted += [label] if taken else []
    assert not accepted


@answers("WRONG")
def test_readers_wrong_answers_are_rejected(check, label, answer, few, record_property):
    taken = accepts(check, answer, few)
    record_property("readers' wrong answers", "accepted" if taken else "rejected")
    assert not taken


@answers("RIGHT")
def test_readers_right_answers_are_accepted(check, label, answer, few):
    assert not any(verdict(check, answer, seed) for seed in few(SEEDS, 1))


def shuffled(items):
    """The same order in every run, but not that of the source."""
    return random.Random(18).sample(items, len(items))


def made(exercise, cell, label):
    """The mutated answer; None if not even its cell runs."""
    try:
        return exercise.with_cell(cell, label)
    except Exception:
        return None


def accepts(check, answer, few):
    """Whether the check accepts a wrong answer with any of the seeds."""
    return any(not verdict(check, answer, seed) for seed in few(SEEDS, 1))
