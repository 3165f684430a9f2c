"""What questions ask for, and texts that have it."""

import pytest

from retrieval.answerability import agreement


@pytest.mark.parametrize(
    ("question", "has", "has_not"),
    [
        ("How much is gift wrapping?", "It costs EUR 3.90 per item.", "It includes a card with 200 characters."),
        ("what does express cost", "Express is free above 60.", "Express takes 1 working day."),
        ("运费多少钱？", "运费12元。", "我们使用快递发货。"),
        ("How long is the label valid?", "It works for 14 days.", "Print the label."),
        ("When do you open on Sunday?", "At noon, in Galway only.", "We open when staff are there."),
        ("退款要多久？", "需要5天。", "请联系我们。"),
        ("退款要多久？", "三十天内可以退货。", "请联系我们。"),
        ("运费多少钱？", "满60元免运费。", "请联系我们。"),
        ("这座桥是哪一年建成的？", "1937年建成。", "桥很长。"),
        ("它在哪里？", "位于都柏林市中心。", "它很大。"),
        ("那本书的作者是谁？", "作者叫安娜。", "它很厚。"),
        ("为什么关门？", "因装修暂停营业。", "周一休息。"),
        ("When does the sale end?", "Until 31 December.", "Until nothing is left."),
        ("When does it begin?", "On 6th January.", "As soon as we can."),
        ("How much longer does it take?", "2 extra working days.", "EUR 3 more."),
        ("How many users can an account have?", "Up to 15 can share one.", "Several people can."),
        ("How often may I move a payment?", "Once per plan.", "In the app."),
        ("Where can I report a text message?", "Forward it to fraud@larkmoor.example.", "Do not answer it."),
        ("How do I descale it?", "Descaling:\n1. Fill the tank.\n2. Press Start.", "It must be descaled in 1 hour."),
        ("Which phone number is it?", "Call 091 555 0100.", "Call us."),
    ],
)
def test_a_text_that_has_what_is_asked_for(question: str, has: str, has_not: str) -> None:
    assert agreement(question, has) == 1.0
    assert agreement(question, has_not) == -1.0


def test_two_things_asked_for_and_one_there() -> None:
    question = "How long does delivery take and what does it cost?"
    assert agreement(question, "It takes 3 days and costs EUR 5.") == 1.0
    assert agreement(question, "It takes 3 days.") == 0.0
    assert agreement(question, "The driver carries it in.") == -1.0


def test_a_question_for_no_such_thing_expects_nothing() -> None:
    for question in ("Can I cancel?", "What happens when I cancel?", "Kann ich stornieren?", "", "怎么退货？"):
        assert agreement(question, "EUR 5 within 14 days") == agreement(question, "No.") == 0.0
