"""The hooks that a launch's observers override, and a check of their counter names."""

import functools

from sim.errors import LaunchError
from sim.events import Observer

HOOKS = [name for name, hook in vars(Observer).items() if callable(hook) and not name.startswith("_")]


def check_names(observers):
    """Raise LaunchError if observers of two classes use the same counter name, because a report would add the
    counters."""
    owners = {}
    for observer in observers:
        own_class = type(observer)
        for name in [name for column in observer.columns for name in column.all_names]:
            owner = owners.setdefault(name, own_class)
            if owner is not own_class:
                raise LaunchError(
                    f"{owner.__name__} and {own_class.__name__} both count {name!r} for source lines, and"
                    " a report would add these up\n  rename the counter of one of them"
                )


def listeners(observers, hook):
    """Return the bound methods of the observers that override `hook`."""
    return [getattr(observer, hook) for observer in observers if hook in overridden_hooks(observer)]


def observer_class(observer):
    """Return an observer's class. The observer may be a class or an instance."""
    return observer if isinstance(observer, type) else type(observer)


def overridden_hooks(observer):
    """Return the names of the hooks that an observer overrides, in the order of HOOKS."""
    return hooks_of(observer_class(observer))


@functools.lru_cache(256)
def hooks_of(own_class):
    return [hook for hook in HOOKS if getattr(own_class, hook) is not getattr(Observer, hook)]
