"""Tests of find-the-block: its texts, the small transformer, and a training run that can be stopped and
resumed."""

import functools
import os

import pytest
import torch

from course.find_the_block import (
    LastLetter,
    OrdinaryAttention,
    Plan,
    Task,
    Training,
    Transformer,
    answer_logits,
    share_wrong,
)
from kernels import ConvAttention, reference

TINY = Task(blocks=3, size=2, letters=8)
SHORT = Plan(steps=6, batch=4, warm_up=2)


def test_the_last_letter_alone():
    """Compare the texts with those of the whole-block variant, up to the answer."""
    task, whole = LastLetter(blocks=3, size=2, letters=8), TINY
    text, other = (each.draw(20, torch.Generator().manual_seed(4)) for each in (task, whole))
    assert text.shape == (20, task.length) and task.length == whole.length - 1
    assert torch.equal(text[:, :-1], other[:, :-2]) and torch.equal(text[:, -1], other[:, -1])
    assert task.spell(text[0]).split(" → ")[1] == whole.spell(other[0])[-1]
    model = Transformer(task, OrdinaryAttention, 8, 2, 1)
    assert answer_logits(model, task, text).shape == (20, 1, task.vocabulary)


def convolution(task=TINY):
    """Return a factory of convolutional layers for a CPU."""
    return functools.partial(
        ConvAttention, kernel_size=(task.asked, 2 * task.size - 1), attention=reference.conv_attention
    )


ordinary = functools.partial(OrdinaryAttention, attention=reference.attention)


def training(plan=SHORT, task=TINY, attention=convolution(), seed=1):
    torch.manual_seed(seed)
    return Training(Transformer(task, attention, width=16), task, plan, seed)


def drawn(task, count=500, seed=1):
    """Return texts and their parts: blocks (count, blocks, size), question and answer."""
    text = task.draw(count, torch.Generator().manual_seed(seed))
    blocks = text[:, : task.blocks * (task.size + 1)].unflatten(1, (task.blocks, -1))
    return text, blocks, text[:, -task.size - task.asked : -task.size], text[:, -task.size :]


def holds(blocks, letters):
    """Return whether each letter is in each block, (count, blocks, n).

    letters: (count, n).
    """
    return (blocks[..., None] == letters[:, None, None]).any(2)


# The task ---------------------------------------------------------------------------------------------------

TASKS = pytest.mark.parametrize(
    "task", [Task(), TINY, Task(8, 5, 2, 26), Task(4, 5, 3, 7), Task(1, 2, 2, 2), Task(3, 3, 1, 9)]
)


@TASKS
def test_texts_are_laid_out_as_described(task):
    text, blocks, question, answer = drawn(task)
    assert text.shape == (500, task.length)
    assert (blocks[..., -1] == task.letters).all() and (
        text[:, -task.size - task.asked - 1] == task.letters + 1
    ).all()
    assert ((blocks[..., :-1] < task.letters) & (blocks[..., :-1] >= 0)).all()
    assert text.max() < task.vocabulary


@TASKS
def test_letters_of_a_block_and_of_a_question_differ(task):
    _, blocks, question, _ = drawn(task)
    for letters in (blocks[..., :-1].flatten(0, 1), question):
        ordered = letters.sort(-1).values
        assert (ordered[:, 1:] != ordered[:, :-1]).all()


@TASKS
def test_one_block_holds_the_question_and_it_is_the_answer(task):
    _, blocks, question, answer = drawn(task)
    whole = holds(blocks, question).all(-1)
    assert (whole.sum(1) == 1).all()
    assert torch.equal(blocks[whole][:, :-1], answer)


def test_one_letter_of_the_question_is_not_enough():
    """Draw texts: in most of them, another block contains one letter of the question."""
    _, blocks, question, _ = drawn(Task())
    assert (holds(blocks, question).any(-1).sum(1) > 1).float().mean().item() > 0.6


def test_the_answer_stands_anywhere():
    _, blocks, question, _ = drawn(Task(), 5000)
    places = holds(blocks, question).all(-1).float().mean(0)
    assert ((places - 0.2).abs() < 0.03).all()


def test_equal_seeds_draw_equal_texts():
    assert torch.equal(drawn(TINY)[0], drawn(TINY)[0])
    assert not torch.equal(drawn(TINY)[0], drawn(TINY, seed=2)[0])


def test_a_text_spelled():
    text = torch.tensor([0, 1, 8, 2, 3, 8, 4, 5, 8, 9, 3, 2, 2, 3])
    assert TINY.spell(text) == "a b . c d . e f . # d c → c d"


# The model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", [convolution(), ordinary])
def test_no_letter_of_the_answer_sees_itself_or_later_ones(attention):
    torch.manual_seed(1)
    model = Transformer(TINY, attention, width=16)
    text = drawn(TINY, 4)[0]
    changed = text.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 8
    assert torch.equal(answer_logits(model, TINY, text), answer_logits(model, TINY, changed))
    changed[:, -2] = (changed[:, -2] + 1) % 8
    difference = (answer_logits(model, TINY, text) - answer_logits(model, TINY, changed)).abs().amax((0, 2))
    assert difference[0] == 0 and difference[1] > 0


def test_a_new_model_with_convolution_is_the_one_without():
    """Compare both models with equal weights: taps start as the identity, so the logits must be equal."""
    torch.manual_seed(1)
    plain, convolving = Transformer(TINY, ordinary, width=16), Transformer(TINY, convolution(), width=16)
    convolving.load_state_dict(convolving.state_dict() | plain.state_dict())
    text = drawn(TINY, 4)[0]
    assert (plain(text[:, :-1]) - convolving(text[:, :-1])).abs().max().item() <= 1e-4


class Guess(torch.nn.Module):
    """A fake model that predicts each text's letters correctly, or a wrong last letter in every second
    text."""

    def __init__(self, mistakes):
        super().__init__()
        self.logits, self.mistakes = torch.nn.Linear(1, 1), mistakes

    def forward(self, text):
        return torch.nn.functional.one_hot(self.answers(text), TINY.vocabulary).float()

    def answers(self, text):
        blocks, question = text[:, :9].unflatten(1, (3, 3)), text[:, 10:12]
        answer = blocks[holds(blocks, question).all(-1)][:, :-1].clone()
        if self.mistakes:
            answer[::2, -1] = TINY.letters
        return torch.cat([text[:, 1:-1], answer], 1)


@pytest.mark.parametrize(("mistakes", "share"), [(False, 0.0), (True, 0.5)])
def test_the_share_of_wrong_answers(mistakes, share):
    assert share_wrong(Guess(mistakes), TINY, texts=512) == share


# Training ---------------------------------------------------------------------------------------------------


def test_the_rate_rises_stays_and_falls():
    plan = Plan(steps=100, rate=2.0, warm_up=10, cool_down=0.5)
    assert [plan.rate_at(step) for step in (0, 4, 9, 30, 50, 75, 99)] == [0.2, 1.0, 2.0, 2.0, 2.0, 1.0, 0.04]


@pytest.mark.parametrize("attention", [convolution(), ordinary])
def test_training_learns(attention):
    run = training(Plan(steps=200, batch=32), attention=attention)
    assert list(run.run()) == list(range(1, 201))
    assert torch.stack(run.losses)[-20:].mean() < 0.6 * torch.stack(run.losses)[:20].mean()
    taps = [parameter for name, parameter in run.model.named_parameters() if name.endswith("taps")]
    assert len(taps) == (2 if attention is not ordinary else 0)
    assert all((tap - reference.identity_taps(*tap.shape)).abs().max() > 0.1 for tap in taps)


def test_what_is_taken_up_again_ends_as_if_never_stopped(tmp_path):
    """Stop after 4 of 6 steps and resume as another process would, with different initial weights and a
    different generator."""
    whole, path = training(), tmp_path / "run.pt"
    *_, last = whole.run()
    stopped = training()
    for done in stopped.run(path, every=2):
        if done == 5:
            break  # raised after the checkpoint of step 4
    resumed = training(seed=9)
    resumed.resume(path)
    assert (last, resumed.steps_done) == (6, 4)
    assert list(resumed.run(path)) == [5, 6]
    assert torch.equal(torch.stack(resumed.losses), torch.stack(whole.losses))
    assert all(
        torch.equal(got, wanted)
        for got, wanted in zip(resumed.model.parameters(), whole.model.parameters(), strict=True)
    )
    again = training(seed=9)
    again.resume(path)
    assert list(again.run()) == []  # The last step is saved too.


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    run, path = training(), tmp_path / "run.pt"
    run.step()
    run.save(path)
    before = path.read_bytes()
    # simulate a disk that fails while the temporary file is written
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
    run.step()
    with pytest.raises(ZeroDivisionError):
        run.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("task", "plan", "name"),
    [(Task(blocks=2, size=2, letters=8), SHORT, "task"), (TINY, Plan(steps=7, batch=4, warm_up=2), "plan")],
)
def test_refuses_a_checkpoint_of_something_else(tmp_path, task, plan, name):
    path = tmp_path / "run.pt"
    training().save(path)
    with pytest.raises(
        ValueError, match=f"^checkpoint .* is of the {name} .*; wanted .*: delete it to start afresh$"
    ):
        training(plan, task).resume(path)


@pytest.mark.gpu
def test_training_on_a_gpu_learns_with_the_kernels(tmp_path):
    """Train with the kernels' own attention, save a checkpoint and resume."""
    torch.manual_seed(1)
    task, plan = Task(), Plan(steps=400, batch=128)
    run = Training(
        Transformer(task, functools.partial(ConvAttention, kernel_size=(2, 5))).cuda(), task, plan, seed=1
    )
    for done in run.run(tmp_path / "run.pt", every=100):
        if done == 100:
            break
    again = Training(
        Transformer(task, functools.partial(ConvAttention, kernel_size=(2, 5))).cuda(), task, plan, seed=2
    )
    again.resume(tmp_path / "run.pt")
    list(again.run())
    assert share_wrong(again.model, task) < 0.1
