"""python tests/sim/ptx/record.py: compile the .cu files of cuda/ by NVRTC, with no GPU, and keep the PTX
beside them."""

from pathlib import Path

from sim.ptx import nvrtc

HERE = Path(__file__).parent / "cuda"


def compiled(path):
    """Return the PTX of a .cu file, with "include" for the folder of the toolkit's headers.

    Errors: LaunchError."""
    text = nvrtc.compiled(path.read_text(), path.name)
    for folder in nvrtc.header_folders():
        text = text.replace(folder, "include")
    return text


def main():
    for path in sorted(HERE.glob("*.cu")):
        path.with_suffix(".ptx").write_text(compiled(path))
        print(path.name)


if __name__ == "__main__":
    main()
