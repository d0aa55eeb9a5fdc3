"""Streams that run nothing until they are told to, and then in an order of the check's choice: for lesson
07's exercise on marks."""

from dataclasses import dataclass, field

from course.check.harness import fail


@dataclass(frozen=True)
class Mark:
    """A place in a stream: behind its first `place` entries."""

    stream: "Stream"
    place: int


@dataclass(eq=False)
class Stream:
    """Lesson 07's Stream, as a list of what has been put into it."""

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
        self.entries.append((work, arguments))

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
        """Return whether its next entry may run now."""
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
    """Run all that is in the streams, `choose` picking one of those that may go on; whether all is done."""
    while ready := [stream for stream in streams if stream.ready]:
        choose(ready).step()
    return all(stream.done == len(stream.entries) for stream in streams)
