"""Test that a launch with a bug ends soon. The tests count work instead of seconds, because machines differ."""

import numpy as np
from numba import cuda, float32

from sim import simulate
from sim.observers import advice

THREADS = 64


@cuda.jit
def bitonic_without_barriers(x):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    k = 2
    while k <= THREADS:
        j = k // 2
        while j > 0:
            other = t ^ j
            if other > t:
                if (t & k == 0) == (tile[t] > tile[other]):
                    a = tile[t]
                    tile[t] = tile[other]
                    tile[other] = a
            j //= 2
        k *= 2
    x[cuda.grid(1)] = tile[t]


def test_each_pair_of_lines_gets_its_advice_once(monkeypatch):
    advised = []
    of_race = advice.of_race
    monkeypatch.setattr(advice, "of_race", lambda facts: advised.append(facts) or of_race(facts))
    x = np.random.default_rng(0).random(8 * THREADS).astype(np.float32)
    report = simulate(bitonic_without_barriers, on_finding="report")[8, THREADS](x)
    assert sum(finding.count for finding in report.findings) > 1000
    # A pair that takes precedence over an earlier one, such as one with a lower index, gets its own advice.
    assert len(advised) < 20 * len(report.findings)
