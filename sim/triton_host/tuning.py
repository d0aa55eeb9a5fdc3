"""Replacements for Triton's autotuning and benchmarks. A simulated launch takes no meaningful time."""

import math
import sys

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

INVALID = OutOfResources, CompileTimeAssertionFailure, PTXASError  # errors that Triton's autotuner skips


def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean", **more):
    """Run a function once, so that its launches are checked. Every time in the result is NaN.

    This replaces triton.testing.do_bench.
    """
    fn()
    if quantiles is not None and len(quantiles) > 1:
        return [math.nan] * len(quantiles)
    return [math.nan] if return_mode == "all" and quantiles is None else math.nan


def run_benchmarks(session):
    """Return a replacement for Mark.run, which runs the benchmarks of triton.testing.perf_report."""

    def run(mark, *given, **named):
        benchmarks = mark.benchmarks if isinstance(mark.benchmarks, (list, tuple)) else [mark.benchmarks]
        names = ", ".join(each.plot_name for each in benchmarks)
        if not session.benchmarks:
            say(f"skipped the benchmarks {names}: simulated times are not meaningful")
            return None
        for each in benchmarks:
            x = each.x_vals[0]
            values = x if isinstance(x, (list, tuple)) else [x] * len(each.x_names)
            for line in each.line_vals:
                mark.fn(**dict(zip(each.x_names, values)), **{each.line_arg: line}, **each.args)
            say(f"ran the benchmark {each.plot_name} once, with {each.x_names[0]}={x}; no times measured")
        return None

    return run


def first_valid(session, prune_configs):
    """Return a replacement for Autotuner.prune_configs, which returns one configuration."""

    def choose(tuner, kwargs):
        configs = prune_configs(tuner, kwargs)
        problems = []
        for config in configs:
            problem = find_problem(tuner, config, kwargs)
            if problem is None:
                session.tuned.append(tuner)
                rank = f"the first of {len(configs)} configurations"
                if problems:
                    rank = f"number {len(problems) + 1} of {len(configs)} configurations, the first valid one"
                say(f"autotune: {tuner.base_fn.__name__} runs with {config}: {rank}; no times measured")
                return [config]
            problems.append(problem)
        raise problems[0]

    return choose


def find_problem(tuner, config, kwargs):
    """Compile a kernel with a configuration. Return the error if it exceeds a limit of the GPU, or None."""
    given = {**tuner.nargs, **kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook(given)
    settings = {**kwargs, **config.all_kwargs(), "warmup": True}
    try:
        kernel = tuner.fn.run(*tuner.nargs.values(), **settings)
        if kernel is not None:
            kernel._init_handles()
    except INVALID as error:
        return error
    return None


def say(text):
    print(f"sim: {text}", file=sys.stderr)
