"""python tests/sim/ptx/record.py: compile the .cu files of cuda/ by NVRTC, with no GPU, and keep the PTX
beside them."""

from pathlib import Path

HERE = Path(__file__).parent / "cuda"
OPTIONS = (b"--gpu-architecture=compute_80", b"-lineinfo", b"--std=c++17")


def compiled(path):
    """The PTX of a .cu file. Errors: ImportError without NVRTC; RuntimeError with the compiler's message."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(path.read_bytes(), path.name.encode(), 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), list(OPTIONS))
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{path.name}: {log.decode()}")
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program, ptx)
    return without_paths(ptx.rstrip(b"\0").decode(), path)


def without_paths(ptx, path):
    """The text with the bare name of the file in place of where it was compiled."""
    lines = [
        f'\t.file\t{line.split()[1]} "{path.name}"'
        if line.strip().startswith(".file") and path.name in line
        else line
        for line in ptx.splitlines()
    ]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def main():
    for path in sorted(HERE.glob("*.cu")):
        path.with_suffix(".ptx").write_text(compiled(path))
        print(path.name)


if __name__ == "__main__":
    main()
