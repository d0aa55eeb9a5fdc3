"""Stores the reader's guesses, and compares them with the answers.

Each lesson has a file of answers, guesses/NN.toml. For example, 01.toml contains

    [readers]
    rounds = { is = 5, because = "2⁵ = 32" }

and a cell of lesson 01 contains `guess("01 readers", rounds=...)`.

    field      contents
    is         the answer: a number, true or false, a text, or a list of these
    because    the reason, a clause that follows the answer (optional)
    also       other texts that mean the same as `is` (optional)
    within     largest relative error of a number (optional; 0 for integers and 0.02 for other numbers)
    in_order   true if the entries of a list have to be in this order (optional)
"""

import functools
import re
import tomllib
from pathlib import Path

from course.progress import load, record, stored

FOLDER = Path(__file__).parent / "guesses"
NONE_YET = "No guess yet. Write it in place of ... and run this cell again, or read on."


def guess(question, **guesses):
    """Compare the reader's guesses with the answers, print one line for each, and store the guesses.

    question: the lesson's number and the name of the question, "01 readers".
    guesses: a guess for each of the question's blanks; `...` if there is none yet.

    Raise ValueError if there is no such question, and TypeError if the blanks are not those of the question.
    """
    wanted = answers(question)
    if set(guesses) != set(wanted):
        raise TypeError(
            f"the blanks of {question!r} are {', '.join(wanted)}, but this cell has {', '.join(guesses)}"
        )
    made = {blank: given for blank, given in guesses.items() if given is not ...}
    for blank, given in made.items():
        print(compared(blank, given, wanted[blank]))
    if made:
        record(stored("guesses"), question, {blank: repr(given) for blank, given in made.items()})
    else:
        print(NONE_YET)


def answers(question):
    """Return the answers to a question, {blank: {"is": ..., "because": ...}}."""
    lesson, _, name = question.partition(" ")
    found = of_lesson(lesson).get(name)
    if found is None:
        raise ValueError(f"lesson {lesson} has no question {name!r}; it has {', '.join(of_lesson(lesson))}")
    return found


@functools.cache
def of_lesson(lesson):
    """Return the answers to all questions of a lesson, {question: {blank: {...}}}."""
    file = FOLDER / f"{lesson}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def compared(blank, given, answer):
    """Return the line that compares a guess with the answer."""
    label, right = blank.replace("_", " "), shown(answer["is"])
    reason = f": {answer['because']}" if "because" in answer else ""
    if agrees(given, answer):
        return f"✓ {label}: {right}{reason}"
    return f"{label}: you guessed {shown(given)}. The answer is {right}{reason}"


def agrees(given, answer):
    """Return whether a guess agrees with the answer, or with one of the other texts that mean the same."""
    right = answer["is"]
    if isinstance(right, str):
        texts = {plain(text) for text in (right, *answer.get("also", ()))}
        return plain(given) in texts or plain(shown(given)) in texts
    if isinstance(right, list):
        return same_entries(entries(given), right, answer)
    if isinstance(right, bool) or isinstance(given, bool):
        return given is right
    try:
        error = abs(float(given) - right)
    except (TypeError, ValueError):
        return False
    return error <= answer.get("within", 0 if isinstance(right, int) else 0.02) * abs(right)


def entries(given):
    """Return the entries of a guess at a list. A text such as "inf and nan" has two, and a number is one.

    >>> entries("a, b and c")
    ['a', 'b', 'c']
    """
    if isinstance(given, str):
        return [entry for entry in re.split(r"[\s,;]+(?:and\s+)?", given.strip(" []()")) if entry]
    given = given.tolist() if hasattr(given, "tolist") else given
    return list(given) if isinstance(given, (list, tuple, set)) else [given]


def same_entries(given, right, answer):
    """Return whether two lists have the same entries, in any order unless the answer says `in_order`."""
    if answer.get("in_order"):
        pairs = zip(given, right, strict=False)
        return len(given) == len(right) and all(agrees(one, answer | {"is": other}) for one, other in pairs)
    rest = list(given)
    for entry in right:
        match = next((other for other in rest if agrees(other, answer | {"is": entry})), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def plain(text):
    """Return a text in lower case, without spaces and punctuation at its ends."""
    return re.sub(r"\s+", " ", str(text)).strip(" .!?`'\"").casefold()


def shown(value):
    """Return a guess or an answer as text: a list with commas, a number with its digits grouped."""
    if isinstance(value, (list, tuple, set)):
        return ", ".join(map(shown, value)) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return str(value)


def guessed():
    """Return the stored guesses, {question: {blank: guess as Python text}}."""
    return load(stored("guesses"))
