"""Assigns letters to the faulty versions of a bug hunt, and checks the learner's assignment."""

import random

from course.check.harness import dictionary, fail
from course.progress_bar import quiet


def drawn(names):
    """Return {letter: name} in a random order that differs between sessions.

    In builds and tests (COURSE_QUIET=1), the order is that of `names`, so that stored outputs can be
    compared.
    """
    names = [*names]
    if not quiet():
        random.SystemRandom().shuffle(names)
    return dict(zip("abcdefgh", names, strict=False))


GUESSES = 3  # wrong answers after which the letters are drawn again
wrong_answers = {}  # id of a table of letters -> wrong answers so far


def redrawn_after_guesses(truth):
    """Count a wrong answer, and draw the letters of `truth` again after each third one.

    Return what to add to the message. Otherwise five names could be found by trying their 120 orders.
    """
    count = wrong_answers[id(truth)] = wrong_answers.get(id(truth), 0) + 1
    if count % GUESSES or quiet():
        return ""
    names = [*truth.values()]
    random.SystemRandom().shuffle(names)
    truth |= zip([*truth], names, strict=True)
    return f". This was wrong answer {count}, so the letters are drawn again: repeat your experiments"


def judge(answer, truth, hint):
    """Reject an assignment {letter: name} that differs from `truth`, without saying which letter is wrong."""
    wanted = "{" + ", ".join(f"{letter!r}: ..." for letter in truth) + "}"
    dictionary(answer, truth, what=f"a name for each of {', '.join(truth)}", wanted=wanted)
    for letter, name in answer.items():
        if name not in truth.values():
            names = "one of " + ", ".join(sorted(truth.values()))
            fail(f"{letter}: {name!r} is not in the table", wanted=names, got=repr(name))
    right = sum(answer[letter] == name for letter, name in truth.items())
    if right < len(truth):
        fail(f"{right} of the {len(truth)} are correct", hint=hint)
