"""Two tiers of machine code for a kernel.

Most kernels run for a few milliseconds, and LLVM can need more than a second to optimise one. Therefore, the
machine code of a grid function is first generated quickly (sim.native.codegen.linking.QuickLibrary). This
quick code takes 1.5 to 2.7 times as long to run as optimised code. When it has run for SECONDS in this
process, optimised code replaces it, between two blocks or two launches, if this saves time.
"""

import time
from contextlib import contextmanager

from llvmlite.binding import parse_bitcode
from numba._dynfunc import make_function
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment

from sim.native.codegen.linking import RunLibrary
from sim.native.codegen.refreshes import failures_forgotten

SECONDS = 0.2  # CPU time in quick code before which no kernel is optimised
BYTES = 1 << 17  # the number of bytes of LLVM bitcode that are optimised in a second of CPU time
SAVED = 0.5  # the fraction of the time of quick code that optimised code saves
# This suffix is appended to every name that the optimised code defines, because the quick code in the same
# process defines the same names.
SUFFIX = ".optimised"


class TieredFunction:
    """A grid function for one signature. It starts with quick machine code, and can later switch to optimised
    machine code.

    dispatcher: the Numba dispatcher of the grid function. It may have further signatures, because the checks
        of an array are a part of the array's type.
    """

    def __init__(self, dispatcher):
        self.dispatcher, self.typeof_pyval = dispatcher, dispatcher.typeof_pyval
        self.result = None  # Numba's CompileResult of the quick code, or None
        self.optimised = None  # the function that runs optimised code, or None
        self.seconds = 0.0  # the CPU time spent in quick code

    @property
    def is_compiled(self):
        return self.result is not None

    def compile(self, numba_types):
        """Generate quick machine code or load it from the cache. Load optimised code if the cache contains
        it."""
        with failures_forgotten(self.dispatcher):
            self.dispatcher.compile(numba_types)
        self.result = self.dispatcher.overloads[numba_types]
        state = self.dispatcher._cache.load_optimised(self.result.signature)
        if state:
            self.optimised = entry_point(self.result, self.codegen.unserialize_library(state))

    def __call__(self, *arguments):
        (self.optimised or self.dispatcher)(*arguments)

    @property
    def codegen(self):
        return self.result.library.codegen

    @property
    def seconds_to_optimise(self):
        """An estimate of the CPU time of `optimise`."""
        return len(self.result.library.unoptimised) / BYTES

    def saves_time(self, seconds):
        """Return whether `optimise` would save more CPU time than it takes, if quick code ran for `seconds`
        more."""
        return SAVED * seconds > self.seconds_to_optimise

    @contextmanager
    def timed(self):
        """Add the CPU time of the `with` block to `seconds`, if it runs quick code."""
        began, is_quick = time.thread_time(), self.optimised is None
        try:
            yield
        finally:
            if is_quick:
                self.seconds += time.thread_time() - began

    @global_compiler_lock
    def optimise(self):
        """Replace quick machine code with optimised code, and store the optimised code in the cache."""
        if self.optimised is None:
            library = optimised_library(self.result)
            self.optimised = entry_point(self.result, library)
            state = library.serialize_using_object_code()
            self.dispatcher._cache.save_optimised(self.result, state)


def entry_name(result):
    """Return the name of the function that Python calls, in the machine code of a CompileResult."""
    return result.fndesc.llvm_cpython_wrapper_name


def optimised_library(result):
    """Return a RunLibrary with the optimised code of a CompileResult."""
    quick = result.library
    library = RunLibrary(quick.codegen, quick.name + SUFFIX)
    library.enable_object_caching()
    module = library._final_module = parse_bitcode(quick.unoptimised)
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration:
            value.name += SUFFIX
    # LLVM inlines a function that has only one call if no other library can call it.
    for function in module.functions:
        if not function.is_declaration and function.name != entry_name(result) + SUFFIX:
            function.linkage = "internal"
    library.finalize()
    return library


def entry_point(result, library):
    """Return the Python function that runs the optimised code in `library`.

    result: the CompileResult of the quick code.
    """
    for variable in library._get_module_for_linking().global_variables:
        environment = lookup_environment(variable.name.removesuffix(SUFFIX))
        if environment is not None:
            library.codegen.set_env(variable.name, environment)
    pointer = library.get_pointer_to_function(entry_name(result) + SUFFIX)
    description, name = result.fndesc, result.fndesc.qualname.split(".")[-1]
    return make_function(description.lookup_module(), name, "", pointer, result.environment, (library,))
