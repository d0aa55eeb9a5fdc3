"""Numba compiler pipelines for functions that only compiled code calls.

By default, Numba optimises each function to machine code, and links a copy of it into each caller. Functions
that are compiled here stay LLVM IR until they are linked into the grid function; LLVM then optimises
everything together, once. This halves the time spent in LLVM, and saves memory.
"""

import functools
from types import CodeType, FunctionType

from numba import njit, types
from numba.core import inline_closurecall, ir, lowering
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import lookup_environment
from numba.core.inline_closurecall import InlineClosureCallPass
from numba.core.ir_utils import dead_code_elimination, fixup_var_define_in_scope
from numba.core.postproc import PostProcessor
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typed_passes import IRLegalization, NativeLowering, NopythonRewrites, NopythonTypeInference
from numba.core.untyped_passes import InlineClosureLikes
from numba.extending import intrinsic

from sim.native.codegen.cache import MachineCodeCache


class NoEnvironment:
    """A replacement for the code generator of a library that never becomes machine code. Numba registers a
    function's environment there; LowerToRun registers it for the function that links the library."""

    def set_env(self, name, environment):
        pass


class LinkedLibrary(JITCodeLibrary):
    """The LLVM IR of a function that is not compiled to machine code by itself."""

    codegen = NoEnvironment()

    def add_ir_module(self, module):
        for function in module.functions:
            if function.blocks:
                # Several libraries may define the same function; the linker keeps one definition.
                function.linkage = "linkonce_odr"
        super().add_ir_module(module)

    def add_llvm_module(self, module):
        self._final_module = module

    def finalize(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self):
        """Return the IR, with its dependencies linked in. Numba calls this when one of its own libraries
        links against this one."""
        return link_needed(self._final_module.clone(), self)

    def get_pointer_to_function(self, name):
        """Return 0: there is no machine code."""
        return 0


class RunLibrary(JITCodeLibrary):
    """The machine code of a function that Python calls, with each of its dependencies linked in once."""

    def add_llvm_module(self, module):
        self._final_module.link_in(module)

    def finalize(self):
        link_needed(self._final_module, self)
        self._linking_libraries = []
        super().finalize()

    def _optimize_final_module(self):
        """Run LLVM's module passes once."""
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


def link_needed(module, library):
    """Link all libraries that `library` needs into `module`, and return it. Callers are linked before their
    callees, because LLVM drops functions that have no caller yet."""
    for other in reversed(collect_libraries(library, {})):
        linked = isinstance(other, LinkedLibrary)
        module.link_in(other._final_module if linked else other._get_module_for_linking(), preserve=True)
    return module


def collect_libraries(library, found):
    """Add all libraries that `library` needs, directly or indirectly, to the dictionary `found`, and return
    it. Callees come before their callers."""
    for other in library._linking_libraries:
        if other not in found:
            if isinstance(other, LinkedLibrary):
                collect_libraries(other, found)
            found[other] = None
    return found


class NonLiteralDispatcher(CPUDispatcher):
    """A Numba dispatcher that ignores literal types. Numba would otherwise compile a function once for each
    constant that is passed to it."""

    def get_call_template(self, arguments, keywords):
        return super().get_call_template([*map(types.unliteral, arguments)], keywords)


# --- Numba's compiler passes --------------------------------------------------------------------------------


@functools.cache
def bytes_of(llvm_type):
    """Return the size of an LLVM type in bytes."""
    return cpu_target.target_context.get_abi_sizeof(llvm_type)


class Lower(lowering.Lower):
    """Numba's lowering to LLVM, with two changes that save time.

    Reference counting is disabled if no variable needs it. (A list in a reference implementation does.) Sizes
    of types are cached; Numba asks LLVM for the size of every variable.
    """

    def init(self):
        super().init()
        models = self.context.data_model_manager
        self.context.enable_nrt = any(
            models[numba_type].contains_nrt_meminfo() for numba_type in set(self.fndesc.typemap.values())
        )
        self.context.get_abi_sizeof = bytes_of

    def delvar(self, name):
        if self.context.enable_nrt:
            super().delvar(name)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToLink(NativeLowering):
    """The final pass for functions that only compiled code calls."""

    _name = "lower_to_link"
    lowering_class = Lower

    def run_pass(self, state):
        state.library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToRun(NativeLowering):
    """The final pass for functions that Python calls."""

    _name = "lower_to_run"
    lowering_class = Lower

    def run_pass(self, state):
        library = state.library = RunLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        changed = super().run_pass(state)
        # Linked functions refer to environments that must be registered with this library.
        for variable in library._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None:
                library.codegen.set_env(variable.name, environment)
        return changed


def remove_dead_code(function):
    """Run Numba's dead-code elimination on a function's IR, but keep stores to arrays that runtime functions
    return. Numba takes these arrays for local objects, and would drop the stores."""
    stored = {
        store.target.name for block in function.blocks.values() for store in block.find_insts(ir.SetItem)
    }
    dead_code_elimination(function, alias_map={}, arg_aliases=stored)


class ClosureInlining(InlineClosureCallPass):
    """Numba's closure inlining, with `remove_dead_code` in place of its dead-code elimination."""

    run = FunctionType(
        InlineClosureCallPass.run.__code__,
        vars(inline_closurecall) | {"dead_code_elimination": remove_dead_code},
    )


@register_pass(mutates_CFG=True, analysis_only=False)
class InlineClosures(InlineClosureLikes):
    """A pass that runs closure inlining only for functions that contain an inner function."""

    _name = "inline_closures"

    def run_pass(self, state):
        if not any(isinstance(value, CodeType) for value in state.func_id.func.__code__.co_consts):
            return False
        ClosureInlining(
            state.func_ir, state.flags.auto_parallel, state.parfor_diagnostics.replaced_fns, True
        ).run()
        PostProcessor(state.func_ir).run()
        fixup_var_define_in_scope(state.func_ir.blocks)
        return True


class CachedTyping:
    """Numba's typing context, with a cache for the types of calls. Type inference is iterative, and resolves
    each call again in every iteration."""

    def __init__(self, context):
        self.context, self.known = context, {}

    def __getattr__(self, name):
        return getattr(self.context, name)

    def resolve_function_type(self, called, given, named):
        # Dispatchers compile the callee and cache by themselves.
        if named or isinstance(called, types.Dispatcher):
            return self.context.resolve_function_type(called, given, named)
        key = called, tuple(given)
        if key not in self.known:
            self.known[key] = self.context.resolve_function_type(called, given, named)
        return self.known[key]


@register_pass(mutates_CFG=True, analysis_only=False)
class CachedTypeInference(NopythonTypeInference):
    """Type inference with CachedTyping."""

    _name = "typing"

    def run_pass(self, state):
        context, state.typingctx = state.typingctx, CachedTyping(state.typingctx)
        try:
            return super().run_pass(state)
        finally:
            state.typingctx = context


# Numba's pass -> replacement; None for the final pass, which depends on the compiler
REPLACED_PASSES = {
    InlineClosureLikes: InlineClosures,
    NopythonTypeInference: CachedTypeInference,
    NativeLowering: None,
}
# Passes to skip, because kernels need neither array-expression rewrites nor reference counting.
SKIPPED_PASSES = {NopythonRewrites, IRLegalization}


class Compiler(CompilerBase):
    """Numba's compiler without the passes that kernels do not need.

    lower: the final pass.
    """

    def define_pipelines(self):
        passes = PassManager(self.lower._name)
        passes.passes = [
            (REPLACED_PASSES.get(step, step) or self.lower, what)
            for step, what in DefaultPassBuilder.define_nopython_pipeline(self.state).passes
            if step not in SKIPPED_PASSES
        ]
        passes.finalize()
        return [passes]


class Internal(Compiler):
    """The compiler for functions that only compiled code calls."""

    lower = LowerToLink


class External(Compiler):
    """The compiler for functions that Python calls."""

    lower = LowerToRun


def kernel(function):
    """Compile a function for calls from Python, and cache its machine code on disk
    (sim.native.codegen.cache)."""
    dispatcher = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, pipeline_class=External)(
        function
    )
    dispatcher._cache = MachineCodeCache(function)
    return dispatcher


def intrinsic_of(name, parameters, typed, **options):
    """Return a Numba intrinsic called `name`.

    parameters: names of its parameters.
    typed: a function (typing, *types) that returns (signature, code generator), or None for types that the
        intrinsic does not accept.
    options: for numba.extending.intrinsic.
    """
    # Numba requires a function with explicit parameters.
    names = ", ".join(parameters)
    made = {"typed": functools.partial(typed_without_none, typed)}
    exec(f"def {name}(typing, {names}):\n    return typed(typing, {names})", made)
    return intrinsic(**options)(made[name]) if options else intrinsic(made[name])


def typed_without_none(typed, typing, *given):
    """Return `typed(typing, *given)`. If no signature fits operands that may be None, use their non-None
    types; a None then raises TypeError at run time. (Numba has such a fallback, but it fails for
    intrinsics.)"""
    found = typed(typing, *given)
    if found is None and any(isinstance(numba_type, types.Optional) for numba_type in given):
        return typed(typing, *(t.type if isinstance(t, types.Optional) else t for t in given))
    return found


INTERNAL = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": Internal,
}
LIKE_CODE = {"jit_options": INTERNAL}  # keyword arguments for numba.extending.overload


def linked(**options):
    """Return a decorator for functions that only compiled code calls."""
    targets = {name: value for name, value in INTERNAL.items() if name != "pipeline_class"}
    options = {"nopython": True, "boundscheck": None, **targets, **options}
    return lambda function: NonLiteralDispatcher(function, targetoptions=options, pipeline_class=Internal)


compiled = linked()  # regions and device functions of a kernel
inline_always = linked(forceinline=True)  # runtime functions
# a recursive function needs an address, so it is compiled to machine code
recursive = njit(error_model="numpy", pipeline_class=External)
