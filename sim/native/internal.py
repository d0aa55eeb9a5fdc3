"""How functions are compiled that only compiled code calls: to be linked into it, and never made machine code
of their own, which took half of the time in LLVM and stayed in memory."""

import gc
from contextlib import contextmanager

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import NativeLowering

from sim.native.cache import Kept


class NoEnvironment:
    """Stands for the code generator of a library that is only linked, where Numba notes a function's
    environment: whoever links the function does (`LowerToRun`)."""

    def set_env(self, name, environment):
        pass


class LinkedLibrary(JITCodeLibrary):
    """The code of a function, optimized as far as linking needs."""

    codegen = NoEnvironment()

    def _optimize_final_module(self):
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToLink(NativeLowering):
    _name = "lower_to_link"

    def run_pass(self, state):
        state.library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToRun(NativeLowering):
    _name = "lower_to_run"

    def run_pass(self, state):
        changed, library = super().run_pass(state), state.library
        for variable in library._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None:
                library.codegen.set_env(variable.name, environment)
        return changed


class Compiler(CompilerBase):
    """Numba's own compiler but for `lower`."""

    def define_pipelines(self):
        passes = PassManager(self.lower._name)
        passes.passes = [
            (self.lower if step is NativeLowering else step, what)
            for step, what in DefaultPassBuilder.define_nopython_pipeline(self.state).passes
        ]
        passes.finalize()
        return [passes]


class Internal(Compiler):
    lower = LowerToLink


class External(Compiler):
    lower = LowerToRun


@contextmanager
def uncollected():
    """Python's garbage collector waits: a compiler makes millions of objects and little garbage, and looking
    through them took a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def kernel(function):
    """`function` compiled for Python to call, and kept on disk (sim.native.cache)."""
    dispatcher = njit(error_model="numpy", nogil=True, pipeline_class=External)(function)
    dispatcher._cache = Kept(function)
    return dispatcher


def call(context, builder, function, codes, kinds, cold=False):
    """The result of a call of a `compiled` function that raises nothing, with arguments of these Numba types:
    LLVM's values."""
    kinds = tuple(kinds)
    function.compile(kinds)
    result = function.overloads[kinds]
    context.active_code_library.add_linking_library(result.library)
    called = context.declare_function(builder.module, result.fndesc)
    _, value = context.call_conv.call_function(
        builder, called, result.signature.return_type, kinds, codes, attrs=["noinline"] if cold else []
    )
    return value


INTERNAL = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": Internal,
}
LIKE_CODE = {"jit_options": INTERNAL}  # for `overload`
compiled = njit(**INTERNAL)
recursive = njit(error_model="numpy")  # what calls itself must have an address
always = njit(**INTERNAL, forceinline=True)
