"""What a customer is told of an error, by its code. The desk's own messages are for who runs it: they name settings,
commands and files, and go to the log.
"""

from app.domain.errors import DeskError
from app.domain.translation import translatable

UNEXPECTED = translatable("Something went wrong on our side. Please try again.")
_GONE = translatable("This conversation is no longer there. Please start a new one.")
_WORDS = {
    "question-too-long": translatable("Your question is too long. Please shorten it and send it again."),
    "context-full": translatable("Your question is too long to be answered. Please shorten it and send it again."),
    "conversation-unknown": _GONE,
    "no-such-conversation": _GONE,
    "rate-limit": translatable("Too many questions in a short time. Please wait a moment and send it again."),
    "too-many": translatable("You have very many conversations. Please delete some, then start a new one."),
    "with-person": translatable("A person answers this conversation now. Please send your message again."),
    "bad-email": translatable("This is not an e-mail address. Please check it."),
    "outside-hours": translatable("Nobody is here any more. Please leave your e-mail address."),
    "no-answer": translatable("The answer was stopped before it began."),
}


def error_words(error: Exception) -> str:
    """One English line, which has a translation."""
    return _WORDS.get(error.code, UNEXPECTED) if isinstance(error, DeskError) else UNEXPECTED
