# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 15 · Training
#
# **90 minutes**, including 10 for the bug hunt (*optional*) · builds on lesson 09 (convolutional attention)
# and lessons 12 and 13 (its gradients) · you need to have trained something with PyTorch before
#
# After this lesson you will be able to
#
# 1. build the layer that all of part 4 was about, put it into a small transformer, and train it;
# 2. compare fairly: the same model with and without convolution, with the same start and the same texts,
#    and with all seeds of the large run shown;
# 3. tell a model that has learned something from one that only looks like it.
#
# You don't need a GPU: a small training runs here, in a minute or two. A larger one was recorded on a GPU,
# with our kernels.

# %%
import functools
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from IPython.display import display
from torch import nn

import kernels
from course import check, progress_bar, show_figure
from course.figures import BLUE, ORANGE
from course.find_the_block import Plan, Task, Training, Transformer
from course.pictures import draw_cells
from course.progress_bar import quiet
from kernels import ConvAttention, reference

COLOURS = {"with": BLUE, "without": ORANGE}

# %% [markdown]
# ## 1. Find the block
#
# Each text consists of blocks of letters, followed by a question. The answer is the one block that contains
# **all** the letters of the question:
#
# > a k c . &nbsp; q a d . &nbsp; a q k . &nbsp; q c b . &nbsp; # k q → ?
#
# **Do it by eye.** How many blocks contain k? How many contain q? And which one contains both?
#
# <details><summary>Answer</summary>
#
# k is in two blocks and q is in three. Only "a q k" contains both. So the answer is a q k, in the order of
# the block.
# </details>
#
# It is Alice and the rabbit of lesson 09 again, in single letters. (The idea of the task comes from the paper
# about multi-token attention, Golovneva et al. 2025, arXiv:2504.00927. The texts, sizes and training here are
# our own.) A generator draws as many texts as you like. Here are four:

# %%
task = Task(blocks=4, size=3, asked=2, letters=10)
for text in task.draw(4, torch.Generator().manual_seed(15)):
    print(task.spell(text))

# %% [markdown]
# Each letter of the question may also occur in wrong blocks, but never together with the other one.
#
# **Guess.** How far do you get with *one* letter? Suppose you look only for the first letter of the question,
# and choose one of the blocks that contain it, at random. What fraction of your answers is wrong?


# %%
def wrong_by_one_letter(task):
    """Return the error rate of a random choice among the blocks that contain the first
    letter of the question."""
    text = task.draw(10_000, torch.Generator().manual_seed(0))
    blocks = text[:, : task.blocks * (task.size + 1)].unflatten(1, (task.blocks, -1))
    asked = text[:, -task.size - task.asked]
    holding = (blocks == asked[:, None, None]).any(2).sum(1)
    return 1 - (1 / holding).mean().item()


print(f"wrong: {100 * wrong_by_one_letter(task):.0f} %")

# %% [markdown]
# In more than half of the texts, the letter is in one block only. Remember this number: a model with a lower
# error rate must be using both letters.
#
# ## 2. One query, or two together
#
# First ordinary attention, on the text above. The last token of the question, "q", looks for the block. At
# best it knows the whole question: it gives each k and each q in the text the score s, and every other letter
# 0.
#
# **Predict.** The larger s is, the more of its attention goes to k's and q's. How much of it goes to the
# correct block in the end?

# %%
letters = "a k c . q a d . a q k . q c b .".split()
right_block = slice(8, 11)
is_k, is_q = (
    torch.tensor([float(letter == asked) for letter in letters]) for asked in "kq"
)


def on_the_right_block(scores):
    """Return the part of the attention that goes to the correct block, for these
    scores of the keys."""
    return torch.softmax(scores, dim=0)[right_block].sum().item()


for s in (1, 2, 4, 8):
    print(f"s = {s}:  {on_the_right_block(s * (is_k + is_q)):.2f}")

# %% [markdown]
# Five tokens are a k or a q, and two of the five are in the correct block: 2/5. The query finds the wrong
# blocks as well.
#
# With convolution, two tokens ask. "k" asks for k's and "q" asks for q's, and the score of a key is the sum
# of what *both* find at that key and at the two letters on either side: 2 × 5 taps, all of them 1. The middle
# of the correct block then sees both letters.


# %%
def convolved(row_k, row_q):
    """Convolve two rows of scores, one per token of the question, with 2 × 5 taps that
    are all 1. Return the last row of the result."""
    scores = torch.stack([row_k, row_q])[None, None]
    return reference.convolve(scores, torch.ones(1, 2, 5))[0, 0, -1]


together = convolved(is_k, is_q)
print("  ".join(f"{letter}:{score:.0f}" for letter, score in zip(letters, together)))
for s in (1, 2, 4, 8):
    print(f"s = {s}:  {on_the_right_block(s * together):.2f}")

# %% [markdown]
# **Stop and look.** The fraction is better, but it does not reach 1. Which key is in the way? And what does
# it see?
#
# <details><summary>Answer</summary>
#
# The "." after the correct block. Its window reaches across an edge and contains the q and k of the correct
# block and the q of the next one: 3 in total. That is as much as the "k" before it has, and more than the 2
# of the middle of the correct block. A window only adds up; it does not know where a block ends.
# </details>
#
# How could a query tell the middle of a block from other positions? By the full stops: the middle has
# one full stop two letters to its left, and another two letters to its right. No other position has two full
# stops within its window. So let the token "q" also ask for full stops, with a score of 2:

# %%
is_stop = torch.tensor([float(letter == ".") for letter in letters])
together = convolved(is_k, is_q + 2 * is_stop)
print("  ".join(f"{letter}:{score:.0f}" for letter, score in zip(letters, together)))
for s in (1, 2, 4, 8):
    print(f"s = {s}:  {on_the_right_block(s * together):.2f}")

# %% [markdown]
# The next picture shows the scores in three rows: what each of the two tokens finds, and their sum over the 2
# × 5 taps. The frame marks the correct block.

# %%
show_figure(
    draw_cells(
        letters,
        [
            ("k finds", is_k.tolist()),
            ("q finds", (is_q + 2 * is_stop).tolist()),
            ("together", together.tolist()),
        ],
        framed=range(8, 11),
    ),
    "three rows of sixteen squares, a square for each letter of the text. k finds "
    "the two k's, with 1 each. q finds the three q's, with 1, and the four full "
    "stops, with 2. Together, from left to right: 1 3 4 4 3 5 3 3 4 6 5 5 4 5 3 2. "
    "The 6 is the middle of the correct block, which is framed.",
)

# %% [markdown]
# Now the middle of the correct block has 6, no other position has more than 5, and the fraction goes to 1.
# One head of one layer finds the block. (Not always: the first block of a text has a full stop on one side
# only. And finding the block is not yet an answer: the model still has to output its first letter, then its
# second. Training has to find taps for all of that.)
#
# Can a model without convolution do it at all? With **two** layers it can: the first layer writes into each
# key which letters are next to it, and the second asks for a key that knows both. But the first is of no use
# until the second asks, and the other way round. So expect this to take longer, not to be impossible. We will
# count *training steps*.
#
# ## 3. The layer
#
# Up to now, queries, keys and values were given. A layer computes them. One linear map, `in_proj`, turns the
# E numbers of each token into its query, its key and its value. Then every head attends. The results of the
# heads are concatenated, and a second linear map, `out_proj`, mixes them. In the code, E is `width` and H is
# `heads`.
#
# | | shape | |
# |---|---|---|
# | x | (B, N, E) | E numbers per token |
# | in_proj(x) | (B, N, 3E) | E numbers for the queries, then E for the keys, then E for the values |
# | q, k, v | (B, H, N, d) each | the E numbers are those of head 0, then of head 1, …; d = E / H |
# | o | (B, H, N, d) | convolutional attention, each head with its own taps |
# | concatenated | (B, N, E) | head 0 first again |
# | out_proj | (B, N, E) | |
#
# ### Exercise 15.1 · TapAttention · five lines
#
# The two linear maps are given. Add `self.taps`, a parameter of shape (H, c_q, c_k), and write `forward`,
# which takes x (B, N, E) and returns (B, N, E).
#
# - A **new layer must be ordinary attention**.
# - Creating the taps must draw no random number, and the layer has no other parameters: section 4 compares
#   two models with the same seed.
# - You can use `reference.identity_taps(heads, c_q, c_k)` and `reference.conv_attention(q, k, v, w)`, which
#   is causal. Leave the dtype as PyTorch chooses it.
#
# <details><summary>Hint 1: to the heads</summary>
#
# `self.in_proj(x).unflatten(2, (3, self.heads, -1))` is (B, N, 3, H, d). `permute` moves the 3 to the front
# and N after H: `.permute(2, 0, 3, 1, 4)`. Then `q, k, v = ...` takes it apart.
# </details>
#
# <details><summary>Hint 2: and back</summary>
#
# `o.transpose(1, 2)` is (B, N, H, d), and `.flatten(2)` merges the last two dimensions. If you flatten
# without the transpose, the numbers of different tokens get mixed.
# </details>


# %% tags=["exercise"]
class TapAttention(nn.Module):
    """Causal convolutional self-attention of x (B, N, E), with `heads` heads. Each head
    has its own kernel_size = (c_q, c_k) taps."""

    def __init__(self, width, heads, kernel_size):
        super().__init__()
        self.heads = heads
        self.in_proj, self.out_proj = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        # BEGIN SOLUTION 15.1
        self.taps = nn.Parameter(reference.identity_taps(heads, *kernel_size))
        # END SOLUTION

    def forward(self, x):
        # BEGIN SOLUTION 15.1
        q, k, v = (
            self.in_proj(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        o = reference.conv_attention(q, k, v, self.taps)
        return self.out_proj(o.transpose(1, 2).flatten(2))
        # END SOLUTION


# %% tags=["check"]
check.ex15_1(TapAttention)

# %% [markdown]
# ## 4. Two models that differ in one thing
#
# The layer goes into a transformer. It has an embedding for the letters and one for the positions, then two
# layers, and a linear map to the logits of the next letter. Each layer has attention, then two linear maps
# with a GELU between them; both parts read the output of a layer norm, and both are added to their input. The
# transformer is in `course/find_the_block.py`, in plain PyTorch.
#
# **With** convolution means 2 × 5 taps per head. (The question has two letters. From the middle of a block,
# two letters to either side reach all of it and its full stops.) **Without** means 1 × 1 taps, which is
# ordinary attention with one number that scales its scores. Everything else is the same: the class, the
# initial weights, the texts and their order, the number of steps.
#
# **Predict.** Each model has 2 layers of 2 heads. How many more parameters does the one with convolution
# have?

# %% tags=["uses-exercise"]
TAPS = {"with": (2, 5), "without": (1, 1)}


def new_model(name, seed=0):
    """Return a small transformer of your layers. Models with the same seed start with
    the same weights, whatever their taps."""
    torch.manual_seed(seed)
    return Transformer(
        task,
        functools.partial(TapAttention, kernel_size=TAPS[name]),
        width=32,
        heads=2,
        layers=2,
    )


def count(model):
    """Return the number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


models = {name: new_model(name) for name in TAPS}
print(
    "more parameters:",
    count(models["with"]) - count(models["without"]),
    "of",
    count(models["with"]),
)
text = task.draw(3, torch.Generator().manual_seed(15))
print(
    "new models give the same result:",
    torch.allclose(models["with"](text), models["without"](text), atol=1e-5),
)

# %% [markdown]
# Four heads have 9 more taps each. And because new taps change nothing, both models are the *same function*
# before the first step.
#
# ## 5. How many answers are wrong?
#
# The model writes an answer letter by letter. It gets the text up to the question, outputs its most likely
# first letter, gets that letter back, outputs the second, and so on. That takes one call of the model per
# letter.
#
# There is a cheaper way. Give it the text **with the correct answer** and look at its guess for each letter
# of the answer. `model(text)[:, i]` holds the logits for the letter *after* letter i. Because the model is
# causal, they do not depend on that letter or on any later one. This is called
# [**teacher forcing**](../docs/glossary.md), and training works in the same way.
#
# **Think before you go on.** In this way, the model sees the correct first letter before it guesses the
# second, even where it would have written a wrong one. Does that make the error rate too low?
#
# <details><summary>Answer</summary>
#
# Not if an answer counts as wrong as soon as *any* letter is wrong. If every guess is correct, the model has
# been given exactly what it would have written itself. If a guess is wrong, look at the first wrong one. Up
# to there, the model has been given what it would have written, so it would have written this wrong letter
# too. In both cases the two measures agree, text by text.
#
# (The fraction of wrong *letters* would be too low. And all of this holds for causal models only. Remember
# that for section 9.)
# </details>
#
# ### Exercise 15.2 · share_wrong · two or three lines
#
# `text` (B, N) holds B texts, whose last `size` letters are the answers. Return the fraction of texts in
# whose answer `model` gets any letter wrong, as a float between 0 and 1. Leave the model as it is, including
# its training mode.
#
# <details><summary>Hint: which logits?</summary>
#
# The model must guess the last letter of the text and never read it: `model(text[:, :-1])`. The last `size`
# rows of the result are the guesses for the last `size` letters.
# </details>


# %% tags=["exercise"]
@torch.no_grad()
def share_wrong(model, text, size):
    """Return the fraction of texts (B, N) with any wrong letter among the last `size`.
    model(text): logits (B, N, letters) for the letter after each."""
    # BEGIN SOLUTION 15.2
    guess = model(text[:, :-1])[:, -size:].argmax(-1)
    return (guess != text[:, -size:]).any(1).double().mean().item()
    # END SOLUTION


# %% tags=["check"]
check.ex15_2(share_wrong)

# %% [markdown]
# ## 6. Training that can be interrupted
#
# `Training` takes one step at a time: fresh texts, cross-entropy of the answers' letters, backward pass,
# AdamW. The taps have ten times the learning rate of the other weights, because they are few, and all but one
# in each head start at 0. Since the texts are new in every step, a model cannot memorise them.
#
# Trainings get interrupted. So a training writes its state to a file from time to time, a
# [**checkpoint**](../docs/glossary.md). What must a checkpoint contain, so that training continues *as if
# nothing had happened*?
#
# **Guess:** the weights, and what else?
#
# <details><summary>Answer</summary>
#
# The state of the optimizer (AdamW keeps two running means for each weight), the number of steps done (the
# learning rate depends on it), and the state of the random generator (otherwise the same texts would come
# again). `Training.save` stores all of them *atomically*: it writes a draft and then renames it. If the power
# fails in between, the old file is still there.
# </details>
#
# The test is strict. Train for 60 steps. Train again, stop at step 50 (the last checkpoint is from step 40),
# discard everything, resume, and continue to 60. The losses of the last 20 steps must agree **bit for bit**.

# %%
folder = Path(tempfile.mkdtemp(prefix="lesson15-"))


def short_training():
    """Return a new training of 60 steps."""
    return Training(new_model("with"), task, Plan(steps=60, batch=32), seed=0)


# %% tags=["uses-exercise"]
undisturbed = short_training()
list(progress_bar(undisturbed.run(), total=60, desc="undisturbed"))

broken_off = short_training()
steps = broken_off.run(folder / "short.pt", every=20)
for done in progress_bar(steps, total=60, desc="broken off"):
    if done == 50:
        break

resumed = short_training()
resumed.resume(folder / "short.pt")
print("steps done, according to the checkpoint:", resumed.steps_done)
list(progress_bar(resumed.run(), initial=resumed.steps_done, total=60, desc="resumed"))
print(
    "the same losses, bit for bit:",
    torch.equal(torch.stack(resumed.losses), torch.stack(undisturbed.losses)),
)
print("files in the folder:", sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# ## 7. With and without, live
#
# Each model trains for 600 steps of 32 texts. **Predict** the error rate after that, with convolution and
# without. (For comparison: three different letters of ten, guessed at random, are wrong 719 times in 720.
# With one letter of the question you get the rate of section 1.)
#
# The next cell defines the drawing functions; you don't need to read it. The one after it trains.

# %% jupyter={"source_hidden": true}
plan = Plan(steps=600, batch=32, rate=4e-3)


def means(losses, of=20):
    """Average the losses over chunks of steps. Return the chunks' middle steps and
    their means."""
    chunks = losses.split(of)
    return [of * (place + 0.5) for place in range(len(chunks))], [
        chunk.mean().item() for chunk in chunks
    ]


def draw_losses(losses, title=""):
    """Draw a curve for each model in {name: losses}: the cross-entropy of a letter, in
    nats, over the steps."""
    figure, axes = plt.subplots(figsize=(8, 3.4))
    for name, values in losses.items():
        axes.plot(
            *means(torch.stack(values)),
            color=COLOURS[name],
            linestyle="-" if name == "with" else "--",
            label=f"{name} convolution",
        )
    axes.set(
        xlabel="steps",
        ylabel="loss per letter",
        xlim=(0, plan.steps),
        ylim=(0, 2.7),
        title=title,
    )
    axes.legend()
    return figure


class LiveFigure:
    """A figure that is redrawn in place. It shows nothing if progress bars are off."""

    def __init__(self):
        self.handle = None

    def update(self, figure):
        plt.close(figure)
        if quiet():
            return
        if self.handle:
            self.handle.update(figure)
        else:
            self.handle = display(figure, display_id=True)


# %%
@functools.cache
def trained(name):
    """Return the finished training of one model. An interrupted training resumes from
    its checkpoint."""
    training, checkpoint = (
        Training(new_model(name), task, plan, seed=0),
        folder / f"{name}.pt",
    )
    if checkpoint.exists():
        training.resume(checkpoint)
    for done in progress_bar(
        training.run(checkpoint, every=100),
        total=plan.steps,
        initial=training.steps_done,
        desc=f"{name} convolution",
    ):
        if done % 50 == 0:
            losses[name] = training.losses
            live.update(draw_losses(losses))
    return training


# %% [markdown]
# You will see two progress bars and a growing curve. If it takes too long, interrupt the kernel (■) and run
# the cell again: it continues from the last checkpoint. (To start from scratch, for example with another
# layer, first run the cell above again, and the one that creates the folder.)

# %% tags=["uses-exercise"]
live, losses = LiveFigure(), {}
for name in TAPS:
    trained(name)

# %%
test = task.draw(2048, torch.Generator().manual_seed(1_000_000))

# %% tags=["uses-exercise"]
shares = {name: share_wrong(trained(name).model, test, task.size) for name in TAPS}
show_figure(
    draw_losses(
        {name: trained(name).losses for name in TAPS},
        "wrong answers: "
        f"{100 * shares['with']:.0f} % with, {100 * shares['without']:.0f} % without",
    ),
    "the loss over 600 steps. With convolution it falls steeply within the first 200 "
    "steps and ends near 0. Without, it falls slowly, and ends far above.",
)
print("with convolution, fewer than 15 % wrong:", shares["with"] < 0.15)
print("without, more than 25 % wrong:         ", shares["without"] > 0.25)

# %% [markdown]
# Both models had the same start and the same texts; one has 36 more taps. Without them, the model is still
# worse after 600 steps than a random choice among the blocks with the first letter. This is a single seed;
# section 10 shows five, with a larger task and more steps. To see that teacher forcing measures what it
# claims to measure, let the models write:


# %%
@torch.no_grad()
def write(model, text, size):
    """Return the texts (B, N) with the answers that the model writes letter by letter,
    in place of the given ones."""
    written = text[:, :-size]
    for _ in range(size):
        written = torch.cat([written, model(written)[:, -1:].argmax(-1)], dim=1)
    return written


def wrong_in_writing(model):
    """Return the fraction of test texts in which the model writes any letter wrong."""
    return (write(model, test, task.size) != test).any(1).double().mean().item()


# %% tags=["uses-exercise"]
for name in TAPS:
    model = trained(name).model
    print(
        f"{name:8} the same error rate letter by letter: "
        f"{wrong_in_writing(model) == share_wrong(model, test, task.size)}"
    )

# %% [markdown]
# ## 8. What it has learned
#
# You can read the taps. The score of query i and key j is a sum of scores around it, each multiplied by its
# tap. The tap in row a and column b multiplies the score of the query c_q − 1 − a positions **back** from i
# and of the key b − (c_k − 1) // 2 positions **to the right** of j.
#
# ### Exercise 15.3 · strongest · three or four lines
#
# `taps` has shape (H, c_q, c_k). For each head, find the tap with the largest absolute value. Return a list
# of pairs (queries back, keys to the right) of whole numbers. One key to the left is −1 to the right.
# Identity taps give (0, 0).
#
# **First by hand.** Take 2 × 4 taps, all of them 0 except 0.5 in row 1, column 1 and −3 in row 0, column 3.
# What is the pair?
#
# <details><summary>Answer</summary>
#
# Row 0 of 2 is one query back, and column 3 is 3 − (4 − 1) // 2 = 2 to the right: (1, 2).
# </details>
#
# <details><summary>Hint: row and column of the largest</summary>
#
# `taps.abs().flatten(1).argmax(1)` gives one number per head, and `divmod(number, c_k)` turns it into a row
# and a column.
# </details>


# %% tags=["exercise"]
def strongest(taps):
    """Return (queries back, keys to the right) of the tap with the largest absolute
    value, for each head of taps (H, c_q, c_k)."""
    # BEGIN SOLUTION 15.3
    _, c_q, c_k = taps.shape
    places = [divmod(place, c_k) for place in taps.abs().flatten(1).argmax(1).tolist()]
    return [(c_q - 1 - a, b - (c_k - 1) // 2) for a, b in places]
    # END SOLUTION


# %% tags=["check"]
check.ex15_3(strongest)

# %% [markdown]
# Here are the taps of your model. The title of each picture says what the strongest tap reads. (The cell only
# draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def draw_taps(layers, titles):
    """Draw the taps of each layer (H, c_q, c_k) as a row of pictures: blue for
    positive, orange for negative."""
    heads, c_q, c_k = layers[0].shape
    colours = plt.matplotlib.colors.LinearSegmentedColormap.from_list(
        "taps", [ORANGE, "white", BLUE]
    )
    figure, every = plt.subplots(
        len(layers),
        heads,
        figsize=(4.2 * heads, 1.9 * len(layers)),
        squeeze=False,
        layout="constrained",
    )
    for row, taps, names in zip(every, layers, titles):
        for axes, head, name in zip(row, taps, names):
            axes.imshow(head, cmap=colours, vmin=-abs(head).max(), vmax=abs(head).max())
            for (a, b), tap in zip(
                [(a, b) for a in range(c_q) for b in range(c_k)],
                head.flatten().tolist(),
            ):
                axes.text(
                    b,
                    a,
                    f"{tap:.1f}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if abs(tap) > 0.8 * abs(head).max() else "black",
                )
            axes.set_title(name, fontsize=10)
            axes.set_xticks(
                range(c_k), [f"{b - (c_k - 1) // 2:+d}" for b in range(c_k)]
            )
            axes.set_yticks(range(c_q), [f"{c_q - 1 - a} back" for a in range(c_q)])
    for axes in every[-1]:
        axes.set_xlabel("keys to the right", fontsize=9)
    return figure


def titles_of(layers):
    """Return what the strongest tap of each head reads, in words."""
    return [
        [
            f"layer {layer}, head {head}: {back} back, {right:+d}"
            for head, (back, right) in enumerate(strongest(taps))
        ]
        for layer, taps in enumerate(layers)
    ]


learned = [layer.attention.taps.detach() for layer in trained("with").model.layers]
show_figure(
    draw_taps(learned, titles_of(learned)),
    "the 2 × 5 taps of two heads in each of two layers, after training. "
    "They began as a single 1, at the query itself and the key itself. "
    "Now there are large ones in both rows and in several columns, of both signs.",
)
print(
    "in some head, a tap of the older query is above 0.5:",
    any(taps[:, 0].abs().max().item() > 0.5 for taps in learned),
)

# %% [markdown]
# Look at the row "1 back" of the first layer. It started as zeros. The scores of the *previous* letter of the
# question are now added to those of this letter: two queries decide together. (The signs of a head's taps
# mean little by themselves. If you change the sign of all of them and of the head's query weights, its scores
# stay the same. So a head with mostly negative taps may do exactly what one with positive taps does.)
#
# And where do the heads look? The next picture shows the attention weights for one text, in the last rows:
# those of the question and of the answer. Each row is a token that looks, and each column is a token that is
# looked at. The block to be found is framed.


# %%
@torch.no_grad()
def attention_maps(model, text):
    """Return the attention weights of every layer, each (H, N - 1, N - 1), while the
    model reads the text (N,)."""
    seen = []
    hooks = [
        layer.attention.register_forward_pre_hook(
            lambda attention, inputs: seen.append((attention, inputs[0]))
        )
        for layer in model.layers
    ]
    model(text[None, :-1])
    for hook in hooks:
        hook.remove()
    maps = []
    for attention, x in seen:
        q, k, _ = (
            attention.in_proj(x)
            .unflatten(2, (3, attention.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        maps.append(
            torch.softmax(reference.conv_scores(q, k, attention.taps), dim=-1)[0]
        )
    return maps


# %% jupyter={"source_hidden": true}
def block_of(task, text):
    """Return the position at which the answer's block begins in a list of tokens."""
    return next(
        start
        for start in range(0, task.blocks * (task.size + 1), task.size + 1)
        if text[start : start + task.size] == text[-task.size :]
    )


def draw_maps(task, text, maps_by_name):
    """Draw a column of pictures for each name in {name: [layer][head] weights}, where
    the weights are those of the last rows."""
    rows = task.asked + task.size - 1
    alphabet = "abcdefghijklmnopqrstuvwxyz"[: task.letters] + ".#"
    words = [alphabet[token] for token in text[:-1]]
    looking = [
        f"{'question' if place < task.asked else 'answer'} {word}"
        for place, word in enumerate(words[-rows:])
    ]
    stack = {
        name: [
            (layer, head, weights)
            for layer, heads in enumerate(maps)
            for head, weights in enumerate(heads)
        ]
        for name, maps in maps_by_name.items()
    }
    tall = len(next(iter(stack.values())))
    figure, every = plt.subplots(
        tall,
        len(stack),
        figsize=(5.4 * len(stack), 1.5 * tall),
        squeeze=False,
        layout="constrained",
    )
    for column, (name, pictures) in enumerate(stack.items()):
        for axes, (layer, head, weights) in zip(every[:, column], pictures):
            axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
            axes.add_patch(
                plt.Rectangle(
                    (block_of(task, text) - 0.5, -0.5),
                    task.size,
                    rows,
                    fill=False,
                    edgecolor=COLOURS[name],
                    linewidth=2.5,
                )
            )
            axes.set_title(
                f"{name} convolution: layer {layer}, head {head}", fontsize=10
            )
            axes.set_xticks(range(len(words)), words, fontsize=9)
            axes.set_yticks(range(rows), looking, fontsize=9)
    return figure


# %% tags=["uses-exercise"]
rows = task.asked + task.size - 1
example = test[0]
print(task.spell(example))
show_figure(
    draw_maps(
        task,
        example.tolist(),
        {
            name: [
                heads[:, -rows:]
                for heads in attention_maps(trained(name).model, example)
            ]
            for name in TAPS
        },
    ),
    "what the last four tokens look at, with convolution on the left and without on "
    "the right, layer by layer and head by head. Dark is much. "
    "The framed columns are the block that is asked for.",
)

# %% [markdown]
# Start with the second row, the last letter of the question: it has to find the block and output its first
# letter. Below it, each letter of the answer looks for the next one.
#
# **Look:** in which layer does the model with convolution find the block? Try another text, `test[1]` and so
# on, and see whether it is always the same layer.
#
# <details><summary>What we saw</summary>
#
# It depends on the run: training on another machine ends with slightly different weights. In the run stored
# with the solution, layer 0, head 0 already finds the block in this text. The last letter of the question looks
# at the first letter of the block, and each letter of the answer looks at the next one. Without convolution, no
# head does. But one model and one text prove nothing, and it is easy to read too much into such maps. The error
# rate is the evidence.
# </details>

# %% [markdown]
# ## 9. A bug hunt: too good to be true (optional, 10 minutes)
#
# A colleague has built a layer from the package in a single call, and reports better training than with any
# other layer. **Read the call first. What is wrong with it?** Then guess: the error rate is measured twice,
# by your `share_wrong` and by letting the model write. Which is lower?


# %%
def colleague(width, heads):
    """Return the colleague's layer."""
    return ConvAttention(
        width,
        heads,
        kernel_size=(2, 5),
        causal=False,
        attention=reference.conv_attention,
    )


# %% tags=["uses-exercise"]
torch.manual_seed(0)
training = Training(
    Transformer(task, colleague, width=32, heads=2, layers=2),
    task,
    Plan(steps=300, batch=32, rate=4e-3),
    seed=0,
)
for done in progress_bar(training.run(), total=training.plan.steps, desc="colleague"):
    pass
print(
    "your measure, with the answer given: fewer than 5 % wrong: ",
    share_wrong(training.model, test, task.size) < 0.05,
)
print(
    "writing letter by letter:            more than 80 % wrong:",
    wrong_in_writing(training.model) > 0.8,
)

# %% [markdown]
# <details><summary>What happened?</summary>
#
# `causal=False`. The token before a letter sees that letter. So for the first two letters of the answer there
# is nothing to find: the model copies them. The third letter, which the model is not given, is the one that
# follows these two in the text. Our runs got below 1 % in 300 steps, half as many as the honest models had.
# The measure of exercise 15.2 is fooled, because teacher forcing is fair for **causal** models only. When the
# model has to write, there is no next letter to copy. (If your `share_wrong` lets the model write, it is not
# fooled: its line prints False.)
#
# Lesson 09 had a tool for this: change the future, and see whether the past changes. It needs no training.
# Writing letter by letter is another such tool.
# </details>
#
# ## 10. On a GPU, with our kernels
#
# Here the task and the batch are larger, and the attention is that of lessons 11 and
# 13: `kernels.ConvAttention`, forward and backward. There are five seeds with
# convolution and five without, and **all ten are shown**, because showing only the best
# of five would mostly show luck. Both models have the same class, plan, texts and
# initial weights. *Without* means 1 × 1 taps and runs through the same convolving
# kernel, so that only the taps differ.

# %%
recorded = json.loads(
    (Path(kernels.__file__).parent / "data" / "lesson15.json").read_text(
        encoding="utf-8"
    )
)
big, big_plan, big_model = (
    Task(**recorded["task"]),
    Plan(**recorded["plan"]),
    recorded["model"],
)
print("recorded on {gpu}, {date}, {versions}".format(**recorded["recorded"]))
print("texts such as", big.spell(torch.tensor(recorded["maps"]["with"]["text"])))
print(
    f"{big_plan.steps} steps of {big_plan.batch} texts; {big_model['layers']} layers, "
    f"{big_model['heads']} heads, {big_model['width']} numbers per token; "
    f"taps {big_model['kernel_size']}, without: {big_model['without']}"
)


# %%
def of(convolution):
    """Return the runs with convolution, or those without, by seed."""
    return {
        run["seed"]: run
        for run in recorded["runs"]
        if run["convolution"] == convolution
    }


print("        with convolution       without")
print("seed    wrong      time        wrong      time")
for seed in of(True):
    pair = [of(convolution)[seed] for convolution in (True, False)]
    print(
        f"{seed:4}  "
        + "     ".join(
            f"{100 * run['share_wrong']:6.2f} %  {run['seconds']:5.0f} s"
            for run in pair
        )
    )
for name, summary in {
    "mean": lambda shares: sum(shares) / len(shares),
    "worst": max,
}.items():
    print(
        f"{name:5} "
        + "               ".join(
            f"{100 * summary(shares):6.2f} %"
            for shares in (
                [run["share_wrong"] for run in of(convolution).values()]
                for convolution in (True, False)
            )
        )
    )
print(f"\nby one letter: {100 * wrong_by_one_letter(big):.0f} % wrong")
print(
    f"all ten runs took {sum(run['seconds'] for run in recorded['runs']):.0f} seconds"
)

# %% [markdown]
# Each model answered 8192 texts. With convolution, no seed gets more than one of them wrong. Without, three
# of the five are still worse than a random choice by one letter, but **two have found a way** and are down at
# 3 or 4 %. So it is not impossible without convolution, as section 2 expected. It depends on the seed.
# Whether more steps would help, we have not tried. The curves show it: watch the dashed lines.

# %%
figure, axes = plt.subplots(figsize=(9, 4))
for name, convolution in (("with", True), ("without", False)):
    for place, run in enumerate(of(convolution).values()):
        steps = [
            run["steps_a_point"] * (point + 0.5) for point in range(len(run["loss"]))
        ]
        axes.semilogy(
            steps,
            run["loss"],
            color=COLOURS[name],
            linestyle="-" if convolution else "--",
            label=None if place else f"{name} convolution, one line per seed",
        )
axes.set(
    xlabel="steps", ylabel="loss per letter (logarithmic)", xlim=(0, big_plan.steps)
)
axes.set_yticks([1, 0.1, 0.01, 0.001, 0.0001], ["1", "0.1", "0.01", "0.001", "0.0001"])
axes.minorticks_off()
axes.legend()
show_figure(
    figure,
    "the loss of all ten runs on the GPU over the steps. The five solid lines, "
    "with convolution, lie close together: all are below 0.15 after 200 steps, "
    "and below 0.001 in the end. The five dashed ones, without, come down in stairs, "
    "at different times, to a level of 0.3 to 0.4, on which three of them stay. "
    "Two drop again, near step 1200, to about 0.03.",
)

# %% [markdown]
# Here are the taps that the first of the five seeds has learned, and where its heads look in one text, next
# to those of the model without:

# %% tags=["uses-exercise"]
first = next(iter(of(True).values()))
layers = [torch.tensor(taps) for taps in first["taps"]]
show_figure(
    draw_taps(layers, titles_of(layers)),
    "the learned taps of the first recorded model, two heads in each of two layers, "
    "blue for positive, orange for negative. Most striking is layer 0, head 1: "
    "all taps are small but for two, 1.0 for the older query at the key two to the "
    "left, and 1.1 for this query at the key one to the left.",
)
maps = {
    name: [torch.tensor(heads) / 100 for heads in found["percent"]]
    for name, found in recorded["maps"].items()
}
show_figure(
    draw_maps(big, recorded["maps"]["with"]["text"], maps),
    "what the tokens of the question and of the answer look at in the two recorded "
    "models, with convolution on the left, without on the right. "
    "The framed columns are the block that is asked for.",
)

# %% [markdown]
# **Read it.** Layer 0, head 1 has two large taps: 1 back, −2, and 0 back, −1. Suppose that a query gives a
# high score to keys with its own letter. What does such a head look for? And which rows of its map show that?
#
# <details><summary>Answer</summary>
#
# It looks at a key whose *left* neighbour is like this token, and whose neighbour two to the left is like the
# token before. So it finds the position **after** the same two letters. That is how an answer continues: the
# last row, "g" after "k", looks at the i of "k g i". To see what comes after a *pair*, ordinary attention
# needs two layers. Here, a second tap does it.
#
# And ordinary attention? In this text it also finds the block, in its second layer, and both models answer
# correctly. In a third of the texts, it does not.
# </details>
#
# ### What a step costs
#
# The next table shows the attention of one layer (8 heads, d = 64, 7 × 7 taps, float32), forward and
# backward, recorded with `python -m kernels.bench`: time and peak memory, for different lengths of the text.
# *sdpa* is PyTorch's attention, without any convolution.

# %%
bench = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text("utf-8")
)
step_of = {
    (row["shape"][2], row["name"]): row
    for row in bench["training"]
    if row["shape"][0] == 1
}
names = ("kernels", "eager", "compile", "sdpa")
print(f"{bench['gpu']}, {bench['date']}")
print(f"{'':6}{'milliseconds':^36}   {'peak memory, MiB':^36}")
print(
    f"{'N':>6}" + "   ".join("".join(f"{name:>9}" for name in names) for _ in range(2))
)
for n in (512, 1024, 2048, 4096):
    every = [step_of[n, name] for name in names]
    print(
        f"{n:6}"
        + "".join(f"{row['forward_ms'] + row['backward_ms']:9.1f}" for row in every)
        + "   "
        + "".join(f"{row['peak_mib']:9.0f}" for row in every)
    )
print("\nfrom 2048 to 4096 tokens:")
for name in ("kernels", "eager"):
    short, long = step_of[2048, name], step_of[4096, name]
    longer = (long["forward_ms"] + long["backward_ms"]) / (
        short["forward_ms"] + short["backward_ms"]
    )
    more = long["peak_mib"] / short["peak_mib"]
    print(f"{name:8} {longer:.1f} times the time, {more:.1f} times the memory")

# %% [markdown]
# For the memory, compare 2048 tokens with 4096. It grows fourfold for plain PyTorch and twofold for the
# kernels, and that decides how long a text you can train on. (The time of the kernels grows by less than a
# factor of four, because a short text leaves part of the GPU idle.)
#
# Training on a GPU is not reproducible to the last bit: dW is added up by atomics, in an order that no
# program controls (lesson 13b). So don't expect exactly these numbers from a second run, but expect the same
# picture.
#
# ## Validate
#
# The stage before this one is lesson 13, the gradients. We compare your layer, forward and backward, with
# four references: the package's layer with autograd; the gradient of the taps by lesson 12's formulas, by
# hand; PyTorch's own `nn.MultiheadAttention`; and the kernels of lessons 11 and 13, run in the simulator.


# %%
def pair_of_layers(width, heads, kernel_size, **options):
    """Return your layer and the package's, in float64, with the same random weights and
    taps."""
    mine = TapAttention(width, heads, kernel_size).double()
    nn.init.normal_(mine.taps)
    theirs = ConvAttention(width, heads, kernel_size, **options).double()
    names = {"in_proj_weight": "in_proj.weight", "in_proj_bias": "in_proj.bias"}
    theirs.load_state_dict(
        {name: mine.state_dict()[names.get(name, name)] for name in theirs.state_dict()}
    )
    return mine, theirs


def gradients(layer, x, d_out):
    """Return the output for x, and the gradients of x, of the taps and of both
    projections' weights."""
    x = x.clone().requires_grad_()
    out = layer(x)
    inner = (
        layer.in_proj.weight
        if isinstance(layer, TapAttention)
        else layer.in_proj_weight
    )
    return out, *torch.autograd.grad(
        (out * d_out).sum(), [x, layer.taps, inner, layer.out_proj.weight]
    )


# %%
def taps_by_hand(layer, x, d_out):
    """Return the gradient of the taps by lesson 12's formulas, with d_out first taken
    back through out_proj."""
    with torch.no_grad():
        q, k, v = (
            layer.in_proj(x).unflatten(2, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        t = reference.conv_scores(q, k, layer.taps)
        d_o = (
            (d_out @ layer.out_proj.weight)
            .unflatten(2, (layer.heads, -1))
            .transpose(1, 2)
        )
        return reference.conv_attention_backward(
            q, k, v, layer.taps, torch.softmax(t, -1) @ v, torch.logsumexp(t, -1), d_o
        )[3]


# %%
def far(got, wanted):
    """Return the largest difference, relative to the largest wanted value."""
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def validate(what, against, pairs, tolerance):
    """Print one line. NaN fails."""
    worst = max(far(got, wanted) for got, wanted in pairs)
    if not (worst <= tolerance):
        raise AssertionError(f"{what} against {against}: {worst}")
    print(f"{what:36}  {against:40}  below {tolerance:g}: {worst <= tolerance}")


def as_ordinary(layer, width, heads):
    """Return PyTorch's attention with the weights of this layer."""
    ordinary = nn.MultiheadAttention(width, heads, batch_first=True).double()
    weights = {
        "in_proj_weight": layer.in_proj.weight,
        "in_proj_bias": layer.in_proj.bias,
        "out_proj.weight": layer.out_proj.weight,
        "out_proj.bias": layer.out_proj.bias,
    }
    ordinary.load_state_dict(weights)
    return ordinary


# %% tags=["uses-exercise"]
torch.manual_seed(13)
against = {"autograd": [], "hand": [], "torch": [], "kernels": []}
for batch, n, width, heads, kernel_size in [
    (2, 9, 12, 3, (2, 5)),
    (1, 1, 4, 2, (3, 4)),
    (1, 20, 8, 2, (6, 11)),
    (3, 6, 8, 4, (1, 1)),
]:
    x, d_out = torch.randn(2, batch, n, width, dtype=torch.float64)
    mine, theirs = pair_of_layers(
        width, heads, kernel_size, attention=reference.conv_attention
    )
    against["autograd"] += zip(gradients(mine, x, d_out), gradients(theirs, x, d_out))
    against["hand"].append((gradients(mine, x, d_out)[2], taps_by_hand(mine, x, d_out)))
    new = TapAttention(width, heads, kernel_size).double()
    ordinary = as_ordinary(new, width, heads)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    found, _ = ordinary(x, x, x, attn_mask=future, need_weights=False)
    against["torch"].append((new(x), found))
x, d_out = torch.randn(2, 1, 7, 8)
mine, theirs = pair_of_layers(8, 2, (2, 5))
against["kernels"] += [
    (got.double(), wanted)
    for got, wanted in zip(
        gradients(theirs.float(), x, d_out), gradients(mine, x.double(), d_out.double())
    )
]

everything = "output and four gradients"
by_package, by_kernels = "autograd, package's layer", "kernels of lessons 11 and 13"
validate(f"{everything}, float64", by_package, against["autograd"], 1e-10)
validate("gradient of the taps, float64", "lesson 12 by hand", against["hand"], 1e-10)
validate("a new layer, float64", "nn.MultiheadAttention", against["torch"], 1e-10)
validate(f"{everything}, float32", by_kernels, against["kernels"], 1e-4)

# %% [markdown]
# ### On a real GPU, if you have one
#
# This is one training step through the kernels: the loss, and the gradient of every parameter of the
# transformer, compared with the same step through the reference in float64. On a GPU, the step uses 64 texts.
# In the simulator, which is slower, it uses one text of two short blocks. The cell prints the same line in
# either case.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
step_task, texts = (
    (task, 64) if device == "cuda" else (Task(blocks=2, size=2, asked=2, letters=6), 1)
)


def one_step(attention, device, dtype):
    """Return the loss of one batch and every parameter's gradient, as one vector in
    float64 on the CPU."""
    torch.manual_seed(0)
    model = Transformer(
        step_task,
        functools.partial(ConvAttention, kernel_size=(2, 5), attention=attention),
        width=8,
        heads=2,
        layers=2,
    ).to(device, dtype)
    for layer in model.layers:
        layer.attention.taps.data += 0.3
    text = step_task.draw(texts, torch.Generator().manual_seed(0)).to(device)
    logits = model(text[:, :-1])[:, -step_task.size :]
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), text[:, -step_task.size :].flatten()
    )
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat([loss[None], *gradients]).detach().double().cpu()


kernels_step = one_step(kernels.conv_attention, device, torch.float32)
exact_step = one_step(reference.conv_attention, "cpu", torch.float64)
print(
    "a step through the kernels, on this device: within 1e-4 of the reference:",
    ((kernels_step - exact_step).abs().max() <= 1e-4 * exact_step.abs().max()).item(),
)

# %% [markdown]
# ## In three lines
# - A layer with taps starts as ordinary attention and learns which neighbours to add. Two tokens of a
#   question can then decide together, in one layer.
# - Compare like with like: the same start, texts and steps, nearly the same parameters, and every seed in the
#   plot.
# - Teacher forcing measures what the model would write, if the model is causal. A checkpoint contains
#   everything that the next step depends on.
#
# **You can now** train with your own layer, interpret the number at the end, and look inside.
#
# **Read on:** Golovneva et al., *Multi-Token Attention* (2025, arXiv:2504.00927), section 4, for experiments
# with large models. Olsson et al., *In-context Learning and Induction Heads* (2022, arXiv:2209.11895), on
# heads that find what followed the same letters before. PyTorch's tutorial "Saving and Loading Models", on
# checkpoints.
#
# ### The course so far
#
# | part | you have | checked against |
# |---|---|---|
# | 1 · by hand | a softmax that never sees all of its row; attention in tiles | `torch.softmax`, `scaled_dot_product_attention` |
# | 2 · a GPU out of Python threads | blocks, barriers, warps; a flash-attention kernel, and a simulator that finds its races | part 1, number by number |
# | 3 · the real thing | the same kernel compiled; sectors, banks, occupancy, a roofline | the simulator; recorded counters |
# | 4 · convolutional attention | two masks, halos, forward and backward kernels, decoding with a cache, a layer that learns | each lesson by the one before |
#
# **Next:** part 5 makes it fast. [Lesson 16](16_tensor_cores.ipynb) begins with matrix products on tensor
# cores.
