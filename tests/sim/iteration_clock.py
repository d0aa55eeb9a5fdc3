"""A clock for loop limits that counts iterations, so that a test does not depend on the machine's speed."""

import sys
from types import SimpleNamespace

from sim import loop_limits


class IterationClock:
    """A clock that advances by 20 µs with each iteration of a `while` loop of an interpreted kernel."""

    def __init__(self, monkeypatch):
        self.seconds, tick = 0.0, loop_limits.LoopLimits.tick

        def advance(limits, site):
            self.seconds += 20e-6
            tick(limits, site)

        # `tick` asks for the frame of its caller, which is two frames further away here.
        frames = SimpleNamespace(_getframe=lambda depth: sys._getframe(depth + 2))
        monkeypatch.setattr(loop_limits.LoopLimits, "tick", advance)
        monkeypatch.setattr(loop_limits, "sys", frames)
        monkeypatch.setattr(loop_limits, "time", SimpleNamespace(process_time=lambda: self.seconds))
