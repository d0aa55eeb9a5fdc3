"""Mutation tests of the checks.

Solutions must pass for every seed. Mutations, standard breakers and readers' wrong answers must be rejected,
and readers' correct answers accepted.

By default, a fixed sample runs with one seed. With --all, every answer runs, and each solution with 20 seeds.
`make power` continues to 20 seeds for each wrong answer and 1,000 for each solution.
"""

import random
import signal

import pytest

from course import ptx
from power import survey
from power.breakers import breakers
from power.equivalents import EQUIVALENT
from power.judge import compiled_once, verdict
from power.mutations import mutations
from power.survey import EXERCISES
from readers import BOOKS

CHOSEN = 1  # number of mutations and of breakers per exercise in a CI run
SEEDS = range(20)

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGALRM"), reason="no signal SIGALRM (Windows), which ends endless answers"
)


@pytest.fixture(scope="module", autouse=True)
def each_kernel_is_compiled_once():
    usual = ptx.compiled_here
    compiled_once()
    yield
    ptx.compiled_here = usual


def answers(kind):
    """Return one test parameter per answer of this kind.

    A CI run takes one in twelve wrong answers and one in twenty-four correct ones.
    """
    share = {"WRONG": 12, "RIGHT": 24}[kind]
    books = [getattr(book, kind) for book in BOOKS]
    all_of_them = [(check, *pair) for book in books for check, pairs in book.items() for pair in pairs]
    return pytest.mark.parametrize(
        "check, label, answer",
        [
            pytest.param(*one, marks=[pytest.mark.nightly] if place % share else [])
            for place, one in enumerate(all_of_them)
        ],
    )


@pytest.mark.parametrize(
    "check",
    [pytest.param(name, marks=pytest.mark.nightly if n % 20 else []) for n, name in enumerate(EXERCISES)],
)
def test_a_solution_passes_for_every_seed(check, few):
    """Check the solution with several seeds. Each CI run also executes all solutions in the stored
    notebooks."""
    solution = EXERCISES[check].solution
    assert not {seed: said for seed in few(SEEDS, 1) if (said := verdict(check, solution, seed))}


@pytest.mark.parametrize(
    "kind, check",
    [
        pytest.param(kind, name, marks=pytest.mark.nightly if (place + number) % 2 else [])
        for number, kind in enumerate(["mutations", "breakers"])
        for place, name in enumerate(EXERCISES)
    ],
)
def test_answers_made_by_machine_are_rejected(kind, check, few, record_property):
    """Check generated answers: in a CI run, mutations of every second exercise and breakers of the other
    exercises."""
    accepted = []
    for label in few(shuffled(list(survey.wrong(check, kind))), CHOSEN):
        _, seeds, _ = survey.judged((check, kind, label, [0]))
        record_property(kind, "accepted" if seeds else "rejected")
        accepted += [label] if seeds else []
    assert not accepted


@pytest.mark.parametrize(
    "check",
    [pytest.param(name, marks=pytest.mark.nightly if n % 8 else []) for n, name in enumerate(EQUIVALENT)],
)
def test_the_reviewed_equivalents_are_answers(check):
    labels = {label for label, _ in [*mutations(EXERCISES[check]), *breakers(EXERCISES[check])]}
    assert set(EQUIVALENT[check]) <= labels


def test_a_survey_counts_what_it_judges(capsys):
    assert not survey.survey(["ex01_2", "ex08_5"], wrong_seeds=1, seeds=12, processes=1)
    *rows, rejected, solutions = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["ex01_2", "ex08_5"] and "mutations 37 of 37" in rejected
    assert "24 checks, 12 to 12 seeds each, 0 rejected" in solutions


@answers("WRONG")
def test_readers_wrong_answers_are_rejected(check, label, answer, few, record_property):
    taken = accepts(check, answer, few)
    record_property("readers' wrong answers", "accepted" if taken else "rejected")
    assert not taken


@answers("RIGHT")
def test_readers_right_answers_are_accepted(check, label, answer, few):
    assert not any(verdict(check, answer, seed) for seed in few(SEEDS, 1))


def shuffled(items):
    """Return the items in a fixed random order, so that a sample does not follow the order of the source."""
    return random.Random(18).sample(items, len(items))


def accepts(check, answer, few):
    """Return whether the check accepts a wrong answer for the first seed or for any of three seeds."""
    return any(not verdict(check, answer, seed) for seed in few(range(3), 1))
