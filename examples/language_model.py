"""A language model with SAM: the next word in docstrings of Python's library; padding is ignored by the loss."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import SAM
from stdlib_text import VOCABULARY, sentences, tokens


class Model(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.memory(self.words(rows))[0]).transpose(1, 2)  # classes second, as the loss wants them


def main(epochs: int = 2) -> tuple[float, float]:
    """Train; the loss on sentences that were held out, before and after, in nats a word."""
    torch.manual_seed(0)
    texts, _ = sentences()
    rows = torch.from_numpy(tokens(texts))[np.random.default_rng(0).permutation(len(texts))]
    inputs, targets = rows[:, :-1], rows[:, 1:].clone()
    targets[targets == 0] = -100  # padding: torch's cross-entropy ignores it

    model = Model()
    base = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer = SAM(base, rho=0.02, criterion=F.cross_entropy, model=model)

    def held_out() -> float:
        with torch.no_grad():
            return float(F.cross_entropy(model(inputs[-200:]), targets[-200:]))

    before = held_out()
    for _ in range(epochs):
        for index in torch.randperm(len(rows) - 200).split(32):
            optimizer.step(lambda index=index: model(inputs[index]), targets[index])
    return before, held_out()


if __name__ == "__main__":
    before, after = main()
    print(f"loss on held-out sentences: {before:.2f} before, {after:.2f} after, in nats a word")
