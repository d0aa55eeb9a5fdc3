"""Numba compiler pipelines for functions called only by compiled code.

By default, Numba compiles each function to machine code, and links a copy of it into each of its callers. The
functions compiled here remain LLVM IR until they are linked into the grid function. LLVM then optimises
everything together, once. This halves the time spent in LLVM, and saves memory.
"""

import functools
from types import BuiltinFunctionType, CodeType, FunctionType
from weakref import WeakKeyDictionary

from llvmlite.binding import (
    Target,
    create_new_module_pass_manager,
    create_pass_builder,
    create_pipeline_tuning_options,
    get_process_triple,
)
from numba import njit, types
from numba.core import inline_closurecall, ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import lookup_environment
from numba.core.inline_closurecall import InlineClosureCallPass
from numba.core.ir_utils import dead_code_elimination, fixup_var_define_in_scope
from numba.core.postproc import PostProcessor
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import IRLegalization, NativeLowering, NopythonRewrites, NopythonTypeInference
from numba.core.untyped_passes import InlineClosureLikes
from numba.extending import intrinsic

from sim.native.codegen.builder import remove_unused
from sim.native.codegen.cache import MachineCodeCache
from sim.native.codegen.lowering import Lower
from sim.native.codegen.refreshes import failures_forgotten


class NoEnvironment:
    """A stand-in for the code generator of a library that never becomes machine code.

    Numba registers each function's environment with the code generator. LowerToRun instead registers it with
    the library into which the function is linked.
    """

    def set_env(self, name, environment):
        pass


class LinkedLibrary(JITCodeLibrary):
    """A library for a function that is not compiled to machine code separately. It contains LLVM IR."""

    codegen = NoEnvironment()

    def add_ir_module(self, module):
        for function in module.functions:
            if function.blocks:
                # Several libraries may contain the same function; the linker keeps one definition.
                function.linkage = "linkonce_odr"
        remove_unused(module)
        super().add_ir_module(module)

    def add_llvm_module(self, module):
        self._final_module = module

    def finalize(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self):
        """Return the IR of this library with all dependencies linked in, for a library of Numba's own."""
        return link_needed(self._final_module.clone(), self)

    def get_pointer_to_function(self, name):
        """Return 0, because there is no machine code."""
        return 0


class RunLibrary(JITCodeLibrary):
    """A library for a function that is compiled to machine code. Each dependency is linked in once."""

    def add_ir_module(self, module):
        remove_unused(module)
        super().add_ir_module(module)

    def add_llvm_module(self, module):
        self._final_module.link_in(module)

    def finalize(self):
        link_needed(self._final_module, self)
        self._linking_libraries = []
        super().finalize()

    def _optimize_final_module(self):
        """Run LLVM's module passes once, after everything has been linked.

        Loops are neither unrolled nor vectorised. The checks of accesses prevent most of these optimisations,
        and the machine code would be larger.

        At level 3, LLVM takes up to a quarter longer than at level 1, and the machine code is not faster.
        """
        options = create_pipeline_tuning_options(speed_level=1)
        options.loop_unrolling = options.loop_vectorization = options.loop_interleaving = False
        builder = create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


class QuickLibrary(RunLibrary):
    """A library whose machine code is generated quickly. sim.native.codegen.tiers optimises it later.

    It runs only the passes that pay for themselves: they remove instructions, so code generation takes less
    time.

    unoptimised: the bitcode of its module before these passes.
    """

    def _optimize_final_module(self):
        self.unoptimised = self._final_module.as_bitcode()
        builder = create_pass_builder(self._codegen._tm, create_pipeline_tuning_options(speed_level=1))
        passes = create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_global_dead_code_eliminate_pass()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(self._final_module, builder)
        self.object_code = quick_machine(self._codegen).emit_object(self._final_module)
        self._set_compiled_object(self.object_code)

    def finalize(self):
        super().finalize()
        # Loading has released the object code, but the cache still has to store it.
        self._set_compiled_object(self.object_code)


@functools.cache
def quick_machine(codegen):
    """Return an LLVM target machine like Numba's that generates code without optimising it."""
    options = {"opt": 0}
    codegen._customize_tm_options(options)
    return Target.from_triple(get_process_triple()).create_target_machine(**options)


def link_needed(module, library):
    """Link all libraries needed by `library` into `module`, and return the module.

    Callers are linked before their callees, because LLVM drops a function that has no caller yet.
    """
    for other in reversed(collect_libraries(library, {})):
        linked = isinstance(other, LinkedLibrary)
        module.link_in(other._final_module if linked else other._get_module_for_linking(), preserve=True)
    return module


def collect_libraries(library, found):
    """Add all libraries needed by `library`, directly or indirectly, to the dictionary `found`, and return
    `found`.

    Callees come before their callers.
    """
    for other in library._linking_libraries:
        if other not in found:
            if isinstance(other, LinkedLibrary):
                collect_libraries(other, found)
            found[other] = None
    return found


class NonLiteralDispatcher(CPUDispatcher):
    """A Numba dispatcher that ignores literal types. Otherwise, Numba would compile a function once for each
    constant passed by a caller."""

    def get_call_template(self, arguments, keywords):
        return super().get_call_template([*map(types.unliteral, arguments)], keywords)

    def compile(self, signature):
        with failures_forgotten(self):
            return super().compile(signature)


# --- Numba's compiler passes --------------------------------------------------------------------------------


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToLink(NativeLowering):
    """The final compiler pass for functions called only by compiled code."""

    _name = "lower_to_link"
    lowering_class = Lower

    def run_pass(self, state):
        state.library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToRun(NativeLowering):
    """The final compiler pass for functions that are compiled to machine code."""

    _name = "lower_to_run"
    lowering_class = Lower
    library_class = RunLibrary

    def run_pass(self, state):
        library = state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        changed = super().run_pass(state)
        # Linked functions refer to environments, which must be registered with this library.
        for variable in library._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None:
                library.codegen.set_env(variable.name, environment)
        return changed


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerToRunQuickly(LowerToRun):
    """The final compiler pass for grid functions."""

    _name = "lower_to_run_quickly"
    library_class = QuickLibrary


def remove_dead_code(function):
    """Run Numba's dead-code elimination on a function's IR, but keep all stores to arrays.

    Numba takes an array returned by a runtime function for a local object, and would drop stores to it.
    """
    stored = {
        store.target.name for block in function.blocks.values() for store in block.find_insts(ir.SetItem)
    }
    dead_code_elimination(function, alias_map={}, arg_aliases=stored)


class ClosureInlining(InlineClosureCallPass):
    """Numba's closure inlining, with `remove_dead_code` instead of Numba's dead-code elimination."""

    run = FunctionType(
        InlineClosureCallPass.run.__code__,
        vars(inline_closurecall) | {"dead_code_elimination": remove_dead_code},
    )


@register_pass(mutates_CFG=True, analysis_only=False)
class InlineClosures(InlineClosureLikes):
    """Compiler pass for closure inlining. It skips functions that contain no inner function."""

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


# classes of functions that Numba types as globals
FUNCTIONS = BuiltinFunctionType, type


class CachedTyping:
    """Numba's typing context, with a cache for the types of calls.

    Type inference iterates until the types no longer change, and resolves every call in every iteration.

    callees: {type of the callee: {types of the arguments: signature}}, shared by all kernels.
    operations: the same for operations, which have names such as "getitem".
    """

    callees, operations = WeakKeyDictionary(), {}

    def __init__(self, context):
        self.context = context

    def __getattr__(self, name):
        return getattr(self.context, name)

    def resolve_value_type(self, value):
        # Numba would first try to type a function as a value, which takes longer and fails.
        found = self.context._get_global_type(value) if isinstance(value, FUNCTIONS) else None
        return found or self.context.resolve_value_type(value)

    def resolve_function_type(self, called, given, named):
        # A Dispatcher compiles the callee, and has its own cache.
        if named or isinstance(called, types.Dispatcher):
            return self.context.resolve_function_type(called, given, named)
        known, given = self.callees if isinstance(called, types.Type) else self.operations, tuple(given)
        signatures = known.setdefault(called, {})
        found = signatures.get(given) or self.context.resolve_function_type(called, given, named)
        if found:
            signatures[given] = found
        return found


@register_pass(mutates_CFG=True, analysis_only=False)
class CachedTypeInference(NopythonTypeInference):
    """Compiler pass for type inference with CachedTyping."""

    _name = "typing"

    def run_pass(self, state):
        context, state.typingctx = state.typingctx, CachedTyping(state.typingctx)
        try:
            return super().run_pass(state)
        finally:
            state.typingctx = context


# Numba's pass -> the pass that replaces it. None marks the final pass, which differs between the compilers.
REPLACED_PASSES = {
    InlineClosureLikes: InlineClosures,
    NopythonTypeInference: CachedTypeInference,
    NativeLowering: None,
}
# These passes are skipped: kernels need neither array-expression rewrites nor reference counting.
SKIPPED_PASSES = {NopythonRewrites, IRLegalization}


class Compiler(CompilerBase):
    """Numba's compiler, without the passes unnecessary for kernels.

    lower: the final pass, set by subclasses.
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
    """The compiler for functions called only by compiled code."""

    lower = LowerToLink


class External(Compiler):
    """The compiler for recursive functions."""

    lower = LowerToRun


class Quick(Compiler):
    """The compiler for grid functions."""

    lower = LowerToRunQuickly


def kernel(function):
    """Compile a grid function, and cache its machine code on disk (sim.native.codegen.cache)."""
    dispatcher = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, pipeline_class=Quick)(function)
    dispatcher._cache = MachineCodeCache(function)
    return dispatcher


def intrinsic_of(name, parameters, typed, **options):
    """Return a Numba intrinsic.

    name: the intrinsic's name.
    parameters: the names of its parameters.
    typed: a function (typing, *types) that returns (signature, code generator), or None for types not
        accepted by the intrinsic.
    options: keyword arguments for numba.extending.intrinsic.
    """
    # Numba reads the parameters from the function's signature, so generate a function that lists them.
    names = ", ".join(parameters)
    made = {"typed": functools.partial(typed_without_none, typed)}
    exec(f"def {name}(typing, {names}):\n    return typed(typing, {names})", made)
    return intrinsic(**options)(made[name]) if options else intrinsic(made[name])


def typed_without_none(typed, typing, *given):
    """Return `typed(typing, *given)`. If no signature accepts operands that can be None, return the signature
    for operands that are never None.

    A None then raises TypeError at run time. Numba has the same fallback, but its own fails for intrinsics.
    """
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
    """Return a decorator for functions called only by compiled code.

    options: further options of Numba's compiler.
    """
    targets = {name: value for name, value in INTERNAL.items() if name != "pipeline_class"}
    options = {"nopython": True, "boundscheck": None, **targets, **options}
    return lambda function: NonLiteralDispatcher(function, targetoptions=options, pipeline_class=Internal)


compiled = linked()  # regions and device functions of a kernel
inline_always = linked(forceinline=True)  # runtime functions
# A recursive function needs an address, so it must be compiled to machine code.
recursive = njit(error_model="numpy", pipeline_class=External)
