"""%%simulate, a cell magic of IPython: run a cell with its kernel launches on the simulated GPU.

    %load_ext sim

    %%simulate
    kernel[2, 64](x, out)

The launches in the cell's own code are simulated: those of `@cuda.jit` kernels, of kernels from load_ptx or
load_cuda, and of plain functions that use `cuda`. Launches inside functions that the cell calls are not.
Arguments are numpy arrays, CPU tensors and numbers, as for `simulate`. The reports follow the cell's output.
"""

import argparse
import ast
import inspect
import shlex
from typing import Any, NoReturn

from sim.engine.base import Kernel
from sim.errors import KernelBug
from sim.frontend.names import python_function
from sim.launch import ENGINES, simulate
from sim.observers import COUNTERS, DEFAULT, Trace
from sim.report import Report

LAUNCH = "__simulated_launch__"  # the name under which the rewritten cell finds Cell.target


class UsageError(Exception):
    """Error in the magic's own line."""


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, because exiting would end the notebook's kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%simulate: {message}\n{self.format_usage()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise UsageError(message or "")


def make_parser() -> Parser:
    parser = Parser("%%simulate", description="Run this cell's kernel launches on a simulated GPU.")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the threads")
    parser.add_argument("--max-steps", type=int, help="loop iterations until a launch counts as endless")
    parser.add_argument("--counters", action="store_true", help="count sectors, bank conflicts and branches")
    parser.add_argument("--trace", action="store_true", help="record the accesses, for figures")
    parser.add_argument("--raise", action="store_true", dest="raises", help="let a finding fail the cell")
    parser.add_argument("--report", metavar="NAME", help="the variable for the report of the last launch")
    return parser


class Cell:
    """The launches of one cell. `reports` has their Reports, in order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.reports: list[Report] = []

    def target(self, subscripted: Any) -> Any:
        """Return the object to index with a launch configuration: the simulation of a kernel, or the object
        itself if it is not a kernel, such as a dict of functions."""
        is_kernel = isinstance(subscripted, Kernel) or python_function(subscripted) is not None
        if inspect.isclass(subscripted) or not is_kernel:
            return subscripted
        return Launching(self, subscripted)

    def launch(self, kernel: Any, configuration: Any, arguments: tuple[Any, ...]) -> None:
        """Simulate a launch and keep its Report. Return nothing, like a launch on a GPU."""
        options = self.options
        observers = (*DEFAULT, *(COUNTERS if options.counters else ()), *((Trace,) if options.trace else ()))
        simulation = simulate(
            kernel,
            engine=options.engine,
            seed=options.seed,
            on_finding="report",
            observers=observers,
            max_steps=options.max_steps,
        )
        self.reports.append(simulation[configuration](*arguments))


class Launching:
    """A kernel in a cell. Index it with a configuration, and call the result."""

    def __init__(self, cell: Cell, kernel: Any) -> None:
        self.cell, self.kernel = cell, kernel

    def __getitem__(self, configuration: Any) -> Any:
        return lambda *arguments: self.cell.launch(self.kernel, configuration, arguments)


class Launches(ast.NodeTransformer):
    """Rewrites `kernel[grid, block](...)` so that Cell.target receives the kernel first."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Subscript):
            value = node.func.value
            wrapped = ast.Call(ast.Name(LAUNCH, ast.Load()), [value], [])
            node.func.value = ast.fix_missing_locations(ast.copy_location(wrapped, value))
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        """Leave functions unchanged, because kernels are analysed from their source."""
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef


def load(shell: Any) -> None:
    """Register %%simulate."""

    def simulate_cell(line: str, cell: str) -> None:
        return run(shell, line, cell)

    simulate_cell.__doc__ = make_parser().format_help()
    shell.register_magic_function(simulate_cell, "cell", "simulate")


def run(shell: Any, line: str, cell: str) -> None:
    """Run a cell, and display the reports of its launches. Raise KernelBug for a finding with --raise."""
    try:
        options = make_parser().parse_args(shlex.split(line))
    except (UsageError, ValueError) as error:
        print(error)
        return
    this = Cell(options)
    shell.user_ns[LAUNCH] = this.target
    try:
        execute(shell, cell)
    finally:
        del shell.user_ns[LAUNCH]
        show(shell, this.reports)
    if options.report and this.reports:
        shell.user_ns[options.report] = this.reports[-1]
    if not this.reports:
        print("%%simulate: this cell launched no kernel; a launch is kernel[grid, block](...)")
    for report in this.reports:
        if options.raises and report.errors:
            raise KernelBug(report)


def execute(shell: Any, cell: str) -> None:
    """Execute a cell's statements with rewritten launches. A final expression is displayed as usual."""
    text = shell.transform_cell(cell)
    # Registers the text, so that kernels defined in this cell have a source.
    name = shell.compile.cache(text, shell.execution_count, raw_code=cell)
    tree = Launches().visit(ast.parse(text, name))
    last = tree.body[-1:] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    before = ast.Module(tree.body[: len(tree.body) - len(last)], [])
    for part, mode in ((before, "exec"), (ast.Interactive(last), "single")):
        exec(compile(part, name, mode), shell.user_global_ns, shell.user_ns)


def show(shell: Any, reports: list[Report]) -> None:
    """Display reports as HTML in a notebook, and print them in a terminal."""
    from IPython.display import display

    in_notebook = getattr(shell, "kernel", None) is not None
    for report in reports:
        display(report) if in_notebook else print(report)
