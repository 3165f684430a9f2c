"""Statements can be read without the passage around them, and say nothing that it does not."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval.statements.cut import LONGEST_LIST, statements_of
from retrieval.statements.grouping import num_words

PAGE = ("Help",)


def told(text: str, *headings: str) -> list[str]:
    return [statement.text for statement in statements_of(text, headings or PAGE)]


def words(text: str) -> set[str]:
    return set(re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", text.lower()))


def kinds(text: str, *headings: str) -> list[str]:
    return [statement.kind for statement in statements_of(text, headings or PAGE)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs EUR 3. Stores are open.", ["It costs EUR 3.", "Stores are open."]),
        ("We print a label. It works for 14 days. Ask us.", ["We print a label. It works for 14 days.", "Ask us."]),
        ("You pay once. It is enough to call us.", ["You pay once.", "It is enough to call us."]),
        ("How long does it take?\n5 days at most.", ["5 days at most."]),
        ("How long does it take? 5 days at most.", ["5 days at most."]),
        ("Away for a month? Charge it to two lights.", ["Away for a month? Charge it to two lights."]),
        ("Do you deliver abroad?\nYes. We deliver to Malta.", ["Do you deliver abroad? Yes. We deliver to Malta."]),
        ("Do I need an account?\nNo, you can be a guest.", ["Do I need an account? No, you can be a guest."]),
        ("Free delivery\nNo. It is for Standard only.", ["It is for Standard only."]),
        ("Free delivery\nYes, it is for Standard only.", ["Yes, it is for Standard only."]),
        ("Konto\nNobody needs one.", ["Nobody needs one."]),
        ("您送货到香港吗？\n可以。运费为8元。", ["您送货到香港吗？可以。运费为8元。"]),
        ("Pay to this account within 5 days:\nIE12 BOFI 9000", ["Pay to this account within 5 days: IE12 BOFI 9000."]),
        ("Do you deliver abroad?\nYes.", []),
        ("Delivery\nWe deliver on Mondays.", ["We deliver on Mondays."]),
        ("Parcels can be sent from every one of our stores in the whole\nof Ireland.", None),
        ("我们在30天内退款。它不含运费。\n请联系我们", ["我们在30天内退款。它不含运费。"]),
        ("Die Lieferung dauert 2 Tage. Danach rufen Sie uns an.", None),
        ("4711!\n\n- - -", []),
    ],
)
def test_sentences(text, expected):
    assert told(text) == ([" ".join(text.split())] if expected is None else expected)


def test_short_items_are_told_together_with_their_introduction():
    assert told("You can pay with:\n\n- Visa\n- Mastercard\n- PayPal") == [
        "You can pay with: Visa, Mastercard, PayPal."
    ]
    assert told("Bring:\n- the receipt,\n- the box, and\n- your ID") == ["Bring: the receipt, the box, your ID."]
    assert told("您可以使用：\n- 支付宝\n- 信用卡") == ["您可以使用：支付宝、信用卡。"]
    assert told("Sie zahlen mit:\n- Visa\n- PayPal (ab 10 EUR)") == ["Sie zahlen mit: Visa, PayPal (ab 10 EUR)."]
    assert kinds("You can pay with:\n\n- Visa\n- Mastercard\n- PayPal") == ["list"]


def test_a_long_list_is_cut_and_every_part_keeps_the_introduction():
    items = "\n".join(f"- blue paper bags of the size number {n}" for n in range(20))
    parts = told(f"Not delivered are:\n{items}")
    assert len(parts) > 1
    assert all(part.startswith("Not delivered are: ") and num_words(part) <= LONGEST_LIST for part in parts)


@pytest.mark.parametrize("above", ["What is not covered", "You cannot return:", "Exceptions", "Das zahlen wir nicht"])
def test_items_below_a_denial_always_carry_it(above):
    text = (
        f"{above}\n- Damage from falls, liquids, frost or the wrong voltage.\n- Personalised items that were engraved"
        " or embroidered for you are made to order and cannot go on sale again once you have had them.\n- Food"
    )
    assert all(said.startswith(above.rstrip(":") + ": ") for said in told(text))
    assert told("Wear parts\n", above) == []
    assert told("- Wear parts", above) == [f"{above.rstrip(':')}: Wear parts."]


def test_a_title_that_denies_is_not_lost_behind_a_heading_that_says_nothing():
    assert told("- Gift cards", "Items that can't be returned", "The list") == [
        "Items that can't be returned: Gift cards."
    ]


def test_sentences_below_a_denial_carry_it_unless_they_deny_themselves():
    assert told("Never do this\nUse bleach.") == ["Never do this: Use bleach."]
    assert told("What we do not accept\nWe do not take cheques.") == ["We do not take cheques."]
    assert told("It does not charge\nUse another charger.") == ["Use another charger."]


def test_whole_sentences_stand_alone_below_a_heading_that_only_names():
    text = "Working days\n- Working days are Monday to Friday, without public holidays, and the time counts from 9:00."
    assert told(text) == [text.split("- ")[1]]


def test_conditions_and_questions_go_with_the_items():
    item = "Check your spam folder for an email from no-reply@login.gov, and add that address to your list of contacts."
    assert told(f"If you received nothing:\n- {item}") == [f"If you received nothing: {item}"]
    assert told(f"Did you receive nothing?\n- {item}") == [f"Did you receive nothing? {item}"]
    assert told(f"We help you.\n- {item}") == ["We help you.", item]


def test_steps_are_one_statement_with_their_numbers():
    text = "To reset it:\n\n1. Open the app.\n2. Press Reset. The light blinks for about ten seconds now.\n3. Wait."
    statements = statements_of(text, PAGE)
    whole = "To reset it:\n1. Open the app.\n2. Press Reset. The light blinks for about ten seconds now.\n3. Wait."
    assert [(s.kind, s.text) for s in statements] == [
        ("procedure", whole),
        ("item", "The light blinks for about ten seconds now."),
    ]
    assert told("1. Open it.\n2. Close it.", "Lamp", "Steps") == ["Lamp:\n1. Open it.\n2. Close it."]
    assert told("Follow these steps to sign in.\n1. Open it now.\n2. Close it.") == [
        "Follow these steps to sign in:\n1. Open it now.\n2. Close it."
    ]
    assert told("To sign in:\n- Open the page.\n- Type the code.") == [
        "To sign in:\n- Open the page.\n- Type the code."
    ]
    never = "Never do this:\n1. Open the lid. The steam would burn you at once.\n2. Shake it."
    assert told(never) == [never]
    assert kinds("No points for:\n1. delivery\n2. gift cards") == ["list"]


def test_a_long_procedure_is_whole():
    steps = "\n".join(f"{n}. Turn the key with the number {n} and wait until the light is green." for n in range(1, 16))
    assert told(f"To open it:\n{steps}") == [f"To open it:\n{steps}"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("Item: Pillows, opened; Returnable?: No; Why: Hygiene", "Pillows, opened – Returnable?: No; Why: Hygiene."),
        ("Item: Duvets; Returnable?: Yes; Why: -", "Duvets – Returnable?: Yes."),
        ("Mode: Eco; Running time: 35 minutes", "Eco – Running time: 35 minutes."),
        ("Shop: Cork; Sunday: 12:30-17:30; Entrance: rear", "Cork – Sunday: 12:30-17:30; Entrance: rear."),
        (
            "Way: Post; Where: Ireland; Price: EUR 4.95; Time: 2 to 3 days",
            "Post – Where: Ireland; Price: EUR 4.95; Time: 2 to 3 days.",
        ),
        (
            "Code: E3; Meaning: Pan too hot; What to do: Let it cool",
            "Code E3 – Meaning: Pan too hot; What to do: Let it cool.",
        ),
        ("Method: PayPal; Online: yes; In store: No", "PayPal – Online: yes; In store: No."),
        ("Where: Malta; Price: EUR 9; Time: see the separate page", "Malta – Price: EUR 9."),
        ("Versand: Express; Preis: 9,95 EUR; Ziel: Irland", "Express – Preis: 9,95 EUR; Ziel: Irland."),
        ("方式: 标准; 价格: 5欧元; 地区: 爱尔兰", "标准——价格：5欧元；地区：爱尔兰。"),
        ("PayPal; Online: yes; Store: no", "PayPal – Online: yes; Store: no."),
        ("Status: Packed; Meaning: It is in the box. No changes now.; Takes: 2 hours", None),
    ],
)
def test_rows_become_sentences(row, expected):
    said = "Packed – Meaning: It is in the box. No changes now; Takes: 2 hours."
    assert told(row) == [expected or said]
    assert kinds(row) == ["row"]


def test_a_row_of_one_cell_has_no_subject():
    rows = "Level: Gold; Discount: 15%; Points: 2\nLevel: Silver; Discount: 5%; Points: 1\nLevel: Total levels"
    assert [(one.text, one.subject) for one in statements_of(rows, PAGE)] == [
        ("Gold – Discount: 15%; Points: 2.", "Gold"),
        ("Silver – Discount: 5%; Points: 1.", "Silver"),
        ("Total levels.", ""),
    ]


def test_tables_without_headers():
    assert told("Standard; Ireland; EUR 4.95\nExpress; Ireland; EUR 9.95") == [
        "Standard: Ireland; EUR 4.95.",
        "Express: Ireland; EUR 9.95.",
    ]


def test_a_semicolon_inside_a_cell_belongs_to_the_cell():
    rows = "Light: Red; Meaning: Wait; note: hot\nLight: Green; Meaning: Go"
    assert told(rows) == ["Red – Meaning: Wait; note: hot.", "Green – Meaning: Go."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Book a collection as described in "Large items".', "Book a collection."),
        ("The label (see page 3 below) is free.", "The label is free."),
        ("The hopper is empty; see E04.", "The hopper is empty."),
        ("Bring your number (see the invoice).", "Bring your number (see the invoice)."),
        ("Open the Orders page and press Return.", "Open the Orders page and press Return."),
        ("Wir holen es ab, wie auf der Seite „Abholung“ beschrieben.", "Wir holen es ab."),
        ("退款需要5天（详见退款页面）。", "退款需要5天。"),
        ("For returns over 20 kg, please visit a store.", "For returns over 20 kg, please visit a store."),
        ("To return an item, see a member of staff.", "To return an item, see a member of staff."),
        ("More information is available by phone on 01 555 0199.",) * 2,
        ("The following list of countries is served: Ireland and Spain.",) * 2,
        ('See our article "Damaged" and do not plug it in; there you choose.',) * 2,
        ('See "Items that can\'t be returned" for the whole list.', None),
        ('How to do it is described on the pages "Returning an order" and "Stores".', None),
        ("Click here to sign in.", None),
        ("Learn more about security keys.", None),
        ("This article explains how to sign in.", None),
        ("For more information, see our page about returns.", None),
        ("Mehr dazu finden Sie auf der Seite „Rückgabe“.", None),
        ("更多信息请参阅退货页面。", None),
        ("Home > Help > Delivery > Costs", None),
        ("Was this helpful?\nYes / No\nBack to top\nLast updated: 12 May 2024", None),
        ("War dieser Artikel hilfreich?\nZuletzt aktualisiert am 1. Mai 2024", None),
        ("最后更新：2024年5月1日\n返回顶部", None),
        ("Related articles\n- Issues with keys\n- Authentication methods", None),
        ("- How to sign in\n- Why am I being asked for a code", None),
    ],
)
def test_references_and_furniture_are_left_out(text, expected):
    assert told(text) == ([expected] if expected else [])


def test_items_below_items():
    text = (
        "- Use strong words:\n  - long ones\n  - rare ones\n- Change them every year, because the rules ask for that."
    )
    assert told(text) == [
        "Use strong words: long ones, rare ones.",
        "Change them every year, because the rules ask for that.",
    ]


def test_spans_are_what_the_statement_stands_for():
    text = "You cannot return:\n\n- Gift cards\n\nItem: A pan; Price: EUR 5\n\nWe are here. Ask  us\nnow."
    assert [text[s.start : s.end] for s in statements_of(text, PAGE)] == [
        "Gift cards",
        "Item: A pan; Price: EUR 5",
        "We are here.",
        "Ask  us\nnow.",
    ]


PIECES = """What is not covered|Never do this:|You can pay with:|To open it:|Steps|If it is red:|Why?|- Visa|- Food.
|  - a red one|- Charge it. It takes 4 hours, or 5 in winter.|1. Open it.|2. Wait.|A; B; C|x: 1; y: -; z: 3
|Item: Pans, opened; Returnable?: No; Why: Hygiene|Code: E3; Meaning: Hot: stop.|Is it red? Call us.|Yes. No.
|See page 4.|It costs EUR 5. It is free from EUR 60; see below.|||不能退货的商品：|- 礼品卡|退款需要5天。它是免费的。
|价格: 5欧元; 时间: 2天|Nicht mit: Öl|a\tb  c"""
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES.replace("\n", "").split("|")), max_size=9).map("\n".join),
    st.text(alphabet='ab1E. :;?!-\n\t（。：、中\u00a0("”>', max_size=60),
    st.text(max_size=60),
)
ADDED = {"can", "cannot", "be", "not", "returned"}


@settings(max_examples=50, deadline=None)
@example("中?;", [])
@example("b:.", [])
@given(TEXTS, st.lists(st.sampled_from(["Help", "Never", "The list", ""]), max_size=2))
def test_statements_say_only_what_the_passage_says(text, headings):
    statements = statements_of(text, headings)
    source = " ".join([text, *headings, *map(str, range(10))])  # steps that are all numbered 1 are counted
    for statement in statements:
        assert words(statement.text) - ADDED <= words(source)
        assert 0 <= statement.start < statement.end <= len(text)
        assert re.search(r"[.!。！…][\"'”’)」』]*$", statement.text)
        assert not re.search(r"[:：?？][.。]?$", statement.text)
    assert len({statement.text for statement in statements}) == len(statements)
    assert [s.start for s in statements] == sorted(s.start for s in statements)


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_only_procedures_overlap_with_other_statements(text):
    single = [s for s in statements_of(text, PAGE) if s.kind != "procedure"]
    assert all(before.end <= after.start for before, after in pairwise(single))
