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
import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from retrieval.errors import RetrievalError, first_line
from retrieval.search import minilm
from retrieval.search.embedding import Vectors, is_question, of_length_one, short_batches

_HEADER = struct.Struct("<4I")
_SCALE = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionVectors:
    """Vectors of a question. whole: `[hidden]`. tokens: `[tokens, short]`. weights: `[tokens]`, importance of each
    token, in sum 1. bar: score that an answering statement must reach.
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
    """The two learned weights: of the cosine between whole question and whole statement, and of the best matches of the
    question's tokens, weighted by importance.
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
        together = _joined(found)  # one product of all is faster than one of each
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
_GROUPS = 4  # of texts of similar length


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageToRead:
    """A passage with its headings. spans: first character and end of each statement in `text`."""

    headings: Sequence[str]
    text: str
    spans: Sequence[tuple[int, int]]


class RankerModel(nn.Module):
    """The network, for training and for use. fast: its layers in compiled code, for use."""

    fast: minilm.FastEncoder | None = None

    def __init__(self) -> None:
        super().__init__()
        self.encoder = minilm.MiniLM()
        hidden = self.encoder.hidden
        self.shorten = nn.Linear(hidden, SHORT, bias=False)
        self.weigh = nn.Linear(hidden, 1)
        self.bar = nn.Linear(hidden, 1)
        self.mixture = nn.Parameter(torch.tensor([12.0, 12.0]))  # of cosines and of matched tokens
        nn.init.orthogonal_(self.shorten.weight)
        for layer, bias in ((self.weigh, 0.0), (self.bar, 6.0)):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)

    def read(self, ids: Tensor, mask: Tensor, *, of_question: bool = False) -> Tensor:
        """Return vectors of all tokens, `[texts, tokens, hidden]`; zeros for padding. Texts of similar length form a
        batch, because otherwise two fifths of a training batch would be padding.
        """
        lengths = mask.sum(1)
        if self.fast is not None:
            texts = [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]
            found = torch.zeros(*ids.shape, self.encoder.hidden)
            for row, states in zip(found, self.fast.states(texts, of_question=of_question), strict=True):
                row[: len(states)] = torch.from_numpy(states)
            return found
        order = lengths.argsort()
        parts: list[Tensor] = []
        for rows in order.chunk(_GROUPS):
            width = min(-(-int(lengths[rows].max()) // minilm.MULTIPLE) * minilm.MULTIPLE, ids.shape[1])
            states = self.encoder(ids[rows, :width], mask[rows, :width])
            parts.append(functional.pad(states, (0, 0, 0, ids.shape[1] - width)))
        return torch.cat(parts)[order.argsort()]

    def questions(self, ids: Tensor, mask: Tensor, special: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return whole vectors `[questions, hidden]`, token vectors `[questions, tokens, SHORT]`, weights `[questions,
        tokens]` and bars `[questions]`. special: bool, ignored tokens.
        """
        states = self.read(ids, mask, of_question=True)
        wholes = functional.normalize((states * mask.unsqueeze(-1)).sum(1), dim=-1)
        weights = torch.softmax(self.weigh(states).squeeze(-1).masked_fill(special, -1e4), dim=1)
        return wholes, functional.normalize(self.shorten(states), dim=-1), weights, self.bar(wholes).squeeze(-1)

    def statements(self, ids: Tensor, mask: Tensor, spans: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Return whole vectors `[spans, hidden]`, token vectors `[tokens, SHORT]`. spans: row, first and end token."""
        states = self.read(ids, mask, of_question=is_question())
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


class StatementEncoder:
    """A trained ranker. It reads passages in advance and questions when they arrive. Vectors of rankers with different
    names cannot be compared. Safe to use from any thread. Raises RetrievalError if the folder has no usable ranker.
    """

    def __init__(self, folder: Path, compiled: minilm.Compiled | None = None) -> None:
        try:
            self.name: str = json.loads((folder / CARD).read_text(encoding="utf-8"))["name"]
            weights = load_file(folder / WEIGHTS)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            raise RetrievalError(f"ranker {folder}: cannot be read ({first_line(error)})") from error
        self._model = RankerModel().eval()
        own = self._model.state_dict()
        wrong = [name for name, weight in weights.items() if name not in own or own[name].shape != weight.shape]
        if wrong:
            raise RetrievalError(f"ranker {folder}: made for another model ({wrong[0]})")
        # What is not trained is the embedder's, once in memory.
        untrained = {f"encoder.{name}": weight for name, weight in minilm.bundled_network().state_dict().items()}
        trained = {name: weight.float() for name, weight in weights.items()}
        self._model.load_state_dict(untrained | trained, strict=False, assign=True)
        self._model.fast = minilm.fast_encoder_of(self._model.encoder, compiled)
        if self._model.fast is not None:
            del self._model.encoder.layers[:]  # 28 MB that nothing uses any more
        heads = (self._model.shorten, self._model.weigh, self._model.bar)
        self._heads = [(head.weight.detach().numpy(), 0.0 if head.bias is None else head.bias.item()) for head in heads]
        self.tokens = RankerTokens()
        cosine, matches = self._model.mixture.tolist()
        self.mixture = Mixture(cosine=cosine, matches=matches)
        self._lock = threading.Lock()

    def read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        found: dict[int, StatementVectors] = {}
        for places in short_batches([passage.text for passage in passages], self._model.fast is not None):
            found.update(zip(places, self._read([passages[place] for place in places]), strict=True))
        return [found[place] for place in range(len(passages))]

    def question(self, text: str) -> QuestionVectors:
        if self._model.fast is not None:
            return self._packed_question(self._model.fast, text)
        with self._lock, torch.inference_mode():
            wholes, tokens, weights, bars = self._model.questions(*self.tokens.questions([text]))
        return QuestionVectors(
            whole=wholes[0].numpy(), tokens=tokens[0].numpy(), weights=weights[0].numpy(), bar=float(bars[0])
        )

    def _packed_question(self, fast: minilm.FastEncoder, text: str) -> QuestionVectors:
        """Return what `RankerModel.questions` does. PyTorch would share such small products among threads, whose start
        takes longer than the question.
        """
        [ids] = self.tokens.rows([text])
        [states] = fast.states([ids], of_question=True)
        (shorten, _), (weigh, importance), (bar, highest) = self._heads
        whole = of_length_one(states.sum(0))
        logits = states @ weigh[0] + importance
        logits[np.isin(ids, self.tokens.special)] = -1e4
        weights = np.exp(logits - logits.max())
        return QuestionVectors(
            whole=whole,
            tokens=of_length_one(states @ shorten.T),
            weights=weights / weights.sum(),
            bar=float(bar[0] @ whole) + highest,
        )

    def _read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        ids, mask, spans = self.tokens.passages(passages, LONGEST_PASSAGE)
        read = [span for span in spans if span[2] > span[1]]
        wholes = np.zeros((len(spans), self._model.encoder.hidden), np.float16)
        tokens = np.zeros((0, SHORT), np.int8)
        if read:
            with nullcontext() if self._model.fast else self._lock, torch.inference_mode():
                some, all_tokens = self._model.statements(ids, mask, read)
            wholes[[first < end for _, first, end in spans]] = some.numpy()
            tokens = short_form(all_tokens.numpy())
        ends = np.cumsum([end - first for _, first, end in spans], dtype=np.int32)
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
        self._tokenizer = minilm.BundledTokenizer()
        self.special: tuple[int, int] = (self._tokenizer.cls_token_id, self._tokenizer.sep_token_id)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of questions. A long text is cut at its start."""
        found = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        opening, closing = self.special
        return [[opening, *ids[-(LONGEST_QUESTION - 2) :], closing] for ids in found]

    def questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, mask and which tokens are special, each `[texts, tokens]`, of `rows`."""
        ids, mask = minilm.padded(self.rows(texts))
        opening, closing = self.special
        return ids, mask, (mask == 0) | (ids == opening) | (ids == closing)

    def passages(
        self, passages: Sequence[PassageToRead], longest: int
    ) -> tuple[Tensor, Tensor, list[tuple[int, int, int]]]:
        """Return ids and mask `[passages, tokens]`, and for every statement of every passage its row, first token and
        end token. First and end are equal for a truncated statement.
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
        return *minilm.padded(found["input_ids"]), spans
