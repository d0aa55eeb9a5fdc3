"""Find the block: a task on which attention needs two keys at once, a small transformer with or without
convolution, and its training.

A text of blocks of letters, then a question of a few letters; the answer is the one block that holds them
all:

    x q b . m d s . a q k . # k q → a q k          three letters a block, two asked for

Every letter asked for may stand in other blocks too, but all of them together in the answer alone: a query
that looks for one letter finds the wrong blocks as well. The idea of the task is that of Golovneva et al.
2025, arXiv 2504.00927, section 4.1; texts, sizes and training here are our own.
"""

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from kernels import FusedAttention

# The task ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """The size of the texts. Tokens are 0 to letters - 1, then the end of a block, then the mark before the
    question."""

    blocks: int = 5
    size: int = 3  # letters in a block, all different
    asked: int = 2
    letters: int = 12

    @property
    def vocabulary(self):
        return self.letters + 2

    @property
    def written(self):
        """Return the number of letters in an answer: the whole block."""
        return self.size

    @property
    def length(self):
        """Return the number of tokens in a text with its question and answer."""
        return self.blocks * (self.size + 1) + 1 + self.asked + self.written

    def draw(self, count, generator):
        """Return `count` random texts, (count, length) int64, on the generator's device. Generators in equal
        states draw equal texts."""
        random = dict(generator=generator, device=generator.device)
        rows = torch.arange(count, device=generator.device)
        # 1. letters drawn by lot, the answer among them, and from it the question
        lots = torch.rand(count, self.blocks, self.letters, **random)
        place = torch.randint(self.blocks, (count,), **random)
        answer = lots[rows, place].topk(self.size).indices
        question = answer.gather(1, torch.rand(count, self.size, **random).topk(self.asked).indices)
        # 2. every other block is without one letter of the question
        left_out = question.gather(1, torch.randint(self.asked, (count, self.blocks), **random))
        blocks = lots.scatter(2, left_out[..., None], -1.0).topk(self.size).indices
        blocks[rows, place] = answer
        # 3. the marks
        text = pad(blocks, (0, 1), value=self.letters).flatten(1)
        return torch.cat([pad(text, (0, 1), value=self.letters + 1), question, answer], dim=1)

    def spell(self, text):
        """Return an encoded text of shape (length,) as a readable string."""
        alphabet = "abcdefghijklmnopqrstuvwxyz"[: self.letters] + ".#"
        tokens = [alphabet[token] for token in text.tolist()]
        return " ".join(tokens[: -self.written]) + " → " + " ".join(tokens[-self.written :])


class LastLetter(Task):
    """The paper's other variant: the answer is only the last letter of the block that holds all letters asked
    for."""

    @property
    def written(self):
        return 1

    def draw(self, count, generator):
        text = super().draw(count, generator)
        return torch.cat([text[:, : -self.size], text[:, -1:]], dim=1)


# The model --------------------------------------------------------------------------------------------------


class OrdinaryAttention(FusedAttention):
    """A causal attention layer without convolution."""

    def forward(self, x):
        return super().forward(x, causal=True)


class Layer(nn.Module):
    """A transformer layer: attention, then two linear maps with a nonlinearity between them. Both parts have
    residual connections."""

    def __init__(self, attention, width):
        super().__init__()
        self.attention, self.before_attention, self.before_maps = (
            attention,
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.maps = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.maps(self.before_maps(x))


class Transformer(nn.Module):
    """Logits for the token after each token of a text; each layer's attention is made by `attention(width,
    heads)`.

    For instance `OrdinaryAttention`, `functools.partial(ConvAttention, kernel_size=(2, 5))`, or a class of
    your own: x (B, N, E) in and out.
    """

    def __init__(self, task, attention, width=64, heads=2, layers=2):
        super().__init__()
        self.letters, self.places = nn.Embedding(task.vocabulary, width), nn.Embedding(task.length, width)
        self.layers = nn.Sequential(*(Layer(attention(width, heads), width) for _ in range(layers)))
        self.last_norm, self.logits = nn.LayerNorm(width), nn.Linear(width, task.vocabulary)

    def forward(self, text):
        """text: (B, N), N < task.length; returns (B, N, vocabulary)."""
        return self.logits(
            self.last_norm(self.layers(self.letters(text) + self.places.weight[: text.shape[1]]))
        )


def answer_logits(model, task, text):
    """Return the logits (B, written, vocabulary) for the letters of the answer, each conditioned on all
    tokens before it."""
    return model(text[:, :-1])[:, -task.written :]


@torch.no_grad()
def share_wrong(model, task, texts=2048, seed=10**6, batch=256):
    """Return the fraction of new texts for which the answer has a wrong letter. A right answer is also what
    the model writes letter by letter."""
    generator = torch.Generator(model.logits.weight.device).manual_seed(seed)
    wrong = 0
    for _ in range(texts // batch):
        text = task.draw(batch, generator)
        wrong += (answer_logits(model, task, text).argmax(-1) != text[:, -task.written :]).any(1).sum().item()
    return wrong / (texts // batch * batch)


# Training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The length and the settings of the training. The taps are few and start as the identity, so their
    learning rate is tap_factor times that of the other parameters."""

    steps: int = 600
    batch: int = 64
    rate: float = 3e-3
    tap_factor: float = 10.0
    warm_up: int = 50
    cool_down: float = 0.3  # the last share of the steps, over which the rate falls to 0

    def rate_at(self, step):
        """Return the learning rate of a step: a linear warm-up, a constant phase, then a linear decay."""
        return self.rate * min(
            1.0, (step + 1) / self.warm_up, (self.steps - step) / (self.cool_down * self.steps)
        )


class Training:
    """A training run: the complete state that the next step depends on, so that it can be stored and
    resumed."""

    def __init__(self, model, task, plan, seed):
        self.model, self.task, self.plan = model, task, plan
        self.generator = torch.Generator(model.logits.weight.device).manual_seed(seed)
        taps = [parameter for name, parameter in model.named_parameters() if name.endswith("taps")]
        rest = [parameter for name, parameter in model.named_parameters() if not name.endswith("taps")]
        self.optimizer = torch.optim.AdamW(
            [{"params": rest}, {"params": taps}], betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self.losses = []  # of each step, tensors on the model's device: reading one waits for the GPU

    @property
    def steps_done(self):
        return len(self.losses)

    def step(self):
        """Train on one batch of fresh texts. Return the mean cross-entropy of the answers' letters as a
        tensor."""
        rate = self.plan.rate_at(self.steps_done)
        for group, factor in zip(self.optimizer.param_groups, (1.0, self.plan.tap_factor), strict=True):
            group["lr"] = rate * factor
        text = self.task.draw(self.plan.batch, self.generator)
        logits = answer_logits(self.model, self.task, text)
        loss = cross_entropy(logits.flatten(0, 1), text[:, -self.task.written :].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.detach())
        return self.losses[-1]

    def run(self, checkpoint=None, every=200):
        """Take the remaining steps and yield the number done after each. With a path, store checkpoints at
        regular intervals and at the end."""
        while self.steps_done < self.plan.steps:
            self.step()
            if checkpoint and (self.steps_done % every == 0 or self.steps_done == self.plan.steps):
                self.save(checkpoint)
            yield self.steps_done

    def save(self, path):
        """Write a checkpoint atomically: at any moment `path` is the complete old file or the complete new
        file."""
        path = Path(path)
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".draft")
        try:
            with open(descriptor, "wb") as file:
                torch.save(self.state(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise

    def state(self):
        losses = torch.stack(self.losses).cpu() if self.losses else torch.empty(0)
        return {
            "task": asdict(self.task),
            "plan": asdict(self.plan),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "losses": losses,
        }

    def resume(self, path):
        """Go on from a checkpoint of the same task and plan: the next steps are those that would have
        followed, bit for bit on a CPU.

        Raises ValueError if the checkpoint is of another task or plan.
        """
        state = torch.load(path, map_location=self.model.logits.weight.device, weights_only=True)
        for name, ours in {"task": asdict(self.task), "plan": asdict(self.plan)}.items():
            if state[name] != ours:
                raise ValueError(
                    f"checkpoint {path} is of the {name} {state[name]}; wanted {ours}: delete it to start"
                    " afresh"
                )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.losses = list(state["losses"].unbind())
