"""Generation and compilation of a kernel's program: a Python file that contains all its regions. The name of
the file contains a hash of everything that determines its contents."""

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field

import numba
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from sim.frontend.ssa import Versions
from sim.frontend.tree import SplitByType, all_nodes, as_list, copied, located
from sim.isa.memory import interpreted_only
from sim.isa.table import BLOCK_WIDE, INSTRUCTIONS, WARP_WIDE
from sim.native.codegen import cache
from sim.native.codegen.access_log import MAX_SITES
from sim.native.codegen.arrays import GuardedType
from sim.native.codegen.isa_functions import digest
from sim.native.codegen.node_types import Untranslatable
from sim.native.codegen.refreshes import with_registries
from sim.native.codegen.scalars import numba_type_of
from sim.native.codegen.shadow import BARE, BOUNDED
from sim.native.codegen.symbols import GRID_PARAMETERS, SPECIAL, entry_of
from sim.native.codegen.thread_index import DIM3
from sim.native.codegen.tiers import TieredFunction
from sim.native.lower import variable_types
from sim.native.lower.hoisting import Hoisting
from sim.native.lower.liveness import names_assigned, names_read
from sim.native.lower.module import CannotLower, Module
from sim.native.lower.written_arrays import Writes
from sim.native.split.fission import Fission
from sim.native.split.regions import indent, unparse_lines

# What Numba raises for a function that it cannot compile. They have no common base class.
NUMBA_ERRORS = NumbaError, UnsupportedBytecodeError, NotImplementedError

# --- text ---------------------------------------------------------------------------------------------------


def file_head(module, title):
    """Return the first lines of the generated file: imports, constants, device functions.

    A comment contains the digest of each instruction that the kernel uses. If an instruction changes, the
    text changes, and with it the name of the file, so outdated machine code is never loaded.
    """
    imports = {}
    for name, home in module.imports.items():
        imports.setdefault(home, set()).add(name)
    known = ("import cmath", "import math", "import operator", "", "import numba", "import numpy as np")
    lines = [f'"""{title}"""', *known]
    lines += [f"from {home} import {', '.join(sorted(names))}" for home, names in sorted(imports.items())]
    lines += ["from sim.native.codegen.linking import kernel, recursive"]
    lines += ["from sim.native.codegen.translation import translated", ""]
    lines += [*(f"{name} = {text}" for name, text in module.constants.items()), ""]
    together = set(module.operations.values()) & (WARP_WIDE | BLOCK_WIDE)
    entries = {name: INSTRUCTIONS[name] for name in together}
    entries |= {name: entry_of(name) for name in module.imports if name.startswith("isa_")}
    lines += [f"# {name}: {digest(entries[name])}" for name in sorted(entries)]
    for device in module.devices.values():
        decorator = "@recursive" if device.recursive else "@translated"
        lines += ["", decorator, *ast.unparse(device.tree).split("\n"), ""]
    return lines


def function_text(decorator, signature, lines):
    """Return the lines of a function definition, with a blank line before and after it."""
    return ["", decorator, f"def {signature}:", *indent(lines), ""]


# --- compilation --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Lowered:
    """A kernel as Python statements for one thread, before fission. It is valid for any argument types.

    Each synchronisation point is a statement by itself.
    """

    module: Module
    parameters: list  # their names in `statements`, which can differ from those in the kernel
    statements: list
    writes: set  # the names, in the kernel, of the parameters to which the kernel may write
    code: tuple  # the code objects of the kernel and of every function that it calls
    synchronizes: bool  # whether the kernel acts on results of atomics, which depend on the order of threads
    stores: bool  # whether the kernel stores to arrays that it does not declare itself


@dataclass(eq=False)
class CompiledKernel:
    """A compiled kernel.

    `dispatcher` is the grid function, which runs consecutive blocks: `dispatcher(first_position,
    end_position, grid, block, while_limit, for_limit, state, spill_buffer, *arrays, *declared, *arguments)`.
    In this signature, `arrays` are global arrays, and `declared` are the kernel's shared and local arrays.
    """

    lowered: Lowered
    text: str
    dispatcher: object
    spill_count: int  # the number of spilled variables
    runs: dict = field(default_factory=dict)  # checks of the arrays -> TieredFunction

    def run_with(self, checks):
        """Return the TieredFunction for arrays with these checks, which are a part of its signature."""
        return self.runs.setdefault(checks, TieredFunction(self.dispatcher))


def lower_kernel(function, dtypes=(), logs=False, has_sides=False):
    """Return a kernel in its lowered form. Raise CannotLower if the kernel cannot be compiled.

    function: the Python function.
    dtypes: ((parameter, dtype), ...), from sim.native.split.specialize.dtypes_of.
    logs: whether to generate code that writes the access log.
    has_sides: whether to generate code that can follow one side of a disagreement.
    """
    module = Module(function, logs, dtypes, has_sides)
    if unavailable := interpreted_only(module.used):
        raise CannotLower(f"{unavailable[0]} has no compiled form")
    parameters, statements = Hoisting(module).kernel(function)
    statements = [
        part
        for statement in keep_parameters(module, parameters, statements)
        for part in as_list(SplitTuples().visit(statement))
    ]
    statements = name_shared(module, statements)
    code = tuple(  # sites count lines from the `def` statement, not from the first decorator
        function.__code__.replace(co_firstlineno=source.tree.lineno)
        for function, source in module.reachable.items()
    )
    sources = module.reachable.values()
    synchronizes = any(source.acts_on_atomics for source in sources)
    stores = any(source.stores_elsewhere for source in sources)
    module.reachable = None  # the module is cached, and would keep the kernel's functions alive
    writes = Writes(module).of(statements)
    if logs and len(module.sites) > MAX_SITES:
        raise CannotLower(f"it has {len(module.sites):,} sites to log, and the log supports {MAX_SITES:,}")
    if writes & set(module.arrays):
        raise CannotLower("a global array is constant, and the kernel may write to it")
    names = function.__code__.co_varnames[: len(parameters)]
    written = {name for name, lowered in zip(names, parameters) if lowered in writes}
    return Lowered(module, parameters, statements, written, code, synchronizes, stores)


def keep_parameters(module, parameters, statements):
    """Return the statements, rewritten so that none of them assigns to a parameter.

    A parameter assigned by the kernel is first copied to a new variable, which replaces it. Regions can then
    treat parameters as constants.
    """
    new = {name: module.fresh_name(name) for name in sorted(names_assigned(statements) & set(parameters))}
    for part in [part for statement in statements for part in all_nodes(statement)]:
        if isinstance(part, ast.Name):
            part.id = new.get(part.id, part.id)
    return [ast.parse(f"{name} = {old}").body[0] for old, name in new.items()] + statements


class SplitTuples(ast.NodeTransformer):
    """A transformer that splits `a, b = x, y` into two assignments, unless `x` or `y` reads `a` or `b`."""

    def visit_Assign(self, node):
        match node:
            case ast.Assign([ast.Tuple(left)], ast.Tuple(right)) if len(left) == len(right):
                names = {part.id for part in left if isinstance(part, ast.Name)}
                if len(names) == len(left) and not names & names_read(node.value):
                    return located([ast.Assign([name], part) for name, part in zip(left, right)], node)
        return node


def name_shared(module, statements):
    """Remove aliases of declared arrays, such as `tile = tile_shared`, and return the remaining statements.

    If `tile` is assigned only once, the parameter for the array is renamed to `tile`.
    """
    for statement in statements:
        match statement:
            case ast.Assign([ast.Name(variable)], ast.Name(parameter)) if parameter in module.declared:
                others = ast.Module([other for other in statements if other is not statement], [])
                if parameter not in names_read(others) and variable not in names_assigned([others]):
                    new, statements = {parameter: variable}, others.body
                    module.declared = {new.get(name, name): of for name, of in module.declared.items()}
    return statements


def compile_kernel(lowered, name, numba_types):
    """Return the CompiledKernel for arguments of these Numba types, which are in the order of the parameters.

    Text and machine code are cached on disk. The cache key consists of the text for one thread, the types,
    and whether the code can follow a side, so fission runs only if the file is missing.
    """
    module, parameters = lowered.module, lowered.parameters
    name = module.stem(name)
    arrays = [
        GuardedType(numba.typeof(array).dtype, array.ndim, True, BOUNDED) for array in module.arrays.values()
    ]
    declared = [
        GuardedType(numba_type_of(d.dtype), array_rank(d), True, BARE, sizes_of(d))
        for d in module.declared.values()
    ]
    types_ = [str(numba_type) for numba_type in (*numba_types, *arrays, *declared)]
    whole = thread_text(module, name, parameters, lowered.statements), types_, module.has_sides
    path = cache.path_of(name, repr(whole))
    text = cache.read(path)
    if text is None:
        given = [numba.int64, numba.int64, *[DIM3] * 4, *arrays, *declared, *numba_types]
        known = [*SPECIAL, *module.arrays, *module.declared, *parameters]
        types_of = types_in(module, name, parameters, given)
        statements, variables = split_by_type(module, lowered.statements, known, types_of)
        split = Fission(module, name, parameters, statements, variables)
        text = kernel_text(module, name, parameters, split)
        cache.write(path, text)
    made = cache.load(path, text)
    return CompiledKernel(lowered, text, getattr(made, f"{name}_grid"), made.SPILLED)


def sizes_of(declared):
    """Return the size of each dimension of a declared array's parameter, or None for dynamic shared memory.

    The leading dimension of local arrays is the thread. Its size is None, because it is known only at launch.
    """
    return None if declared.shape is None else (*[None] * (declared.space == "local"), *declared.shape)


def array_rank(declared):
    """Return the number of dimensions of a declared array's parameter. For local arrays, the thread is an
    additional leading dimension."""
    return len(declared.shape or (0,)) + (declared.space == "local")


def split_by_type(module, statements, parameters, types_of):
    """Split each variable to which Numba would give several types into one variable per type.

    Return (a copy of the statements, {variable: its type}).

    types_of: a function (statements) -> {variable: set of the types inferred by Numba}.
    """
    found = types_of(statements)
    mixed = {name for name, types_ in found.items() if len(types_) > 1}
    statements = [*map(copied, statements)]
    if mixed:
        options = mixed, module.fresh_name, lambda node, _: node
        # Find out which SSA versions share a type: give each version a name of its own in a trial copy.
        trial = [*map(copied, statements)]
        versions = Versions(parameters, trial, module.value)
        names = SplitByType(trial, versions, lambda version: version, *options).names
        found = types_of(trial)
        names = [names.get((version.name, version.settled())) for version in versions.all]
        numba_types = [variable_types.unify_types(found[name]) if name in found else None for name in names]
        versions = Versions(parameters, statements, module.value)
        SplitByType(statements, versions, dict(zip(versions.all, numba_types, strict=True)).get, *options)
        found = types_of(statements)
    return statements, {name: variable_types.unify_types(types_) for name, types_ in found.items()}


def thread_text(module, name, parameters, statements):
    """Return the text of the kernel for one thread, before fission. It is part of the cache key."""
    lines = thread_lines(module, name, parameters, statements)
    return "\n".join([*file_head(module, f"{name}, one thread"), *lines])


def thread_lines(module, name, parameters, statements):
    """Return the lines of a function that runs one thread from start to end."""
    lines = unparse_lines(statements) if statements else ["pass"]
    signature = f"{name}_thread({', '.join([*SPECIAL, *module.arrays, *module.declared, *parameters])})"
    return function_text("", signature, lines)[1:]


def types_in(module, name, parameters, numba_types):
    """Return a function (statements) -> {variable: set of the types that Numba would infer}.

    Each device function is typed once, for all of its calls.
    """
    names, devices = {}, [device for device in module.devices.values() if not device.recursive]
    cache.run_text("\n".join(file_head(module, name)), names)
    # Only type inference runs here, so the synchronising instructions and device functions need no code. An
    # instruction of the user can have the name of a device function of a kernel that does not use it.
    stubs = {
        device.name: variable_types.type_stub(names[device.name].py_func, device.tree) for device in devices
    }
    names.update(variable_types.sync_stubs() | stubs)

    def types_of(statements):
        text = "\n".join(thread_lines(module, name, parameters, statements))
        with suppress(Untranslatable):
            return variable_types.single_types(ast.parse(text).body[0], names, numba_types)
        cache.run_text(text, names)
        thread = names[f"{name}_thread"]
        try:
            return with_registries(
                lambda: variable_types.variable_types(thread, tuple(numba_types)), NUMBA_ERRORS
            )
        except NUMBA_ERRORS as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error

    return types_of


def kernel_text(module, name, parameters, split, decorator="@translated", renewing=(), ending=()):
    """Return the text of a kernel's file: its head, the regions, a function for one block, and the grid
    function, which loops over blocks.

    split: the Fission of the kernel.
    decorator: the decorator of the regions and of the block function.
    renewing: statements that run before each block.
    ending: statements that run after each block.
    """
    shared = [known for known, declared in module.declared.items() if declared.space == "shared"]
    for needed in ("begin_block", "end_block", "block_index", "dim3", "fill_poison", "log_block"):
        module.library(needed)
    pitch = []
    if split.spilled:
        module.imports["spill_pitch_of"] = "sim.native.codegen.arrays"
        pitch = [f"spill_pitch = {module.constant('pitch_of', 'spill_pitch_of')}(threads)"]
    block = split.add_function(f"{name}_block", split.lines)
    what = "each region runs in a loop over the threads, between two synchronisation points"
    spilled = "# SPILLED: number of variables that live across regions. spill_buffer has an array for each."
    lines = [
        *file_head(module, f"{name}, split by loop fission: {what}"),
        spilled,
        f"SPILLED = {len(split.spilled)}",
        "",
    ]
    for text in split.functions:
        lines += ["", decorator, *text, ""]
    given = [*GRID_PARAMETERS, "state", "spill_buffer", *module.arrays, *module.declared, *parameters]
    body = [
        "gridDim, blockDim = dim3(*grid_shape), dim3(*block_shape)",
        "threads = block_shape[0] * block_shape[1] * block_shape[2]",
        *pitch,
        "for position in range(first_position, end_position):",
        "    begin_block(state, threads, position, while_limit, for_limit)",
        "    blockIdx = block_index(position, gridDim.x, gridDim.y)",
        *(f"    fill_poison({name})" for name in shared),
        *(f"    {statement}" for statement in renewing),
        f"    {block}",
        *(f"    {statement}" for statement in ending),
        *(["    log_block(state)"] if module.logs else []),
        "    if end_block(state):",
        "        return",
    ]
    lines += function_text("@kernel", f"{name}_grid({', '.join(given)})", body)
    return "\n".join(lines) + "\n"


def first_line(error):
    """Return the line of a message of Numba's that describes the problem, and the line of lowered text to
    which the error refers."""
    lines = [line.strip() for line in str(error).split("\n")]
    lines = [line for line in lines if line and not line.startswith("Failed in ")]
    pointed = re.findall(r"\n\s*(\S[^\n]*)\n\s*\^", str(error))
    return lines[0] + (f", in `{pointed[-1]}`" if pointed else "")
