"""Deferred streams for lesson 07's exercise on events. The check chooses the order in which entries run."""

from dataclasses import dataclass, field

from course.check.harness import fail


@dataclass(frozen=True)
class Mark:
    """An event in a stream, which is complete when the stream's first `place` entries have run."""

    stream: "Stream"
    place: int

    def result(self):
        """Fail, because the caller would wait. A stream that launches this method waits instead."""
        hint = "Let the streams wait: stream.wait_event(event)."
        fail("Python waits for an event", call=self.stream.call, hint=hint)


@dataclass(eq=False)
class Stream:
    """The Stream class of lesson 07, implemented as a list of entries that the check runs later."""

    name: str
    call: str
    entries: list = field(default_factory=list)
    done: int = 0

    def launch(self, work, *arguments):
        if not callable(work):
            what = f"{self.name}.launch gets {work!r} instead of a function"
            fail(
                what,
                call=self.call,
                hint=f"{self.name}.launch(fill, p, buffer) leaves the call to the stream.",
            )
        event = getattr(work, "__self__", None)  # the lesson's wait_event launches event.result
        self.entries.append(event if isinstance(event, Mark) else (work, arguments))

    def record_event(self):
        return Mark(self, len(self.entries))

    def wait_event(self, event):
        if not isinstance(event, Mark):
            hint = "A mark is what record_event() returns."
            fail(f"{self.name}.wait_event gets {event!r} instead of a mark", call=self.call, hint=hint)
        self.entries.append(event)

    def synchronize(self):
        fail(
            f"Python waits, in {self.name}.synchronize()",
            call=self.call,
            hint="Let the streams wait, by marks.",
        )

    @property
    def ready(self):
        """Return whether the stream's next entry can run now."""
        if self.done == len(self.entries):
            return False
        entry = self.entries[self.done]
        return not isinstance(entry, Mark) or entry.stream.done >= entry.place

    def step(self):
        entry = self.entries[self.done]
        if not isinstance(entry, Mark):
            work, arguments = entry
            work(*arguments)
        self.done += 1


def run(streams, choose):
    """Run all entries of the streams and return whether all finished.

    choose: function that selects one of the ready streams.
    """
    while ready := [stream for stream in streams if stream.ready]:
        choose(ready).step()
    return all(stream.done == len(stream.entries) for stream in streams)
