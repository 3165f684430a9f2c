"""What agents do for the quality of answers, as one object (`app.desk.interface.QualityDesk`)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from app.domain.progress import Progress, no_progress
from app.domain.quality import (
    Cause,
    FaqDraft,
    FaqPair,
    FaqSaved,
    QualityReport,
    SearchExplanation,
    counts_of,
)
from app.storage.faq import FaqStore
from app.storage.transcripts import Transcripts
from app.support.faq import FaqEditor
from app.support.groups import Grouping

MOST = 500
"""The latest bad answers that are looked at."""


class Quality:
    """Safe to use from any thread; methods may raise DeskError."""

    def __init__(
        self,
        transcripts: Transcripts,
        store: FaqStore,
        editor: FaqEditor,
        grouping: Grouping,
        explain: Callable[[str], SearchExplanation],
    ) -> None:
        self._transcripts, self._store, self._editor, self._grouping = transcripts, store, editor, grouping
        self.explain = explain

    def report(self, days: int, cause: Cause | None = None) -> QualityReport:
        """The bad answers of the last days, grouped; of one cause, or of all."""
        since = datetime.now(UTC) - timedelta(days=days)
        found = self._transcripts.bad_answers(since, MOST + 1)
        shown = tuple(one for one in found[:MOST] if cause is None or cause in one.causes)
        return QualityReport(
            groups=self._grouping.groups(shown), counts=counts_of(tuple(found[:MOST])), is_cut=len(found) > MOST
        )

    def faq(self) -> list[FaqPair]:
        """Every pair of the FAQ, the latest first."""
        return sorted(self._store.pairs(), key=lambda pair: pair.updated, reverse=True)

    def save_faq(
        self, draft: FaqDraft, author: str, id_: int | None = None, progress: Progress = no_progress
    ) -> FaqSaved:
        """Store a pair, index and encode it, and ask its question again."""
        return self._editor.save(draft, author, id_, progress)

    def delete_faq(self, id_: int, progress: Progress = no_progress) -> None:
        """Delete a pair; an unknown number is no error."""
        self._editor.delete(id_, progress)
