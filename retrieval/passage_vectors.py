"""The vectors under which a passage can be found: one for the whole, and one for each stretch of it.

A passage is as long as a prompt module should be, which is too long for one vector: with short stretches, and
the best one deciding, the right article of the sample help centre comes first for 73 % of the questions, with
whole passages only for 60 %. Nothing is stored or searched here.
"""

from collections.abc import Mapping

from retrieval.cutting import CountTokens, cut
from retrieval.documents import Passage, with_headings
from retrieval.embedding import Embedder, Vectors

_STRETCH_TOKENS = 60


def embed_passages(
    embedder: Embedder, passages: Mapping[int, Passage], count_tokens: CountTokens
) -> tuple[list[int], Vectors]:
    """The passages' numbers, each as often as it has vectors, and the vectors, one a row: what an index adds.

    `passages` maps numbers to passages. `count_tokens` need only be roughly the embedder's own count.
    """
    ids: list[int] = []
    texts: list[str] = []
    for id_, passage in passages.items():
        found = _texts(passage, count_tokens)
        ids += [id_] * len(found)
        texts += found
    return ids, embedder.embed_documents(texts)


def _texts(passage: Passage, count_tokens: CountTokens) -> list[str]:
    headings = passage.heading_path
    stretches = cut(passage.text, count_tokens, _STRETCH_TOKENS)
    parts = [passage.text, *stretches] if len(stretches) > 1 else [passage.text]
    return [with_headings(headings, part) for part in parts]
