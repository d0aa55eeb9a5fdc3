"""Starts local process groups for torch.distributed on the CPU. Every process runs the same function."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import cloudpickle

# On Linux, one process imports PyTorch and the function's modules, and then forks all ranks.
# On other systems a fork after these imports is not safe, so each rank starts as its own process.
FORKS = sys.platform == "linux"


class RankFailed(RuntimeError):
    """Error that at least one rank failed. A notebook shows only the message."""

    def _render_traceback_(self):
        return str(self).splitlines()


def run_ranks(function, ranks, *arguments, timeout=60):
    """Run function(*arguments) in each of `ranks` processes, and return their results in rank order.

    The processes form torch.distributed's default group, with gloo. `torch.distributed.get_rank()` returns
    the rank. The function can be defined in a notebook.

    timeout: seconds that a rank waits for another.

    Raises RankFailed with the last line of each failed rank's error. All processes have ended on return.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        folder = Path(folder)
        (folder / "call").write_bytes(cloudpickle.dumps((function, arguments)))
        shares = [range(ranks)] if FORKS else [[rank] for rank in range(ranks)]
        processes = [(started(folder, ranks, timeout, share), share) for share in shares]
        try:
            wait_for([process for process, _ in processes], folder, ranks)
        finally:
            for process, _ in processes:
                end(process)
        codes = [exit_code(folder, rank, process) for process, share in processes for rank in share]
        return outcomes(folder, codes)


def wait_for(processes, folder, ranks):
    """Wait until the processes have ended. Meanwhile, a progress bar shows the time and the number of ranks
    that have a result."""
    from course.progress_bar import progress_bar  # not needed in the processes

    with progress_bar(total=ranks, desc="ranks that have finished", leave=False) as bar:
        while any(process.poll() is None for process in processes):
            bar.n = len(list(folder.glob("*.result")))
            bar.refresh()
            time.sleep(0.05)


def started(folder, ranks, timeout, share):
    """Start a process that runs the ranks in `share`."""
    paths = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-W", "ignore::UserWarning", "-m", "course.ranks"]
    return subprocess.Popen(
        [*command, str(folder), str(ranks), str(timeout), *map(str, share)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stderr=(folder / f"{share[0]}.stderr").open("wb"),
        **({"process_group": 0} if FORKS else {}),
    )


def end(process):
    """Stop a process and the ranks that it forked."""
    if FORKS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def exit_code(folder, rank, process):
    """Return the exit code of a rank. A forked rank stores its code in a file; otherwise it is the
    process's."""
    forked = folder / f"{rank}.code"
    return int(forked.read_text()) if forked.exists() else process.returncode


def outcomes(folder, codes):
    """Return each rank's result, or raise RankFailed with the errors."""
    failed, results = [], []
    for rank, code in enumerate(codes):
        path = folder / f"{rank}.result"
        if code == 0 and path.exists():
            results.append(pickle.loads(path.read_bytes()))
        else:
            error = path.with_suffix(".error")
            failed.append(
                f"rank {rank}: "
                + (error.read_text(encoding="utf-8") if error.exists() else f"ended with exit code {code}")
            )
    if failed:
        raise RankFailed("\n".join(failed))
    return results


def main(folder, ranks, timeout, *share):
    """Run one rank in this process, or fork a process for each of several."""
    folder, share = Path(folder), [int(rank) for rank in share]
    if len(share) == 1:
        return run(folder, ranks, timeout, share[0])
    import_module("torch.distributed")
    with contextlib.suppress(Exception):  # If this call fails, each rank reports the error itself.
        # Unpickling imports the modules that the function needs.
        pickle.loads((folder / "call").read_bytes())
    forked = {rank: fork(run, folder, ranks, timeout, rank) for rank in share}
    for rank, process in forked.items():
        _, status = os.waitpid(process, 0)
        (folder / f"{rank}.code").write_text(str(os.waitstatus_to_exitcode(status)))


def fork(function, *arguments):
    """Call a function in a forked process and return the process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(folder, ranks, timeout, rank):
    """Join the process group as `rank`, call the function and store its result or its error."""
    from torch import distributed

    distributed.init_process_group(
        "gloo",
        init_method=(folder / "store").as_uri(),
        world_size=int(ranks),
        rank=rank,
        timeout=timedelta(seconds=float(timeout)),
    )
    try:
        function, arguments = pickle.loads((folder / "call").read_bytes())
        result = cloudpickle.dumps(function(*arguments))
    except Exception as error:
        traceback.print_exc()
        said = "".join(traceback.format_exception_only(error)).strip()
        (folder / f"{rank}.error").write_text(said, encoding="utf-8")
        # Exit without leaving the process group, because the other ranks may be waiting in a collective.
        os._exit(1)
    written = folder / f"{rank}.part"
    written.write_bytes(result)
    written.rename(folder / f"{rank}.result")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
