"""Prints a table of how the checks judge every solution and every wrong answer, computed on all cores.

    python tests/course/power/survey.py [ex05_3 ...]

After the table of exercises, the program lists each solution that was rejected and each wrong answer that was
accepted. Wrong answers are judged first, and solutions in the remaining time.
"""

import argparse
import functools
import itertools
import multiprocessing
import runpy
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2]), str(HERE.parents[2] / "notebooks")]

from power.breakers import breakers  # noqa: E402
from power.equivalents import EQUIVALENT  # noqa: E402
from power.judge import compiled_once, verdict  # noqa: E402
from power.lessons import exercises  # noqa: E402
from power.mutations import mutations  # noqa: E402

LESSONS = [f"{lesson:02}" for lesson in range(1, 24)]
WRONG = ["mutations", "breakers", "by hand"]
EXERCISES = {check: exercise for lesson in LESSONS for check, exercise in exercises(lesson).items()}


@functools.cache
def wrong(check, kind):
    """Return {label: function that creates the wrong answer} for one kind, without the reviewed
    equivalents."""
    exercise, known = EXERCISES[check], EQUIVALENT.get(check, {})
    if kind == "mutations":
        return {
            label: functools.partial(exercise.with_cell, cell, label)
            for label, cell in mutations(exercise)
            if label not in known
        }
    made = breakers(exercise) if kind == "breakers" else by_hand(check)
    return {
        label: functools.partial(lambda answer: answer, answer)
        for label, answer in made
        if label not in known
    }


def by_hand(check):
    """Yield (label, answer) for the mutants that people wrote and the answers that readers tried."""
    from readers import BOOKS

    shelf = map(runpy.run_path, map(str, sorted(HERE.parent.glob("mutants/lesson*.py"))))
    books = [*(book["MUTANTS"] for book in shelf), *(book.WRONG for book in BOOKS)]
    for number, book in enumerate(books):
        for place, (label, answer) in enumerate(book.get(check, ())):
            yield f"{label} [{number}.{place}]", answer


def judged(job):
    """Return (job, seeds for which the check's verdict is wrong, seconds)."""
    check, kind, label, seeds = job
    began, contrary = time.perf_counter(), []
    try:
        answer = EXERCISES[check].solution if kind == "solutions" else wrong(check, kind)[label]()
    except Exception:  # The cell of this mutation cannot even be executed.
        return job, [], time.perf_counter() - began
    for seed in seeds:
        if bool(verdict(check, answer, seed)) == (kind == "solutions"):
            contrary.append(seed)
    return job, contrary, time.perf_counter() - began


def jobs(checks, kinds, seeds):
    """Return a job with these seeds for each wrong answer."""
    return [(check, kind, label, seeds) for check in checks for kind in kinds for label in wrong(check, kind)]


def rounds(checks, seeds, first_seed, seconds, size=10):
    """Yield jobs that check solutions with ten seeds each, starting with the fastest solutions.

    seconds: {check: durations of its finished jobs}, which grows while jobs are yielded.
    """
    todo = {check: iter(range(first_seed, first_seed + seeds, size)) for check in checks}
    given = Counter()
    while todo:
        check = min(todo, key=lambda check: given[check] * mean(seconds[check] or [1]))
        given[check] += 1
        if (first := next(todo[check], None)) is None:
            del todo[check]
        else:
            yield check, "solutions", "", range(first, min(first_seed + seeds, first + size))


def survey(
    checks, *, kinds=WRONG, wrong_seeds=20, seeds=1000, first_seed=0, minutes=600.0, processes=None, say=print
):
    """Judge all answers, print the results, and return the number of wrong verdicts."""
    end = time.monotonic() + 60 * minutes
    tried, contrary, spent, times = defaultdict(Counter), defaultdict(list), Counter(), defaultdict(list)
    # Every wrong answer is judged with one seed before any is judged with more.
    first = [jobs(checks, kinds, range(1)), jobs(checks, kinds, range(1, wrong_seeds))] if wrong_seeds else []
    with multiprocessing.Pool(processes, initializer=compiled_once) as pool:
        todo = itertools.takewhile(
            lambda _: time.monotonic() < end,
            itertools.chain(*first, rounds(checks, seeds, first_seed, times)),
        )
        throttle = Throttle(todo, 4 * pool._processes)
        for (check, kind, label, those), against, seconds in pool.imap_unordered(judged, throttle):
            throttle.done()
            tried[check][kind, label] += len(those)
            contrary[check, kind, label] += against
            spent[check] += seconds
            if kind == "solutions":
                times[check].append(seconds)
    for check in checks:
        say(
            row(
                check,
                tried[check],
                {key[1:]: found for key, found in contrary.items() if key[0] == check},
                spent,
            )
        )
    found = {key: seeds for key, seeds in contrary.items() if seeds}
    say(summary(checks, tried, found))
    for (check, kind, label), those in sorted(found.items()):
        verb = "REJECTED" if kind == "solutions" else "ACCEPTED"
        of = f"{len(those)} of {tried[check][kind, label]} seeds: {sorted(those)[:5]}"
        say(f"{verb} {check} {kind} {label!r}, {of}")
    return len(found)


def summary(checks, tried, found):
    """Return one line with the totals over all exercises."""
    said = []
    for kind in WRONG:
        mine = [(check, key) for check in checks for key in tried[check] if key[0] == kind]
        accepted = sum((check, *key) in found for check, key in mine)
        least = min((tried[check][key] for check, key in mine), default=0)
        said.append(f"{kind} {len(mine) - accepted:,} of {len(mine):,} (each with {least} seeds at least)")
    known = sum(len(EQUIVALENT.get(check, {})) for check in checks)
    runs = [tried[check]["solutions", ""] for check in checks]
    rejected = sum(len(found.get((check, "solutions", ""), [])) for check in checks)
    return (
        f"wrong answers rejected: {', '.join(said)}; left out, as reviewed equivalents: {known}\n"
        f"solutions: {sum(runs):,} checks, {min(runs):,} to {max(runs):,} seeds each, {rejected} rejected"
    )


class Throttle:
    """Iterator that hands out items only as results arrive, so that the time limit applies."""

    def __init__(self, items, ahead):
        self.items, self.free = iter(items), multiprocessing.Semaphore(ahead)

    def __iter__(self):
        return self

    def __next__(self):
        self.free.acquire()
        return next(self.items)

    def done(self):
        self.free.release()


def row(check, tried, contrary, spent):
    """Return the line of one exercise: the rejected and all wrong answers of each kind, and the seeds tried
    for its solution."""
    cells = [f"{check}"]
    for kind in WRONG:
        mine = {key: seeds for key, seeds in tried.items() if key[0] == kind}
        accepted = sum(bool(contrary[key]) for key in mine)
        cells.append(f"{kind} {len(mine) - accepted}/{len(mine)} × {min(mine.values(), default=0)}")
    passed = tried["solutions", ""] - len(contrary.get(("solutions", ""), []))
    return "  ".join([*cells, f"solution {passed}/{tried['solutions', '']}", f"{spent[check]:.0f} s"])


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("exercises", nargs="*", help="ex05_3, or 05 for a lesson; all if left out")
    ask.add_argument("--kinds", nargs="*", default=WRONG, choices=WRONG)
    ask.add_argument("--wrong-seeds", type=int, default=20)
    ask.add_argument("--seeds", type=int, default=1000)
    ask.add_argument("--first-seed", type=int, default=0, help="of the solutions")
    ask.add_argument("--minutes", type=float, default=600.0)
    ask.add_argument("--processes", type=int)
    asked = ask.parse_args()
    unknown = {*asked.exercises} - {*EXERCISES} - {check[2:4] for check in EXERCISES}
    if unknown:
        ask.error(
            f"there is no exercise {', '.join(sorted(unknown))}; wanted ex05_3, say, or 05 for a lesson"
        )
    if not hasattr(signal, "SIGALRM"):
        ask.error("this system has no signal SIGALRM, which ends endless answers: Linux and macOS have it")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    checks = [check for check in EXERCISES if not asked.exercises or {check, check[2:4]} & {*asked.exercises}]
    return survey(
        checks,
        kinds=asked.kinds,
        wrong_seeds=asked.wrong_seeds,
        seeds=asked.seeds,
        first_seed=asked.first_seed,
        minutes=asked.minutes,
        processes=asked.processes,
        say=functools.partial(print, flush=True),
    )


if __name__ == "__main__":
    sys.exit(main() > 0)
