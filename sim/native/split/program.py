"""A kernel lowered and compiled for given argument types. Its text is in a file named by a hash of the
text's inputs."""

import ast
import copy
import re
from dataclasses import dataclass

import numba
from numba.core.errors import NumbaError

from sim.frontend.ssa import Versions
from sim.frontend.tree import SplitByType, as_list, located
from sim.isa.memory import interpreted_only
from sim.isa.table import BLOCK_WIDE, INSTRUCTIONS, WARP_WIDE
from sim.native.codegen import cache
from sim.native.codegen.access_log import MAX_SITES
from sim.native.codegen.arrays import GuardedType
from sim.native.codegen.isa_functions import digest
from sim.native.codegen.scalars import numba_type_of
from sim.native.codegen.shadow import BARE, BOUNDED
from sim.native.codegen.symbols import GRID_PARAMETERS, SPECIAL, entry_of
from sim.native.codegen.thread_index import DIM3
from sim.native.lower import variable_types
from sim.native.lower.hoisting import Hoisting
from sim.native.lower.liveness import assigned, reads
from sim.native.lower.module import CannotLower, Module
from sim.native.lower.written_arrays import Writes
from sim.native.split.fission import Fission, indent, unparse_lines

# --- text ---------------------------------------------------------------------------------------------------


def head(module, title):
    """Return the lines before all functions of the text: imports, constants, device functions. Comments
    contain the digest of each instruction, so a changed instruction gives another file."""
    imports = {}
    for name, home in module.imports.items():
        imports.setdefault(home, set()).add(name)
    known = ("import cmath", "import math", "import operator", "", "import numba", "import numpy as np")
    lines = [f'"""{title}"""', *known]
    lines += [f"from {home} import {', '.join(sorted(names))}" for home, names in sorted(imports.items())]
    lines += ["from sim.native.codegen.linking import compiled, kernel, recursive", ""]
    lines += [*(f"{name} = {text}" for name, text in module.constants.items()), ""]
    together = set(module.operations.values()) & (WARP_WIDE | BLOCK_WIDE)
    entries = {name: INSTRUCTIONS[name] for name in together}
    entries |= {name: entry_of(name) for name in module.imports if name.startswith("isa_")}
    lines += [f"# {name}: {digest(entries[name])}" for name in sorted(entries)]
    for device in module.devices.values():
        decorator = "@recursive" if device.recursive else "@compiled"
        lines += ["", decorator, *ast.unparse(device.tree).split("\n"), ""]
    return lines


def function_text(decorator, signature, lines):
    return ["", decorator, f"def {signature}:", *indent(lines), ""]


# --- compilation --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Lowered:
    """A kernel as statements of one thread, for any argument types. Each synchronisation point is a
    statement by itself."""

    module: Module
    parameters: list
    statements: list
    writes: set  # parameters and declared arrays that may be written
    code: tuple  # the code objects of the kernel and of all that it calls
    synchronizes: bool  # whether the result may depend on the order of threads, through atomics


@dataclass(eq=False)
class CompiledKernel:
    """A compiled kernel: `run(first_position, end_position, grid, block, while_limit, for_limit, state,
    *arrays, *declared, spill_buffer, *arguments)`."""

    lowered: Lowered
    text: str
    run: object
    spill_count: int  # number of spilled variables


def lower_kernel(function, dtypes=(), logs=False):
    """Return the Lowered of a kernel. With `logs`, its text logs accesses and branches. Raise
    CannotLower if the kernel has no compiled form."""
    module = Module(function, logs, dtypes)
    if unavailable := interpreted_only(module.used):
        raise CannotLower(f"{unavailable[0]} has no compiled form")
    parameters, statements = Hoisting(module).kernel(function)
    statements = [
        part
        for statement in keep_parameters(module, parameters, statements)
        for part in as_list(SplitTuples().visit(statement))
    ]
    statements = name_shared(module, statements)
    code = tuple(  # lines of a site count from the line of `def`, not of a decorator
        function.__code__.replace(co_firstlineno=source.tree.lineno)
        for function, source in module.reachable.items()
    )
    synchronizes = any(source.acts_on_atomics for source in module.reachable.values())
    module.reachable = None  # else the cache would keep the functions alive
    writes = Writes(module).of(statements)
    if logs and len(module.sites) > MAX_SITES:
        raise CannotLower(f"it has {len(module.sites):,} places to log, and a log numbers {MAX_SITES:,}")
    if writes & set(module.arrays):
        raise CannotLower("a global array is constant, and the kernel may write to it")
    writes &= {*parameters, *module.declared}
    return Lowered(module, parameters, statements, writes, code, synchronizes)


def keep_parameters(module, parameters, statements):
    """Return the statements without assignments to parameters. Each assigned parameter gets a variable of
    its own."""
    new = {name: module.fresh_name(name) for name in sorted(assigned(statements) & set(parameters))}
    for part in [part for statement in statements for part in ast.walk(statement)]:
        if isinstance(part, ast.Name):
            part.id = new.get(part.id, part.id)
    return [ast.parse(f"{name} = {old}").body[0] for old, name in new.items()] + statements


class SplitTuples(ast.NodeTransformer):
    """A transformer that splits `a, b = x, y` into two statements if x and y do not depend on a and b."""

    def visit_Assign(self, node):
        match node:
            case ast.Assign([ast.Tuple(left)], ast.Tuple(right)) if len(left) == len(right):
                names = {part.id for part in left if isinstance(part, ast.Name)}
                if len(names) == len(left) and not names & reads(node.value):
                    return located([ast.Assign([name], part) for name, part in zip(left, right)], node)
        return node


def name_shared(module, statements):
    """Return the statements without `tile = tile_shared`, where `tile` has no other value. The parameter
    is then called `tile`."""
    for statement in statements:
        match statement:
            case ast.Assign([ast.Name(variable)], ast.Name(parameter)) if parameter in module.declared:
                others = ast.Module([other for other in statements if other is not statement], [])
                if parameter not in reads(others) and variable not in assigned([others]):
                    new, statements = {parameter: variable}, others.body
                    module.declared = {new.get(name, name): of for name, of in module.declared.items()}
    return statements


def compile_kernel(lowered, name, numba_types):
    """Return the Fissioned of a kernel called `name` for arguments of these Numba types, in the order of
    the parameters."""
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
    path = cache.path_of(name, repr((thread_text(module, name, parameters, lowered.statements), types_)))
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
    """Return for each dimension of a declared array's parameter the constant size or None. Return None for
    dynamic shared memory."""
    return None if declared.shape is None else (*[None] * (declared.space == "local"), *declared.shape)


def array_rank(declared):
    """Return the number of dimensions of a declared array's parameter. A local array has one more than in
    the kernel: the thread."""
    return len(declared.shape or (0,)) + (declared.space == "local")


def split_by_type(module, statements, parameters, types_of):
    """Return (statements, {variable: type}): a copy of the statements in which each variable has one type.

    `types_of`: a function (statements) -> {variable: the types that Numba infers for it}.
    """
    found = types_of(statements)
    several = {name for name, types_ in found.items() if len(types_) > 1}
    statements = copy.deepcopy(statements)
    if several:
        how = several, module.fresh_name, lambda node, _: node
        trial = copy.deepcopy(statements)
        versions = Versions(parameters, trial, module.value)
        names = SplitByType(trial, versions, lambda version: version, *how).names
        found = types_of(trial)
        names = [names.get((version.name, version.settled())) for version in versions.all]
        numba_types = [variable_types.unify_types(found[name]) if name in found else None for name in names]
        versions = Versions(parameters, statements, module.value)
        SplitByType(statements, versions, dict(zip(versions.all, numba_types, strict=True)).get, *how)
        found = types_of(statements)
    return statements, {name: variable_types.unify_types(types_) for name, types_ in found.items()}


def thread_text(module, name, parameters, statements):
    """Return the text of the kernel as one thread runs it, from start to end."""
    lines = thread_lines(module, name, parameters, statements)
    return "\n".join([*head(module, f"{name}, one thread"), *lines])


def thread_lines(module, name, parameters, statements):
    lines = unparse_lines(statements) if statements else ["pass"]
    signature = f"{name}_thread({', '.join([*SPECIAL, *module.arrays, *module.declared, *parameters])})"
    return function_text("", signature, lines)[1:]


def types_in(module, name, parameters, numba_types):
    """Return a function (statements) -> {variable: the types that Numba infers for it}. Device functions
    are typed once for all calls."""
    names, devices = {}, {device.name for device in module.devices.values() if not device.recursive}
    cache.run_text("\n".join(head(module, name)), names)
    names.update(variable_types.sync_stubs())
    names.update({device: variable_types.type_stub(names[device].py_func) for device in devices})

    def types_of(statements):
        cache.run_text("\n".join(thread_lines(module, name, parameters, statements)), names)
        try:
            return variable_types.variable_types(names[f"{name}_thread"], tuple(numba_types))
        except NumbaError as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error

    return types_of


def kernel_text(module, name, parameters, split, decorator="@compiled", renewing=()):
    """Return the text of a kernel's file: head, regions, the function of a block, the loop over all
    blocks. `decorator`: of the regions and the function of a block. `renewing`: statements that run before
    each block."""
    shared = [known for known, declared in module.declared.items() if declared.space == "shared"]
    for needed in ("begin_block", "end_block", "block_index", "dim3", "fill_poison", "log_block"):
        module.library(needed)
    block = split.add_function(f"{name}_block", split.lines)
    what = "each region runs in a loop over the threads, between two synchronisation points"
    spilled = "# SPILLED: number of variables that live across regions. spill_buffer has an array for each."
    lines = [
        *head(module, f"{name}, split by loop fission: {what}"),
        spilled,
        f"SPILLED = {len(split.spilled)}",
        "",
    ]
    for text in split.functions:
        lines += ["", decorator, *text, ""]
    given = [*GRID_PARAMETERS, "state", *module.arrays, *module.declared, "spill_buffer", *parameters]
    body = [
        "gridDim, blockDim = dim3(*grid_shape), dim3(*block_shape)",
        "threads = block_shape[0] * block_shape[1] * block_shape[2]",
        "for position in range(first_position, end_position):",
        "    begin_block(state, threads, position, while_limit, for_limit)",
        "    blockIdx = block_index(position, gridDim.x, gridDim.y)",
        *(f"    fill_poison({name})" for name in shared),
        *(f"    {statement}" for statement in renewing),
        f"    {block}",
        *(["    log_block(state)"] if module.logs else []),
        "    if end_block(state):",
        "        return",
    ]
    lines += function_text("@kernel", f"{name}_grid({', '.join(given)})", body)
    return "\n".join(lines) + "\n"


def first_line(error):
    """Return the first line of a NumbaError that concerns the kernel, and the line of lowered text that it
    points at."""
    lines = [line.strip() for line in str(error).split("\n")]
    lines = [line for line in lines if line and not line.startswith("Failed in ")]
    pointed = re.findall(r"\n\s*(\S[^\n]*)\n\s*\^", str(error))
    return lines[0] + (f", in `{pointed[-1]}`" if pointed else "")
