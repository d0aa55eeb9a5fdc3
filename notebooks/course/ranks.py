"""Several processes that form a group of torch.distributed, here on the CPU: a function, run by each of
them."""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import cloudpickle


class RankFailed(RuntimeError):
    """At least one rank ended with an error; a notebook shows the message alone."""

    def _render_traceback_(self):
        return str(self).splitlines()


def run_ranks(function, ranks, *arguments, timeout=60):
    """What function(*arguments) returns in each of `ranks` processes, a list in the order of their ranks.

    The processes form torch.distributed's default group, with gloo; `torch.distributed.get_rank()` tells one
    from the other. function may stand in a notebook.
    timeout: seconds that one of them waits for another. Raises RankFailed with the last line of each failed
        rank's error; no process outlives the call.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        folder = Path(folder)
        (folder / "call").write_bytes(cloudpickle.dumps((function, arguments)))
        paths = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        command = [
            sys.executable,
            "-W",
            "ignore::UserWarning",
            "-m",
            "course.ranks",
            str(folder),
            str(ranks),
            str(timeout),
        ]
        processes = [
            subprocess.Popen(
                [*command, str(rank)], env=environment, stderr=(folder / f"{rank}.stderr").open("wb")
            )
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return outcomes(folder, [process.returncode for process in processes])


def outcomes(folder, codes):
    """What each rank returned, or RankFailed with the errors."""
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


def main(folder, ranks, timeout, rank):
    """One rank's process."""
    from torch import distributed

    folder, rank = Path(folder), int(rank)
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
        os._exit(1)  # no farewell: the others may wait in an exchange
    written = folder / f"{rank}.part"
    written.write_bytes(result)
    written.rename(folder / f"{rank}.result")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
