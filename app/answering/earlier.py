"""A conversation's past as the caller sends it, where the desk has not stored it: OpenAI's clients send it back whole.

Of what the desk said, only the part that came from documents belongs in the next prompt, as with a stored past. Its own
words (that it is not certain, that it found nothing, a question back, small talk) are recognised and left out.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from app.domain.answers import BETWEEN, Outcome, from_documents
from app.domain.lengths import LONGEST_PAST
from app.domain.plain import Said
from app.domain.settings import Settings
from app.privacy.redaction import redact
from app.replies.languages import all_texts
from app.replies.smalltalk import heard
from app.storage.history import PastMessage
from retrieval.text.language import language_of


def past_of(messages: Sequence[Said], settings: Settings) -> list[PastMessage]:
    """The messages as the next prompt needs them. Neighbours of one role are one message; system messages are left out,
    because the desk has a system text of its own.
    """
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
    """The last messages that have `LONGEST_PAST` characters together, whole."""
    room = LONGEST_PAST
    for place in range(len(messages) - 1, -1, -1):
        room -= len(messages[place].text)
        if room < 0:
            return messages[place + 1 :]
    return messages


def outcome_of(question: str, said: str, settings: Settings) -> Outcome:
    """How an earlier question ended, by the words of the answer."""
    small_talk = heard(question, language_of(question))
    if small_talk is not None and small_talk.kind != "vague":
        return "smalltalk"
    if any(said.startswith(words) for words in (settings.refusal_text, *own_words("nothing"))):
        return "nothing"
    if any(said.startswith(words) for words in (*own_words("unsure"), *own_words("vague"))):
        return "unsure"
    return "answered"


def own_words(name: str) -> Iterator[str]:
    """How one of the desk's own texts begins, in each language."""
    for texts in all_texts().values():
        yield texts.says[name].partition("{")[0].partition(BETWEEN)[0]
