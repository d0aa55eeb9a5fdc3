"""Findings: the faults that observers report, with the threads, source lines and array elements involved."""

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sim.sites import Index3, Site
from sim.steps import Advice

# All kinds of findings. Only pytest --cuda-sim reports the last three; simulate raises ThreadError instead.
KINDS = tuple(
    "out-of-bounds negative-index race-shared race-global uninitialized-read barrier-divergence"
    " warp-divergence async-copy proxy-fence wgmma misaligned-address invalid-call invalid-operand"
    " use-after-free double-free invalid-free leak deadlock unassigned-variable misuse"
    " no-progress undecided exception stream-race unsynchronized-access".split()
)


# Fill bytes for undefined integers and for undefined memory of unknown type (a NaN in every floating-point
# format).
INTEGER_POISON, UNTYPED_POISON = 0xA5, 0xFF

# The advice about a branch around a barrier, for findings of the engine and of observers.
END_BEFORE_BARRIER = (
    "end the branch before the barrier, and put the rest of its statements into a second branch with the same"
    " condition, after the barrier"
)


def index_text(index: tuple[int, ...], least: int = 0) -> str:
    """Return the short form of a thread's or block's index: (3, 0, 0) is "3", and (3, 1, 0) is "(3, 1)".

    least: omit trailing axes with this value or less; 1 if `index` is a shape.
    """
    used = max((axis + 1 for axis, i in enumerate(index) if i > least), default=1)
    return str(index[0]) if used == 1 else f"({', '.join(map(str, index[:used]))})"


@dataclass(frozen=True)
class Access:
    """One thread's action, or the event that it waits for, with its site. Findings identify threads by
    Accesses."""

    what: str  # "read", "written", "waits", "returned", ...
    block: Index3
    thread: Index3
    site: Site | None = None
    value: object = None


@dataclass(frozen=True)
class Finding:
    """A fault reported by an observer.

    kind: one of KINDS.
    severity: "error" or "warning".
    verdict: one clause that states the fault.
    accesses: the threads involved and their actions.
    site: the source line, if the fault concerns no particular thread, such as a warning of a compiler.
    array: the array's name in the launch.
    index: the element. If the fault affects several elements, the lowest one.
    reason: a sentence that explains why this is wrong.
    fix: the likely fix.
    count: the number of further cases merged into this finding.
    message: the complete text, set by the report.
    """

    kind: str
    severity: str  # "error" or "warning"
    verdict: str
    accesses: tuple[Access, ...] = ()
    array: str | None = None
    index: tuple[int, ...] | None = None
    reason: str = ""
    fix: str = ""
    count: int = 0
    message: str = field(default="", compare=False)
    site: Site | None = None
    # proximity of the threads in `accesses`: 0 in different blocks, 1 in different warps of a block, 2 in
    # one warp
    near: int = field(default=0, compare=False)
    advice: Advice | None = field(default=None, compare=False)
    undefined: bool = field(
        default=False, compare=False
    )  # whether the thread continues with an undefined value
    poison: int = field(default=INTEGER_POISON, compare=False)  # the byte that fills the undefined value
    from_poison: bool = field(
        default=False, compare=False
    )  # whether the fault itself shows that an undefined value caused it, as a call through poison does
    # for each access, the pairs (function, line) of the lines that compute its index, as far as the source
    # shows
    origins: tuple[frozenset[tuple[str, int]], ...] = field(default=(), compare=False)
    # names of the variables, arrays and functions that these lines and the index use
    origin_names: frozenset[str] = field(default=frozenset(), compare=False)
    follows: bool = field(default=False, compare=False)  # whether another finding caused this one
    explained: bool = field(default=False, compare=False)  # whether the reason already states the cause
    run: int = field(
        default=0, compare=False
    )  # the number of the rerun that found it, from 1; 0 for the launch

    @property
    def key(self) -> tuple[str, str | None, tuple[tuple[str, int, str], ...]]:
        """Kind, array, and the unordered (function, line, action) of the threads. Findings with equal keys
        are merged."""
        places = sorted(
            {(a.site.function, a.site.line, a.what) if a.site else ("", 0, a.what) for a in self.accesses}
        )
        if self.site is not None:
            places.append((self.site.function, self.site.line, self.verdict))
        return self.kind, self.array, tuple(places)

    def with_cases(self, times: int) -> "Finding":
        """Return a copy of this finding that represents `times` cases in total."""
        return replace(self, count=times - 1)


class Element(NamedTuple):
    """An array element. `str(element)` is "x[3, 4]", or "x" without indices, for a record."""

    array: str
    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.indices))}]" if self.indices else self.array


def alias(access: Access, name: str) -> str:
    """Return ", here part" if the accessed array has another name on that source line than in the launch
    (`part` for `arrays[0]`); otherwise ""."""
    here = leading_name(access)
    return f", here {here}" if here and "[" in name and here != name.partition("[")[0] else ""


def leading_name(access: Access) -> str:
    """Return the identifier at the start of an access's source text, or "" if there is none."""
    site = access.site
    here = site and re.match(r"[^\W\d]\w*", site.source[max(site.column - site.indent, 0) :])
    return here[0] if here else ""
