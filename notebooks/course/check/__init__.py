"""The checks, by name. `check.ex01_2` checks exercise 1.2; a lesson's module is imported on first use."""

import importlib
import pkgutil
import re


def __getattr__(name):
    lesson = re.fullmatch(r"ex(\d\d)_\d+", name)
    if not lesson:
        raise AttributeError(f"course.check has no {name!r}; the check of exercise 1.2 is called ex01_2")
    module = f"course.check.lesson{lesson[1]}"
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"course.check has no {name!r}: there is no lesson {lesson[1]}") from None


def lessons():
    """Return the checks of all lessons in order: {"01": {"ex01_1": check, ...}, ...}."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("lesson")
    )
    return {
        name.removeprefix("lesson"): checks_of(importlib.import_module(f"course.check.{name}"))
        for name in names
    }


def checks_of(module):
    names = filter(re.compile(r"ex\d\d_\d+").fullmatch, vars(module))
    return {
        name: getattr(module, name) for name in sorted(names, key=lambda name: int(name.partition("_")[2]))
    }
