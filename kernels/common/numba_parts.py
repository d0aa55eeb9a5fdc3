"""The internal parts of Numba with which kernels define instructions and launches.

Without numba-cuda, as on a Mac, `numba.cuda` is Numba's own and lacks some of these parts. Kernels can
then be imported and simulated, but not compiled for a GPU.
"""

try:
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import UnsupportedError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.cudaimpl import normalize_indices
    from numba.cuda.extending import _Intrinsic as Intrinsic
    from numba.cuda.np.numpy_support import from_dtype
    from numba.cuda.types import Type
    from numba.cuda.typing.typeof import Purpose, typeof
except ImportError:
    from numba.core import cgutils, types
    from numba.core.errors import UnsupportedError
    from numba.core.extending import _Intrinsic as Intrinsic
    from numba.core.targetconfig import ConfigStack
    from numba.core.types import Type
    from numba.core.typing.typeof import Purpose, typeof
    from numba.cuda.cudaimpl import _normalize_indices as normalize_indices
    from numba.np.numpy_support import from_dtype

__all__ = [
    "ConfigStack",
    "Intrinsic",
    "Purpose",
    "Type",
    "UnsupportedError",
    "cgutils",
    "from_dtype",
    "normalize_indices",
    "typeof",
    "types",
]
