"""Sentences of texts as documents have them."""

import pytest

from retrieval.text.sentences import as_said, complete, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("See Dr. Smith or J. R. Jones at 3.5 km.", ["See Dr. Smith or J. R. Jones at 3.5 km."]),
        ("It may weigh max. 30 kg, incl. 2 kg of e.g. Paper.", None),
        ("Order by Dec. 20. It takes approx. 5 days.", ["Order by Dec. 20.", "It takes approx. 5 days."]),
        (
            "From 9 a.m. Monday to 5 p.m. Friday. We close at 6 p.m. Call us.",
            ["From 9 a.m. Monday to 5 p.m. Friday.", "We close at 6 p.m.", "Call us."],
        ),
        ("Нельзя вернуть. Возврат за 30 дней.", ["Нельзя вернуть.", "Возврат за 30 дней."]),
        ("Δεν επιστρέφεται. Είναι δωρεάν.", ["Δεν επιστρέφεται.", "Είναι δωρεάν."]),
        ("It takes 5 min. Then go.", ["It takes 5 min.", "Then go."]),
        ("- one item. Two\n1. Choose it. Then go.", ["one item.", "Two", "Choose it.", "Then go."]),
        ("What: A; Limit: 4\nWhat: B; Limit: 5", ["What: A; Limit: 4", "What: B; Limit: 5"]),
        ("a line that\nwas wrapped.\nAnother", ["a line that was wrapped.", "Another"]),
        ("A long line of prose which ends before its sentence does, at the\nGalway store.", None),
        ("你好。再见！", ["你好。", "再见！"]),
        ("它原名茶荣省。1956年2月9日改名。", ["它原名茶荣省。", "1956年2月9日改名。"]),
        ("**Refuse it.** It comes back.", ["**Refuse it.**", "It comes back."]),
        ("Choose **Forgot password?** on the page. then wait", None),
        ("| Item | Returnable? | Why |", None),
        ("Store it below 25 °C. At 104 Wh it is large.", ["Store it below 25 °C.", "At 104 Wh it is large."]),
        ("An error.For example this.", ["An error.", "For example this."]),
        (" \n\n", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == ([" ".join(text.split())] if expected is None else expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Bei Sperrgut, z. B. Sofas bzw. Betten, bis zum 24. Dezember. Dr. Müller hilft. Siehe Nr. 5.",
            ["Bei Sperrgut, z. B. Sofas bzw. Betten, bis zum 24. Dezember.", "Dr. Müller hilft.", "Siehe Nr. 5."],
        ),
        ("Das dauert ca. 3 Tage. Danke!", ["Das dauert ca. 3 Tage.", "Danke!"]),
        (
            "M. Dupont vous répond. Le délai est d'env. 3 jours, voir p. 5. Merci !",
            ["M. Dupont vous répond.", "Le délai est d'env. 3 jours, voir p. 5.", "Merci !"],
        ),
        (
            "El Sr. Pérez responde y Ud. paga aprox. 5 euros. ¿Dónde está? Aquí.",
            ["El Sr. Pérez responde y Ud. paga aprox. 5 euros.", "¿Dónde está?", "Aquí."],
        ),
        (
            "代码有效30天。（5天用于送达）。“好的！”《规则》",
            ["代码有效30天。", "（5天用于送达）。", "“好的！”", "《规则》"],
        ),
        ("「はい。」返品できます。どうぞ。", ["「はい。」", "返品できます。", "どうぞ。"]),
    ],
)
def test_sentences_of_other_languages(text, expected):
    assert sentences(text) == expected


def test_the_language_may_be_given():
    assert sentences("Siehe Nr. 5 bzw. Abs. 2.", "de") == ["Siehe Nr. 5 bzw. Abs. 2."]
    assert complete("Siehe bzw. Abs. 2. Danke", "de")[0] == ["Siehe bzw. Abs. 2."]


def test_a_growing_list_keeps_its_lines_and_markers():
    text, rest = "Do this:\n\n1. Open the app\n2. Choose one. Go.\n- Free of charge\n10. Ask us", ""
    said: list[str] = []
    for character in text:
        ended, rest = complete(rest + character)
        said += ended
    assert said == sentences(text)[:-1], "a marker is no sentence, also before its line goes on"


def test_a_statement_is_said_with_its_end():
    statements = ("Call us!", "Code: E1; What: jam", "a box,", "收据；")
    assert [as_said(statement) for statement in statements] == ["Call us!", "Code: E1; What: jam.", "a box.", "收据。"]
