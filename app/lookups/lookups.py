"""The look-ups of a running server: the meaning of a message, the calls, and the stored state and results.

The state is stored with the conversation before the reply, and deleted before a call, so that no call is made twice. A
program may send all messages each time, without the conversation's id. The last message then continues the open look-up
whose customer wrote exactly the earlier ones. The texts of look-ups are not searched, not read by a model, and not in
`History.past`. Of a program's messages, a model reads only our own answers from the documents, with their questions.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from weakref import finalize

import numpy as np
import numpy.typing as npt

from app.domain.answers import BETWEEN, Answer, AnswerTimings, LookUpTurn, Said
from app.domain.callers import is_customer
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.domain.words import utc_now
from app.lookups.calling import Called, Caller, Tried, failed, try_out
from app.lookups.definitions import LookUp, file_of, in_language, load
from app.lookups.dialogue import Dialogue, Open, Step, masked, says, shown_values
from app.lookups.recognising import Recogniser
from app.storage.history import AnswerDetails, History, new_id
from app.storage.lookups import Figures, LookUpStore
from app.websites.fetching import Guard, Resolve, resolve

CLOSED_S = 60.0  # after five failures in a row
AT_AN_ADDRESS = 5  # an IP address has this many times a visitor's limits, because a household may share one
HANDED = "handed"
_KEPT_FOR_AGENTS = timedelta(days=7)
_CUTS = 3
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The sender of a message. user: the customer's id on the company's site. address: IP address, "" for programs."""

    owner: str
    conversation_id: str | None
    earlier: Sequence[Said] = ()
    user: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message that concerns a look-up. kept: the message as it is stored. is_begun: it starts or offers a look-up.
    trail: a hash of the customer's messages up to this one.
    """

    step: Step
    kept: str
    is_begun: bool
    asking: Asking
    trail: str = ""

    @property
    def turn(self) -> LookUpTurn:
        return self.step.turn


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The look-ups of one version of the file. mark: changes with the file."""

    mark: tuple[int, int] | None
    by_name: dict[str, LookUp]
    recogniser: Recogniser | None


class LookUps:
    """The look-ups of a server. Safe to use from any thread; methods may raise DeskError."""

    def __init__(
        self,
        settings: Settings,
        store: LookUpStore,
        history: History,
        *,
        embed: Callable[[Sequence[str]], npt.NDArray[np.float32]],
        is_answered: Callable[[str], bool],
        resolve: Resolve = resolve,
    ) -> None:
        """is_answered: returns whether the documents answer a message with high confidence."""
        self._settings, self._store, self._history = settings, store, history
        self._embed, self._is_answered = embed, is_answered
        self._loaded, self._loading = _Loaded(None, {}, None), threading.Lock()
        self._refused: tuple[int, int] | str | None = ""
        self._was_used = False
        self._caller = caller_of(settings, resolve)

    def prepare(self) -> None:
        """Load the file. Raises DeskError for a mistake in it."""
        self._load(is_first=True)

    def all(self) -> list[LookUp]:
        return list(self._load().by_name.values())

    def _load(self, *, is_first: bool = False) -> _Loaded:
        """Return the look-ups, read again if the file has changed. A mistake in a changed file is logged once."""
        file = file_of(self._settings)
        mark: tuple[int, int] | None
        try:
            mark = (found := file.stat()).st_mtime_ns, found.st_size
        except OSError:
            mark = None
        if mark == self._loaded.mark or (mark == self._refused and not is_first):
            return self._loaded
        with self._loading:
            if mark == self._loaded.mark:
                return self._loaded
            try:
                lookups = load(file, self._settings)
            except DeskError as error:
                if is_first:
                    raise
                self._refused = mark
                log.error("the changed look-ups are not used: %s", error)
                return self._loaded
            recogniser = Recogniser(lookups, self._embed) if lookups else None
            self._loaded = _Loaded(mark, {one.name: one for one in lookups}, recogniser)
        return self._loaded

    def hear(self, message: str, asking: Asking) -> Heard | None:
        """Return the meaning of a message; None if it does not concern a look-up. message: as the customer wrote it."""
        loaded = self._load()
        if loaded.recogniser is None:
            return None
        now_open = self._open(asking)
        dialogue = Dialogue(loaded.by_name, loaded.recogniser.wish, self._is_answered)
        step = dialogue.hear(message, now_open, is_signed_in=bool(asking.user))
        if step is None:
            if now_open is not None and asking.conversation_id is not None:  # the customer did not accept the offer
                self._store.save(asking.conversation_id, None, utc_now())
            return None
        asks = "" if now_open is None else now_open.asks
        kept = message
        for name in {step.turn.name, *(step.open.offers if step.open else ())}:
            kept = masked(loaded.by_name[name], kept, is_attempt=step.is_attempt, asks=asks)
        is_begun = step.turn.state != "expired" and (now_open is None or now_open.state in ("offered", "expired"))
        return Heard(
            step=step,
            kept=kept,
            is_begun=is_begun,
            asking=asking,
            trail=_trail([*asking.earlier, Said("user", message)]),
        )

    def _open(self, asking: Asking) -> Open | None:
        if asking.conversation_id is not None:
            state = self._store.open(asking.conversation_id)
        elif asking.earlier:
            state = self._store.continued(asking.owner, _trail(asking.earlier))
        else:
            state = None
        return None if state is None or state["state"] == HANDED else Open(**state)

    def trusted(self, earlier: Sequence[Said], owner: str) -> list[Said]:
        """Return the messages of a program that a model may read: our own answers from the documents, with their
        questions. Without look-ups, return all messages.
        """
        if not earlier or not (self._load().by_name or self._is_used()):
            return list(earlier)
        cuts = {one.text: _cuts(one.text) for one in earlier if one.role == "assistant"}
        ours = self._store.answers_among(owner, {cut for some in cuts.values() for cut in some})
        kept, questions = list[Said](), list[Said]()
        for one in earlier:
            if one.role != "assistant":
                questions.append(one)
            elif (known := next((cut for cut in cuts[one.text] if cut in ours), None)) is not None:
                kept += [*questions, replace(one, text=known)]
                questions = []
            else:
                questions = []
        return kept

    def _is_used(self) -> bool:
        self._was_used = self._was_used or self._store.is_used()
        return self._was_used

    def say(self, heard: Heard) -> "LookUpAnswer":
        """Store the message, and return the look-up's own answer. Raises DeskError."""
        asking = heard.asking
        is_theirs = heard.step.calls and not heard.is_begun and asking.conversation_id is not None
        if is_theirs and not self._store.take(str(asking.conversation_id)):  # the same message came twice at once
            raise DeskError("another answer is still running: wait until it ends, then ask again", code="rate-limit")
        most = self._settings.conversations_kept if is_customer(asking.owner) else None
        id_ = asking.conversation_id or self._history.start_conversation(heard.kept, asking.owner, most)
        question_id = self._history.record_question(id_, heard.kept)
        if heard.is_begun:
            self._store.note(heard.turn.name, "asked")
        self.save(id_, heard)
        return LookUpAnswer(self, self._history, heard, id_, question_id)

    def save(self, conversation_id: str, heard: Heard) -> None:
        """Store the state after a message."""
        state = heard.step.open if not heard.step.calls else None
        if heard.turn.state == "cancelled":
            self._store.note(heard.turn.name, "cancelled")
        lookup = self._load().by_name[heard.turn.name]
        expires = utc_now() + timedelta(minutes=lookup.limits.expires_min)
        trail = heard.trail if heard.asking.conversation_id is None else ""
        self._store.save(conversation_id, None if state is None else asdict(state), expires, trail)

    def call(self, heard: Heard) -> Called:
        """Call the endpoint within the limits. A failed call raises no error: it is an outcome."""
        now_open = heard.step.open
        assert now_open is not None
        lookup, asking = self._load().by_name[now_open.name], heard.asking
        who = {"visitor": _hash(asking.owner)} | ({"address": _hash(asking.address)} if asking.address else {})
        if self._is_over_limit(lookup, who):
            return Called(outcome="failed", says=says("too_many", now_open.language), detail="over the limit")
        if self._store.is_closed(lookup.name, CLOSED_S):
            return failed(lookup, now_open.language, "not called for a minute after five failures")
        called = self._caller.call(lookup, now_open.values, now_open.language, asking.user)
        self._store.note(lookup.name, called.outcome, ms=called.ms, **who)
        level = logging.WARNING if called.outcome == "failed" else logging.INFO
        log.log(level, "look-up %s: %s in %.0f ms %s", lookup.name, called.outcome, called.ms, called.detail)
        return called

    def _is_over_limit(self, lookup: LookUp, who: dict[str, str]) -> bool:
        limits, every = lookup.limits, ("found", "not_found", "failed")
        for kind, value in who.items():
            times = AT_AN_ADDRESS if kind == "address" else 1
            if self._store.calls(lookup.name, every, **{kind: value}) >= limits.per_visitor_hour * times:
                return True
            if self._store.calls(lookup.name, ("not_found",), **{kind: value}) >= limits.wrong_per_visitor_hour * times:
                return True
        return False

    def hand_over(self, conversation_id: str) -> None:
        """End the open look-up of a conversation. Its values stay for the agent, private ones masked."""
        state = self._store.open(conversation_id)
        lookup = None if state is None else self._load().by_name.get(state["name"])
        if state is None or lookup is None or state["state"] in (HANDED, "expired"):
            return
        shown = Open(**state).values
        text = f"{in_language(lookup.title, 'en')}: {shown_values(lookup, shown, 'en')}"
        handed = {"name": lookup.name, "state": HANDED, "text": text}
        self._store.save(conversation_id, handed, utc_now() + _KEPT_FOR_AGENTS)
        self._store.note(lookup.name, "cancelled")

    def try_out(self, name: str, given: Sequence[str]) -> Tried:
        """Call a look-up for an operator. given: texts for its values, in their order. Raises DeskError."""
        if (lookup := self._load().by_name.get(name)) is None:
            raise DeskError(f"there is no look-up {name!r}", code="lookups")
        texts = dict(zip((value.name for value in lookup.values), given, strict=False))
        return try_out(lookup, texts, self._caller)

    def figures(self, name: str) -> Figures:
        return self._store.figures(name)


class LookUpAnswer:
    """A look-up's own answer (an `AnswerStream`). Iterating calls the endpoint if all values are known."""

    def __init__(
        self, lookups: LookUps, history: History, heard: Heard, conversation_id: str, question_id: str
    ) -> None:
        self._lookups, self._history, self._heard = lookups, history, heard
        self.conversation_id, self._question_id = conversation_id, question_id
        self._answer: Answer | None = None
        self._started = time.perf_counter()
        finalize(self, history.ended, question_id)  # the reader may never iterate

    def __iter__(self) -> Iterator[str]:
        text, turn = self._heard.step.says, self._heard.turn
        try:
            if self._heard.step.calls:
                called = self._lookups.call(self._heard)
                state = "failed" if called.outcome == "failed" else "shown"
                text, turn = called.says, replace(turn, state=state, outcome=called.outcome, links=called.links)
            self._answer = self._record(text, turn)
        finally:
            self._history.ended(self._question_id)
        yield text
        if turn.below:
            yield BETWEEN + turn.below

    def _record(self, text: str, turn: LookUpTurn) -> Answer:
        total = round((time.perf_counter() - self._started) * 1e3, 3)
        answer = Answer(
            answer=text,
            outcome="lookup",
            conversation_id=self.conversation_id,
            message_id=new_id(),
            timings=AnswerTimings(ttft=total, total=total),
            lookup=turn,
        )
        self._history.record_answer(answer, AnswerDetails(question_id=self._question_id, finish_reason="stop"))
        return answer

    @property
    def answer(self) -> Answer:
        if self._answer is None:
            raise DeskError("the answer was stopped before it began", code="no-answer")
        return self._answer

    def cancel(self) -> None:
        """Do nothing: the call has its own time limit."""


def caller_of(settings: Settings, resolve: Resolve = resolve) -> Caller:
    hosts = frozenset(settings.private_hosts)
    guard = Guard(allow_private=settings.allow_private_addresses, private_hosts=hosts, resolve=resolve)
    return Caller(guard, settings.visitor_secret)


def _cuts(text: str) -> list[str]:
    """Return a text, and the same text without its last paragraphs, the longest first."""
    parts = text.strip().split(BETWEEN)
    return [BETWEEN.join(parts[:end]) for end in range(len(parts), max(0, len(parts) - _CUTS - 1), -1) if end]


def _trail(messages: Sequence[Said]) -> str:
    """Return a hash of the customer's messages. The same messages lead to the same state."""
    return _hash("\0".join(one.text.strip() for one in messages if one.role == "user"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
