"""Accesses caused by an earlier finding that left a thread with an undefined value.

Five operations return a conspicuous value, the poison: a read of unwritten memory, an early read of an
asynchronous copy, a shuffle from a lane that does not participate, an access out of bounds, and a misaligned
access. An access at a poisoned index, or
a call through a poisoned pointer, is a consequence of such an operation. The finding about the consequence
refers to the cause, and follows it in the report. The cause is a finding for the same thread, or else for a
thread of the same block. A read at an address far from all memory can be a consequence and also the cause of
further ones.

Poison of 32 and 64 bits is far outside any array. Poison of 8 and 16 bits can also result from wrong index
arithmetic, so it counts only if the thread itself has an earlier finding. If arithmetic has changed the
poison so that it is not recognised, the source can still show that the index depends on the undefined value.
A race is a consequence only if the source shows this for one of its two accesses. If the source shows that a
shuffle has passed the value, the cause can also be a finding for another thread of the warp, but only if the
index is still close to poison.
"""

import re
from dataclasses import replace

from sim.events import INTEGER_POISON, UNTYPED_POISON, leading_name
from sim.observers.statements import index_of
from sim.observers.words import NUMBA

FAR = 1 << 24  # distance in elements; wrong index arithmetic alone does not reach this far
# Size of an integer in bytes -> the largest offset, in elements, that a kernel is expected to add to a
# poisoned index.
OFFSETS = {1: 16, 2: 1 << 10, 4: 1 << 20, 8: 1 << 20}
SHUFFLE = re.compile(r"_*shfl")  # the beginning of the name of a shuffle
NARROW, WIDE = (1, 2), (4, 8)
REFUSED = {
    "out-of-bounds",
    "misaligned-address",
    "use-after-free",
}  # kinds of findings about refused accesses


def near_poison(index, sizes, byte=INTEGER_POISON):
    """Return whether an index is close to poison.

    Poison is a signed or unsigned integer whose bytes all equal `byte`. Signed untyped poison is -1, so an
    index has to equal it exactly.

    sizes: the possible sizes of the integer in bytes.
    """
    return any(
        abs(index - int.from_bytes(bytes([byte]) * size, "little", signed=signed))
        <= OFFSETS[size] * (byte == INTEGER_POISON)
        for size in sizes
        for signed in (True, False)
    )


def poison_at(context, address):
    """Return the byte that fills unwritten memory at an address, in integers."""
    typed = context.language == NUMBA and context.space.find(address).name != "dynamic"
    return INTEGER_POISON if typed else UNTYPED_POISON


def link_causes(findings, block_shape):
    """Return the findings. Add its cause to each finding that is a consequence of another finding, and make
    each cause an error."""
    consequences = consequences_of(findings, block_shape)
    if not consequences:
        return findings
    undefined = [finding for finding in findings if finding.undefined and finding.key not in consequences]
    causes = {}  # key of a consequence -> key of its cause
    roots = Roots(sorted(undefined, key=rank), block_shape)
    for finding in findings:
        if finding.key in consequences and (root := source_of(finding, roots)):
            causes.setdefault(finding.key, root.key)
    for parts in (threads, blocks):
        if parts is blocks:
            undefined += link_reads_in_no_array(findings, consequences, causes)
        first = {}  # thread or block -> key of its first cause
        for finding in sorted(undefined, key=rank):
            for part in parts(finding):
                first.setdefault(part, finding.key)
        for finding in findings:
            if finding.key in consequences and finding.key not in causes:
                found = [first[part] for part in parts(finding) if part in first]
                causes |= {finding.key: found[0]} if found else {}
    shown = {finding.key: finding for finding in sorted(undefined, key=rank, reverse=True)}
    return [
        with_cause(f, shown.get(causes.get(f.key)), f.key in consequences, f.key in causes.values())
        for f in findings
    ]


def link_reads_in_no_array(findings, consequences, causes):
    """Add causes to `causes` for consequences of reads at addresses in no array. Return the findings about
    these reads.

    Such a read can itself be a consequence. The cause of a consequence is the last read in no array that the
    same thread made before it.
    """
    found, last, seen = [], {}, set()  # last: thread -> key of its last read in no array that has no cause
    for finding in findings:
        key = finding.key
        if key in consequences and key not in causes:
            reads = [last[thread] for thread in threads(finding) if thread in last]
            if reads and key not in seen and reads[0] != key and takes_poison(finding):
                causes[key] = reads[0]
                found.append(key)
            elif is_read_in_no_array(finding):
                last |= dict.fromkeys(threads(finding), key)
        seen.add(key)
    causing = {causes[key] for key in found}
    return [finding for finding in findings if finding.key in causing]


def is_read_in_no_array(finding):
    return finding.undefined and finding.index is None


def takes_poison(finding):
    """Return whether the address or an index of a finding equals untyped poison."""
    return finding.from_poison or any(near_poison(i, OFFSETS, UNTYPED_POISON) for i in finding.index or ())


def consequences_of(findings, block_shape):
    """Return the keys of the findings about accesses at poisoned indices and calls through poisoned pointers.

    An address whose cause is known, such as a null pointer, is not poisoned.
    """
    findings = [f for f in findings if not f.explained]
    consequences = {f.key for f in findings if f.from_poison or f.kind == "out-of-bounds" and is_far(f)}
    others = [f for f in findings if f.kind in ("out-of-bounds", "negative-index")]
    for byte in (INTEGER_POISON, UNTYPED_POISON):
        unlike = {f.key for f in others if not any(near_poison(i, NARROW, byte) for i in f.index or ())}
        alike = [f for f in others if f.key not in unlike | consequences]
        roots = [f for f in findings if f.undefined and f.poison == byte]
        known = {f.key for f in findings if f.key in consequences and not is_read_in_no_array(f)}
        known |= {f.key for f in alike}
        there = {thread for f in roots if f.key not in known for thread in threads(f)}
        consequences |= {f.key for f in alike if not there.isdisjoint(threads(f))}
    roots = Roots((f for f in findings if f.undefined and f.key not in consequences), block_shape)
    consequences |= {f.key for f in others if source_of(f, roots)}
    races = [f for f in findings if is_race(f)]
    return consequences | {f.key for f in races} - {f.key for f in races if not source_of(f, roots)}


class Roots:
    """The findings about undefined values, by the threads that continue with these values."""

    def __init__(self, findings, block_shape):
        self.block_shape = block_shape
        self.found = {}  # thread, warp or block -> {(key, site): its first finding}
        for finding in findings:
            key = finding.key, finding.accesses[0].site
            for block, thread in threads(finding):
                places = [(block, thread), (block, self.warp(thread))]
                # One finding about an early read represents those of other threads, too.
                for place in places + [block] * is_early_read(finding):
                    self.found.setdefault(place, {}).setdefault(key, finding)

    def warp(self, thread):
        """Return the number of the warp of a thread in its block."""
        (width, height, _), (x, y, z) = self.block_shape, thread
        return (x + width * (y + height * z)) // 32

    def at(self, place):
        return self.found.get(place, {}).values()

    def reaching(self, access, finding):
        """Yield the findings about values that can reach an access without stores to memory.

        finding: the finding about the access.
        """
        yield from self.at((access.block, access.thread))
        yield from self.at(access.block)
        if any(map(SHUFFLE.match, finding.origin_names)):
            for root in self.at((access.block, self.warp(access.thread))):
                if any(near_poison(i, OFFSETS, root.poison) for i in finding.index or ()):
                    yield root


def source_of(finding, roots):
    """Return the first finding about an undefined value from which the source computes the index of an
    access, or None.

    finding: the finding about the access, or about two accesses that race.
    roots: Roots.
    """
    for access, origins in zip(finding.accesses, finding.origins or (frozenset(),)):
        for root in roots.reaching(access, finding):
            # A value without an effect cannot change an index, so it is not the cause of a race.
            decides = root.severity == "error" or not is_race(finding)
            if decides and root.key != finding.key and flows_into(root, access, origins, finding.array):
                return root
    return None


def is_early_read(finding):
    """Return whether a finding is about a read of an asynchronous copy that may be under way."""
    return finding.undefined and finding.kind == "async-copy"


def is_race(finding):
    return finding.kind.startswith("race-")


def flows_into(root, access, origins, array):
    """Return whether the source computes the index of an access from the undefined value of a finding.

    origins: the lines that compute the index, from `Finding.origins`.
    array: the name of the accessed array in the launch.
    """
    read, use = root.accesses[0].site, access.site
    if read is None or use is None:
        return False
    if (read.function, read.line) != (use.function, use.line):
        return (read.function, read.line) in origins
    index = index_of(use, leading_name(access) or array) or index_of(use, array or "")
    if index is None:
        return False
    # Compilers of CUDA C++ give all accesses of a statement the column at which it starts.
    if read.file and root.array:
        named = rf"\b{re.escape(root.array)}\s*\["
        found = len(re.findall(named, index[0]))
        return found > 0 and found == len(re.findall(named, use.source))
    return 0 <= read.column - read.indent - index[1] < len(index[0])


def rank(finding):
    """Return the sort key by which a cause is chosen. Uninitialized reads and shuffles come before other
    findings. Findings of the same kind are sorted by position."""
    return (
        finding.kind in REFUSED,
        finding.key[2],
        [(block[::-1], thread[::-1]) for block, thread in threads(finding)],
    )


def is_far(finding):
    return finding.index is None or any(abs(i) >= FAR for i in finding.index)


def threads(finding):
    # The second thread of an early read has sent the copy.
    accesses = finding.accesses[:1] if is_early_read(finding) else finding.accesses
    return [(access.block, access.thread) for access in accesses]


def blocks(finding):
    return [block for block, _ in threads(finding)]


def with_cause(finding, cause, is_consequence, is_root):
    """Return the finding with its cause added to the reason. A finding that is itself a cause is promoted to
    an error."""
    if is_root:
        return replace(finding, severity="error")
    if not is_consequence or cause is None and not is_poison(finding):
        return finding
    if cause is None:
        return replace(
            finding,
            reason=f"{subject(finding)} comes from an undefined value, such as memory that nothing has"
            " written, or the result of a shuffle from a lane that takes no part.",
            fix="find the line that computes the index, and initialise the values that it uses",
            follows=True,
        )
    site = cause.accesses[0].site
    first = f"line {site.line} of {site.function} first" if site else "its cause first"
    where = f" on line {site.line} of {site.function}" if site else ""
    if is_race(finding):
        return replace(
            finding,
            reason=f"{subject(finding)} comes from an undefined value{where}: {cause.verdict}.",
            fix=f"correct {first}: {cause.fix}. If the race remains then, {finding.fix}",
            follows=True,
        )
    use = "call" if finding.kind == "invalid-call" else "access"
    return replace(
        finding,
        reason=f"{subject(finding)} comes from an undefined value{where}: {cause.verdict}.",
        fix=f"correct {first}: {cause.fix}; this {use} then needs no change of its own",
        follows=True,
    )


def subject(finding):
    if finding.kind == "invalid-call":
        return "The pointer"
    index = finding.index or ()
    poisoned = [i for i in index if abs(i) >= FAR] or [
        i for byte in (INTEGER_POISON, UNTYPED_POISON) for i in index if near_poison(i, NARROW, byte)
    ]
    if len(index) > 1 and not poisoned and is_race(finding):
        return "The index"
    return f"Index {(poisoned or index)[0]}" if poisoned or len(index) == 1 else "The address"


def is_poison(finding):
    return any(near_poison(i, WIDE) for i in finding.index or ())
