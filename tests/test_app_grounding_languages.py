"""Facts as the language of the passages writes them."""

import pytest

from app.grounding.facts import facts
from app.grounding.grounding import AnswerChecker, Source
from retrieval.statements.cut import statements_of

GERMAN = (
    "Garantie\nFür alle Geräte gilt eine Garantie von zwei Jahren. Ab einem Wert von 1.000 Euro holen wir das Gerät "
    "ab. Der Versand kostet 4,95 Euro. Die Maschine fasst 1,250 Liter und wiegt 1.250 g."
)


def stated(text: str, language: str, kind: str) -> list[str]:
    return [
        f"{fact.value} {fact.unit}".strip() for fact in facts(text, language) if fact.kind == kind and fact.is_bound
    ]


@pytest.mark.parametrize(
    ("text", "language", "value"),
    [
        ("1.000 EUR", "de", "1000 EUR"),
        ("€1.000", "en", "1000 EUR"),
        ("1.234,50 EUR", "fr", "1234.5 EUR"),
        ("EUR 1,234.50", "en", "1234.5 EUR"),
        ("4.95 EUR", "de", "4.95 EUR"),
        ("1.500 g", "en", "1.5 g"),
        ("1,500 g", "zh", "1500 g"),
        ("1,500 g", "it", "1.5 g"),
        ("1.234.567 g", "es", "1234567 g"),
        ("3.5 kg", "de", "3500 g"),
    ],
)
def test_decimal_marks(text, language, value):
    assert stated(text, language, "number") == [value]


@pytest.mark.parametrize(
    ("text", "value"), [("12/25/2026", "12-25"), ("25/12/2026", "12-25"), ("2026/12/25", "12-25"), ("3/4/2026", "4-3")]
)
def test_a_date_has_a_month_that_exists(text, value):
    assert stated(f"until {text}", "en", "date") == [value]


def test_the_language_decides_about_names_and_a_month_about_dates():
    text = "Wir holen das Gerät mit der Spedition ab."
    assert stated(text, "de", "name") == []
    assert stated("We collect it with Corrib Couriers.", "en", "name") == ["corrib", "courier"]
    assert "KM450" in stated("Das gilt für die KM-450.", "de", "code")
    assert stated("13/25/2026", "en", "date") == stated("2026-25-13", "en", "date") == []


@pytest.mark.parametrize(
    ("said", "is_supported"),
    [
        ("Ab 1000 Euro holen wir das Gerät ab.", True),
        ("Ab einem Wert von 1 Euro holen wir das Gerät ab.", False),
        ("Der Versand kostet 4.95 Euro.", True),
        ("Der Versand kostet 495 Euro.", False),
        ("Die Maschine wiegt 1,25 kg.", True),
        ("Für ein Gerät gilt eine Garantie von zwei Jahren.", True),
    ],
)
def test_german_answers_are_held_against_german_passages(said, is_supported):
    title, _, text = GERMAN.partition("\n")
    checker = AnswerChecker("", [Source(one.text, title) for one in statements_of(text, [title])])
    assert (checker.check(said).problem is None) is is_supported
