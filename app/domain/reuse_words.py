"""What was reused for an answer, in plain words: the same for pages, dashboard and terminal. No HTML."""

from app.domain.answers import Answer
from app.domain.formatting import count, milliseconds

SYSTEM_TEXT = "Instructions to the model"
SOURCES = {
    "device": "Model memory",
    "host": "Main memory",
    "disk": "Disk",
    "computed": "Read now",
}
REASONS = {
    "never built": "This passage had not been read before.",
    "evicted": "It had been read, but was dropped to make room.",
    "document changed": "The document changed after it was read.",
    "model or template changed": "Another model or instruction text was in use when it was read.",
    "placement": "It had been read for another place in the prompt, or this model cannot place passages.",
    "too short": "Too short to be worth keeping.",
    "load failed": "The kept copy could not be loaded.",
    "bypassed": "It was not to be used for this question: reuse was off, or the policy computes passages anew.",
}
EXACT = "Exact: the same computation as reading everything again for this question."
APPROXIMATE = (
    "Approximate: the documents were read one by one beforehand, so passages have not all seen each other. "
    "The answer can differ slightly from reading everything again."
)


def reason_words(reason: str | None) -> str:
    """A miss reason as a sentence; an unknown one is shown as it is."""
    return REASONS.get(reason or "", reason or "")


def reuse_line(answer: Answer) -> str:
    """The one line everybody sees, as plain text."""
    usage = answer.usage
    used = {module.document for module in answer.modules if module.source != "computed"}
    documents = len(used - {""})  # the system text belongs to no document
    origins = [f"{count(documents, 'document')}"] if documents else []
    if usage.session:
        origins.append("this conversation")
    if usage.cached_tokens:
        text = f"{count(usage.cached_tokens)} of {count(usage.prompt_tokens)} prompt tokens reused"
        text += f" from {' and '.join(origins)}" if origins else ""
    else:
        text = f"All {count(usage.prompt_tokens)} prompt tokens read now"
    return f"{text} · first token {milliseconds(answer.timings.ttft)}"
