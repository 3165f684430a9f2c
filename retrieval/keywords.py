"""Keyword search that forgives misspelling: TF-IDF over groups of three to five characters within words.

Finds what embeddings of a small model miss: model numbers, error codes, rare words, typing errors. Needs no dictionary
and no stop words. Lives in memory only and is rebuilt from the stored passages. Not covered: phrases, synonyms.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer


class KeywordIndex:
    """An index of some passages; a snapshot that never changes. Reading is safe from several threads."""

    def __init__(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        self.ids = np.array(ids, dtype=np.int64)
        self._vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
        self._matrix = self._vectorizer.fit_transform(texts) if any(text.strip() for text in texts) else None

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Cosine of the query with every passage of `ids`, from 0 to 1."""
        if self._matrix is None:
            return np.zeros(len(self.ids), np.float32)
        found = self._matrix @ self._vectorizer.transform([query]).T
        scores: npt.NDArray[np.float32] = found.toarray()[:, 0].astype(np.float32)
        return scores
