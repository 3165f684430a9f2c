"""From a question to its decision and prompt plan. The model computes nothing here, and nothing is recorded.

The past is the stored conversation, or all messages if the client sends them, as OpenAI's clients do. The next prompt
contains only those parts of earlier answers that are from documents. Warmdesk's own texts (not sure, nothing found, a
question to the customer, small talk) are recognised and skipped.

The decision has four outcomes: answered, unsure, nothing, small talk. Search estimates how likely the documents answer,
and two thresholds divide this into three outcomes. Small talk needs no search. If a message is too vague to search, the
customer is asked one question. Out of scope: the texts (`app.replies`), and a refusal by the model (`checking`).
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise

from app.answering.choosing import chosen, to_cite
from app.answering.curated import CuratedAnswer, CuratedAnswers
from app.answering.overview import with_overview
from app.answering.things import MOST, fitting_things, names_of
from app.domain.answers import BETWEEN, Outcome, Said, from_documents
from app.domain.callers import LONGEST_PAST, OLDER_TURNS_LEFT_OUT, check_length
from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from app.domain.quality import Why
from app.domain.settings import Settings
from app.knowledge.finder import (
    ENOUGH_TERMS,
    NOTHING,
    Finder,
    FoundPassage,
    RankedStatement,
    SearchResults,
    may_stand_alone,
)
from app.knowledge.prompts import PromptBuilder, PromptTurn
from app.knowledge.warm import InFlight
from app.privacy import redact
from app.replies import replies
from app.storage.history import PastMessage
from app.storage.library import Library
from cache.errors import PromptError
from cache.prompt.plan import Plan
from cache.serving.interface import EngineInterface
from retrieval.text.sentences import as_said
from retrieval.text.terms import COMMON, asked_words, language_of, stem


def with_agents(stored: Sequence[PastMessage]) -> list[PastMessage]:
    """Return messages as turns of a customer and the assistant, oldest first. An agent's text counts as an answer in
    plain text. It answers everything asked since the last answer, and replaces an answer that found nothing.
    """
    past: list[PastMessage] = []
    for message, before in zip(stored, [None, *stored], strict=False):
        if message.role != "agent":
            past.append(message)
        elif before is not None and before.role == "agent":
            past[-1] = replace(past[-1], text=f"{past[-1].text}\n\n{message.text}")
        else:
            if past and past[-1].role == "assistant" and not past[-1].text:
                past.pop()
            asked: list[str] = []
            while past and past[-1].role == "user":
                asked.insert(0, past.pop().text)
            if asked:
                past.append(PastMessage(role="user", text="\n".join(asked)))
            past.append(PastMessage(role="assistant", text=message.text))
    return past


def past_of(messages: Sequence[Said], settings: Settings) -> list[PastMessage]:
    """Return past messages without system messages and refused questions. Adjacent ones of a role are joined."""
    spoken = [one for one in latest(messages) if one.role != "system"]
    past: list[PastMessage] = []
    question = ""
    for role, same in groupby(spoken, lambda one: one.role):
        text = "\n\n".join(one.text.strip() for one in same)
        if role == "user":
            if len(text) > settings.max_question_chars:  # it was refused when it was asked
                question = ""
                continue
            question = redact(text) if settings.redact else text
            past.append(PastMessage(role=role, text=question))
        else:
            outcome = outcome_of(question, text, settings)
            past.append(PastMessage(role=role, text=from_documents(text, outcome), outcome=outcome))
    return past


def latest(messages: Sequence[Said]) -> Sequence[Said]:
    room = LONGEST_PAST
    for place in range(len(messages) - 1, -1, -1):
        room -= len(messages[place].text)
        if room < 0:
            return messages[place + 1 :]
    return messages


def outcome_of(question: str, said: str, settings: Settings) -> Outcome:
    small_talk = replies.heard(question, language_of(question))
    if small_talk is not None and small_talk.kind != "vague":
        return "smalltalk"
    if any(said.startswith(words) for words in (settings.refusal_text, *own_words("nothing"))):
        return "nothing"
    if any(said.startswith(words) for name in ("unsure", "unknown", "vague", "which") for words in own_words(name)):
        return "unsure"
    return "answered"


def own_words(name: str) -> Iterator[str]:
    for texts in replies.all_texts().values():
        yield texts.says[name].partition("{")[0].partition(BETWEEN)[0]


TOPICS = 3
_TOPIC = 2  # maximum words of a message that names a topic: "Can I cancel?" asks something


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of a question. why: the rule that decided. says: Warmdesk's own words: the line before the model's
    answer if `asks_model`, else the whole answer. nothing: the text if the model finds no answer. faq: id of the pair.
    """

    outcome: Outcome
    why: Why
    results: SearchResults
    says: str = ""
    asks_model: bool = False
    nothing: str = ""
    faq: int | None = None

    @property
    def statements(self) -> list[RankedStatement]:
        return chosen(self.results.statements, self._texts)

    @property
    def _texts(self) -> dict[int, str]:
        return {one.passage.id: one.passage.text for one in self.results.passages}

    def sources(self, passages: Collection[int]) -> list[RankedStatement]:
        """Return the statements that an answer from these passages may cite, the selected statements first."""
        texts = {id_: text for id_, text in self._texts.items() if id_ in passages}
        return to_cite(self.results.statements, texts)


class Decider:
    """Decides with thresholds from the settings, or by default with those fitted for the embedder."""

    def __init__(self, settings: Settings, finder: Finder, curated: CuratedAnswers | None = None) -> None:
        """curated: the FAQ; None in measurements without it."""
        self._settings, self._finder, self._curated = settings, finder, curated

    def decide(self, question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> Decision:
        """Search if needed, and return the decision. A follow-up is also searched with the previous question."""
        with self._finder.one_question():
            return self._decided(question, past, collections)

    def _decided(self, question: str, past: Sequence[PastMessage], collections: Sequence[str]) -> Decision:
        earlier = earlier_question(past)
        language = language_of(question, "en" if earlier is None else language_of(earlier))
        stands_alone = earlier is None or may_stand_alone(question)
        if self._curated is not None and stands_alone and (found := self._curated.answer(question, collections)):
            return _from_faq(found)
        find = partial(self._finder.find, count=self._settings.passages, collections=collections)
        said = replies.heard(question, language)
        if said is not None and said.kind != "vague":
            says = replies.texts_in(said.language).says
            if said.kind != "human":
                return _smalltalk(says[said.kind])
            if replies.contact_links(self._settings):
                return _smalltalk(replies.human_text(self._settings, said.language))
            return self._contact_page(find(says["contact_question"]), said.language)
        results = find(question, earlier=earlier)
        if said is not None and earlier is None and results.passages:
            return _question_back(results, said.language, "topic")
        nothing = replies.nothing_text(self._settings, language)
        if not results.passages or results.relevance < self.refuse_below:
            why: Why = "low" if results.passages else "empty"
            return Decision(outcome="nothing", why=why, results=results, says=nothing)
        unknown = results.unknown if language != "de" else ()  # German writes every noun with a capital letter
        things = fitting_things(results, question, earlier)
        if len(things) > 1 and not unknown:
            return _which(results, things, language)
        results = with_overview(question, results)
        if results.relevance >= self.answer_above and not unknown:
            return Decision(outcome="answered", why="sure", results=results, asks_model=True, nothing=nothing)
        if not results.statements or (earlier is None and is_topic(question)):
            return _question_back(results, language, "topic" if is_topic(question) else "between")
        lead = replies.unsure_text(unknown, language)
        return Decision(outcome="unsure", why="between", results=results, says=lead, asks_model=True, nothing=nothing)

    @property
    def refuse_below(self) -> float:
        own = self._settings.refuse_below
        return self._finder.classifier.threshold if own is None else own

    @property
    def answer_above(self) -> float:
        own = self._settings.answer_above
        return self._finder.classifier.certain if own is None else own

    def _contact_page(self, results: SearchResults, language: str) -> Decision:
        if not results.statements or results.relevance < self.answer_above:
            return _smalltalk(replies.human_text(self._settings, language))
        best = results.statements[0]
        holding = tuple(one for one in results.found if one.passage.id == best.passage)
        says = replies.human_text(self._settings, language, as_said(best.text))
        return _smalltalk(says, replace(results, passages=holding))


def earlier_question(past: Sequence[PastMessage]) -> str | None:
    """Return the last question that was not small talk."""
    small_talk = False
    for message in reversed(past):
        if message.role == "assistant":
            small_talk = message.outcome == "smalltalk"
        elif not small_talk:
            return message.text
    return None


def completed(question: str, past: Sequence[PastMessage]) -> tuple[str, Sequence[PastMessage]]:
    """Return the question and the past. A reply to Warmdesk's own question is joined with the question before that."""
    asked_back = len(past) > 1 and past[-2].role == "user" and past[-1].outcome == "unsure" and not past[-1].text
    if not asked_back or may_stand_alone(question, ENOUGH_TERMS) or replies.heard(question, language_of(question)):
        return question, past
    return f"{past[-2].text} {question}", past[:-2]


def is_topic(question: str) -> bool:
    """Return whether a question only names a thing ("the delivery"). A code or a model name is a full question."""
    asked = asked_words(question)
    terms = {stem(word) for word in asked} - COMMON
    return len(asked) <= _TOPIC and len(terms) == 1 and not any(map(str.isdigit, question))


def _smalltalk(says: str, results: SearchResults = NOTHING) -> Decision:
    return Decision(outcome="smalltalk", why="smalltalk", results=results, says=says)


def _from_faq(curated: CuratedAnswer) -> Decision:
    found = tuple(FoundPassage(passage=one, cosine=curated.nearest.likeness) for one in curated.passages)
    results = replace(NOTHING, passages=found, found=found, relevance=1.0)
    return Decision(outcome="answered", why="faq", results=results, says=curated.pair.answer, faq=curated.pair.id)


def _question_back(results: SearchResults, language: str, why: Why) -> Decision:
    topics = topics_of(results.passages)
    shown = replace(results, passages=tuple(topics.values()))
    return Decision(outcome="unsure", why=why, results=shown, says=replies.vague_text(list(topics), language))


def _which(results: SearchResults, things: Sequence[StoredPassage], language: str) -> Decision:
    cosine = {one.passage.id: one for one in results.found}
    shown = replace(results, passages=tuple(cosine[one.id] for one in things[:MOST]))
    return Decision(outcome="unsure", why="which", results=shown, says=replies.which_text(names_of(things), language))


def topics_of(found: Sequence[FoundPassage]) -> dict[str, FoundPassage]:
    by_title = {one.passage.title or one.passage.document: one for one in reversed(found)}
    if len(by_title) == 1:
        by_title = {(one.passage.heading_path or (one.passage.title,))[-1]: one for one in reversed(found)}
    return dict(list(reversed(by_title.items()))[:TOPICS])


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedQuestion:
    """A question with its decision. in_prompt: passages by module name. sources: the numbered statements of the prompt,
    which an answer in the model's own words cites. plan: None if the model is not asked.
    """

    question: str
    decision: Decision
    retrieve_ms: float
    in_prompt: dict[str, StoredPassage]
    sources: Sequence[RankedStatement]
    plan: Plan | None
    model: str
    notice: str | None = None


def valid_question(question: str, settings: Settings) -> str:
    """Return the question as it is stored, searched and shown. Raises DeskError for an invalid one."""
    question = checked_question(question, settings)
    return redact(question) if settings.redact else question


def checked_question(question: str, settings: Settings) -> str:
    """Return the unredacted question, for a look-up. Raises DeskError for an invalid one."""
    check_length(question, settings.max_question_chars)
    question = question.strip().encode("utf-8", "backslashreplace").decode("utf-8")
    if not question:
        raise DeskError("the question is empty: write one", code="question-empty")
    check_length(question, settings.max_question_chars)  # an escape is longer than the character
    return question


class QuestionPreparer:
    """Searches for questions and plans their prompts."""

    def __init__(
        self,
        settings: Settings,
        library: Library,
        finder: Finder,
        engine: EngineInterface,
        prompts: PromptBuilder,
        in_flight: InFlight,
        curated: CuratedAnswers | None = None,
        *,
        numbers: bool = False,
    ) -> None:
        """numbers: whether a confident answer cites the numbers of statements in the prompt."""
        self._numbers = numbers
        self._settings, self._library, self.decider = settings, library, Decider(settings, finder, curated)
        self._engine, self._prompts, self._in_flight = engine, prompts, in_flight

    def valid(self, question: str) -> str:
        return valid_question(question, self._settings)

    def prepare(self, question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> PreparedQuestion:
        """Decide, and plan a prompt if the model is needed. Raises DeskError if the prompt does not fit the model."""
        started = time.perf_counter()
        question, past = completed(question, past)
        decision = self.decider.decide(question, past, collections)
        retrieve_ms = (time.perf_counter() - started) * 1e3
        in_prompt: dict[str, StoredPassage] = {}
        sources: Sequence[RankedStatement] = ()
        plan, notice = None, None
        if decision.asks_model:
            soon = self._soon([one.passage for one in decision.results.passages])
            if self._numbers and decision.outcome == "answered":
                sources = decision.sources({one.id for one in soon})
            turns, in_prompt = self._turns(past, soon, question, sources)
            plan, dropped = self._fit(turns)
            notice = OLDER_TURNS_LEFT_OUT if dropped else None
        return PreparedQuestion(
            question=question,
            decision=decision,
            retrieve_ms=retrieve_ms,
            in_prompt=in_prompt,
            sources=sources,
            plan=plan,
            model=self._engine.info.fingerprint,
            notice=notice,
        )

    def foresee(self, question: str, past: Sequence[PastMessage]) -> Plan | None:
        """Plan the passages for an unfinished question, without its text. Return None if it needs no passages."""
        question, past = completed(question, past)
        decision = self.decider.decide(question, past)
        if decision.outcome == "smalltalk" or decision.faq is not None:
            return None
        turns, _ = self._turns(past, [one.passage for one in decision.results.passages], question="")
        return self._fit(turns)[0]

    def answered_from(self, question: str) -> str | None:
        decision = self.decider.decide(question, [])
        if decision.outcome != "answered" or not decision.statements:
            return None
        documents = {one.passage.id: one.passage.document for one in decision.results.passages}
        return documents.get(decision.statements[0].passage)

    def _soon(self, found: Sequence[StoredPassage]) -> Sequence[StoredPassage]:
        """Return the best passage and all other encoded ones. found: best first. If the best one is not encoded yet, it
        is encoded without its neighbours, for this question alone. Missing ones are encoded next in the background.
        """
        unread = self._in_flight.unread
        if wanted := [one.id for one in found if one.id in unread]:
            self._in_flight.wanted = wanted
        best = [replace(one, neighbours=()) if one.id in wanted else one for one in found[:1]]
        return best + [one for one in found[1:] if one.id not in wanted]

    def _turns(
        self,
        past: Sequence[PastMessage],
        found: Sequence[StoredPassage],
        question: str,
        sources: Sequence[RankedStatement] = (),
    ) -> tuple[list[PromptTurn], dict[str, StoredPassage]]:
        """Return the conversation as prompt turns, and its passages by module name."""
        pairs = [(asked, said) for asked, said in pairwise(past) if (asked.role, said.role) == ("user", "assistant")]
        answered = [(asked, said) for asked, said in pairs if said.text]  # some text came from the documents
        ids = {id_ for _, said in answered for id_ in said.passage_ids if id_ is not None}
        stored = {one.id: one for one in self._library.passages(sorted(ids - self._in_flight.unread))}
        turns = [
            PromptTurn(
                passages=tuple(stored[id_] for id_ in said.passage_ids if id_ in stored),
                question=asked.text,
                answer=said.text,
                answer_tokens=said.tokens if said.model == self._engine.info.fingerprint else None,
            )
            for asked, said in answered
        ]
        new = found[::-1]  # the most relevant passage is last, next to the question
        told = tuple(one.text for one in sources)
        turns.append(PromptTurn(passages=tuple(new), question=question, statements=told))
        return turns, {p.name: p for p in (*stored.values(), *new)}

    def _fit(self, turns: list[PromptTurn]) -> tuple[Plan, int]:
        positions = self._engine.info.max_positions
        for dropped in range(len(turns)):
            try:
                plan = self._engine.arrange(self._prompts.prompt(turns[dropped:]))
            except PromptError:
                continue
            if plan.next_position <= positions - self._settings.answer_tokens:
                return plan, dropped
        raise DeskError(
            f"the question and its passages do not fit the model's context of {positions} tokens: "
            "shorten the question, or lower the settings passages or passage_tokens",
            code="context-full",
        )
