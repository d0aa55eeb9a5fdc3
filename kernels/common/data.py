"""The folder of recorded measurements and recorded PTX, kernels/data.

The PTX of a language is one archive, such as kernels/data/triton.zip; a record in it is NAME.ptx.
"""

import functools
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

DATA = Path(__file__).parents[1] / "data"


@functools.cache
def recorded_ptx(language):
    """Return {name: PTX} of all recordings of a language, "triton" or "cuda_cpp"."""
    with ZipFile(DATA / f"{language}.zip") as archive:
        return {Path(name).stem: archive.read(name).decode() for name in archive.namelist()}


def record_ptx(language, texts):
    """Write the archive of a language from {name: PTX}. The same texts give the same bytes."""
    with ZipFile(DATA / f"{language}.zip", "w") as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(ZipInfo(f"{name}.ptx"), text, ZIP_DEFLATED, compresslevel=9)
    recorded_ptx.cache_clear()


def not_recorded(language, name, remedy):
    """Return the LookupError for PTX that is not recorded. It lists the recordings and says what to do."""
    there = ", ".join(sorted(recorded_ptx(language)))
    return LookupError(f"{name} is not among the PTX recorded in {DATA / language}.zip: {there}; {remedy}")
