"""Search for a question while it is typed, so that its passages are loaded when it is sent.

This is only a prediction: questions go first, and failures are ignored. The text is not stored, logged or counted. Out
of scope: how often a visitor may do this (`app.access.limits`).
"""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from app.answering.answering import Answering
from app.answering.prepare import with_agents
from app.knowledge.warm import InFlight
from app.storage.history import History
from cache.prompt.plan import Segment
from cache.serving.interface import Cancellable, EngineInterface
from retrieval.text.terms import UNSPACED, words

SEARCHES_AT_ONCE = 2
"""Maximum concurrent searches, all visitors together. Further text is not searched."""
REMEMBERED = 1000
LEAST_LETTERS, LEAST_WORDS = 8, 2
_UNSPACED = re.compile(f"[{UNSPACED}]")
_LETTERS_OF_UNSPACED = 4  # a Chinese, Japanese or Korean character counts as this many letters
log = logging.getLogger(__name__)


class Prefetching:
    """Loads passages for the text that visitors type. Safe to use from any thread."""

    def __init__(
        self,
        answering: Answering,
        history: History,
        in_flight: InFlight,
        check_with_machine: Callable[[str | None, str], None],
    ) -> None:
        """check_with_machine: raises DeskError while an agent answers a conversation."""
        self._answering, self._history, self._in_flight = answering, history, in_flight
        self._check_with_machine = check_with_machine
        self._engine: EngineInterface = answering.engine
        self._last: OrderedDict[str, tuple[int, Cancellable]] = OrderedDict()  # by owner: hash and search of the text
        self._searching: set[str] = set()  # owners
        self._lock = threading.Lock()

    def typed(self, text: str, conversation_id: str | None, owner: str) -> None:
        """Search for a visitor's unfinished text, which replaces the last one. Does nothing while answers run."""
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
                if not self._is_busy:  # a question may have arrived during the search
                    prefetch = self._engine.prefetch(segments)
                    with self._lock:
                        self._last[owner] = mark, prefetch
                        if len(self._last) > REMEMBERED:
                            self._last.popitem(last=False)
        except Exception as error:  # the error's message may contain the text
            log.debug("nothing was prefetched: %s", type(error).__name__)
        finally:
            with self._lock:
                self._searching.discard(owner)

    def cancel(self, owner: str) -> None:
        """Cancel a visitor's last prefetch if it has not begun, so that the same text may be searched again."""
        with self._lock:
            last = self._last.pop(owner, None)
        if last is not None:
            last[1].cancel()

    @property
    def _is_busy(self) -> bool:
        return any(self._engine.load())

    def _begin(self, owner: str, mark: int) -> bool:
        with self._lock:
            last = self._last.get(owner)
            if (last and last[0] == mark) or owner in self._searching or len(self._searching) >= SEARCHES_AT_ONCE:
                return False
            self._searching.add(owner)
            return True

    def _modules(self, text: str, conversation_id: str | None, owner: str) -> list[Segment]:
        """Return the modules of a prompt with this question, most relevant first. Raises the same errors as asking."""
        self._check_with_machine(conversation_id, owner)
        past = [] if conversation_id is None else with_agents(self._history.past(conversation_id, owner))
        questions = self._answering.questions
        plan = questions.foresee(questions.valid(text), past)
        if plan is None:
            return []
        used = plan.exact_part() if self._answering.policy == "exact" else plan
        return [*reversed(used.segments())]


def is_enough(text: str) -> bool:
    letters = len(text.strip()) + (_LETTERS_OF_UNSPACED - 1) * len(_UNSPACED.findall(text))
    return letters >= LEAST_LETTERS and len(words(text)) >= LEAST_WORDS
