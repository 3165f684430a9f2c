"""The pages' HTML: templates in the reader's language, answers, sources and errors.

Every value in a template is escaped. A template writes its own texts as _("..."), with %% for %, and translates the
text of a variable with `translated(text)`. An answer is rendered as safe HTML with a little Markdown: paragraphs, line
breaks, lists, **bold**, *italic*, `code`; headings become bold lines. Raw HTML, images, links, tables and LaTeX stay
text. Only the contacts of the settings become links, and only in Warmdesk's own text (`linked`). Customers see a text
for the error's code. Warmdesk's own error texts name settings, commands and files, and are only logged.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path, PurePath

from babel.core import negotiate_locale
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markupsafe import Markup, escape

from app.domain import callers, words
from app.domain.answers import BETWEEN, OUTCOME_WORDS, Answer, Citation, Mark, reuse_line
from app.domain.errors import DeskError
from app.domain.settings import FAQ_FILE
from app.domain.words import gettext, speaking, translatable

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_BULLET = re.compile(r"^([ \t]{0,8})•(?=[ \t])", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+([^\s#].*)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\[\]\n]{0,200})\]\(([^()\s]{0,500})[^()\n]{0,100}\)")
_BLOCK = re.compile(r"<(?=(?:p|li|br)\b)")
_END = re.compile(r"((?:</(?:p|li|ul|ol)>)+)$")
_EMPHASIS = (
    ("em", re.compile(r"\*(\*\*[^\s*][^*\n]{0,300}\*\*)\*")),
    ("strong", re.compile(r"\*\*(?=\S)([^*\n]{1,500}?)(?<=\S)\*\*")),
    ("em", re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,300}?)(?<=[^\s*])\*(?![\w*])")),
)


def without_controls(text: str) -> str:
    """Return the text without control characters. Bidirectional ones in a passage could reorder nearby text."""
    return _CONTROL.sub("", text)


def answer_html(text: str) -> Markup:
    """Return the HTML of a whole or partial answer. An unfinished ** or list is shown as it is."""
    text = _LINK.sub(lambda link: f"{link[1]} ({link[2]})" if link[1] else link[2], without_controls(text))
    text = _HEADING.sub(lambda heading: f"**{heading[1].rstrip('# ').replace('**', '')}**", _BULLET.sub(r"\1-", text))
    return Markup(_renderer().render(text).replace("\n", ""))


def lookup_html(text: str, links: Sequence[str]) -> Markup:
    """Return the HTML of a look-up's text: plain text, with its checked links."""
    lines = Markup("<br>").join(without_controls(text).splitlines())
    return linked(Markup('<p dir="auto">%s</p>') % lines, {link: link for link in links})


def linked(html: Markup, links: Mapping[str, str]) -> Markup:
    """Return HTML with an anchor for every text of `links` in it. links: URLs by text, from the settings."""
    by_html = {escapeHtml(text): escapeHtml(address) for text, address in links.items()}
    if not by_html:
        return html
    longest_first = "|".join(map(re.escape, sorted(by_html, key=len, reverse=True)))

    def anchor(found: re.Match[str]) -> str:
        return f'<a href="{by_html[found[0]]}" rel="noopener noreferrer">{found[0]}</a>'

    return Markup(re.sub(longest_first, anchor, str(html)))


def preview(text: str) -> str:
    """Return the beginning of an answer without Markdown."""
    return Markup(_BLOCK.sub(" <", str(answer_html(text[:500])))).striptags()


def caret_html(text: str) -> Markup:
    return at_its_end(answer_html(text), Markup('<span class="wd-caret"></span>'))


def at_its_end(html: Markup, more: Markup) -> Markup:
    return Markup(_END.sub(lambda end: f"{more}{end[1]}", str(html)))


@cache
def _renderer() -> MarkdownIt:
    markdown = MarkdownIt("zero", {"breaks": True, "maxNesting": 100}).enable(["list", "backticks", "newline"])
    markdown.inline.ruler.push("emphasis_by_stars", _emphasis)
    markdown.core.ruler.push("blocks", _set_up_blocks)
    return markdown


def _emphasis(state: StateInline, silent: bool) -> bool:
    """Parse emphasis. CommonMark's own rule treats 2*3*4 as emphasis, and does not end bold text between Chinese
    punctuation and a letter. silent: never set, because no active rule looks ahead.
    """
    for tag, pattern in _EMPHASIS:
        if match := pattern.match(state.src, state.pos, state.posMax):
            end = state.posMax
            state.push(f"{tag}_open", tag, 1)
            state.pos, state.posMax = match.span(1)
            state.md.inline.tokenize(state)
            state.push(f"{tag}_close", tag, -1)
            state.pos, state.posMax = match.end(), end
            return True
    return False


def _set_up_blocks(state: StateCore) -> None:
    """Set the writing direction of each block; make lists look the same with and without empty lines."""
    hide = False
    for before, token in zip([None, *state.tokens], state.tokens, strict=False):
        if token.type in ("paragraph_open", "list_item_open"):
            token.attrSet("dir", "auto")
        if token.type == "paragraph_open":
            hide = before is not None and before.type == "list_item_open"
        if token.type in ("paragraph_open", "paragraph_close"):
            token.hidden = hide


ENGLISH = "en"
LANGUAGES = {ENGLISH: "en", "zh": "zh-CN"}  # the languages of the pages, and HTML's names for them
CATALOGUES = Path(__file__).parent / "locale"
STATIC_FOLDER = Path(__file__).parent / "static"


def page_language(headers: Mapping[str, str]) -> str:
    """Return the language of a page, from a request's header Accept-Language; English if we support none of them."""
    wanted = _by_preference(headers.get("accept-language", "").lower())
    return negotiate_locale(wanted, list(LANGUAGES), sep="-") or ENGLISH


def _by_preference(accepted: str) -> Sequence[str]:
    """Return "de,zh-CN;q=0.8,en;q=0.9" as de, en, zh-CN. An unreadable weight counts as 0."""
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
    if language == ENGLISH:
        return NullTranslations()
    with (CATALOGUES / language / "LC_MESSAGES" / "warmdesk.po").open("rb") as file:
        catalogue = read_po(file, locale=language)
    compiled = BytesIO()
    write_mo(compiled, catalogue)
    compiled.seek(0)
    return GNUTranslations(compiled)


UNEXPECTED = translatable("Something went wrong on our side. Please try again.")
UNAVAILABLE = translatable("We cannot answer at the moment. Please try again soon.")
_GONE = translatable("This conversation no longer exists. Please start a new one.")
_ERROR_WORDS = {
    "question-too-long": translatable("Your question is too long. Please shorten it and send it again."),
    "context-full": translatable("Your question is too long to be answered. Please shorten it and send it again."),
    "conversation-unknown": _GONE,
    "no-such-conversation": _GONE,
    "rate-limit": translatable("Too many questions in a short time. Please wait a moment and send it again."),
    "engine-full": translatable(
        "Many customers are asking questions. Please wait a little and send your question again."
    ),
    "too-many": translatable("You have very many conversations. Please delete some, then start a new one."),
    "with-person": translatable("A person answers this conversation now. Please send your message again."),
    "bad-email": translatable("This is not an e-mail address. Please check it."),
    "outside-hours": translatable("No one is available now. Please leave your e-mail address."),
    "no-answer": translatable("The answer was stopped before it began."),
}

_FOR_ADMINS = {
    "module-in-use": translatable("An answer uses this passage now. Try again in a moment."),
    "module-unknown": translatable("This passage no longer exists, or its text has changed."),
    "bad-name": translatable("A name must consist of 1 to 80 letters, digits and . _ @ -"),
    "bad-role": translatable("Choose a role: agent or admin."),
    "account-exists": translatable("An account with this name exists already. Choose another name."),
    "account-unknown": translatable("This account no longer exists."),
    "last-admin": translatable("This is the last admin. Make another account an admin first."),
    "own-account": translatable("This is your own account. Another admin can change it."),
    "bad-key-name": translatable("The name of a key must have 1 to 80 characters."),
    "bad-scope": translatable("Choose at least one scope of the key."),
    "bad-limit": translatable("The limit of a key must be 1 to 100,000 requests per minute."),
    "key-exists": translatable("A key with this name exists already. Revoke it first, or choose another name."),
    "key-unknown": translatable("No key with this name is in use."),
    "runs-elsewhere": translatable("The language model is remote: its memory cannot be changed here."),
    "setting-closed": translatable("This setting is changed in the settings file or on the command line."),
}

_OF_DOCUMENTS = {
    "ingestion-running": translatable("Documents are already being added. Try again when that is done."),
    "upload-too-large": translatable("The file is larger than 20 MB. Split it, or reduce its size."),
    "bad-name": translatable("This is not a valid name of a document or collection. Choose another one."),
    "document-unknown": translatable("This document no longer exists."),
    "forget-incomplete": translatable("It could not be deleted completely. Try again."),
    "collection-unknown": translatable("This collection has no documents any more."),
    "collection-faq": translatable("Questions of the FAQ are deleted one by one, on the page FAQ."),
    "collection-synced": translatable(
        "A folder or website is synchronised into this collection. Stop reading it first."
    ),
    "sync-gone": translatable("There is no such folder. Is its disk mounted?"),
    "sync-unreadable": translatable("The server has no permission to read this folder. Give its user the permission."),
    "sync-nothing": translatable(
        "No document in this folder can be read now, so its documents stay. Is its disk mounted?"
    ),
    "sync-relative": translatable("Enter the absolute path of a folder, or the address of a website with https://."),
    "sync-system": translatable("This folder is hidden or belongs to the system. Choose another one."),
    "sync-own-folder": translatable("This folder contains the server's own files. Choose one with documents only."),
    "sync-overlap": translatable("A synchronised folder or website has the same documents. Stop reading it first."),
    "sync-interval": translatable("Choose an interval from 5 minutes to 31 days."),
    "sync-collection": translatable("The name of a collection must not exceed 80 characters."),
    "sync-unknown": translatable("This folder or website is no longer synchronised."),
    "sync-held": translatable(
        "Many pages are missing, so nothing was changed. Check the website. If they are gone, delete the missing pages."
    ),
    "sync-stopped": translatable("The run was stopped. The next run continues from there."),
    "website-nothing": translatable("No page of this website can be read. The report shows the reasons."),
    "website-address": translatable("This is not the address of a website. Write it as https://help.example.com."),
    "website-patterns": translatable("A pattern must begin with / and not exceed 200 characters, for example /blog/*."),
    "website-private": translatable(
        "This website is in a private network. If it may be read, add its host to the setting private_hosts."
    ),
    "website-refuses": translatable("The website refuses the requests. Ask its owner, or set a longer website_pause."),
    "internal": translatable("Something went wrong on our side. The server's log has more."),
}


def error_words(error: Exception) -> str:
    """Return one English line for customers, which the catalogues translate."""
    if not isinstance(error, DeskError):
        return UNEXPECTED
    return UNAVAILABLE if error.is_of_database else _ERROR_WORDS.get(error.code, UNEXPECTED)


def admin_words(error: DeskError) -> str:
    """Return an error's text for admins and agents; Warmdesk's own line if the code has no text."""
    return _FOR_ADMINS.get(error.code, str(error))


def problem_words(code: str, message: str) -> str:
    """Return a document error for admins, in the page's language; Warmdesk's own line if the code has no text."""
    return gettext(_OF_DOCUMENTS[code]) if code in _OF_DOCUMENTS else message


@dataclass(frozen=True, slots=True)
class Source:
    """A citation with its number, from 1."""

    number: int
    citation: Citation

    @property
    def has_file(self) -> bool:
        """Return whether customers may get the document's file. The FAQ's file also contains other questions."""
        return PurePath(self.citation.document).name != FAQ_FILE

    @property
    def quote(self) -> Markup:
        """Return the passage as HTML, with the quoted text in <mark>."""
        text = without_controls(self.citation.quote)
        if len(text) != len(self.citation.quote):
            return escape(text)  # the positions of the marks are wrong now
        html, at = Markup(), 0
        for start, end in _joined(self.citation.marks, len(text)):
            html += escape(text[at:start]) + Markup("<mark>%s</mark>") % text[start:end]
            at = end
        return html + escape(text[at:])


def _joined(marks: Sequence[Mark], length: int) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted((mark.start, min(mark.end, length)) for mark in marks):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif start < end:
            joined.append((start, end))
    return joined


def sources_of(answer: Answer) -> list[Source]:
    ordered = sorted(answer.citations, key=lambda one: one.see_also)
    return [Source(number, one) for number, one in enumerate(ordered, start=1)]


def statements_html(answer: Answer, label: str) -> Markup:
    """Return the answer's text, with numbered source buttons after each paragraph from the documents. label: a button's
    name, with %(number)s.
    """
    numbers: dict[int, list[int]] = {}
    for source in sources_of(answer):
        for said in sorted({mark.paragraph for mark in source.citation.marks}):
            numbers.setdefault(said, []).append(source.number)
    paragraphs = answer.answer.split(BETWEEN)
    lead = len(paragraphs) - len(answer.statements) if answer.statements else len(paragraphs)
    html = Markup()
    for place, paragraph in enumerate(paragraphs):
        buttons = Markup().join(
            Markup(
                '<button type="button" class="wd-ref" data-act="source" data-source="%s" aria-label="%s">%s</button>'
            )
            % (number, label % {"number": number}, number)
            for number in numbers.get(place - lead, ())
        )
        html += at_its_end(answer_html(paragraph), buttons)
    return html


_FUNCTIONS = (
    *(words.ago, words.count, words.counted, words.milliseconds, words.percent),
    *(words.short_path, words.size, words.until, words.interval, callers.notice_words),
    *(words.reason_words, words.cure_words, reuse_line, words.source_words),
    *(answer_html, caret_html, linked, lookup_html, preview, problem_words, sources_of, statements_html),
)
_WORDS = ("SYSTEM_TEXT", "EXACT", "APPROXIMATE", "ELSEWHERE")


def render(template: str, /, *, language: str, **values: object) -> str:
    """Return the HTML of a template (its path in `templates`). language: one of `LANGUAGES`. Raises
    jinja2.UndefinedError for a missing value.
    """
    with speaking(translations(language)):
        return _environment().get_template(template).render(html_language=LANGUAGES[language], **values).strip()


def static(name: str) -> str:
    return (STATIC_FOLDER / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n"],
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.install_gettext_callables(words.gettext, words.ngettext, newstyle=True)  # type: ignore[attr-defined]
    environment.globals |= {function.__name__: function for function in (*_FUNCTIONS, day)}
    environment.globals |= {"translated": words.gettext, "_": _in_page_language, "OUTCOME_WORDS": OUTCOME_WORDS}
    environment.globals |= {name: getattr(words, name) for name in _WORDS}
    macros = environment.get_template("macros.html").module
    environment.globals |= {
        name: getattr(macros, name) for name in ("icon", "scrolling_table", "turning", "tile", "when", "ended")
    }
    return environment


def _in_page_language(text: str, **values: object) -> Markup:
    """A faster `_` than the extension's own, because a long conversation needs a thousand calls."""
    said = Markup(gettext(text))
    return said % values if "%" in said else said


def _printable(value: object) -> object:
    """Remove control characters from an inserted value, also within a translated text."""
    return type(value)(without_controls(value)) if isinstance(value, str) else value


def day(moment: datetime, now: datetime) -> str:
    """Return the heading of a conversation in the list, for example "Today", in the server's time zone."""
    today, then = (words.utc(one).astimezone().date() for one in (now, moment))
    days = (today - then).days
    if days <= 1:
        return gettext("Today") if days <= 0 else gettext("Yesterday")
    return gettext("This week") if days < 7 else gettext("Earlier")
