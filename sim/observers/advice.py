"""The cause and the fix of a race.

The first row of PATTERNS (sim.observers.advice_patterns) that fits the facts about the two accesses is used.
Terms in braces are keys of sim.observers.words. They are replaced by the terms of the kernel's language.
"""

import warnings

from sim.events import Advice
from sim.observers import fixes
from sim.observers.advice_patterns import DEPENDS, GENERAL, PATTERNS
from sim.observers.facts import Facts
from sim.observers.words import NUMBA, WORDS

# The causes for rows that do not have a cause of their own.
BLOCKS = "Blocks run in any order and at the same time, so either may come first."
CLUSTER = "The blocks of a cluster run at the same time, so either may come first."
EITHER = "Either may come first."

# The last part of a fix that inserts a cluster barrier.
REMOTE_ARRIVAL = (
    "; or let the thread that must come first arrive at an mbarrier in the block of the other thread (mapa,"
    " mbarrier.arrive.release.cluster), let the other thread wait there, and initialise this mbarrier for the"
    " arrivals of all blocks"
)


def of_race(facts: Facts) -> tuple[str, str, Advice]:
    """Return (sentence for the cause, sentence for the fix, Advice) for a race.

    The patterns read arbitrary source text. If one of them fails, the race still has to be reported. The
    advice is then general, and a RuntimeWarning names the error.
    """
    try:
        return by_pattern(facts, PATTERNS)
    except Exception as error:
        warnings.warn(
            f"the fix of a race is general, because {error!r} prevented a specific one", stacklevel=2
        )
        return by_pattern(facts, [GENERAL])


def by_pattern(facts, patterns):
    """Return the result of `of_race` from the first pattern that fits."""
    row = next(pattern for pattern in patterns if pattern.fits(facts))
    cause = row.cause(facts) if callable(row.cause) else row.cause or general_cause(facts)
    fix = row.fix(facts) if callable(row.fix) else row.fix
    words = {**WORDS.get(facts.language, WORDS[NUMBA]), "everyone": "every thread of the block"}
    if facts.named:
        words |= {
            "barrier": "bar.sync {}, {}".format(*facts.named) + fixes.called_on(facts),
            "everyone": fixes.CALLERS.format(facts.named[1]),
        }
    if facts.in_cluster:
        words |= {
            "barrier": words["cluster_barrier"],
            "everyone": "every thread of all blocks of the cluster",
        }
        fix += REMOTE_ARRIVAL if "{barrier}" in fix else ""
    return (
        cause.format(**words),
        fix.format(**words),
        Advice(row.name, fixes.applicable_steps(facts, row.steps(facts))),
    )


def general_cause(facts):
    if facts.in_cluster:
        return CLUSTER
    if facts.several_blocks:
        return BLOCKS
    return EITHER if facts.replaced else DEPENDS
