"""What a customer is told of an error, by its code. The desk's own messages are for who runs it: they name settings,
commands and files, and go to the log.
"""

from app.domain.errors import DeskError
from app.domain.translation import gettext, translatable

UNEXPECTED = translatable("Something went wrong on our side. Please try again.")
UNAVAILABLE = translatable("The desk cannot answer at this moment. Please try again soon.")
_GONE = translatable("This conversation is no longer there. Please start a new one.")
_WORDS = {
    "question-too-long": translatable("Your question is too long. Please shorten it and send it again."),
    "context-full": translatable("Your question is too long to be answered. Please shorten it and send it again."),
    "conversation-unknown": _GONE,
    "no-such-conversation": _GONE,
    "rate-limit": translatable("Too many questions in a short time. Please wait a moment and send it again."),
    "engine-full": translatable("Many people ask at this moment. Please wait a little and send your question again."),
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
    "bad-limit": translatable("A key may send 1 to 100,000 requests a minute."),
    "key-exists": translatable("There is a key of this name already. Revoke it first, or choose another name."),
    "key-unknown": translatable("There is no key of this name in use."),
    "runs-elsewhere": translatable("The language model runs elsewhere: nothing of its memory can be changed here."),
    "setting-closed": translatable("This setting is changed in the settings file or on the command line."),
}

_OF_DOCUMENTS = {
    "ingestion-running": translatable("Documents are being taken in already. Try again when that is done."),
    "upload-too-large": translatable("The file is larger than 20 MB. Split it, or save it smaller."),
    "bad-name": translatable("This cannot be the name of a document or collection. Give it another one."),
    "document-unknown": translatable("This document is not there any more."),
    "forget-incomplete": translatable("Not all of it could be removed. Do it once more."),
    "collection-unknown": translatable("There is no document in this collection any more."),
    "collection-faq": translatable("Questions of the FAQ are removed one by one, on the page FAQ."),
    "collection-synced": translatable("A folder is synchronised into this collection. Remove that folder first."),
    "sync-gone": translatable("There is no such folder. Is its disk mounted?"),
    "sync-unreadable": translatable("The desk may not read this folder. Give its user the right to."),
    "sync-nothing": translatable(
        "No document in this folder can be read now, so those of the desk stay. Is its disk mounted?"
    ),
    "sync-relative": translatable("Write the whole path of the folder, beginning with /."),
    "sync-system": translatable("This folder is hidden or belongs to the system. Choose another one."),
    "sync-own-folder": translatable("This folder holds the desk's own files. Choose one that has documents only."),
    "sync-overlap": translatable("This folder shares documents with one that is here already. Remove that one first."),
    "sync-interval": translatable("Choose 5 minutes to 31 days."),
    "sync-collection": translatable("The name of a collection has at most 80 characters."),
    "sync-unknown": translatable("This folder is not synchronised any more."),
    "internal": translatable("Something went wrong on our side. The log of the desk says more."),
}


def error_words(error: Exception) -> str:
    """One English line, which has a translation."""
    if not isinstance(error, DeskError):
        return UNEXPECTED
    return UNAVAILABLE if error.is_of_database else _WORDS.get(error.code, UNEXPECTED)


def admin_words(error: DeskError) -> str:
    """For those who look after the desk: the same, or the desk's own line where there is no translation."""
    return _FOR_ADMINS.get(error.code, str(error))


def problem_words(code: str, message: str) -> str:
    """What an admin is told of a failure with documents, in the page's language: by its code, else the desk's line."""
    return gettext(_OF_DOCUMENTS[code]) if code in _OF_DOCUMENTS else message
