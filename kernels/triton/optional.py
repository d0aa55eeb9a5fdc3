"""`triton` and `tl`, or substitutes if Triton is not installed; it has wheels for Linux only.

The substitutes let modules define kernels, which then run from recorded PTX or in
`kernels.triton.interpreter`.
"""

from types import SimpleNamespace

try:
    import triton
    import triton.language as tl
except ImportError:

    class Kernel:
        """A kernel that is only a name and parameter names. `interpreted` can run it."""

        def __init__(self, function):
            self.fn, self.__name__ = function, function.__name__
            self.arg_names = function.__code__.co_varnames[: function.__code__.co_argcount]

    def jit(function=None, **options):
        return Kernel if function is None else Kernel(function)

    class constexpr:
        """The type of compile-time parameters and global constants."""

        def __init__(self, value):
            self.value = value

    triton = SimpleNamespace(jit=jit, __version__=None)
    tl = SimpleNamespace(constexpr=constexpr)
