"""The text of an answer that may be shown, and its citations.

`CheckedText` holds a sentence back until it is complete. A sentence that the passages do not support is replaced by a
quotation or skipped. If no text is left, the answer says that the documents have none. Out of scope: what counts as
support (`app.grounding.grounding`).

Citations show the sources of an answer, not all results. A quotation cites the passages of its statements, in order,
then the best passage of each of the nearest other documents: if the statements are wrong, the right page is often among
them. An answer in the model's own words also cites every passage that contains many of its words.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from app.domain.answers import BETWEEN, Citation, Mark
from app.domain.documents import StoredPassage
from app.domain.setting_types import AnswerMode
from app.grounding.grounding import ALONE, AnswerChecker, CheckedSentence, score
from app.knowledge.finder import RankedStatement
from retrieval.text.sentences import as_said, complete, parted

ENOUGH_OF_REFUSAL = 40
"""Number of characters that identify the refusal. A checked answer shows nothing after it."""


class CheckedText:
    """Iterate for the text to show; read the properties afterwards."""

    def __init__(
        self, pieces: Iterable[str], checker: AnswerChecker, *, refusal: str, nothing: str, answer_mode: AnswerMode
    ) -> None:
        """refusal: the model's text for "I do not know". nothing: the text shown instead. answer_mode: `free` and
        `quote` change nothing, because a quotation consists of statements of the passages.
        """
        self._pieces, self._checker, self._answer_mode = pieces, checker, answer_mode
        self._refusal, self._nothing = refusal, nothing
        self._said = self._given = self._gap = self._yes_no = ""
        self._shown: list[str] = []
        self._courtesies: list[tuple[str, str]] = []
        self._checked: list[CheckedSentence] = []
        self._has_quotation = answer_mode == "quote"

    def __iter__(self) -> Iterator[str]:
        if self._answer_mode != "checked":
            for piece in self._pieces:
                self._said += piece
                self._given += piece
                yield piece
            return
        rest = ""
        for piece in self._pieces:
            self._said += piece
            ended, rest = complete(rest + piece)
            for gap, sentence in ended:
                yield from self._pass(gap, sentence)
        for gap, sentence in parted(rest):
            yield from self._pass(gap, sentence)
        yield from self._check("")
        if not self._shown:
            self._has_quotation = False
            self._courtesies.clear()
            self._gap = ""
            yield from self._show(self._nothing)

    def _pass(self, gap: str, sentence: str) -> Iterator[str]:
        if "\n" in gap or not self._gap:  # the line break before a skipped sentence remains
            self._gap = gap
        if self.is_refusal or self._refusal.startswith(self._said.strip()):
            if not self._shown:
                yield from self._show(self._nothing)
        elif ALONE.fullmatch(sentence) and not self._yes_no:
            self._yes_no = sentence + " "  # has a meaning only with the next sentence
        else:
            yield from self._check(sentence)

    def _check(self, sentence: str) -> Iterator[str]:
        sentence, self._yes_no = self._yes_no + sentence, ""
        for one in self._checker.check(sentence):
            self._checked.append(one)
            if not self._shown and not one.problem and not one.support:
                self._courtesies.append((self._gap, one.shown))  # shown only with an answer
                self._gap = ""
            elif one.shown and one.shown not in self._shown:
                self._has_quotation = self._has_quotation or one.problem is not None
                self._gap = self._gap or " "
                yield from self._show(one.shown)

    def _show(self, sentence: str) -> Iterator[str]:
        parts = [*self._courtesies, (self._gap, sentence)]
        self._courtesies, self._gap = [], ""
        for gap, text in parts:
            self._shown.append(text)
            given = (gap if self._given else gap.lstrip()) + text
            self._given += given
            yield given

    @property
    def is_refusal(self) -> bool:
        """Return whether the model refused, or none of its text could be shown."""
        says_so = self._said.strip().startswith(self._refusal[:ENOUGH_OF_REFUSAL])
        return says_so or self._shown == [self._nothing]

    @property
    def text(self) -> str:
        return self._given.strip()

    @property
    def is_changed(self) -> bool:
        return self.text != self._said.strip()

    @property
    def is_quotation(self) -> bool:
        return self._has_quotation and not self.is_refusal

    @property
    def score(self) -> float | None:
        """Return how well the passages support the model's text (`grounding.score`); None if nothing was checked."""
        if self._answer_mode == "quote" and not self.is_refusal:
            return 1.0
        return round(score(self._checked), 4) if self._checked else None


NEAREST = 3  # number of documents whose best passage is cited only for its rank
SHARED_WORDS = 0.6
"""Share of the answer's words that a further citation must contain, relative to the passage with most of them."""

WORD = re.compile(r"\w+")

Found = Sequence[tuple[StoredPassage, float]]


def cite(answer: str, found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Citations of an answer in the model's own words. found: passages with their search scores, best first."""
    if not found:
        return []
    words = long_words(answer)
    support = {p.id: len(words & long_words(p.text + " " + " ".join(p.heading_path))) for p, _ in found}
    most = max(support.values())
    holding = {id_ for id_, shared in support.items() if shared and shared >= SHARED_WORDS * most}
    best = {passage.id for passage, _ in nearest(found)}
    marks = _marks_by_words(answer, [passage for passage, _ in found if passage.id in holding])
    cited = [(passage, citation(passage, score)) for passage, score in found if passage.id in best | holding]
    return [
        (passage, replace(one, see_also=passage.id not in holding, marks=marks.get(passage.id, ())))
        for passage, one in cited
    ]


def cite_quotation(answer: str, said: Sequence[RankedStatement], found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Citations of statements in their order, then of the nearest pages, marked as such. said: the statements to show.

    (login.gov: the right page or the facts are shown for 95 % of the questions; 91 % with the three nearest pages of
    all instead of the three nearest other than those of the statements.)
    """
    by_id = {passage.id: (passage, score) for passage, score in found}
    by_text = {text: one for one in said if one.passage in by_id for text in (one.text, as_said(one.text))}
    shown = [(number, by_text[text]) for number, text in enumerate(answer.split(BETWEEN)) if text in by_text]
    ids = [one.passage for _, one in shown]
    documents = {by_id[id_][0].document for id_ in ids}
    near = [passage.id for passage, _ in nearest([one for one in found if one[0].document not in documents])]
    marks = {id_: tuple(Mark(at, one.start, one.end) for at, one in shown if one.passage == id_) for id_ in ids}
    quoted = [(by_id[id_][0], replace(citation(*by_id[id_]), marks=marks[id_])) for id_ in dict.fromkeys(ids)]
    return quoted + [(by_id[id_][0], citation(*by_id[id_], see_also=True)) for id_ in near]


def cite_faq(answer: str, found: Found) -> list[tuple[StoredPassage, Citation]]:
    return [(passage, replace(citation(passage, score), marks=_marks_of(answer, passage))) for passage, score in found]


def nearest(found: Found) -> list[tuple[StoredPassage, float]]:
    first = {passage.document: (passage, score) for passage, score in reversed(found)}
    documents = list(dict.fromkeys(passage.document for passage, _ in found))[:NEAREST]
    return [first[document] for document in documents]


def citation(passage: StoredPassage, score: float, *, see_also: bool = False) -> Citation:
    return Citation(
        document=passage.document,
        title=passage.title,
        passage=passage.label,
        quote=passage.text,
        score=round(score, 4),
        see_also=see_also,
        url=passage.url,
    )


def _marks_of(answer: str, passage: StoredPassage) -> tuple[Mark, ...]:
    places = [
        (number, start, len(said))
        for number, paragraph in enumerate(answer.split(BETWEEN))
        if (said := paragraph.strip()) and (start := passage.text.find(said)) >= 0
    ]
    return tuple(Mark(number, start, start + length) for number, start, length in places)


def _marks_by_words(answer: str, passages: Sequence[StoredPassage]) -> dict[int, tuple[Mark, ...]]:
    """For each paragraph in the model's own words, the sentence that shares most long words with it, by passage."""
    sentences = [(passage, sentence) for passage in passages for _, sentence in parted(passage.text)]
    marks: dict[int, tuple[Mark, ...]] = {}
    for number, paragraph in enumerate(answer.split(BETWEEN)):
        words = long_words(paragraph)
        shared, passage, sentence = max(
            ((len(words & long_words(sentence)), passage, sentence) for passage, sentence in sentences),
            key=lambda one: one[0],
            default=(0, None, ""),
        )
        if passage is not None and shared and (start := passage.text.find(sentence)) >= 0:
            marks[passage.id] = (*marks.get(passage.id, ()), Mark(number, start, start + len(sentence)))
    return marks


def long_words(text: str) -> frozenset[str]:
    return frozenset(w for w in WORD.findall(text.lower()) if len(w) > 3 or any(c.isdigit() for c in w))
