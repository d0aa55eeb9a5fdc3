"""Accesses at undefined indices: consequences of earlier findings that left a thread with an undefined value.

Memory that nobody has written, a shuffle from a lane that takes no part, and an access outside its array all
give a conspicuous value, the poison. An access at such an index is the consequence of an earlier finding: its
own finding names that cause and comes after it. The cause is a finding of the thread that makes the access,
or else of a thread of its block.
"""

from dataclasses import replace

FAR = 1 << 24  # elements; a mistake in index arithmetic alone does not reach this far
NEAR = 1 << 20  # elements; the largest offset that a kernel is expected to add to a poisoned index
# 4-byte and 8-byte integers, signed and unsigned, all of whose bytes are sim.memory.spaces.poisoned's
FULL = [
    int.from_bytes(b"\xa5" * size, "little", signed=signed) for size in (4, 8) for signed in (True, False)
]


def traced(findings):
    """Return the findings. Those that follow from an undefined value name their cause, and the cause
    becomes an error."""
    consequences = {f.key for f in findings if f.kind == "out-of-bounds" and is_far(f)}
    if not consequences:
        return findings
    undefined = [finding for finding in findings if finding.undefined and finding.key not in consequences]
    causes = {}  # key of a consequence -> its cause
    for parts in (threads, blocks):
        first = {}  # thread or block -> the key of its first cause
        for finding in sorted(undefined, key=rank):
            for part in parts(finding):
                first.setdefault(part, finding.key)
        for finding in findings:
            if finding.key in consequences and finding.key not in causes:
                found = [first[part] for part in parts(finding) if part in first]
                causes |= {finding.key: found[0]} if found else {}
    shown = {finding.key: finding for finding in sorted(undefined, key=rank, reverse=True)}
    return [
        said(f, shown.get(causes.get(f.key)), f.key in consequences, f.key in causes.values())
        for f in findings
    ]


def rank(finding):
    """Return the sort key by which a cause is chosen: uninitialized reads and shuffles before other
    findings, then by position."""
    outside = finding.kind == "out-of-bounds"
    return outside, finding.key[2], [(block[::-1], thread[::-1]) for block, thread in threads(finding)]


def is_far(finding):
    return finding.index is None or any(abs(i) >= FAR for i in finding.index)


def threads(finding):
    return [(access.block, access.thread) for access in finding.accesses]


def blocks(finding):
    return [access.block for access in finding.accesses]


def said(finding, cause, is_consequence, is_root):
    """Return a finding with its cause in its reason, or as an error if it is a cause."""
    if is_root:
        return replace(finding, severity="error")
    if not is_consequence or cause is None and not is_poison(finding):
        return finding
    if cause is None:
        return replace(
            finding,
            reason=f"{subject(finding)} is made of poison: what fresh memory holds, or what a lane gives"
            " that takes no part.",
            fix="look for where the index comes from, and define that value before it is used",
            follows=True,
        )
    site = cause.accesses[0].site
    where = f" on line {site.line} of {site.function}" if site else ""
    return replace(
        finding,
        reason=f"{subject(finding)} comes from an undefined value{where}: {cause.verdict}.",
        fix=f"define that value; this access needs no other guard: {cause.fix}",
        follows=True,
    )


def subject(finding):
    far = [i for i in finding.index or () if abs(i) >= FAR]
    return f"Index {far[0]}" if far else "The address"


def is_poison(finding):
    return any(abs(i - poison) <= NEAR for i in finding.index or () for poison in FULL)
