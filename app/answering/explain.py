"""Why a question ends as it does: what search finds with all scores, and which rule decided. For those who look after
the desk; nothing is stored.
"""

from app.answering.curated import CuratedAnswers
from app.answering.decide import Decider, Decision, is_topic
from app.answering.prepare import QuestionPreparer
from app.domain.quality import FoundRow, SearchExplanation, StatementRow, Why
from app.knowledge.finder import CANDIDATES, Finder

STATEMENTS = 8
"""Statements that are listed."""


class Explainer:
    """Explains search and decision. Safe to use from any thread."""

    def __init__(self, questions: QuestionPreparer, finder: Finder, curated: CuratedAnswers) -> None:
        self._questions, self._finder, self._curated = questions, finder, curated

    def explain(self, question: str) -> SearchExplanation:
        """What a first question finds and how it would end. Raises DeskError for one that cannot be asked."""
        question, decider = self._questions.valid(question), self._questions.decider
        decision = decider.decide(question, [])
        judged = self._finder.judge(question, earlier=None, count=CANDIDATES)
        ranked = judged.statements.ranked
        relevance = self._finder.classifier.is_answered(judged.statements.features) if ranked else 0.0
        said = "\n\n".join(one.text for one in decision.statements)
        titles = {id_: passage.title or passage.document for id_, passage in judged.passages.items()}
        return SearchExplanation(
            question=question,
            outcome=decision.outcome,
            why=why(question, decision, decider, relevance, is_empty=not judged.hits),
            says=decision.says,
            relevance=relevance,
            refuse_below=decider.refuse_below,
            answer_above=decider.answer_above,
            faq=self._curated.nearest(question),
            passages=tuple(
                FoundRow(
                    title=titles[hit.id],
                    passage=judged.passages[hit.id].label,
                    document=judged.passages[hit.id].document,
                    score=hit.score,
                    cosine=hit.cosine,
                    share=hit.share,
                )
                for hit in judged.hits
            ),
            statements=tuple(
                StatementRow(
                    text=one.statement.text,
                    title=titles[judged.hits[one.passage].id],
                    logit=logit,
                    shown=decision.asks_model and one.statement.text in said,
                )
                for logit, one in ranked[:STATEMENTS]
            ),
        )


def why(question: str, decision: Decision, decider: Decider, relevance: float, *, is_empty: bool) -> Why:
    """The rule by which a question was decided."""
    if decision.faq is not None:
        return "faq"
    if decision.outcome == "smalltalk":
        return "smalltalk"
    if is_empty:
        return "empty"
    if relevance < decider.refuse_below:
        return "low"
    if decision.outcome == "answered":
        return "sure"
    return "between" if decision.asks_model or not is_topic(question) else "topic"
