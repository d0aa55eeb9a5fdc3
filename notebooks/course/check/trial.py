"""The record of one run of a check: the facts that it has tried, for the line with the ✓, and the kernel that
must still compile for a GPU when all else is right."""

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from course.check.words import fail

ARCHITECTURE = "sm_80"
RUNNING = ContextVar("the check that runs")


@dataclass
class Trial:
    """The check that runs. `launch`: (kernel, arguments, most float64 instructions or None) of its last
    launch; `blocks`: the most of one launch."""

    launch: tuple | None = None
    blocks: int = 0
    facts: list = field(default_factory=list)

    def finish(self):
        """Compile the kernel when everything else is right. Return the facts that were tried, in addition to
        those of the check itself."""
        several = [f"{self.blocks} blocks"] if self.blocks > 1 else []
        return [*dict.fromkeys(self.facts), *several, *([self.compiles()] if self.launch else [])]

    def compiles(self):
        """Reject a kernel that Numba cannot compile, or that computes in float64 where it may not; says what
        was found out."""
        kernel, arguments, most = self.launch
        if hasattr(kernel, "module"):  # of PTX, compiled before it ran
            from course.cuda_cpp import have_nvrtc

            return f"compiles for {ARCHITECTURE}" if have_nvrtc() else "not compiled: NVRTC is not here"
        try:
            from course.ptx import NoCompiler, compiled_here
        except ImportError:
            return "not compiled: numba-cuda is not here"
        try:
            made = compiled_here(kernel, *arguments, architecture=ARCHITECTURE)
        except NoCompiler:
            return "not compiled: libNVVM is not here"
        except Exception as error:  # whatever Numba raises is about the kernel
            fail("right in the simulator, but Numba cannot compile it for a GPU", hint=reason(error))
        if most is not None and len(made.float64) > most:
            what = f"right, but {len(made.float64)} instructions have to do with a float64; by lines:"
            fail(
                what,
                call=made.float64_by_line(),
                hint=(
                    "A bare 0.0 is a float64, and a float32 with a whole number makes one: float32(0),"
                    " float32(n)."
                ),
            )
        return f"compiles for {ARCHITECTURE}"


def reason(error, lines=8):
    """Numba's message without the names of its passes and its empty lines, as far as somebody reads it."""
    said = [
        line
        for line in str(error).splitlines()
        if line.strip() and not line.startswith(("Failed in", "During:", "<source elided>"))
    ]
    return "\n".join(said[:lines] or [type(error).__name__])


@contextmanager
def running():
    """A Trial for the check that runs within."""
    trial = Trial()
    token = RUNNING.set(trial)
    try:
        yield trial
    finally:
        RUNNING.reset(token)


def tried(*facts):
    """Facts for the line with the ✓, said once each: tried("scores to ±1000")."""
    if trial := RUNNING.get(None):
        trial.facts.extend(facts)


def launched(kernel, arguments, blocks, most_float64):
    """Note a launch: its kernel is compiled when everything else is right."""
    if trial := RUNNING.get(None):
        trial.launch, trial.blocks = (kernel, arguments, most_float64), max(trial.blocks, blocks)
