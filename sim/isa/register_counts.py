"""setmaxnreg, which changes the number of registers per thread of a warp group, and the number of registers
with which a kernel is launched.

Source: PTX ISA 9.7.19, "Miscellaneous Instructions: setmaxnreg"; the count at launch was read from the output
of ptxas 13.0 (`-v`) for 22 combinations of directives.
"""

import functools
from dataclasses import dataclass

from sim.isa.table import INSTRUCTIONS, SUSPENDING, WARPGROUP, Entry

UNIT = 8  # registers per thread are allocated in multiples of this number
MOST = 256  # registers per thread
# A multiprocessor distributes its warps evenly to its partitions. Each partition has its own registers.
PARTITIONS, PARTITION_REGISTERS = 4, 2**14
WARP_SIZE = 32


@dataclass(frozen=True, eq=False)
class RegisterChange(Entry):
    """A setmaxnreg instruction.

    action: "inc" or "dec".
    count: registers per thread afterwards.
    """

    action: str
    count: int
    scope = WARPGROUP

    @property
    def parameters(self):
        """The names of the parameters of a call."""
        return []


@functools.cache
def register_change(action, count):
    """Return the table's entry for a setmaxnreg. Raise ValueError if the PTX ISA has no such instruction."""
    if action not in ("inc", "dec") or count % UNIT or not 24 <= count <= MOST:
        raise ValueError(f"setmaxnreg takes a multiple of {UNIT} from 24 to {MOST}, got {count}")
    name = f"setmaxnreg_{action}_{count}"
    SUSPENDING.add(name)
    return RegisterChange(name, lambda: None, "PTX ISA setmaxnreg", action, count).add()


def registers_at_launch(most, threads, blocks):
    """Return the number of registers per thread with which a kernel that contains setmaxnreg is launched.
    Return None if ptxas cannot determine the number, in which case it ignores setmaxnreg (message C7508).

    most: the limit per thread (.maxnreg, -maxrregcount), or None.
    threads, blocks: threads per block (.maxntid, .reqntid), and resident blocks per multiprocessor
        (.minnctapersm); None without the directive.
    """
    limits = [MOST, -(-most // UNIT) * UNIT] if most else []
    if threads and blocks:
        warps = -(-(-(-threads // WARP_SIZE) * blocks) // PARTITIONS)  # warps per partition
        limits += [MOST, PARTITION_REGISTERS // (warps * WARP_SIZE) // UNIT * UNIT]
    return min(limits, default=None)


def registers_of_dispatcher(kernel):
    """Return the registers per thread at launch of a `@cuda.jit` kernel, or None if its options do not
    determine the number."""
    options = getattr(kernel, "targetoptions", None) or {}
    bounds = options.get("launch_bounds") or ()
    threads, blocks, *_ = (*(bounds if isinstance(bounds, tuple) else (bounds,)), None, None)
    return registers_at_launch(options.get("max_registers"), threads, blocks)


def entry_registers(limit, names):
    """Return the registers per thread at launch: the limit, or the largest count of a setmaxnreg.inc if that
    is smaller. Return None if the kernel has no setmaxnreg.

    limit: the result of `registers_at_launch`.
    names: the names of the kernel's instructions.
    """
    entries = (INSTRUCTIONS.get(name) for name in names)
    changes = [entry for entry in entries if isinstance(entry, RegisterChange)]
    if not limit or not changes:
        return None
    return min(limit, max((entry.count for entry in changes if entry.action == "inc"), default=limit))
