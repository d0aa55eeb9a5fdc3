"""Run the examples of sim/PACKAGE.md as printed, in the Python that runs this file.

Usage: python tests/sim/package_examples.py [EXTRA ...]

The Python has the distribution kernelwatch with these extras, and needs nothing else. An example whose block
starts with ```python EXTRA or ```sh EXTRA is run only with that extra. The exit status is 1 if an output
differs from the printed one.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[2] / "sim" / "PACKAGE.md"
BLOCK = re.compile(r"^```(python|sh|cuda)(?: ([\w.]+))?\n(.*?)^```\n(?:```\n(.*?)^```\n)?", re.M | re.S)


def run(language: str, text: str, folder: Path) -> str:
    """Run an example in a folder. Return its output, or the message of the KernelBug that it raises."""
    (folder / "example.py").write_text(text, encoding="utf-8")
    words = ["python", "example.py"] if language == "python" else text.split()
    command = [sys.executable, "-X", "utf8", "-W", "error", *words[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    return done.stdout or done.stderr.partition("kernelwatch.errors.")[2] or done.stderr


def main(extras: list[str]) -> int:
    """Run the examples for these extras and print one line for each. Return the exit status."""
    status = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, found in enumerate(BLOCK.finditer(README.read_text(encoding="utf-8")), 1):
            language, word, text, printed = found.groups()
            if language == "cuda":
                (folder / word).write_text(text, encoding="utf-8")
                continue
            if word not in (None, *extras):
                print(f"example {number}: needs the extra {word}")
                continue
            got = run(language, text, folder)
            status |= got != printed
            print(f"example {number}: {'as printed' if got == printed else f'differs:{chr(10)}{got}'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
