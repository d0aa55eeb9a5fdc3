"""The folder of recorded measurements and recorded PTX, kernels/data."""

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
