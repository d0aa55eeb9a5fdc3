"""Indices outside an array that depend on racing memory.

If an index depends on an array on which threads race, the race may be the reason why the index is wrong. The
finding about the access then refers to the race, and follows it in the report. The index can also be wrong
without the race, so the finding keeps its own advice for this case.
"""

from dataclasses import replace


def link_races(findings):
    """Return the findings. A finding about an index that depends on racing memory contains the finding about
    the race."""
    races = {f.key: f for f in findings if is_race(f)}
    if not races:
        return findings
    races = [races[key] for key in sorted(races, key=lambda key: key[2])]
    return [with_race(finding, races) for finding in findings]


def is_race(finding):
    """Return whether a finding is an error about a race on a named array."""
    return finding.kind.startswith("race-") and finding.severity == "error" and finding.array is not None


def with_race(finding, races):
    """Return the finding with a reference to the first race on which its index depends."""
    if not finding.origin_names or finding.follows or finding.explained:
        return finding
    race = next((race for race in races if depends(finding, race)), None)
    if race is None:
        return finding
    place = place_of(race)
    return replace(
        finding,
        reason=f"{finding.reason} The index depends on {race.array}, and the race on {place} can change its"
        " value.",
        fix=f"correct the race on {place} first: {race.fix}. If the index is still wrong then, {finding.fix}",
        follows=True,
    )


def depends(finding, race):
    """Return whether the source computes the index of an access from an array on which threads race."""
    origins = frozenset().union(*finding.origins)
    functions = {finding.accesses[0].site.function, *(function for function, _ in origins)}
    here = [access for access in race.accesses if access.site and access.site.function in functions]
    reads = any(
        access.what == "read" and (access.site.function, access.site.line) in origins for access in here
    )
    return reads or bool(here) and race.array in finding.origin_names


def place_of(race):
    """Return the lines of a race, such as "lines 3 and 5 of kernel"."""
    sites = [access.site for access in race.accesses if access.site]
    if len({site.function for site in sites}) > 1:
        return " and ".join(f"line {site.line} of {site.function}" for site in sites)
    lines = sorted({site.line for site in sites})
    return f"line{'s' * (len(lines) > 1)} {' and '.join(map(str, lines))} of {sites[0].function}"
