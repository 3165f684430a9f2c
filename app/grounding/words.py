"""The words of a text in a form in which answers and passages can be compared.

Words, stems and common words are those of search (`retrieval.text.terms`), so that both read a text alike; a table
joins irregular forms and everyday synonyms. Not covered: meaning, word order, misspelling.
"""

import re

from retrieval.text import terms

CJK = f"{terms.CHINESE_JAPANESE}\uff66-\uff9f"
"""Chinese and Japanese characters, half-width ones included, as a range of a regular expression."""
UNSAID = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))\b|[请請不没未無无勿禁]", re.IGNORECASE)
"""What is left out of words: short forms, and Chinese characters that say "please" or deny."""
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
DENYING = "able available ca cannot closed except exclude go neither never none possible unless without wo yes"
"""What denies or allows is no topic of its own."""
FUNCTION_WORDS = terms.COMMON.union(map(terms.stem, DENYING.split())) - {terms.stem("after"), terms.stem("before")}


def stem(word: str) -> str:
    """What a word shares with its other forms and its synonyms; case does not count."""
    stemmed = terms.stem(terms.folded(word))
    return COUNTS_AS.get(stemmed, stemmed)


def all_words(text: str) -> list[str]:
    """Every word in its order, stemmed; numbers are words too, and so are pairs of Chinese characters."""
    return [stem(word) for word in terms.asked_words(UNSAID.sub("", text))]


def content_words(text: str) -> frozenset[str]:
    """Words that say what a text is about: no function words, no bare numbers, no single letters."""
    words = (word for word in terms.asked_words(UNSAID.sub("", text)) if not is_function_word(word))
    return frozenset(stem(word) for word in words if len(word) > 1 and not word.isdigit())


def is_function_word(word: str) -> bool:
    """Whether a word says nothing about what a text is about."""
    return terms.stem(terms.folded(word)) in FUNCTION_WORDS
