"""Warmdesk's own texts and the small talk that it recognises: one file of `texts` per language.

For another language, write its file with the same keys; the tests compare it with the English one. A message is small
talk only if all of its words are known: phrases of `hears`, and the words of `around`. One other word ("hello, how do I
return a lamp?") makes it a question. A typing error is accepted in longer words. Search and model are not used. Out of
scope: when a text is used (`app.answering.prepare`), small talk in other languages.
"""

import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rapidfuzz.distance import OSA

from app.domain.answers import BETWEEN
from app.domain.settings import Settings
from retrieval.text.terms import CHINESE_JAPANESE

FALLBACK = "en"  # the language to use if a language has no file
_FOLDER = Path(__file__).parent / "texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of a language. says: texts by name. hears: customers' phrases, by kind. around: words that may be next to
    them, by kind; "any" is for every kind.
    """

    says: Mapping[str, str]
    hears: Mapping[str, Sequence[str]]
    around: Mapping[str, Sequence[str]]


@cache
def all_texts() -> Mapping[str, Texts]:
    return {file.stem: Texts(**tomllib.loads(file.read_text("utf-8"))) for file in sorted(_FOLDER.glob("*.toml"))}


def texts_in(language: str) -> Texts:
    return all_texts().get(language, all_texts()[FALLBACK])


CONTACTS = ("email", "phone", "url", "hours")  # in the order shown; each is the setting contact_NAME


def contact_lines(settings: Settings, texts: Texts) -> str:
    given = {name: getattr(settings, f"contact_{name}") for name in CONTACTS}
    return "\n".join(f"- {texts.says[name]}: {value}" for name, value in given.items() if value is not None)


def contact_links(settings: Settings) -> Mapping[str, str]:
    links = {}
    if settings.contact_email is not None:
        links[settings.contact_email] = f"mailto:{settings.contact_email}"
    if settings.contact_phone is not None:
        links[settings.contact_phone] = "tel:" + re.sub(r"[^\d+]", "", settings.contact_phone)
    if settings.contact_url is not None:
        links[settings.contact_url] = settings.contact_url
    return links


Kind = Literal["human", "identity", "wellbeing", "goodbye", "thanks", "greeting", "chat", "reply", "vague"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # if a message is of several kinds, it counts as the first
MOST_WORDS = 24  # longer messages are questions
SLIPS_FROM = 5  # minimum letters of a word in which a typing error is accepted: "cook" is not "cool"
_APOSTROPHES = re.compile("['’`´]")
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W_{CHINESE_JAPANESE}]+")
Words = tuple[str, ...]


class Heard(NamedTuple):
    """A recognised message of small talk. language: the language of its phrases."""

    kind: Kind
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """A language's phrases as words. words: all words. longest: number of words in the longest phrase."""

    hears: Mapping[Kind, frozenset[Words]]
    around: Mapping[str, frozenset[Words]]
    words: frozenset[str]
    longest: int


def heard(message: str, language: str) -> Heard | None:
    """Return the kind of small talk of a message, or None for a question. language: its likely language, which is tried
    first. Typing errors are accepted in it and in English.
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
    """Return the first kind of `KINDS` that is in a split of all words into phrases (`_covering`)."""
    return next((kind for kind in KINDS if kind in _covering(words, known, kind)), None)


def _covering(words: Words, known: _Vocabulary, kind: Kind) -> set[Kind]:
    """Split all words into the fewest phrases, with the words around `kind` between them, and return the kinds of the
    phrases; none if this is impossible.
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
            of_kind -= {"reply"} if len(phrase) < len(words) else set()  # "no" in a longer message is not a reply
            if (of_kind or phrase in around) and (end not in best or phrases + 1 < best[end][0]):
                best[end] = phrases + 1, found | of_kind
    return best[len(words)][1] if len(words) in best else set()


def _corrected(word: str, known: frozenset[str]) -> str:
    """Return the known word for a word with one wrong letter (two in a word of nine or more), or the word."""
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
    hears = {kind: frozenset(map(_words, texts.hears[kind])) for kind in KINDS}
    around = {kind: frozenset(map(_words, phrases)) for kind, phrases in texts.around.items()}
    phrases = frozenset[Words]().union(*hears.values(), *around.values())
    return _Vocabulary(
        hears=hears,
        around=around,
        words=frozenset(word for phrase in phrases for word in phrase),
        longest=max(map(len, phrases)),
    )


def _words(text: str) -> Words:
    """Return words without case, accents and apostrophes. A Chinese character is a word."""
    return tuple(_WORD.findall(_APOSTROPHES.sub("", without_accents(text.casefold()))))


def without_accents(text: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))


def nothing_text(settings: Settings, language: str) -> str:
    """Return the text for "no answer found", with contacts. The setting `refusal_text` replaces it in all languages."""
    texts = texts_in(language)
    contacts = contact_lines(settings, texts)
    if "refusal_text" in settings.model_fields_set:
        return settings.refusal_text + (BETWEEN + contacts if contacts else "")
    return _with_contacts(texts.says["nothing"], contacts, language)


def human_text(settings: Settings, language: str, page: str = "") -> str:
    """Return the reply to a request for a person. page: the documents' text on contacts, shown instead of contacts."""
    texts = texts_in(language)
    if page:
        return texts.says["human"] + BETWEEN + page
    return _with_contacts(texts.says["human"], contact_lines(settings, texts), language)


def unsure_text(unknown: Sequence[str], language: str) -> str:
    """Return the line above statements that may help. unknown: names in the question that no document contains."""
    says = texts_in(language).says
    return says["unknown"].format(names=", ".join(unknown)) if unknown else says["unsure"]


def vague_text(topics: Sequence[str], language: str) -> str:
    return texts_in(language).says["vague"].format(topics=", ".join(topics))


def which_text(names: Sequence[str], language: str) -> str:
    """Return the question "which one do you mean?" and the names, one per line (`Answer.choices` reads them)."""
    return "\n- ".join([texts_in(language).says["which"], *names])


def _with_contacts(text: str, contacts: str, language: str) -> str:
    says = texts_in(language).says
    space = "" if language == "zh" else " "
    return f"{text}{space}{says['contact']}{BETWEEN}{contacts}" if contacts else f"{text}{space}{says['no_contact']}"
