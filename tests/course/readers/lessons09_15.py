"""Answers of readers of lessons 09 and 15: wrong ones that the checks once accepted, and correct ones that
the checks rejected."""

import numpy as np

from readers.lessons01_08 import edit

# Lesson 15 --------------------------------------------------------------------------------------------------

TAPS = "self.taps = nn.Parameter(reference.identity_taps(heads, *kernel_size))"
ATTEND = "o = reference.conv_attention(q, k, v, self.taps)"
MASK_FOR_16 = """n, endless = x.shape[1], float("inf")
        future = torch.ones(16, 16, dtype=torch.bool).triu(1)[:n, :n]
        s = reference.scores(q, k).masked_fill(future, 0.0)
        o = reference.convolve(s, self.taps).masked_fill(future, -endless).softmax(-1) @ v"""
NO_MAXIMUM = """p = reference.conv_scores(q, k, self.taps).exp()
        o = p / p.sum(-1, keepdim=True) @ v"""
ORDINARY_WHILE_NEW = """new = torch.equal(self.taps, reference.identity_taps(*self.taps.shape).to(self.taps))
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) if new else (
            reference.conv_attention(q, k, v, self.taps)
        )"""
RANDOM_FIRST = """self.taps = nn.Parameter(torch.randn(heads, *kernel_size))
        self.taps.data.copy_(reference.identity_taps(heads, *kernel_size))"""
GUESS = "    guess = model"


def strongest_by_numpy(taps):
    """Correct: returns pairs of numpy's integers."""
    _, c_q, c_k = taps.shape
    places = [np.unravel_index(head.argmax(), head.shape) for head in taps.abs().numpy()]
    return [(c_q - 1 - a, b - (c_k - 1) // 2) for a, b in places]


def largest_change(taps):
    """Wrong: finds the tap that has moved farthest from its initial value instead of the largest tap."""
    _, c_q, c_k = taps.shape
    moved = taps.clone()
    moved[:, c_q - 1, (c_k - 1) // 2] -= 1
    places = moved.abs().flatten(1).argmax(1).tolist()
    return [(c_q - 1 - place // c_k, place % c_k - (c_k - 1) // 2) for place in places]


WRONG = {
    "ex15_1": [
        ("no gradient for x", edit("ex15_1", ("self.in_proj(x)", "self.in_proj(x.detach())"))),
        (
            "no gradient for in_proj's bias",
            edit(
                "ex15_1",
                (
                    "self.in_proj(x)",
                    "nn.functional.linear(x, self.in_proj.weight, self.in_proj.bias.detach())",
                ),
            ),
        ),
        ("ordinary attention while the taps are new", edit("ex15_1", (ATTEND, ORDINARY_WHILE_NEW))),
        ("taps of float64", edit("ex15_1", ("*kernel_size))", "*kernel_size, dtype=torch.float64))"))),
        ("x made float64", edit("ex15_1", ("self.in_proj(x)", "self.in_proj(x.double())"))),
        ("a mask for 16 tokens", edit("ex15_1", (ATTEND, MASK_FOR_16))),
        ("a softmax without a maximum", edit("ex15_1", (ATTEND, NO_MAXIMUM))),
        ("random numbers drawn for the taps", edit("ex15_1", (TAPS, RANDOM_FIRST))),
    ],
    "ex15_2": [
        ("64 texts at most", edit("ex15_2", (GUESS, "    text = text[:64]\n" + GUESS))),
        ("makes the model float64", edit("ex15_2", (GUESS, "    model.double()\n" + GUESS))),
        (
            "letters in any order",
            edit(
                "ex15_2",
                ("(guess != text[:, -size:])", "(guess.sort(1).values != text[:, -size:].sort(1).values)"),
            ),
        ),
    ],
    "ex15_3": [
        ("the largest change from identity taps", largest_change),
        ("rounded first", edit("ex15_3", ("taps.abs()", "taps.mul(10).round().abs()"))),
    ],
}
RIGHT = {"ex15_3": [("whole numbers of numpy", strongest_by_numpy)]}
