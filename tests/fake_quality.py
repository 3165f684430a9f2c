"""The `quality` of a desk without documents: two groups of bad answers, an FAQ in memory, one explanation."""

from dataclasses import asdict, replace
from datetime import timedelta

from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.domain.quality import (
    BadAnswer,
    FaqPair,
    FaqSaved,
    FoundRow,
    NearestPair,
    QualityReport,
    QuestionGroup,
    SearchExplanation,
    StatementRow,
    counts_of,
)


def bad_answer(question, *causes, when, reason="", id_="a" * 32):
    of = {"message_id": id_, "conversation_id": "c" * 32, "question": question, "causes": causes, "reason": reason}
    return BadAnswer(**of, answer="I can't find that in our help pages.", created=when)


class FakeQuality:
    """Questions with "crash" cannot be saved or explained."""

    def __init__(self, now, answer):
        self.now, self._answer = now, answer
        self.pairs = {}
        weather = (
            bad_answer("weather in Galway tomorrow", "nothing", when=now - timedelta(hours=26)),
            bad_answer("What will the weather be in Galway?", "nothing", "down", when=now, reason="not <b>helpful</b>"),
        )
        pan = (
            bad_answer("Is the pan covered, perhaps?", "unsure", "unsupported", "handed", when=now - timedelta(days=3)),
        )
        self.groups = (QuestionGroup(answers=weather), QuestionGroup(answers=pan))

    def report(self, days, cause=None):
        answers = tuple(one for group in self.groups for one in group.answers)
        shown = tuple(group for group in self.groups if cause is None or cause in group.counts())
        return QualityReport(groups=shown, counts=counts_of(answers), is_cut=False)

    def faq(self):
        return list(self.pairs.values())

    def save_faq(self, draft, author, id_=None, progress=no_progress):
        if "crash" in draft.question:
            raise DeskError("the disk is full", code="disk-full")
        for stage in ("reading", "embedding", "encoding", "asking"):
            progress(stage, 1, 1)
        number = id_ or max(self.pairs, default=0) + 1
        self.pairs[number] = FaqPair(
            **asdict(draft), id=number, author=author, updated=self.now, hits=12, last_hit=self.now - timedelta(hours=2)
        )
        return FaqSaved(id=number, answer=replace(self._answer, answer=draft.answer))

    def delete_faq(self, id_, progress=no_progress):
        self.pairs.pop(id_, None)

    def explain(self, question):
        if "crash" in question:
            raise DeskError("the question is too long", code="question-too-long")
        return SearchExplanation(
            question=question,
            outcome="unsure",
            why="between",
            says="I am not certain; this may help:",
            relevance=0.412,
            refuse_below=0.21,
            answer_above=0.63,
            faq=NearestPair(wording="Is the pan covered?", likeness=0.81, threshold=0.85),
            passages=(
                FoundRow(
                    title="Our returns policy",
                    passage="Our returns policy > How long do I have? (2)",
                    document="returns/returns-policy.md",
                    score=1.204,
                    cosine=0.704,
                    share=0.5,
                ),
            ),
            statements=(
                StatementRow(text="You have 30 days.", title="Our returns policy", logit=1.25, shown=True),
                StatementRow(text="Bring the receipt.", title="Our returns policy", logit=-0.75, shown=False),
            ),
        )
