"""The FAQ: pairs that agents write, the document made of them, and answering from them without search and model."""

import json
from dataclasses import replace

import pytest
from desks import finish, small_desk, write_pages

from app.domain.errors import DeskError
from app.domain.quality import FAQ, FaqDraft
from app.knowledge.finder import telling
from app.support.faq import MOST_WORDINGS, checked

GALWAY = FaqDraft(
    question="Do you repair toasters in Galway?",
    answer="Yes, on Mondays.\n\nBring the receipt.",
    wordings=("Can a toaster be fixed in Galway?",),
)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Of tests that ask little of the database."""


@pytest.fixture
def desk(tmp_path, database_url):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), database_url=database_url) as desk:
        yield desk


@ON_SQLITE
def test_a_saved_pair_is_stored_written_indexed_encoded_and_asked_again(desk):
    stages: list[str] = []
    saved = desk.quality.save_faq(GALWAY, "ann", progress=lambda stage, done, total: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["reading", "embedding", "encoding", "asking"]
    assert saved.answer.answer == GALWAY.answer
    [line] = desk.settings.faq_file.read_text().splitlines()
    assert json.loads(line) == {"question": GALWAY.question, "answer": GALWAY.answer}
    [document] = [one for one in desk.documents() if one.collection == FAQ]
    assert document.title == "FAQ"
    assert all(passage.module_key for passage in desk.library.passages_of(document.path))
    [pair] = desk.quality.faq()
    assert (pair.author, pair.hits, pair.wordings) == ("ann", 0, GALWAY.wordings)
    assert desk.conversations() == []


def test_a_pair_answers_by_itself_word_for_word_cited_and_counted(desk):
    desk.quality.save_faq(GALWAY, "ann")
    assert finish(desk, "do you repair toasters in galway").answer == GALWAY.answer
    answer = finish(desk, "In Galway, can a toaster be fixed??")
    assert (answer.answer, answer.outcome) == (GALWAY.answer, "answered")
    assert answer.usage.prompt_tokens == 0
    [cited] = answer.citations
    assert (cited.title, cited.see_also) == ("FAQ", False)
    assert [cited.quote[mark.start : mark.end] for mark in cited.marks] == ["Yes, on Mondays.", "Bring the receipt."]
    [pair] = desk.quality.faq()
    assert pair.hits == 2
    assert pair.last_hit is not None
    assert desk.turns(answer.conversation_id)[-1].answer == answer


@ON_SQLITE
def test_long_questions_and_answers_are_cited_whole(desk):
    about = "Which of the many forms do I need to fill in before the courier comes to collect"
    pairs = [
        FaqDraft(question=f"{about} a {thing}?", answer="\n\n".join(f"Form {n} of the {thing}. " * 9 for n in range(9)))
        for thing in ("lamp", "sofa")
    ]
    for pair in pairs:
        desk.quality.save_faq(pair, "ann")
    for pair in pairs:
        answer = finish(desk, pair.question)
        assert answer.answer == pair.answer.strip()
        assert len(answer.citations) > 1
        assert {mark.paragraph for one in answer.citations for mark in one.marks} == set(range(9))


@ON_SQLITE
def test_another_question_is_searched_for(desk):
    desk.quality.save_faq(GALWAY, "ann")
    for question in (
        "Do you repair kettles in Galway?",
        "Do you not repair toasters in Galway?",
        "Do you repair toasters in Galway on 24 December?",
        "Galway",
    ):
        assert finish(desk, question).answer != GALWAY.answer
    assert desk.quality.faq()[0].hits == 0


@ON_SQLITE
def test_a_question_that_leans_on_the_one_before_it_is_searched_for(desk):
    desk.quality.save_faq(FaqDraft(question="Is it free?", answer="Never."), "ann")
    first = finish(desk, "Do returns take thirty days?")
    assert finish(desk, "Is it free?", conversation_id=first.conversation_id).answer != "Never."
    assert finish(desk, "Is it free?").answer == "Never."


def test_only_if_it_is_switched_on_and_its_collection_is_searched(tmp_path):
    with small_desk(tmp_path, faq_answers=False) as desk:
        desk.ingest([write_pages(tmp_path / "pages")], collection="pages")
        assert desk.quality.save_faq(GALWAY, "ann").answer.answer != GALWAY.answer
    with small_desk(tmp_path) as desk:
        assert finish(desk, GALWAY.question).answer == GALWAY.answer  # also after a restart
        assert finish(desk, GALWAY.question, collections=[FAQ]).answer == GALWAY.answer  # type: ignore[arg-type]
        assert finish(desk, GALWAY.question, collections=["pages"]).answer != GALWAY.answer  # type: ignore[arg-type]


def test_the_threshold_is_a_setting(tmp_path):
    with small_desk(tmp_path, faq_threshold=1.0) as desk:
        desk.quality.save_faq(GALWAY, "ann")
        assert finish(desk, "do you repair toasters in our galway").answer != GALWAY.answer
        nearest = desk.quality.explain("do you repair toasters in our galway").faq
        assert 0.8 < nearest.likeness < nearest.threshold == 1.0


def test_a_changed_and_a_deleted_pair(desk):
    saved = desk.quality.save_faq(GALWAY, "ann")
    other = desk.quality.save_faq(FaqDraft(question="Who sharpens knives?", answer="Nobody."), "ann")
    changed = FaqDraft(question=GALWAY.question, answer="No longer.")
    assert desk.quality.save_faq(changed, "bob", saved.id).answer.answer == "No longer."
    assert {(pair.id, pair.author) for pair in desk.quality.faq()} == {(saved.id, "bob"), (other.id, "ann")}
    assert "Mondays" not in desk.settings.faq_file.read_text()
    desk.quality.delete_faq(saved.id)
    assert finish(desk, GALWAY.question).answer != "No longer."
    assert finish(desk, "who sharpens knives").answer == "Nobody."
    desk.quality.delete_faq(other.id)
    assert not desk.settings.faq_file.exists()
    assert [one for one in desk.documents() if one.collection == FAQ] == []
    with pytest.raises(DeskError, match="was deleted"):
        desk.quality.save_faq(GALWAY, "ann", other.id)


@ON_SQLITE
def test_a_forgotten_document_takes_its_pairs_along(desk):
    desk.quality.save_faq(GALWAY, "ann")
    said = finish(desk, GALWAY.question)
    desk.forget("FAQ.jsonl")
    assert desk.quality.faq() == []
    assert not desk.settings.faq_file.exists()
    assert finish(desk, GALWAY.question).answer != GALWAY.answer
    [_, answer] = desk.turns(said.conversation_id)
    assert "Mondays" not in answer.text
    desk.quality.save_faq(FaqDraft(question="Who sharpens knives?", answer="Nobody."), "ann")
    assert "Mondays" not in desk.settings.faq_file.read_text()


@ON_SQLITE
def test_a_pair_that_cannot_be_taken_in_is_not_kept(desk, monkeypatch):
    saved = desk.quality.save_faq(GALWAY, "ann")
    with desk._ingestion.alone():
        for id_ in (saved.id, None):
            with pytest.raises(DeskError, match="being ingested"):
                desk.quality.save_faq(FaqDraft(question="Where is Cork?", answer="South."), "bob", id_)
    [pair] = desk.quality.faq()
    assert (pair.question, pair.author) == (GALWAY.question, "ann")
    assert finish(desk, GALWAY.question).answer == GALWAY.answer

    with pytest.raises(DeskError, match="an FAQ already has the question"):
        desk.quality.save_faq(FaqDraft(question="can a toaster be fixed in  Galway", answer="No."), "ann")


@ON_SQLITE
def test_vectors_of_another_embedder_are_made_again(tmp_path, database_url):
    with small_desk(tmp_path, database_url=database_url) as desk:
        desk.quality.save_faq(GALWAY, "ann")
        [vectors] = desk._faq.vectors().values()
        desk._faq.set_vectors({1: type(vectors)(embedder="another", rows=vectors.rows[:, :8])})
    with small_desk(tmp_path, database_url=database_url) as desk:
        assert finish(desk, GALWAY.question).answer == GALWAY.answer
        assert desk._faq.vectors()[1].embedder == desk.search.embedder.name


def test_wordings_are_tidied_and_a_pair_that_is_none_is_refused():
    draft = checked(FaqDraft(question=" a\nb ", answer=" c ", wordings=("", "d  e", "d e", "a b")))
    assert draft == FaqDraft(question="a b", answer="c", wordings=("d e",))
    many = tuple(map(str, range(MOST_WORDINGS + 1)))
    wrong = [
        ("question", " "),
        ("answer", "\n"),
        ("question", "Why" * 300),
        ("answer", "Yes" * 5000),
        ("wordings", many),
    ]
    for name, value in wrong:
        with pytest.raises(DeskError):
            checked(replace(draft, **{name: value}))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Is the store open on Sunday?", "is the store open on sundays", True),
        ("Is the store open on Sunday?", "Is the store open on Saturday?", False),
        ("Are returns free?", "Are returns not free?", False),
        ("Do you deliver to Ireland?", "Do you deliver to Northern Ireland?", False),
        ("怎么退货？", "如何退货", True),
        ("怎么退货？", "怎么换货？", False),
        ("", "?", True),
    ],
)
def test_telling_words_keep_questions_apart(one, other, same):
    assert (telling(one) == telling(other)) is same
