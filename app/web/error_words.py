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

_FOR_ADMINS = {
    "module-in-use": translatable("An answer uses this passage now. Try again in a moment."),
    "module-unknown": translatable("This passage is not there any more, or its text has changed."),
    "bad-name": translatable("A name has 1 to 80 letters, digits and . _ @ -"),
    "bad-role": translatable("Choose a role: agent or admin."),
    "account-exists": translatable("There is an account of this name already. Choose another name."),
    "account-unknown": translatable("There is no account of this name any more."),
    "last-admin": translatable("This is the last admin. Make another account an admin first."),
    "own-account": translatable("This is your own account. Another admin can change it."),
    "bad-key-name": translatable("The name of a key has 1 to 80 characters."),
    "bad-scope": translatable("Choose at least one thing that the key may do."),
    "bad-limit": translatable("A key may send at least 1 request a minute."),
    "key-exists": translatable("There is a key of this name already. Revoke it first, or choose another name."),
    "key-unknown": translatable("There is no key of this name in use."),
    "secret-empty": translatable("Write the new secret, or remove the old one with its button."),
    "webhook-unsigned": translatable(
        "handoff_webhook needs handoff_webhook_secret, which signs it: set the secret first."
    ),
    "setting-closed": translatable("This setting cannot be changed here."),
}


def error_words(error: Exception) -> str:
    """One English line, which has a translation."""
    return _WORDS.get(error.code, UNEXPECTED) if isinstance(error, DeskError) else UNEXPECTED


def admin_words(error: DeskError) -> str:
    """For those who look after the desk: the same, or the desk's own line where there is no translation."""
    return _FOR_ADMINS.get(error.code, str(error))
