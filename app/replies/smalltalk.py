"""Small talk, and messages too vague to search for: told from a few phrases per language, without search and model.

A message is small talk only if all of its words are known: phrases of `hears`, and the words that may stand around
them. One other word ("hello, how do I return a lamp?") makes it a question. A slip of the keyboard is forgiven in
longer words. Not covered: what is answered (`answers`), small talk in other languages than those of `texts`.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from rapidfuzz.distance import OSA

from app.replies.languages import FALLBACK, all_texts
from retrieval.text.terms import CHINESE_JAPANESE

Kind = Literal["human", "identity", "wellbeing", "goodbye", "thanks", "greeting", "chat", "vague"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""If a message is of several kinds, it counts as the first."""
MOST_WORDS = 24
"""Longer messages are questions."""
SLIPS_FROM = 5
"""Letters of the shortest word in which a slip is forgiven: "cook" is not "cool"."""
_APOSTROPHES = re.compile("['’`´]")
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W_{CHINESE_JAPANESE}]+")
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message that needs no document. language: that of its phrases."""

    kind: Kind
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """A language's phrases as words. words: all of them. longest: words of the longest phrase."""

    hears: Mapping[Kind, frozenset[Words]]
    around: Mapping[str, frozenset[Words]]
    words: frozenset[str]
    longest: int


def heard(message: str, language: str) -> Heard | None:
    """What kind of small talk a message is, or None for a question. language: the one it seems to be in, which is tried
    first; slips of the keyboard are forgiven in that one and in English.
    """
    words = _words(message)
    if len(words) > MOST_WORDS:
        return None
    if not words:  # "?" and the like
        return Heard(kind="vague", language=language)
    likely_first = sorted(all_texts(), key=lambda code: (code != language, code != FALLBACK))
    for code in likely_first:
        if kind := _kind(words, _vocabulary(code)):
            return Heard(kind=kind, language=code)
    for code in likely_first:
        if code in (language, FALLBACK):
            known = _vocabulary(code)
            if kind := _kind(tuple(_corrected(word, known.words) for word in words), known):
                return Heard(kind=kind, language=code)
    return None


def _kind(words: Words, known: _Vocabulary) -> Kind | None:
    """The first kind whose phrases, with those of small talk before it in a message, cover all words."""
    return next((kind for kind in KINDS if kind in _covering(words, known, kind)), None)


def _covering(words: Words, known: _Vocabulary, kind: Kind) -> set[Kind]:
    """The kinds of the phrases in the division of all words into the fewest phrases, if those around `kind` may stand
    between them; none if there is no such division.
    """
    around = known.around["any"] | known.around.get(kind, frozenset())
    best: dict[int, tuple[int, set[Kind]]] = {0: (0, set())}  # by words covered: phrases, and their kinds
    for at in range(len(words)):
        if at not in best:
            continue
        phrases, found = best[at]
        for end in range(at + 1, min(len(words), at + known.longest) + 1):
            phrase = words[at:end]
            of_kind = {one for one in KINDS if phrase in known.hears[one] and (one == kind or one != "vague")}
            if (of_kind or phrase in around) and (end not in best or phrases + 1 < best[end][0]):
                best[end] = phrases + 1, found | of_kind
    return best[len(words)][1] if len(words) in best else set()


def _corrected(word: str, known: frozenset[str]) -> str:
    """The known word that a word with one slip (of nine letters and more, two) most likely is, or the word."""
    if word in known:
        return word
    slips = 1 if len(word) < 9 else 2
    longer = (other for other in known if len(other) >= SLIPS_FROM and other[0] == word[0])
    close = [(OSA.distance(word, other, score_cutoff=slips), other) for other in longer]
    distance, nearest = min(close, default=(slips + 1, word))
    return nearest if distance <= slips else word


@cache
def _vocabulary(language: str) -> _Vocabulary:
    texts = all_texts()[language]
    hears = {kind: _phrases(texts.hears[kind]) for kind in KINDS}
    around = {kind: _phrases(phrases) for kind, phrases in texts.around.items()}
    phrases = frozenset[Words]().union(*hears.values(), *around.values())
    return _Vocabulary(
        hears=hears,
        around=around,
        words=frozenset(word for phrase in phrases for word in phrase),
        longest=max(map(len, phrases)),
    )


def _phrases(texts: Sequence[str]) -> frozenset[Words]:
    return frozenset(map(_words, texts))


def _words(text: str) -> Words:
    """Words without case, accents and apostrophes; a Chinese character is a word."""
    return tuple(_WORD.findall(_APOSTROPHES.sub("", "".join(_plain(text)))))


def _plain(text: str) -> Iterator[str]:
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return (character for character in decomposed if not unicodedata.combining(character))
