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
from collections.abc import Iterable
from functools import cache, lru_cache
from threading import Lock

from Stemmer import Stemmer

# Ranges of regular expressions. UNSPACED: no spaces between words; Korean has some, and glues particles on.
CHINESE_JAPANESE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
UNSPACED = f"{CHINESE_JAPANESE}\uac00-\ud7af"

_RUN = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}]+(?:[-./][^\W_{UNSPACED}]+)*")
_UNSPACED = re.compile(f"[{UNSPACED}]")
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

_ASKING_WORDS = """
    什么时候 什么时间 什么地方 什么样 什么 何时 何地 何处 何人 何种 为什么 为何 怎么样 怎么办 怎么 怎样 如何 咋样 咋
    啥时候 啥 谁 哪一年 哪一天 哪年 哪月 哪天 哪一个 哪一 哪些 哪里 哪儿 哪个 哪位 哪种 哪家 哪 几个 几点 几时 几天
    几年 几月 几次 几(?!何|内亚) 多少 多久 多长时间 多长 多大 多高 多重 多远 多宽 多深 多快 是不是 有没有 能不能
    可不可以 会不会 要不要 是否 能否 可否 请问 请告诉我 我想知道 想问 问一下 知道
    (?<![吗呢啊呀嘛了])[吗呢啊呀嘛了]+(?=\\W|$) (?<![酒网])吧(?=\\W|$) 的 是 了(?!解)
    这个 那个 你们 我们 您
"""
_ASKING = re.compile("|".join(sorted(_ASKING_WORDS.split(), key=len, reverse=True)))
"""Chinese words that ask and say nothing about the topic. The pairs of characters across their borders are no words."""


def folded(text: str) -> str:
    """The text without differences of case and width."""
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """The words of a text to be searched, folded and not stemmed, each as often as it occurs."""
    return [word for run in _RUN.findall(folded(text)) for word in _words_of(run, is_question=False)]


def asked_words(text: str) -> list[str]:
    """The same of a question: single characters count only where they stand alone, pairs say more."""
    return [word for run in _RUN.findall(folded(text)) for word in _words_of(run, is_question=True)]


def telling_words(text: str) -> list[str]:
    """Those of a question that can stand in an answer, without Chinese words that only ask, unless it has no others."""
    return asked_words(_ASKING.sub(" ", folded(text))) or asked_words(text)


def parts_of(word: str) -> Iterable[str]:
    """The characters of a word of a script without spaces; of other scripts, the word itself."""
    return word if is_unspaced(word) else (word,)


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
    return _UNSPACED.match(word) is not None


def _words_of(run: str, *, is_question: bool) -> list[str]:
    if is_unspaced(run):
        pairs = [run[at : at + 2] for at in range(len(run) - 1)]
        return pairs or [run] if is_question else [*run, *pairs]
    parts = _PART.findall(run)
    joined = "".join(parts)
    return [*parts, joined] if len(parts) > 1 else parts
