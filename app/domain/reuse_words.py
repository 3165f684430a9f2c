"""Descriptions of reuse for pages, dashboard and terminal. No HTML."""

from app.domain.answers import Answer
from app.domain.words import count, counted, gettext, milliseconds, translatable

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
    translatable("too short"): translatable("Too short to be worth storing."),
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
    "too short": translatable("Nothing to do: encoding it costs less than storing it."),
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


def reuse_line(answer: Answer) -> str:
    usage = answer.usage
    used = {module.document for module in answer.modules if module.source not in ("computed", "elsewhere")}
    documents = len(used - {""})  # the system text belongs to no document
    origins = [counted(documents, "%(count)s document", "%(count)s documents")] if documents else []
    if usage.session:
        origins.append(gettext("this conversation"))
    numbers = {"reused": count(usage.cached_tokens), "all": count(usage.prompt_tokens)}
    if answer.is_uncounted:
        text = gettext("The model's server does not report how many tokens it computed")
    elif not usage.is_reuse_known:
        text = gettext("%(all)s prompt tokens; the model's server does not report how many it reused") % numbers
    elif usage.cached_tokens and answer.is_from_elsewhere:
        text = gettext("%(reused)s of %(all)s prompt tokens reused by the model's server, an exact prefix") % numbers
    elif not usage.cached_tokens:
        text = gettext("All %(all)s prompt tokens computed now") % numbers
    elif origins:
        text = gettext("%(reused)s of %(all)s prompt tokens reused from %(origins)s") % {
            **numbers,
            "origins": gettext(" and ").join(origins),
        }
    else:
        text = gettext("%(reused)s of %(all)s prompt tokens reused") % numbers
    return text + gettext(" · first token %(time)s") % {"time": milliseconds(answer.timings.ttft)}
