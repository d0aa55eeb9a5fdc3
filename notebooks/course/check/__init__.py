"""The checks of the exercises, by name: `check.ex01_2` checks exercise 1.2.

The input is the learner's answer: a function, a kernel, a module or a string. The output is a line that
reports success, or CheckFailed with the call, the expected and actual values, and a hint. A lesson's module
is imported on first use. Read the files in this order:

    harness               runs a check, and explains exceptions in the learner's code
    words                 the messages of verdicts, and the comparison of values
    inputs                test inputs that expose subtle errors
    kernels, contract     launches of a learner's kernel, and limits on its accesses
    triton_kernels        launches of Triton kernels
    dialect, trial        rejection of Python that no GPU supports, and the compilation of a correct kernel
    tensors               instrumentation for answers in PyTorch
    patience              time limits
    lesson01 to lesson23  the checks, one module per lesson; those of lesson 18c are in hopper
    backward_faults, cuda_kernels, six_kernels, streams   faulty kernels and models that single lessons use
    letters               the letters of the faulty versions in a bug hunt
"""

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
