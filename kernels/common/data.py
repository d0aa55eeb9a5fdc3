"""Access to kernels/data, the folder with recorded measurements and PTX.

The PTX recorded for a language is one archive, such as kernels/data/triton.zip, with an entry NAME.ptx per
kernel.
"""

import functools
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

DATA = Path(__file__).parents[1] / "data"


@functools.cache
def recorded_ptx(language):
    """Return {name: PTX} for every kernel recorded in a language, "triton" or "cuda_cpp"."""
    with ZipFile(DATA / f"{language}.zip") as archive:
        return {Path(name).stem: archive.read(name).decode() for name in archive.namelist()}


def record_ptx(language, texts):
    """Write the archive of a language from {name: PTX}. The output is deterministic: identical texts produce
    identical bytes."""
    with ZipFile(DATA / f"{language}.zip", "w") as archive:
        for name, text in sorted(texts.items()):
            # ZipInfo without a date, so that the archive does not depend on the time
            archive.writestr(ZipInfo(f"{name}.ptx"), text, ZIP_DEFLATED, compresslevel=9)
    recorded_ptx.cache_clear()


def not_recorded(language, name, remedy):
    """Return a LookupError for PTX that has not been recorded. The message lists the recordings and the
    `remedy`."""
    there = ", ".join(sorted(recorded_ptx(language)))
    return LookupError(f"{name} is not among the PTX recorded in {DATA / language}.zip: {there}; {remedy}")
