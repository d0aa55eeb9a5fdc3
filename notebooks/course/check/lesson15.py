"""Checks for lesson 15: a layer with taps, the share of wrong answers, and the key that the strongest tap
reads."""

import numpy as np
import torch
from torch import nn

from course.check.harness import compare, exercise, explained, fail, instance
from course.check.tensors import within
from course.check.writer import Writer, written
from kernels.modules.attention import ConvAttention
from kernels.reference import conv_attention, identity_taps

# (batch, tokens, width, heads, c_q, c_k): first one in which no two mistakes look alike; then one of each,
# one token, even and odd, oblong, wider than the text; last a long text.
SIZES = [
    (2, 7, 12, 3, 3, 4),
    (1, 1, 1, 1, 1, 1),
    (1, 1, 4, 2, 3, 3),
    (3, 5, 6, 2, 2, 5),
    (1, 9, 8, 4, 4, 3),
    (2, 4, 6, 3, 6, 11),
    (2, 3, 4, 1, 1, 1),
    (1, 70, 4, 2, 2, 5),
]


@exercise("15.1", "TapAttention")
def ex15_1(TapAttention, rng):
    torch.manual_seed(int(rng.integers(2**31)))  # for the layer's first weights
    for batch, n, width, heads, *kernel_size in SIZES:
        made = f"layer = TapAttention({width}, {heads}, {tuple(kernel_size)})"
        layer = TapAttention(width, heads, tuple(kernel_size))
        check_taps(layer, heads, kernel_size, made)
        x = torch.tensor(rng.standard_normal((batch, n, width)))
        call = f"{made}; layer(x), x: {tuple(x.shape)}"
        scramble(layer, rng, taps=False)
        neutral = torch.equal(layer.taps.detach().float(), identity_taps(heads, *kernel_size))
        check_forward(
            layer.double(), x, "a new layer, against one without taps", call, FORWARD if neutral else NEW_TAPS
        )
        check_gradients(layer, x, rng, f"{call}, new")
        scramble(layer, rng, taps=True)
        check_forward(layer, x, "with random taps", call, FORWARD)
        check_forward(layer, 10 * x, "with random taps and scores beyond 1000", call, LARGE)
        check_gradients(layer, x, rng, call)
    check_dtype(TapAttention(4, 2, (2, 5)))
    check_first_weights(TapAttention)
    return (
        f"{len(SIZES)} layers of 1 to 4 heads, forward and every gradient, 1 to 70 tokens, taps odd and even,"
        " wider than the text; a new one is ordinary attention"
    )


@exercise("15.2", "share_wrong")
def ex15_2(share_wrong, rng):
    for count, prompt, size, letters in [
        (48, 5, 3, 5),
        (1, 2, 1, 3),
        (6, 4, 1, 4),
        (5, 1, 4, 6),
        (40, 6, 2, 9),
        (300, 3, 2, 7),
    ]:
        for kind in ("some", "none", "all", "turned"):
            check_share(share_wrong, count, prompt, size, letters, kind, rng)
    return "24 batches of 1 to 300 texts, answers of 1 to 4 letters, against a model that writes them"


@exercise("15.3", "strongest")
def ex15_3(strongest, rng):
    shapes = [(2, 3, 6), (1, 1, 1), (3, 2, 5), (4, 6, 11), (2, 1, 4), (2, 5, 1), (5, 2, 2)]
    sets = [torch.tensor(rng.standard_normal(shape)) for shape in shapes]
    nearly_new = identity_taps(5, 2, 5, dtype=torch.float64) + torch.tensor(rng.uniform(-0.4, 0.4, (5, 2, 5)))
    nearly_equal = torch.tensor(rng.choice([-1, 1], (5, 2, 5)) + rng.uniform(-1e-3, 1e-3, (5, 2, 5)))
    for taps in [*sets, nearly_new, nearly_equal]:
        heads, c_q, c_k = taps.shape
        before = taps.clone()
        wanted = [reads_of(head) for head in taps.tolist()]
        call = f"strongest(taps), taps: {tuple(taps.shape)}"
        got = strongest(taps)
        for number in (
            [number for pair in got for number in pair]
            if isinstance(got, (list, tuple)) and all(isinstance(pair, (tuple, list)) for pair in got)
            else []
        ):
            instance(number, (int, np.integer), what="whole numbers", call=call, hint=WHOLE)
        if not torch.equal(taps, before):
            fail("it modified the taps", call=call)
        if heads == 1 or (c_q, c_k) == (3, 6):
            given = [[[round(tap, 2) for tap in row] for row in head] for head in before.tolist()]
            call = f"strongest(torch.tensor({given}))"
        compare(
            got,
            wanted,
            what="(queries back, keys to the right) of each head's strongest tap",
            tolerance=0,
            call=call,
            hint=STRONGEST,
        )
    return f"{len(sets)} sets of random taps, odd and even, 1 to 5 heads; nearly new taps, nearly equal ones"


WHOLE = "// divides whole numbers, / returns a float; .item() or .tolist() turns a tensor into numbers."
NEW_TAPS = (
    "A new layer is ordinary attention: its taps change nothing. Yours are not reference.identity_taps(heads,"
    " c_q, c_k)."
)
FORWARD = (
    "in_proj returns (B, N, 3E): first all queries, then all keys, then all values. In each of these three"
    " parts the elements of head 0 come first. conv_attention takes (B, H, N, d), and out_proj (B, N, E)."
)
LARGE = (
    "exp(1000) is too large for any float: subtract the largest score of the row first, as torch.softmax and"
    " lesson 01 do."
)
STRONGEST = (
    "Strongest means the largest absolute value. Row c_q - 1 of the taps belongs to the query itself, row 0"
    " to the oldest. Column (c_k - 1) // 2 belongs to the key itself, and the columns after it to the keys to"
    " its right."
)


# 15.1 -------------------------------------------------------------------------------------------------------


def check_taps(layer, heads, kernel_size, call):
    for name in ("in_proj", "out_proj"):
        if not isinstance(getattr(layer, name, None), nn.Linear):
            fail(
                f"the layer has no linear map called {name}",
                call=call,
                hint="Keep the two given maps, and write forward with them instead of calling another layer.",
            )
    taps, wanted = getattr(layer, "taps", None), (heads, *kernel_size)
    if not isinstance(taps, torch.Tensor):
        fail("the layer has no tensor called taps", call=call, hint="self.taps = nn.Parameter(...)")
    if not isinstance(taps, nn.Parameter):
        fail(
            "the taps are no parameter",
            call=call,
            hint="The optimizer updates parameters only. Without nn.Parameter the taps would never change.",
            got=type(taps).__name__,
        )
    if taps.untyped_storage().nbytes() < taps.numel() * taps.element_size():
        fail(
            "several taps share one element in memory, as after expand()",
            call=call,
            hint="Each head learns its own taps: repeat(), or identity_taps(heads, ...), allocates them all.",
        )
    if taps.dtype != layer.in_proj.weight.dtype:
        fail(
            f"the taps are {taps.dtype}, the other weights {layer.in_proj.weight.dtype}",
            call=call,
            hint="PyTorch cannot multiply these two dtypes: leave out the dtype.",
        )
    if taps.shape != wanted:
        fail(
            "the taps have a wrong shape",
            call=call,
            wanted=str(wanted),
            got=str(tuple(taps.shape)),
            hint="A set of c_q × c_k taps for each head.",
        )


def check_dtype(layer):
    x = torch.zeros(1, 2, 4, dtype=layer.in_proj.weight.dtype)
    got = layer(x)
    if got.dtype != x.dtype:
        fail(
            f"x and the weights are {x.dtype}, but the result is {got.dtype}",
            call="layer = TapAttention(4, 2, (2, 5)); layer(x)",
        )


def check_first_weights(TapAttention):
    """Check that creating the taps draws no random numbers, and that there are no parameters but the taps and
    the two linear maps. Models that differ only in their taps must start with the same other weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        given = {"in_proj": nn.Linear(4, 12), "out_proj": nn.Linear(4, 4)}
        wanted = torch.rand(4)
        for kernel_size in ((1, 1), (2, 5)):
            torch.manual_seed(0)
            layer = TapAttention(4, 2, kernel_size)
            if not torch.equal(torch.rand(4), wanted):
                fail(
                    f"TapAttention(4, 2, {kernel_size}) draws other random numbers than its two linear maps",
                    hint="Draw none for the taps: models with other taps must start with the same weights.",
                )
            for name, linear in given.items():
                for part, weight in linear.named_parameters():
                    if not torch.equal(getattr(getattr(layer, name), part), weight):
                        fail(
                            f"the first values of {name}.{part} are not those of the given nn.Linear",
                            call=f"TapAttention(4, 2, {kernel_size})",
                            hint="Leave the two linear maps as they are given.",
                        )
    names = {name for name, _ in layer.named_parameters()}
    if more := names - {
        "taps",
        *(f"{part}_proj.{what}" for part in ("in", "out") for what in ("weight", "bias")),
    }:
        fail(
            f"the layer has more parameters: {', '.join(sorted(more))}",
            hint="Add the taps only, because models with and without taps are compared.",
        )
    if layer.in_proj.weight.dtype != torch.get_default_dtype():
        fail(
            f"the layer's weights are {layer.in_proj.weight.dtype}",
            hint="Leave the dtype as PyTorch chooses it, float32: float64 is slow on a GPU.",
        )


@torch.no_grad()
def scramble(layer, rng, taps):
    """Randomize the taps, or every other parameter. Biases are included, because PyTorch may initialize them
    to 0."""
    for name, parameter in layer.named_parameters():
        if (name == "taps") == taps:
            parameter.copy_(torch.tensor(rng.standard_normal(parameter.shape)))


def oracle(layer, kernel_size):
    """Return the package's layer in float64, with the weights of the learner's layer."""
    width = layer.out_proj.in_features
    ours = ConvAttention(width, layer.heads, kernel_size, attention=conv_attention).double()
    weights = {
        "in_proj_weight": layer.in_proj.weight,
        "in_proj_bias": layer.in_proj.bias,
        "out_proj.weight": layer.out_proj.weight,
        "out_proj.bias": layer.out_proj.bias,
    }
    ours.load_state_dict(ours.state_dict() | {name: tensor.detach() for name, tensor in weights.items()})
    return ours


def check_forward(layer, x, what, call, hint):
    """Compare the layer with the oracle: with one identity tap if the layer is new, otherwise with the
    layer's taps."""
    ours = oracle(layer, (1, 1) if what.startswith("a new") else layer.taps.shape[1:])
    if not what.startswith("a new"):
        ours.load_state_dict(ours.state_dict() | {"taps": layer.taps.detach()})
    got, wanted = within(layer, (x,), call=call), ours(x)
    if isinstance(got, torch.Tensor) and got.dtype != torch.float64:
        fail(
            f"{what}: the result is {got.dtype}",
            call=call,
            hint="The layer was made float64 by layer.double(). Which tensor is not a parameter?",
        )
    compare(got, wanted, what=what, call=call, tolerance=1e-10, hint=hint)


def check_gradients(layer, x, rng, call):
    ours = oracle(layer, layer.taps.shape[1:])
    ours.load_state_dict(ours.state_dict() | {"taps": layer.taps.detach()})
    weights = torch.tensor(rng.standard_normal(x.shape))
    mine_x, theirs_x = (x.clone().requires_grad_() for _ in range(2))
    pairs = {
        "x": (mine_x, theirs_x),
        "taps": (layer.taps, ours.taps),
        "in_proj.weight": (layer.in_proj.weight, ours.in_proj_weight),
        "in_proj.bias": (layer.in_proj.bias, ours.in_proj_bias),
        "out_proj.weight": (layer.out_proj.weight, ours.out_proj.weight),
        "out_proj.bias": (layer.out_proj.bias, ours.out_proj.bias),
    }
    wanted = torch.autograd.grad((weights * ours(theirs_x)).sum(), [theirs for _, theirs in pairs.values()])
    layer.zero_grad()
    (weights * layer(mine_x)).sum().backward()
    for (name, (mine, _)), gradient in zip(pairs.items(), wanted, strict=True):
        if mine.grad is None:
            fail(
                f"no gradient reaches {name}",
                call=call,
                hint="Does forward call detach(), .data or torch.no_grad()? Autograd stops there.",
            )
        compare(mine.grad, gradient, what=f"the gradient of {name}", call=call, tolerance=1e-9, hint=FORWARD)


# 15.2 -------------------------------------------------------------------------------------------------------


def check_share(share_wrong, count, prompt, size, letters, kind, rng):
    torch.manual_seed(int(rng.integers(2**31)))
    model = Writer(letters)
    text = written(model, torch.randint(letters, (count, prompt)), size)
    wrong = {
        "some": torch.arange(count) < -(-count // 4),
        "none": torch.zeros(count, dtype=torch.bool),
        "turned": torch.zeros(count, dtype=torch.bool),
        "all": torch.ones(count, dtype=torch.bool),
    }[kind]
    # Each wrong answer is spoilt in one place, in turn from the first letter to the last; the letters after
    # it stay.
    place = prompt + torch.arange(count) % size
    text[wrong, place[wrong]] = (text[wrong, place[wrong]] + 1) % letters
    if kind == "turned":
        text[:, prompt:] = text[:, prompt:].roll(1, 1)
    text = text[torch.randperm(count)]
    before, weights = text.clone(), copies(model)
    model.train(training := kind != "all")
    wanted = (written(model, text[:, :prompt], size) != text).any(1).double().mean().item()
    call = f"share_wrong(model, text {tuple(text.shape)}, size={size})"
    got = share_wrong(model, text, size)
    if not torch.equal(text, before):
        fail("it modified the text", call=call)
    if model.training != training:
        fail(
            "the model is in another mode than before: model.training",
            call=call,
            hint="After model.eval(), restore it: mode = model.training before, model.train(mode) after.",
        )
    for name, weight in copies(model).items():
        if weight.dtype != weights[name].dtype or not torch.equal(weight, weights[name]):
            fail(f"it modified the model: {name}", call=call)
    mistakes = share_mistakes(model, text, size, wanted)
    values = [round(float(value), 9) for value in mistakes.values()]
    # a result that two mistakes explain is not evidence for either
    telling = {hint: value for hint, value in mistakes.items() if values.count(round(float(value), 9)) == 1}
    hint = explained(got, telling, SHARE)
    instance(got, float, what="a float", call=call, hint=".item() turns a tensor into a number.")
    compare(
        got,
        wanted,
        what=f"{round(wanted * count)} of {count} answers wrong",
        tolerance=1e-6,
        call=call,
        hint=hint,
    )


def copies(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def share_mistakes(model, text, size, wanted):
    """Return {hint: resulting value} for each likely mistake."""
    after = model(text).argmax(-1)
    differs = after[:, -size - 1 : -1] != text[:, -size:]
    return {
        LETTERS: differs.double().mean(),
        EVERY: differs.all(1).double().mean(),
        ONE_LETTER: differs[:, -1].double().mean(),
        FIRST: differs[:, 0].double().mean(),
        TOO_LATE: (after[:, -size:] != text[:, -size:]).any(1).double().mean(),
        RIGHT: 1 - wanted,
        NUMBER: wanted * len(text),
        PERCENT: 100 * wanted,
    }


LETTERS = "Equal to the fraction of wrong letters. An answer is wrong if any of its letters is: count texts."
EVERY = (
    "Equal to the fraction of texts in which every letter is wrong. One wrong letter is enough: any, not all."
)
ONE_LETTER = "Equal to the result if only the last letter is compared. An answer has `size` letters."
FIRST = (
    "Equal to the result if only the first letter of the answer is compared. An answer has `size` letters."
)
TOO_LATE = (
    "Equal to the result one position too late: model(text)[:, i] are the logits for the letter *after*"
    " letter i, so those for the answer begin one place before it."
)
RIGHT = "Equal to the fraction of correct answers."
NUMBER = "Equal to the number of wrong answers. A fraction is between 0 and 1."
PERCENT = "Equal to the result in percent. A fraction is between 0 and 1."
SHARE = (
    "model(text)[:, i] are the logits for the letter after letter i, so the logits for the answer begin one"
    " position before the answer. An answer is wrong if any of its letters is. Return the fraction of texts,"
    " not of letters."
)


# 15.3 -------------------------------------------------------------------------------------------------------


def reads_of(head):
    """(queries back, keys to the right) of the tap of largest size, for the taps of one head as lists."""
    _, a, b = max((abs(tap), a, b) for a, row in enumerate(head) for b, tap in enumerate(row))
    return len(head) - 1 - a, b - (len(head[0]) - 1) // 2
