"""What stands on the admin pages of a served fake desk: accounts, keys, entries of the audit log, a conversation, an
FAQ, a customer who waits. For the tests of accessibility and the screenshots.
"""

from dataclasses import replace
from datetime import UTC, datetime

from browser import Site
from fake_desk import make_answer
from quick_account import quick_account
from stored_answers import details

from app.access.identity import Keys
from app.domain.quality import FaqDraft
from app.storage.handoffs import Handoffs
from app.storage.history import History, new_id
from app.storage.people import Accounts, Audit

OWNER = "v-4f1d0c5e9b2a7788"
AUDITED = (
    ("account-add", "Ann"),
    ("key-create", "shop"),
    ("document-add", "returns/returns-policy.md"),
    ("module-verify", "shipping/delivery-costs-and-times.md Section 2 · 3"),
    ("settings", "refusal_text"),
    ("document-forget", "promotions/a-document-with-a-very-long-name-that-has-no-place-to-break-it.html"),
)


def fill(site: Site) -> str:
    """Gives the id of the stored conversation."""
    quick_account(Accounts(site.database), "Ann", "agent")
    keys, audit = Keys(site.database), Audit(site.database)
    keys.create("shop")
    keys.create("nightly import of documents", ("chat", "documents"), 600)
    keys.revoke("shop")
    for action, subject in AUDITED:
        audit.record("admin", action, subject)
    site.desk.quality.save_faq(
        FaqDraft(
            question="Do you deliver to Galway?",
            answer="Yes, within three days, and on Saturdays for €5 more.",
            wordings=("Galway delivery", "How long does a parcel to Galway take?"),
        ),
        "Ann",
    )
    history = History(site.database)
    conversation = history.start_conversation("Can I return a lamp?", OWNER)
    messages = [converse(history, conversation, text) for text in ("Can I return a lamp?", "weather in Galway?")]
    history.feedback(messages[-1], "down", "I asked about the shop in Galway", owner=OWNER)
    handoffs, now = Handoffs(site.database, announced=False), datetime.now(UTC)
    handoffs.request(conversation, OWNER, "waiting", "button", "", now)
    for state, email in (("left", "ann@example.com"), ("waiting", ""), ("waiting", "")):
        other = history.start_conversation(f"Where is my parcel, {state}?", OWNER)
        converse(history, other, "Where is my parcel?")
        number = handoffs.request(other, OWNER, state, "keyword", email, now).id
        if state == "waiting":
            handoffs.take(number, "admin", now)
            history.record_said(other, "I look for it.", number, "admin")
    handoffs.close(number, now)
    return conversation


def converse(history: History, conversation: str, question: str) -> str:
    """Gives the id of the answer."""
    asked = history.record_question(conversation, question)
    answer = replace(make_answer(conversation, new_id(), question), modules=())
    history.record_answer(answer, replace(details(asked, answer), passage_ids=(None,) * len(answer.citations)))
    return answer.message_id
