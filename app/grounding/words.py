"""The words of a text in a form in which answers and passages can be compared.

Stems and function words of English are those of search (`retrieval.text.terms`), so that both read a text alike; a
table joins irregular forms and everyday synonyms. Chinese and Japanese become pairs of characters. Not covered:
meaning, word order, misspelling.
"""

import re
from functools import lru_cache

from retrieval.text import terms

CJK = f"{terms.CHINESE_JAPANESE}\uff66-\uff9f"
"""Chinese and Japanese characters, half-width ones included, as a range of a regular expression."""
WORD = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’][^\W_{CJK}]+)*")
IS_CJK = re.compile(f"[{CJK}]")
WITHOUT_PLEASE = re.compile("[^请請勿]+")
"""Characters that do not only say "please" and "do not"."""
CONTRACTED = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$")

SAME_WORDS = """
begin began begun start / break broke broken / buy bought purchase / choose chose chosen choice pick select /
cost price fee charge / deliver delivery / email e-mail / euro eur / find found / free gratis freely /
give gave given / go goes gone went / hold held / item product article goods / keep kept / lose lost loss /
machine appliance device / old older / parcel package / pay paid payment payable / person people /
phone telephone call ring / photo picture photograph / receive receipt / refund reimburse / repair fix / run ran /
send sent ship dispatch mail post / shop store / take took taken last / use usage / write wrote written
"""
"""Irregular forms and synonyms, behind the word that they count as. Regular forms are left to the stemmer."""
COUNTS_AS = {
    terms.stem(form): terms.stem(group.split()[0]) for group in SAME_WORDS.split("/") for form in group.split()[1:]
}
DENYING_WORDS = "able available ca cannot except go goes neither never none possible unless without wo yes"
DENYING = frozenset(map(terms.stem, DENYING_WORDS.split()))
"""What denies or allows is compared by `clauses` and no topic of its own."""
ORDER = frozenset(map(terms.stem, ("after", "before")))
"""Too frequent to search by, but two statements may differ in nothing else."""
FUNCTION_WORDS = (terms.COMMON | DENYING) - ORDER


@lru_cache(maxsize=2**14)
def stem(word: str) -> str:
    """What a word shares with its other forms and its synonyms; case does not count."""
    stemmed = _plain_stem(word)
    return COUNTS_AS.get(stemmed, stemmed)


def is_function_word(word: str) -> bool:
    """Whether a word says nothing about what a text is about."""
    return _plain_stem(word) in FUNCTION_WORDS


def _plain_stem(word: str) -> str:
    return terms.stem(CONTRACTED.sub("", word.lower()) or word.lower())


def all_words(text: str) -> list[str]:
    """Every word in its order, stemmed; numbers are words too."""
    return [part for word in WORD.findall(text) for part in _parts(word)]


def content_words(text: str) -> frozenset[str]:
    """Words that say what a text is about: no function words, no bare numbers, no single letters."""
    found = (part for word in WORD.findall(text) if not is_function_word(word) for part in _parts(word))
    return frozenset(part for part in found if len(part) > 1 and not part.isdigit())


def _parts(word: str) -> list[str]:
    """The stem of a word, or the pairs of characters of Chinese or Japanese."""
    if not IS_CJK.match(word):
        return [stem(word)]
    runs = WITHOUT_PLEASE.findall(word)
    return [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]
