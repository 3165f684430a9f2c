"""Answers composed by search alone: the likeliest statements, by the desk's own judgement, without a language model.

What the language model adds to the desk is the difference between this and the answers as shipped. The rules are those
of the desk's quotations (`app.answering.quote`): as many statements, within the same margin of the best one.
"""

import time
from collections.abc import Sequence
from functools import cached_property

from app.answering.cite import cite
from app.answering.quote import BETWEEN, MARGIN, STATEMENTS
from app.desk.search_calibration import find_classifier
from app.desk.service import Service
from app.knowledge.finder import Finder
from evals.shown_answers import ShownAnswer
from retrieval.search.reranker import CrossEncoderReranker
from retrieval.text.sentences import as_said


class SearchAlone:
    """Answers questions from the documents of a desk; nothing is recorded and no language model is loaded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def _finder(self) -> Finder:
        settings, search = self._service.settings, self._service.search
        reranker = None if settings.reranker is None else CrossEncoderReranker(settings.reranker)
        return Finder(self._service.library, search, find_classifier(settings, search.embedder.name), reranker)

    def ask(self, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
        """The statements found, or the desk's refusal."""
        started = time.perf_counter()
        settings = self._service.settings
        earlier = history[-1][0] if history else None
        results = self._finder.find(question, earlier=earlier, count=settings.passages)
        threshold = self._finder.classifier.threshold if settings.refuse_below is None else settings.refuse_below
        spent = (time.perf_counter() - started) * 1e3
        if not results.statements or results.relevance < threshold:
            return ShownAnswer(
                outcome="nothing",
                text=settings.refusal_text,
                statements=(),
                documents=(),
                first_ms=spent,
                find_ms=spent,
            )
        enough = results.statements[0].logit - MARGIN
        statements = [as_said(one.text) for one in results.statements[:STATEMENTS] if one.logit >= enough]
        text = BETWEEN.join(statements)
        cited = cite(text, [(one.passage, one.cosine) for one in results.passages])
        return ShownAnswer(
            outcome="answered",
            text=text,
            statements=tuple(statements),
            documents=tuple(citation.document for _, citation in cited),
            first_ms=spent,
            find_ms=spent,
        )
