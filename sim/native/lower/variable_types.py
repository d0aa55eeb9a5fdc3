"""Type inference for the variables of a lowered kernel, by Numba's rules."""

import functools
import inspect

from numba import types
from numba.core import compiler
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.registry import cpu_target
from numba.core.typing.templates import signature

from sim.isa.table import BLOCK_WIDE, INSTRUCTIONS, WARP_WIDE, Like
from sim.native.codegen.linking import REPLACED_PASSES, CachedTypeInference, intrinsic_of
from sim.native.codegen.node_types import Inference, Untranslatable
from sim.native.codegen.scalars import numba_type_of

# The key for the type of a function's result. It contains a space, so it cannot be the name of a variable.
RESULT = "the result"


@register_pass(mutates_CFG=False, analysis_only=True)
class KeepTypes(AnalysisPass):
    """A compiler pass that ends the compilation, with the inferred types as its result."""

    _name = "keep_types"

    def __init__(self):
        super().__init__()

    def run_pass(self, state):
        state.cr = {**state.typemap, RESULT: state.return_type}
        return False


class OnlyTypes(compiler.CompilerBase):
    """Numba's compiler, reduced to the passes up to type inference."""

    def define_pipelines(self):
        passes = compiler.DefaultPassBuilder.define_untyped_pipeline(self.state)
        passes.passes = [(REPLACED_PASSES.get(step, step), what) for step, what in passes.passes]
        passes.add_pass(CachedTypeInference, "types")
        passes.add_pass(KeepTypes, "keep")
        passes.finalize()
        return [passes]


def single_types(tree, names, arguments):
    """Return {variable: a set with its only Numba type}.

    Raise Untranslatable if a variable has several types, or if the function contains other code that
    sim.native.codegen.node_types does not support.

    tree: the syntax tree of a function.
    names: its globals.
    arguments: the Numba types of its arguments.
    """
    typing = cpu_target.typing_context
    typing.refresh()
    variables = Inference(tree, names, typing, arguments).variables
    return {name: {variable.numba_type} for name, variable in variables.items()}


def variable_types(function, arguments):
    """Return {variable: set of Numba types assigned to it}.

    function: a Python function.
    arguments: the Numba types of its arguments.
    """
    found = {}
    for name, numba_type in infer_types(function, arguments).items():
        variable, _, version = name.partition(".")
        # Numba adds names of its own: $12 for temporaries, and arg.x for the initial value of a parameter.
        if variable.isidentifier() and not (variable == "arg" and version.isidentifier()):
            found.setdefault(variable, set()).add(types.unliteral(numba_type))
    return found


def unify_types(found):
    """Return the Numba type to which all of these types convert, or None if there is no such type."""
    return cpu_target.typing_context.unify_types(*found) if len(found) > 1 else next(iter(found))


def infer_types(function, arguments):
    """Return {variable of Numba's IR: its type}. The key RESULT has the type of the function's result."""
    flags, contexts = compiler.Flags(), (cpu_target.typing_context, cpu_target.target_context)
    flags.nrt, flags.enable_ssa, flags.error_model = True, True, "numpy"
    return compiler.compile_extra(*contexts, function, arguments, None, flags, {}, pipeline_class=OnlyTypes)


def type_stub(function, tree):
    """Return a function that has the type of a device function, but no code.

    If Numba used the device function itself, it would compile the function just to infer the type of a call.

    tree: the syntax tree of the device function.
    """

    @functools.cache  # cached, because Numba infers the same types several times
    def typed(typing, *given):
        try:
            result = Inference(tree, function.__globals__, typing, given).result
        except Untranslatable:
            result = infer_types(function, given)[RESULT]
        return signature(result, *given), None

    count = len(inspect.signature(function).parameters)
    return intrinsic_of(function.__name__, [f"x{position}" for position in range(count)], typed)


# --- types of synchronising calls ---------------------------------------------------------------------------


@functools.cache
def sync_stub(entry):
    """Return a stub that has the types of a synchronising instruction, but no code. Only type inference uses
    it."""

    def typed(typing, *given):
        of = dict(zip(entry.parameters, given))
        results = [
            of[given] if isinstance(given, Like) else numba_type_of(given) for given in entry.results.values()
        ]
        result_type = types.BaseTuple.from_types(results) if results else types.none
        return (results[0] if len(results) == 1 else result_type)(*given), None

    return intrinsic_of(entry.name, entry.parameters, typed)


def sync_stubs():
    """Return {name: stub} for all synchronising instructions that a Python kernel can call. An instruction
    whose name contains a dot exists only in PTX."""
    names = [name for name in {"this_grid", *WARP_WIDE, *BLOCK_WIDE} if name.isidentifier()]
    return {name: sync_stub(INSTRUCTIONS[name]) for name in names}
