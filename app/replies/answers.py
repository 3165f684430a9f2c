"""What the desk says in its own words, in the customer's language. Not covered: when (`app.answering.decide`)."""

from collections.abc import Sequence

from app.domain.answers import BETWEEN
from app.domain.settings import Settings
from app.replies.contacts import contact_lines
from app.replies.languages import texts_in


def nothing_text(settings: Settings, language: str) -> str:
    """That the documents do not answer, and whom to ask instead. The setting `refusal_text` takes its place in every
    language, if it is set.
    """
    texts = texts_in(language)
    contacts = contact_lines(settings, texts)
    if "refusal_text" in settings.model_fields_set:
        return settings.refusal_text + (BETWEEN + contacts if contacts else "")
    return _with_contacts(texts.says["nothing"], contacts, language)


def human_text(settings: Settings, language: str, page: str = "") -> str:
    """The reply to a request for a person. page: what the documents say about it, in place of the contacts."""
    texts = texts_in(language)
    if page:
        return texts.says["human"] + BETWEEN + page
    return _with_contacts(texts.says["human"], contact_lines(settings, texts), language)


def vague_text(topics: Sequence[str], language: str) -> str:
    """The question back to a message that is too vague, with what the documents are about."""
    return texts_in(language).says["vague"].format(topics=", ".join(topics))


def _with_contacts(text: str, contacts: str, language: str) -> str:
    says = texts_in(language).says
    space = "" if language == "zh" else " "
    return f"{text}{space}{says['contact']}{BETWEEN}{contacts}" if contacts else f"{text}{space}{says['no_contact']}"
