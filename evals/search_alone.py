"""Answers composed by search alone: the likeliest statements, by the desk's own judgement, without a language model.

What the language model adds to the desk is the difference between this and the answers as shipped. The outcome is
decided as the desk decides it, and the rules for statements are those of its quotations (`app.answering.quote`).
"""

import time
from collections.abc import Sequence
from functools import cached_property

from app.answering.answering import UNSURE_STATEMENTS
from app.answering.cite import cite
from app.answering.decide import Decider
from app.answering.quote import MARGIN, STATEMENTS
from app.desk.search_calibration import find_classifier
from app.desk.service import Service
from app.domain.answers import BETWEEN
from app.knowledge.finder import Finder
from app.storage.history import PastMessage
from evals.shown_answers import ShownAnswer
from retrieval.search.reranker import CrossEncoderReranker
from retrieval.text.sentences import as_said


class SearchAlone:
    """Answers questions from the documents of a desk; nothing is recorded and no language model is loaded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def _decider(self) -> Decider:
        settings, search = self._service.settings, self._service.search
        reranker = None if settings.reranker is None else CrossEncoderReranker(settings.reranker)
        classifier = find_classifier(settings, search.embedder.name)
        return Decider(settings, Finder(self._service.library, search, classifier, reranker))

    def ask(self, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
        """The statements found, or the desk's own words where it has nothing to quote."""
        started = time.perf_counter()
        past = [
            message
            for asked, said in history
            for message in (
                PastMessage(role="user", text=asked),
                PastMessage(role="assistant", text=said, outcome="answered"),
            )
        ]
        decision = self._decider.decide(question, past)
        found = decision.results
        statements: list[str] = []
        if decision.asks_model and found.statements:
            enough = found.statements[0].logit - MARGIN
            most = UNSURE_STATEMENTS if decision.outcome == "unsure" else STATEMENTS
            statements = [as_said(one.text) for one in found.statements[:most] if one.logit >= enough]
        quoted = BETWEEN.join(statements)
        cited = [] if decision.outcome == "nothing" else cite(quoted, [(p.passage, p.cosine) for p in found.passages])
        spent = (time.perf_counter() - started) * 1e3
        return ShownAnswer(
            outcome=decision.outcome,
            text=BETWEEN.join(filter(None, (decision.says, quoted))),
            statements=tuple(statements),
            documents=tuple(dict.fromkeys(citation.document for _, citation in cited)),
            first_ms=spent,
            find_ms=spent,
        )
