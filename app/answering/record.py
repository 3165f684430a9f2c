"""Answers that are statements of the passages: which are offered to the model, and how likely each is beforehand.

`cache.decoding.constraints` keeps the model to these choices.

A statement's prior is the log-odds, judged by search, that it answers the question, times WEIGHT. The refusal is
offered only if there is no statement: whether the passages answer the question was decided before.

Not covered: two list items without full stops in one answer, tokenizers that do not give back the text they were given,
and models without a chat template, whose answers begin with a space.

From a completion to the answer that is stored. Its numbers are what the engine counted while it ran.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from app.answering.checking import CheckedText, citation, cite, cite_faq, cite_quotation
from app.answering.prepare import PreparedQuestion
from app.domain.answers import BETWEEN, Answer, AnswerTimings, AnswerUsage, Outcome, UsedModule
from app.domain.callers import CUT, LATE, QUOTED, REPEATED, STOPPED
from app.domain.policies import Policy
from app.domain.quality import FAQ
from app.knowledge.finder import RankedStatement
from app.storage.history import AnswerDetails, ModuleDetails, new_id
from cache.decoding.constraints import Choice, Choices
from cache.engine.request import Completion
from cache.prompt.parts import Text
from cache.prompt.tokenizer import Tokenizer
from retrieval.text.sentences import as_said

WEIGHT = 40.0
"""How much the log-odds of search count against those of the model. A model of the bundled one's size only decides the
order of statements that search finds about equal. (Without adapter, 40 SQuAD questions with five passages each, gold
answer in one quoted sentence: 0.23 by the model alone, 0.88 by search alone.)"""


def choices_of(shown: Sequence[RankedStatement], refusal: str, tokenizer: Tokenizer, stop: int, room: int) -> Choices:
    """Statements that are to be shown, likeliest first; the refusal if there are none. stop: token that ends an answer.
    room: tokens that an answer may have; only as many statements are allowed as surely fit.
    """
    found: dict[tuple[int, ...], Choice] = {}
    for text, logit in [(one.text, one.logit) for one in shown] or [(refusal, 0.0)]:
        said = as_said(text)
        choice = Choice(
            tokens=tuple(tokenizer.encode([Text(text=said)])),
            behind=tokens_behind(said, tokenizer),
            prior=WEIGHT * logit,
        )
        found.setdefault(choice.tokens, choice)
    enough = WEIGHT * (shown[-1].logit - 1.0) if shown else 0.0  # below all: what was composed is said as a whole
    choices = Choices(choices=tuple(found.values()), stop=stop, most=max(1, len(found)), enough=enough)
    while choices.longest > room and choices.most > 1:
        choices = replace(choices, most=choices.most - 1)
    return choices


def tokens_behind(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of a statement that follows another one, with what stands between the two.

    They are taken from a text with a full stop before them, because some tokenizers write the beginning of a text
    differently from its middle. Where a tokenizer makes one token of the full stop and the line break, both parts are
    written on their own.
    """
    before = tokenizer.encode([Text(text=".")])
    joined = tokenizer.encode([Text(text=f".{BETWEEN}{text}")])
    if joined[: len(before)] == before:
        return tuple(joined[len(before) :])
    return tuple(tokenizer.encode([Text(text=BETWEEN), Text(text=text)]))


_ENDINGS = {"length": CUT, "cancelled": STOPPED, "timeout": LATE, "repeated": REPEATED}
"""What the reader is told about how an answer ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question that is being answered. started: `time.perf_counter` at its arrival. conversation_id, question_id:
    empty for one that is not stored. replaces: the question in whose place it is asked, if there is one.
    """

    started: float
    prepared: PreparedQuestion
    policy: Policy
    conversation_id: str = ""
    question_id: str = ""
    replaces: str = ""


def without_model(asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    """The answer in the desk's own words, with the pages that it names, or that of the FAQ."""
    decision = asked.prepared.decision
    found = () if decision.outcome == "nothing" else decision.results.passages
    cited = [(one.passage, citation(one.passage, one.cosine, see_also=True)) for one in found]
    if decision.faq is not None:
        cited = cite_faq(decision.says, [(one.passage, one.cosine) for one in found])
    total = round((time.perf_counter() - asked.started) * 1e3, 3)
    retrieve = round(asked.prepared.retrieve_ms, 3)
    answer = Answer(
        answer=decision.says,
        outcome=decision.outcome,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=tuple(one for _, one in cited),
        usage=AnswerUsage(prompt_tokens=0, completion_tokens=0, computed=0, session=0, prefix=0, module=0),
        modules=(),
        timings=AnswerTimings(retrieve=retrieve, load=0.0, prefill=0.0, ttft=total, total=total),
        policy=asked.policy,
        exact=True,
        quoted=bool(cited),  # its words are gone when the document is forgotten
    )
    details = AnswerDetails(
        question_id=asked.question_id,
        finish_reason="refused" if answer.refused else "stop" if decision.faq is None else FAQ,
        passage_ids=tuple(passage.id for passage, _ in cited),
        faq_id=decision.faq,
        replaces=asked.replaces,
    )
    return answer, details


def finished(completion: Completion, shown: CheckedText, asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    """The answer of a completion as it was shown, and what else is stored of it."""
    prepared, timings = asked.prepared, completion.timings
    outcome: Outcome = "nothing" if shown.is_refusal else prepared.decision.outcome
    decision = prepared.decision
    said = decision.statements if shown.is_quotation else []
    results = () if shown.is_refusal else decision.results.found if said else decision.results.passages
    found = [(one.passage, one.cosine) for one in results]
    cited = cite_quotation(shown.text, said, found) if said else cite(shown.text, found)
    notices = [QUOTED if shown.is_quotation else None, _ENDINGS.get(completion.finish_reason), prepared.notice]
    used = [(use, prepared.in_prompt.get(use.name)) for use in completion.modules]
    answer = Answer(
        answer=prepared.decision.says + BETWEEN + shown.text if outcome == "unsure" else shown.text,
        outcome=outcome,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=tuple(one for _, one in cited),
        usage=AnswerUsage(**{field.name: getattr(completion.usage, field.name) for field in fields(AnswerUsage)}),
        modules=tuple(
            UsedModule(
                id=use.key,
                document=passage.document if passage else "",
                tokens=use.tokens,
                position=use.position,
                source=use.source,
                miss_reason=use.miss_reason,
            )
            for use, passage in used
        ),
        timings=AnswerTimings(
            retrieve=round(prepared.retrieve_ms, 3),
            load=round(timings.load, 3),
            prefill=round(timings.prefill, 3),
            ttft=round(prepared.retrieve_ms + timings.ttft, 3),
            total=round((time.perf_counter() - asked.started) * 1e3, 3),
        ),
        policy=asked.policy,
        exact=completion.exact,
        grounding=shown.score,
        quoted=shown.is_quotation,
        notice=" ".join(notice for notice in notices if notice) or None,
    )
    details = AnswerDetails(
        question_id=asked.question_id,
        finish_reason=completion.finish_reason,
        tokens=None if shown.is_changed else completion.tokens,
        model=prepared.model,
        queue_ms=timings.queue,
        replaces=asked.replaces,
        passage_ids=tuple(passage.id for passage, _ in cited),
        modules=tuple(
            ModuleDetails(
                name=use.name,
                passage=passage.label if passage else use.name,
                passage_id=passage.id if passage else None,
            )
            for use, passage in used
        ),
    )
    return answer, details
