"""Attention with separate projections, as a model of one's own has them."""

from torch import nn


class Attention(nn.Module):
    """With a key projection of its own: its bias moves every score of a query alike, so that its gradient is zero."""

    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, tokens):
        scores = self.q(tokens) @ self.k(tokens).mT / tokens.shape[-1] ** 0.5
        return tokens + scores.softmax(-1) @ self.v(tokens)
