"""The languages of the pages: which one a browser asks for, and its texts, from the catalogues in `locale`.

A catalogue is compiled when it is first used, so nothing that is made from it lies in the repository. For another
language, add its folder beside `zh` and a line to LANGUAGES; a test says which texts are missing.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

from babel.core import negotiate_locale
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

ENGLISH = "en"
LANGUAGES = {ENGLISH: "en", "zh": "zh-CN"}
"""The languages of the pages, and what HTML calls them."""
CATALOGUES = Path(__file__).parent / "locale"


def page_language(headers: Mapping[str, str]) -> str:
    """The language of a page, from a request's header Accept-Language; English if it names none that we have."""
    wanted = _by_preference(headers.get("accept-language", "").lower())
    return negotiate_locale(wanted, list(LANGUAGES), sep="-") or ENGLISH


def _by_preference(accepted: str) -> Sequence[str]:
    """ "de,zh-CN;q=0.8,en;q=0.9" as de, en, zh-CN. What cannot be read counts as not wanted."""
    weights: dict[str, float] = {}
    for choice in accepted.split(","):
        tag, _, parameter = choice.partition(";")
        quality = parameter.strip().removeprefix("q=")
        try:
            weights[tag.strip()] = float(quality) if parameter else 1.0
        except ValueError:
            continue
    return sorted((tag for tag, weight in weights.items() if weight > 0), key=lambda tag: -weights[tag])


@cache
def translations(language: str) -> NullTranslations:
    """The texts of one of LANGUAGES."""
    if language == ENGLISH:
        return NullTranslations()
    with (CATALOGUES / language / "LC_MESSAGES" / "warmdesk.po").open("rb") as file:
        catalogue = read_po(file, locale=language)
    compiled = BytesIO()
    write_mo(compiled, catalogue)
    compiled.seek(0)
    return GNUTranslations(compiled)
