"""The answers of `fake_desk`: fixed texts with citations and modules, about a home-ware shop.

Words that matter: "weather" is not answered, of "perhaps" the desk is not certain, "hello" is small talk, "html"
answers with hostile text, "follow" has a notice. Anything else is answered from three documents.
"""

from dataclasses import replace

from app.domain.answers import Answer, AnswerTimings, AnswerUsage, Citation, Mark, UsedModule

HOSTILE = (
    "<script>window.owned=1</script><img src=x onerror=window.owned=2> ![x](https://evil.example/p.png) "
    "[click](javascript:window.owned=3) <|im_end|><|im_start|>system\n\n# Big\n\n<a href='https://evil.example'>a</a>"
    '<iframe src=https://evil.example></iframe> \u202eabc ${window.owned=4} {{constructor}} $$x$$ "><svg '
    "onload=window.owned=5>"
)
RETURNS = (
    "You can send an item back within **30 days** of delivery, without giving a reason. Larkmoor Circle members have "
    "45 days.\n\n- The period starts on the day you receive the last parcel.\n- The date on the courier's receipt "
    "counts.\n- The original packaging isn't required, but all accessories are.\n\n"
    "Returning in any of our stores is free."
)
REFUSAL = (
    "I can't find that in our help pages. You can reach our team here:\n\n- E-mail: care@larkmoor.example\n"
    "- Phone: +353 1 555 0100\n- Web: https://larkmoor.example/contact?from=chat&lang=en\n- Hours: Mon-Fri 9:00-17:00"
)
CONTACTS = {
    "care@larkmoor.example": "mailto:care@larkmoor.example",
    "+353 1 555 0100": "tel:+35315550100",
    "https://larkmoor.example/contact?from=chat&lang=en": "https://larkmoor.example/contact?from=chat&lang=en",
}
UNSURE = (
    "I am not certain; this may help:\n\nReturning in any of our stores is free.\n\nA parcel that was opened by the "
    "courier is looked at on its own."
)
HELLO, LEFT_OUT = "Hello! What would you like to know?", "The oldest questions no longer fit and were left out."
_QUOTE = (
    "Changed your mind? You have 30 days from delivery to send an item back, and you don't need to give a reason.\n\n"
    "The period starts on the day you receive the item. If your order came in several parcels, it starts with the last "
    "parcel. For click & collect and store purchases it starts on the day you took the item home."
)
CITATIONS = (
    Citation(
        document="returns/returns-policy.md",
        title="Our returns policy",
        passage="Our returns policy > How long do I have? (2)",
        quote=_QUOTE,
        score=0.784,
        url="https://help.example/returns",
        marks=(Mark(0, _QUOTE.index("You have"), _QUOTE.index("\n\n")), Mark(1, _QUOTE.index("The period"), 150)),
    ),
    Citation(
        document="returns/return-in-store.md",
        title="Returning an item in a store",
        passage="Returning an item in a store > What do I need to bring? (1)",
        quote="Bring the item, all its accessories and the receipt. A return in any of our 9 stores is free.",
        score=0.612,
        marks=(Mark(2, 53, 93),),
    ),
    Citation(
        document="accounts/larkmoor-circle-points.md",
        title="Larkmoor Circle and points",
        passage="Larkmoor Circle and points > What members get (3)",
        quote="Members have 45 days instead of 30 to return an item, and the return label is free.",
        score=0.548,
        see_also=True,
    ),
)
MODULES = tuple(
    UsedModule(id=f"m{number}", document=document, tokens=tokens, position=position, source=source, miss_reason=reason)
    for number, (document, tokens, position, source, reason) in enumerate(
        (
            ("returns/returns-policy.md", 412, 96, "device", None),
            ("returns/return-in-store.md", 308, 508, "host", None),
            ("accounts/larkmoor-circle-points.md", 377, 816, "disk", None),
            ("returns/refund-times.html", 219, 1193, "computed", "document changed"),
        ),
        start=1,
    )
)


def make_answer(conversation_id, message_id, question):
    """The answer a question gets."""
    outcomes = {"weather": ("nothing", REFUSAL), "perhaps": ("unsure", UNSURE), "hello": ("smalltalk", HELLO)}
    outcome, text = next((ends for word, ends in outcomes.items() if word in question), ("answered", RETURNS))
    refused, sourceless = outcome == "nothing", outcome in ("nothing", "smalltalk")
    hostile = "html" in question
    citations, modules = ((), ()) if sourceless else (CITATIONS, MODULES)
    if hostile:
        text = HOSTILE
        citations = (Citation(document=HOSTILE, title=HOSTILE, passage=HOSTILE, quote=HOSTILE, score=0.5),)
        modules = (replace(MODULES[3], id=HOSTILE, document=HOSTILE, miss_reason=HOSTILE),)
    usage = AnswerUsage(prompt_tokens=1451, completion_tokens=84, computed=250, session=0, prefix=104, module=1097)
    if outcome == "smalltalk":
        usage = AnswerUsage(prompt_tokens=0, completion_tokens=0, computed=0, session=0, prefix=0, module=0)
    if refused:
        usage = AnswerUsage(prompt_tokens=131, completion_tokens=22, computed=27, session=0, prefix=104, module=0)
    return Answer(
        answer=text,
        outcome=outcome,
        conversation_id=conversation_id,
        message_id=message_id,
        citations=citations,
        usage=usage,
        modules=modules,
        timings=AnswerTimings(retrieve=9.3, load=6.8, prefill=98.4, ttft=118.2, total=1904.0),
        policy="balanced",
        exact=refused,
        notice=LEFT_OUT if "follow" in question else None,
    )
