"""How customers reach people: the contacts of the settings as lines of text, and as links for the page."""

import re
from collections.abc import Mapping

from app.domain.settings import Settings
from app.replies.languages import Texts

CONTACTS = ("email", "phone", "url", "hours")
"""In the order shown; each is the setting contact_NAME."""


def contact_lines(settings: Settings, texts: Texts) -> str:
    """The contacts that are set, each as an item of a list; empty if none is."""
    given = {name: getattr(settings, f"contact_{name}") for name in CONTACTS}
    return "\n".join(f"- {texts.says[name]}: {value}" for name, value in given.items() if value is not None)


def contact_links(settings: Settings) -> Mapping[str, str]:
    """Addresses by the text they stand for: http, https, mailto or tel."""
    links = {}
    if settings.contact_email is not None:
        links[settings.contact_email] = f"mailto:{settings.contact_email}"
    if settings.contact_phone is not None:
        links[settings.contact_phone] = "tel:" + re.sub(r"[^\d+]", "", settings.contact_phone)
    if settings.contact_url is not None:
        links[settings.contact_url] = settings.contact_url
    return links
