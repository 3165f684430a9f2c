"""The agents' pages: bad answers by cause and question, transcripts, the FAQ's form, the test of search."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from desk_site import HTML
from desks import finish, small_desk, write_pages
from fake_quality import bad_answer
from hashed_search import HashEmbedder
from meanings import MeaningEmbedder
from quick_account import quick_account
from sqlalchemy import update

from app.answering.explain import STATEMENTS
from app.domain.quality import FaqDraft
from app.storage.conversation_care import Transcripts
from app.storage.people import Accounts
from app.storage.tables import MessageRow
from app.support.faq import Grouping
from retrieval.search.embedding import OneQuestionEmbedder, one_question

NOW = datetime(2026, 3, 12, tzinfo=UTC)


def test_questions_that_ask_about_the_same_are_one_group_by_meaning_or_by_words():
    meanings = {"lamp?": (0, 1, 0), "refund?": (1, 0, 0), "money back?": (0.9, 0.1, 0), "refunds?": (0.8, 0.3, 0)}
    asked = ["lamp?", "refund?", "money back?", "refunds?", "refund?"]
    groups = Grouping(MeaningEmbedder(meanings)).groups([bad_answer(text, "nothing", when=NOW) for text in asked])
    assert [[one.question for one in group.answers] for group in groups] == [asked[1:], ["lamp?"]]
    asked = ["怎么退货？", "退货怎么办", "怎么换货？"]
    answers = [bad_answer(text, "nothing", when=NOW) for text in asked]
    groups = Grouping(MeaningEmbedder(knowledge=0.2)).groups(answers)  # their cosines are 1
    assert [[one.question for one in group.answers] for group in groups] == [asked[:2], asked[2:]]


def test_a_question_is_embedded_once_and_then_not_remembered():
    class Counting(HashEmbedder):
        asked: list[str] = []  # noqa: RUF012

        def embed_queries(self, texts: Any) -> Any:
            self.asked += texts
            return self.embed_documents(texts)

    embedder = OneQuestionEmbedder(Counting())
    with one_question():
        one, other = (embedder.embed_queries(["a b", "c"]) for _ in range(2))
        assert (one == other).all()
        assert (embedder.embed_queries(["c"]) == one[1:]).all()
    assert Counting.asked == ["a b", "c"]
    with one_question():  # somebody else's, who would see by the time whether it was asked before
        embedder.embed_queries(["c"])
    embedder.embed_queries(["c"])
    assert Counting.asked.count("c") == 3
    assert embedder.embed_queries([]).shape == (0, embedder.dimension)


@pytest.fixture(scope="module")
def desk(tmp_path_factory, module_database_url):
    folder, url = tmp_path_factory.mktemp("quality"), module_database_url
    with small_desk(
        folder / "desk", pages=write_pages(folder / "pages"), database_url=url, refuse_below=0.2, answer_above=2.0
    ) as desk:
        yield desk


def test_bad_answers_are_there_with_their_causes(desk):
    nothing = finish(desk, "quantum chromodynamics", owner="v-ann")
    unsure = finish(desk, "returns take how many days from delivery", owner="v-bob")
    desk.feedback(unsure.message_id, "down", "too long", owner="v-bob")
    hidden = finish(desk, "zygote morphology", owner="v-bob")
    desk.delete_conversation(hidden.conversation_id, "v-bob")
    report = desk.quality.report(30)
    found = {one.message_id: one for group in report.groups for one in group.answers}
    assert (nothing.outcome, unsure.outcome) == ("nothing", "unsure")
    assert set(found) == {nothing.message_id, unsure.message_id}
    assert found[nothing.message_id].causes == ("nothing",)
    assert found[unsure.message_id].causes[:2] == ("unsure", "down")
    assert found[unsure.message_id].reason == "too long"
    assert [report.counts[cause] for cause in ("nothing", "unsure", "down")] == [1, 1, 1]
    [group] = desk.quality.report(30, "nothing").groups
    assert group.question == "quantum chromodynamics"
    later = datetime.now(UTC) + timedelta(seconds=1)
    assert Transcripts(desk.database).bad_answers(later, 10) == []


def test_the_last_question_before_a_person_was_asked_for_is_there(desk):
    """Whatever its other causes; small talk is no question, and what came before it is left alone."""
    first = finish(desk, "aurora borealis", owner="v-eve")
    last = finish(desk, "magma chamber", owner="v-eve", conversation_id=first.conversation_id)
    finish(desk, "hello", owner="v-eve", conversation_id=first.conversation_id)
    desk.hand_off("button", owner="v-eve", conversation_id=first.conversation_id, text="Is anybody there?")
    desk.end_handoff(first.conversation_id, "v-eve")
    finish(desk, "tectonic plates", owner="v-eve", conversation_id=first.conversation_id)
    desk.hand_off("button", owner="v-gus", text="Nothing was asked before.")
    handed = [one for group in desk.quality.report(30, "handed").groups for one in group.answers]
    assert [(one.message_id, one.causes) for one in handed] == [(last.message_id, ("nothing", "handed"))]
    assert desk.quality.report(30).counts["handed"] == 1
    liked = finish(desk, "returns take how many days from delivery", owner="v-fay")
    with desk.database.write() as session:
        session.execute(
            update(MessageRow).where(MessageRow.id == liked.message_id).values(outcome="answered", grounding=1)
        )
    desk.hand_off("button", owner="v-fay", conversation_id=liked.conversation_id)
    handed = [one for group in desk.quality.report(30, "handed").groups for one in group.answers]
    assert (liked.message_id, ("handed",)) in [(one.message_id, one.causes) for one in handed]


def test_transcripts_are_of_every_customer(desk):
    transcripts = Transcripts(desk.database)
    for owner in ("operator", "k-1", "k-1.ann", "u-dora"):
        finish(desk, "Do stores have a stool?", owner=owner)
    assert [one.owner for one in transcripts.conversations(query="stool")] == ["u-dora"]
    assert transcripts.conversations(owner="operator") == []
    said = finish(desk, "Do stores have a bench?", owner="v-cleo")
    [listed] = transcripts.conversations(query="BENCH stores", owner="v-cleo")
    assert (listed.id, listed.owner, listed.turns) == (said.conversation_id, "v-cleo", 2)
    assert transcripts.owner_of(listed.id) == "v-cleo"
    assert transcripts.turns(listed.id) == desk.turns(listed.id, "v-cleo")
    assert transcripts.conversations(owner="v-nobody") == []
    draft = transcripts.drafted(said.message_id, "")
    assert draft is not None
    assert draft.question == "Do stores have a bench?"
    desk.delete_conversation(listed.id, "v-cleo")
    assert transcripts.owner_of(listed.id) is None
    assert transcripts.turns(listed.id) == []
    assert transcripts.drafted(said.message_id, "") is None


def test_a_test_of_search_says_why_and_stores_nothing(desk):
    before = Transcripts(desk.database).conversations()
    found = desk.quality.explain("returns take how many days from delivery")
    assert (found.outcome, found.why) == ("unsure", "between")
    assert found.refuse_below <= found.relevance < found.answer_above
    assert found.passages[0].title == "Returns"
    assert found.passages[0].score == pytest.approx(found.passages[0].cosine + found.passages[0].share, abs=0.01)
    assert found.statements[0].shown
    assert len(found.statements) <= STATEMENTS
    assert desk.quality.explain("quantum chromodynamics").why == "low"
    assert desk.quality.explain("hello").why == "smalltalk"
    assert Transcripts(desk.database).conversations() == before
    asked = "Which paint suits a cellar?"
    desk.quality.save_faq(FaqDraft(question=asked, answer="Lime paint."), "ann")
    assert desk.quality.explain(asked).why == "faq"


@pytest.fixture(scope="module")
def agent(site):
    password = quick_account(Accounts(site.database), "cleo", "agent")
    client = site.client()
    assert client.post("/admin/login", data={"name": "cleo", "password": password}).status_code == 303
    return client


@pytest.fixture(scope="module")
def admin(site):
    return site.admin()


def result(response: Any) -> dict[str, Any]:
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["stage"] for line in lines[:-1]] == ["reading", "embedding", "encoding", "asking"]
    return dict(lines[-1]["result"])


def test_an_admin_sees_groups_with_causes_and_hostile_text_stays_text(admin):
    page = admin.get("/admin/quality", headers=HTML)
    assert page.status_code == 200
    assert "weather in Galway tomorrow" in page.text
    assert "not &lt;b&gt;helpful&lt;/b&gt;" in page.text
    assert 'href="/admin/conversations/' in page.text
    only = admin.get("/admin/quality?cause=unsure", headers=HTML).text
    assert "the pan covered" in only
    assert "weather" not in only
    assert "To a person 1" in " ".join(page.text.split())
    assert "weather" not in admin.get("/admin/quality?cause=handed", headers=HTML).text
    assert admin.get("/admin/quality?cause=%22%3E&days=0").status_code == 422


def test_questions_that_an_faq_has_go_to_those_that_are_solved(site, admin):
    site.desk.quality.save_faq(FaqDraft(question="WEATHER in Galway tomorrow?", answer="Rain."), "cleo")
    page = admin.get("/admin/quality", headers=HTML).text
    site.desk.quality.pairs.clear()
    to_do, solved = page.split("Answered by the FAQ (1)")
    assert "the pan covered" in to_do
    assert "weather in Galway tomorrow" not in to_do
    assert "weather in Galway tomorrow" in solved


def test_a_pair_is_saved_listed_changed_and_deleted(site, agent):
    pair = {"question": "Is it <i>safe</i>?", "answer": "Yes.", "wordings": ["Safe?", ""]}
    saved = result(agent.post("/admin/faq", json=pair))
    assert saved == {"id": 1, "answer": "Yes.", "is_verbatim": True}
    assert site.desk.quality.pairs[1].author == "cleo"
    form = agent.get("/admin/faq?id=1", headers=HTML).text
    assert 'data-id="1"' in form
    assert "Is it &lt;i&gt;safe&lt;/i&gt;?" in form
    assert result(agent.post("/admin/faq", json={**pair, "id": 1, "answer": "No."}))["id"] == 1
    error = json.loads(agent.post("/admin/faq", json={**pair, "question": "crash"}).text)
    assert error == {"error": {"code": "disk-full", "message": "the disk is full"}}
    assert json.loads(agent.post("/admin/faq/delete", json={"id": 1}).text) == {"result": {"id": 1}}
    assert site.desk.quality.pairs == {}
    assert site.audited()[-3:] == [("cleo", f"faq-{what}", "1") for what in ("add", "change", "delete")]


def test_search_is_tested_on_a_page(agent):
    page = agent.get("/admin/search?question=pan", headers=HTML).text
    for shown in ("0.412", "0.210", "0.630", "0.810 / 0.85", "1.204", "0.704", "You have 30 days."):
        assert shown in page
    assert "the question is too long" in agent.get("/admin/search?question=crash", headers=HTML).text
    assert 'id="decision"' not in agent.get("/admin/search", headers=HTML).text
