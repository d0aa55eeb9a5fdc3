"""Compile the .cu files in cuda/ and programs/ with NVRTC, and store the PTX next to them.

    python tests/sim/ptx/record.py

No GPU is needed.
"""

from pathlib import Path

from sim.ptx import nvrtc

FOLDERS = [Path(__file__).with_name(name) for name in ("cuda", "programs")]


def compiled(path):
    """Return the PTX for a .cu file. "include" refers to the toolkit's header folder.

    Raises LaunchError.
    """
    text = nvrtc.compile_ptx(path.read_text(), path.name)
    for folder in nvrtc.header_folders():
        text = text.replace(folder, "include")
    return text


def main():
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.cu")):
        path.with_suffix(".ptx").write_text(compiled(path))
        print(path.name)


if __name__ == "__main__":
    main()
