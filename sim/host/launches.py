"""Simulated launches of numba.cuda kernels, and replacements for functions that need compiled kernels."""

import contextlib
import copy
import enum
import itertools
import linecache
import re
from dataclasses import dataclass, field, replace

import numpy as np
from numba import cuda
from numba.cuda import decorators, deviceufunc, dispatcher, types, typing
from numba.cuda.args import ArgHint, In
from numba.cuda.core import sigutils
from numba.cuda.cudadrv import devicearray, devices, driver, nvvm
from numba.cuda.np import numpy_support

from sim.errors import LaunchError, ThreadError
from sim.events import Finding
from sim.host.driver import Device, Functions
from sim.host.memory import Memory
from sim.host.streams import HostStreams
from sim.host.used_memory import LaunchMemory, footprint_of_copy
from sim.isa.conversions import cast
from sim.memory.argument import host_array, of_parts
from sim.report import Report, merge_findings
from sim.sessions import Options, run_seeds
from sim.watched import has_checks

try:
    from numba.cuda import testing
except ImportError:  # This module needs filecheck, which numba-cuda does not install.
    testing = None

NUMBER_TYPES = types.Number, types.Boolean
THREADS_PER_BLOCK = 128  # `forall` uses this number by default.
MISSING = object()  # the original value of an attribute that `install` has added
GENERATED = itertools.count()  # numbers of the kernels that Numba generates from text
# The modules with Numba's internal kernels, which the observers do not watch.
NUMBA_MODULES = ("numba.cuda.kernels.", "numba.cuda.cudadrv.", "numba.cuda.np.")


class Uncompiled:
    """A kernel specialised for one signature, but not compiled to machine code.

    It has the attributes that Numba needs for a simulated launch.
    """

    objectmode, entry_point, launch_config_sensitive = False, None, False

    def __init__(self, argument_types, return_type=None):
        self.signature = typing.signature(return_type or types.none, *argument_types)
        self.argument_types = argument_types

    def __getattr__(self, name):
        raise AttributeError(
            f"{name}: the simulator does not compile machine code for a GPU; cuda.compile returns PTX, and"
            " needs no GPU"
        )


@dataclass
class Host:
    """The simulated host side of numba.cuda.

    compiled: whether Numba types kernels and compiles them to PTX before simulation.

    `record_launch(outcome, report)` is called at the end of each launch, with one of OUTCOMES and the Report,
    or None if there is no report. By default, it appends the report to `launches` unless the launch was
    refused.

    `record_finding(finding)` is called for each HostFinding. By default, it appends the finding to
    `findings`.
    """

    options: Options = field(default_factory=Options)
    compiled: bool = False

    def __post_init__(self):
        self.launches, self.findings, self.memory, self.replaced = [], [], Memory(), []
        self.streams = HostStreams(self.memory, lambda finding: self.record_finding(finding))
        self.functions = Functions(self.memory, self.streams)
        self.device = Device(self.options.spec)

    def record_launch(self, outcome, report):
        if outcome != "refused":
            self.launches.append(report)

    def record_finding(self, finding):
        self.findings.append(finding)

    # --- install and uninstall ------------------------------------------------------------------------------

    def install(self):
        """Replace Numba's driver and launches with simulated ones."""
        self.state = vars(driver.driver).copy(), getattr(devices._runtime._tls, "attached_context", None)
        # The Driver object caches each driver function as an attribute, so replacing its __dict__ replaces
        # them all.
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
            self.replaced.append((owner, name, vars(owner).get(name, MISSING)))
            setattr(owner, name, value)

    def uninstall(self):
        """Restore everything that `install` replaced."""
        while self.replaced:
            owner, name, value = self.replaced.pop()
            if value is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        vars(driver.driver).clear()
        vars(driver.driver).update(self.state[0])
        self.switch_context(self.state[1])

    @staticmethod
    def switch_context(context):
        devices._runtime._set_attached_context(context)
        devices._DeviceList.lst.fget.cache_clear()

    def replacements(self):
        """Yield (owner, name, replacement) for each attribute that `install` replaces."""
        kernel, dispatch, host = dispatcher._Kernel, dispatcher.CUDADispatcher, self

        def resident_blocks(kernel, block, shared=0):
            return host.options.spec.resident_blocks(int(np.prod(block)), shared)

        yield driver.Driver, "_cuda_python_wrap_fn", self.functions.refuse
        yield driver, "_logger", driver.make_logger()
        for name in ("_alloc_finalizer", "_hostalloc_finalizer", "_pin_finalizer"):
            yield driver, name, self.memory.make_finalizer
        yield driver, "_event_finalizer", lambda deallocations, handle: None
        yield driver, "_stream_finalizer", self.streams.make_finalizer
        yield driver, "_to_core_stream", lambda stream: stream or driver.Stream(driver.binding.CUstream(0))
        yield nvvm, "is_available", lambda: True
        yield cuda, "as_cuda_array", as_device_array(cuda.as_cuda_array)
        if testing:  # Tests for Numba's own simulator can then run on our simulator.
            yield testing, "skip_unless_cudasim", lambda reason: lambda test: test
        yield deviceufunc, "exec", execute_with_source
        yield dispatcher.ForAll, "__call__", launch_for_all
        for overload in (kernel, Uncompiled):
            yield overload, "max_cooperative_grid_blocks", resident_blocks
        if self.compiled:
            yield kernel, "bind", lambda kernel: None
            yield kernel, "launch", lambda kernel, *rest: host.launch(kernel, kernel.argument_types, *rest)
        else:
            yield decorators, "_have_nvjitlink", lambda: False
            yield dispatch, "compile", register_signature
            yield dispatch, "compile_device", register_signature
            yield dispatch, "call", lambda kernel, arguments, how: host.call(kernel, arguments, how)

    # --- launches -------------------------------------------------------------------------------------------

    def call(self, kernel, arguments, how):
        """Launch a kernel with the configuration `how`. This replaces
        numba.cuda.dispatcher.CUDADispatcher.call."""
        for callback in how.pre_launch_callbacks:
            callback(kernel, how)
        own = NUMBA_KERNELS.get((kernel.py_func.__module__, kernel.py_func.__name__))
        if own:
            return self.run_in_numpy(own, arguments, how.stream)
        with self.record_refusals():
            numba_types, asked = numba_types_for(kernel, arguments), (how.stream, how.sharedmem)
        self.launch(kernel, numba_types, arguments, how.griddim, how.blockdim, *asked)

    def run_in_numpy(self, own, arguments, stream):
        """Execute a kernel of NUMBA_KERNELS."""
        uses, arrays = LaunchMemory(self.memory), list(map(self.unwrap, arguments))
        for pair in zip(arguments, arrays):
            uses.add(*pair)

        to, source = own(*arrays)

        def run(observers):
            np.copyto(to, source, "unsafe")
            return {}

        self.streams.launch(stream_handle(stream), uses, 0, run, footprint_of_copy(to, source))
        self.memory.update_fresh()

    @contextlib.contextmanager
    def record_refusals(self):
        """Return a context manager that records an exception as a refused launch."""
        try:
            yield
        except Exception:
            self.record_launch("refused", None)
            raise

    def launch(self, kernel, numba_types, arguments, grid, block, stream=0, shared=0):
        """Simulate a launch of `kernel`, a dispatcher or a compiled kernel, with arguments of these Numba
        types."""
        retr = []  # callbacks that copy results back to the host; extensions of Numba append to it
        handle = stream_handle(stream)
        uses = None if self.streams.needs_no_record(handle) else LaunchMemory(self.memory)
        with self.record_refusals():
            pairs = zip(numba_types, arguments, strict=True)
            values = [self.prepare_argument(kernel, *pair, retr, uses) for pair in pairs]
        options = self.options
        # Numba's internal kernels are not the user's code, so findings about them would not help the user.
        if (kernel.py_func.__module__ or "").startswith(NUMBA_MODULES):
            options = replace(options, observers=(), seeds=(0,))

        def run(observers):
            return self.run_and_record(kernel, options, (grid, block, 0, shared), values, observers)

        try:
            if uses is None:
                run(())
            else:
                self.streams.launch(handle, uses, thread_count(grid, block), run)
        finally:
            self.memory.update_fresh()
        for write_back in retr:
            write_back()

    def run_and_record(self, kernel, options, configuration, values, observers):
        """Run a launch and record its outcome. Return the fractions of the launch that its observers watched.

        observers: observers in addition to those of the options.

        Re-raise a thread's exception if a GPU would report it to the host (debug=True), or if it does not
        come from a `raise` or `assert` in the kernel. Otherwise, turn it into a finding.
        """
        try:
            watched = replace(options, observers=(*options.observers, *observers))
            report = run_seeds(kernel, watched, configuration, values)
        except ThreadError as error:
            debug = is_debugged(kernel)
            if debug or not is_raised_by_kernel(error):
                self.record_launch("raised", None)
                raise (error.__cause__ if debug else error) from None
            self.record_launch("raised", exception_report(kernel, options, configuration, error))
        except Exception as error:
            # Any other exception is a failure of the simulator, so the kernel has not been checked.
            self.record_launch("refused" if isinstance(error, LaunchError) else "unwatched", None)
            raise
        else:
            outcome = "with findings" if report.findings else "clean"
            self.record_launch(outcome if has_checks(options.observers) else "unwatched", report)
            return report.watched
        return {}

    def prepare_argument(self, kernel, numba_type, value, retr, uses):
        """Return an argument for the simulator: a numpy array, a number of this Numba type (if given), or a
        tuple of these. If `uses` is not None, add the argument's memory to it."""
        for extension in reversed(kernel.extensions or ()):
            numba_type, value = extension.prepare_args(numba_type, value, stream=0, retr=retr)
        given, value = value, self.unwrap(value)
        if uses is not None:
            uses.add(given, value)
        if isinstance(value, tuple):
            numba_types = numba_type if isinstance(numba_type, types.BaseTuple) else [None] * len(value)
            parts = (self.prepare_argument(kernel, *pair, retr, uses) for pair in zip(numba_types, value))
            return of_parts(value, parts)
        if isinstance(numba_type, NUMBER_TYPES) and not isinstance(value, enum.Enum):
            dtype = numpy_support.as_dtype(numba_type)
            return dtype.type(cast(dtype)(value))
        return value

    def unwrap(self, value):
        """Return an argument without Numba's wrappers. Device memory becomes a numpy array over the same
        bytes."""
        if isinstance(value, ArgHint):
            value = copy.copy(value.value) if isinstance(value, In) else value.value
        if driver.is_device_memory(value) and not isinstance(value, np.ndarray):
            array = self.memory.as_array(value)
            return array[()] if isinstance(value, devicearray.DeviceRecord) else array
        return value


def stream_handle(stream):
    """Return the handle of a stream: a Stream of Numba or of cuda.core, or 0 for the default stream."""
    return int(stream.__cuda_stream__()[1]) if hasattr(stream, "__cuda_stream__") else int(stream)


def thread_count(grid, block):
    """Return the number of threads of a launch, or 0 if the configuration is invalid."""
    try:
        return int(np.prod(grid) * np.prod(block))
    except TypeError:
        return 0


def is_debugged(kernel):
    """Return whether a kernel is compiled with debug=True. Only then does a GPU report exceptions to the
    host."""
    return kernel.targetoptions.get("debug") if hasattr(kernel, "targetoptions") else kernel.debug


def is_raised_by_kernel(error):
    """Return whether the thread ended on a line that contains `raise` or `assert`. If the line is unknown,
    return True, because the exception then comes from compiled code."""
    site = error.access.site
    return site is None or bool(re.search(r"\b(raise|assert)\b", site.source))


def exception_report(kernel, options, configuration, error):
    """Return the Report of a launch in which a thread raised an exception that a GPU would not report to the
    host."""
    finding = Finding(
        "exception",
        "error",
        f"a thread raised {type(error.__cause__).__name__}: {error.__cause__}".rstrip(": "),
        (error.access,),
        reason=(
            "A GPU ends this thread and reports nothing to the host, unless the kernel is compiled with"
            " @cuda.jit(debug=True). The simulated launch ended here: the other threads were not checked."
        ),
        fix=(
            "make the condition hold; if the exception is intended, compile with debug=True and expect it in"
            " the test, or allow it: --cuda-sim-allow=exception"
        ),
        follows=bool(error.findings),
    )
    grid, block, *_ = configuration
    code = (kernel.py_func.__code__,)
    seen = merge_findings([*error.findings, finding], code)
    return Report(kernel.py_func.__name__, options.engine, grid, block, options.seeds[0], seen, code=code)


# --- replacements for functions of Numba --------------------------------------------------------------------


def numba_types_for(kernel, arguments):
    """Return the types of the signature that matches `arguments`, or None per argument if there is no
    signature.

    Raise TypeError if no signature matches.
    """
    if kernel._can_compile or not kernel.overloads:
        return [None] * len(arguments)
    signatures = [numba_types for numba_types in kernel.overloads if len(numba_types) == len(arguments)]
    given = tuple(map(kernel.typeof_pyval, arguments))
    fitting = [numba_types for numba_types in signatures if all(map(fits, given, numba_types))]
    if not fitting:
        raise TypeError(f"No matching definition for argument type(s) {', '.join(map(str, given))}")
    return given if given in fitting else fitting[0]


def fits(given, wanted):
    """Return whether Numba accepts an argument of type `given` for a parameter of type `wanted`: an array of
    equal dtype and rank, or any number for a number."""
    if isinstance(wanted, types.Array):
        same = isinstance(given, types.Array) and (given.dtype, given.ndim) == (wanted.dtype, wanted.ndim)
        return same and wanted.layout in ("A", given.layout)
    return isinstance(given, NUMBER_TYPES) == isinstance(wanted, NUMBER_TYPES)


def register_signature(kernel, signature, return_type=None):
    """Store a kernel's signature without compiling the kernel. This replaces `compile` and `compile_device`
    of Numba's dispatcher."""
    argument_types, stated = sigutils.normalize_signature(signature)
    return kernel.overloads.setdefault(argument_types, Uncompiled(argument_types, return_type or stated))


def execute_with_source(text, namespace):
    """Execute the text of a kernel that Numba has generated, for `vectorize` and `guvectorize`, so that its
    source is available to `inspect`. The simulator never compiles a kernel without source."""
    name = f"<Numba's kernel {next(GENERATED)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), namespace)


def launch_for_all(asked, *arguments):
    """Launch a kernel with at least one thread per task. This replaces
    numba.cuda.dispatcher.ForAll.__call__."""
    if asked.ntasks:
        block = asked.thread_per_block or THREADS_PER_BLOCK
        asked.dispatcher[-(-asked.ntasks // block), block, asked.stream, asked.sharedmem](*arguments)


def as_device_array(original):
    """Return a `cuda.as_cuda_array` that also accepts host memory, because the simulated device's memory is
    host memory."""

    def as_cuda_array(obj, sync=True):
        if hasattr(obj, "__cuda_array_interface__"):
            return original(obj, sync)
        array = host_array(obj.detach() if hasattr(obj, "detach") else obj, "obj")
        if array is None:
            raise TypeError("*obj* doesn't implement the cuda array interface.")
        interface = array.__array_interface__ | {"stream": None}
        return cuda.from_cuda_array_interface(interface, owner=obj)

    return as_cuda_array


# Numba's internal kernels that copy an array -> the destination and the source, given their arguments
NUMBA_KERNELS = {
    ("numba.cuda.cudadrv.devicearray", "kernel"): lambda to, source: (to, source),
    ("numba.cuda.kernels.transpose", "kernel"): lambda source, to: (to, source.T),
}
