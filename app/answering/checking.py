"""The text of an answer that may be shown, and its citations.

`CheckedText` holds a sentence back until it is complete. A sentence that its statement does not support is replaced by
that statement. If no sentence is left, the chosen statements are quoted. Out of scope: what counts as support
(`app.grounding.grounding`).

Citations show the sources of an answer, not all results. They are the passages of its statements, in order, then the
best passage of each of the nearest other documents: if the statements are wrong, the right page is often among them. An
answer in unchecked words cites every passage that contains many of its words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from app.answering.choosing import BLOCKS
from app.domain.answers import BETWEEN, Citation, Mark
from app.domain.documents import StoredPassage
from app.domain.setting_types import AnswerMode
from app.grounding.grounding import ALONE, CITED, AnswerChecker, CheckedSentence, score
from app.knowledge.finder import RankedStatement
from retrieval.text.sentences import as_said, complete, sentences

_NEXT = re.compile(r"(?<=[.!?。！？])\s+(?=\[\d)")  # the space before the citation number of the next sentence
ENOUGH_OF_REFUSAL = 40
"""Number of characters that identify the refusal. A checked answer shows nothing after it."""


class CheckedText:
    """The text of an answer, checked while it is generated. Iterate for the text to show, then read the properties."""

    def __init__(
        self,
        pieces: Iterable[str],
        checker: AnswerChecker,
        *,
        refusal: str,
        nothing: str,
        answer_mode: AnswerMode,
        quotation: str = "",
    ) -> None:
        """checker: its first statements, at most BLOCKS, are quoted if no sentence can be shown. refusal: the model's
        text for "I do not know". nothing: the text shown instead. answer_mode: `free` changes nothing. quotation: the
        whole answer in the mode `quote`, shown before the model has read the prompt, because the model does not
        choose it.
        """
        self._pieces, self._checker, self._answer_mode = pieces, checker, answer_mode
        self._quotation = quotation
        self._refusal, self._nothing = refusal, nothing
        self._said = self._given = self._yes_no = ""
        self._checked: list[CheckedSentence] = []
        self.cited: list[int] = []
        """The index of the statement of each paragraph of a checked answer."""

    def __iter__(self) -> Iterator[str]:
        if self._quotation:
            self._given = self._quotation
            yield self._quotation
            self._said = "".join(self._pieces)
            return
        if self._answer_mode != "checked":
            for piece in self._pieces:
                self._said += piece
                self._given += piece
                yield piece
            return
        rest = ""
        for piece in self._pieces:
            self._said += piece
            ended, rest = complete(_NEXT.sub("\n", rest + piece))
            for sentence in ended:
                yield from self._pass(sentence)
        for sentence in sentences(rest):
            yield from self._pass(sentence)
        if self._refuses:
            yield from self._show(self._nothing)
        elif not self.cited:
            for number, source in enumerate(self._checker.sources[:BLOCKS]):
                yield from self._show(source.text, number)

    def _pass(self, sentence: str) -> Iterator[str]:
        if self._refuses or self._refusal.startswith(self._said.strip()):
            return
        if ALONE.fullmatch(CITED.sub("", sentence)) and not self._yes_no:
            self._yes_no = sentence + " "  # has a meaning only with the next sentence
            return
        one = self._checker.check(self._yes_no + sentence)
        self._yes_no = ""
        self._checked.append(one)
        if one.source is not None and one.shown not in self._given:
            yield from self._show(one.shown, one.source)

    def _show(self, text: str, source: int | None = None) -> Iterator[str]:
        if source is not None:
            self.cited.append(source)
        given = BETWEEN + text if self._given else text
        self._given += given
        yield given

    @property
    def _refuses(self) -> bool:
        said = self._quotation or self._said
        return not self.cited and said.strip().startswith(self._refusal[:ENOUGH_OF_REFUSAL])

    @property
    def is_refusal(self) -> bool:
        """Return whether the model refused, or there is nothing to show."""
        return self._refuses or (self._answer_mode == "checked" and not self.cited)

    @property
    def text(self) -> str:
        return self._given.strip()

    @property
    def is_whole(self) -> bool:
        """Return whether the whole answer was shown at once. How the model ends does not matter then."""
        return bool(self._quotation)

    @property
    def is_changed(self) -> bool:
        return self.text != self._said.strip()

    @property
    def is_quotation(self) -> bool:
        """Return whether the text contains statements of the documents, word for word."""
        said = {one.shown for one in self._checked if not one.problem}
        is_replaced = any(paragraph not in said for paragraph in self.text.split(BETWEEN))
        return not self.is_refusal and (
            self._answer_mode == "quote" or (self._answer_mode == "checked" and is_replaced)
        )

    @property
    def score(self) -> float | None:
        """Return how well the statements support the model's text (`grounding.score`); None if nothing was checked."""
        if self._answer_mode == "quote" and not self.is_refusal:
            return 1.0
        return round(score(self._checked), 4) if self._checked else None


NEAREST = 3  # number of documents whose best passage is cited only for its rank
SHARED_WORDS = 0.6
"""A further citation must share at least this fraction of the number of answer words that the best passage shares."""

WORD = re.compile(r"\w+")

Found = Sequence[tuple[StoredPassage, float]]


def cite(answer: str, found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Return the citations of a text in the model's own words. found: passages with their search scores, best first."""
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
    """Return citations of the statements `said`, then of the nearest other documents (`see_also`).

    (login.gov: the right page or the facts are shown for 95 % of the questions. If the nearest pages may include those
    of the statements, it is 91 %.)
    """
    by_text = {text: one for one in said for text in (one.text, as_said(one.text))}
    return cite_statements({n: by_text[text] for n, text in enumerate(answer.split(BETWEEN)) if text in by_text}, found)


def cite_statements(shown: Mapping[int, RankedStatement], found: Found) -> list[tuple[StoredPassage, Citation]]:
    """Return citations of an answer. shown: by paragraph number, the statement that the paragraph quotes or rewords."""
    by_id = {passage.id: (passage, score) for passage, score in found}
    told = [(number, one) for number, one in shown.items() if one.passage in by_id]
    ids = [one.passage for _, one in told]
    documents = {by_id[id_][0].document for id_ in ids}
    near = [passage.id for passage, _ in nearest([one for one in found if one[0].document not in documents])]
    marks = {id_: tuple(Mark(at, one.start, one.end) for at, one in told if one.passage == id_) for id_ in ids}
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
    return tuple(
        Mark(number, start, start + len(said))
        for number, said in enumerate(map(str.strip, answer.split(BETWEEN)))
        if said and (start := passage.text.find(said)) >= 0
    )


def _marks_by_words(answer: str, passages: Sequence[StoredPassage]) -> dict[int, tuple[Mark, ...]]:
    """Return marks by passage id: for each paragraph, the sentence that shares most long words with it."""
    said = [(passage, sentence) for passage in passages for sentence in sentences(passage.text)]
    marks: dict[int, tuple[Mark, ...]] = {}
    for number, paragraph in enumerate(answer.split(BETWEEN)):
        words = long_words(paragraph)
        shared, passage, sentence = max(
            ((len(words & long_words(sentence)), passage, sentence) for passage, sentence in said),
            key=lambda one: one[0],
            default=(0, None, ""),
        )
        if passage is not None and shared and (start := passage.text.find(sentence)) >= 0:
            marks[passage.id] = (*marks.get(passage.id, ()), Mark(number, start, start + len(sentence)))
    return marks


def long_words(text: str) -> frozenset[str]:
    return frozenset(w for w in WORD.findall(text.lower()) if len(w) > 3 or any(c.isdigit() for c in w))
