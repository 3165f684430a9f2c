"""Answers composed by search alone: what the desk decides and composes, without a language model.

What the language model adds to the desk is the difference between this and the answers as shipped.
"""

import time
from collections.abc import Sequence
from functools import cached_property

from app.answering.checking import cite_quotation
from app.answering.prepare import Decider
from app.desk.service import Service
from app.domain.answers import BETWEEN
from app.storage.history import PastMessage
from evals.shown_answers import ShownAnswer


class SearchAlone:
    """Answers questions from the documents of a desk; nothing is recorded and no language model is loaded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def _decider(self) -> Decider:
        return Decider(self._service.settings, self._service.finder)

    def ask(self, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
        """The statements that would be shown, or what the desk says in its own words."""
        started = time.perf_counter()
        past = [
            message
            for asked, said in history
            for message in (PastMessage(role="user", text=asked), PastMessage(role="assistant", text=said))
        ]
        decision = self._decider.decide(question, past)
        statements = [one.text for one in decision.statements] if decision.asks_model else []
        spent = (time.perf_counter() - started) * 1e3
        text = BETWEEN.join([*([decision.says] if decision.says else []), *statements])
        results = decision.results
        found = [(one.passage, one.cosine) for one in results.found]
        cited = cite_quotation(BETWEEN.join(statements), decision.statements, found) if statements else []
        named = [] if decision.outcome == "nothing" else [one.passage for one in results.passages]
        shown = [passage for passage, _ in cited] or named
        return ShownAnswer(
            outcome=decision.outcome,
            text=text,
            statements=tuple(statements),
            documents=tuple(dict.fromkeys(passage.document for passage in shown)),
            quoted=tuple(dict.fromkeys(passage.document for passage, one in cited if not one.see_also)),
            first_ms=spent,
            find_ms=spent,
        )
