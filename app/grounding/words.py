"""The words of a text in a form in which answers and passages can be compared.

English is stemmed by a few rules, and a short table joins irregular forms and everyday synonyms. Chinese and Japanese
become pairs of characters. Not covered: meaning, word order, misspelling.
"""

from __future__ import annotations

import re
from functools import lru_cache

CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
WORD = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’][^\W_{CJK}]+)*")
IS_CJK = re.compile(f"[{CJK}]")
WITHOUT_PLEASE = re.compile("[^请請勿]+")
"""Characters that do not only say "please" and "do not"."""
CONTRACTED = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$")
SUFFIX = re.compile(r"(?:ations?|ments?|ions?|able|ings?|ers?|ed|(?<=\w{4})ly|es|s|e|y)$")
STEM = 6
"""Characters that a stem keeps, so that "cancellation" and "cancel" are the same word."""

STOP = frozenset(
    WORD.findall(
        "a an the this that these those there here it its they them their theirs he she his her him you your yours "
        "yourself i me my mine myself we us our ours ourselves who whom whose which what where when while how why "
        "and or but nor so if then than as because although though until unless since once of to in on at by for "
        "from with without into onto over under above below about between during through within up down out off "
        "again also too very just only even still yet already ever more most less least much many any some each "
        "every all both other another such same own be is am are was were been being do does did doing done have "
        "has had having can could will would shall should may might must not no never none cannot get gets got "
        "getting go goes going please yes ok okay however therefore per either neither except via let lets able "
        "available possible one once need needs needed simply directly ca wo don doesn isn aren didn won couldn wouldn "
        "shouldn hasn haven wasn weren ll ve re"
    )
)

SAME = {
    form: word
    for word, forms in {
        "buy": "bought buys buying purchase purchases purchased purchasing",
        "cost": "costs price prices priced fee fees charge charges charged charging",
        "send": "sent sends sending ship ships shipped shipping dispatch dispatched mail mailed post posted",
        "email": "emails emailed e-mail",
        "pay": "paid pays paying payment payments payable",
        "phone": "telephone call calls calling called ring rings",
        "photo": "photos picture pictures photograph",
        "shop": "store stores shops",
        "break": "broken broke breaks",
        "keep": "kept keeps keeping",
        "give": "gave given gives giving",
        "take": "took taken takes taking last lasts lasting",
        "choose": "chose chosen chooses choosing choice pick select selects",
        "write": "written wrote writes writing",
        "lose": "lost loses losing",
        "find": "found finds finding",
        "hold": "held holds holding",
        "begin": "began begun begins start starts started starting",
        "run": "ran runs running",
        "deliver": "delivery deliveries delivered delivers",
        "refund": "refunds refunded reimburse reimbursed",
        "item": "items product products article goods",
        "receive": "received receives receiving receipt",
        "person": "people persons",
        "euro": "eur euros",
        "machine": "appliance appliances machines device devices",
        "repair": "repairs repaired fix fixed fixes",
        "parcel": "parcels package packages",
        "accept": "accepts accepted",
        "open": "opens opened opening",
        "free": "gratis",
        "go": "goes going gone went",
        "use": "used uses using usage",
    }.items()
    for form in forms.split()
}


@lru_cache(maxsize=2**14)
def stem(word: str) -> str:
    """What a word shares with its other forms; case does not count."""
    word = CONTRACTED.sub("", word.lower()) or word.lower()
    word = SAME.get(word, word)
    if len(word) > 3 and not any(c.isdigit() for c in word):
        word = cut(word)
    return word[:STEM] if word.isalpha() else word


def cut(word: str) -> str:
    """A word without its ending; at least three letters stay, and of a doubled consonant one."""
    for _ in range(2):
        shorter = SUFFIX.sub("", word)
        if len(shorter) < 3 or shorter == word or word.endswith("ss"):
            break
        word = shorter
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiou" else word


def all_words(text: str) -> list[str]:
    """Every word in its order, stemmed; numbers are words too."""
    found: list[str] = []
    for word in WORD.findall(text):
        if IS_CJK.match(word):
            for part in WITHOUT_PLEASE.findall(word):
                found.extend(part[i : i + 2] for i in range(max(1, len(part) - 1)))
        else:
            found.append(stem(word))
    return found


def content_words(text: str) -> frozenset[str]:
    """Words that say what a text is about: no function words, no bare numbers, no single letters."""
    plain = " ".join(word for word in WORD.findall(text) if CONTRACTED.sub("", word.lower()) not in STOP)
    return frozenset(word for word in all_words(plain) if len(word) > 1 and not word.isdigit())
