"""Refuse a release whose tag, package version, files and changelog disagree.

Usage: python .github/check_release.py v0.2.0 dist
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, files: list[str], root: Path = ROOT) -> list[str]:
    """Return a sentence for each disagreement."""
    source = (root / "sim" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]
    found = []
    if tag != f"v{version}":
        found.append(
            f"the tag is {tag}, and sim/__init__.py has version {version}; wanted the tag v{version}"
        )
    wanted = {f"kernelwatch-{version}.tar.gz", f"kernelwatch-{version}-py3-none-any.whl"}
    if {*files} != wanted:
        found.append(f"the files are {', '.join(sorted(files))}; wanted {', '.join(sorted(wanted))}")
    heading = rf"^# Version {re.escape(version)} · \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading `# Version {version} · DATE`")
    return found


if __name__ == "__main__":
    tag, folder = sys.argv[1:]
    found = problems(tag, [file.name for file in Path(folder).iterdir()])
    print(*found, sep="\n", file=sys.stderr)
    sys.exit(bool(found))
