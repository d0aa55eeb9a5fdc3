"""Notebook kernels forked from a process that has already imported the modules that all lessons import.

A forked kernel starts 3 CPU seconds sooner than a new process. A lesson that compiles a kernel and calls an
operator saves 4 CPU seconds more.
"""

import multiprocessing
import os
import sys
from functools import partial
from pathlib import Path

IMPORTED = [
    "ipykernel.kernelapp",
    "ipywidgets",
    "matplotlib.pyplot",
    "numba.cuda",
    "sim.native.engine",
    "torch",
    # PyTorch imports this one when a custom operator is first called.
    "torch._dynamo",
    # Numba imports these when it first compiles a kernel.
    "numba.cuda.bf16",
    "numba.cuda.cpython.charseq",
    "numba.cuda.cpython.unicode",
    "numba.cuda.fp16",
    "numba.cuda.fp8",
    "numba.cuda.libdevicedecl",
    "numba.cuda.libdeviceimpl",
    "numba.cuda.np.arraymath",
    "numba.cuda.typing.cffi_utils",
]
# A kernel's environment selects matplotlib's backend, which must be known before the import.
INLINE = "module://matplotlib_inline.backend_inline"


def install():
    """Make jupyter_client fork every kernel that it starts after this call."""
    from jupyter_client.provisioning import local_provisioner

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    local_provisioner.launch_kernel = partial(Forked, context)


class Forked:
    """Part of the interface of subprocess.Popen that jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self, context, command, env, cwd=None, stderr=None, **_):
        arguments = command[command.index("ipykernel_launcher") + 1 :]
        here, there = context.Pipe(duplex=False)
        self.process = context.Process(target=run, args=(arguments, env, cwd, stderr is not None, there))
        self.process.start()
        here.recv()  # The child now leads its own process group, so signals reach only that group.
        self.pid = self.process.pid

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self.process.terminate()

    def kill(self):
        self.process.kill()


def run(arguments, env, cwd, quiet, there):
    """Run a kernel in the forked process as `python -m ipykernel_launcher` would."""
    os.setsid()
    there.send("ready")
    os.environ.clear()
    os.environ.update(env)
    os.environ.pop("JPY_PARENT_PID", None)
    os.chdir(cwd or ".")
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.path[:] = [place for place in sys.path if "tests" not in Path(place).parts]
    sys.argv[:] = ["ipykernel_launcher", *arguments, f"--IPKernelApp.parent_handle={os.getppid()}"]
    import matplotlib
    from ipykernel import kernelapp

    matplotlib.rcParams["backend"] = INLINE
    kernelapp.launch_new_instance()
