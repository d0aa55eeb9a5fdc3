"""Tests of the translator of generated code (sim.native.codegen.translation) against Numba's compiler."""

import importlib.util
import random
import textwrap

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import cuda, float32, njit, types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from sim import simulate
from sim.native.codegen import linking
from sim.native.codegen.linking import External, compiled
from sim.native.codegen.translation import Source, translated

HEAD = """
import math
import numpy as np
from numba import float32, float64, int32, int64, uint8, uint32, uint64
from sim.native.codegen.isa_functions import (
    isa_builtins_abs_1, isa_builtins_max_2, isa_builtins_min_2, isa_numpy_float32, isa_numpy_int32,
    isa_operator_floordiv, isa_operator_mod, isa_operator_pow,
)
from sim.native.codegen.half_operators import bfloat16, float16

THREE, HALF, PAIR, NO = 3, np.float32(0.5), (5, -2), False
"""
ARGUMENTS = {
    "a": np.bool_(True),
    "b": np.int8(-7),
    "c": np.uint8(200),
    "d": np.int32(-(2**31)),
    "e": np.uint32(2**32 - 3),
    "f": np.int64(-(2**40) + 1),
    "g": np.uint64(2**63 + 5),
    "h": np.float32(-2.75),
    "i": np.float64(0.1),
    "j": np.complex64(1.5 - 2j),
    "k": np.int16(12),
}
NAMES = ", ".join(ARGUMENTS)
ATOMS = [*ARGUMENTS, *"0 1 -3 7 2.5 -0.0 True THREE HALF PAIR[1] 1e300 float16(h) bfloat16(i)".split()]
FORMS = [
    *(f"({{}} {sign} {{}})" for sign in "+ - * / & | ^ + - * < <= > >= == !=".split()),
    *("({} << 3)", "({} >> 2)", "(-{})", "(~{})", "(not {})", "(+{})"),
    *("({} and {})", "({} or {})", "({} if {} else {})", "({} < {} <= {})", "({} == {} != {} < {})"),
    *(f"isa_operator_{name}({{}}, {{}})" for name in ("floordiv", "mod", "pow")),
    *("isa_operator_mod({}, 7)", "isa_operator_floordiv({}, THREE)"),
    *(f"isa_operator_{name}({{}}, {n})" for name in ("floordiv", "mod") for n in (1, 7, 8)),
    *("isa_builtins_max_2({}, {})", "isa_builtins_min_2({}, {})", "isa_builtins_abs_1({})"),
    *("min({}, {}, {})", "isa_numpy_float32({})", "isa_numpy_int32({})", "({}, {})[1]", "({}, {}, {})[-1]"),
    *("math.sqrt({})", "abs({})", "uint32({})", "int32({})", "float32({})", "float64({})"),
]
BODIES = [
    """
    total = 0
    for n in range(3, 20, 4):
        if n == 7:
            continue
        if n > 14:
            break
        total = total * 10 + n
    return total * 100 + n
    """,
    """
    count = 0
    for n in range(c, b, -THREE):  # uint8 and int8
        for m in range(e):
            if m > n:
                break
            count += 1
    return count
    """,
    """
    last = int64(0)
    for n in range(k, d, b):
        last = n + 0
        if n < -100:
            return last - 1
    return last
    """,
    """
    left, number = f, 1
    while left < 0 and number != 0:
        left, number = left + number * number, number + 1
        if number % 2 if NO else number > 2000000:
            break
    else_number = number
    return else_number
    """,
    """
    x = h
    for each in (4, 3, 2):
        x *= float32(each)
        x -= HALF
    return x
    """,
    """
    pair = (h, f)
    first, (second, third) = pair[0], (f, pair[1])
    if a:
        pair = (first, second + third)
    return pair[1]
    """,
    """
    flag = d < f < g and not a or not i
    if NO:
        missing_name
    return (0 < k <= 12 != d) == flag
    """,
    """
    x = 0
    for n in range(5):
        y = n * n
        if y > 3:
            z = y
            x = x + z
    return x
    """,
]
# Loops whose number of iterations is a constant or computed from variables, and variables whose values the
# translator knows in one block and not in another
BODIES += [
    """
    total, last = 0, -1
    for first in (f, -9, 0, int64(k), 13, 4611686018427387904):
        for n in range(first, first + 11, 3):
            total, last = total * 3 + isa_operator_mod(n, 8), n
        for n in range(first, first + 5):
            total, last = total * 3 + isa_operator_floordiv(n, 8), n
        for n in range(first, first - 11, -4):
            total, last = total * 3 + isa_operator_mod(n, 7) - isa_operator_floordiv(n, 7), n
    return total * 16 + last
    """,
    """
    total, m = 0, 5
    for n in range(g, g + uint64(7), uint64(2)):
        total += int64(n % uint64(1000))
    for m in range(4, 1):
        total += 1000000
    for m in range(2):
        for m in range(m, m + 3):
            if m == 2:
                continue
            total += m
        total = total * 2 + m
    return total + m
    """,
    """
    x = 1
    y = x
    while y < 50:
        y = y * 3 + x
        if y % 2 == 0:
            x = y
        else:
            if x > 4 or not y > 20:
                x = x + 1
                continue
            y = y + x
        y = x + y
    return x * 1000 + y
    """,
    """
    found = -1
    for n in range(40):
        x = n * 7 % 11
        if not (x > 3 and n > 5 or (not a) or x == 0 and not n == 0):
            if x != 2 or n == 5:
                continue
        elif n > 20 and not (x < 9 or n < 30):
            break
        if n % 3 == 0 and x < 6:
            x = x + 100
        found = found * 5 % 1000003 + x
    return found
    """,
]
FALLBACKS = ["x = 1\nif a:\n    x = i\nreturn x", "x = [f, f]\nreturn len(x)"]


def random_expression(rng, depth=2):
    """Return the text of a random expression of the variables in ARGUMENTS."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(ATOMS)
    form = rng.choice(FORMS)
    return form.format(*(random_expression(rng, depth - 1) for _ in range(form.count("{}"))))


def functions_of(folder, bodies):
    """Return functions with the parameters in ARGUMENTS and these bodies."""
    path = folder / f"bodies_{abs(hash(tuple(bodies)))}.py"
    texts = [
        f"def f{n}({NAMES}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
        for n, body in enumerate(bodies)
    ]
    path.write_text("\n".join([HEAD, *texts]))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [getattr(module, f"f{n}") for n in range(len(bodies))]


def runner(pairs):
    """Return a compiled function that stores the results of each pair of functions: integers in `whole`,
    other numbers in `number`."""
    names, lines = {}, [f"def run(whole, number, {NAMES}):"]
    for n, (result, *functions) in enumerate(pairs):
        array = "whole" if isinstance(result, (types.Integer, types.Boolean)) else "number"
        for side, function in enumerate(functions):
            names[f"f{n}_{side}"] = function
            # Adding 0.0 converts a 16-bit float, which Numba cannot store.
            half = " + 0.0" if result.name in ("float16", "bfloat16") else ""
            lines.append(f"    {array}[{n}, {side}] = f{n}_{side}({NAMES}){half}")
    exec("\n".join([*lines, "    return"]), names)
    return njit(error_model="numpy", pipeline_class=External)(names["run"])


def compare(folder, bodies):
    """Compare the types and values of functions with those of Numba's compiler. Return (the number of
    functions that were translated directly, the number of functions that Numba accepts)."""
    typing, pairs, direct = cpu_target.typing_context, [], 0
    given = tuple(map(typing.resolve_value_type, ARGUMENTS.values()))
    for function in functions_of(folder, bodies):
        source, by_numba = Source(function), compiled(function)
        try:
            wanted = typing.resolve_function_type(typing.resolve_value_type(by_numba), given, {})
        except (NumbaError, NotImplementedError):
            continue
        result = types.unliteral(wanted.return_type)
        assert types.unliteral(source.typed(typing, *given)[0].return_type) == result, function.__name__
        direct += not source.by_numba.overloads
        pairs.append((result, translated(function), by_numba))
    whole, number = np.zeros((len(pairs), 2), np.int64), np.zeros((len(pairs), 2), complex)
    runner(pairs)(whole, number, *ARGUMENTS.values())
    for (_, _, by_numba), integers, numbers in zip(pairs, whole, number):
        parts = numbers.view(float).view(np.int64)  # the bits, which also differ between 0.0 and -0.0
        parts[np.isnan(numbers.view(float))] = 0
        same = integers[0] == integers[1] and np.array_equal(parts[:2], parts[2:])
        assert same, (by_numba.py_func.__name__, integers, numbers)
    return direct, len(pairs)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))]
)
def test_random_expressions(tmp_path, seed):
    rng = random.Random(seed)
    direct, count = compare(tmp_path, [f"return {random_expression(rng)}" for _ in range(40)])
    assert direct >= count * 0.4


def test_statements(tmp_path):
    assert compare(tmp_path, BODIES) == (len(BODIES), len(BODIES))


def test_loops_and_branches_need_neither_memory_nor_divisions(tmp_path, monkeypatch):
    body = """
    total = int64(0)
    for n in range(k):
        if isa_operator_mod(n, 8) == 3 and not (isa_operator_floordiv(n, 4) > 5 or n == 2):
            continue
        for m in range(0, n, 3):
            total = total + m
    return 5
    """
    texts, original = [], linking.RunLibrary.add_ir_module

    def add(library, module):
        original(library, module)
        texts.extend(str(each) for each in module.functions if ".f0." in each.name)

    monkeypatch.setattr(linking.RunLibrary, "add_ir_module", add)
    compare(tmp_path, [body])
    (text,) = texts
    found = [name for name in ("srem", "sdiv", "xor", "mul") if f" {name} " in text]
    # `total` is assigned on several paths, and its slot is initialised to 0. The result of the function is
    # stored, too.
    assert not found and text.count("alloca i64") == 1 and text.count("store i64") == 4


def test_other_functions_are_left_to_numba(tmp_path):
    assert compare(tmp_path, FALLBACKS) == (0, len(FALLBACKS))


def test_a_step_of_zero_is_an_error(tmp_path):
    (function,) = functions_of(tmp_path, ["for n in range(0, 5, f - f):\n    pass\nreturn 0"])
    run = runner([(types.int64, translated(function))])
    with pytest.raises(ValueError, match="range"):
        run(np.zeros((1, 2), np.int64), np.zeros((1, 2), complex), *ARGUMENTS.values())


@cuda.jit(device=True)
def larger(x, y):
    return x if x > y else y


@cuda.jit
def shifted(x):
    """Use a device function, a shared array, a shuffle and a loop with a barrier."""
    tile, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    tile[i] = x[i]
    for step in range(3):
        cuda.syncthreads()
        value = larger(tile[(i + step) % 64], float32(step))
        cuda.syncthreads()
        tile[i] = cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)
    x[i] = tile[i]


def test_numba_compiles_only_the_grid_function(monkeypatch, tmp_path):
    """Check that all regions and device functions of a kernel are translated directly."""
    lowered = []

    def lower(step, state):
        lowered.append(state.func_id.func_name)
        return run_pass(step, state)

    run_pass = linking.LowerToLink.run_pass
    monkeypatch.setattr(linking.LowerToLink, "run_pass", lower)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    x = np.arange(64, dtype=np.float32)
    expected = x.copy()
    simulate(shifted, engine="fibers")[1, 64](expected)
    report = simulate(shifted, engine="native")[1, 64](x)
    assert report.notes == ("compiled",) and (x == expected).all()
    assert not [name for name in lowered if "shifted" in name or "larger" in name]
