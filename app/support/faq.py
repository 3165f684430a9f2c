"""Bad answers in groups, and the FAQ that agents write.

`Grouping` puts similar questions into groups: each joins the group whose first question is most similar, or starts one
(leader clustering, Hartigan 1975). A pair of the FAQ is stored and written into the FAQ's document, a JSON Lines file
in the collection "faq". The file is ingested like any other document, and the pair's question is asked again. If the
ingestion fails, the change is undone. A record exists until database and file agree (`app.storage.data_folder`).
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.domain.answers import Answer
from app.domain.callers import LONGEST_TEXT, check_length
from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.domain.quality import (
    BadAnswer,
    Cause,
    FaqDraft,
    FaqPair,
    FaqSaved,
    QualityReport,
    QuestionGroup,
    SearchExplanation,
    counts_of,
)
from app.domain.words import one_line
from app.knowledge.finder import EmbeddedQuestion, embedded, likeness
from app.knowledge.ingest import IngestReport
from app.storage.conversation_care import Transcripts
from app.storage.data_folder import BegunWork
from app.storage.faq import FaqStore, FaqVectors
from app.storage.files import remove_abandoned, replace_file
from retrieval.search.embedding import Embedder

ALIKE = 0.65
"""Minimum similarity of questions in one group. (Sample shop: "how long does a refund take" and "how long till refund
after you checked my return" have .82; "How do I open an account?" and "How do I close my account?" .65.)
"""
AT_ONCE = 64
"""Number of questions that are embedded in one batch. A customer's question waits for at most one batch."""


class Grouping:
    """Groups answers whose questions are similar. Safe to use from any thread."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: Mapping[str, EmbeddedQuestion] = {}
        self._lock = threading.Lock()

    def groups(self, answers: Sequence[BadAnswer]) -> tuple[QuestionGroup, ...]:
        """Return groups, the largest first, then the latest. answers: latest first."""
        questions = self._questions(list(dict.fromkeys(one.question for one in answers)))
        groups: list[tuple[EmbeddedQuestion, list[BadAnswer]]] = []
        for answer in answers:
            asked = questions[answer.question]
            scored = [(likeness(asked, leader), members) for leader, members in groups]
            score, nearest = max(scored, key=lambda one: one[0], default=(0.0, []))
            if score >= ALIKE:
                nearest.append(answer)
            else:
                groups.append((asked, [answer]))
        return tuple(
            QuestionGroup(answers=tuple(members)) for _, members in sorted(groups, key=lambda one: -len(one[1]))
        )

    def _questions(self, texts: list[str]) -> Mapping[str, EmbeddedQuestion]:
        with self._lock:
            known = {text: self._known[text] for text in texts if text in self._known}
            missing = [text for text in texts if text not in known]
            for first in range(0, len(missing), AT_ONCE):
                some = missing[first : first + AT_ONCE]
                known |= zip(some, embedded(self._embedder, some), strict=True)
            self._known = known
            return known


_NOTED = {"document": ""}
LONGEST_QUESTION, LONGEST_ANSWER, MOST_WORDINGS = 500, 10_000, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Functions that publish the FAQ. take_in: index and encode a document. forget: delete a document, if it exists.
    reload: answer from the current pairs. vectors_of: the vectors of a pair's questions. try_out: the current answer to
    a question, not stored. Each may raise DeskError.
    """

    take_in: Callable[[Path, Progress], IngestReport]
    forget: Callable[[], None]
    reload: Callable[[], None]
    vectors_of: Callable[[Sequence[str]], FaqVectors]
    try_out: Callable[[str], Answer]


class FaqEditor:
    """Changes the FAQ, one change at a time. Safe to use from any thread; methods may raise DeskError."""

    def __init__(self, store: FaqStore, file: Path, publisher: Publisher, begun: BegunWork) -> None:
        self._store, self._file, self._publisher, self._begun = store, file, publisher, begun
        self._changing = threading.Lock()

    def save(self, draft: FaqDraft, author: str, id_: int | None = None, progress: Progress = no_progress) -> FaqSaved:
        """Add a pair, or change the pair with the number `id_`. Return the answer that its question now gets, if any.
        Raises DeskError for a pair that cannot be stored.
        """
        draft = checked(draft)
        vectors = self._publisher.vectors_of(draft.questions)
        with self._changing:
            before = None if id_ is None else self._store.find(id_)
            self._refuse_known(draft, id_)
            self._begun.note("faq", _NOTED)
            saved = self._store.save(draft, vectors, author, id_)
            try:
                self._publish(progress)
            except BaseException:
                if before is None:
                    self._store.delete(saved)
                else:
                    self._store.save(before, self._publisher.vectors_of(before.questions), before.author, saved)
                raise
        progress("asking", 0, 1)
        try:
            return FaqSaved(id=saved, answer=self._publisher.try_out(draft.question))
        except DeskError as error:  # the model may be away; the pair is stored
            return FaqSaved(id=saved, answer=None, problem=str(error))

    def delete(self, id_: int, progress: Progress = no_progress) -> None:
        """Delete a pair, and its text from the document; an unknown number is not an error."""
        with self._changing:
            self._begun.note("faq", _NOTED)
            self._store.delete(id_)
            self._publish(progress)

    def finish(self) -> None:
        """Publish the stored pairs if an earlier change was interrupted. Raises DeskError."""
        with self._changing:
            if self._begun.left("faq"):
                remove_abandoned(self._file.parent)
                self._publish(no_progress)

    def _publish(self, progress: Progress) -> None:
        pairs = self._store.pairs()
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_document(self._file, pairs)
        if pairs:
            report = self._publisher.take_in(self._file, progress)
            if report.failed:
                raise DeskError(f"the FAQ cannot be ingested: {report.failed[0].reason}", code="unreadable")
        else:
            self._publisher.forget()
        self._publisher.reload()
        self._begun.done("faq", _NOTED)

    def _refuse_known(self, draft: FaqDraft, id_: int | None) -> None:
        asked = {folded_line(text) for text in draft.questions}
        for pair in self._store.pairs():
            if pair.id != id_ and (known := asked & {folded_line(text) for text in pair.questions}):
                raise DeskError(f"an FAQ already has the question {sorted(known)[0]!r}: edit it", code="faq-known")


def checked(draft: FaqDraft) -> FaqDraft:
    """Return the draft with trimmed texts, without empty or repeated wordings. Raises DeskError."""
    for text in (draft.question, draft.answer, *draft.wordings):
        check_length(text, LONGEST_TEXT, "text")
    question, answer = one_line(draft.question), draft.answer.strip()
    wordings = list(dict.fromkeys(text for text in map(one_line, draft.wordings) if text and text != question))
    if not question:
        raise DeskError("the question is empty: write one", code="question-empty")
    if not answer:
        raise DeskError("the answer is empty: write one", code="answer-empty")
    if len(answer) > LONGEST_ANSWER or max(map(len, [question, *wordings])) > LONGEST_QUESTION:
        raise DeskError(
            f"a question has at most {LONGEST_QUESTION} characters, an answer {LONGEST_ANSWER:,}: shorten it",
            code="faq-too-long",
        )
    if len(wordings) > MOST_WORDINGS:
        raise DeskError(f"a question has at most {MOST_WORDINGS} other wordings: remove some", code="faq-too-long")
    return replace(draft, question=question, answer=answer, wordings=tuple(wordings))


def write_document(file: Path, pairs: Sequence[FaqPair]) -> None:
    if pairs:
        replace_file(file, document_of(pairs))
    else:
        file.unlink(missing_ok=True)


def document_of(pairs: Sequence[FaqPair]) -> bytes:
    lines = (json.dumps({"question": pair.question, "answer": pair.answer}, ensure_ascii=False) for pair in pairs)
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def folded_line(text: str) -> str:
    """Return a question for comparisons: without case and final punctuation."""
    return one_line(text).casefold().rstrip("?？!！.。 ")


MOST = 500  # maximum bad answers that are examined


class Quality:
    """Bad answers and the FAQ, for agents. Safe to use from any thread; methods may raise DeskError."""

    def __init__(
        self,
        transcripts: Transcripts,
        store: FaqStore,
        editor: FaqEditor,
        grouping: Grouping,
        explain: Callable[[str], SearchExplanation],
    ) -> None:
        self._transcripts, self._store, self._grouping = transcripts, store, grouping
        self.explain, self.save_faq, self.delete_faq = explain, editor.save, editor.delete

    def report(self, days: int, cause: Cause | None = None) -> QualityReport:
        since = datetime.now(UTC) - timedelta(days=days)
        found = self._transcripts.bad_answers(since, MOST + 1)
        shown = tuple(one for one in found[:MOST] if cause is None or cause in one.causes)
        return QualityReport(
            groups=self._grouping.groups(shown), counts=counts_of(tuple(found[:MOST])), is_cut=len(found) > MOST
        )

    def faq(self) -> list[FaqPair]:
        return sorted(self._store.pairs(), key=lambda pair: pair.updated, reverse=True)
