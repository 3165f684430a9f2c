"""What is typed and not asked yet is searched for, so that the engine has the passages ready when it is asked.

A guess, for which nobody waits: it gives way to every question, and what fails is left out. The text is neither stored
nor logged, and counts nowhere. Not covered: how often a visitor may do this (`app.access.limits`).
"""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.answering.answering import Answering
from app.answering.prepare import with_agents
from app.knowledge.warm import InFlight
from app.storage.history import History
from cache.prompt.plan import Segment
from cache.serving.interface import Cancellable, EngineInterface
from retrieval.text.terms import UNSPACED, words

SEARCHES_AT_ONCE = 2
"""Of all visitors; what is typed meanwhile is not searched for."""
REMEMBERED = 1000
"""Visitors of whom it is known what was searched for last."""
LEAST_LETTERS, LEAST_WORDS = 8, 2
"""What is shorter says too little."""
_UNSPACED = re.compile(f"[{UNSPACED}]")
_LETTERS_OF_UNSPACED = 4  # a Chinese, Japanese or Korean character says as much
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Typed:
    """mark: a hash of what was searched for."""

    mark: int
    prefetch: Cancellable


class Prefetching:
    """Has passages ready for what visitors type. Safe to use from any thread."""

    def __init__(
        self,
        answering: Answering,
        history: History,
        in_flight: InFlight,
        check_with_machine: Callable[[str | None, str], None],
    ) -> None:
        """check_with_machine: raises DeskError while a person answers a conversation."""
        self._answering, self._history, self._in_flight = answering, history, in_flight
        self._check_with_machine = check_with_machine
        self._engine: EngineInterface = answering.engine
        self._last: OrderedDict[str, _Typed] = OrderedDict()  # by owner
        self._searching: set[str] = set()  # owners
        self._lock = threading.Lock()

    def typed(self, text: str, conversation_id: str | None, owner: str) -> None:
        """Search for a text that a visitor types, in place of what was typed before. Returns when it is searched; does
        nothing while questions are answered, others are searched for, or the same was searched for before.
        """
        if len(text) > self._answering.settings.max_question_chars or not is_enough(text):
            self.cancel(owner)
            return
        mark = hash((text, conversation_id))
        if self._is_busy or not self._begin(owner, mark):
            return
        try:
            with self._in_flight.track():
                segments = self._modules(text, conversation_id, owner)
                self.cancel(owner)
                if not self._is_busy:  # by now
                    self._remember(owner, _Typed(mark, self._engine.prefetch(segments)))
        except Exception as error:  # its words may hold what was typed
            log.debug("nothing was prefetched: %s", type(error).__name__)
        finally:
            with self._lock:
                self._searching.discard(owner)

    def cancel(self, owner: str) -> None:
        """Drop what has not begun for a visitor, and what is known of what was typed."""
        with self._lock:
            last = self._last.pop(owner, None)
        if last is not None:
            last.prefetch.cancel()

    @property
    def _is_busy(self) -> bool:
        return any(self._engine.load())

    def _begin(self, owner: str, mark: int) -> bool:
        with self._lock:
            last = self._last.get(owner)
            is_known = last is not None and last.mark == mark
            if is_known or owner in self._searching or len(self._searching) >= SEARCHES_AT_ONCE:
                return False
            self._searching.add(owner)
            return True

    def _modules(self, text: str, conversation_id: str | None, owner: str) -> list[Segment]:
        """What a prompt with this question would be made of, the most wanted first. Raises what asking raises."""
        self._check_with_machine(conversation_id, owner)
        past = [] if conversation_id is None else with_agents(self._history.past(conversation_id, owner))
        questions = self._answering.questions
        plan = questions.foresee(questions.valid(text), past)
        if plan is None:
            return []
        used = plan.exact_part() if self._answering.policy == "exact" else plan
        return [*reversed(used.segments())]

    def _remember(self, owner: str, typed: _Typed) -> None:
        with self._lock:
            self._last[owner] = typed
            if len(self._last) > REMEMBERED:
                self._last.popitem(last=False)


def is_enough(text: str) -> bool:
    """Whether a text says enough to be searched for."""
    letters = len(text.strip()) + (_LETTERS_OF_UNSPACED - 1) * len(_UNSPACED.findall(text))
    return letters >= LEAST_LETTERS and len(words(text)) >= LEAST_WORDS
