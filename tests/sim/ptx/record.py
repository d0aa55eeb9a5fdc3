"""python tests/sim/ptx/record.py: compile the .cu files of cuda/ and programs/ by NVRTC, with no GPU, and
keep the PTX next to them."""

from pathlib import Path

from sim.ptx import nvrtc

FOLDERS = [Path(__file__).with_name(name) for name in ("cuda", "programs")]


def compiled(path):
    """Return the PTX of a .cu file, with "include" for the folder of the toolkit's headers.

    Errors: LaunchError."""
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
