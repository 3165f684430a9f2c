"""The line above the box of the chat in every state, and the agents' pages: what they show, and what they refuse."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from desk_site import Site
from fake_answers import HOSTILE
from fake_desk import NOW, FakeDesk
from fastapi.testclient import TestClient
from page_check import check
from quick_account import quick_account
from stored_answers import add_turn

from app.access.limits import QuestionLimits
from app.domain.answers import Handoff
from app.domain.quality import FaqDraft
from app.domain.settings import Settings
from app.storage.history import History
from app.storage.people import Accounts
from app.support.handoff import HandingOff
from app.web.chat_flow import ChatFlow, Reader
from app.web.chat_routes import HandoffView
from app.web.rendering import preview, render

READER = Reader(owner="v-ann", session="s")
LIMITS = QuestionLimits(Settings(questions_per_minute=1000, answers_at_once=10))
NIGHT = datetime(2026, 3, 9, 23, 0, tzinfo=UTC)
HOURS = "Mon-Fri 9:00-17:00 Europe/Dublin"


class Chat:
    def __init__(self, **settings: Any) -> None:
        self.desk = FakeDesk(seeded=False)
        self.flow = ChatFlow(self.desk, LIMITS, Settings(**settings), now=lambda: NOW)
        self.view = HandoffView(self.desk, Settings(**settings), LIMITS, now=lambda: NIGHT)

    def ask(self, question: str, conversation: str = "") -> str:
        return list(self.flow.ask(question, conversation, READER))[-1].conversation_id or ""

    def transcript(self, conversation: str) -> str:
        return self.flow.open(conversation, READER).transcript or ""

    def line(self, conversation: str) -> str:
        return check(self.view.line(conversation, READER).html)


def test_outside_of_hours_an_address_can_be_left():
    chat = Chat(office_hours=HOURS, contact_hours="Mon-Fri 9:00-17:00")
    conversation = chat.ask("Can I return it?")
    page = chat.view.line(conversation, READER).html
    assert "No one is available right now." in page
    assert 'href="mailto:care@larkmoor.example"' in page
    assert "Mon-Fri 9:00-17:00" in page
    left = chat.view.act("ask", conversation, " ann@example.com ", READER)
    assert not left.live
    assert "Our team will write to ann@example.com." in check(left.html)
    chat.ask("And how?", conversation)
    assert len(chat.desk.streams) == 2  # the machine goes on


def test_the_usual_wait_is_promised_for_an_hour_at_most():
    waits = {timedelta(seconds=20): "takes 1 min.", timedelta(minutes=59.5): "takes 60 min.", timedelta(hours=2): None}
    for usual, words in waits.items():
        handed = Handoff(id=1, conversation_id="c", state="waiting", reason="button", requested=NOW, usual_wait=usual)
        shown = {"handoff": handed, "offered": True, "is_open": True, "contacts": (), "problem": ""}
        line = check(render("chat/handoff.html", language="en", **shown))
        assert ("usually" in line, (words or "") in line) == (words is not None, True)


def test_a_desk_without_people_offers_none():
    assert "Talk to a person" not in Chat(handoff="off").line("")


def test_what_customers_and_agents_write_stays_text():
    chat = Chat()
    conversation = chat.ask(f"a human {HOSTILE}")
    chat.desk.say(HOSTILE, conversation, READER.owner, "agent", HOSTILE)
    check(chat.transcript(conversation))
    chat.view.act("ask", "", HOSTILE, READER)


class Office:
    """A desk whose agents Ann and Ben are signed in, and a customer who waits."""

    def __init__(self, site: Site) -> None:
        self.site, self.history = site, History(site.database)
        self.customers = HandingOff(site.database, self.history, site.settings)
        self.ann, self.ben = self.agent("Ann"), self.agent("Ben")

    def agent(self, name: str) -> TestClient:
        password = quick_account(Accounts(self.site.database), name, "agent")
        client = self.site.client()
        response = client.post("/admin/login", data={"name": name, "password": password})
        assert response.headers["location"] == "/admin/queue"  # where an agent lands
        return client

    def waiting(self, question: str = "Where is my parcel?") -> tuple[str, str]:
        conversation = self.history.start_conversation(question, "v-ann")
        add_turn(self.history, conversation)
        number = self.customers.hand_off("button", owner="v-ann", conversation_id=conversation).id
        return f"/admin/queue/{number}", conversation


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("desk"))
    yield Office(site)
    site.close()


def test_the_queue_shows_the_beginning_of_the_last_message_without_stars(office):
    """Text of a customer stays as it was written."""
    assert preview("Within **30 days**.\n\n- `Keep` it") == "Within 30 days. Keep it"
    case, conversation = office.waiting()
    office.customers.to_person("Where **is** it?", conversation, "v-ann")
    assert '<p dir="auto">Where **is** it?</p>' in office.ann.get("/admin/queue").text
    assert office.ann.get("/admin/queue/waiting").json() == {"waiting": 1}
    office.ann.post(f"{case}/close", json={})


def test_what_cannot_be_done_is_said_in_the_agents_language(office):
    case, _ = office.waiting()
    early = office.ann.post(f"{case}/answer", json={"text": "Hello"}, headers={"accept-language": "zh-CN"})
    assert (early.status_code, early.json()["error"]) == (409, "请先接手此会话，再回答。")
    office.ann.post(f"{case}/take", json={})
    late = office.ben.post(f"{case}/take", json={})
    assert (late.status_code, late.json()["error"]) == (409, "Another agent already answers this customer.")
    assert office.ann.post(f"{case}/answer", json={"text": " "}).status_code == 409
    assert office.ann.get("/admin/queue/9999/now").status_code == 404
    assert office.ann.get("/admin/queue/9999").status_code == 404
    for wrong in ("x", 2**40):  # more than the number of any row
        assert office.ann.get(f"/admin/queue/{wrong}").status_code == 404


def test_what_went_back_is_open_to_whoever_had_it(office):
    """Was wrong once: every agent could read every closed case, and what the customer asked the machine afterwards."""
    case, conversation = office.waiting()
    left, _ = office.waiting()
    for agent in (office.ann, office.ben):
        assert agent.get(f"{case}/now").status_code == 200
    office.ann.post(f"{case}/take", json={})
    office.ann.post(f"{case}/close", json={})
    add_turn(office.history, conversation, 7)
    assert office.ann.get(case).status_code == office.site.admin().get(case).status_code == 200
    refused = office.ben.get(case)
    assert refused.status_code == 404
    assert "question 7?" not in refused.text
    for answer in (office.ben.get(f"{case}/now"), office.ben.post(f"{case}/close", json={})):
        assert (answer.status_code, [*answer.json()]) == (409, ["error"])
    closed = office.ben.post(f"{left}/close", json={}).json()
    assert "This conversation is with the assistant again." in closed["controls"]
    assert office.ben.get(left).status_code == 404, "nobody took it"


def test_an_agent_gets_an_answer_suggested_and_finds_the_faq(office):
    case, conversation = office.waiting("Is the pan covered?")
    office.ann.post(f"{case}/take", json={})
    assert office.ann.post(f"{case}/suggest", json={}).json() == {"text": "You have 30 days."}
    office.customers.to_person("crash", conversation, "v-ann")
    assert office.ann.post(f"{case}/suggest", json={}).status_code == 409
    office.site.desk.quality.save_faq(
        FaqDraft(question="Galway?", answer="Yes, on Saturdays.", wordings=("West",)), "a"
    )
    found = [{"question": "Galway?", "answer": "Yes, on Saturdays."}]
    for query, expected in (("west yes", found), ("galway paris", []), ("", found)):
        assert office.ann.get("/admin/queue/faq", params={"query": query}).json() == expected


def test_what_was_closed_is_answered_again_by_whoever_had_it(office):
    case, _ = office.waiting()
    for action in ("take", "close"):
        office.ann.post(f"{case}/{action}", json={})
    assert f'href="{case}"' in office.ann.get("/admin/queue/rows").json()["rows"]
    assert f'href="{case}"' not in office.ben.get("/admin/queue/rows").json()["rows"]
    assert office.ben.post(f"{case}/reopen", json={}).status_code == 409
    again = office.ann.post(f"{case}/reopen", json={}).json()["case"]
    assert again != case
    assert 'id="wd-answer"' in office.ann.get(f"{again}/now").json()["controls"]
    assert office.ann.post(f"{case}/reopen", json={}).json()["case"] == again, "it has one open hand-off"


def test_an_admin_steps_into_a_conversation_that_nobody_handed_off(office):
    conversation = office.history.start_conversation("Where is it?", "v-eve")
    address = f"/admin/conversations/{conversation}"
    assert office.ann.post(f"{address}/step-in").status_code == 403
    admin = office.site.admin()
    stepped = admin.post(f"{address}/step-in")
    assert stepped.status_code == 303
    assert "An agent stepped in" in admin.get(stepped.headers["location"]).text
    assert office.customers.handoff(conversation, "v-eve").agent == "admin"
    assert admin.post("/admin/conversations/nothing/step-in").status_code == 409


def test_an_agents_answer_becomes_an_faq_of_its_author_only(office):
    case, conversation = office.waiting()
    office.customers.to_person("Do you ship to Cork?", conversation, "v-ann")
    office.ann.post(f"{case}/take", json={})
    turns = office.ann.post(f"{case}/answer", json={"text": "Yes, to Cork."}).json()["turns"]
    link = re.findall(r'href="(/admin/faq\?message=\w+)#edit"', turns)[-1]
    page = office.ann.get(link).text
    assert 'value="Do you ship to Cork?"' in page
    assert "Yes, to Cork.</textarea>" in page
    assert office.ben.get(link).status_code == 403
    assert "Yes, to Cork.</textarea>" in office.site.admin().get(link).text


def test_a_transcript_names_the_agent_who_wrote(office):
    case, conversation = office.waiting()
    office.ann.post(f"{case}/take", json={})
    office.ann.post(f"{case}/answer", json={"text": "I look for it."})
    page = office.site.admin().get(f"/admin/conversations/{conversation}", headers={"accept": "text/html"}).text
    written = page[page.index("I look for it.") - 300 : page.index("I look for it.")]
    assert "Ann <time" in written
    made = page[page.index("How this answer was made") :]
    for shown in ("similarity 0.33", "Prompt tokens", "returns.md", "Find passages", "evicted"):
        assert shown in made


def test_hostile_text_stays_text_for_agents(office):
    case, conversation = office.waiting(HOSTILE)
    office.customers.to_person(HOSTILE, conversation, "v-ann")
    for text in (office.ann.get(case).text, office.ann.get("/admin/queue/rows").json()["rows"]):
        assert "<script>window.owned" not in text
        assert "<img" not in text
