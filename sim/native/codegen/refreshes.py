"""Refreshes of Numba's contexts.

Numba refreshes its target context and its typing context each time that it types a call of an intrinsic. A
refresh installs new entries of about twenty registries, and takes 1 ms even if there are none. A kernel has
hundreds of such calls, and only few of them add an entry.
"""

from contextlib import contextmanager

from numba.core.registry import cpu_target


class Refresh:
    """A method `refresh` for one of Numba's contexts, which only installs registries with new entries. Its
    first call is a refresh by Numba, which imports the modules that have registries.

    context: the context.
    following: the methods `refresh` of the contexts that are refreshed after it.
    """

    def __init__(self, context, *following):
        self.context, self.following, self.sizes = context, following, {}

    def __call__(self):
        is_first = not self.sizes
        if is_first:
            type(self.context).refresh(self.context)
        for registry, loader in [*self.context._registries.items()]:
            size = sum(len(getattr(registry, name)) for name in loader.registry_items)
            if not is_first and size != self.sizes.get(registry):
                self.context.install_registry(registry)
            self.sizes[registry] = size
        for refresh in self.following:
            refresh()


@contextmanager
def few_refreshes():
    """Within this block, install only registries with new entries when Numba refreshes its contexts.

    Use it as a decorator too. The caller must hold Numba's compiler lock.
    """
    target, typing = cpu_target.target_context, cpu_target.typing_context
    if "refresh" in vars(target):  # an enclosing `with few_refreshes()` has already replaced the methods
        yield
        return
    typing.refresh = Refresh(typing)
    target.refresh = Refresh(target, typing.refresh)
    try:
        yield
    finally:
        del target.refresh, typing.refresh
