"""Build the distribution outside the source tree, so that `pip install ./sim` leaves no build/ or egg-info
there."""

import atexit
import shutil
import tempfile

from setuptools import setup

if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="kernelwatch-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    # An explicit script_name keeps this file out of the wheel.
    setup(options=options, script_name="setup.py")
