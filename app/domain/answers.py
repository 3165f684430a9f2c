"""Answers, conversations, hand-offs and the overview, as plain values for CLI, pages and HTTP.

The assistant handles a conversation until an agent is requested. The hand-off is then *waiting*, *taken* by an agent,
and finally *closed*, which gives the conversation back to the assistant. Outside of office hours a customer leaves an
e-mail address instead: that hand-off is *left*, and the assistant continues to answer until an agent takes it.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from app.domain.callers import CUT, LATE, REPEATED
from app.domain.documents import Vectors
from app.domain.progress import DocumentsRead, PassagesRead
from app.domain.words import count, counted, gettext, milliseconds, translatable

HandoffState = Literal["waiting", "taken", "left", "closed"]
HandoffReason = Literal["button", "keyword", "refused", "thumbs", "support", "api", "agent"]
"""button, keyword, api: the customer asked for it. refused, thumbs, support: by rule (`app.support.handoff`). agent: an
agent stepped in.
"""
REASONS: dict[HandoffReason, str] = {
    "button": translatable("Asked for a person"),
    "keyword": translatable("Asked for a person in a message"),
    "refused": translatable("Two questions without an answer"),
    "thumbs": translatable("Two answers rated bad"),
    "support": translatable("Two answers that the documents hardly support"),
    "api": translatable("Sent by a program"),
    "agent": translatable("An agent stepped in"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """A hand-off. agent: name of the account that took it; may be hidden from customers. email: for the reply. place:
    in the queue, from 1; 0 if it is not waiting. usual_wait: median wait of the latest ones, for a waiting customer.
    messages: number in the conversation. fresh: no question was asked since it was closed.
    """

    id: int
    conversation_id: str
    state: HandoffState
    reason: HandoffReason
    requested: datetime
    taken: datetime | None = None
    closed: datetime | None = None
    agent: str = ""
    email: str = ""
    place: int = 0
    usual_wait: timedelta | None = None
    messages: int = 0
    fresh: bool = False

    @property
    def is_with_person(self) -> bool:
        return self.state in ("waiting", "taken")


Outcome = Literal["answered", "unsure", "nothing", "smalltalk", "lookup"]
"""The outcome of a question. answered: with confidence. unsure: possibly helpful statements, or a question to the
customer. nothing: the documents do not answer. smalltalk: a greeting or the like, without the documents. lookup: by a
look-up.
"""
OUTCOME_WORDS: dict[Outcome, str] = {
    "answered": translatable("Answered"),
    "unsure": translatable("Not certain"),
    "nothing": translatable("Not found"),
    "smalltalk": translatable("Small talk"),
    "lookup": translatable("Look-up"),
}
Unanswered = Literal["lost", "failed"]
"""The reason why a question has no answer. lost: the server stopped before the answer was finished. failed: the answer
was stopped before its first word, or had an error.
"""
BETWEEN = "\n\n"  # separator of an answer's statements, also after the first line of an unsure answer


def from_documents(text: str, outcome: Outcome) -> str:
    """Return the part of an answer's text that comes from the documents, without Warmdesk's own words."""
    if outcome == "unsure":
        return text.partition(BETWEEN)[2]
    return text if outcome == "answered" else ""


class Mark(NamedTuple):
    """A part of a passage that an answer quotes. paragraph: its number among the answer's statements, from 0. start,
    end: characters of the citation's quote.
    """

    paragraph: int
    start: int
    end: int


_PASSAGE_NUMBER = re.compile(r"\s*\(\d+\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A passage that an answer cites, stored with its text (`quote`), so that it never changes. passage: heading path
    and number. score: cosine with the question. see_also: the answer does not use it. marks: its quoted parts.
    """

    document: str
    title: str
    passage: str
    quote: str
    score: float
    see_also: bool = False
    url: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def section(self) -> str:
        """Return the headings above the passage, without the document's title and the passage's number."""
        return _PASSAGE_NUMBER.sub("", self.passage).removeprefix(self.title).removeprefix(" > ")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedModule:
    """A prompt module of an answer. document: path of the document, "" for the system text. source: device, host, disk,
    computed (with a miss reason), or elsewhere: a remote model server reused or computed it, and does not report which.
    """

    id: str
    document: str
    tokens: int
    position: int
    source: str
    miss_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerUsage:
    """Sources of the prompt's tokens: prompt_tokens = computed + session + prefix + module. For a remote model, prefix
    has the tokens that its server reports as cached; unreported tokens are in no source.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    computed: int = 0
    session: int = 0
    prefix: int = 0
    module: int = 0

    @property
    def cached_tokens(self) -> int:
        return self.session + self.prefix + self.module

    @property
    def is_reuse_known(self) -> bool:
        return self.computed + self.cached_tokens == self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimings:
    """Milliseconds of each stage. ttft and total count from the question's arrival, search included. ttft: until the
    model's first token. A quotation is shown sooner, after `retrieve`.
    """

    retrieve: float = 0.0
    load: float = 0.0
    prefill: float = 0.0
    ttft: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTurn:
    """The part of an answer that a look-up adds. state: offered, asking, confirming, calling, shown, cancelled, failed
    or expired. asks: name of the requested value. outcome: found, not_found or failed. choices: texts of buttons. line:
    text below an answer from the documents, not part of it. links: addresses in the text that are shown as links.
    """

    name: str
    state: str
    asks: str | None = None
    outcome: str | None = None
    choices: tuple[str, ...] = ()
    line: str = ""
    links: tuple[str, ...] = ()

    @property
    def below(self) -> str:
        """Return the line and the buttons as text, for readers without buttons."""
        return BETWEEN.join(filter(None, (self.line, " ".join(f"[{one}]" for one in self.choices))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished answer. policy: how much of its passages was recomputed; exact: no module replaced full attention.
    grounding: how well the passages support the model's text, 0 to 1, None if nothing was checked; quoted: sentences of
    the passages replace the model's words. notice: a text for the reader, for example "the answer was cut". lookup: a
    look-up's part, which no model reads.
    """

    answer: str
    outcome: Outcome
    conversation_id: str
    message_id: str
    citations: tuple[Citation, ...] = ()
    usage: AnswerUsage = AnswerUsage()
    modules: tuple[UsedModule, ...] = ()
    timings: AnswerTimings = AnswerTimings()
    policy: str = "exact"
    exact: bool = True
    grounding: float | None = None
    quoted: bool = False
    notice: str | None = None
    lookup: LookUpTurn | None = None

    @property
    def shown(self) -> str:
        """Return the text, followed by the line of a look-up if there is one."""
        return BETWEEN.join(filter(None, (self.answer, self.lookup.line))) if self.lookup else self.answer

    @property
    def is_from_elsewhere(self) -> bool:
        return any(module.source == "elsewhere" for module in self.modules)

    @property
    def is_uncounted(self) -> bool:
        """Return whether token counts are missing: the remote server did not report them. Quotations need none."""
        return self.is_from_elsewhere and not self.usage.prompt_tokens and self.timings.prefill > 0

    @property
    def refused(self) -> bool:
        return self.outcome == "nothing"

    @property
    def is_cut(self) -> bool:
        return any(end in (self.notice or "") for end in (CUT, LATE, REPEATED))

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements from the documents, one paragraph each, in the order shown."""
        said = from_documents(self.answer, self.outcome)
        return tuple(paragraph for paragraph in said.split(BETWEEN) if paragraph.strip())

    @property
    def choices(self) -> tuple[str, ...]:
        """The names to choose from, if the answer asks which thing is meant."""
        asks = self.outcome == "unsure" and BETWEEN not in self.answer
        return tuple(self.answer.split("\n- ")[1:]) if asks else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A stored message. role: user, assistant (with `answer`) or agent. author: the agent's name, if shown."""

    message_id: str
    role: str
    text: str
    created: datetime
    answer: Answer | None = None
    author: str = ""
    feedback: str | None = None
    reason: str = ""
    unanswered: Unanswered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSummary:
    """A line in the list of conversations. title: its first question, shortened. turns: number of messages."""

    id: str
    title: str
    updated: datetime
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module as the dashboard shows it. tier: device, host, disk, or none. hits, misses: see `ModuleTallyRow`."""

    id: str
    document: str
    passage: str
    tokens: int
    num_bytes: int
    tier: str
    hits: int
    last_used: datetime | None
    misses: int = 0
    is_kept: bool = False

    @property
    def saved(self) -> int:
        return self.hits * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MissRow:
    """A module that was computed for an answer, and why."""

    created: datetime
    document: str
    passage: str
    tokens: int
    reason: str
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRow:
    """A reason for computing modules. misses: number of modules computed for it. tokens: their tokens."""

    reason: str
    misses: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRow:
    """A prefix that later prompts (hits) reused. tokens: length. text, saved: start and savings of its last part."""

    text: str
    tokens: int
    hits: int
    saved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportRow:
    """An answer whose passages did not support all of the model's text. shown: the text after the check."""

    created: datetime
    question: str
    shown: str
    grounding: float
    quoted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPoint:
    """One answer on a time axis."""

    created: datetime
    ttft_ms: float
    prompt_tokens: int
    reused_tokens: int
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTotals:
    """Numbers over all answers ever recorded (`app.storage.statistics`). conversations: number stored now. *_tokens:
    prompt tokens by source. grounding: mean over answers; quoted: answers with quotations.
    """

    conversations: int
    answers: int
    answered: int
    unsure: int
    refusals: int
    smalltalk: int
    computed_tokens: int
    session_tokens: int
    prefix_tokens: int
    module_tokens: int
    ttft_ms_median: float | None
    ttft_ms_p95: float | None
    grounding: float | None = None
    quoted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes of the disk with encoded passages. floor: minimum free space. is_short: free space is near or below it."""

    free: int
    floor: int
    is_short: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(AnswerTotals):
    """The dashboard's numbers. weak: the latest answers with an unsupported statement. calibration: its result in one
    line. reading: progress of pre-encoding. documents_read: progress of an ingestion. is_elsewhere: the model is
    remote, at `device`.
    """

    documents: int
    passages: int
    tier_bytes: dict[str, int] = field(default_factory=dict)
    tier_capacity: dict[str, int] = field(default_factory=dict)
    evictions: dict[str, int] = field(default_factory=dict)
    disk_space: DiskSpace | None = None
    modules: tuple[ModuleRow, ...] = ()
    prefixes: tuple[PrefixRow, ...] = ()
    reasons: tuple[ReasonRow, ...] = ()
    misses: tuple[MissRow, ...] = ()
    points: tuple[AnswerPoint, ...] = ()
    weak: tuple[SupportRow, ...] = ()
    policy: str = ""
    answer_mode: str = ""
    calibration: str = ""
    model: str = ""
    device: str = ""
    is_elsewhere: bool = False
    reading: PassagesRead | None = None
    documents_read: DocumentsRead | None = None


SpokenRole = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Said:
    """A message as a caller sends it."""

    role: SpokenRole
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """Options of a request to the model alone. None: the default or the setting's value. temperature: 0 is greedy."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """The text of a token, the logarithm of its probability, and the most likely alternatives."""

    text: str
    logprob: float
    top: "tuple[TextLogprob, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    """The model's text. finish_reason: stop, or length if it was cut. logprobs: one for each token, if asked for."""

    text: str
    finish_reason: Literal["stop", "length"]
    usage: AnswerUsage
    timings: AnswerTimings
    logprobs: tuple[TextLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedded:
    """Texts as vectors `[texts, dimension]`, each of length 1. tokens: number in all texts, by the embedder's count."""

    vectors: Vectors
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """The model names that callers use. dimension: length of the embedder's vectors."""

    language: str
    embedder: str
    dimension: int


def reuse_line(answer: Answer) -> str:
    """Return a line for people: how much of the prompt was reused, and the time to the first token."""
    usage = answer.usage
    used = {module.document for module in answer.modules if module.source not in ("computed", "elsewhere")}
    documents = len(used - {""})  # the system text belongs to no document
    origins = [counted(documents, "%(count)s document", "%(count)s documents")] if documents else []
    if usage.session:
        origins.append(gettext("this conversation"))
    numbers = {"reused": count(usage.cached_tokens), "all": count(usage.prompt_tokens)}
    if answer.is_uncounted:
        text = gettext("The model's server does not report how many tokens it computed")
    elif not usage.is_reuse_known:
        text = gettext("%(all)s prompt tokens; the model's server does not report how many it reused") % numbers
    elif usage.cached_tokens and answer.is_from_elsewhere:
        text = gettext("%(reused)s of %(all)s prompt tokens reused by the model's server, an exact prefix") % numbers
    elif not usage.cached_tokens:
        text = gettext("All %(all)s prompt tokens computed now") % numbers
    elif origins:
        text = gettext("%(reused)s of %(all)s prompt tokens reused from %(origins)s") % {
            **numbers,
            "origins": gettext(" and ").join(origins),
        }
    else:
        text = gettext("%(reused)s of %(all)s prompt tokens reused") % numbers
    return text + gettext(" · first token %(time)s") % {"time": milliseconds(answer.timings.ttft)}
