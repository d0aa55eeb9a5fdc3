"""How functions are compiled that only compiled code calls: to be linked into it, and never made machine code
of their own, which took half of the time in LLVM and stayed in memory."""

import gc
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from llvmlite.binding import parse_bitcode
from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, compile_result
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import Environment, lookup_environment
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typed_passes import NativeLowering, NopythonRewrites
from numba.core.untyped_passes import InlineClosureLikes

from sim.native.cache import ROOT, Kept, KeptOwn


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

    @classmethod
    def rebuilt(cls, codegen, name, bitcode):
        """The library that `closed` has described."""
        library = cls(codegen, name)
        library._final_module = library._shared_module = parse_bitcode(bitcode)
        library._finalize_final_module()
        return library

    def closed(self):
        """Its code, in which every function has a name that means the same in each process, or none."""
        module = self._get_module_for_linking().clone()
        for function in module.functions:
            if not function.is_declaration and function.name not in STABLE:
                function.linkage = "internal"
        return module.as_bitcode()


# --- functions of ours, which are kept ----------------------------------------------------------------------

STABLE = set()  # names of compiled functions that stand for the same code in each process


def is_ours(function):
    """Whether a function is known by its module, name and line: one of a file of `sim`, and no closure."""
    code = function.__code__
    inside = Path(code.co_filename).is_relative_to(ROOT) and function.__closure__ is None
    return inside and "<" not in function.__qualname__


class KeptLinked(KeptOwn):
    def reduced(self, result):
        description = result.fndesc
        description.typemap = description.calltypes = None  # not needed any more, and large
        return result.library.name, result.library.closed(), description, result.signature

    def rebuilt(self, context, name, bitcode, description, signature):
        STABLE.add(description.mangled_name)
        library = LinkedLibrary.rebuilt(context.codegen(), name, bitcode)
        environment = Environment.from_fndesc(description)
        return compile_result(
            typing_context=cpu_target.typing_context,
            target_context=context,
            library=library,
            environment=environment,
            entry_point=context.get_executable(library, description, environment),
            fndesc=description,
            signature=signature,
            objectmode=False,
            lifted=(),
            reload_init=(),
            referenced_envs=(),
        )


class Own(CPUDispatcher):
    """Compiles a function of ours once for all numbers of a type, literal or not, and keeps it on disk."""

    def __init__(self, function, **options):
        super().__init__(function, **options)
        self._cache = KeptLinked(function)

    def get_call_template(self, arguments, keywords):
        return super().get_call_template([*map(types.unliteral, arguments)], keywords)


# --- Numba's compiler ---------------------------------------------------------------------------------------


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToLink(NativeLowering):
    _name = "lower_to_link"

    def run_pass(self, state):
        function = state.func_id.func
        if is_ours(function):
            state.func_id.unique_id = -function.__code__.co_firstlineno
        state.library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        changed = super().run_pass(state)
        if is_ours(function):
            STABLE.add(state.cr.fndesc.mangled_name)
        return changed


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


@register_pass(mutates_CFG=True, analysis_only=False)
class InlineClosures(InlineClosureLikes):
    """Only where there is one."""

    _name = "inline_closures"

    def run_pass(self, state):
        constants = state.func_id.func.__code__.co_consts
        return any(isinstance(value, CodeType) for value in constants) and super().run_pass(state)


INSTEAD = {InlineClosureLikes: InlineClosures, NativeLowering: None}  # Numba's step -> ours, or `lower`


class Compiler(CompilerBase):
    """Numba's own compiler without what kernels have no use for; `lower`: its last step."""

    def define_pipelines(self):
        passes = PassManager(self.lower._name)
        passes.passes = [
            (INSTEAD.get(step, step) or self.lower, what)
            for step, what in DefaultPassBuilder.define_nopython_pipeline(self.state).passes
            if step is not NopythonRewrites  # of arrays of numpy's, which no kernel has
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
    dispatcher = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, pipeline_class=External)(
        function
    )
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


def linked(**options):
    """The decorator of a function that only compiled code calls."""
    targets = {name: value for name, value in INTERNAL.items() if name != "pipeline_class"}

    def decorate(function):
        dispatcher = Own if is_ours(function) else CPUDispatcher
        options_of_target = {"nopython": True, "boundscheck": None, **targets, **options}
        return dispatcher(function, targetoptions=options_of_target, pipeline_class=Internal)

    return decorate


compiled = linked()
always = linked(forceinline=True)
recursive = njit(error_model="numpy")  # what calls itself must have an address
