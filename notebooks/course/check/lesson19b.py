"""Checks of lesson 19b: the cache of queries, and faulty layers to diagnose."""

import gc
import itertools
import math
import weakref

import torch

from course.check import letters
from course.check.harness import compare, exercise, explained, fail
from course.check.lesson19 import drawing
from course.check.tensors import within
from kernels import reference
from sim.nouns import plural

# 19.3 -------------------------------------------------------------------------------------------------------

SIZES = [(6, 6), (1, 1), (1, 4), (3, 1), (2, 2), (4, 7)]


@exercise("19.3", "push")
def ex19_3(push, rng):
    prompts = []
    for turn, sizes in enumerate(SIZES):
        draw, heads = drawing(rng.integers(2**31)), 1 + turn % 2
        for prompt in (1, 3, 40):
            talks = draw(2, heads, prompt + 19, 3)  # two conversations by turns, each with a second prompt
            kept = [q[:, :0].clone() for q in talks]
            ends = [0, *range(prompt, prompt + 8), prompt + 13, *range(prompt + 14, prompt + 20)]
            for (first, last), talk in itertools.product(itertools.pairwise(ends), (0, 1)):
                kept[talk] = pushed(push, kept[talk], talks[talk], first, last, sizes, prompts)
        forgotten(prompts)
    return f"{len(SIZES)} pairs of sizes, prompts of 1, 3 and 40 tokens, two conversations by turns"


def forgotten(prompts):
    """Reject an answer that keeps a prompt in memory. `prompts` is a list of weak references."""
    if any(prompt() is not None for prompt in prompts):
        gc.collect()  # frees reference cycles, which are no fault of the answer
    for prompt in prompts:
        if (q := prompt()) is not None:
            fail(
                f"it stores a prompt of {plural(q.shape[1], 'query', 'queries')} outside its arguments",
                hint="Return all state as `kept`; use no global variable and no default argument as a store.",
            )


def pushed(push, kept, q, first, last, sizes, prompts):
    """Check the state that the answer keeps after the queries [first, last) of q, and return it. If these
    queries are more than a state can have, append a weak reference to them to `prompts`."""
    needed = sum(sizes) - 1
    call = (
        f"push with {plural(kept.shape[1], 'query', 'queries')} kept, {last - first} new, c_q"
        f" {sizes[0]} and {sizes[1]}"
    )
    # A fresh tensor for each call: an answer that stores its state as an attribute of a tensor loses it.
    kept, new = (x.detach().clone() for x in (kept, q[:, first:last]))
    if last - first > needed + 1:
        prompts.append(weakref.ref(new))
    window, kept = pair_of_tensors(within(push, (kept, new, *sizes), call=call), call)
    right_rows(window, q[:, max(0, last - needed) : last], "the window", needed, call)
    right_rows(kept, q[:, max(0, last - needed + 1) : last], "what is kept", needed - 1, call)
    numbers, a_row = kept.untyped_storage().nbytes() // kept.element_size(), len(q) * q.shape[2]
    if numbers > a_row * (needed + 1):
        fail(
            f"what is kept has {plural(kept.shape[1], 'row')} and holds {numbers // a_row} in memory",
            call=call,
            hint="A slice is a view, and keeps the whole tensor in memory. clone() copies only the slice.",
        )
    return kept


def pair_of_tensors(got, call):
    if (
        not isinstance(got, (tuple, list))
        or len(got) != 2
        or not all(isinstance(x, torch.Tensor) for x in got)
    ):
        fail("the answer is not a pair of tensors (window, kept)", call=call, got=repr(type(got).__name__))
    return got


def right_rows(got, wanted, what, most, call):
    """Reject a tensor with wrong rows. A wrong number of rows is reported before wrong values."""
    if got.ndim == 3 and got.shape[1] != wanted.shape[1]:
        hint = f"Return all rows if there are at most {most}, and otherwise the last {most}."
        if most == 0:
            hint = "x[:, -0:] is x[:, 0:], which is everything. Count from the front: x[:, length - most :]."
        fail(
            f"{what} has another number of rows",
            call=call,
            wanted=wanted.shape[1],
            got=got.shape[1],
            hint=hint,
        )
    hint = explained(got, {}, "The order is: oldest first, newest last.", wanted=wanted)
    compare(got, wanted, what=what, call=call, tolerance=0, hint=hint)


# 19.4 -------------------------------------------------------------------------------------------------------

FAULTS = letters.drawn(["weights", "statistic", "none", "map", "scores"])
IMPLEMENTATIONS = tuple(FAULTS)
EXPERIMENTS = {
    "statistic": (
        "Compare gradients, with something after the softmax: after_taps=(3, 3), or after_map='any'."
    ),
    "map": "Use a map with a row that sums to less than 0: head_map='any'.",
    "scores": "Use documents=(0, 6), and taps with at least two rows and three columns.",
    "weights": "Use documents=(0, 6) and after_taps=(3, 3).",
    "none": "Use each part of the layer in turn: is there one that the implementation gets wrong?",
}


@exercise("19.4", "faults")
def ex19_4(faults, rng):
    got = faults()
    if not isinstance(got, dict) or set(got) != set(IMPLEMENTATIONS):
        fail(
            "wanted one word for each implementation",
            wanted=str(dict.fromkeys(IMPLEMENTATIONS, "...")),
            got=repr(got),
        )
    for name in IMPLEMENTATIONS:
        if got[name] not in EXPERIMENTS:
            fail(f"implementation {name}: {got[name]!r} is none of {', '.join(EXPERIMENTS)}")
    for name, fault in FAULTS.items():
        if got[name] != fault:
            redrawn = letters.redrawn_after_guesses(FAULTS)
            fail(
                "at least one implementation has another fault" + redrawn,
                hint=f"An experiment for {got[name]!r}: {EXPERIMENTS[got[name]]}",
            )
    return "five implementations, four faults"


HEADS, TOKENS, WIDTH = 3, 12, 4
MAPS = {
    None: None,
    "near 1": torch.eye(HEADS, dtype=torch.float64) + 0.1,
    "any": torch.tensor([[1, 0.5, 0.25], [0.5, -1, -0.5], [0, 0.5, 1]], dtype=torch.float64),
}
GRADIENTS = "q", "k", "v", "taps", "head_map", "after_taps", "after_map"


def wrong(implementation, taps=(3, 3), head_map="near 1", after_taps=None, after_map=None, documents=None):
    """Return the results of a layer that an implementation gets wrong: "O" with its rows, and "dq", "dk",
    "dv", "dtaps", ... for gradients. The layer has three heads and twelve tokens.

    Raise ValueError for an unknown implementation or map.

    taps, after_taps: (c_q, c_k) or None.
    head_map, after_map: "near 1", "any" or None.
    documents: the first token of each document, such as (0, 6), or None.
    """
    for what, word, known in [
        ("implementation", implementation, FAULTS),
        ("head_map", head_map, MAPS),
        ("after_map", after_map, MAPS),
    ]:
        if word not in known:
            raise ValueError(f"{what} is {word!r}; wanted one of {', '.join(map(repr, known))}")
    draw = drawing(19)
    given = {
        "q": draw(HEADS, TOKENS, WIDTH),
        "k": draw(HEADS, TOKENS, WIDTH),
        "v": draw(HEADS, TOKENS, WIDTH),
    }
    d_o = draw(HEADS, TOKENS, WIDTH)
    given |= {"taps": taps and draw(HEADS, *taps), "head_map": MAPS[head_map]}
    given |= {"after_taps": after_taps and draw(HEADS, *after_taps), "after_map": MAPS[after_map]}
    given = {name: x.clone().requires_grad_() for name, x in given.items() if x is not None}
    spans = reference.document_spans(documents or (0,), TOKENS)
    got, wanted = (run(fault, given, spans, d_o) for fault in (FAULTS[implementation], "none"))
    differs = {name: (got[name] - wanted[name]).detach().abs() for name in wanted}
    rows = [i for i in range(TOKENS) if not differs["O"][:, i].max() <= 1e-9]
    return [f"O, rows {rows}"] * bool(rows) + [
        f"d{name}" for name in GRADIENTS if name in differs and not differs[name].max() <= 1e-9
    ]


def run(fault, given, spans, d_o):
    """Return {"O": output, "q": its gradient, ...} of a layer with this fault, or of a correct layer for
    "none"."""
    part = {name: given.get(name) for name in GRADIENTS}
    visible = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    for start, end in spans:
        visible[start:end, start:end] = torch.ones(end - start, end - start).tril().bool()
    s = (part["q"] @ part["k"].mT / math.sqrt(WIDTH)).masked_fill(~visible, 0.0)
    t = convolved(s, part["taps"], spans if fault != "scores" else [(0, TOKENS)])
    if fault == "map":  # a large number for -inf, and the map after it
        t = mixed(t.masked_fill(~visible, -1e9), part["head_map"])
    else:
        t = mixed(t, part["head_map"]).masked_fill(~visible, -math.inf)
    p = torch.softmax(t, -1).detach().requires_grad_()
    u = convolved(p, part["after_taps"], spans if fault != "weights" else [(0, TOKENS)])
    o = mixed(u.masked_fill(~visible, 0.0), part["after_map"]) @ part["v"]
    late = [name for name in ("v", "after_taps", "after_map") if name in given]
    d_p, *d_late = torch.autograd.grad(o, [p, *(given[name] for name in late)], d_o)
    row = (d_o * o if fault == "statistic" else p * d_p).sum(-1, keepdim=True)
    early = [name for name in ("q", "k", "taps", "head_map") if name in given]
    d_early = torch.autograd.grad(t, [given[name] for name in early], p.detach() * (d_p - row.detach()))
    return {"O": o, **dict(zip(late, d_late)), **dict(zip(early, d_early))}


def convolved(x, taps, spans):
    """Convolve x (H, N, N) separately within each of `spans`."""
    if taps is None:
        return x
    blocks = [reference.convolve(x[None, :, start:end, start:end], taps)[0] for start, end in spans]
    out = torch.zeros_like(x)
    for (start, end), block in zip(spans, blocks):
        out[:, start:end, start:end] = block
    return out


def mixed(x, head_map):
    return reference.mix_heads(x[None], head_map)[0]
