"""Warnings of NVCC and NVRTC about undefined behaviour, as findings of the launches of the kernels concerned.

The optimiser may remove an undefined value together with its use. The PTX then does not contain the fault, so
the warning is the only trace of it.
"""

import linecache
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sim.events import Finding, Site
from sim.frontend.outline import of_cpp, plain

# `file(line): warning #549-D: text`
WARNING = re.compile(r"^(.+)\((\d+)\): warning #(\d+)(?:-D)?: (.+)$", re.M)
HIDDEN = "so a launch may not show the fault"
VALUE = "uninitialized-read", f"The value is undefined. The optimiser may have removed its use, {HIDDEN}."
BEHAVIOUR = "misuse", f"The behaviour of this code is undefined. The optimiser may have removed it, {HIDDEN}."
ALWAYS = "misuse", "The condition always has the same value."
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", re.M)
ATTRIBUTE = re.compile(
    r"\b(?:__launch_bounds__|__cluster_dims__|__block_size__|__align__|alignas)\s*\([^()]*\)"
)
# number of a warning -> (kind of finding, reason), fix. The numbers of all other warnings,
# such as 177 for an unused variable, are ignored.
NUMBERS = {
    39: (BEHAVIOUR, "test the divisor before the division"),
    62: (BEHAVIOUR, "shift by at least 0 bits, and by fewer bits than the value has"),
    63: (BEHAVIOUR, "shift by at least 0 bits, and by fewer bits than the value has"),
    187: (ALWAYS, "compare with =="),
    549: (VALUE, "initialise the variable where it is declared"),
    836: (BEHAVIOUR, "return the value instead of a reference"),
    940: (VALUE, "return a value on every path through the function"),
    1056: (BEHAVIOUR, "return the value, or let the caller pass a pointer to its own variable"),
}


@dataclass(frozen=True)
class CompilerWarning:
    """A warning of the compiler about undefined behaviour.

    file: the absolute path of the source file.
    line: the line in this file.
    number: one of NUMBERS.
    text: the compiler's message.
    """

    file: str
    line: int
    number: int
    text: str

    def finding(self, source: str) -> Finding:
        """Return the finding for this warning. `source` is the text of its line."""
        (kind, reason), fix = NUMBERS[self.number]
        column = len(source) - len(source.lstrip())
        site = Site(
            "branch", os.path.basename(self.file), self.line, column, source.strip(), column, self.file
        )
        return Finding(
            kind,
            "warning",
            f"the compiler warns: {self.text} (#{self.number}-D)",
            site=site,
            reason=reason,
            fix=fix,
        )


def read_log(log: str, folder: str | Path = "") -> tuple[CompilerWarning, ...]:
    """Return the warnings about undefined behaviour in a compiler's log. nvcc prints a warning twice: once
    for the host, and once for the device.

    folder: the folder to which the paths in the log are relative. The default is the current folder.
    """
    found = (
        CompilerWarning(os.path.abspath(os.path.join(folder, file)), int(line), int(number), text.strip())
        for file, line, number, text in WARNING.findall(log)
        if int(number) in NUMBERS
    )
    return tuple(dict.fromkeys(found))


class Functions:
    """The functions in the source files of a module, which determine the kernels that a warning concerns.

    texts: {absolute path: text} of the source files.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self.ranges: dict[str, list[tuple[int, int, str]]] = {}  # path -> (first line, last line, name)
        # name of a function or macro -> the identifiers in its definitions
        self.mentions: dict[str, set[str]] = {}
        for path, text in texts.items():
            self.ranges[path] = [*functions_of(text)]
            lines = plain(text).splitlines()
            for first, last, name in self.ranges[path]:
                self.add(name, "\n".join(lines[first - 1 : last]))
            for name, body in MACRO.findall(text):
                self.add(name, body)

    def add(self, name: str, body: str) -> None:
        self.mentions.setdefault(name, set()).update(re.findall(r"[A-Za-z_]\w*", body))

    def reachable(self, kernel: str) -> set[str]:
        """Return the names of the functions that a kernel may call, including its own name."""
        found, pending = set(), [kernel]
        while pending:
            name = pending.pop()
            if name in self.mentions and name not in found:
                found.add(name)
                pending.extend(self.mentions[name])
        return found

    def concern(self, warning: CompilerWarning, kernel: str) -> bool:
        """Return whether a warning concerns a kernel. A warning outside the known functions concerns every
        kernel, because a macro, an operator or a header may contain its line."""
        ranges = self.ranges.get(warning.file, ())
        names = [name for first, last, name in ranges if first <= warning.line <= last]
        return not names or kernel not in self.mentions or not self.reachable(kernel).isdisjoint(names)


def functions_of(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (first line, last line, name) for the functions in C++ source, except for operators."""
    lines = plain(text).splitlines()
    for node in of_cpp(text).root.parts:
        header = "\n".join(lines[node.first - 1 : node.last]).partition("{")[0]
        names = re.findall(r"([A-Za-z_]\w*)\s*\(", ATTRIBUTE.sub("", header))
        if names and "operator" not in header:
            yield node.first, node.last, names[0]


def findings_of(warnings: Iterable[CompilerWarning], kernel: str, texts: dict[str, str]) -> list[Finding]:
    """Return the findings for the warnings that concern a kernel.

    kernel: its name in the source, without template arguments.
    texts: {absolute path: text} of the source files.
    """
    functions, found = Functions(texts), []
    for warning in warnings:
        if functions.concern(warning, kernel):
            lines = texts.get(warning.file, "").splitlines() or linecache.getlines(warning.file)
            source = lines[warning.line - 1] if warning.line <= len(lines) else ""
            found.append(warning.finding(source))
    return found


def included(source: str, folders: Iterable[str | Path]) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, text) of every header included by a source through #include "name", directly or
    indirectly.

    folders: the folders of headers.
    """
    folders, seen, texts = [*map(Path, folders)], set(), [source]
    while texts:
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', texts.pop(), re.M):
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is not None and path not in seen:
                seen.add(path)
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
                yield os.path.abspath(path), texts[-1]
