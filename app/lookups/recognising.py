"""Recognises the look-up that a message asks for, with its certainty, without a language model.

It computes three linear scores. Own case: the message asks about the customer's own case ("where is my ...") and not
about rules ("how long does ..."). This score uses runs of words (n-grams) and the embedding. Fit: the similarity to a
look-up's examples. Start and offer: computed from both. Weights and thresholds are learned once for all desks, from
messages to the invented businesses of data/lookups (`evals.answers.learn_wishes`). Out of scope: values (`values`).
"""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.lookups.definitions import LookUp, in_language
from app.lookups.values import fits, written
from retrieval.text.terms import CHINESE_JAPANESE, language_of

Numbers = npt.NDArray[np.float64]
Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
Runs = dict[str, float]
LEARNED = Path(__file__).with_name("wishes.npz")
LONGEST_RUN = 3  # words; a Chinese character is a word
ALIKE = 4  # number of the most similar examples whose mean is the score
KNOWN = 0.5  # share of a message's words that the learned weights must know
AS_LIKELY, POSSIBLE = 0.2, 0.02  # minimum share of further look-ups: relative to the first if sure; else absolute
MOST_OFFERED = 3
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W\d_{CHINESE_JAPANESE}]+|\d+")


def words(message: str) -> list[str]:
    """Return the words of a message in lower case; each number becomes "0"."""
    folded = unicodedata.normalize("NFKC", message).casefold().replace("’", "'").replace("'", "")
    return ["0" if word[0].isdigit() else word for word in _WORD.findall(folded)]


def runs(message: str) -> set[str]:
    """Return the runs of one to three words (n-grams) of a message."""
    own = words(message)
    return {" ".join(own[at : at + n]) for n in range(1, LONGEST_RUN + 1) for at in range(len(own) - n + 1)}


@dataclass(frozen=True, slots=True)
class Learned:
    """The weights. messages: their number. counts: messages that contain a run of words. own: weights of runs for "own
    case". meaning, `[dimension]`: weights of the embedding. own_plain: weights of runs, for other embedders.
    intercepts, `[2]`: with and without embedding. fit, `[way, 2]`: weights of similarity by words and by meaning.
    decision, `[way, 2, 7]`: start and offer, intercept last. thresholds, `[way, 3]`: certain, start and offer.
    """

    messages: int
    counts: dict[str, int]
    own: Runs
    own_plain: Runs
    intercepts: Numbers
    meaning: Numbers
    fit: Numbers
    decision: Numbers
    thresholds: Numbers

    def weighed(self, message: str) -> Runs:
        """Return a message as a vector of length 1: its n-grams (`runs`), weighted by rarity (idf without counts)."""
        rarity = {run: math.log((1 + self.messages) / (1 + self.counts.get(run, 0))) for run in runs(message)}
        length = math.sqrt(sum(value * value for value in rarity.values())) or 1.0
        return {run: value / length for run, value in rarity.items()}

    def own_case(self, weighed: Runs, vector: Numbers) -> float:
        """Return the log-odds that a message asks about the customer's own case."""
        if len(vector) != len(self.meaning):
            return float(self.intercepts[1] + sum(self.own_plain.get(run, 0.0) * of for run, of in weighed.items()))
        own = sum(self.own.get(run, 0.0) * of for run, of in weighed.items())
        return float(self.intercepts[0] + own + self.meaning @ vector)

    def way(self, message: str) -> int:
        """Return the index of the weights: 0 for English, 1 for Chinese, 2 for other languages (without own case)."""
        own = words(message)
        if sum(word in self.counts for word in own) < KNOWN * len(own):
            return 2
        return int(any(len(word) == 1 and word >= "\u3040" for word in own))


@cache
def learned() -> Learned:
    with np.load(LEARNED) as file:
        known = file["runs"].tobytes().decode().split("\n")
        return Learned(
            messages=int(file["messages"]),
            counts=dict(zip(known, file["counts"].tolist(), strict=True)),
            own=dict(zip(known, file["own"].astype(float).tolist(), strict=True)),
            own_plain=dict(zip(known, file["own_plain"].astype(float).tolist(), strict=True)),
            **{name: file[name] for name in ("intercepts", "meaning", "fit", "decision", "thresholds")},
        )


class Likeness:
    """Measures the similarity of a message to the examples of each look-up."""

    def __init__(self, lookups: Sequence[LookUp], embed: Embed, rarity: Learned) -> None:
        texts = [([*one.title.values(), *one.examples], list(one.not_examples)) for one in lookups]
        self._runs = [[[rarity.weighed(text) for text in some] for some in pair] for pair in texts]
        dimension = embed(["a"]).shape[1]
        self._vectors = [
            [np.asarray(embed(some), np.float64) if some else np.zeros((0, dimension)) for some in pair]
            for pair in texts
        ]

    def __call__(self, weighed: Runs, vector: Numbers) -> Numbers:
        """Return three scores for each look-up, `[lookup, 3]`: similarity to its examples by words and by meaning, and
        the lead over the similarity to its counter-examples.
        """
        return np.array([self._one(*one, weighed, vector) for one in zip(self._runs, self._vectors, strict=True)])

    def _one(
        self, texts: Sequence[Sequence[Runs]], vectors: Sequence[Numbers], weighed: Runs, vector: Numbers
    ) -> list[float]:
        like, unlike = (
            # Sums over the runs of the examples, because a customer's message may be much longer.
            np.array([sum(of * weighed.get(run, 0.0) for run, of in one.items()) for one in some])
            for some in texts
        )
        near, far = (some @ vector for some in vectors)
        beats = _top(like, 1) + _top(near, 1) - _top(unlike, 1) - _top(far, 1)
        return [_top(like, ALIKE), _top(near, ALIKE), beats]


def _top(values: Numbers, most: int) -> float:
    return float(np.sort(values)[-most:].mean()) if len(values) else 0.0


def signs(likeness: Numbers, named: Sequence[bool], fit: Numbers) -> tuple[Numbers, Numbers]:
    """Return the probability of each look-up, if the message asks for one, `[lookup]`; and the features of the most
    likely one, `[5]`. If the message has a value, only look-ups with this value count (right in 356 of 358 examples).
    """
    is_possible = np.array(named) if any(named) else np.ones(len(named), bool)
    logits = np.where(is_possible, likeness[:, :2] @ fit, -np.inf)
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    best = int(shares.argmax())
    return shares, np.array([*likeness[best], float(any(named)), shares[best]])


def likely(shares: Numbers, *, is_sure: bool) -> list[int]:
    """Return the indices of the look-ups to start or to offer, the most likely first."""
    order = [int(place) for place in np.argsort(-shares)[:MOST_OFFERED]]
    least = AS_LIKELY * shares[order[0]] if is_sure else POSSIBLE
    return [place for place in order if shares[place] >= least or place == order[0]]


@dataclass(frozen=True, slots=True)
class Wish:
    """A recognised wish. is_certain: start the look-up. is_sure: start it unless the documents answer. Neither: offer
    it. or_else: other likely look-ups, so that the customer chooses.
    """

    lookup: LookUp
    is_sure: bool
    is_certain: bool
    or_else: tuple[LookUp, ...] = ()


class Recogniser:
    """Scores messages for some look-ups. Safe to use from any thread."""

    def __init__(self, lookups: Sequence[LookUp], embed: Embed) -> None:
        """embed: returns vectors of length 1."""
        self._lookups, self._embed, self._learned = lookups, embed, learned()
        wishes = {text: one for one in lookups for text in (*one.title.values(), *one.examples)}
        refused = dict.fromkeys(text for one in lookups for text in one.not_examples)
        self._decided = {tuple(words(text)): one for text, one in (wishes | refused).items()}
        self._alike = Likeness(lookups, embed, self._learned)

    def wish(self, message: str) -> Wish | None:
        """Return the wish of a message, or None. An example always has a wish, a counter-example never."""
        if (own := tuple(words(message))) in self._decided:
            decided = self._decided[own]
            return None if decided is None else Wish(decided, is_sure=True, is_certain=True)
        is_value = any(fits(value, message) for one in self._lookups for value in one.values)
        is_token = len(message.split()) == 1 and unicodedata.normalize("NFKC", message).isascii()
        if set(own) <= {"0"} or (is_token and is_value):
            return None  # only a value, or an attempt to type one
        known = self._learned
        named, read = named_in(message, self._lookups)
        vector, of_read = np.asarray(self._embed([message, read]), np.float64)
        way = known.way(message)
        shares, best = signs(self._alike(known.weighed(read), of_read), named, known.fit[way])
        own_case = known.own_case(known.weighed(message), vector) if way < 2 else 0.0
        start, offer = known.decision[way] @ np.array([own_case, *best, 1.0])
        certain, sure, offered = known.thresholds[way]
        is_named = any(named)  # the message has a value: only the question about it is uncertain
        is_sure = bool(start >= sure or (is_named and offer >= offered))
        if not (is_sure or is_named or offer >= offered):
            return None
        first, *others = likely(shares, is_sure=is_sure)
        return Wish(
            self._lookups[first],
            is_sure=is_sure,
            is_certain=bool(start >= certain or (is_named and is_sure)),
            or_else=tuple(self._lookups[place] for place in others),
        )


def named_in(message: str, lookups: Sequence[LookUp]) -> tuple[list[bool], str]:
    """Return for each look-up whether the message has a value with digits for it, such as an order number. Also return
    the message with the question for the first value, because "where is AB-123456?" has no word for an order.
    """
    asked = [next((one.ask for one in lookup.values if written(one, message)), None) for lookup in lookups]
    first = next(filter(None, asked), None)
    read = f"{message} {in_language(first, language_of(message))}" if first else message
    return [ask is not None for ask in asked], read
