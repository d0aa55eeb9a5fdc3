# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12b · Your gradients in autograd, and wrong ones
#
# **40 minutes** · builds on lesson 12 (`conv_attention_backward`) and lesson 10 (tiles and halos)
#
# After this lesson you will be able to
# 1. give autograd a backward pass of your own, and count the memory that it saves;
# 2. tell from wrong values which mistake produced them, and say which tests would have missed it.
#
# In lesson 12 you wrote the whole backward pass. Here it becomes a step that PyTorch can use in training. Then
# you look at four backward passes with a mistake each, which were published or are easy to make.
#
# The next cell loads your functions of lesson 12. If you have not solved one of them, or not saved it, the cell loads the solution's version instead.

# %%
import torch

from course import brought, check
from course.check.lesson12 import under_test
from kernels import reference

torch.manual_seed(12)
torch.set_default_dtype(torch.float64)
NAMES = "dQ", "dK", "dV", "dW"
conv_attention, conv_attention_backward, case, by_autograd, error = brought(
    "12_conv_gradients",
    *"conv_attention conv_attention_backward case by_autograd error".split(),
)

# %% [markdown]
# ## 1. Handing it to autograd
#
# A `torch.autograd.Function` is a step that brings its own gradient. Its `forward` computes the result and
# saves what `backward` will need. Its `backward` gets dO and returns one gradient per input.
# `torch.autograd.gradcheck` can then test it: it compares with finite differences, as you did.


# %%
class ConvAttention(torch.autograd.Function):
    """Convolutional attention of one head, with the gradients of this lesson."""

    @staticmethod
    def forward(ctx, q, k, v, w):
        o, log_sum = conv_attention(q, k, v, w)
        ctx.save_for_backward(q, k, v, w, o, log_sum)
        return o

    @staticmethod
    def backward(ctx, d_o):
        return conv_attention_backward(*ctx.saved_tensors, d_o)


# %%
inputs, _ = case(6, 3, 2, 3)
print(
    "gradcheck:",
    torch.autograd.gradcheck(ConvAttention.apply, [x.requires_grad_() for x in inputs]),
)

# %% [markdown]
# gradcheck accepts anything that agrees to about three digits, because finite differences allow no more. For
# the last digits, you have autograd.
#
# **Predict.** For N = 256 and d = 16, how many numbers have to be kept between the forward and the backward
# pass? This function keeps Q, K, V and O, N·d each, plus L and the taps: about 4 · 256 · 16 + 256 = 16,640.
# For the plain forward pass, autograd keeps at least as many numbers as P has. How many is that?


# %%
def kept_numbers(attend, inputs):
    """Return how many numbers autograd keeps for the backward pass of attend(*inputs).
    Memory that tensors share is counted once."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = (
            x.untyped_storage().nbytes() // x.element_size(),
            x,
        )
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        o = attend(*(x.clone().requires_grad_() for x in inputs))
    assert o.requires_grad
    return sum(count for count, _ in kept.values())


n, d = 256, 16
inputs, _ = case(n, d, 3, 5)
ours = kept_numbers(ConvAttention.apply, inputs)
plain = kept_numbers(lambda *inputs: conv_attention(*inputs)[0], inputs)
print(f"this function keeps {ours:,} numbers; one N×N matrix has {n * n:,}")
print("plain forward pass keeps more than two N×N matrices:", plain > 2 * n * n)

# %% [markdown]
# Twice as many tokens double the first count, and make an N×N matrix four times as
# large. To be fair: while it runs, your backward pass still creates N×N matrices, one
# after the other. It just doesn't keep them from the forward pass until then. Lesson 13
# does it tile by tile, without any N×N matrix.

# %% [markdown]
# ## 2. A bug hunt
#
# Here are four backward passes, called a, b, c and d. Each contains **one** mistake, and each a different
# one. Which letter has which mistake is drawn at random in each session.
#
# | name | mistake | |
# |---|---|---|
# | `"no D"` | dT = P * dP | the published pseudocode reads D, but none of its algorithms computes D; this version simply leaves it out |
# | `"no mask"` | dS = dS0 in the future too | in the published pseudocode, the line is missing |
# | `"counted twice"` | dW is summed by tiles that own 4 rows of T. Each tile also adds the P_q rows of T below, its halo, which another tile owns (lesson 12, section 3: the rows below read its scores) | in the published pseudocode, a tile sums over everything that it has loaded |
# | `"not transposed"` | dS0 by the convolution of the forward pass | not published, but an easy slip |
#
# You don't see their code. You see only their results: which of dQ, dK, dV and dW differ from autograd's.
#
# **Guess before you run**, using the picture at the top of lesson 12: a wrong dT spoils everything further along the way
# back. Which gradients does each of the four mistakes spoil?


# %%
def wrong(backward, w, n=10):
    """Return the names of the gradients that are wrong, for n tokens and taps w, or
    "-" if none is."""
    w = w.double()
    inputs = *torch.randn(3, n, 4, dtype=w.dtype), w
    d_o = torch.randn(n, 4, dtype=w.dtype)
    got = backward(*inputs, *conv_attention(*inputs), d_o)
    spoiled = [
        name
        for name, mine, right in zip(NAMES, got, by_autograd(inputs, d_o))
        if not error(mine, right) <= 1e-9
    ]
    return " ".join(spoiled) or "-"


at_random = {
    name: wrong(backward, torch.randn(3, 3)) for name, backward in under_test.items()
}
for name, spoiled in at_random.items():
    print(f"{name}:  random 3×3 taps, 10 tokens: {spoiled}")

# %% [markdown]
# You can identify two of them now. The other two spoil the same gradients, because both mistakes lie between
# dT and dS. To tell them apart, **choose inputs for which one of the mistakes does no harm**. The taps are a
# good choice to vary. Here are four experiments. First predict their results for both suspects:
#
# - **identity**: 3×3 taps with a single 1, for the score itself. This is ordinary attention, and no score
#   reads a neighbour.
# - **left**: one row of taps (x, y, 0). A score reads itself and its left neighbour, never its right one, so
#   it never reads across the diagonal.
# - **symmetric**: one row of taps (x, y, x). Reversed, it is the same.
# - **four tokens**: random 3×3 taps, and the whole sequence fits into one tile.

# %%
x, y = torch.randn(2)
experiments = {
    "identity": (reference.identity_taps(1, 3, 3, torch.float64)[0], 10),
    "left": (torch.tensor([[x, y, 0]]), 10),
    "symmetric": (torch.tensor([[x, y, x]]), 10),
    "four tokens": (torch.randn(3, 3), 4),
}
results = {
    name: {test: wrong(backward, w, n) for test, (w, n) in experiments.items()}
    for name, backward in under_test.items()
}
print(" " * 3 + "".join(f"{name:14}" for name in experiments))
for name, spoiled in results.items():
    print(f"{name}: " + "".join(f"{names:14}" for names in spoiled.values()))

# %% [markdown]
# ### Exercise 12.5 · diagnosis · four words
#
# Which version has which mistake? Return `{"a": ..., "b": ..., "c": ..., "d": ...}`
# with the names from the table. The letters are drawn again when the kernel restarts.
# You can simply write down the four words that are correct in this session, or write a
# few lines of code that find them by experiment, as the published solution does.
#
# <details><summary>Hint: the two suspects</summary>
#
# Which mistake cannot matter when no score reads across the diagonal? And which cannot matter when the taps
# are the same in both directions?
#
# </details>


# %% tags=["exercise"]
def diagnosis():
    """Return {letter: name of the mistake}."""
    # BEGIN SOLUTION 12.5
    found = {}
    for name, spoiled in at_random.items():
        if spoiled == "dW":
            found[name] = "counted twice"
        elif spoiled == "dQ dK dW":
            found[name] = "no D"
        elif results[name]["left"] == "-":
            found[name] = "no mask"
        else:
            found[name] = "not transposed"
    return found
    # END SOLUTION


# %% tags=["check"]
check.ex12_5(diagnosis)

# %% [markdown]
# Now read the table of experiments by its columns, as tests that somebody might have written:
#
# - The **identity** test is the obvious one, because the result must equal ordinary attention. It is a good
#   test for the forward pass. For the backward pass, it lets "no mask" and "not transposed" pass.
# - **Symmetric** taps in a single row with an odd number of columns (a blur along the keys) let "not
#   transposed" pass. With an even number, or with several rows, they don't, because the taps are not centred
#   on the score. And a single row has no rows above, so there is no halo below: "counted twice" passes as
#   well.
# - A sequence that **fits into one tile** lets "counted twice" pass. The tests of one published GPU
#   implementation of this attention end at 16 tokens. With 7×7 taps, its forward pass, measured on an H200,
#   is wrong for every length from 27 on that we tried.
#
# A single test with random taps of an even, non-square size and with more than one tile
# would have found all four. And gradcheck? It needs no second implementation:


# %%
def passes_gradcheck(backward):
    """Return whether gradcheck accepts this backward pass."""

    class UnderTest(ConvAttention):
        @staticmethod
        def backward(ctx, d_o):
            return backward(*ctx.saved_tensors, d_o)

    inputs, _ = case(7, 3, 3, 3)
    return torch.autograd.gradcheck(
        UnderTest.apply, [x.requires_grad_() for x in inputs], raise_exception=False
    )


print({name: passes_gradcheck(backward) for name, backward in under_test.items()})

# %% [markdown]
# ## In three lines
# - `torch.autograd.Function` takes your backward pass, and `gradcheck` tests it against finite differences.
# - From the gradients that are wrong, and from the gradients that are correct, you can infer where on the way
#   back a mistake is.
# - Test with inputs that have no symmetry and do not fit into one tile.
#
# **You can now** infer a mistake from wrong values, and say which tests would have missed it.
#
# **Read on:** PyTorch's documentation, "Extending PyTorch" (autograd functions) and "Gradcheck mechanics".
#
# **Next:** [lesson 13](13_conv_backward.ipynb) turns this way back into kernels, tile by tile, with a halo on
# both sides.
