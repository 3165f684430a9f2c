"""What was said before, as the next prompt and the next search need it."""

from collections.abc import Sequence
from dataclasses import replace

from app.storage.history import PastMessage


def with_agents(stored: Sequence[PastMessage]) -> list[PastMessage]:
    """The messages as turns of a customer and the desk, oldest first. What agents wrote counts as an answer, as plain
    text: it belongs to everything that was asked since the last answer, and stands in place of one that found nothing.
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
