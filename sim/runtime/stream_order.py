"""The order that streams, events and waits of the host establish between asynchronous operations.

The simulator executes work when it is issued. On a GPU, work may still be pending when the host continues.
Each stream has a vector clock: for each stream, the number of operations that precede the stream's next
operation. The default stream waits for all blocking streams, and they wait for it.

This module uses no functions of the operating system, because `pytest --cuda-sim` also runs on Windows.

Source: CUDA Runtime API, "API synchronization behavior" and "Stream synchronization behavior".
"""

from collections import Counter

DEFAULT_STREAM = 0
DEFAULT_NAMES = 0, 1  # the handles of the default stream: nullptr and cudaStreamLegacy
AFTER_HOST = (
    "host accesses after a host function were not compared with the operations before it in its stream"
)


class StreamOrder:
    """The streams and events of a program, with a vector clock for each of them.

    live: the streams that exist, apart from the default stream.
    nonblocking: the streams that the default stream does not wait for.
    finished: the operations that the host has waited for.
    asked: the clocks of queries that returned False because operations were pending.
    current: the operation being executed, as (stream, number).
    """

    def __init__(self) -> None:
        self.clocks: dict[int, Counter] = {DEFAULT_STREAM: Counter()}
        self.live: set[int] = set()
        self.nonblocking: set[int] = set()
        self.events: dict[int, Counter] = {}
        self.finished: Counter = Counter()
        self.asked: set[frozenset] = set()
        self.current = DEFAULT_STREAM, 0

    def create(self, stream: int, nonblocking: bool) -> None:
        """Add a stream."""
        self.live.add(stream)
        self.clocks[stream] = Counter()
        if nonblocking:
            self.nonblocking.add(stream)

    def clock(self, stream: int) -> Counter:
        """Return the clock of a stream, including the work that its next operation waits for implicitly."""
        stream = DEFAULT_STREAM if stream in DEFAULT_NAMES else stream
        clock = self.clocks.setdefault(stream, Counter())
        if stream == DEFAULT_STREAM:
            for other, theirs in self.clocks.items():
                if other not in self.nonblocking:
                    clock |= theirs
        elif stream not in self.nonblocking:
            clock |= self.clocks[DEFAULT_STREAM]
        self.clocks[stream] = clock
        return clock

    def issue(self, stream: int) -> None:
        """Begin an operation of a stream."""
        stream = DEFAULT_STREAM if stream in DEFAULT_NAMES else stream
        clock = self.clock(stream)
        clock[stream] += 1
        self.current = stream, clock[stream]

    def record(self, event: int, stream: int) -> None:
        self.events[event] = Counter(self.clock(stream))

    def wait(self, stream: int, event: int) -> None:
        """Make a stream wait for an event."""
        self.clock(stream)
        stream = DEFAULT_STREAM if stream in DEFAULT_NAMES else stream
        self.clocks[stream] |= self.events.get(event, Counter())

    def synchronize(self, stream: int) -> None:
        """Record that the host has waited for a stream."""
        default = stream in DEFAULT_NAMES
        self.finish(self.clock(stream) if default else self.clocks.get(stream, Counter()))

    def reach_host(self) -> None:
        """Record that the host executes the current operation, so that the operations before it are complete.

        The function that the host executes can notify any thread of the host of their completion.
        """
        stream, _ = self.current
        self.finish(self.clocks[stream] - Counter({stream: 1}))

    def synchronize_event(self, event: int) -> None:
        self.finish(self.events.get(event, Counter()))

    def synchronize_all(self) -> None:
        """Record that the host has waited for the device."""
        for stream in list(self.clocks):
            self.finish(self.clocks[stream])

    def query(self, clock: Counter) -> bool:
        """Return whether the operations of a clock are complete.

        The first query of pending operations returns False. This exposes programs that do not repeat it.
        """
        asked = frozenset(clock.items())
        if clock - self.finished and asked not in self.asked:
            self.asked.add(asked)
            return False
        self.finish(clock)
        return True

    def finish(self, clock: Counter) -> None:
        """Record that the operations of a clock are complete, and that the host has waited for them."""
        self.finished |= clock

    # --- overlap --------------------------------------------------------------------------------------------

    def is_finished(self, stream: int, number: int) -> bool:
        """Return whether the host has waited for an operation."""
        return number <= self.finished[stream]

    def may_overlap(self) -> bool:
        """Return whether the program has streams that do not wait for each other.

        A destroyed stream still counts while it has operations that may be running.
        """
        busy = {s for s, clock in self.clocks.items() if s and not self.is_finished(s, clock[s])}
        used = self.live | busy
        return len(used) > 1 or not self.nonblocking.isdisjoint(used)
