"""An embedder and a ranker without a model: texts that share words are similar."""

import re
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from retrieval.ranking.encoder import Mixture, PassageToRead, QuestionVectors, StatementVectors, short_form
from retrieval.search.embedding import Vectors


class HashEmbedder:
    """Bag of hashed words: deterministic, no model. Knows no synonyms, no word order."""

    def __init__(self, dimension: int = 256) -> None:
        self.name = f"hash-{dimension}"
        self.dimension = dimension

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return np.array([self._vector(text) for text in texts], np.float32).reshape(-1, self.dimension)

    embed_queries = embed_documents

    def _vector(self, text: str) -> Vectors:
        vector = np.zeros(self.dimension, dtype=np.float32)
        for word in re.findall(r"\w+", text.casefold()) or [""]:
            digest = int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")
            vector[digest % self.dimension] += 1.0
        unit: Vectors = vector / np.linalg.norm(vector)
        return unit

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def knowledge(self, text: str) -> float:
        return 1.0

    def knows_word(self, word: str) -> bool:
        return False


class HashRanker:
    """Ranks by shared words: a statement's vector is that of its words, each of its words is a token."""

    name, mixture = "hash", Mixture(cosine=6.0, matches=6.0)

    def __init__(self, dimension: int = 256) -> None:
        self._words = HashEmbedder(dimension)

    def read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        return [self._read([passage.text[first:end] for first, end in passage.spans]) for passage in passages]

    def question(self, text: str) -> QuestionVectors:
        said = re.findall(r"\w+", text) or [""]
        tokens = self._words.embed_documents(said)
        weights = np.full(len(said), 1 / len(said), np.float32)
        return QuestionVectors(whole=self._words.embed_queries([text])[0], tokens=tokens, weights=weights, bar=4.0)

    def _read(self, statements: Sequence[str]) -> StatementVectors:
        said = [re.findall(r"\w+", statement) or [""] for statement in statements]
        return StatementVectors(
            whole=self._words.embed_documents(statements).astype(np.float16),
            tokens=short_form(self._words.embed_documents([word for words in said for word in words])),
            ends=np.cumsum([len(words) for words in said], dtype=np.int32),
        )
