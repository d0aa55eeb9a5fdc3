"""Compilation of functions that only compiled code calls. They are linked into their callers, and never
become machine code by themselves, which took half of the time in LLVM and stayed in memory."""

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

from sim.native.codegen.cache import Kept


class NoEnvironment:
    """A replacement for the code generator of a library that is only linked. Numba records a function's
    environment there; here the caller that links the function does (`LowerToRun`)."""

    def set_env(self, name, environment):
        pass


class LinkedLibrary(JITCodeLibrary):
    """The LLVM code of a function. The libraries it needs are linked where it becomes machine code."""

    codegen = NoEnvironment()

    def add_ir_module(self, module):
        for function in module.functions:
            if function.blocks:
                function.linkage = "linkonce_odr"
        super().add_ir_module(module)

    def add_llvm_module(self, module):
        self._final_module = module

    def finalize(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self):
        """Return the module for one of Numba's own libraries."""
        return link_needed(self._final_module.clone(), self)

    def get_pointer_to_function(self, name):
        return 0


class RunLibrary(JITCodeLibrary):
    """The machine code of a function and of all that it needs, each linked once."""

    def add_llvm_module(self, module):
        self._final_module.link_in(module)

    def finalize(self):
        link_needed(self._final_module, self)
        self._linking_libraries = []
        super().finalize()

    def _optimize_final_module(self):
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


def link_needed(module, library):
    """Return `module` linked with the libraries that `library` needs. A function comes after its callers,
    because LLVM drops functions that have no caller yet."""
    for other in reversed(collect_libraries(library, {})):
        linked = isinstance(other, LinkedLibrary)
        module.link_in(other._final_module if linked else other._get_module_for_linking(), preserve=True)
    return module


def collect_libraries(library, found):
    """Add all libraries that one needs to the dictionary `found`, callees before their callers, and return
    it."""
    for other in library._linking_libraries:
        if other not in found:
            if isinstance(other, LinkedLibrary):
                collect_libraries(other, found)
            found[other] = None
    return found


class NonLiteralDispatcher(CPUDispatcher):
    """A dispatcher that compiles a function once for all numbers of a type, literal or not."""

    def get_call_template(self, arguments, keywords):
        return super().get_call_template([*map(types.unliteral, arguments)], keywords)


# --- Numba's compiler ---------------------------------------------------------------------------------------


@functools.cache
def bytes_of(llvm_type):
    return cpu_target.target_context.get_abi_sizeof(llvm_type)


class Lower(lowering.Lower):
    """Numba's lowering without reference counting, where no variable is counted. (A list in an
    instruction's reference implementation is counted.) Numba asks LLVM for the size of each variable; this
    class asks once for each type."""

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
    _name = "lower_to_link"
    lowering_class = Lower

    def run_pass(self, state):
        state.library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToRun(NativeLowering):
    _name = "lower_to_run"
    lowering_class = Lower

    def run_pass(self, state):
        library = state.library = RunLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        changed = super().run_pass(state)
        for variable in library._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None:
                library.codegen.set_env(variable.name, environment)
        return changed


def remove_dead_code(function):
    """Run Numba's removal of dead code, but keep stores into arrays that runtime functions returned. Numba
    would drop those stores."""
    stored = {
        store.target.name for block in function.blocks.values() for store in block.find_insts(ir.SetItem)
    }
    dead_code_elimination(function, alias_map={}, arg_aliases=stored)


class ClosureInlining(InlineClosureCallPass):
    run = FunctionType(
        InlineClosureCallPass.run.__code__,
        vars(inline_closurecall) | {"dead_code_elimination": remove_dead_code},
    )


@register_pass(mutates_CFG=True, analysis_only=False)
class InlineClosures(InlineClosureLikes):
    """A pass that skips closure inlining when there is no inner function."""

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
    """Numba's typing context with a cache: it resolves a call with the same types once for each function.
    Numba resolves it in each iteration of type inference."""

    def __init__(self, context):
        self.context, self.known = context, {}

    def __getattr__(self, name):
        return getattr(self.context, name)

    def resolve_function_type(self, called, given, named):
        if named or isinstance(called, types.Dispatcher):
            return self.context.resolve_function_type(called, given, named)
        key = called, tuple(given)
        if key not in self.known:
            self.known[key] = self.context.resolve_function_type(called, given, named)
        return self.known[key]


@register_pass(mutates_CFG=True, analysis_only=False)
class CachedTypeInference(NopythonTypeInference):
    _name = "typing"

    def run_pass(self, state):
        context, state.typingctx = state.typingctx, CachedTyping(state.typingctx)
        try:
            return super().run_pass(state)
        finally:
            state.typingctx = context


# Numba's step -> ours, or `lower`
REPLACED_PASSES = {
    InlineClosureLikes: InlineClosures,
    NopythonTypeInference: CachedTypeInference,
    NativeLowering: None,
}
# Skipped passes: array rewrites, and `del`s for reference counts. Kernels have neither.
SKIPPED_PASSES = {NopythonRewrites, IRLegalization}


class Compiler(CompilerBase):
    """Numba's compiler without the passes that kernels do not need. `lower`: its last pass."""

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
    lower = LowerToLink


class External(Compiler):
    lower = LowerToRun


def kernel(function):
    """Compile `function` for calls from Python, and cache it on disk (sim.native.codegen.cache)."""
    dispatcher = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, pipeline_class=External)(
        function
    )
    dispatcher._cache = Kept(function)
    return dispatcher


def intrinsic_of(name, parameters, typed, **options):
    """Return an intrinsic with these parameters. `typed(typing, *types)` returns its signature and code,
    or None if it takes no arguments of these types."""
    names = ", ".join(parameters)
    made = {"typed": functools.partial(typed_without_none, typed)}
    exec(f"def {name}(typing, {names}):\n    return typed(typing, {names})", made)
    return intrinsic(**options)(made[name]) if options else intrinsic(made[name])


def typed_without_none(typed, typing, *given):
    """Return the signature and code for operands that may be None. Each is converted to its other type,
    and a None raises TypeError. (Numba tries that too, with a list that its intrinsics cannot hash.)"""
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
LIKE_CODE = {"jit_options": INTERNAL}  # for `overload`


def linked(**options):
    """Return the decorator of a function that only compiled code calls."""
    targets = {name: value for name, value in INTERNAL.items() if name != "pipeline_class"}
    options = {"nopython": True, "boundscheck": None, **targets, **options}
    return lambda function: NonLiteralDispatcher(function, targetoptions=options, pipeline_class=Internal)


compiled = linked()  # for regions and device functions of a kernel
inline_always = linked(forceinline=True)  # for runtime functions
recursive = njit(error_model="numpy", pipeline_class=External)  # a recursive function needs an address
