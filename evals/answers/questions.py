"""Facts, and questions with right answers, read from JSON lines.

**Facts.** Words are compared after their spelling is unified: case, full-width characters, typographic quotes, dashes,
spaces and hyphens, English number words ("twenty-one" is 21), thousands separators (1,000 is 1000), and zero cents
(5.00 is 5). A fact counts only as complete words: 18 is not in 180, "renew" not in "renewal". A Chinese or Japanese
character is a word. Out of scope: thousands separated by plain spaces or full stops, inflection ("day", "days"), units
("1 hour", "60 minutes"). A fact lists all its forms.

**Customer questions**, for `eval helpdesk`, are in one of two forms. The general form has `articles` (paths below the
folder, none if no page answers), `facts` (all forms of each fact) and optionally `not_from` and `not_said`. The sample
shop's form has `article` (a path or null) and `facts` (one form each).

**Labelled questions**, for `calibrate-search`, are in one of these forms:
    {"question", "answers": [...], "earlier"?, "articles"?}   answers: verbatim parts of the documents; if empty, no
                                                    document answers. articles: file names; only these documents answer
    {"question", "answer"}, {"question"}            one answer in any words, or none
    {"question", "facts": [[forms]...], "history"?}   a customer question
    {"title", "context", "qas": [{"question", "answers"}]}   the usual form of published question sets
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from app.domain.json_lines import read_json_lines
from retrieval.statements.grouping import Statement
from retrieval.text.terms import CHINESE_JAPANESE, words

Fact = Sequence[str]  # the forms of one fact, any of which counts

TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TO_NINETY = "twenty thirty forty fifty sixty seventy eighty ninety"
UNITS = {word: number for number, word in enumerate(TO_NINETEEN.split())}
TENS = {word: 10 * number for number, word in enumerate(TO_NINETY.split(), start=2)}
SCALES = {"hundred": 100, "thousand": 1000}

ALIKE = str.maketrans({**dict.fromkeys("‘’ʼ´`", "'"), **dict.fromkeys("‐‑‒–—−-", " "), "ß": "ss"})
THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:[,'’\u00a0\u2009\u202f]\d{3})+)(?!\d|[.,]\d{3})")
NOUGHT_CENTS = re.compile(r"(\d)[.,]00(?!\d)")
WORD = re.compile(rf"[{CHINESE_JAPANESE}]|\d+(?:[.,:/]\d+)*|[^\W\d{CHINESE_JAPANESE}]+(?:'[^\W\d]+)*|[€$£¥%]")


def plain_words(text: str) -> list[str]:
    """Return the words in unified spelling. Numbers, currency signs and % are words."""
    text = THOUSANDS.sub(lambda found: found[1] + re.sub(r"\D", "", found[2]), text)
    text = unicodedata.normalize("NFKC", text).casefold().translate(ALIKE)
    return _with_digits(WORD.findall(NOUGHT_CENTS.sub(r"\1", text)))


def holds_fact(text: str, fact: Fact) -> bool:
    there = plain_words(text)
    return any(_is_within(plain_words(form), there) for form in fact)


def holds_all(text: str, facts: Sequence[Fact]) -> bool:
    return all(holds_fact(text, fact) for fact in facts)


def _is_within(part: Sequence[str], whole: Sequence[str]) -> bool:
    length = len(part)
    return length > 0 and any(whole[at : at + length] == part for at in range(len(whole) - length + 1))


def _with_digits(spelled: list[str]) -> list[str]:
    """Write number words as digits: "twenty one" is 21, "two hundred" 200. Longer numbers stay."""
    found: list[str] = []
    at = 0
    while at < len(spelled):
        word, following = spelled[at], spelled[at + 1] if at + 1 < len(spelled) else ""
        at += 1
        if word in TENS and UNITS.get(following, 0) in range(1, 10):
            found.append(str(TENS[word] + UNITS[following]))
            at += 1
        elif word in UNITS and following in SCALES:
            found.append(str(UNITS[word] * SCALES[following]))
            at += 1
        elif word in UNITS or word in TENS:
            found.append(str(UNITS.get(word, TENS.get(word))))
        else:
            found.append(word)
    return found


SMALL_TALK, FOLLOW_UP, PLAIN, UNANSWERABLE = "smalltalk", "follow-up", "plain", "unanswerable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerQuestion:
    """A customer's question. kind: as in the file, else one of the names above. articles: pages that answer it; one is
    enough. facts: what a right answer says. gold: a right answer. history: earlier questions and answers. not_from:
    pages whose advice would be harmful here, for example of another product model. not_said: harmful words.
    """

    id: str
    kind: str
    question: str
    articles: tuple[str, ...]
    facts: tuple[tuple[str, ...], ...]
    gold: str
    history: tuple[tuple[str, str], ...]
    not_from: tuple[str, ...] = ()
    not_said: tuple[str, ...] = ()

    @property
    def is_small_talk(self) -> bool:
        return self.kind == SMALL_TALK

    @property
    def is_answerable(self) -> bool:
        return bool(self.articles or self.facts)

    @property
    def is_unanswerable(self) -> bool:
        return not self.is_answerable and not self.is_small_talk


def read_questions(file: Path) -> list[CustomerQuestion]:
    found = [*read_json_lines(file, _question, "question", "bad-questions").values()]
    if not found:
        raise DeskError(f"{file} has no questions", code="bad-questions")
    return found


def _question(row: dict[str, Any]) -> CustomerQuestion:
    articles = row["articles"] if "articles" in row else [row["article"]] if row["article"] else []
    facts = [(fact,) if isinstance(fact, str) else tuple(fact) for fact in row["facts"]]
    history = [
        (turn["question"], turn["answer"]) if isinstance(turn, dict) else (turn[0], turn[1])
        for turn in row.get("history") or []
    ]
    told = articles or facts
    kind = row.get("kind") or (UNANSWERABLE if not told else FOLLOW_UP if history else PLAIN)
    return CustomerQuestion(
        id=str(row["id"]),
        kind=kind,
        question=row["question"],
        articles=tuple(articles),
        facts=tuple(facts),
        gold=row.get("answer") or "",
        history=tuple(history),
        not_from=tuple(row.get("not_from") or ()),
        not_said=tuple(row.get("not_said") or ()),
    )


def sample(questions: Sequence[CustomerQuestion], limit: int | None) -> list[CustomerQuestion]:
    """Take about `limit` questions, in their order: the same share of every kind, at least one, spread evenly."""
    if limit is None or limit >= len(questions):
        return list(questions)
    of_kind: dict[str, list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        of_kind[question.kind].append(number)
    taken: set[int] = set()
    for numbers in of_kind.values():
        count = max(1, round(limit * len(numbers) / len(questions)))
        taken.update(numbers[at * len(numbers) // count] for at in range(count))
    return [questions[number] for number in sorted(taken)]


SAME = 0.6  # minimum share of the answer's words in a statement that answers in other words

_WORD = re.compile(rf"[{CHINESE_JAPANESE}]|[^\W{CHINESE_JAPANESE}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuestion:
    """A question with its answers (parts of documents) or the facts that an answer must hold. A question without both
    is unanswerable.
    """

    question: str
    earlier: str | None = None
    answers: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    articles: tuple[str, ...] = ()

    @property
    def is_answerable(self) -> bool:
        return bool(self.answers or self.facts)

    def is_answered_by(self, statement: Statement, passage: StoredPassage) -> bool:
        """Return whether a statement contains an answer, a part of a longer answer, or one of the facts."""
        if self.facts:
            return any(holds_fact(statement.text, fact) for fact in self.facts)
        if self.articles and passage.document.rpartition("/")[2] not in self.articles:
            return False  # "2008" is in many documents
        said = _plain(passage.text[statement.start : statement.end])
        return any(_is_same(said, _plain(answer)) for answer in self.answers)


def read_labelled(file: Path) -> list[LabelledQuestion]:
    rows = read_json_lines(file, lambda row: [*_labelled(row)], "question", "bad-questions")
    return [question for row in rows.values() for question in row]


def _labelled(row: dict[str, Any]) -> Iterator[LabelledQuestion]:
    if "qas" in row:
        for qa in row["qas"]:
            yield LabelledQuestion(question=qa["question"], answers=tuple(qa["answers"]))
        return
    if row.get("kind") == "smalltalk":
        return
    history = row.get("history") or []
    earlier = row.get("earlier") or (None if not history else _asked(history[-1]))
    answers = row.get("answers", [row["answer"]] if row.get("answer") and "facts" not in row else [])
    facts = tuple((fact,) if isinstance(fact, str) else tuple(fact) for fact in row.get("facts") or ())
    articles = tuple(row["articles"]) if "answers" in row and row.get("articles") else ()
    yield LabelledQuestion(
        question=row["question"], earlier=earlier, answers=tuple(answers), facts=facts, articles=articles
    )


def _asked(turn: Any) -> str:
    said: str = turn["question"] if isinstance(turn, dict) else turn[0]
    return said


def _plain(text: str) -> str:
    """Separate words by single spaces. A Chinese or Japanese character is a word."""
    return " ".join(_WORD.findall(text.casefold()))


def _is_same(said: str, answer: str) -> bool:
    if not answer or not said:
        return False
    if f" {answer} " in f" {said} " or (len(said) > 1 and f" {said} " in f" {answer} "):
        return True
    wanted = set(words(answer))
    return len(wanted & set(words(said))) >= SAME * len(wanted) and len(wanted) > 2
