"""The machine-readable fix of a finding: edits to a kernel's source."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One edit to a kernel's source. `action` is one of:

    - "insert": insert a `what` ("barrier", "grid barrier", "fence") after the statement that starts at line
      `at` and ends at `line`.
    - "before": insert a `what` before `line`.
    - "divide": like "insert", but the statement is inside branches. Split each of these branches at the
      statement into two branches with the same condition, and turn an earlier return into a branch around
      the code after it. If `what` is "nothing else", the statement is the barrier itself.
    - "split": split the statement at `line` into a read, a `what` ("barrier" or "grid barrier") and a write,
      and split the branches around it. If `what` is "branch" or "branch of the grid", split the branch that
      starts at `line` into two branches with a barrier between their arms, beginning with the arm that
      contains line `at`.
    - "guard": execute the statement at `line` only if `what` holds.
    - "mask": replace the mask of the call at `line` by `what`.
    - "buffers": give the array `what` one more buffer than `at`.
    - "widen": start the view `what` at byte `at`.
    - "separate": put each statement of `line` on a line of its own.
    - "atomic": replace the access at `line` by an atomic. For `what` "update", the read is at line `at`.
      "swap loop": a loop around a compare-and-swap replaces an update for which there is no atomic.
      "store" and "read" replace a plain access; a read's text is `element`. "exchange" replaces the read of
      `element` at line `at`, and the store at `line` is removed. "cas", "min" and "max" replace the
      comparison with `element` at line `at`, and the store at `line` is removed. "ticket": the statement at
      `line` adds to `element`, and the atomic is inserted before line `at`. "returned": `line` uses the
      result of the atomic for line `at`.
    """

    action: str
    function: str
    line: int
    what: str
    at: int = 0
    element: str = ""


@dataclass(frozen=True)
class Advice:
    """A machine-readable fix for a finding: the `pattern` of the fault, and the `steps` that remove it.
    `steps` is empty if no edit is known."""

    pattern: str
    steps: tuple[Step, ...] = ()
