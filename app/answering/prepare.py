"""From a question to its decision and prompt plan. Nothing is computed by the model, and nothing is recorded."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.answering.curated import CuratedAnswers
from app.answering.decide import Decider, Decision
from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from app.domain.lengths import check_length
from app.domain.notices import OLDER_TURNS_LEFT_OUT
from app.domain.settings import Settings
from app.knowledge.finder import Finder, FoundPassage, SearchResults
from app.knowledge.prompts import PassageText, PromptBuilder, PromptTurn
from app.privacy.redaction import redact
from app.storage.history import PastMessage
from app.storage.library import Library
from cache.errors import PromptError
from cache.prompt.plan import Plan
from cache.serving.interface import EngineInterface
from retrieval.documents.document import with_headings


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedQuestion:
    """A question with what was decided about it. in_prompt: every passage of the prompt by its module's name. plan:
    None if the model is not asked. model: fingerprint of the model that the plan is for.
    """

    question: str
    decision: Decision
    retrieve_ms: float
    in_prompt: dict[str, StoredPassage]
    plan: Plan | None
    model: str
    notice: str | None = None

    @property
    def results(self) -> SearchResults:
        """What the documents say about it."""
        return self.decision.results

    @property
    def passages(self) -> list[str]:
        """The texts of all passages in the prompt, each below its heading path: what an answer may say."""
        return [with_headings(passage.heading_path, passage.text) for passage in self.in_prompt.values()]


def valid_question(question: str, settings: Settings) -> str:
    """The question as it is stored, searched and shown: without space around it, with an escape in place of half of a
    surrogate pair, and, if the settings say so, without addresses and numbers of people. Raises DeskError for one that
    cannot be asked.
    """
    check_length(question, settings.max_question_chars)
    question = question.strip().encode("utf-8", "backslashreplace").decode("utf-8")
    if not question:
        raise DeskError("the question is empty: write one", code="question-empty")
    check_length(question, settings.max_question_chars)  # an escape is longer than what it stands for
    return redact(question) if settings.redact else question


class QuestionPreparer:
    """Searches for questions and plans their prompts."""

    def __init__(
        self,
        settings: Settings,
        library: Library,
        finder: Finder,
        engine: EngineInterface,
        prompts: PromptBuilder,
        curated: CuratedAnswers | None = None,
    ) -> None:
        self._settings, self._library, self.decider = settings, library, Decider(settings, finder, curated)
        self._engine, self._prompts = engine, prompts

    def valid(self, question: str) -> str:
        """See `valid_question`."""
        return valid_question(question, self._settings)

    def prepare(self, question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> PreparedQuestion:
        """Decide and, if the model is to be asked, plan. Raises DeskError if the prompt does not fit the model."""
        started = time.perf_counter()
        decision = self.decider.decide(question, past, collections)
        retrieve_ms = (time.perf_counter() - started) * 1e3
        in_prompt: dict[str, StoredPassage] = {}
        plan, notice = None, None
        if decision.asks_model:
            turns, in_prompt = self._turns(past, decision.results.passages, question)
            plan, dropped = self._fit(turns)
            notice = OLDER_TURNS_LEFT_OUT if dropped else None
        return PreparedQuestion(
            question=question,
            decision=decision,
            retrieve_ms=retrieve_ms,
            in_prompt=in_prompt,
            plan=plan,
            model=self._engine.info.fingerprint,
            notice=notice,
        )

    def foresee(self, question: str, past: Sequence[PastMessage]) -> Plan | None:
        """A prompt with the passages for a question that is not finished, whatever would be decided about it now; None
        if it needs none. The text of the question is not in it. Raises as `prepare`.
        """
        decision = self.decider.decide(question, past)
        if decision.outcome == "smalltalk" or decision.faq is not None:
            return None
        turns, _ = self._turns(past, decision.results.passages, question="")
        return self._fit(turns)[0]

    def answered_from(self, question: str) -> str | None:
        """The document from which a first question is surely answered; None if the desk is not sure of it."""
        decision = self.decider.decide(question, [])
        if decision.outcome != "answered" or not decision.statements:
            return None
        documents = {one.passage.id: one.passage.document for one in decision.results.passages}
        return documents.get(decision.statements[0].passage)

    def _turns(
        self, past: Sequence[PastMessage], found: Sequence[FoundPassage], question: str
    ) -> tuple[list[PromptTurn], dict[str, StoredPassage]]:
        """The conversation as prompt turns, and every passage in it by its module's name. past: each answer stands
        behind its question (`History.past`); questions without one are left out.
        """
        pairs = [(asked, said) for asked, said in pairwise(past) if (asked.role, said.role) == ("user", "assistant")]
        answered = [(asked, said) for asked, said in pairs if said.text]  # something from the documents was said
        ids = {id_ for _, said in answered for id_ in said.passage_ids if id_ is not None}
        stored = {passage.id: passage for passage in self._library.passages(sorted(ids))}
        turns = [
            PromptTurn(
                passages=tuple(PassageText.of(stored[id_]) for id_ in said.passage_ids if id_ in stored),
                question=asked.text,
                answer=said.text,
                answer_tokens=said.tokens if said.model == self._engine.info.fingerprint else None,
            )
            for asked, said in answered
        ]
        new = [one.passage for one in reversed(found)]  # the most relevant stands last, next to the question
        turns.append(PromptTurn(passages=tuple(PassageText.of(p) for p in new), question=question))
        return turns, {PassageText.of(p).name: p for p in (*stored.values(), *new)}

    def _fit(self, turns: list[PromptTurn]) -> tuple[Plan, int]:
        """The plan of as many of the latest turns as fit with an answer; and how many were left out."""
        positions = self._engine.info.max_positions
        for dropped in range(len(turns)):
            try:
                plan = self._engine.arrange(self._prompts.prompt(turns[dropped:]))
            except PromptError:
                continue
            if plan.next_position <= positions - self._settings.answer_tokens:
                return plan, dropped
        raise DeskError(
            f"the question and its passages do not fit the model's {positions} positions: "
            "shorten the question, or lower the settings passages or passage_tokens",
            code="context-full",
        )
