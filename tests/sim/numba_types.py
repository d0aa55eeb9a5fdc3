"""The types that Numba, on its CUDA target, gives to the variables of a kernel: the judge of sim.frontend.types. Needs no GPU."""
from numba.cuda import utils
from numba.cuda.compiler import CUDACompiler, DefaultPassBuilder, compile_extra
from numba.cuda.core import ir
from numba.cuda.core.compiler_machinery import AnalysisPass, PassManager, register_pass
from numba.cuda.core.typed_passes import NopythonTypeInference
from numba.cuda.core.untyped_passes import TranslateByteCode
from numba.cuda.descriptor import cuda_target
from numba.cuda.flags import CUDAFlags
from numba.cuda.np import numpy_support
from numba.cuda import types


class Typed(Exception):
    """Ends a compilation that has come as far as types."""


@register_pass(mutates_CFG=False, analysis_only=True)
class Stop(AnalysisPass):
    _name = "stop_with_types"

    def __init__(self):
        super().__init__()

    def run_pass(self, state):
        raise Typed(state.func_ir, state.typemap)


class OnlyTypes(CUDACompiler):
    def define_pipelines(self):
        whole = DefaultPassBuilder.define_untyped_pipeline(self.state)
        translate = CUDACompiler.define_pipelines(self)[0].passes[0]
        whole.passes[0] = translate if whole.passes[0][0] is TranslateByteCode else whole.passes[0]
        typed = PassManager("types")
        typed.add_pass(NopythonTypeInference, "types")
        typed.add_pass(Stop, "stop")
        whole.passes.extend(typed.passes)
        whole.finalize()
        return [whole]


def numba_types(function, arguments):
    """{(variable, line, whether several assignments meet): type} of a kernel called with `arguments` (Numba types). Numbers as dtypes, all else as None."""
    flags = CUDAFlags()
    flags.error_model, flags.compute_capability, flags.no_compile = "numpy", (8, 0), True
    try:
        with utils.numba_target_override():
            compile_extra(typingctx=cuda_target.typing_context, targetctx=cuda_target.target_context, func=function, args=tuple(arguments), return_type=types.none,
                          flags=flags, locals={}, pipeline_class=OnlyTypes)
    except Typed as found:
        function_ir, kinds = found.args
    return dict(of_assignments(function_ir, kinds))


def of_assignments(function_ir, kinds):
    for block in function_ir.blocks.values():
        for statement in block.find_insts(ir.Assign):
            name, value = statement.target.name, statement.value
            meets = isinstance(value, ir.Expr) and value.op == "phi"
            if not name.startswith("$") and not isinstance(value, ir.Arg):
                yield (name.partition(".")[0], statement.loc.line, meets), as_dtype(kinds[name])


def as_dtype(kind):
    kind = types.unliteral(kind)
    if not isinstance(kind, (types.Number, types.Boolean)):
        return None
    return numpy_support.as_dtype(kind)
