"""Findings as diagnostics for other programs: annotations of GitHub Actions, SARIF 2.1.0, and JSON.

A diagnostic is a dictionary that JSON can represent, so that it passes between processes:

    {"kind", "severity", "message", "array", "index", "cases", "fix", "kernel", "places": [place, ...]}

A place is {"file", "line", "column", "text", "source"}. "file" is relative to the working directory if it is
below it, "line" and "column" count from 1, "text" names the thread and its action. The first place is the one
to mark. A diagnostic without places belongs to no file, such as a finding in a notebook.
"""

import argparse
import json
import linecache
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from sim.errors import LaunchError
from sim.events import Finding, Site
from sim.report import Report, file_and_line, format_access, short_path

Diagnostic = dict[str, Any]
Format = Literal["github", "sarif", "json"]
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# characters that end a field of an annotation -> their escapes
IN_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
IN_PROPERTY = IN_MESSAGE | {":": "%3A", ",": "%2C"}


def of_report(report: Report) -> list[Diagnostic]:
    """Return the diagnostics of a launch, errors first."""
    return [of_finding(finding, report) for finding in report.findings]


def of_finding(finding: Finding, report: Report) -> Diagnostic:
    """Return the diagnostic of a finding. `report` locates the kernel's functions in files."""
    places = [place_of(access.site, format_access(access)[0], report) for access in finding.accesses]
    places.append(place_of(finding.site, "compiled", report))
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "message": finding.message,
        "array": finding.array,
        "index": list(finding.index) if finding.index is not None else None,
        "cases": finding.count + 1,
        "fix": finding.fix,
        "kernel": report.kernel,
        "places": list(filter(None, places)),
    }


def of_error(error: Exception, kernel: str = "") -> Diagnostic:
    """Return the diagnostic of an exception that a thread raised. It belongs to no file."""
    nothing: Diagnostic = {"array": None, "index": None, "cases": 1, "fix": "", "kernel": kernel}
    return {"kind": "exception", "severity": "error", "message": str(error), "places": [], **nothing}


def place_of(site: Site | None, text: str, report: Report) -> dict[str, Any] | None:
    """Return the place of a site, or None if its file is unknown."""
    located = file_and_line(site, report.code)
    if site is None or located is None:
        return None
    return place(*located, column_of(site, *located), text, site.source)


def column_of(site: Site, file: str, line: int) -> int:
    """Return the column of a site in its file, counted from 1. A site counts in the dedented function."""
    text = linecache.getline(file, line)
    return len(text) - len(text.lstrip()) + max(site.column - site.indent, 0) + 1


def place(file: str, line: int, column: int = 1, text: str = "", source: str = "") -> dict[str, Any]:
    """Return a place, with the file's path relative to the working directory if it is below it."""
    path = Path(short_path(file)).as_posix()
    return {"file": path, "line": line, "column": column, "text": text, "source": source}


def without_repetitions(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return one diagnostic for each kind, array and set of lines: several launches may have the same."""
    first: dict[Any, Diagnostic] = {}
    for each in diagnostics:
        lines = sorted((where["file"], where["line"]) for where in each["places"])
        first.setdefault((each["kind"], each["array"], str(lines or each["message"])), each)
    return list(first.values())


def formatted(diagnostics: Iterable[Diagnostic], style: str) -> str:
    """Return diagnostics as text in one of the formats."""
    return FORMATS[style](list(diagnostics))


def write(diagnostics: Iterable[Diagnostic], style: str, output: Path) -> None:
    """Write diagnostics to a file. Raise LaunchError if that is impossible."""
    try:
        output.write_text(formatted(diagnostics, style) + "\n", encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"the findings cannot be written to {output}: {error.strerror}") from error


def as_github(diagnostics: list[Diagnostic]) -> str:
    """Return one annotation per diagnostic, as GitHub Actions reads them from the output of a step."""
    return "\n".join(map(annotation, diagnostics))


def annotation(diagnostic: Diagnostic) -> str:
    """Return the annotation of one diagnostic."""
    properties = {"title": diagnostic["kind"]}
    for first in diagnostic["places"][:1]:
        properties |= {"file": first["file"], "line": str(first["line"]), "col": str(first["column"])}
    fields = ",".join(f"{name}={escaped(value, IN_PROPERTY)}" for name, value in properties.items())
    return f"::{diagnostic['severity']} {fields}::{escaped(diagnostic['message'], IN_MESSAGE)}"


def escaped(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)


def as_json(diagnostics: list[Diagnostic]) -> str:
    """Return {"version": 1, "findings": [diagnostic, ...]}."""
    return json.dumps({"version": 1, "findings": diagnostics}, indent=1, ensure_ascii=False)


def as_sarif(diagnostics: list[Diagnostic]) -> str:
    """Return a SARIF log with one run. Code scanning and editors read this format."""
    kinds = sorted({diagnostic["kind"] for diagnostic in diagnostics})
    driver = {"name": "kernelwatch", "rules": [{"id": kind} for kind in kinds]}
    results = [sarif_result(diagnostic) for diagnostic in diagnostics]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False)


def sarif_result(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return one result. Its location is the first place, and the others are related locations."""
    locations = [sarif_location(each) for each in diagnostic["places"]]
    numbered = [{"id": number, **location} for number, location in enumerate(locations[1:], 1)]
    result = {
        "ruleId": diagnostic["kind"],
        "level": diagnostic["severity"],
        "message": {"text": diagnostic["message"]},
        "locations": locations[:1],
    }
    return result | ({"relatedLocations": numbered} if numbered else {})


def sarif_location(where: dict[str, Any]) -> dict[str, Any]:
    file = where["file"]
    uri = Path(file).as_uri() if Path(file).is_absolute() else quote(file)
    region = {"startLine": where["line"], "startColumn": where["column"]}
    physical = {"artifactLocation": {"uri": uri}, "region": region}
    return {"physicalLocation": physical, "message": {"text": where["text"]}}


FORMATS = {"github": as_github, "sarif": as_sarif, "json": as_json}


# --- the command line ---------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --format and --output."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="findings for GitHub Actions, for code scanning or as JSON, instead of text",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file for the findings in --format")


def check_options(options: argparse.Namespace) -> None:
    """Raise LaunchError for an --output without a --format, or in a folder that does not exist."""
    output = options.output
    if output is not None and options.format is None:
        raise LaunchError(f"--output {output} needs a --format: {', '.join(FORMATS)}")
    if output is not None and not output.absolute().parent.is_dir():
        raise LaunchError(f"--output {output}: there is no folder {output.parent}")
