"""Launches of numba.cuda kernels as simulations, and what else of Numba wants compiled kernels."""

import contextlib
import copy
import enum
import re
from dataclasses import dataclass, field, replace

import numpy as np
from numba import cuda
from numba.cuda import decorators, dispatcher, types, typing
from numba.cuda.args import ArgHint, In
from numba.cuda.core import sigutils
from numba.cuda.cudadrv import devicearray, devices, driver, nvvm
from numba.cuda.np import numpy_support

from sim.device import DeviceSpec
from sim.errors import LaunchError, ThreadError
from sim.events import Finding
from sim.host.driver import Device, Functions, Memory
from sim.isa.conversions import cast
from sim.launch import simulate
from sim.memory.spaces import argument_array, host_array, of_parts
from sim.observers import DEFAULT
from sim.report import Report, merge_findings

try:
    from numba.cuda import testing
except ImportError:  # it needs filecheck, which numba-cuda does not bring
    testing = None

NUMBER_TYPES = types.Number, types.Boolean
OUTCOMES = "clean", "with findings", "raised", "refused", "unwatched"  # of launches; each has exactly one
THREADS_PER_BLOCK = 128  # what `forall` takes when nobody says
# modules whose kernels are Numba's, not the user's
OWN = ("numba.cuda.kernels.", "numba.cuda.cudadrv.", "numba.cuda.np.")


@dataclass(frozen=True)
class Options:
    """How launches are simulated. `seeds`: each launch runs once with each; what the first one leaves in the
    arrays stays. `max_steps`: see simulate."""

    engine: str = "native"
    seeds: tuple[int, ...] = (0,)
    observers: tuple = DEFAULT
    spec: DeviceSpec = DeviceSpec()
    max_steps: int | None = None


class Uncompiled:
    """A kernel for one signature: all that a launch in the simulator needs of one."""

    objectmode, entry_point, launch_config_sensitive = False, None, False

    def __init__(self, argument_types, return_type=None):
        self.signature = typing.signature(return_type or types.none, *argument_types)
        self.argument_types = argument_types

    def __getattr__(self, name):
        raise AttributeError(
            f"{name}: the simulator compiles no machine code for a GPU; cuda.compile gives PTX without one"
        )


@dataclass
class Host:
    """The simulated host side of numba.cuda. `compiled`: kernels are typed and compiled to PTX by Numba
    before they are simulated.

    `launched` is called when a launch has ended: with one of OUTCOMES, and its Report or, if the launch has
    none, None. By default it appends the report to `launches`, unless the launch was refused.
    """

    options: Options = field(default_factory=Options)
    compiled: bool = False

    def __post_init__(self):
        self.launches, self.memory, self.taken = [], Memory(), []
        self.functions = Functions(self.memory)
        self.device = Device(self.options.spec)

    def launched(self, outcome, report):
        if outcome != "refused":
            self.launches.append(report)

    # --- in place and away again ----------------------------------------------------------------------------

    def install(self):
        """Put the simulated driver and launches in the place of the real ones."""
        self.state = vars(driver.driver).copy(), getattr(devices._runtime._tls, "attached_context", None)
        vars(driver.driver).clear()
        vars(driver.driver).update(
            self.functions.names(),
            is_initialized=True,
            initialization_error=None,
            pid=None,
            lib=None,
            devices={0: self.device},
        )
        self.switch_context(None)
        for owner, name, value in self.replacements():
            self.taken.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, value)

    def uninstall(self):
        """Give everything back."""
        while self.taken:
            setattr(*self.taken.pop())
        vars(driver.driver).clear()
        vars(driver.driver).update(self.state[0])
        self.switch_context(self.state[1])

    @staticmethod
    def switch_context(context):
        devices._runtime._set_attached_context(context)
        devices._DeviceList.lst.fget.cache_clear()

    def replacements(self):
        """(owner, name, what takes its place)."""
        kernel, dispatch, host = dispatcher._Kernel, dispatcher.CUDADispatcher, self

        def resident_blocks(kernel, block, shared=0):
            return host.options.spec.resident_blocks(int(np.prod(block)), shared)

        yield driver.Driver, "_cuda_python_wrap_fn", self.functions.refused
        yield driver, "_logger", driver.make_logger()
        for name in ("_alloc_finalizer", "_hostalloc_finalizer", "_pin_finalizer"):
            yield driver, name, self.memory.finalizer
        for name in ("_event_finalizer", "_stream_finalizer"):
            yield driver, name, lambda deallocations, handle: None
        yield driver, "_to_core_stream", lambda stream: stream or driver.Stream(driver.binding.CUstream(0))
        yield nvvm, "is_available", lambda: True
        yield cuda, "as_cuda_array", as_device_array(cuda.as_cuda_array)
        if testing:  # what is for simulators is for ours too
            yield testing, "skip_unless_cudasim", lambda reason: lambda test: test
        yield dispatcher.ForAll, "__call__", launch_for_all
        yield kernel, "max_cooperative_grid_blocks", resident_blocks
        if self.compiled:
            yield kernel, "bind", lambda kernel: None
            yield kernel, "launch", lambda kernel, *rest: host.launch(kernel, kernel.argument_types, *rest)
        else:
            yield decorators, "_have_nvjitlink", lambda: False
            yield dispatch, "compile", compile_nothing
            yield dispatch, "compile_device", compile_nothing
            yield dispatch, "call", lambda kernel, arguments, how: host.call(kernel, arguments, how)

    # --- a launch -------------------------------------------------------------------------------------------

    def call(self, kernel, arguments, how):
        """Instead of numba.cuda.dispatcher.CUDADispatcher.call: `how` has the configuration."""
        for callback in how.pre_launch_callbacks:
            callback(kernel, how)
        own = OWN_KERNELS.get((kernel.py_func.__module__, kernel.py_func.__name__))
        if own:
            own(*map(self.plain, arguments))
            return self.memory.settle()
        with self.refusals():
            numba_types, asked = numba_types_for(kernel, arguments), (how.stream, how.sharedmem)
        self.launch(kernel, numba_types, arguments, how.griddim, how.blockdim, *asked)

    @contextlib.contextmanager
    def refusals(self):
        """Record a launch as refused if its arguments are."""
        try:
            yield
        except Exception:
            self.launched("refused", None)
            raise

    def launch(self, kernel, numba_types, arguments, grid, block, stream=0, shared=0):
        """Simulate `kernel` (a dispatcher or a compiled kernel) on `arguments` of these Numba types."""
        retr = []
        with self.refusals():
            pairs = zip(numba_types, arguments, strict=True)
            values = [self.prepared(kernel, *pair, retr) for pair in pairs]
        options = self.options
        if (kernel.py_func.__module__ or "").startswith(OWN):
            options = replace(options, observers=(), seeds=(0,))
        try:
            self.simulated(kernel, options, (grid, block, 0, shared), values)
        finally:
            self.memory.settle()
        for write_back in retr:
            write_back()

    def simulated(self, kernel, options, configuration, values):
        """Run a launch, and pass on what became of it. What a thread raises is raised again if a GPU would
        tell the host of it (debug=True), or if it is no `raise` of the kernel's; else it is a finding."""
        try:
            report = run(kernel.py_func, options, configuration, values)
        except ThreadError as error:
            told = debugging(kernel)
            if told or not raised_by_kernel(error):
                self.launched("raised", None)
                raise (error.__cause__ if told else error) from None
            self.launched("raised", report_of_exception(kernel, options, configuration, error))
        except Exception as error:
            # whatever else ends a launch is a failure of the simulator, which has judged nothing
            self.launched("refused" if isinstance(error, LaunchError) else "unwatched", None)
            raise
        else:
            watched = "with findings" if report.findings else "clean"
            self.launched(watched if options.observers else "unwatched", report)

    def prepared(self, kernel, numba_type, value, retr):
        """An argument for the simulator: numpy arrays, numbers of this Numba type, if any."""
        for extension in reversed(kernel.extensions or ()):
            numba_type, value = extension.prepare_args(numba_type, value, stream=0, retr=retr)
        value = self.plain(value)
        if isinstance(value, tuple):
            numba_types = numba_type if isinstance(numba_type, types.BaseTuple) else [None] * len(value)
            return of_parts(value, (self.prepared(kernel, *pair, retr) for pair in zip(numba_types, value)))
        if isinstance(numba_type, NUMBER_TYPES) and not isinstance(value, enum.Enum):
            dtype = numpy_support.as_dtype(numba_type)
            return dtype.type(cast(dtype)(value))
        return value

    def plain(self, value):
        """An argument without what Numba wraps it in; device memory as a numpy array over the same bytes."""
        if isinstance(value, ArgHint):
            value = copy.copy(value.value) if isinstance(value, In) else value.value
        if driver.is_device_memory(value) and not isinstance(value, np.ndarray):
            array = self.memory.array(value)
            return array[()] if isinstance(value, devicearray.DeviceRecord) else array
        return value


def run(function, options, configuration, values):
    """The Report of one launch; with several seeds, that of the first, with the findings of all."""
    how = dict(observers=options.observers, spec=options.spec, max_steps=options.max_steps)

    def one(seed):
        simulation = simulate(function, engine=options.engine, seed=seed, on_finding="report", **how)
        return simulation[configuration](*values)

    first, *further = options.seeds
    if not further:
        return one(first)
    arrays = [array for array in leaves(values) if array.flags.writeable]
    before, others = [array.copy() for array in arrays], []
    for seed in further:
        others += one(seed).findings
        for array, old in zip(arrays, before):
            array[...] = old
    report = one(first)
    merged = {finding.key: finding for finding in (*others, *report.findings)}
    findings = sorted(merged.values(), key=lambda finding: finding.severity != "error")
    return replace(report, findings=tuple(findings))


def leaves(values):
    """Every numpy array among arguments, those in tuples and behind CPU tensors too."""
    for value in values:
        if isinstance(value, tuple):
            yield from leaves(value)
        elif (array := argument_array(value, "argument")) is not None:
            yield array


def debugging(kernel):
    return kernel.targetoptions.get("debug") if hasattr(kernel, "targetoptions") else kernel.debug


def raised_by_kernel(error):
    """Whether the kernel itself says `raise` on the line where the thread ended."""
    return bool(re.search(r"\b(raise|assert)\b", error.access.site.source))


def report_of_exception(kernel, options, configuration, error):
    """Return the Report of a launch in which a thread raised, as a GPU would not tell."""
    finding = Finding(
        "exception",
        "error",
        f"a thread raised {type(error.__cause__).__name__}: {error.__cause__}".rstrip(": "),
        (error.access,),
        reason=(
            "A GPU ends this thread and tells the host nothing, unless the kernel is compiled with"
            " @cuda.jit(debug=True). The simulated launch ended here: the other threads are not judged."
        ),
        fix=(
            "make the condition hold; if the exception is wanted, compile with debug=True and expect it in"
            " the test, or allow it: --cuda-sim-allow=exception"
        ),
    )
    grid, block, *_ = configuration
    seen = merge_findings([finding], [kernel.py_func.__code__])
    return Report(kernel.py_func.__name__, options.engine, grid, block, options.seeds[0], seen)


# --- what takes the place of Numba's ------------------------------------------------------------------------


def numba_types_for(kernel, arguments):
    """The types in the signature that `arguments` fit; None for each if there is no signature."""
    if kernel._can_compile or not kernel.overloads:
        return [None] * len(arguments)
    signatures = [numba_types for numba_types in kernel.overloads if len(numba_types) == len(arguments)]
    given = tuple(map(kernel.typeof_pyval, arguments))
    fitting = [numba_types for numba_types in signatures if all(map(fits, given, numba_types))]
    if not fitting:
        raise TypeError(f"No matching definition for argument type(s) {', '.join(map(str, given))}")
    return given if given in fitting else fitting[0]


def fits(given, wanted):
    """Whether Numba passes an argument of one type where a signature says another: arrays of equal type and
    rank, any number for a number."""
    if isinstance(wanted, types.Array):
        same = isinstance(given, types.Array) and (given.dtype, given.ndim) == (wanted.dtype, wanted.ndim)
        return same and wanted.layout in ("A", given.layout)
    return isinstance(given, NUMBER_TYPES) == isinstance(wanted, NUMBER_TYPES)


def compile_nothing(kernel, signature, return_type=None):
    """Instead of `compile` and `compile_device`: remembers the signature."""
    argument_types, stated = sigutils.normalize_signature(signature)
    return kernel.overloads.setdefault(argument_types, Uncompiled(argument_types, return_type or stated))


def launch_for_all(asked, *arguments):
    """Instead of numba.cuda.dispatcher.ForAll.__call__."""
    if asked.ntasks:
        block = asked.thread_per_block or THREADS_PER_BLOCK
        asked.dispatcher[-(-asked.ntasks // block), block, asked.stream, asked.sharedmem](*arguments)


def as_device_array(original):
    """`cuda.as_cuda_array` that takes host memory too: there is no other memory here."""

    def as_cuda_array(obj, sync=True):
        if hasattr(obj, "__cuda_array_interface__"):
            return original(obj, sync)
        array = host_array(obj.detach() if hasattr(obj, "detach") else obj, "obj")
        if array is None:
            raise TypeError("*obj* doesn't implement the cuda array interface.")
        interface = array.__array_interface__ | {"stream": None}
        return cuda.from_cuda_array_interface(interface, owner=obj)

    return as_cuda_array


OWN_KERNELS = {
    ("numba.cuda.cudadrv.devicearray", "kernel"): lambda to, source: np.copyto(to, source, "unsafe"),
    ("numba.cuda.kernels.transpose", "kernel"): lambda source, to: np.copyto(to, source.T, "unsafe"),
}
