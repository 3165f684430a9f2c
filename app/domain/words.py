"""Texts, numbers, sizes, times and descriptions of reuse in the language of the page. No HTML.

The code contains English, which is also used for missing translations. A page sets its language once with `speaking`.
The command line sets none and is in English. Out of scope: the language of a page and the translations
(`app.web.rendering`); answers (`app.replies`), which are in the question's language.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from gettext import NullTranslations

_ENGLISH = NullTranslations()
_speaking: ContextVar[NullTranslations] = ContextVar("translations", default=_ENGLISH)


@contextmanager
def speaking(translations: NullTranslations) -> Iterator[None]:
    """Translate the texts of the block. Do not use it around a `yield`: a generator may resume in another context."""
    before = _speaking.set(translations)
    try:
        yield
    finally:
        _speaking.reset(before)


def gettext(text: str) -> str:
    return _speaking.get().gettext(text) if text else ""  # a catalogue keeps its own header under ""


def ngettext(one: str, several: str, number: int) -> str:
    return _speaking.get().ngettext(one, several, number)


def translatable(text: str) -> str:
    """Mark a text that is stored in English and given to `gettext` when it is shown."""
    return text


MISSING = "–"


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, one: str, several: str) -> str:
    """Return a number of things in the page's language. one, several: English, with %(count)s for the number."""
    return ngettext(one, several, number) % {"count": count(number)}


def percent(part: float, whole: float) -> str:
    """Return whole percent. 0 % and 100 % are only returned if they are exact."""
    if whole <= 0:
        return MISSING
    share = 100 * part / whole
    if 0 < share < 0.5:
        return "<1%"
    if 99.5 <= share < 100:
        return ">99%"
    return f"{share:.0f}%"


def milliseconds(value: float | None) -> str:
    """Return a duration as text, for example 118 ms, 3.4 ms, 1.24 s."""
    if value is None:
        return MISSING
    if value >= 999.5:
        return f"{value / 1000:.2f} s" if value < 9995 else f"{value / 1000:,.1f} s"
    return f"{value:.1f} ms" if 0 < value < 9.95 else f"{value:.0f} ms"


def size(num_bytes: int) -> str:
    """Return a size in binary units, as in the settings: 512 B, 18 KiB, 4.2 MiB, 1.07 GiB."""
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5:
            break
        value, unit = value / 1024, larger
    digits = 0 if unit in ("B", "KiB") or value >= 99.5 else 1 if unit == "MiB" or value >= 9.95 else 2
    return f"{value:,.{digits}f} {unit}"


def utc_now() -> datetime:
    return datetime.now(UTC)


def utc(moment: datetime) -> datetime:
    """Add the time zone UTC to a time from the database."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def one_line(text: str) -> str:
    return " ".join(text.split())


def short_path(document: str) -> str:
    """Return the last two parts of a document's path, which identify a help page."""
    return "/".join(document.replace("\\", "/").rsplit("/", 2)[-2:])


def ago(moment: datetime | None, now: datetime) -> str:
    """Return a time in the past as text: just now, 3 min ago, 2 h ago, yesterday, 5 days ago, 12 Mar 2026."""
    if moment is None:
        return gettext("never")
    seconds = int((utc(now) - utc(moment)).total_seconds())
    days = seconds // 86_400
    if seconds < 60:
        return gettext("just now")
    if seconds < 3600:
        return gettext("%(count)s min ago") % {"count": seconds // 60}
    if days < 1:
        return gettext("%(count)s h ago") % {"count": seconds // 3600}
    if days == 1:
        return gettext("yesterday")
    if days < 30:
        return gettext("%(count)s days ago") % {"count": days}
    return utc(moment).strftime(gettext("%-d %b %Y"))


def until(moment: datetime, now: datetime) -> str:
    """Return a time in the future as text: now, in 3 min, in 2 h, in 5 days."""
    minutes = int((utc(moment) - utc(now)).total_seconds() + 59) // 60
    if minutes < 1:
        return gettext("now")
    if minutes < 60:
        return gettext("in %(count)s min") % {"count": minutes}
    if minutes < 48 * 60:
        return gettext("in %(count)s h") % {"count": round(minutes / 60)}
    return gettext("in %(count)s days") % {"count": round(minutes / 1440)}


def interval(minutes: int) -> str:
    """Return an interval as text: every 20 minutes, every hour, every 2 days."""
    if minutes % 1440 == 0:
        return counted(minutes // 1440, "every day", "every %(count)s days")
    if minutes % 60 == 0:
        return counted(minutes // 60, "every hour", "every %(count)s hours")
    return counted(minutes, "every minute", "every %(count)s minutes")


SYSTEM_TEXT = translatable("Instructions to the model")
SOURCES = {
    "device": translatable("Model memory"),
    "host": translatable("Main memory"),
    "disk": translatable("Disk"),
    "computed": translatable("Computed now"),
    "elsewhere": translatable("Sent to the model's server"),
}
REASONS = {
    translatable("never built"): translatable("This passage had not been encoded before."),
    translatable("evicted"): translatable("It had been encoded, but was evicted to free memory."),
    translatable("document changed"): translatable("The document changed after it was encoded."),
    translatable("model or template changed"): translatable("It was encoded with another model or system text."),
    translatable("placement"): translatable(
        "It had been encoded for another position in the prompt, or this model cannot move passages."
    ),
    translatable("load failed"): translatable("The stored copy could not be loaded."),
    translatable("bypassed"): translatable(
        "Not used for this question: reuse was off, the policy recomputes passages, or recomputing was faster than the "
        "disk."
    ),
}
CURES = {
    "never built": translatable("Nothing to do if the document is new: passages are encoded when the server is idle."),
    "evicted": translatable("Increase the settings device_memory and disk, or pin important passages."),
    "document changed": translatable("Nothing to do: it is encoded once for each change. Add changes at a quiet hour."),
    "model or template changed": translatable("Nothing to do: passages are encoded again once after such a change."),
    "placement": translatable("Use a model with rotary positions, or placement = contiguous."),
    "load failed": translatable("Check the disk and its free space; the passage was encoded and stored again."),
    "bypassed": translatable(
        "Use the policy fast or balanced, leave reuse on, and keep the data folder on a fast disk."
    ),
}
EXACT = translatable("Exact: the same computation as encoding everything again for this question.")
APPROXIMATE = translatable(
    "Approximate: the passages were encoded separately beforehand. The answer can differ slightly from encoding "
    "everything together."
)
ELSEWHERE = translatable("The language model is remote: its server manages its own memory.")
"""Texts of this file are English; the functions, and the code that shows them, translate."""


def source_words(source: str) -> str:
    return gettext(SOURCES[source]) if source in SOURCES else source


def reason_words(reason: str | None) -> str:
    """Return a miss reason (a key of REASONS) as a sentence, or an unknown one unchanged."""
    return gettext(REASONS[reason]) if reason in REASONS else reason or ""


def cure_words(reason: str) -> str:
    return gettext(CURES[reason]) if reason in CURES else ""
