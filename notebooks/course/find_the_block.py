"""Find the block: a task in which attention must match several keys at once, and a small transformer for it.

A text consists of blocks of letters, followed by a question of a few letters. The answer is the only block
that contains all letters of the question:

    x q b . m d s . a q k . # k q → a q k          three letters per block, two letters in the question

Each letter of the question may occur in other blocks too, but only the answer contains all of them. A query
that looks for a single letter therefore finds wrong blocks as well. The idea of the task comes from Golovneva
et al. 2025, arXiv 2504.00927, section 4.1; texts, sizes and training are our own.
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
    """Sizes of the texts.

    Tokens 0 to letters - 1 are letters. Token `letters` ends a block, and `letters + 1` begins the question.
    """

    blocks: int = 5
    size: int = 3  # number of letters in a block, all different
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
        """Return `count` random texts, (count, length) int64, on the generator's device.

        Generators in equal states draw equal texts.
        """
        random = dict(generator=generator, device=generator.device)
        rows = torch.arange(count, device=generator.device)
        # 1. Draw letters for each block, choose the block that is the answer, and draw the question from it.
        lots = torch.rand(count, self.blocks, self.letters, **random)
        place = torch.randint(self.blocks, (count,), **random)
        answer = lots[rows, place].topk(self.size).indices
        question = answer.gather(1, torch.rand(count, self.size, **random).topk(self.asked).indices)
        # 2. Remove one letter of the question from every other block.
        left_out = question.gather(1, torch.randint(self.asked, (count, self.blocks), **random))
        blocks = lots.scatter(2, left_out[..., None], -1.0).topk(self.size).indices
        blocks[rows, place] = answer
        # 3. Insert the separators and the mark before the question.
        text = pad(blocks, (0, 1), value=self.letters).flatten(1)
        return torch.cat([pad(text, (0, 1), value=self.letters + 1), question, answer], dim=1)

    def spell(self, text):
        """Return an encoded text of shape (length,) as a readable string."""
        alphabet = "abcdefghijklmnopqrstuvwxyz"[: self.letters] + ".#"
        tokens = [alphabet[token] for token in text.tolist()]
        return " ".join(tokens[: -self.written]) + " → " + " ".join(tokens[-self.written :])


class LastLetter(Task):
    """The paper's other variant, in which the answer is only the last letter of the matching block."""

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
    """A transformer layer: attention, then a two-layer perceptron, each with a residual connection."""

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
    """A transformer that returns logits for the token after each token of a text.

    attention(width, heads) creates a layer's attention, a module that maps x (B, N, E) to the same shape.
    Examples are `OrdinaryAttention`, `functools.partial(ConvAttention, kernel_size=(2, 5))`, or a class of
    your own.
    """

    def __init__(self, task, attention, width=64, heads=2, layers=2):
        super().__init__()
        self.letters, self.places = nn.Embedding(task.vocabulary, width), nn.Embedding(task.length, width)
        self.layers = nn.Sequential(*(Layer(attention(width, heads), width) for _ in range(layers)))
        self.last_norm, self.logits = nn.LayerNorm(width), nn.Linear(width, task.vocabulary)

    def forward(self, text):
        """Return logits (B, N, vocabulary) for text (B, N), where N < task.length."""
        return self.logits(
            self.last_norm(self.layers(self.letters(text) + self.places.weight[: text.shape[1]]))
        )


def answer_logits(model, task, text):
    """Return the logits (B, written, vocabulary) for the letters of the answer.

    Each letter's logits depend on all tokens before it.
    """
    return model(text[:, :-1])[:, -task.written :]


@torch.no_grad()
def share_wrong(model, task, texts=2048, seed=10**6, batch=256):
    """Return the fraction of new texts for which the predicted answer has a wrong letter.

    Each letter is predicted given the correct letters before it. If all of them are correct, greedy
    generation would produce the same answer.
    """
    generator = torch.Generator(model.logits.weight.device).manual_seed(seed)
    wrong = 0
    for _ in range(texts // batch):
        text = task.draw(batch, generator)
        wrong += (answer_logits(model, task, text).argmax(-1) != text[:, -task.written :]).any(1).sum().item()
    return wrong / (texts // batch * batch)


# Training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Length and settings of the training.

    There are few taps, and they start as the identity, so their learning rate is tap_factor times that of the
    other parameters.
    """

    steps: int = 600
    batch: int = 64
    rate: float = 3e-3
    tap_factor: float = 10.0
    warm_up: int = 50
    # fraction of the steps, at the end of the training, over which the learning rate falls to 0
    cool_down: float = 0.3

    def rate_at(self, step):
        """Return the learning rate of a step: a linear warm-up, a constant phase, then a linear decay."""
        return self.rate * min(
            1.0, (step + 1) / self.warm_up, (self.steps - step) / (self.cool_down * self.steps)
        )


class Training:
    """A training run with the complete state on which the next step depends, so that it can be saved and
    resumed."""

    def __init__(self, model, task, plan, seed):
        self.model, self.task, self.plan = model, task, plan
        self.generator = torch.Generator(model.logits.weight.device).manual_seed(seed)
        taps = [parameter for name, parameter in model.named_parameters() if name.endswith("taps")]
        rest = [parameter for name, parameter in model.named_parameters() if not name.endswith("taps")]
        self.optimizer = torch.optim.AdamW(
            [{"params": rest}, {"params": taps}], betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        # Losses are kept as tensors on the model's device, because reading a value would wait for the GPU.
        self.losses = []

    @property
    def steps_done(self):
        return len(self.losses)

    def step(self):
        """Train on one batch of new texts. Return the mean cross-entropy of the answers' letters as a
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
        """Perform the remaining steps and yield the number of completed steps after each.

        checkpoint: path of a file to which the state is saved every `every` steps and at the end, or None.
        """
        while self.steps_done < self.plan.steps:
            self.step()
            if checkpoint and (self.steps_done % every == 0 or self.steps_done == self.plan.steps):
                self.save(checkpoint)
            yield self.steps_done

    def save(self, path):
        """Save a checkpoint atomically: `path` always contains a complete file, either the old or the new
        one."""
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
        """Continue from a checkpoint of the same task and plan.

        On a CPU, the following steps are bit-identical to those of an uninterrupted run.

        Raises ValueError if the checkpoint belongs to another task or plan.
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
