"""Which look-up a message wishes, and how surely: kernel ridge regression on the examples, without a language model.

Two things are learned. First, whether a message asks about the customer's own case ("where is my ...") or about rules
("how long does ..."): from messages of other trades (own_cases.toml). Second, what it wishes: from the examples of each
look-up against everything else. The score of a known message while it is left out is exact and costs nothing more, and
the thresholds are fitted on such scores of the messages that wish nothing. Out of scope: values (`values`).
"""

import re
import tomllib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.lookups.definitions import LookUp, in_language
from app.lookups.values import written
from retrieval.text.terms import CHINESE_JAPANESE, language_of

Numbers = npt.NDArray[np.float64]
Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W\d_{CHINESE_JAPANESE}]+|\d")
_OWN_CASES = Path(__file__).with_name("own_cases.toml")
OWN_WEIGHT = 0.8
# Shares of the left-out messages that wish nothing. New messages reach a threshold less often: a left-out
# counter-example is nearer to the examples than most of them.
FALSE_CERTAIN, FALSE_STARTS, FALSE_OFFERS = 0.0, 0.01, 0.13
MOST_DOCUMENTS = 150
AS_LIKELY = 0.15  # scores that differ by no more are equal


def grams(message: str) -> Counter[str]:
    """Return the runs of one to three words of a message; a Chinese character is a word."""
    words = _words(message)
    return Counter(" ".join(words[at : at + n]) for n in (1, 2, 3) for at in range(len(words) - n + 1))


def _words(message: str) -> list[str]:
    return _WORD.findall(_folded(message).replace("'", ""))


def _folded(message: str) -> str:
    return unicodedata.normalize("NFKC", message).casefold().replace("’", "'")


@cache
def _own_cases() -> dict[str, list[str]]:
    return tomllib.loads(_OWN_CASES.read_text("utf-8"))


@cache
def _patterns() -> Sequence[re.Pattern[str]]:
    known = _own_cases()
    return [re.compile(one) for one in (*known["own_patterns"], *known["general_patterns"])]


class Likeness:
    """How alike a message and each known message are, between 0 and about 1: by the runs of words that they share, rare
    ones more, by their embeddings, and by the share of patterns that both fit.
    """

    def __init__(self, known: Sequence[str], embed: Embed) -> None:
        rows = list(map(grams, known))
        self._rarity = {
            gram: float(np.log((1 + len(known)) / (1 + number))) + 1.0
            for gram, number in Counter(gram for row in rows for gram in row).items()
        }
        self._with = defaultdict[str, list[tuple[int, float]]](list)
        for place, row in enumerate(rows):
            for gram, weight in self._weighted(row).items():
                self._with[gram].append((place, weight))
        self._embed, self._fits = embed, np.array(list(map(_fitted, known)))
        self._vectors = np.asarray(embed(known), np.float64)
        self.known: tuple[Numbers, Numbers, Numbers] = (
            np.stack(list(map(self._runs, known))),
            self._vectors @ self._vectors.T,
            self._fits @ self._fits.T,
        )

    def __call__(self, message: str) -> tuple[Numbers, Numbers, Numbers]:
        """Return the three kinds, `[known]` each."""
        vector = np.asarray(self._embed([message]), np.float64)[0]
        return self._runs(message), self._vectors @ vector, self._fits @ _fitted(message)

    def _runs(self, message: str) -> Numbers:
        alike = np.zeros(len(self._fits))
        for gram, weight in self._weighted(grams(message)).items():
            for place, other in self._with.get(gram, ()):
                alike[place] += weight * other
        return alike

    def _weighted(self, row: Counter[str]) -> dict[str, float]:
        weights = {gram: self._rarity[gram] * min(number, 2) for gram, number in row.items() if gram in self._rarity}
        length = float(np.linalg.norm([*weights.values()])) or 1.0
        return {gram: weight / length for gram, weight in weights.items()}


def _fitted(message: str) -> Numbers:
    folded = _folded(message)
    return np.array([float(one.search(folded) is not None) for one in _patterns()])


def _own_kernel(runs: Numbers, meaning: Numbers, patterns: Numbers) -> Numbers:
    return runs + 0.6 * meaning + 0.4 * patterns + 0.2


def _wish_kernel(runs: Numbers, meaning: Numbers, patterns: Numbers, own: Numbers) -> Numbers:
    """own: 1 for two messages that are surely of the same kind, -1 for two of different kinds."""
    return (runs + meaning) * (1 + own) + 0.05 * patterns + 0.2


def _learned(kernel: Numbers, targets: Numbers, ridge: float) -> tuple[Numbers, Numbers]:
    """Return the weights of the known messages, and each one's own score while it is left out."""
    inverse = np.linalg.inv(kernel + ridge * np.eye(len(kernel)))
    weights = inverse @ targets
    return weights, targets - weights / np.diag(inverse)[:, None]


@dataclass(frozen=True, slots=True)
class Wish:
    """A recognised wish. is_certain: start it. is_sure: start it unless the documents answer. Else offer it. or_else:
    look-ups that are as likely, so that the customer chooses.
    """

    lookup: LookUp
    is_sure: bool
    is_certain: bool
    or_else: tuple[LookUp, ...] = ()


class Recogniser:
    """Scores messages for some look-ups. Safe to use from any thread."""

    def __init__(self, lookups: Sequence[LookUp], embed: Embed, others: Sequence[str]) -> None:
        """embed: returns vectors of length 1. others: messages that wish nothing, such as the documents' questions."""
        self._lookups = lookups
        wishes = {text: place for place, one in enumerate(lookups) for text in (*one.title.values(), *one.examples)}
        refused = [text for one in lookups for text in one.not_examples]
        self._decided = {
            tuple(_words(text)): place for text, place in [*wishes.items(), *((one, -1) for one in refused)]
        }
        cases = dict.fromkeys(_own_cases()["own"], 1.0) | dict.fromkeys(_own_cases()["general"], -1.0)
        known = list(dict.fromkeys([*cases, *wishes, *refused, *others[:MOST_DOCUMENTS]]))
        self._alike = Likeness(known, embed)
        n = self._num_cases = len(cases)
        told = np.array([*cases.values()])[:, None]
        self._own_weights, left_out = _learned(_own_kernel(*(one[:n, :n] for one in self._alike.known)), told, 1.0)
        rest = _own_kernel(*(one[n:, :n] for one in self._alike.known)) @ self._own_weights
        self._own = np.clip(np.vstack([left_out, rest])[:, 0], -1, 1)
        targets = np.array(
            [[1.0 if wishes.get(one) == place else -1.0 for place in range(len(lookups))] for one in known]
        )
        kernel = _wish_kernel(*self._alike.known, np.outer(self._own, self._own))
        self._weights, left_out = _learned(kernel, targets, 0.5)
        # "Own case" counts as much as the examples of a look-up have it: "is it in stock?" has none of it.
        at = {text: place for place, text in enumerate(known)}
        own = [np.mean([self._own[at[text]] for text in one.examples]) for one in lookups]
        self._own_counts = OWN_WEIGHT * np.clip(own, 0, 1)
        scores = left_out + np.outer(self._own, self._own_counts)
        unwished = [at[text] for text in (*cases, *refused) if text not in wishes]  # titles wish what is looked up, too
        shares = (FALSE_CERTAIN, FALSE_STARTS, FALSE_OFFERS)
        least = (float(np.quantile(scores[unwished].max(1), 1 - share)) for share in shares)
        self.certain, self.start, self.offer = least

    def scores(self, message: str) -> Numbers:
        """Return a score for each look-up."""
        alike = self._alike(message)
        own = _own_kernel(*(one[: self._num_cases] for one in alike)) @ self._own_weights
        own = np.clip(own, -1, 1)
        scores: Numbers = _wish_kernel(*alike, own * self._own) @ self._weights + own * self._own_counts
        return scores

    def wish(self, message: str) -> Wish | None:
        """Return the wish of a message, if it has one. An example always wishes, a counter-example never."""
        if (place := self._decided.get(tuple(_words(message)))) is not None:
            return None if place < 0 else Wish(self._lookups[place], is_sure=True, is_certain=True)
        scores = self.scores(message)
        places, texts, is_bare = self._named(message)
        if is_bare:
            return None
        if places:
            named = np.max([self.scores(text) for text in texts], axis=0)
            scores[places] = (scores[places] + named[places]) / 2
        best, *rest = np.argsort(-scores)
        score = scores[best]
        if score < self.offer:
            return None
        likely = [one for one in rest if scores[one] >= max(self.offer, score - AS_LIKELY)]
        is_certain = bool(best in places or score >= self.certain)
        return Wish(
            self._lookups[best],
            is_sure=bool(is_certain or score >= self.start),
            is_certain=is_certain,
            or_else=tuple(self._lookups[one] for one in likely),
        )

    def _named(self, message: str) -> tuple[list[int], list[str], bool]:
        """Return the look-ups of which a message has a value with digits and another word. A value stands for what it
        names ("where is AB-123456?"), so the message is also returned with its name and a title in its place, and
        whether it is a value without another word.
        """
        places, texts, is_bare = list[int](), list[str](), False
        for place, lookup in enumerate(self._lookups):
            for value in lookup.values:
                if not (found := written(value, message)):
                    continue
                its = re.compile("|".join(map(re.escape, found)))
                plain = unicodedata.normalize("NFKC", message)
                if not _WORD.search(its.sub("", plain)):
                    is_bare = True
                    continue
                places.append(place)
                names = (value.name, in_language(lookup.title, language_of(message)))
                texts = texts or [name.join(its.split(plain)) for name in names]
        return places, texts, is_bare
