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
    lesson01 to lesson23  the checks, one module per lesson, or several: lesson04b has those of lesson 04b
    tensor_cores          operands in bfloat16, and counts of tensor-core instructions: lessons 16 to 18
    backward_faults, cuda_kernels, six_kernels, streams   faulty kernels and models that single lessons use
    backward_by_hand, backward_tiles, decoders   references for lessons 12, 13 and 14b
    pipelines, writer     kernels around an answer for lesson 18c, and a network for lesson 15
    letters               the letters of the faulty versions in a bug hunt
"""

import importlib
import pkgutil
import re


def modules_of_lessons():
    """Return the modules with the checks of each lesson: {"04": ["lesson04", "lesson04b"], ...}."""
    modules = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if lesson := re.fullmatch(r"lesson(\d\d)[a-z]?", name):
            modules.setdefault(lesson[1], []).append(name)
    return modules


MODULES = modules_of_lessons()


def __getattr__(name):
    lesson = re.fullmatch(r"ex(\d\d)_\d+", name)
    if not lesson:
        raise AttributeError(f"course.check has no {name!r}; the check of exercise 1.2 is called ex01_2")
    for module in MODULES.get(lesson[1], ()):
        if name in (found := vars(importlib.import_module(f"course.check.{module}"))):
            return found[name]
    reason = "has no such exercise" if lesson[1] in MODULES else "does not exist"
    raise AttributeError(f"course.check has no {name!r}: lesson {lesson[1]} {reason}")


def lessons():
    """Return the checks of all lessons in order: {"01": {"ex01_1": check, ...}, ...}."""
    return {
        lesson: checks_of(*(importlib.import_module(f"course.check.{module}") for module in modules))
        for lesson, modules in MODULES.items()
    }


def checks_of(*modules):
    """Return {name: check} for the checks of these modules, in the order of their exercises."""
    found = {name: value for module in modules for name, value in vars(module).items()}
    names = filter(re.compile(r"ex\d\d_\d+").fullmatch, found)
    return {name: found[name] for name in sorted(names, key=lambda name: int(name.partition("_")[2]))}
