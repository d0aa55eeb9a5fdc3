"""The process in which a program runs: python -m sim.runtime.process SETTINGS PROGRAM [ARGUMENT ...].

It compiles and loads the stubs, loads the program, and calls its main(). The summary is printed when the
program ends, whether by returning from main() or by exit().

Exit status: 0 without errors, 1 with errors or if the program returned a nonzero status, 2 if something could
not be simulated, 3 if the simulator failed.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.device import DeviceSpec
from sim.errors import LaunchError, SimulatorError
from sim.observers import DEFAULT
from sim.runtime import (
    handlers_blas,
    handlers_copies,
    handlers_device,
    handlers_driver,
    handlers_graphs,
    handlers_launch,
    handlers_memory,
)
from sim.runtime.build import warnings_of
from sim.runtime.call_sites import UNKNOWN, CallSites, load_address
from sim.runtime.device import Device, Options
from sim.runtime.errors import NOT_SUPPORTED
from sim.runtime.findings import FirstFinding, Log
from sim.runtime.host_bounds import report_fault, report_overruns
from sim.runtime.signatures import (
    BLAS,
    COPIES,
    DEVICE,
    DRIVER,
    ENTRY_POINTS,
    GRAPHS,
    LAUNCHES,
    MEMORY,
    REGISTRATION,
    SIGNATURES,
)
from sim.runtime.streams import MOST_STEPS, Pending
from sim.runtime.stubs import compile_stubs, needed_functions
from sim.runtime.unchecked import ignores_result, verdict_and_fix

FINISH, FAULT, STEPPED, REPEAT, STEP = -1, -2, -3, 1, 2  # the same constants as in sim.runtime.stubs
NOT_STEPPED = (
    f"the host accessed memory next to the memory of pending work more than {MOST_STEPS:,} times; some of its"
    " later reads there were not checked"
)
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_longlong,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_int,
)
PR_SET_PDEATHSIG = 1  # an option of prctl(2)
CLEAN, ERRORS, COULD_NOT_RUN, SIMULATOR_FAILED = range(4)
MODULES = (
    (REGISTRATION | LAUNCHES, handlers_launch),
    (MEMORY, handlers_memory),
    (COPIES, handlers_copies),
    (DEVICE, handlers_device),
    (GRAPHS, handlers_graphs),
    (DRIVER, handlers_driver),
    (BLAS, handlers_blas),
)
HANDLERS = {name: getattr(module, name) for table, module in MODULES for name in table}
HANDLERS |= {name: getattr(handlers_launch, name) for name in SIGNATURES if name.endswith("_ptsz")}
RELOCATABLE = (
    "relocatable device code (nvcc -rdc=true), which launches from kernels and separate compilation need"
)
QUIET = {"cudaGetErrorString", "cudaGetErrorName", "cudaGetLastError", "cudaPeekAtLastError", *REGISTRATION}
NO_ERROR = {"cudaStreamQuery", "cudaEventQuery"}
# functions that return the error of an aborted kernel, without any other effect
AFTER_ABORT = MEMORY.keys() | COPIES.keys() | GRAPHS.keys()
AFTER_ABORT |= {name for name in DEVICE if name.startswith(("cudaStream", "cudaEvent"))}


class Program:
    """A running program: its stubs, its library and the Device.

    library: the path of the program's shared library.
    name: the program's name in messages.
    """

    def __init__(self, library: Path, name: str, device: Device) -> None:
        self.library, self.name, self.device = library, name, device
        needed = needed_functions(library)
        # NVRTC compiles on the CPU, so the program uses the real library if it is installed
        if any(name.startswith("nvrtc") for name in needed) and load_nvrtc():
            needed = [name for name in needed if not name.startswith("nvrtc")]
        if not set(ENTRY_POINTS).isdisjoint(needed):
            needed += DRIVER.keys() - set(needed)
        self.names = needed
        self.sites: CallSites | None = None
        self.lock, self.status = threading.RLock(), 0
        self.callback = CALLBACK(self.dispatch)
        self.texts: dict[str, Any] = {}
        device.text = self.text

    def text(self, value: str) -> int:
        """Return the address of a C string that stays valid."""
        kept = self.texts.setdefault(value, ctypes.create_string_buffer(value.encode()))
        return ctypes.addressof(kept)

    def load(self, folder: Path) -> ctypes.CDLL:
        """Load the stubs and the program. Return the program.

        Raise LaunchError if the stubs cannot be compiled, and OSError if a library cannot be loaded.
        """
        stubs = ctypes.CDLL(str(compile_stubs(self.names, folder)), mode=ctypes.RTLD_GLOBAL)
        stubs.sim_connect(self.callback)
        stubs.sim_registered.argtypes = ctypes.c_size_t, ctypes.c_size_t
        self.device.memory.registered_changed = stubs.sim_registered
        self.device.entry_point = lambda name: address_of(stubs, name)
        sys.stdout = Output(stubs)
        program = ctypes.CDLL(str(self.library))
        if not hasattr(program, "main"):
            raise LaunchError(f"{self.library}: the program has no main()")
        self.sites = CallSites(self.library, load_address(program))
        return program

    # --- calls ----------------------------------------------------------------------------------------------

    def dispatch(self, index: int, arguments: Any, frames: Any, count: int) -> int:
        """Execute one call of the program. Let no exception escape, because ctypes would only print it."""
        with self.lock:
            try:
                if index == FINISH:  # the program has called exit()
                    self.status = arguments[0] & 0xFF
                    self.finish()
                if index == FAULT:
                    return self.fault(arguments[0], bool(arguments[1]), frames[:count])
                if index == STEPPED:
                    self.device.streams.close_stepped()
                    return 0
                return self.call(self.names[index], arguments, frames[:count])
            except FirstFinding:
                self.finish(early=True)
            except SimulatorError as error:
                print(f"sim: error: {error}", file=sys.stderr, flush=True)
                leave(COULD_NOT_RUN)
            except BaseException:
                traceback.print_exc()
                print("sim: error: the simulator failed; the program was not checked", file=sys.stderr)
                leave(SIMULATOR_FAILED)
        return 0

    def call(self, name: str, arguments: Any, frames: list[int]) -> int:
        """Execute a runtime function with access to all memory. Return its result."""
        streams = self.device.streams
        streams.open()
        try:
            report_late_writes(self.device)
            return self.execute(name, arguments, frames)
        finally:
            streams.close()

    def execute(self, name: str, arguments: Any, frames: list[int]) -> int:
        """Execute a runtime function. Return its result."""
        device = self.device
        device.call = self.sites.of_frames(frames) if self.sites and name not in QUIET else UNKNOWN
        if name not in HANDLERS:
            device.could_not_run = True
            what = RELOCATABLE if name.startswith("__cudaRegisterLinkedBinary") else "this function"
            device.report("unsupported", "error", f"{name}: sim does not simulate {what}")
            return device.fail(NOT_SUPPORTED)
        parameters, _, result = SIGNATURES[name].partition(":")
        reported = device.log.seen.total()
        values = [convert(arguments[i], letter) for i, letter in enumerate(parameters)]
        if device.sticky and name in AFTER_ABORT:
            answer = device.sticky
        else:
            answer = HANDLERS[name](device, *values) or 0
        if answer and not result and name not in QUIET | NO_ERROR:
            self.failed(name, answer, device.log.seen.total() > reported)
        return answer

    def failed(self, name: str, code: int, reported: bool) -> None:
        """Record the error of a call, and the call if the program ignores its result.

        reported: whether a finding already states the fault. The call is then recorded only if it is a
            launch, because the results of the launch are missing.
        """
        device = self.device
        if name not in DRIVER and name not in BLAS:
            device.fail(code)
        consequence = device.sticky and any(known == device.sticky for _, known in device.unchecked.values())
        consequence = consequence or reported and "LaunchKernel" not in name
        if not consequence and ignores_result(device.call, name):
            device.unchecked.setdefault(device.call, (name, code))

    def fault(self, address: int, write: bool, frames: list[int]) -> int:
        """Handle a SIGSEGV of the host.

        Return REPEAT if the host may repeat its access, or STEP if it may execute only this one instruction
        before the process calls `close_stepped`. Return 0 for a fault of another kind.

        Report an access to memory that pending work uses. Report an access to a device address or beyond
        managed or pinned memory, and end the program.
        """
        device, memory = self.device, self.device.memory
        device.call = self.sites.of_frames(frames) if self.sites else UNKNOWN
        watched, pending = device.streams.take(address, write, device.call)
        if pending is not None:
            report_early_access(device, address, "writes" if write else "reads", pending)
        if watched and pending is None and can_step():
            if device.streams.step():
                return STEP
            device.log.notes[NOT_STEPPED] = None
        if watched:
            return REPEAT
        buffer = memory.find(address) or memory.find_freed(address)
        near = memory.find_near(address) if buffer is None else None
        if near is not None:
            report_fault(device, near, address, write)
            self.finish(early=True)
        if buffer is None:
            # The fault ends the program. Its cause is often a failed call that the program has ignored.
            report_unchecked(device)
            return 0
        kind, fix = (
            "host-access",
            "copy it to host memory with cudaMemcpy, or allocate it with cudaMallocManaged",
        )
        if buffer.freed:
            kind, fix = "use-after-free", "free it after its last use"
        use = f"was freed at {buffer.freed}" if buffer.freed else "is device memory"
        device.report(kind, "error", f"the host accesses {address:#x}, in {buffer}, which {use}", fix)
        self.finish(early=True)
        return 0

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, early: bool = False) -> None:
        """Print the summary, and end the process.

        early: whether a finding ends the program. Otherwise, memory that it has not freed is reported.
        """
        device, log = self.device, self.device.log
        log.first_only = False
        device.streams.open()
        report_late_writes(device)
        for buffer in device.memory.buffers.values():
            device.call = buffer.site
            report_overruns(device, buffer)
        if not early and not device.sticky:
            report_leaks(device)
        report_unchecked(device)
        ctypes.CDLL(None).fflush(None)
        log.write_diagnostics()
        print(log.summary(self.name, self.status), file=sys.stderr, flush=True)
        leave(COULD_NOT_RUN if device.could_not_run else ERRORS if log.errors or self.status else CLEAN)


def can_step() -> bool:
    """Return whether the host can execute a single instruction and then raise a signal."""
    return os.uname().machine == "x86_64"


def load_nvrtc() -> bool:
    """Make the functions of NVRTC available to the program. Return whether the library is installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    for path in (path for folder in folders for path in sorted(folder.glob("*/lib/libnvrtc.so.*"))):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        return True
    return False


def address_of(library: ctypes.CDLL, name: str) -> int | None:
    """Return the address of a function of a library, or None."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value if hasattr(library, name) else None


class Output:
    """Replacement for sys.stdout that writes to the C library's buffer.

    Lines printed by kernels and by the host therefore stay in order.
    """

    def __init__(self, stubs: ctypes.CDLL) -> None:
        self.stubs = stubs

    def write(self, text: str) -> int:
        self.stubs.sim_print(text.encode())
        return len(text)

    def flush(self) -> None:
        pass


def convert(word: int, letter: str) -> int:
    """Return a C argument as a Python int.

    letter: the argument's type, as in sim.runtime.signatures.
    """
    return (
        ctypes.c_int(word & 0xFFFFFFFF).value
        if letter == "i"
        else word & 0xFFFFFFFF
        if letter == "u"
        else word
    )


def report_early_access(device: Device, address: int, action: str, pending: Pending) -> None:
    """Report an access of the host to memory that pending work uses.

    action: the verb, followed by the place of the access unless it is the current call site.
    """
    device.report(
        "unsynchronized-access",
        "error",
        f"the host {action} {address:#x} although it has not waited for the work issued at {pending.site}:"
        f" {pending.what}",
        "wait first, with cudaStreamSynchronize, cudaEventSynchronize or cudaDeviceSynchronize",
    )


def report_late_writes(device: Device) -> None:
    """Report the host's writes to memory of pending work since the last call."""
    for address, pending, site in device.streams.late_writes():
        device.call = site
        report_early_access(device, address, "writes, here or later before a call,", pending)


def report_unchecked(device: Device) -> None:
    """Report failed calls whose error the program has not read."""
    for site, (name, code) in device.unchecked.items():
        device.call = site
        device.report("unchecked-error", "warning", *verdict_and_fix(name, code))
    device.unchecked.clear()


def report_leaks(device: Device) -> None:
    """Report device memory that the program has not freed, once for each line that allocated it."""
    by_site: dict = {}
    for buffer in device.memory.buffers.values():
        if buffer.kind != "symbol":
            by_site.setdefault(buffer.site, []).append(buffer.root.size)
    for site, sizes in by_site.items():
        device.call = site
        what = f"{len(sizes)} allocations" if len(sizes) > 1 else "an allocation"
        verdict = (
            f"{what} of {sum(sizes):,} bytes in total is never freed"
            if len(sizes) == 1
            else (f"{what} of {sum(sizes):,} bytes in total are never freed")
        )
        device.report("leak", "warning", verdict, "cudaFree(pointer) at the end")


def leave(status: int) -> None:
    """End the process without running exit handlers, because they belong to the program."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def main(settings: dict, arguments: list[str]) -> None:
    """Run a program with the settings that sim.runtime.command passes."""
    sys.stderr.reconfigure(errors="backslashreplace")
    # If the command that started this process is killed, this process ends too.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folder, output = (Path(settings[name]) if settings[name] else None for name in ("report", "output"))
    log = Log(settings["first_finding"], folder, settings["format"], output)
    names = {observer.__name__.lower(): observer for observer in DEFAULT}
    observers = tuple(names[name] for name in settings["observers"] or names)
    options = Options(settings["engine"], tuple(settings["seeds"]), observers, settings["max_steps"])
    library = Path(settings["library"])
    with tempfile.TemporaryDirectory(prefix="sim-run-") as folder:
        try:
            spec = DeviceSpec()
            if settings["multiprocessors"] is not None:
                spec = replace(spec, multiprocessors=settings["multiprocessors"])
            device = Device(options, log, spec, warnings=warnings_of(library))
            program = Program(library, settings["name"], device)
            loaded = program.load(Path(folder))
        except (SimulatorError, OSError) as error:
            print(f"python -m sim run: error: {error}", file=sys.stderr)
            leave(COULD_NOT_RUN)
    texts = [os.fsencode(text) for text in (settings["name"], *arguments)]
    argv = (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
    program.status = loaded.main(len(texts), argv) & 0xFF
    program.finish()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
