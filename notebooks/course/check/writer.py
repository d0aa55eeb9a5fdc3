"""A recurrent network for exercise 15.2, and the texts that it writes."""

import torch
from torch import nn


class Writer(nn.Module):
    """A recurrent network with random weights. It returns logits (B, N, letters) for the next letter, each
    computed from all letters before it."""

    def __init__(self, letters):
        super().__init__()
        self.embedding, self.memory, self.logits = (
            nn.Embedding(letters, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, letters),
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, text):
        return self.logits(self.memory(self.embedding(text))[0])


@torch.no_grad()
def written(model, prompt, size):
    """Return the texts (B, prompt + size) that the model writes by taking the most likely letter each
    time."""
    text = prompt
    for _ in range(size):
        text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
    return text
