"""PTX arithmetic on floats, with one entry per instruction and type: fma.rn.f32, min.f16, testp.finite.f64.

If libdevice or cuda.fp16 provides the same function, that module adds its name and a compiled form to the
entry.

An `.approx` instruction returns the correctly rounded value here. The hardware's result can differ in the
last bits. `.ftz` is ignored here (see sim.isa.registers).

Source: PTX ISA 9.7.3, "Floating-Point Instructions"; 9.7.4, "Half Precision Floating-Point Instructions".
"""

import math
import operator
from functools import partial

import numpy as np
from numpy import float16, float32, float64

from sim.isa import ieee
from sim.isa.directed import DIRECTIONS, divided, multiplied, square_root
from sim.isa.ptx_types import FLOATS, HALVES, REALS, add_entry, family
from sim.isa.rounding import fused, fused_float16, fused_float32

# (type, rounding direction) -> the fast function for a fused multiply-add
FUSED = {(float16, "rn"): fused_float16, (float32, "rn"): fused_float32}


def in_direction(scalar, mode):
    """Return {opcode: (number of operands, function)} for the operations that round their exact result once.

    scalar: the numpy type of the operands and of the result.
    mode: the rounding direction, by its name in sim.isa.rounding.
    """
    how = {"scalar": scalar, "mode": mode}
    found = {
        "add": (2, lambda x, y: fused(x, 1.0, y, **how)),
        "sub": (2, lambda x, y: fused(x, 1.0, -y, **how)),
        "mul": (2, partial(multiplied, **how)),
        "div": (2, partial(divided, **how)),
        "rcp": (1, partial(divided, 1.0, **how)),
        "sqrt": (1, partial(square_root, **how)),
        "fma": (3, FUSED.get((scalar, mode)) or partial(fused, **how)),
    }
    if mode == "rn":  # numpy's operators also round to nearest, and are faster
        found |= {name: (2, getattr(operator, name)) for name in ("add", "sub", "mul")}
    return found


# Entry -> further PTX names with the same semantics. .rn is the default of add, sub and mul. .approx and
# .full are correctly rounded here. mad of floats is an fma (PTX ISA 9.7.3, `mad`).
SYNONYMS = {f"{name}.rn.{text}": (f"{name}.{text}",) for name in ("add", "sub", "mul") for text in REALS}
SYNONYMS |= {f"{name}.rn.f32": (f"{name}.approx.f32", f"{name}.full.f32") for name in ("div", "rcp", "sqrt")}
SYNONYMS |= {"rcp.rn.f64": ("rcp.approx.f64",)}
SYNONYMS |= {f"fma.{mode}.{text}": (f"mad.{mode}.{text}",) for mode in DIRECTIONS for text in REALS}
for _text, _scalar in REALS.items():
    # The 16-bit floats support only rounding to nearest.
    for _mode in DIRECTIONS if _text in FLOATS else ("rn",):
        for _name, (_count, _semantics) in in_direction(_scalar, _mode).items():
            _named = f"{_name}.{_mode}.{_text}"
            add_entry(_named, _semantics, (_scalar,) * _count, _scalar, also=SYNONYMS.get(_named, ()))
family("abs.T", REALS, abs, 1)
family("neg.T", REALS, operator.neg, 1)
# If one operand is NaN, min and max return the other operand. With .NaN, they return NaN.
family("min.T", REALS, ieee.smaller)
family("max.T", REALS, ieee.larger)
family("min.NaN.T", REALS, ieee.smaller_or_nan)
family("max.NaN.T", REALS, ieee.larger_or_nan)
# The sign comes from the first operand of PTX's copysign, but from the second operand of math.copysign.
family("copysign.T", FLOATS, lambda sign, x: math.copysign(x, sign))
for _name, _of in {
    "sin": "sin",
    "cos": "cos",
    "lg2": "log2",
    "ex2": "exp2",
    "tanh": "tanh",
    "rsqrt": "rsqrt",
}.items():
    family(
        f"{_name}.approx.T",
        {"f32": float32} | (HALVES if _name in ("ex2", "tanh") else {}),
        ieee.of_one(_of),
        1,
    )
add_entry("rsqrt.approx.f64", ieee.of_one("rsqrt"), (float64,), float64)
for _test, _semantics in {
    "finite": math.isfinite,
    "infinite": math.isinf,
    "number": lambda x: x == x,
    "notanumber": math.isnan,
}.items():
    family(f"testp.{_test}.T", FLOATS, _semantics, 1, results=np.bool_)
for _text, _scalar in FLOATS.items():
    _least = float(np.finfo(_scalar).smallest_normal)
    add_entry(
        f"testp.normal.{_text}", lambda x, least=_least: least <= abs(x) < math.inf, (_scalar,), np.bool_
    )
    add_entry(f"testp.subnormal.{_text}", lambda x, least=_least: 0 < abs(x) < least, (_scalar,), np.bool_)
