"""Characters, language and terms of a text.

**Readable text** has no invisible characters and plain spaces. Full-width digits and ligatures stay.

**Language** is a two-letter code of ISO 639-1: "en", "de", "zh". Chinese, Japanese and Korean are recognised by their
characters, other languages by py3langid (naive Bayes over byte n-grams; Lui and Baldwin 2012), limited to `LANGUAGES`.
A text has the default language unless it is clearly another one. The model loads in about a second at its first use.
After that, a question takes 0.1 ms. Out of scope: one-word greetings in Latin letters ("hola"), several languages in
one text.

**Terms** are the units that keyword search counts: stems of words, numbers, and Chinese, Japanese and Korean
characters. Full-width letters and digits equal plain ones. A run of Chinese, Japanese or Korean becomes its characters
and pairs of characters, so a two-character word is found without a dictionary. A model number becomes its parts and the
whole: "KM-450", "KM450" and "km 450" find each other. Words are stemmed by the Snowball rules of their language
(snowballstem.org). The grounding checks use the same stems and common words. Out of scope: synonyms (left to
embeddings), misspellings (`retrieval.search.retriever`), parts of compounds.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock

from py3langid.langid import MODEL_FILE, LanguageIdentifier
from Stemmer import Stemmer

_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Control characters, soft hyphens, zero-width spaces, byte-order marks, direction overrides, lone surrogates.
# Zero-width joiners stay: emoji, Persian and Indic scripts need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2060\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_WIDE_SPACE = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")


def readable(text: str) -> str:
    """Return the text in Unicode's composed form, with plain spaces, "\\n" line ends and no invisible characters."""
    text = _INVISIBLE.sub("", _LINE_END.sub("\n", text))
    return unicodedata.normalize("NFC", _WIDE_SPACE.sub(" ", text))


def printable(path: Path | str) -> str:
    """Return a path that is safe on a terminal and in a log: line breaks, escape codes, direction marks and undecodable
    bytes become escapes. The result is not a valid path and may be long.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in str(path)
    )


LANGUAGES = """
    ar bg cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv nl no pl pt ro ru sk sl sv th tr uk vi zh
    """.split()  # noqa: SIM905  # a list of words is easier to read this way
"""Recognised languages. Rare ones that resemble a common one are missing, so "minimum" is not Latin."""
_SURE, _TIMES = 0.3, 2.0
"""Least probability of a language other than the default, and how many times the default's probability it must be. With
these limits the language of all 256 English questions (sample questions and login.gov's) is right.
"""
_ENOUGH = 400  # maximum number of characters that are examined; each takes about half a microsecond
_KANA, _HANGUL, _HAN = (re.compile(f"[{c}]") for c in ("\u3040-\u30ff", "\uac00-\ud7af", "\u3400-\u9fff\uf900-\ufaff"))
_LETTER = re.compile(r"[^\W\d_]")
_LETTERS_PER_CHARACTER = 4  # letters that say as much as one Chinese, Japanese or Korean character
_FEW_KANA = 0.1  # lowest share in a Japanese text; a Chinese text may quote a few


def language_of(text: str, default: str = "en") -> str:
    """Return the language of a text, or the default if it is not clear. For characters shared by Chinese and Japanese,
    the default is returned if it is one of these two, otherwise Chinese.
    """
    text = text[:_ENOUGH]
    kana, hangul, han = (len(script.findall(text)) for script in (_KANA, _HANGUL, _HAN))
    others = len(_LETTER.findall(text)) - kana - hangul - han
    if _LETTERS_PER_CHARACTER * (kana + hangul + han) > others:
        if hangul > kana + han:
            return "ko"
        if kana > _FEW_KANA * (kana + han):
            return "ja"
        return default if default in ("ja", "zh") else "zh"
    ranked = dict(_identifier().rank(text)) if others else {}
    likely, probability = next(iter(ranked.items()), (default, 1.0))
    return likely if probability >= max(_SURE, _TIMES * ranked.get(default, 0.0)) else default


_LOADING = Lock()


def _identifier() -> LanguageIdentifier:
    with _LOADING:  # the other threads wait for the first one
        return _load_identifier()


@cache
def _load_identifier() -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(LANGUAGES)
    return identifier


# Ranges of regular expressions. UNSPACED: no spaces between words; Korean has some, but attaches particles.
CHINESE_JAPANESE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
UNSPACED = f"{CHINESE_JAPANESE}\uac00-\ud7af"

_RUN = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}]+(?:[-./][^\W_{UNSPACED}]+)*")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_PART = re.compile(r"\d+|[^\W\d_]+")
_APART = frozenset({"customs"})  # the English rules would make it the stem of "customer"
_STEMMING = Lock()  # a stemmer stores the word in its attributes, so only one thread at a time may use it
_COMMON_WORDS = """
    a about after again all also am an and any are as at be because been before being both but by can could did do does
    doing don each few for from further get got had has have he hello here hers hi him his how i if in into is it its
    just like ll long m many may me might more most much must my need no nor not now of off on once only or other our
    out over own please re s same shall she should so some such t than that the their them then there these they this
    those through to too under until up us ve very want was we were what when where which while who whom why will with
    would you your
"""
COMMON = frozenset(map(Stemmer("en").stemWord, _COMMON_WORDS.split()))
"""Stems that carry no topic of a question. The bundled search classifier was fitted with exactly these."""

_ASKING_WORDS = """
    什么时候 什么时间 什么地方 什么样 什么 何时 何地 何处 何人 何种 为什么 为何 怎么样 怎么办 怎么 怎样 如何 咋样 咋
    啥时候 啥 谁 哪一年 哪一天 哪年 哪月 哪天 哪一个 哪一 哪些 哪里 哪儿 哪个 哪位 哪种 哪家 哪 几个 几点 几时 几天
    几年 几月 几次 几(?!何|内亚) 多少 多久 多长时间 多长 多大 多高 多重 多远 多宽 多深 多快 是不是 有没有 能不能
    可不可以 会不会 要不要 是否 能否 可否 请问 请告诉我 我想知道 想问 问一下 知道
    (?<![吗呢啊呀嘛了])[吗呢啊呀嘛了]+(?=\\W|$) (?<![酒网])吧(?=\\W|$) 的 是 了(?!解)
    这个 那个 你们 我们 您
"""
_ASKING = re.compile("|".join(sorted(_ASKING_WORDS.split(), key=len, reverse=True)))
"""Chinese question words that do not name a topic. Pairs of characters across their borders are not words."""


def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """Return the words of a text for search, folded and not stemmed, each as often as it occurs."""
    return [word for run in _RUN.findall(folded(text)) for word in _words_of(run, is_question=False)]


def asked_words(text: str) -> list[str]:
    """Return the words of a question. In scripts without spaces, single characters count only if they are alone."""
    return [word for run in _RUN.findall(folded(text)) for word in _words_of(run, is_question=True)]


def telling_words(text: str) -> list[str]:
    """Return the words of a question without Chinese question words, unless there are no others."""
    return asked_words(_ASKING.sub(" ", folded(text))) or asked_words(text)


def parts_of(word: str) -> Iterable[str]:
    """Return the characters of a word of a script without spaces, or the word itself for other scripts."""
    return word if is_unspaced(word) else (word,)


@lru_cache(maxsize=100_000)
def stem(word: str, language: str = "en") -> str:
    """Return the stem of a word. Languages without a stemmer use English, which changes only Latin words."""
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
    return _UNSPACED.match(word) is not None


def _words_of(run: str, *, is_question: bool) -> list[str]:
    if run.isascii() and run.isalpha():  # most are, and need no search
        return [run]
    if is_unspaced(run):
        pairs = [run[at : at + 2] for at in range(len(run) - 1)]
        return pairs or [run] if is_question else [*run, *pairs]
    parts = _PART.findall(run)
    joined = "".join(parts)
    return [*parts, joined] if len(parts) > 1 else parts
