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
# **80 minutes**, and 10 for the bug hunt (*optional*) · builds on lesson 09 (convolutional attention), lessons 12 and 13 (its gradients) · needs: that you have trained something with PyTorch before
#
# You will be able to
#
# 1. build the layer that all of part 4 was about, put it into a small transformer, and train it;
# 2. measure fairly: the same model with and without convolution, the same start, the same texts, every seed shown;
# 3. tell a model that has learned something from one that only looks so.
#
# No GPU is needed: a small training runs here, in a minute or two. A larger one was recorded on a GPU, with our kernels.

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
# A text of blocks of letters, and then a question. The answer is the one block that holds **all** the letters of the question:
#
# > a k c . &nbsp; q a d . &nbsp; a q k . &nbsp; q c b . &nbsp; # k q → ?
#
# **Do it by eye.** How many blocks hold k: `___` How many hold q: `___` Which one holds both: `___`
#
# <details><summary>Answer</summary>
#
# k is in two blocks, q in three, both are in "a q k" alone. So the answer is: a q k, in the order in which the block has them.
# </details>
#
# It is Alice and the rabbit of lesson 09, in small letters. (The idea of the task comes from the paper about multi-token attention, Golovneva et
# al. 2025, arXiv 2504.00927; texts, sizes and training here are our own.) A generator draws as many texts as we like. Here are four:

# %%
task = Task(blocks=4, size=3, asked=2, letters=10)
for text in task.draw(4, torch.Generator().manual_seed(15)):
    print(task.spell(text))

# %% [markdown]
# Each letter asked for may stand in wrong blocks too, but never both of them.
#
# **Guess.** How far does *one* letter get you? Look for the first letter of the question only, and take one of the blocks that hold it, at
# random. What share of such answers is wrong? `___`


# %%
def wrong_by_one_letter(task):
    """The share of wrong answers of somebody who picks by lot among the blocks that
    hold the first letter of the question."""
    text = task.draw(10_000, torch.Generator().manual_seed(0))
    blocks = text[:, : task.blocks * (task.size + 1)].unflatten(1, (task.blocks, -1))
    asked = text[:, -task.size - task.asked]
    holding = (blocks == asked[:, None, None]).any(2).sum(1)
    return 1 - (1 / holding).mean().item()


print(f"wrong: {100 * wrong_by_one_letter(task):.0f} %")

# %% [markdown]
# In more than half of the texts the letter is in one block only. Keep the number in mind: below it, a model must be using both letters.
#
# ## 2. One query, or two together
#
# First ordinary attention, on the text above. The last token of the question, "q", looks for the block. At best it knows the whole question: it
# gives each k and each q of the text the score s, and every other letter 0.
#
# **Predict.** The larger s, the more of its attention falls on k's and q's. How much of it falls on the right block in the end? `___`

# %%
letters = "a k c . q a d . a q k . q c b .".split()
right_block = slice(8, 11)
is_k, is_q = (
    torch.tensor([float(letter == asked) for letter in letters]) for asked in "kq"
)


def on_the_right_block(scores):
    """The share of the attention on the right block,
    where these are the scores of the keys."""
    return torch.softmax(scores, dim=0)[right_block].sum().item()


for s in (1, 2, 4, 8):
    print(f"s = {s}:  {on_the_right_block(s * (is_k + is_q)):.2f}")

# %% [markdown]
# Five tokens are a k or a q, and two of the five are in the right block: 2/5. It finds the wrong blocks as well.
#
# With convolution two tokens ask. "k" asks for k's, "q" asks for q's, and the score of a key is the sum of what *both* find at it and at the two
# letters on either side: 2 × 5 taps, all of them 1. The middle of the right block then sees both.


# %%
def convolved(row_k, row_q):
    """Two rows of scores, one for each token of the question,
    with 2 × 5 taps that are all 1: the last row of the result."""
    scores = torch.stack([row_k, row_q])[None, None]
    return reference.convolve(scores, torch.ones(1, 2, 5))[0, 0, -1]


together = convolved(is_k, is_q)
print("  ".join(f"{letter}:{score:.0f}" for letter, score in zip(letters, together)))
for s in (1, 2, 4, 8):
    print(f"s = {s}:  {on_the_right_block(s * together):.2f}")

# %% [markdown]
# **Stop and look.** The share is better, but it does not reach 1. Which key is in the way? And what does it see?
#
# <details><summary>Answer</summary>
#
# The "." after the right block. Its window lies across a border and holds q and k of the right block, and the q of the next: 3, as much as the "k"
# before it, and more than the middle of the right block with its 2. A window adds up; it does not know where a block ends.
# </details>
#
# How could a query tell the middle of a block from the rest? By the full stops: two letters to the left of a middle there is one, two letters to
# its right there is another. No other place has two of them within its window. So let the token "q" ask for full stops as well, with a score of 2:

# %%
is_stop = torch.tensor([float(letter == ".") for letter in letters])
together = convolved(is_k, is_q + 2 * is_stop)
print("  ".join(f"{letter}:{score:.0f}" for letter, score in zip(letters, together)))
for s in (1, 2, 4, 8):
    print(f"s = {s}:  {on_the_right_block(s * together):.2f}")

# %% [markdown]
# The text scored, in three rows: what each of the two tokens finds, and their sum over the 2 × 5 taps. The frame is the right block.

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
    "The 6 is the middle of the right block, which is framed.",
)

# %% [markdown]
# Now the middle of the right block has 6, no other place has more than 5, and the share goes to 1. One head of one layer finds the block.
# (It does not always. The first block of a text has a full stop on one side only. And a block that is found is not yet an answer: the model still
# has to say its first letter, then its second. Training has to find taps for all of that.)
#
# Can a model without convolution do it at all? With **two** layers it can: the first one writes into each key which letters stand next to it, the
# second asks for a key that knows both. But the first is of no use as long as the second does not ask, and the other way round. So expect this to
# take longer, not to be impossible. We shall count *steps of training*.
#
# ## 3. The layer
#
# Up to now queries, keys and values were given. A layer makes them: one linear map, `in_proj`, turns the E numbers of each token into its query,
# its key and its value. Then every head attends; its results are put side by side, and a second linear map, `out_proj`, mixes them.
# In the code E is `width` and H is `heads`.
#
# | | shape | |
# |---|---|---|
# | x | (B, N, E) | E numbers per token |
# | in_proj(x) | (B, N, 3E) | E numbers for the queries, then E for the keys, then E for the values |
# | q, k, v | (B, H, N, d) each | the E numbers are those of head 0, then of head 1, …; d = E / H |
# | o | (B, H, N, d) | convolutional attention, each head with taps of its own |
# | side by side | (B, N, E) | head 0 first again |
# | out_proj | (B, N, E) | |
#
# ### Exercise 15.1 · TapAttention · five lines
#
# The two linear maps are there. Add `self.taps`, a parameter of shape (H, c_q, c_k), and write `forward`, which takes x (B, N, E) and returns
# (B, N, E). A **new layer must be ordinary attention**, and making the taps must draw no random number: section 4 compares two models of one
# seed. You have `reference.identity_taps(heads, c_q, c_k)` and `reference.conv_attention(q, k, v, w)`, which is causal.
#
# <details><summary>Hint 1: to the heads</summary>
#
# `self.in_proj(x).unflatten(2, (3, self.heads, -1))` is (B, N, 3, H, d). `permute` puts the 3 in front and N behind H: `.permute(2, 0, 3, 1, 4)`.
# Then `q, k, v = ...` takes it apart.
# </details>
#
# <details><summary>Hint 2: and back</summary>
#
# `o.transpose(1, 2)` is (B, N, H, d), and `.flatten(2)` makes one dimension of the last two. Flatten without the transpose, and the numbers of
# different tokens get mixed.
# </details>


# %% tags=["exercise"]
class TapAttention(nn.Module):
    """Causal convolutional self-attention of x (B, N, E):
    `heads` heads, each with kernel_size = (c_q, c_k) taps of its own."""

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
# The layer goes into a transformer: an embedding for the letters and one for the places, two layers (attention, then two linear maps with a GELU
# between; both read what a layer norm hands them, and both are added to what came in), and a linear map to the logits of the next letter. It is in
# `course/find_the_block.py`, in plain PyTorch.
#
# **With** convolution: 2 × 5 taps per head. (Two letters are asked for. From the middle of a block, two letters to either side reach all of it and
# its borders.) **Without**: 1 × 1 taps, which is ordinary attention with one number that makes it louder or softer. Everything else is the same:
# the class, the first weights, the texts in their order, the number of steps.
#
# **Predict.** Each model has 2 layers of 2 heads. How many more parameters has the one with convolution? `___`

# %% tags=["uses-exercise"]
TAPS = {"with": (2, 5), "without": (1, 1)}


def new_model(name, seed=0):
    """A small transformer of your layers;
    models of one seed start with the same weights, whatever their taps."""
    torch.manual_seed(seed)
    return Transformer(
        task,
        functools.partial(TapAttention, kernel_size=TAPS[name]),
        width=32,
        heads=2,
        layers=2,
    )


def count(model):
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
    "new models say the same:",
    torch.allclose(models["with"](text), models["without"](text), atol=1e-5),
)

# %% [markdown]
# Four heads have 9 taps more each. And because new taps change nothing, both models are the *same function* before the first step.
#
# ## 5. How many answers are wrong?
#
# The model writes an answer letter by letter: it gets the text up to the question, says its likeliest first letter, gets that letter back, says the
# second, and so on. That takes one call of the model per letter.
#
# There is a cheaper way. Give it the text **with the right answer** and look at its guess for each letter of it. `model(text)[:, i]` holds the
# logits for the letter *after* letter i, and as the model is causal they do not depend on that letter or on any later one. That is called *teacher
# forcing*, and training works the same way.
#
# **Think before you go on.** In this way the model sees the right first letter before it guesses the second, even where it would have written a
# wrong one. Does that make the share of wrong answers too low?
#
# <details><summary>Answer</summary>
#
# Not if an answer counts as wrong as soon as *any* letter is. If every guess is right, the model has been given just what it would have written
# itself. If a guess is wrong, take the first wrong one: up to there it has been given what it would have written, so it would have written this
# wrong letter too. In both cases the two measures agree, text by text.
#
# (The share of wrong *letters* would be too low. And all of it holds for causal models only. Keep that in mind for section 9.)
# </details>
#
# ### Exercise 15.2 · share_wrong · two or three lines
#
# `text` (B, N) holds B texts, and their last `size` letters are the answers. Return the share of texts, from 0 to 1 and as a float, in whose answer
# `model` gets any letter wrong.
#
# <details><summary>Hint: which logits?</summary>
#
# The last letter of the text is there to be guessed, never to be read: `model(text[:, :-1])`. The last `size` rows of the result are the guesses
# for the last `size` letters.
# </details>


# %% tags=["exercise"]
@torch.no_grad()
def share_wrong(model, text, size):
    """The share of texts (B, N) with any wrong letter among the last `size`;
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
# `Training` takes one step at a time: fresh texts, cross-entropy of the answers' letters, backward, AdamW. The taps have ten times the learning
# rate of the rest: they are few, and all but one of each head begin at 0. As the texts are fresh in every step, a model cannot learn them by heart.
#
# Trainings get interrupted. What must a checkpoint hold, so that training goes on *as if nothing had happened*?
#
# **Guess:** the weights, and … `___`
#
# <details><summary>Answer</summary>
#
# The state of the optimizer (AdamW keeps two running means for each weight), the number of steps done (the learning rate depends on it), and the
# state of the random generator, or the same texts would come again. `Training.save` stores all of them, and in *one step*: it writes a draft, and
# then renames it. If the power fails in between, the old file is still there.
# </details>
#
# The test is strict. Train for 60 steps. Train again, stop at step 50 (the last checkpoint is of step 40), forget everything, resume, go on to 60.
# The losses of the last 20 steps must agree **bit for bit**.

# %%
folder = Path(tempfile.mkdtemp(prefix="lesson15-"))


def short_training():
    return Training(new_model("with"), task, Plan(steps=60, batch=32), seed=0)


# %% tags=["uses-exercise"]
undisturbed = short_training()
list(undisturbed.run())

broken_off = short_training()
for done in broken_off.run(folder / "short.pt", every=20):
    if done == 50:
        break

resumed = short_training()
resumed.resume(folder / "short.pt")
print("steps done, says the checkpoint:", resumed.steps_done)
list(resumed.run())
print(
    "the same losses, bit for bit:",
    torch.equal(torch.stack(resumed.losses), torch.stack(undisturbed.losses)),
)
print("files in the folder:", sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# ## 7. With and without, live
#
# 600 steps of 32 texts, for each model. **Predict** the share of wrong answers after them: with convolution `___` %, without `___` %. (For
# comparison: three different letters of ten, guessed at random, are wrong 719 times in 720; one letter of the question makes it the share of
# section 1.)
#
# The next cell defines what draws and what trains; there is no need to read it.

# %%
plan = Plan(steps=600, batch=32, rate=4e-3)


def means(losses, of=20):
    """The middle step of so many each, and the mean of their losses."""
    chunks = losses.split(of)
    return [of * (place + 0.5) for place in range(len(chunks))], [
        chunk.mean().item() for chunk in chunks
    ]


def draw_losses(losses, title=""):
    """A curve for each model, {name: losses}:
    the cross-entropy of a letter, in nats, over the steps."""
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
    """A figure that is drawn anew in its place; nothing where the bars are silent."""

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


@functools.cache
def trained(name):
    """The finished training of one model;
    what was interrupted goes on from its checkpoint."""
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
# Two bars, and a curve that grows. If it takes too long, interrupt the kernel (■), and run the cell again: it goes on from the last checkpoint. (To
# start afresh, for instance with another layer, first run the cell above, and the one that makes the folder.)

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
print("without, more than 20 % wrong:         ", shares["without"] > 0.2)

# %% [markdown]
# The same start, the same texts, 36 taps more. Without them, the model is still worse after 600 steps than a random choice among the blocks with
# the first letter; section 10 gives it more time. To see that teacher forcing measures what it claims to, let the models write:


# %%
@torch.no_grad()
def write(model, text, size):
    """The texts (B, N) with the answers that the model writes letter by letter;
    those that are there are not looked at."""
    written = text[:, :-size]
    for _ in range(size):
        written = torch.cat([written, model(written)[:, -1:].argmax(-1)], dim=1)
    return written


def wrong_in_writing(model):
    """The share of test texts of which the model writes any letter wrong."""
    return (write(model, test, task.size) != test).any(1).double().mean().item()


# %% tags=["uses-exercise"]
for name in TAPS:
    model = trained(name).model
    print(
        f"{name:8} letter by letter, as many wrong: "
        f"{wrong_in_writing(model) == share_wrong(model, test, task.size)}"
    )

# %% [markdown]
# ## 8. What it has learned
#
# The taps can be read. The score of query i and key j is a sum of scores around it, each times its tap. The tap in row a and column b stands
# before the score of the query c_q − 1 − a places **back** from i and the key b − (c_k − 1) // 2 places **to the right** of j.
#
# ### Exercise 15.3 · strongest · three or four lines
#
# `taps` has shape (H, c_q, c_k). For each head find the tap of the largest absolute value, and return a list of pairs (queries back, keys to the
# right), of whole numbers. One key to the left is −1 to the right. Identity taps give (0, 0).
#
# **First by hand.** Taps 2 × 4, all of them 0, but for 0.5 in row 1, column 1 and −3 in row 0, column 3. The pair is `___`
#
# <details><summary>Answer</summary>
#
# Row 0 of 2 is one query back, column 3 is 3 − (4 − 1) // 2 = 2 to the right: (1, 2).
# </details>
#
# <details><summary>Hint: row and column of the largest</summary>
#
# `taps.abs().flatten(1).argmax(1)` gives one number per head; `divmod(number, c_k)` makes row and column of it.
# </details>


# %% tags=["exercise"]
def strongest(taps):
    """(queries back, keys to the right) of the tap of largest size,
    for each head of taps (H, c_q, c_k)."""
    # BEGIN SOLUTION 15.3
    _, c_q, c_k = taps.shape
    places = [divmod(place, c_k) for place in taps.abs().flatten(1).argmax(1).tolist()]
    return [(c_q - 1 - a, b - (c_k - 1) // 2) for a, b in places]
    # END SOLUTION


# %% tags=["check"]
check.ex15_3(strongest)

# %% [markdown]
# Here are the taps of your model, and in each picture's title what its strongest tap reads. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def draw_taps(layers, titles):
    """The taps of each layer (H, c_q, c_k) as a row of pictures:
    blue for positive, orange for negative."""
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
    """What the strongest tap of each head reads, in words."""
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
    "some head's older query counts, in some layer:",
    any(taps[:, 0].abs().max().item() > 0.5 for taps in learned),
)

# %% [markdown]
# Look at the row "1 back" of the first layer. It began as zeros. What the *previous* letter of the question finds is now added to what this one
# finds: two queries decide together. (The signs of a head's taps mean little by themselves: change the sign of all of them and of the head's
# query weights, and its scores are the same. So a head of mostly negative taps may do just what one of positive taps does.)
#
# And where do the heads look? The weights of each row, for one text, in the last rows: those of the question and of the answer. Each row is a token
# that looks, each column one that is looked at; the block to be found is framed.


# %%
@torch.no_grad()
def attention_maps(model, text):
    """The attention weights of every layer, each (H, N - 1, N - 1),
    while the model reads the text (N,)."""
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
    """The place at which the answer's block begins in a text, a list of tokens."""
    return next(
        start
        for start in range(0, task.blocks * (task.size + 1), task.size + 1)
        if text[start : start + task.size] == text[-task.size :]
    )


def draw_maps(task, text, maps_by_name):
    """{name: [layer][head] a matrix of weights, 0 to 1, of the last rows}:
    a column of pictures for each name."""
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
        figsize=(7.4 * len(stack), 1.5 * tall),
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
            axes.set_xticks(range(len(words)), words, fontsize=8)
            axes.set_yticks(range(rows), looking, fontsize=8)
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
# The row to look at first is the second, the last letter of the question: it has to find the block and say its first letter. Below it the answer's
# own letters each look for the next one. In which layer does the model with convolution find the block? Take another text, `test[1]` and so on, and
# see whether it is always so. One model and one text prove nothing, and maps are easily read as more than they are. What counts is the share of
# wrong answers.

# %% [markdown]
# ## 9. A bug hunt: too good to be true (optional, 10 minutes)
#
# A colleague has made a layer from the package in one call, and reports better training than with any other layer. **Read the call first. What is
# wrong with it?** Then guess: the share of wrong answers is measured twice, by your `share_wrong` and by letting the model write. Which is lower?


# %%
def colleague(width, heads):
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
    "your measure, with the answer at hand: fewer than 5 % wrong: ",
    share_wrong(training.model, test, task.size) < 0.05,
)
print(
    "writing letter by letter:              more than 80 % wrong:",
    wrong_in_writing(training.model) > 0.8,
)

# %% [markdown]
# <details><summary>What happened?</summary>
#
# `causal=False`. The token before a letter sees that letter, so for the first two letters of the answer there is nothing to be found: it copies
# them. The third, which the model is not given, is the one that follows these two in the text. Our runs came below 1 % in 300 steps, half as many
# as the honest models had. The measure of exercise 15.2 is fooled, because teacher forcing is fair for **causal** models only. When the model has
# to write, there is no next letter to copy. (A `share_wrong` that lets the model write is not fooled: its line says False.)
#
# Lesson 09 had a tool for this: change the future, see whether the past moves. It needs no training. Writing letter by letter is the other one.
# </details>
#
# ## 10. On a GPU, with our kernels
#
# Here the task is larger, as is the batch, and attention is that of lessons 11 and 13: `kernels.ConvAttention`, forward and backward. Five seeds
# with convolution, five without, **all ten shown**: the best of five seeds would show luck. Both models have the same class, plan, texts and
# first weights; *without* means 1 × 1 taps, and runs through the same convolving kernel, so that only the taps differ.

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
    """The runs with convolution, or those without, by seed."""
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
# Each model was asked 8192 texts. With convolution no seed gets more than one of them wrong. Without, three of the five are still worse than
# a random choice by one letter; but **two have found a way**, and are down at 3 or 4 %. So it is not impossible without convolution, as section 2
# expected. It depends on the seed, and perhaps on the time: more steps were not tried here. The curves show both: watch the dashed lines.

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
            label=None if place else f"{name} convolution, a line a seed",
        )
axes.set(
    xlabel="steps", ylabel="loss per letter (logarithmic)", xlim=(0, big_plan.steps)
)
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
# The taps that the first of the five has learned, and what its heads look at in one text, beside those of the model without:

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
# **Read it.** Layer 0, head 1 has two large taps: 1 back, −2, and 0 back, −1. Suppose that a query gives a high score to keys with its own letter.
# What does such a head look for? And which rows of its map show that?
#
# <details><summary>Answer</summary>
#
# It looks at a key whose *left* neighbour is like this token, and whose neighbour two to the left is like the token before. So it finds the place
# **after** the same two letters. That is how an answer goes on: the last row, "g" after "k", looks at the i of "k g i". To see what comes after a
# *pair*, ordinary attention needs two layers. Here one tap beside the other does it.
#
# And ordinary attention? In this text it finds the block as well, in its second layer; both models answer rightly here. In a third of the texts it
# does not.
# </details>
#
# ### What a step costs
#
# The attention of one layer (8 heads, d = 64, 7 × 7 taps, float32), forward and backward, recorded with `python -m kernels.bench`: time, and memory at the peak, over the length of the text. *sdpa* is
# PyTorch's attention without any convolution.

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
print(f"{'':6}{'milliseconds':^36}   {'MiB at the peak':^36}")
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

# %% [markdown]
# From 2048 tokens to 4096 the time of plain PyTorch grows four times, that of the kernels three times (a short text leaves a part of the GPU idle). The memory grows four times for plain PyTorch and
# twice for the kernels: that decides how long a text a GPU can train on.
#
# Training on a GPU is not reproducible to the last bit: dW is added up by atomics, in an order that nobody controls (lesson 13). So do not expect
# these very numbers from a second run, but the same picture.
#
# ## VALIDATE
#
# The stage before this one is lesson 13, the gradients. Your layer, forward and back, against four witnesses: the package's layer with autograd;
# the gradient of the taps by lesson 12's formulas, by hand; PyTorch's own `nn.MultiheadAttention`; and the kernels of lessons 11 and 13, run in the
# simulator.


# %% tags=["uses-exercise"]
def pair_of_layers(width, heads, kernel_size, **options):
    """Your layer and the package's, float64, with the same random weights and taps."""
    mine = TapAttention(width, heads, kernel_size).double()
    nn.init.normal_(mine.taps)
    theirs = ConvAttention(width, heads, kernel_size, **options).double()
    names = {"in_proj_weight": "in_proj.weight", "in_proj_bias": "in_proj.bias"}
    theirs.load_state_dict(
        {name: mine.state_dict()[names.get(name, name)] for name in theirs.state_dict()}
    )
    return mine, theirs


def gradients(layer, x, d_out):
    """The output for x, and the gradients of x,
    of the taps and of both projections' weights."""
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


def taps_by_hand(layer, x, d_out):
    """The gradient of the taps by lesson 12's formulas;
    d_out goes back through out_proj first."""
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


def far(got, wanted):
    """The largest difference, measured by the largest number wanted."""
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def validate(what, against, pairs, tolerance):
    """One line; not (error <= tolerance) fails, so that NaN does."""
    worst = max(far(got, wanted) for got, wanted in pairs)
    if not (worst <= tolerance):
        raise AssertionError(f"{what} against {against}: {worst}")
    print(f"{what:36}  {against:40}  below {tolerance:g}: {worst <= tolerance}")


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
    new, ordinary = (
        TapAttention(width, heads, kernel_size).double(),
        nn.MultiheadAttention(width, heads, batch_first=True).double(),
    )
    ordinary.load_state_dict(
        {
            "in_proj_weight": new.in_proj.weight,
            "in_proj_bias": new.in_proj.bias,
            "out_proj.weight": new.out_proj.weight,
            "out_proj.bias": new.out_proj.bias,
        }
    )
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    against["torch"].append(
        (new(x), ordinary(x, x, x, attn_mask=future, need_weights=False)[0])
    )
x, d_out = torch.randn(2, 1, 7, 8)
mine, theirs = pair_of_layers(8, 2, (2, 5))
against["kernels"] += [
    (got.double(), wanted)
    for got, wanted in zip(
        gradients(theirs.float(), x, d_out), gradients(mine, x.double(), d_out.double())
    )
]

validate(
    "output and four gradients, float64",
    "autograd through the package's layer",
    against["autograd"],
    1e-10,
)
validate(
    "gradient of the taps, float64",
    "lesson 12's formulas, by hand",
    against["hand"],
    1e-10,
)
validate("a new layer, float64", "nn.MultiheadAttention", against["torch"], 1e-10)
validate(
    "output and four gradients, float32",
    "the kernels of lessons 11 and 13 in sim",
    against["kernels"],
    1e-4,
)

# %% [markdown]
# ### On a real GPU, if there is one
#
# One step of training, through the kernels: the loss, and the gradient of every parameter of the transformer, against the same step with the
# reference in float64. On a GPU with 64 texts, in the simulator with one text of two short blocks. The cell prints the same line.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
step_task, texts = (
    (task, 64) if device == "cuda" else (Task(blocks=2, size=2, asked=2, letters=6), 1)
)


def one_step(attention, device, dtype):
    """The loss of one batch, and every parameter's gradient:
    one long vector, float64, on the CPU."""
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
    return (
        torch.cat(
            [
                loss[None],
                *(parameter.grad.flatten() for parameter in model.parameters()),
            ]
        )
        .detach()
        .double()
        .cpu()
    )


kernels_step = one_step(kernels.conv_attention, device, torch.float32)
exact_step = one_step(reference.conv_attention, "cpu", torch.float64)
print(
    "a step through the kernels, on this device: within 1e-4 of the reference:",
    ((kernels_step - exact_step).abs().max() <= 1e-4 * exact_step.abs().max()).item(),
)

# %% [markdown]
# ## In three lines
# - A layer with taps starts as ordinary attention and learns which neighbours to add; two tokens of a question then decide together, in one layer.
# - Compare like with like: the same start, texts and steps, nearly the same parameters, and every seed in the plot.
# - Teacher forcing measures what the model would write, if the model is causal; a checkpoint holds all that the next step depends on.
#
# **You can now** train with your own layer, know what the number at the end means, and look inside.
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
# **Next:** part 5 makes it fast: [lesson 16](16_tensor_cores.ipynb) begins with matrix products on tensor cores.
