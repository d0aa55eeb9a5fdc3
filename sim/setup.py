"""The build of the distribution outside its sources: `pip install ./sim` leaves no build/, no egg-info."""

import atexit
import shutil
import tempfile

from setuptools import setup

if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="kernelwatch-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    setup(options=options, script_name="setup.py")  # which keeps this file out of the wheel
