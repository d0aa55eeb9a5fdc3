"""Records facts for a check's success message, and the kernel to compile once all values are correct."""

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from course.check.words import fail

ARCHITECTURE = "sm_80"
RUNNING = ContextVar("the check that runs")


@dataclass
class Trial:
    """State of the check that is running.

    launch: (kernel, arguments, maximum number of float64 instructions or None, architecture) of the last
        launch.
    blocks: largest number of blocks in one launch.
    """

    launch: tuple | None = None
    blocks: int = 0
    facts: list = field(default_factory=list)

    def finish(self):
        """Compile the kernel, and return the facts to add to the success message."""
        several = [f"{self.blocks} blocks"] if self.blocks > 1 else []
        return [*dict.fromkeys(self.facts), *several, *([self.compiles()] if self.launch else [])]

    def compiles(self):
        """Reject a kernel that Numba cannot compile or that uses too many float64 instructions.

        Return a line for the success message.
        """
        kernel, arguments, most, architecture = self.launch
        # A kernel built from PTX has already been compiled, so there is nothing to check here.
        if hasattr(kernel, "module"):
            from course.cuda_cpp import have_nvrtc

            return f"compiles for {architecture}" if have_nvrtc() else "not compiled: NVRTC is not installed"
        try:
            from course.ptx import NoCompiler, compiled_here
        except ImportError:
            return "not compiled: numba-cuda is not installed"
        try:
            made = compiled_here(kernel, *arguments, architecture=architecture)
        except NoCompiler:
            return "not compiled: libNVVM is not installed"
        except Exception as error:  # Any exception that Numba raises here is caused by the kernel.
            fail(
                "the result is correct in the simulator, but Numba cannot compile the kernel for a GPU",
                hint=reason(error),
            )
        if most is not None and len(made.float64) > most:
            what = f"the result is correct, but {len(made.float64)} instructions use float64. Per line:"
            fail(
                what,
                call=made.float64_by_line(),
                hint=(
                    "A literal 0.0 is a float64, and so is the result of a float32 with an integer. Write"
                    " float32(0) and float32(n)."
                ),
            )
        return f"compiles for {architecture}"


def reason(error, lines=8):
    """Return Numba's error message, shortened and without the names of compiler passes and empty lines."""
    said = [
        line
        for line in str(error).splitlines()
        if line.strip() and not line.startswith(("Failed in", "During:", "<source elided>"))
    ]
    return "\n".join(said[:lines] or [type(error).__name__])


@contextmanager
def trial_of_check():
    """Create the Trial of the check that runs in the `with` block."""
    trial = Trial()
    token = RUNNING.set(trial)
    try:
        yield trial
    finally:
        RUNNING.reset(token)


def tried(*facts):
    """Add facts to the success message, without duplicates: tried("scores to ±1000")."""
    if trial := RUNNING.get(None):
        trial.facts.extend(facts)


def remember_launch(kernel, arguments, blocks, most_float64, architecture=ARCHITECTURE):
    """Remember a launch, so that its kernel is compiled after all values have been checked."""
    if trial := RUNNING.get(None):
        trial.launch = kernel, arguments, most_float64, architecture
        trial.blocks = max(trial.blocks, blocks)
