"""`triton` and `tl`; where Triton is missing (it has wheels for Linux only), what kernels need to be named
and run from recorded PTX."""

from types import SimpleNamespace

try:
    import triton
    import triton.language as tl
except ImportError:

    class Kernel:
        """A kernel that only has a name, and names of its parameters; `interpreted` can run it."""

        def __init__(self, function):
            self.fn, self.__name__ = function, function.__name__
            self.arg_names = function.__code__.co_varnames[: function.__code__.co_argcount]

    def jit(function=None, **options):
        return Kernel if function is None else Kernel(function)

    class constexpr:
        """The type of a parameter that is known when a kernel is compiled, and of such a global number."""

        def __init__(self, value):
            self.value = value

    triton = SimpleNamespace(jit=jit, __version__=None)
    tl = SimpleNamespace(constexpr=constexpr)
