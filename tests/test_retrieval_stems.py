"""Stems in indexes of one language and of several."""

import pytest

from retrieval.search.keyword_index import KeywordIndex
from retrieval.text.terms import stem

GERMAN = [
    "Sie können geöffnete Bestellungen innerhalb von vierzehn Tagen nach der Lieferung zurückgeben.",
    "Die Garantie gilt für zwei Jahre. Wir reparieren Geräte, die in dieser Zeit ausfallen.",
    "Gutscheine werden nicht in Geld ausgezahlt, sondern bei der nächsten Bestellung verrechnet.",
]
ENGLISH = [
    "You can return opened orders within fourteen days after the delivery.",
    "The warranty covers two years. We repair appliances that fail in this time, and replace the batteries.",
    "Gift cards are not paid out in money, but are used for the next purchase.",
]


def index_of(*texts: str) -> KeywordIndex:
    return KeywordIndex().updated((), {number: [text] for number, text in enumerate(texts)})


def best(index: KeywordIndex, question: str) -> str:
    """The window that has most of a question."""
    return [*GERMAN, *ENGLISH][int(index.scores(question).argmax())]


@pytest.mark.parametrize(
    ("forms", "language"),
    [
        ("lieferung lieferungen", "de"),
        ("bücher büchern", "de"),
        ("livraison livraisons", "fr"),
        ("pedido pedidos", "es"),
        ("возврат возврата возвраты", "ru"),
        ("delivery deliveries", "en"),
        ("delivery deliveries", "zh"),
    ],
)
def test_forms_of_a_word_have_one_stem_by_the_rules_of_their_language(forms: str, language: str) -> None:
    assert len({stem(form, language) for form in forms.split()}) == 1


@pytest.mark.parametrize("pair", ["customs customer", "police policy", "internal international", "universe university"])
def test_words_of_different_meaning_keep_apart(pair: str) -> None:
    first, second = pair.split()
    assert stem(first) != stem(second)


def test_a_german_question_finds_other_forms_of_its_words() -> None:
    index = index_of(*GERMAN)
    assert index.segments[0].languages == ("de",)
    for question, expected in (("Rückgabe einer Lieferung", 0), ("Gerät", 1), ("Gutschein", 2)):
        assert best(index, question) == GERMAN[expected]


@pytest.mark.parametrize("largest", [20_000, 1])
def test_both_languages_of_an_index_are_stemmed_by_their_own_rules(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one segment, and in one for each language."""
    monkeypatch.setattr("retrieval.search.vector_index.LARGEST", largest)
    index = index_of(*GERMAN).updated((), {3 + at: [text] for at, text in enumerate(ENGLISH)})
    assert len(index.segments) == (1 if largest > 1 else 2)
    assert {language for segment in index.segments for language in segment.languages} == {"de", "en"}
    assert best(index, "Gerät") == GERMAN[1]
    assert best(index, "battery") == ENGLISH[1]


def test_a_passage_that_is_misread_does_not_change_the_stems_of_frequent_words() -> None:
    index = index_of(*ENGLISH, "Wir haben batteries und appliances für Sie im Geschäft.")
    (segment,) = index.segments
    assert segment.languages == ("en", "de")
    assert [segment.term_of(word) for word in ("orders", "delivery")] == [stem("orders"), stem("delivery")]


def test_a_word_the_index_does_not_have_is_stemmed_as_the_form_that_it_has() -> None:
    (segment,) = index_of(*GERMAN, *ENGLISH).segments
    assert segment.term_of("gutscheins") == segment.term_of("gutscheine") == stem("gutscheine", "de")
    assert segment.term_of("purchases") == segment.term_of("purchase")
    assert segment.term_of("zeppelins") is None


def test_two_forms_in_a_question_count_once() -> None:
    index = index_of(*GERMAN, *ENGLISH)
    for words in ("Gerät Geräte", "battery batteries", "zeppelin zeppelins"):
        assert index.scores(f"label {words}").tolist() == index.scores(f"label {words.split()[0]}").tolist()
