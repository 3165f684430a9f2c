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
    Handoffs(site.database, announced=False).request(conversation, OWNER, "waiting", "button", "", datetime.now(UTC))
    return conversation


def converse(history: History, conversation: str, question: str) -> str:
    """Gives the id of the answer."""
    asked = history.record_question(conversation, question)
    answer = replace(make_answer(conversation, new_id(), question), modules=())
    history.record_answer(answer, replace(details(asked, answer), passage_ids=(None,) * len(answer.citations)))
    return answer.message_id
