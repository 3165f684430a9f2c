"""Storing an answer that a customer has read already: a database that is busy, full or away is tried again.

Not covered: what is stored of an answer (`record`); questions, which a customer can send again.
"""

import logging
import threading
import time

from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.storage.answer_rows import AnswerDetails
from app.storage.history import History

PATIENCE_S = 60.0
FIRST_PAUSE_S = 0.25
"""Before the second try; each pause is twice as long as the one before."""
log = logging.getLogger(__name__)


def record_patiently(
    history: History, answer: Answer, details: AnswerDetails, is_ending: threading.Event, patience_s: float = PATIENCE_S
) -> None:
    """Store an answer, in the calling thread. patience_s: after so long it is not tried again. is_ending: set when the
    desk is closed: one more try is made at once, the last. Raises what `History.record_answer` raises.
    """
    deadline, pause = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        is_last = is_ending.is_set() or time.monotonic() >= deadline
        try:
            history.record_answer(answer, details)
            return
        except DeskError as error:
            if is_last or not error.is_of_database:
                raise
            log.warning("an answer is not stored yet, and is tried again: %s", error)
        is_ending.wait(min(pause, max(0.0, deadline - time.monotonic())))
        pause *= 2
