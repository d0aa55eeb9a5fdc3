"""sim.triton: a context in which unmodified Triton programs run on the simulated GPU."""

import hashlib
import importlib.util
from dataclasses import dataclass, field, replace
from typing import Any

from sim.errors import KernelBug, LaunchError, ThreadError
from sim.observers import Bounds, Misuse, Races, Uninitialized
from sim.sessions import Options, run_seeds
from sim.watched import has_checks

OBSERVERS = Bounds, Races, Uninitialized, Misuse
OLDEST = 3, 5  # the oldest version of Triton whose interfaces the simulated driver supports
# Several threads can hold the same element of a tile: all of them load it, and one or all of them store it.
FOR_TRITON = Races(allow_equal_writes=True, allow_replicas=True)


def triton(
    *,
    architecture: int = 80,
    engine: str = "auto",
    seeds: tuple[int, ...] = (0,),
    observers: tuple = OBSERVERS,
    on_finding: str = "raise",
    max_steps: int | None = None,
    benchmarks: bool = False,
) -> "Session":
    """Return a context in which Triton's launches are simulated and checked, without a GPU.

        with sim.triton() as session:
            kernel[grid](x, y, n, BLOCK=1024)  # x and y are CPU tensors
        session.reports  # one Report per launch

    architecture: the compute capability for which Triton compiles: 80, 86, 89 or 90.
    engine: as for simulate().
    seeds: each launch runs once for each of these orders of threads.
    observers: as for simulate(). `Races` does not report equal values that several threads of a program
        store, nor replicated loads (sim.observers.replicas), because several threads can hold an element.
    on_finding: "raise" raises KernelBug at a launch with an error; "report" only records it.
    benchmarks: whether benchmarks of triton.testing.perf_report run, each once with its first size. By
        default they are skipped.

    Raise LaunchError if Triton or PyTorch is not installed, or if Triton is older than 3.5.
    """
    for package in ("triton", "torch"):
        if importlib.util.find_spec(package) is None:
            raise LaunchError(
                f"sim.triton() needs {package}, which is not installed\n  pip install {package}"
            )
    from triton import __version__ as version

    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise LaunchError(
            f"sim.triton() needs Triton {'.'.join(map(str, OLDEST))} or later, and {version} is installed"
            "\n  pip install --upgrade triton"
        )
    from sim.triton_host.driver import LIMITS

    if architecture not in LIMITS:
        wanted = ", ".join(map(str, LIMITS))
        raise LaunchError(f"architecture {architecture!r} is not known; wanted one of {wanted}")
    if on_finding not in ("raise", "report"):
        raise LaunchError(f"on_finding {on_finding!r} is neither 'raise' nor 'report'")
    options = Options(engine, tuple(seeds), tuple(observers), max_steps=max_steps)
    return Session(options, architecture, on_finding, benchmarks)


@dataclass
class Session:
    """The simulated host side of Triton, as a context manager.

    options: the options of every launch; they can be changed between launches.
    reports: the Report of each launch that ran to its end.
    loading: the compiled kernel for which Triton is making a launcher.
    tuned: the autotuners that have chosen a configuration.

    `record_launch(outcome, report)` is called at the end of each launch, as in sim.host.
    """

    options: Options = field(default_factory=Options)
    architecture: int = 80
    on_finding: str = "raise"
    benchmarks: bool = False
    reports: list = field(default_factory=list)
    loading: Any = None
    tuned: list = field(default_factory=list)

    def __post_init__(self):
        from sim.triton_host.driver import SimulatedDriver

        self.driver, self.replaced = SimulatedDriver(self), []

    def record_launch(self, outcome, report):
        """Record the end of a launch."""

    # --- install and uninstall ------------------------------------------------------------------------------

    def __enter__(self):
        self.install()
        return self

    def __exit__(self, *error):
        self.uninstall()

    def install(self):
        """Replace Triton's driver and the functions of torch.cuda by simulated ones."""
        import torch
        from triton import runtime

        from sim.triton_host import torch_cuda

        self.state = vars(runtime.driver).copy()
        runtime.driver.set_active(self.driver)
        for owner, name, value in self.replacements():
            self.replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        for name, value in torch_cuda.replacements(self).items():
            self.replaced.append((torch.cuda, name, getattr(torch.cuda, name)))
            setattr(torch.cuda, name, value)
        self.redirection = torch_cuda.Redirection()
        self.redirection.__enter__()

    def uninstall(self):
        """Restore everything that `install` replaced."""
        from triton import runtime

        self.redirection.__exit__(None, None, None)
        while self.replaced:
            setattr(*self.replaced.pop())
        vars(runtime.driver).clear()
        vars(runtime.driver).update(self.state)
        for tuner in self.tuned:
            tuner.cache.clear()  # a GPU chooses among the configurations by their times
        self.tuned.clear()

    def replacements(self):
        """Yield (owner, name, replacement) for each attribute of Triton that `install` replaces."""
        from triton import testing
        from triton.compiler import ASTSource, CompiledKernel
        from triton.runtime.autotuner import Autotuner

        from sim.triton_host import tuning

        init_handles, digest = CompiledKernel._init_handles, ASTSource.hash

        def remember_kernel(kernel):
            self.loading = kernel
            init_handles(kernel)

        def hash_with_path(source):
            # Triton caches a kernel by its text. Findings need the path of the file, which the PTX contains.
            path = getattr(source.fn, "file_name", "")
            return hashlib.sha256(f"{digest(source)}-{path}".encode()).hexdigest()

        yield ASTSource, "hash", hash_with_path
        yield CompiledKernel, "_init_handles", remember_kernel
        yield Autotuner, "prune_configs", tuning.first_valid(self, Autotuner.prune_configs)
        yield testing, "do_bench", tuning.do_bench
        yield testing, "do_bench_cudagraph", tuning.do_bench
        yield testing.Mark, "run", tuning.run_benchmarks(self)

    # --- launches -------------------------------------------------------------------------------------------

    def launch(self, launcher, grid, names, values):
        """Simulate a launch and record its outcome. Raise KernelBug for an error if the session says so."""
        observers = tuple(FOR_TRITON if each is Races else each for each in self.options.observers)
        try:
            kernel = launcher.kernel.named(names)
            options = replace(self.options, observers=observers)
            report = run_seeds(kernel, options, launcher.configuration(grid), values)
        except ThreadError:  # a failed tl.device_assert, or a trap
            self.record_launch("raised", None)
            raise
        except Exception as error:
            self.record_launch("refused" if isinstance(error, LaunchError) else "unwatched", None)
            raise
        self.reports.append(report)
        watched = "with findings" if report.findings else "clean"
        self.record_launch(watched if has_checks(options.observers) else "unwatched", report)
        if self.on_finding == "raise" and report.errors:
            raise KernelBug(report)
