"""Terms of a text, as keyword search counts them: stems of words, numbers, and Chinese, Japanese and Korean characters.

Full-width letters and digits count as plain ones. A run of Chinese, Japanese or Korean gives its characters and its
pairs of characters, so that a word of two is found without a dictionary. A model number gives its parts and the whole:
"KM-450", "KM450" and "km 450" find each other, as do "e-mail" and "email". Words are stemmed by the Snowball rules of
their language (snowballstem.org); `stems` says which that is in an index of several languages. The grounding checks use
the same stems and the same list of common words. Not covered: synonyms (embeddings know them), misspelling
(`spelling`), parts of compounds.
"""

import re
import unicodedata
from functools import cache, lru_cache
from threading import Lock

from Stemmer import Stemmer

# Ranges of regular expressions. UNSPACED: no spaces between words; Korean has some, and glues particles on.
CHINESE_JAPANESE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
UNSPACED = f"{CHINESE_JAPANESE}\uac00-\ud7af"

_RUN = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}]+(?:[-./][^\W_{UNSPACED}]+)*")
_PART = re.compile(r"\d+|[^\W\d_]+")
_APART = frozenset({"customs"})  # the English rules would make it the stem of "customer"
_STEMMING = Lock()  # a stemmer keeps the word in its own attributes, so only one thread at a time may use it
_COMMON_WORDS = """
    a about after again all also am an and any are as at be because been before being both but by can could did do does
    doing don each few for from further get got had has have he hello here hers hi him his how i if in into is it its
    just like ll long m many may me might more most much must my need no nor not now of off on once only or other our
    out over own please re s same shall she should so some such t than that the their them then there these they this
    those through to too under until up us ve very want was we were what when where which while who whom why will with
    would you your
"""
COMMON = frozenset(map(Stemmer("en").stemWord, _COMMON_WORDS.split()))
"""Stems that say nothing about the topic of a question. The shipped search classifier was fitted with exactly these."""


def folded(text: str) -> str:
    """The text without differences of case and width."""
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """The words of a text to be searched, folded and not stemmed, each as often as it occurs."""
    return [word for run in _RUN.findall(folded(text)) for word in _words_of(run, is_question=False)]


def asked_words(text: str) -> list[str]:
    """The same of a question: single characters count only where they stand alone, pairs say more."""
    return [word for run in _RUN.findall(folded(text)) for word in _words_of(run, is_question=True)]


@lru_cache(maxsize=100_000)
def stem(word: str, language: str = "en") -> str:
    """What a word of a text in this language is counted as. Languages without a stemmer take the English one, which
    changes only Latin words.
    """
    if word in _APART:
        return word
    with _STEMMING:
        stemmed: str = _stemmer(language).stemWord(word)
    return stemmed


@cache
def _stemmer(language: str) -> Stemmer:
    try:
        return Stemmer(language)
    except KeyError:
        return Stemmer("en")


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script without spaces."""
    return re.match(f"[{UNSPACED}]", word) is not None


def _words_of(run: str, *, is_question: bool) -> list[str]:
    if is_unspaced(run):
        pairs = [run[at : at + 2] for at in range(len(run) - 1)]
        return pairs or [run] if is_question else [*run, *pairs]
    parts = _PART.findall(run)
    joined = "".join(parts)
    return [*parts, joined] if len(parts) > 1 else parts
