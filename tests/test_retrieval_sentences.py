"""Sentences of texts as documents have them."""

from __future__ import annotations

import pytest

from retrieval.text.sentences import TOGETHER, as_said, complete, sentences, statements

RETURNS = """Returning things

You can return most articles within 30 days. Do you need a label?
We print 2 labels for "heavy" parcels (over 20 kg).

What you need:
- the receipt
- your customer number (see the invoice)
1. Open the app

Article: shoes; Days: 14
Is it broken? Call us at once!
4711!
"""


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
        ("**Refuse it.** It comes back.", ["**Refuse it.**", "It comes back."]),
        ("Choose **Forgot password?** on the page. then wait", None),
        ("| Item | Returnable? | Why |", None),
        ("Store it below 25 °C. At 104 Wh it is large.", ["Store it below 25 °C.", "At 104 Wh it is large."]),
        ("An error.For example this.", ["An error.", "For example this."]),
        (" \n\n", []),
    ],
)
def test_sentences(text: str, expected: list[str] | None) -> None:
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
def test_sentences_of_other_languages(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_the_language_may_be_given() -> None:
    assert sentences("Siehe Nr. 5 bzw. Abs. 2.", "de") == ["Siehe Nr. 5 bzw. Abs. 2."]
    assert complete("Siehe bzw. Abs. 2. Danke", "de")[0] == [(" ", "Siehe bzw. Abs. 2.")]


def test_a_growing_text_gives_its_sentences_once() -> None:
    text, found, rest = "It costs EUR 3.50. Free in stores.\nAsk us! Bye", [], ""
    for character in text:
        ended, rest = complete(rest + character)
        found += ended
    assert found == [(" ", "It costs EUR 3.50."), (" ", "Free in stores."), ("\n", "Ask us!")]
    assert rest == " Bye"


def test_a_growing_list_keeps_its_lines_and_markers() -> None:
    text, given, rest = "Do this:\n\n1. Open the app\n2. Choose one. Go.\n- Free of charge\n10. Ask us", "", ""
    said: list[str] = []
    for character in text:
        ended, rest = complete(rest + character)
        given += "".join(gap + sentence for gap, sentence in ended)
        said += [sentence for _, sentence in ended]
    assert given + rest == " " + text
    assert said == sentences(text)[:-1], "a marker is no sentence, also before its line goes on"


def test_statements_are_neither_questions_nor_headings_nor_numbers_alone() -> None:
    assert list(statements(RETURNS)) == [
        "You can return most articles within 30 days.",
        'We print 2 labels for "heavy" parcels (over 20 kg).',
        "What you need: the receipt, your customer number (see the invoice), Open the app",
        "Article: shoes; Days: 14",
        "Call us at once!",
    ]
    assert list(statements("")) == list(statements("Returning things\n\nWhat do you need?")) == []


def test_a_sentence_that_leans_on_another_is_one_statement_with_it() -> None:
    text = (
        "We print a label. It works for 14 days. If it runs out, ask again. Stores print too.\nThis is a line. Then go."
    )
    assert list(statements(text)) == [
        "We print a label. It works for 14 days. If it runs out, ask again.",
        "Stores print too.",
        "This is a line. Then go.",
    ]
    assert list(statements("Do you need one? It is free.")) == ["It is free."], "a question is no part of a statement"
    for pair in (
        "A quote is valid for 21 days. Prices are fixed for that time.",
        "The fee is EUR 15. If you go ahead with the repair, it is taken off the price.",
        "We call you twice. We keep the box for those who missed us.",
    ):
        assert list(statements(pair)) == ([pair] if "those who" not in pair else sentences(pair))
    long = "A word " * (TOGETHER // 2 - 2) + "ends."
    assert list(statements(f"{long} It is so. {'It is ' * 3}so.")) == [f"{long} It is so.", "It is It is It is so."]


LISTS = """Before the visit, please:

- measure the door,
- keep a parking space free.

- **Cookware:** look at it. Once food was in it, we take 30 % off.
- Is it broken? Call us at once!

You get no points for:
1. delivery
2. gift cards

Code: E04; Meaning: jammed; What to do: Empty the hopper. Restart the machine.
"""


def test_items_and_rows_are_statements_as_a_whole_and_fragments_go_with_what_leads_to_them() -> None:
    assert list(statements(LISTS)) == [
        "Before the visit, please: measure the door, keep a parking space free.",
        "**Cookware:** look at it. Once food was in it, we take 30 % off.",
        "Call us at once!",
        "You get no points for: delivery, gift cards",
        "Code: E04; Meaning: jammed; What to do: Empty the hopper. Restart the machine.",
    ]


def test_items_below_a_denial_are_told_with_it() -> None:
    assert list(statements("Never do this:\n- Put it in the dishwasher.\n- Use bleach.\nDry it.")) == [
        "Never do this: Put it in the dishwasher. Use bleach.",
        "Dry it.",
    ]
    assert list(statements("Do this:\n- Wash it.\n- Dry it.")) == ["Wash it.", "Dry it."]


def test_questions_are_in_no_statement() -> None:
    assert list(statements("Often asked:\n- How do I return shoes?\n- What does it cost?")) == []
    assert list(statements("You can return it. But what if it is broken? Call us.")) == [
        "You can return it.",
        "Call us.",
    ]


def test_chinese_lists() -> None:
    assert list(statements("请准备：\n- 收据；\n- 订单号；\n- 发票。\n谢谢您。")) == [
        "请准备：收据；订单号；发票。",
        "谢谢您。",
    ]
    assert list(statements("请准备：\n- 收据\n- 订单号")) == ["请准备：收据、订单号"]
    assert len(list(statements("请准备：\n" + "\n".join(f"- 第{n}张订单的收据；" for n in range(20))))) > 1


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("Call us!", "Call us!"),
        ("Code: E1; What: jam", "Code: E1; What: jam."),
        ("a box,", "a box."),
        ("收据；", "收据。"),
    ],
)
def test_a_statement_is_said_with_its_end(statement: str, said: str) -> None:
    assert as_said(statement) == said


def test_long_lists_are_several_statements() -> None:
    items = [f"the article number {number} of the order," for number in range(20)]
    found = list(statements("\n".join(["Please have ready:", *(f"- {item}" for item in items)])))
    assert len(found) > 1
    assert all(one.startswith("Please have ready: the") and len(one.split()) <= TOGETHER for one in found)
    assert [item for one in found for item in items if item in one] == items


def test_a_long_row_is_told_sentence_by_sentence() -> None:
    assert len(list(statements("Code: E1; What: " + "It is so much to do. " * TOGETHER))) > 1


def test_chinese_statements() -> None:
    assert list(statements("退货\n可以退货吗？三十天内可以退货。请联系我们！")) == [
        "三十天内可以退货。",
        "请联系我们！",
    ]
