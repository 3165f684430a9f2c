"""The statement encoder: reads a passage once and returns vectors of each statement in its context.

A passage is read as a whole with its headings, then the tokens of each statement are selected ("late chunking", Günther
et al. 2024). So "Damage from falls" is read under "What is not covered". When a question comes, only the question is
read.

The upper layers and two small heads are trained (`retrieval.ranking.training`) and stored in a folder. Embeddings and
lower layers are those of the bundled embedder. Out of scope: languages that this model does not know.

Scores use late interaction (Khattab and Zaharia 2020, "ColBERT"): each token has a short vector in addition to the
vector of the whole, so that each word of a question can match the word that answers it. All vectors have length 1.
"""

import json
import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from retrieval.errors import RetrievalError, first_line
from retrieval.search.embedding import Vectors, encoder_of, is_question, of_length_one, short_batches
from retrieval.search.minilm import WORDS, BundledTokenizer, Compiled, FastEncoder, bundled_weights

_HEADER = struct.Struct("<4I")
_SCALE = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionVectors:
    """Vectors of a question. whole: `[hidden]`. tokens: `[tokens, short]`. weights: `[tokens]`, importance of each
    token, summing to 1. bar: score that an answering statement must reach.
    """

    whole: Vectors
    tokens: Vectors
    weights: Vectors
    bar: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementVectors:
    """Vectors of a passage's statements, read in context. whole: float16 `[statements, hidden]`. tokens: int8 `[tokens,
    short]`, 127 stands for 1. ends: int32 `[statements]`, end token of each statement. A statement without tokens was
    not read and has zeros.
    """

    whole: npt.NDArray[np.float16]
    tokens: npt.NDArray[np.int8]
    ends: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ends)

    def packed(self) -> bytes:
        sizes = (*self.whole.shape, *self.tokens.shape)
        return _HEADER.pack(*sizes) + self.whole.tobytes() + self.tokens.tobytes() + self.ends.tobytes()

    @classmethod
    def unpacked(cls, stored: bytes) -> "StatementVectors":
        """Read the bytes of `packed`. Raises ValueError for other bytes."""
        if len(stored) < _HEADER.size:
            raise ValueError("the vectors of a passage's statements are truncated")
        number, hidden, tokens, short = _HEADER.unpack_from(stored)
        first, second = 2 * number * hidden, tokens * short
        if len(stored) != _HEADER.size + first + second + 4 * number:
            raise ValueError("the vectors of a passage's statements do not have the length that they declare")
        at = _HEADER.size
        return cls(
            whole=np.frombuffer(stored, "<f2", number * hidden, at).reshape(number, hidden),
            tokens=np.frombuffer(stored, np.int8, tokens * short, at + first).reshape(tokens, short),
            ends=np.frombuffer(stored, "<i4", number, at + first + second),
        )


def short_form(tokens: Vectors) -> npt.NDArray[np.int8]:
    short: npt.NDArray[np.int8] = np.clip(np.rint(tokens * _SCALE), -127, 127).astype(np.int8)
    return short


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The two learned weights of a score. cosine: for the cosine between whole question and whole statement. matches:
    for the best matches of the question's tokens, each weighted by importance.
    """

    cosine: float
    matches: float

    def scores(self, question: QuestionVectors, passages: Sequence[StatementVectors]) -> tuple[Vectors, Vectors]:
        """Return a logit for each statement of all passages, above 0 for a likely answer, and the weighted match of
        each token of the question, `[statements, question tokens]`.
        """
        found = [passage for passage in passages if len(passage)]
        if not found:
            return np.zeros(0, np.float32), np.zeros((0, len(question.weights)), np.float32)
        together = _joined(found)  # one product for all is faster than one for each
        cosines = together.whole.astype(np.float32) @ question.whole
        told: Vectors = token_matches(question, together) * question.weights
        logits: Vectors = (self.cosine * cosines + self.matches * told.sum(1) - question.bar).astype(np.float32)
        return logits, told


def _joined(passages: Sequence[StatementVectors]) -> StatementVectors:
    before = np.cumsum([0, *(len(passage.tokens) for passage in passages[:-1])])
    return StatementVectors(
        whole=np.concatenate([passage.whole for passage in passages]),
        tokens=np.concatenate([passage.tokens for passage in passages]),
        ends=np.concatenate([passage.ends + at for passage, at in zip(passages, before, strict=True)]).astype(np.int32),
    )


def token_matches(question: QuestionVectors, passage: StatementVectors) -> Vectors:
    """Return the best cosine of each question token in each statement, `[statements, question tokens]`."""
    best: Vectors = np.full((len(passage), len(question.tokens)), -1.0, np.float32)
    starts = np.concatenate([[0], passage.ends[:-1]]).astype(np.int64)
    read = passage.ends > starts
    if read.any():
        similarity = passage.tokens.astype(np.float32) @ (question.tokens.T / np.float32(_SCALE))
        best[read] = np.maximum.reduceat(similarity, starts[read], axis=0)
    return best


WEIGHTS, CARD = "ranker.safetensors", "ranker.json"
SHORT = 128  # length of a token's vector
LONGEST_PASSAGE, LONGEST_QUESTION = 512, 48
"""Maximum number of tokens. Truncated statements of a passage have no vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageToRead:
    """A passage with its headings. spans: first character and end of each statement in `text`."""

    headings: Sequence[str]
    text: str
    spans: Sequence[tuple[int, int]]


class StatementEncoder:
    """A trained ranker. It reads passages in advance and questions when they arrive. Vectors of rankers with different
    names cannot be compared. Safe to use from any thread. Raises RetrievalError if the folder has no usable ranker.
    """

    def __init__(self, folder: Path, compiled: Compiled | None = None) -> None:
        try:
            self.name: str = json.loads((folder / CARD).read_text(encoding="utf-8"))["name"]
            own = {name: weight.astype(np.float32) for name, weight in load_file(folder / WEIGHTS).items()}
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            raise RetrievalError(f"ranker {folder}: cannot be read ({first_line(error)})") from error
        weights = bundled_weights()  # weights that are not trained are the embedder's
        hidden = weights[WORDS].shape[1]
        heads = {"shorten.weight": (SHORT, hidden), "mixture": (2,)}
        heads |= {"weigh.weight": (1, hidden), "weigh.bias": (1,), "bar.weight": (1, hidden), "bar.bias": (1,)}
        known = {f"encoder.{name}": weight.shape for name, weight in weights.items()} | heads
        wrong = [name for name, weight in own.items() if known.get(name) != weight.shape]
        if wrong := wrong or [name for name in heads if name not in own]:
            raise RetrievalError(f"ranker {folder}: made for another model ({wrong[0]})")
        trained = {name.removeprefix("encoder."): weight for name, weight in own.items() if name not in heads}
        self._encoder = encoder_of({**weights, **trained}, compiled)
        self._shorten, self._weigh, self._bar = (own[f"{head}.weight"].T for head in ("shorten", "weigh", "bar"))
        self._importance, self._highest = (float(own[f"{head}.bias"][0]) for head in ("weigh", "bar"))
        self.tokens = RankerTokens()
        cosine, matches = own["mixture"].tolist()
        self.mixture = Mixture(cosine=cosine, matches=matches)

    def read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        found: dict[int, StatementVectors] = {}
        for places in short_batches([passage.text for passage in passages], isinstance(self._encoder, FastEncoder)):
            found.update(zip(places, self._read([passages[place] for place in places]), strict=True))
        return [found[place] for place in range(len(passages))]

    def question(self, text: str) -> QuestionVectors:
        [ids] = self.tokens.rows([text])
        [states] = self._encoder.states([ids], of_question=True)
        whole = of_length_one(states.sum(0))
        logits = states @ self._weigh[:, 0] + self._importance
        logits[np.isin(ids, self.tokens.special)] = -1e4
        weights = np.exp(logits - logits.max())
        return QuestionVectors(
            whole=whole,
            tokens=of_length_one(states @ self._shorten),
            weights=weights / weights.sum(),
            bar=float(whole @ self._bar[:, 0]) + self._highest,
        )

    def _read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        rows, spans = self.tokens.passages(passages, LONGEST_PASSAGE)
        lengths = np.array([end - first for _, first, end in spans], np.int32)
        ends, read = np.cumsum(lengths, dtype=np.int32), lengths > 0
        wholes = np.zeros((len(spans), self._encoder.hidden), np.float16)
        tokens = np.zeros((0, SHORT), np.int8)
        if read.any():
            states = self._encoder.states(rows, of_question=is_question())
            of_tokens = np.concatenate([states[row][first:end] for row, first, end in spans])
            wholes[read] = of_length_one(np.add.reduceat(of_tokens, (ends - lengths)[read]))
            tokens = short_form(of_length_one(of_tokens @ self._shorten))
        found: list[StatementVectors] = []
        at = before = 0
        for passage in passages:
            after = at + len(passage.spans)
            end = int(ends[after - 1]) if after else 0
            found.append(
                StatementVectors(whole=wholes[at:after], tokens=tokens[before:end], ends=ends[at:after] - before)
            )
            at, before = after, end
        return found


class RankerTokens:
    """Tokenizes texts for the network."""

    def __init__(self) -> None:
        self._tokenizer = BundledTokenizer()
        self.special: tuple[int, int] = (self._tokenizer.cls_token_id, self._tokenizer.sep_token_id)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of questions. A text that is too long loses its first tokens."""
        found = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        opening, closing = self.special
        return [[opening, *ids[-(LONGEST_QUESTION - 2) :], closing] for ids in found]

    def passages(
        self, passages: Sequence[PassageToRead], longest: int
    ) -> tuple[list[list[int]], list[tuple[int, int, int]]]:
        """Return each passage's token ids, and for every statement its passage's row, first token and end token
        (exclusive). Both are 0 if no token of the statement is left after truncation.
        """
        above = [" > ".join(passage.headings) + "\n" for passage in passages]
        texts = [head + passage.text for head, passage in zip(above, passages, strict=True)]
        found = self._tokenizer(texts, truncation=True, max_length=longest, return_offsets_mapping=True)
        spans: list[tuple[int, int, int]] = []
        for row, (head, passage) in enumerate(zip(above, passages, strict=True)):
            offsets = found["offset_mapping"][row]
            real = [place for place, (first, end) in enumerate(offsets) if end > first]
            starts = [offsets[place][0] - len(head) for place in real]
            for first, end in passage.spans:
                inside = real[bisect_left(starts, first) : bisect_left(starts, end)]
                spans.append((row, inside[0], inside[-1] + 1) if inside else (row, 0, 0))
        return found["input_ids"], spans
