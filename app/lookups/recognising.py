"""Which look-up a message wishes, and how surely: kernel ridge regression on the examples, without a language model.

Two things are learned apart. The subject ("order", "refund"): from all examples of a look-up, also its
counter-examples, against everything else. And whether a message asks about the customer's own case ("where is my ...")
or about rules ("how long does ..."): from messages of other trades (own_cases.toml), and from examples against
counter-examples. The score of a known message while it is left out is exact and costs nothing more. The two thresholds
are fitted on such scores of the messages that wish nothing. Out of scope: values (`values`).
"""

import re
import tomllib
import unicodedata
from collections import Counter
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
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W\d_{CHINESE_JAPANESE}]+|\d")
_OWN_CASES = Path(__file__).with_name("own_cases.toml")
_SUBJECT = {"meaning": 1.0, "patterns": 0.0, "ridge": 0.1}
_OWN = {"meaning": 0.6, "patterns": 0.4, "ridge": 1.0}
OWN_WEIGHT = 0.8  # of "own case" beside the subject
FALSE_STARTS, FALSE_OFFERS = 0.01, 0.04  # shares of the left-out messages that wish nothing
FALSE_OWN = 0.03  # share of left-out messages about rules that may count as the customer's own case
MOST_DOCUMENTS = 150


def grams(message: str) -> Counter[str]:
    """Return the runs of one to three words of a message; a Chinese character is a word."""
    words = _WORD.findall(_folded(message).replace("'", ""))
    return Counter(" ".join(words[at : at + n]) for n in (1, 2, 3) for at in range(len(words) - n + 1))


def _folded(message: str) -> str:
    return unicodedata.normalize("NFKC", message).casefold().replace("’", "'")


@cache
def _own_cases() -> dict[str, list[str]]:
    return tomllib.loads(_OWN_CASES.read_text("utf-8"))


@cache
def _patterns() -> Sequence[re.Pattern[str]]:
    known = _own_cases()
    return [re.compile(one) for one in (*known["own_patterns"], *known["general_patterns"])]


class Regression:
    """Learns from known messages which targets a message has. Two messages are alike by their embeddings, by the runs
    of words that they share, rare ones more, and by the patterns that both fit.
    """

    def __init__(self, known: Sequence[str], vectors: Numbers, targets: Numbers, **weights: float) -> None:
        """vectors: `[known, dimension]`, each of length 1. targets: `[known, targets]`, each 1 or -1."""
        self._meaning, self._patterns = weights["meaning"], weights["patterns"]
        rows = list(map(grams, known))
        counts = Counter(gram for row in rows for gram in row)
        self._places = {gram: place for place, gram in enumerate(counts)}
        self._rarity = np.log((1 + len(known)) / (1 + np.array([*counts.values()]))) + 1.0
        self._known = np.ones((len(known), 0))
        self._known = self._features(known, vectors)
        inverse = np.linalg.inv(self._known @ self._known.T + weights["ridge"] * np.eye(len(known)))
        dual = inverse @ targets
        self.left_out: Numbers = targets - dual / np.diag(inverse)[:, None]
        self._weights = self._known.T @ dual

    def __call__(self, messages: Sequence[str], vectors: Numbers) -> Numbers:
        """Return a score for each target, `[messages, targets]`: about 1 or -1."""
        scores: Numbers = self._features(messages, vectors) @ self._weights
        return scores

    def _features(self, messages: Sequence[str], vectors: Numbers) -> Numbers:
        runs = np.zeros((len(messages), len(self._places)))
        for row, message in enumerate(messages):
            for gram, number in grams(message).items():
                if (place := self._places.get(gram)) is not None:
                    runs[row, place] = self._rarity[place] * min(number, 2)
        runs /= np.maximum(np.linalg.norm(runs, axis=1, keepdims=True), 1e-9)
        folded = map(_folded, messages)
        fits = [[float(one.search(message) is not None) for one in _patterns()] for message in folded]
        scaled = np.sqrt(self._meaning) * vectors, np.sqrt(self._patterns) * np.array(fits)
        return np.hstack([runs, *scaled, np.full((len(messages), 1), np.sqrt(0.2))])


@dataclass(frozen=True, slots=True)
class Wish:
    """A recognised wish. is_certain: start it. is_sure: start it unless the documents answer. Else offer it."""

    lookup: LookUp
    is_sure: bool
    is_certain: bool


class Recogniser:
    """Scores messages for some look-ups. Safe to use from any thread."""

    def __init__(
        self,
        lookups: Sequence[LookUp],
        embed: Callable[[Sequence[str]], npt.NDArray[np.float32]],
        others: Sequence[str],
    ) -> None:
        """embed: returns vectors of length 1. others: messages that wish nothing, such as the documents' questions."""
        self._lookups = lookups
        self._embed = embed
        examples = [(text, one) for one in lookups for text in one.examples]
        nothing = [(text, None) for one in lookups for text in one.not_examples]
        self._decided = {tuple(_WORD.findall(_folded(text))): one for text, one in [*nothing, *examples]}
        own, general = _own_cases()["own"], _own_cases()["general"]
        subjects = {text: place for place, one in enumerate(lookups) for text in (*one.not_examples, *one.examples)}
        wished = {text for one in lookups for text in one.examples}
        known = list(dict.fromkeys([*subjects, *own, *general, *others[:MOST_DOCUMENTS]]))
        targets = np.array(
            [[1.0 if subjects.get(text) == place else -1.0 for place in range(len(lookups))] for text in known]
        )
        vectors = dict(zip(known, np.asarray(embed(known), np.float64), strict=True))
        self._subject = Regression(known, np.stack([vectors[one] for one in known]), targets, **_SUBJECT)
        cases = dict.fromkeys((*subjects, *general), -1.0) | dict.fromkeys((*own, *wished), 1.0)
        told = np.array([*cases.values()])[:, None]
        self._own = Regression([*cases], np.stack([vectors[one] for one in cases]), told, **_OWN)
        self.own_least = float(np.quantile(self._own.left_out[told[:, 0] < 0], 1 - FALSE_OWN))
        left_out = dict(zip(cases, self._own.left_out[:, 0], strict=True))
        rest = [text for text in known if text not in left_out]
        if rest:
            left_out |= zip(rest, self._own(rest, np.stack([vectors[one] for one in rest]))[:, 0], strict=True)
        told_apart = {*subjects, *own, *general} - wished  # not the documents': whether these answer is looked up
        scores = self._subject.left_out + OWN_WEIGHT * np.clip([left_out[text] for text in known], -1, 1)[:, None]
        unwished = scores[[text in told_apart for text in known]].max(1)
        shares = (0.0, FALSE_STARTS, FALSE_OFFERS)
        self.certain, self.start, self.offer = (float(np.quantile(unwished, 1 - share)) for share in shares)

    def scores(self, message: str) -> tuple[Numbers, float]:
        """Return a score for each look-up, and how surely a message asks about the customer's own case (1 or -1)."""
        vectors = np.asarray(self._embed([message]), np.float64)
        own = min(max(float(self._own([message], vectors)[0, 0]), -1.0), 1.0)
        return self._subject([message], vectors)[0] + OWN_WEIGHT * own, own

    def wish(self, message: str) -> Wish | None:
        """Return the wish of a message, if it has one. An example always wishes, a counter-example never."""
        if (words := tuple(_WORD.findall(_folded(message)))) in self._decided:
            certain = self._decided[words]
            return None if certain is None else Wish(certain, is_sure=True, is_certain=True)
        scores, own = self.scores(message)
        places, texts = self._named(message)
        for text in texts:
            scores[places] = np.maximum(scores[places], self.scores(text)[0][places])
        best = int(scores.argmax())
        score = scores[best]
        if score < self.offer:
            return None
        is_own = own >= self.own_least  # the subject alone ("last order date") starts nothing
        is_certain = bool(best in places or (is_own and score >= self.certain))
        return Wish(
            self._lookups[best], is_sure=bool(is_certain or (is_own and score >= self.start)), is_certain=is_certain
        )

    def _named(self, message: str) -> tuple[list[int], list[str]]:
        """Return the look-ups of which a message has a value with digits and another word. A value stands for what it
        names ("where is AB-123456?"), so the message is also returned with its name and a title in its place.
        """
        places, texts = list[int](), list[str]()
        for place, lookup in enumerate(self._lookups):
            for value in lookup.values:
                for one in written(value, message):
                    before, _, after = unicodedata.normalize("NFKC", message).partition(one)
                    if not _WORD.search(before + after):
                        continue
                    places.append(place)
                    names = (value.name, in_language(lookup.title, language_of(message)))
                    texts = texts or [f"{before}{name}{after}" for name in names]
        return places, texts
