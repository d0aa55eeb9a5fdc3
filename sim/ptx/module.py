"""load_ptx, and the public classes Module and Kernel: the kernels of a PTX text, ready for simulate()."""

from dataclasses import replace
from math import prod

from sim.context import Context
from sim.engine import base
from sim.engine.named_barrier import NAMED_BARRIER
from sim.engine.scheduler import Scheduler
from sim.errors import LaunchError
from sim.interpreted import ThreadProgram, resident_blocks
from sim.isa.table import SUSPENDING, YIELDING
from sim.nouns import plural
from sim.observers.words import NUMBA, in_language
from sim.ptx.origin import Origin, plain_name
from sim.ptx.parse import parse
from sim.ptx.program import Program
from sim.ptx.regions import PaddedSpace
from sim.ptx.run import Run
from sim.ptx.syntax import python_name
from sim.ptx.variables import Store, Variables

MAX_ITERATIONS = 20_000_000  # the number of iterations without progress after which the loops are examined


def load_ptx(text: str | bytes, source: str | None = None) -> "Module":
    """Return the Module of a PTX text that nvcc -ptx, NVRTC, Triton or Numba has generated.

    text: the PTX, as a str or as bytes of UTF-8.
    source: the text of the file that was compiled, which findings quote. By default, it is read from the path
        in `.file`.

    `module["name"]` is a kernel for simulate(). A C++ name need not be mangled if it is unambiguous.

    Raise LaunchError for a text that is not PTX. The message contains the line.
    """
    if not isinstance(text, (str, bytes)):
        raise LaunchError(f"wanted PTX as text, got a {type(text).__name__}; of a file: path.read_text()")
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return Module(text.rstrip("\0"), source)


class Module:
    """The kernels of a PTX text. `module["name"]` is a kernel, and `names` lists all names.

    The module's variables, `constant` and `variable`, keep their values from one launch to the next.
    """

    def __init__(self, text: str, source: str | None = None, headers: tuple[str, ...] = ()) -> None:
        self.text = parse(text)
        self.origin = Origin(self.text, source, headers)
        self.store = Store(self.text, self.origin)

    @property
    def constant(self) -> Variables:
        """The `__constant__` variables by name.

        `module.constant["filter"] = array` sets one, like cudaMemcpyToSymbol. A launch is refused if its
        kernel uses a variable of which the host has not set any byte.
        """
        return Variables(self.store, "const")

    @property
    def variable(self) -> Variables:
        """The `__device__` variables by name. They are arrays that contain what launches have stored there.

        Examples: `module.variable["counter"] = 0`, `int(module.variable["counter"])`.
        """
        return Variables(self.store, "global")

    @property
    def names(self) -> list[str]:
        functions = self.text.functions.items()
        return [name for name, found in functions if found.entry and found.body is not None]

    def __getitem__(self, name: str) -> "Kernel":
        found = [n for n in self.names if n == name] or [n for n in self.names if plain_name(n) == name]
        if len(found) != 1:
            what = f"several kernels called {name}: {', '.join(found)}" if found else f"no kernel {name}"
            raise LaunchError(f"the module has {what}; its kernels are {', '.join(self.names) or 'none'}")
        return Kernel(self, self.text.functions[found[0]])

    def address_space(self) -> PaddedSpace:
        """Return a new address space for a launch of one of the module's kernels."""
        return PaddedSpace()

    def __repr__(self):
        return f"<PTX module for {self.text.target}: {', '.join(self.names)}>"


class Kernel(base.Kernel):
    """A kernel of a PTX module, for simulate()."""

    def __init__(self, module, function, names=None):
        self.module, self.function = module, function
        self.__name__ = plain_name(function.name)
        self.programs = {}
        self.names = names or module.origin.parameter_names(function)

    def named(self, names: list[str]) -> "Kernel":
        """Return the same kernel with other names for its parameters, which findings use."""
        return Kernel(self.module, self.function, list(names))

    def argument_names(self, arguments):
        """Return a unique name for each argument of a launch. Raise LaunchError if the number of arguments is
        wrong."""
        if len(arguments) != len(self.names):
            raise LaunchError(
                f"{self!r} was launched with {plural(len(arguments), 'argument')}; it takes {len(self.names)}"
            )
        return unique_names(self.names)

    def __call__(self, *arguments):
        raise TypeError(f"{self.__name__} is PTX: simulate(kernel)[grid, block](...) runs it")

    def __repr__(self):
        return f"<PTX kernel {self.__name__}({', '.join(self.names)})>"

    def program(self, branches=False, tracks=False):
        """Return (Program, compiled source) of the kernel. Each combination of options is translated only
        once.

        branches: whether branches are reported to observers.
        tracks: whether undefined values are tracked (sim.ptx.undefined).

        Raise LaunchError for instructions that are not supported.
        """
        key = branches, tracks
        if key not in self.programs:
            program = Program(self.module.text, self.module.origin, self.function, *key)
            self.programs[key] = program, compile(program.source, f"<PTX of {self.__name__}>", "exec")
        return self.programs[key]

    def prepare(self, fiber, launch, make_grid, observers, schedule, poison):
        """Return (Context, ThreadProgram, Grid) for one run of the launch, which has not started yet.

        sim.interpreted does the same for Python kernels.
        """
        self.check(launch)
        context = Context(
            observers,
            launch.spec,
            self.module.address_space(),
            launch.block,
            schedule,
            launch.max_steps,
            poison,
        )
        program, code = self.program(context.decisions is not None, context.enabled.unwritten)
        scheduler = Scheduler(context)
        scheduler.atomics_yield, scheduler.counts_arrivals = bool(program.used & YIELDING), True
        # A grid barrier requires that all blocks are resident at the same time.
        context.cooperative = "this_grid" in program.used
        context.synchronizes, context.stores = program.synchronizes, program.stores
        context.kernel, context.language = self.__name__, self.module.origin.language
        context.outline, context.timed = self.module.origin.outline, program.timed
        context.invalidates = "mbarrier_inval" in program.used
        run = Run(context, scheduler, program, launch)
        values = run.bind(launch.arguments)
        namespace = program.namespace(run) | {
            "__name__": "kernel",
            "current": context,
            "tick": context.tick,
            "branch": context.branch,
        }
        exec(code, namespace)
        # In PTX, every loop counts its iterations, even if it was a `for` loop in the source. Unless the
        # caller has set a limit, a barrier that opens counts as progress.
        context.steps = context.max_steps or MAX_ITERATIONS
        if context.max_steps is None:
            opened = context.listeners["barrier_opened"]
            context.listeners["barrier_opened"] = [*opened, lambda *_: context.restart_progress()]
        context.listeners["launch_finished"] = [run.heap.finish, *context.listeners["launch_finished"]]
        waits = scheduler.atomics_yield or program.used & (SUSPENDING | {NAMED_BARRIER})
        thread_program = ThreadProgram(fiber if waits else None, program.used, (), ())
        kernel = namespace[python_name(self.function.name, "run")]
        limit = resident_blocks(launch, program.used)
        grid = make_grid(scheduler, kernel, values, launch.grid, launch.block, limit)
        return context, thread_program, grid

    def reword(self, findings):
        """Return the findings in the words of the language in which the kernel is written."""
        language = self.module.origin.language
        if language == NUMBA:
            return findings
        return [
            replace(f, reason=in_language(f.reason, language), fix=in_language(f.fix, language))
            for f in findings
        ]

    def check(self, launch):
        """Check the block's size against the limits for which the kernel was compiled.

        Raise LaunchError if the launch exceeds them. Source: PTX ISA 11.4, "Performance-Tuning Directives".
        """
        limits = self.function.limits
        compiled = f"{self.__name__} was compiled for blocks of"
        if "reqntid" in limits and (*limits["reqntid"], 1, 1)[:3] != launch.block:
            raise LaunchError(f"{compiled} {limits['reqntid']} threads (.reqntid), got {launch.block}")
        # .maxntid limits the product of the three block sizes (PTX ISA 11.4.2).
        most = prod(limits.get("maxntid", ()))
        if "maxntid" in limits and launch.threads > most:
            raise LaunchError(f"{compiled} up to {plural(most, 'thread')} (.maxntid), got {launch.threads}")


def unique_names(names):
    """Return the names, with a number appended to each name that occurs before."""
    seen = []
    for name in names:
        seen.append(name if name not in seen else f"{name}_{len(seen)}")
    return seen
