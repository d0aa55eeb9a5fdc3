"""Refreshes of Numba's contexts.

Numba refreshes its target context and its typing context each time that it types a call of an intrinsic. A
refresh installs new entries of about twenty registries, and takes 1 ms even if there are none. A kernel has
hundreds of such calls, and only few of them add an entry.

The first refresh of a process imports Numba's functions of arrays, sets, dictionaries, random numbers and
foreign functions, which takes 0.2 to 0.3 s of CPU time. Kernels hardly ever use them, so they are imported
only if compilation fails without them. Numba's own refreshes, for other functions, import them as usual.
"""

from contextlib import contextmanager
from importlib import import_module

from numba.core import imputils
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.typing import templates

# Numba's modules that kernels need. Those in BUILTINS add entries to Numba's two registries of builtins. Each
# module in IMPLEMENTATIONS and DECLARATIONS has a registry of its own.
BUILTINS = [
    *("numba.core.optional", "numba.core.typing.arraydecl", "numba.core.typing.builtins"),
    *("numba.core.unsafe.eh", "numba.cpython.builtins", "numba.cpython.enumimpl", "numba.cpython.iterators"),
    *("numba.cpython.numbers", "numba.cpython.rangeobj", "numba.cpython.slicing", "numba.cpython.tupleobj"),
    *("numba.misc.literal", "numba.np.arrayobj"),
]
IMPLEMENTATIONS = "numba.cpython.cmathimpl", "numba.cpython.mathimpl", "numba.np.npyimpl"
DECLARATIONS = [f"numba.core.typing.{name}decl" for name in ("cmath", "enum", "math", "npy")]

target, typing = cpu_target.target_context, cpu_target.typing_context
installed = set()  # the functions of this file that have run in this process


class Refresh:
    """A method `refresh` for one of Numba's contexts, which only installs registries with new entries.

    context: the context.
    following: the methods `refresh` of the contexts that are refreshed after it.
    """

    def __init__(self, context, *following):
        self.context, self.following, self.sizes = context, following, {}

    def __call__(self):
        if install_few not in installed:
            installed.add(install_few)
            install_few()
        for registry, loader in [*self.context._registries.items()]:
            size = sum(len(getattr(registry, name)) for name in loader.registry_items)
            if size != self.sizes.get(registry):
                self.context.install_registry(registry)
            self.sizes[registry] = size
        for refresh in self.following:
            refresh()


def install_few():
    """Install the registries that kernels need."""
    rtsys.initialize(target)
    with refreshing(lambda: None, lambda: None):  # the installation of a registry refreshes the contexts
        for name in BUILTINS:
            import_module(name)
        for name in IMPLEMENTATIONS:
            target.install_registry(import_module(name).registry)
        target.install_registry(imputils.builtin_registry)
        for name in DECLARATIONS:
            typing.install_registry(import_module(name).registry)
        typing.install_registry(templates.builtin_registry)


def install_all():
    """Install all of Numba's registries."""
    type(target).refresh(target)
    type(typing).refresh(typing)


def with_registries(compile, errors):
    """Return `compile()`. If it raises one of the errors, install all registries and try once more."""
    try:
        return compile()
    except errors:
        if install_all in installed:
            raise
    installed.add(install_all)
    install_all()
    return compile()


@contextmanager
def failures_forgotten(dispatcher):
    """Make a Numba dispatcher forget the errors of compilations in this block.

    Numba would otherwise raise the stored error again, although more registries may be installed by then.
    """
    try:
        yield
    finally:
        dispatcher._compiler._failed_cache.clear()


@contextmanager
def refreshing(of_target, of_typing):
    """Replace the methods `refresh` of Numba's contexts within this block."""
    before = [vars(context).get("refresh") for context in (target, typing)]
    target.refresh, typing.refresh = of_target, of_typing
    try:
        yield
    finally:
        for context, method in zip((target, typing), before):
            if method is None:
                del context.refresh
            else:
                context.refresh = method


@contextmanager
def few_refreshes():
    """Let Numba's refreshes install only registries with new entries while the `with` block runs.

    Use it as a decorator too. The caller must hold Numba's compiler lock.
    """
    if "refresh" in vars(target):  # an enclosing `with few_refreshes()` has already replaced the methods
        yield
        return
    of_typing = Refresh(typing)
    with refreshing(Refresh(target, of_typing), of_typing):
        yield
