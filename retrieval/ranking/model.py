"""The network of the statement encoder in PyTorch, for training."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrieval.ranking.encoder import SHORT, RankerTokens
from retrieval.search.bundled import bundled_weights
from retrieval.search.network import MiniLM, padded


class RankerModel(nn.Module):
    """The network."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = MiniLM(bundled_weights())
        hidden = self.encoder.hidden
        self.shorten = nn.Linear(hidden, SHORT, bias=False)
        self.weigh = nn.Linear(hidden, 1)
        self.bar = nn.Linear(hidden, 1)
        self.mixture = nn.Parameter(torch.tensor([12.0, 12.0]))  # of cosines and of matched tokens
        nn.init.orthogonal_(self.shorten.weight)
        for layer, bias in ((self.weigh, 0.0), (self.bar, 6.0)):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)

    def questions(self, ids: Tensor, mask: Tensor, special: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return whole vectors `[questions, hidden]`, token vectors `[questions, tokens, SHORT]`, weights `[questions,
        tokens]` and bars `[questions]`. special: bool, ignored tokens.
        """
        states = self.encoder.read(ids, mask)
        wholes = functional.normalize((states * mask.unsqueeze(-1)).sum(1), dim=-1)
        weights = torch.softmax(self.weigh(states).squeeze(-1).masked_fill(special, -1e4), dim=1)
        return wholes, functional.normalize(self.shorten(states), dim=-1), weights, self.bar(wholes).squeeze(-1)

    def statements(self, ids: Tensor, mask: Tensor, spans: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Return whole vectors `[spans, hidden]`, token vectors `[tokens, SHORT]`. spans: row, first and end token."""
        states = self.encoder.read(ids, mask)
        width = states.shape[1]
        where = torch.cat([torch.arange(row * width + first, row * width + end) for row, first, end in spans])
        tokens = states.reshape(-1, states.shape[-1])[where]
        sums = torch.zeros(len(spans), states.shape[-1]).index_add(0, statement_of_token(spans), tokens)
        return functional.normalize(sums, dim=-1), functional.normalize(self.shorten(tokens), dim=-1)

    def trained(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def freeze(self, lowest: int) -> None:
        self.encoder.embeddings.requires_grad_(False)
        for layer in self.encoder.layers[:lowest]:
            layer.requires_grad_(False)


def statement_of_token(spans: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return the number of the span for each of the concatenated tokens of all spans."""
    return torch.repeat_interleave(torch.arange(len(spans)), torch.tensor([end - first for _, first, end in spans]))


def question_tensors(tokens: RankerTokens, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and which tokens are special, each `[texts, tokens]`, of questions."""
    ids, mask = padded(tokens.rows(texts))
    opening, closing = tokens.special
    return ids, mask, (mask == 0) | (ids == opening) | (ids == closing)
