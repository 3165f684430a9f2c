"""How far two ways of computing are apart in what comes next in the sample answers, without judging the answers."""

import json
import statistics
from collections.abc import Iterator

from torch import Tensor

from app.domain.setting_values import SHIPPED_DATA
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ModelTokenizer


class NextTokenDistance:
    """Divergence (KL) of one distribution of the next token from another one, in nats, and how often both have the same
    likeliest token.
    """

    def __init__(self) -> None:
        self._means: list[float] = []
        self._worst, self._same, self._tokens = 0.0, 0, 0

    def add(self, right: Tensor, other: Tensor) -> None:
        """One answer. right, other: log probabilities `[answer tokens, vocabulary]`."""
        divergence = (right.exp() * (right - other)).sum(-1)
        self._means.append(float(divergence.mean()))
        self._worst = max(self._worst, float(divergence.max()))
        self._same += int((right.argmax(-1) == other.argmax(-1)).sum())
        self._tokens += len(right)

    def summary(self) -> dict[str, float]:
        """Over all answers."""
        return {
            "questions": len(self._means),
            "tokens": self._tokens,
            "kl_mean": statistics.mean(self._means),
            "kl_of_the_worst_question": max(self._means),
            "kl_of_the_worst_token": self._worst,
            "top_1": self._same / self._tokens,
        }


def sample_answers(tokenizer: ModelTokenizer, article_tokens: int, limit: int) -> Iterator[tuple[str, str, str]]:
    """Of the first questions of the sample help centre that have an answer: the beginning of the article, question and
    answer.
    """
    lines = (SHIPPED_DATA / "questions.jsonl").read_text("utf-8").splitlines()
    for row in [row for row in map(json.loads, lines) if row.get("answer")][:limit]:
        article = (SHIPPED_DATA / "knowledge" / row["article"]).read_text("utf-8")
        text = tokenizer.decode(tokenizer.encode([Text(text=article)])[:article_tokens])
        yield text, row["question"], row["answer"]
