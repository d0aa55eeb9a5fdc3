"""Compares the types that Numba's CUDA target infers for a kernel's variables with the types that the front
end infers.

No GPU is needed.
"""

from types import SimpleNamespace

import numpy as np
from numba.cuda import types, utils
from numba.cuda.compiler import CUDACompiler, DefaultPassBuilder, compile_extra
from numba.cuda.core import ir
from numba.cuda.core.compiler_machinery import AnalysisPass, PassManager, register_pass
from numba.cuda.core.typed_passes import NopythonTypeInference
from numba.cuda.core.untyped_passes import TranslateByteCode
from numba.cuda.descriptor import cuda_target
from numba.cuda.flags import CUDAFlags
from numba.cuda.np import numpy_support

from sim.frontend.inference import Types
from sim.frontend.resolve import source_of
from sim.frontend.ssa import version_of
from sim.frontend.types import ANY, UNKNOWN, Number, type_of_value
from sim.memory.array import array_at
from sim.memory.spaces import AddressSpace, bind_arguments


class Typed(Exception):
    """Exception that ends a compilation after type inference."""


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
    """Return [(variable, whether several assignments merge, type)] for a kernel with `arguments` (Numba
    types).

    Numbers are dtypes; any other type is None.
    """
    flags = CUDAFlags()
    flags.error_model, flags.compute_capability, flags.no_compile = "numpy", (8, 0), True
    try:
        with utils.numba_target_override():
            compile_extra(
                typingctx=cuda_target.typing_context,
                targetctx=cuda_target.target_context,
                func=function,
                args=tuple(arguments),
                return_type=types.none,
                flags=flags,
                locals={},
                pipeline_class=OnlyTypes,
            )
    except Typed as found:
        function_ir, kinds = found.args
    return list(of_assignments(function_ir, kinds))


def of_assignments(function_ir, kinds):
    for block in function_ir.blocks.values():
        for statement in block.find_insts(ir.Assign):
            name, value = statement.target.name, statement.value
            meets = (
                isinstance(value, ir.Expr)
                and value.op == "phi"
                or isinstance(value, ir.Var)
                and value.unversioned_name == statement.target.unversioned_name
            )
            if not name.startswith("$") and not isinstance(value, ir.Arg):
                yield name.partition(".")[0], meets, as_dtype(kinds[name])


def as_dtype(kind):
    kind = types.unliteral(kind)
    if not isinstance(kind, (types.Number, types.Boolean)):
        return None
    return numpy_support.as_dtype(kind)


def type_of_argument(kind):
    """Return the front end's type for a Numba type."""
    if not isinstance(kind, types.Array):
        return type_of_value(np.zeros((), str(kind))[()])
    array = np.zeros((4,) * kind.ndim, str(kind.dtype))
    allocation, offset = bind_arguments(AddressSpace(), {"a": array})["a"]
    return type_of_value(array_at(None, allocation, offset, array.dtype, array.shape, array.strides, "a"))


def inferred(function, arguments):
    """Return {(variable, whether several assignments merge): set of its types as numpy dtypes}.

    The type is None if it is not numeric, and ANY if the front end does not know it.
    """
    found = {}
    front = Types(source_of(function), {name: type_of_argument(kind) for name, kind in arguments.items()})
    for version in front.versions.all:
        meets = version.incoming is not None
        if version.same is None and (
            version in front.versions.phis if meets else version.source[0] != "parameter"
        ):
            kind = front.found.get(version_of(SimpleNamespace(version=version)))
            dtype = (
                np.dtype(np.int64 if kind.scalar is int else kind.scalar)
                if isinstance(kind, Number)
                else ANY
                if kind in (ANY, UNKNOWN)
                else None
            )
            found.setdefault((version.name, meets), set()).add(dtype)
    return found


def compare(function, arguments):
    """Assert that Numba and the front end agree.

    Numba keeps phis that are never read, and the front end drops them.
    """
    wanted = {}
    for name, meets, dtype in numba_types(function, arguments.values()):
        wanted.setdefault((name, meets), set()).add(dtype)
    found = inferred(function, arguments)
    assert {key: kinds for key, kinds in found.items() if not key[1]} == {
        key: kinds for key, kinds in wanted.items() if not key[1]
    }
    for key, kinds in found.items():
        assert not key[1] or kinds <= wanted.get(key, set()), (key, kinds, wanted.get(key))
