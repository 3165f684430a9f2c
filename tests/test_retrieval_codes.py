"""Codes and model names are found in every spelling, and tell which page is about another one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.text.codes import AskedCodes, codes

KM, SV3, SV3PRO, IH = (
    ("KM-450 Aran Duo: error codes",),
    ("SV-3 vacuum",),
    ("SV-3 Pro vacuum",),
    ("IH-2 hob: error codes",),
)


@pytest.mark.parametrize("text", ["E3", "E03", "e 03", "E-3", "显示E03错误", "Ｅ０３"])
def test_an_error_code_has_one_name(text):
    assert codes(text) == {"e3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SV-3 Pro and SV-3", {"sv3pro", "sv3"}),
        ("sv-3 pro wont charge", {"sv3pro"}),
        ("The SV-3 plus a dock", {"sv3"}),
        ("part SV3P-BAT", {"sv3pbat"}),
        ("Form 1040 or form 1099-K", {"form1040", "form1099k"}),
        ("error 7, error code 07", {"error7"}),
        ("Windows 11, iPhone 15 Pro Max", {"windows11", "iphone15promax"}),
        ("E01 to E04", {"e1", "e2", "e3", "e4"}),
        ("E01, E04", {"e1", "e4"}),
    ],
)
def test_codes(text, expected):
    assert codes(text) == expected


NO_CODES = """EUR 5|5 EUR|€5|USD20|up to EUR 4.95|24 hours|20 kg|230 V|30 %|A4 paper|print it on A4|2FA|2024-05-01|May 5
|24 December|Monday 9:00|step 3|Page 12|Section 4|from 60 to 80|call +353 1 555 0142|LM-4821907|3 to 5 days|Schritt 2
|ab 50 Euro|am 3. Mai|within 14 days"""


@pytest.mark.parametrize("text", [text.strip() for text in NO_CODES.split("|")])
def test_amounts_dates_and_steps_are_no_codes(text):
    assert codes(text) == frozenset()


@pytest.mark.parametrize(
    ("question", "statement", "headings", "expected"),
    [
        ("sv-3 pro wont charge", "Use the charger marked 21.6 V.", SV3, True),
        ("sv-3 pro wont charge", "Use the dock.", SV3PRO, False),
        ("sv-3 pro wont charge", "The charger of the small SV-3 leads to b2.", SV3PRO, False),
        ("SV-3 battery", "Motors of vacuum cleaners (SV-3, SV-3 Pro, RV-8): 5 years.", ("Warranty",), False),
        ("KM-450 shows E3", "Code E06: Overheated.", KM, True),
        ("KM-450 shows E3", "Code E03: Brewing unit missing.", KM, False),
        ("KM-450 shows E3", "Code E3: Pan too hot.", IH, True),
        ("what is E3", "Code E3: Pan too hot.", IH, False),
        ("KM-450 shows E3", "For E01 to E05 restart it.", KM, False),
        ("Form 1040 deadline", "Form 1099 is due in January.", ("Forms",), True),
        ("can I return 2 pillows", "Refunds take 3 days.", ("Return 30 days",), False),
        ("delivery for EUR 60", "Delivery costs EUR 4.95.", ("Delivery",), False),
        ("error 7", "Code 8: wheel stuck.", ("RV-8",), True),
    ],
)
def test_another_model_or_code(question, statement, headings, expected):
    assert AskedCodes(question).are_others(statement, headings) is expected


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["KM", "RV", "XBG"]), st.integers(1, 9999))
def test_spelling_does_not_matter(letters, number):
    spellings = [f"{letters}-{number}", f"{letters}{number}", f"{letters.lower()} {number}", f"{letters} 0{number}"]
    assert [codes(f"My {spelling} is broken") for spelling in spellings] == [{f"{letters.lower()}{number}"}] * 4
    other = f"{letters}-{number + 1}"
    assert [AskedCodes(spelling).are_others(f"Fill the {other}.", ()) for spelling in spellings] == [True] * 4
    assert not AskedCodes(spellings[0]).are_others(f"Fill the {other}.", [f"{spellings[1]} and {other}"])


@pytest.mark.parametrize(
    ("question", "statement", "headings", "expected"),
    [
        ("My KM-450 shows E3", "Code E03: Brewing unit missing.", KM, True),
        ("My KM-450 shows E3", "When the KM-450 cannot carry on, it shows a code.", KM, False),
        ("My KM-450 shows E3", "Code E06: Overheated.", KM, False),
        ("My KM-450 shows E3", "Code E3: Pan too hot.", IH, False),
        ("what is E3", "Code E3: Pan too hot.", IH, True),
        ("RV-8 error 7", "Code R7: Dock not found.", ("RV-8 robot",), True),
        ("RV-8 error 7", "Code R17: Wheel stuck.", ("RV-8 robot",), False),
        ("How do I descale my KM-210?", "Descale the KM-210 by hand.", ("Descaling the KM-210",), False),
        ("How do I descale my KM-210?", "Descale the KM-210 by hand.", ("Coffee machines",), True),
    ],
)
def test_a_statement_that_names_the_code(question, statement, headings, expected):
    assert AskedCodes(question).are_named(statement, headings) is expected


def test_a_mention_of_a_model_does_not_replace_its_own_page():
    repair = "SV-3, SV-3 Pro - typical repair: EUR 55"
    assert AskedCodes("How long does the SV-3 Pro take to charge?").are_named(repair, ("Repairs",))
    found = [*SV3PRO, "Repairs"]
    assert not AskedCodes("How long does the SV-3 Pro take to charge?", "", found).are_named(repair, ("Repairs",))
    assert AskedCodes("My KM-450 shows E3", "", [*KM, *IH]).are_named("Code E03: Brewing unit missing.", KM)
    assert not AskedCodes("My KM-450 shows E3", "", [*KM, *IH]).are_named("Code E3: Pan too hot.", IH)


@pytest.mark.parametrize(
    ("earlier", "question", "statement", "others"),
    [
        ("How do I descale the KM-450?", "And the KM-210?", "Descale the KM-450 with citric acid.", True),
        ("How do I descale the KM-450?", "And the KM-210?", "Descale the KM-210 by hand.", False),
        ("How do I descale the KM-450?", "And the IH-2?", "The IH-2 needs no descaling.", False),
        ("My KM-450 shows E3", "And E5?", "Code E05: Descale the KM-450.", False),
        ("My KM-450 shows E3", "And E5?", "The KM-210 has no code.", True),
    ],
)
def test_a_code_of_the_question_before_counts_until_another_is_named(earlier, question, statement, others):
    assert AskedCodes(question, earlier).are_others(statement, ()) is others
