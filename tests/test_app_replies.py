"""Small talk and the desk's own words: what is told from a question, and in which language it is answered."""

import string

import pytest

from app.domain.errors import DeskError
from app.domain.settings import Settings, load_settings
from app.replies.replies import (
    FALLBACK,
    KINDS,
    all_texts,
    contact_links,
    heard,
    human_text,
    nothing_text,
    texts_in,
    vague_text,
)

CONTACTS = {
    "contact_email": "care@shop.example",
    "contact_phone": "+353 1 555 (0100)",
    "contact_hours": "Mon-Fri 9:00-17:00",
    "contact_url": "https://shop.example/chat?a=1&b=2",
}


def kind_of(message: str, language: str = "en") -> str | None:
    found = heard(message, language)
    return None if found is None else found.kind


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Hello!", "greeting"),
        ("Hi, can you help me?", "greeting"),
        ("thnks", "thanks"),
        ("thanks, bye", "goodbye"),
        ("hello, am I talking to a human?", "identity"),
        ("How are you?", "wellbeing"),
        ("please connect me to an agnet", "human"),
        ("Hi, how are you? Can I talk to someone please?", "human"),
        ("It doesn't work!", "vague"),
        ("thanks, it does not work", "vague"),
        ("?", "vague"),
    ],
)
def test_small_talk_is_told(message, kind):
    assert kind_of(message) == kind


@pytest.mark.parametrize(
    "message",
    [
        "hello, how do I return a lamp?",
        "thanks, how do I do that?",
        "how do I contact customer service?",
        "operator manual",
        "cook",
        "returns",
        "my vacuum does not work",
        "who are your owners?",
        "Where is my order 12345678?",
        "yes, how do I return a lamp?",
        "hello " * 30,
    ],
)
def test_a_question_is_no_small_talk(message):
    assert heard(message, "en") is None


@pytest.mark.parametrize(
    ("message", "language", "kind"),
    [
        ("Guten Tag, ich möchte mit einem Mitarbeiter sprechen", "de", "human"),
        ("j’aimerais parler à un conseiller", "fr", "human"),
        ("¿Eres un robot?", "es", "identity"),
        ("我想转人工客服", "zh", "human"),
        ("不能用了", "zh", "vague"),
        ("Hallo, wie lange dauert die Lieferung?", "de", None),
        ("no ha funcionado", "es", None),
        ("没有解决了", "zh", None),
    ],
)
def test_other_languages(message, language, kind):
    found = heard(message, language)
    assert (None if found is None else (found.kind, found.language)) == (kind and (kind, language))


@pytest.mark.parametrize(("message", "language"), [("danke", "de"), ("hola", "es"), ("hallo", "de"), ("merci", "fr")])
def test_one_word_has_the_language_of_its_list(message, language):
    """Of a single word no language can be told, and "hallo" is one letter from "hello"."""
    found = heard(message, "en")
    assert found.language == language


@pytest.mark.parametrize("language", all_texts())
def test_every_language_has_every_text(language):
    texts, english = all_texts()[language], all_texts()[FALLBACK]
    assert texts.says.keys() == english.says.keys()
    assert texts.hears.keys() == english.hears.keys() == set(KINDS)
    assert texts.around.keys() == english.around.keys()
    formatter = string.Formatter()
    for name, text in texts.says.items():
        filled = {"vague": ["topics"], "unknown": ["names"]}.get(name, [])
        assert [field for _, field, _, _ in formatter.parse(text) if field] == filled
    for kind in KINDS:
        for phrase in texts.hears[kind]:
            assert kind_of(phrase, language) == kind, phrase


def test_an_unknown_language_is_answered_in_english():
    assert texts_in("fi") == texts_in("en")


def test_nothing_is_said_in_the_customers_language_with_the_contacts():
    settings = Settings(**CONTACTS)  # type: ignore[arg-type]
    for language in all_texts():
        text = nothing_text(settings, language)
        assert text.startswith(texts_in(language).says["nothing"])
        assert all(value in text for value in CONTACTS.values())
        assert all(value in human_text(settings, language) for value in CONTACTS.values())
    assert texts_in("de").says["no_contact"] in nothing_text(Settings(), "de")


def test_the_operators_own_refusal_goes_before_ours():
    assert nothing_text(load_settings({}, {}), "de") != nothing_text(load_settings({}, {}), "en")
    assert nothing_text(load_settings({"refusal_text": "Ask Bob."}, {}), "de") == "Ask Bob."
    assert nothing_text(Settings(refusal_text="Ask Bob."), "de") == "Ask Bob."
    assert "care@shop.example" in nothing_text(
        Settings(refusal_text="Ask Bob.", contact_email="care@shop.example"), "de"
    )


def test_a_person_without_contacts_is_what_a_page_says():
    assert human_text(Settings(), "en", "Call 555 0100.").endswith("\n\nCall 555 0100.")


def test_a_question_back_names_the_topics_as_they_are():
    assert vague_text(["{0}", "Returns"], "en") == "What is it about? For example: {0}, Returns."


def test_links_are_of_safe_kinds():
    assert contact_links(Settings(**CONTACTS)) == {  # type: ignore[arg-type]
        "care@shop.example": "mailto:care@shop.example",
        "+353 1 555 (0100)": "tel:+35315550100",
        "https://shop.example/chat?a=1&b=2": "https://shop.example/chat?a=1&b=2",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("contact_url", "javascript:alert(1)"),
        ("contact_url", "https://a\njavascript:x"),
        ("contact_email", "a@b?subject=x"),
        ("contact_phone", "1\n2345"),
    ],
)
def test_contacts_that_cannot_be_shown(key, value):
    with pytest.raises(DeskError, match=key):
        load_settings({key: value}, {})


@pytest.mark.parametrize("said", ["yes", "No.", "ok", "ja", "non", "sí", "好的"])
def test_a_bare_yes_or_no_is_asked_what_about(said):
    assert heard(said, "en").kind == "reply"
