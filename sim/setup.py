"""Build the distribution `kernelwatch` from this folder, which the repository imports as `sim`.

Other distributions install a package `sim` too, and two of them in one environment overwrite each other's
files. The wheel therefore contains the package as `kernelwatch`, and the build replaces the name in its
files. The build writes outside the source tree, so that `pip install ./sim` leaves no build/ or egg-info
there.
"""

import atexit
import re
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# The word `sim` on its own. It is part of another name in `--cuda-sim`, `sim-native` and `tests/sim`.
NAME_IN_REPOSITORY = re.compile(r"(?<![-\w/])sim(?![-\w])")
NO_EDITABLE = """kernelwatch cannot be installed in editable mode, because its build renames the package.
In a clone, install the whole project: pip install -e .   It provides the same package as `sim`."""


class BuildRenamed(build_py):
    """A build step that copies the package's files and replaces its name in them."""

    def copy_file(self, source, target, *arguments, **options):
        copied = super().copy_file(source, target, *arguments, **options)
        file = Path(target)
        if file.suffix in (".py", ".md"):
            file.write_bytes(NAME_IN_REPOSITORY.sub("kernelwatch", file.read_text(encoding="utf-8")).encode())
        return copied


if __name__ == "__main__":
    if "editable_wheel" in sys.argv:
        sys.exit(NO_EDITABLE)
    folder = tempfile.mkdtemp(prefix="kernelwatch-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    # An explicit script_name keeps this file out of the wheel.
    setup(options=options, script_name="setup.py", cmdclass={"build_py": BuildRenamed})
