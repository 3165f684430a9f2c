"""The language of short texts; terms of texts and questions: which words find each other, stems in indexes."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from Stemmer import Stemmer

from retrieval.search.keyword_index import KeywordIndex
from retrieval.text.terms import asked_words, language_of, stem, telling_words, words


def share_found(question: str, text: str) -> float:
    asked = {stem(word) for word in asked_words(question)}
    return len(asked & {stem(word) for word in words(text)}) / len(asked)


def test_chinese_gives_characters_and_pairs():
    assert words("无法退款。") == ["无", "法", "退", "款", "无法", "法退", "退款"]
    assert asked_words("无法退款。") == ["无法", "法退", "退款"]


@pytest.mark.parametrize(
    ("question", "telling"),
    [
        ("请问退款要多久？", ["退款", "款要"]),
        ("这个吸尘器的保修期是什么时候开始的呢", ["吸尘", "尘器", "保修", "修期", "开始"]),
        ("你们了解退款吗", ["了解", "解退", "退款"]),
        ("几内亚和几何", ["几内", "内亚", "亚和", "和几", "几何"]),
        ("附近有酒吧", ["附近", "近有", "有酒", "酒吧"]),
        ("为什么？", ["为什", "什么"]),  # there is nothing else
        ("how long is the Lieferung?", ["how", "long", "is", "the", "lieferung"]),
    ],
)
def test_words_that_only_ask_do_not_count(question, telling):
    assert telling_words(question) == telling


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("退款", "我们无法退款给您"),
        ("退款？", "「退款」需要五天。"),
        ("猫", "小猫用品"),
        ("환불", "환불은 오 일이 걸립니다"),
        ("ケース", "iPhoneケースの返品"),
        ("返品", "iPhoneケースの返品"),
        ("iphone", "iPhoneケースの返品"),
        ("ｹｰｽ", "iPhoneケースの返品"),  # half-width
        ("5GB", "套餐5GB版"),
    ],
)
def test_a_word_is_found_inside_a_run_without_a_dictionary(question, text):
    assert share_found(question, text) == 1.0


def test_characters_of_a_question_do_not_count_one_by_one_and_scripts_part_where_they_change():
    assert share_found("退款", "退回的款项") == 0.0
    assert words("iPhoneケースの返品") == ["iphone", *"ケースの返品", "ケー", "ース", "スの", "の返", "返品"]
    assert asked_words("가격 인상") == ["가격", "인상"]


@pytest.mark.parametrize("question", ["KM-450", "KM450", "km 450", "ｋｍ４５０", "km.450", "KM/450"])
@pytest.mark.parametrize("text", ["the KM-450 kettle", "the KM450", "a km 450", "Km/450."])
def test_model_numbers_find_each_other(question, text):
    asked = {stem(word) for word in asked_words(question)}
    assert {"km", "450"} <= asked & set(words(text))
    assert share_found(question, text) >= 2 / 3
    assert share_found(question, "the KM-451 kettle") < share_found(question, text)


@pytest.mark.parametrize(("question", "text"), [("e-mail", "Write an email."), ("email", "Write an e-mail.")])
def test_hyphens_inside_a_word_do_not_matter(question, text):
    assert "email" in set(asked_words(question)) & set(words(text))


def test_forms_of_a_word_are_one_term_and_other_words_are_not():
    assert {stem(word) for word in words("Return returns RETURNED returning")} == {"return"}
    assert stem("refund") != stem("return")
    assert words("a_b a") == ["a", "b", "a"]
    assert words("STRASSE Straße") == ["strasse", "strasse"]
    assert words(" \n—!?") == asked_words("") == []


def test_threads_may_stem_at_once():
    letters = random.Random(7)
    unseen = ["".join(letters.choices("bcdfglmnprst", k=7)) + "izations" for _ in range(500)]
    expected = Stemmer("en").stemWords(unseen)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: [stem(word) for word in unseen], range(4)))


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
def test_forms_of_a_word_have_one_stem_by_the_rules_of_their_language(forms, language):
    assert len({stem(form, language) for form in forms.split()}) == 1


@pytest.mark.parametrize("pair", ["customs customer", "police policy", "internal international", "universe university"])
def test_words_of_different_meaning_keep_apart(pair):
    first, second = pair.split()
    assert stem(first) != stem(second)


def test_a_german_question_finds_other_forms_of_its_words():
    index = index_of(*GERMAN)
    assert index.segments[0].languages == ("de",)
    for question, expected in (("Rückgabe einer Lieferung", 0), ("Gerät", 1), ("Gutschein", 2)):
        assert best(index, question) == GERMAN[expected]


@pytest.mark.parametrize("largest", [20_000, 1])
def test_both_languages_of_an_index_are_stemmed_by_their_own_rules(largest, monkeypatch):
    """In one segment, and in one for each language."""
    monkeypatch.setattr("retrieval.search.vector_index.LARGEST", largest)
    index = index_of(*GERMAN).updated((), {3 + at: [text] for at, text in enumerate(ENGLISH)})
    assert len(index.segments) == (1 if largest > 1 else 2)
    assert {language for segment in index.segments for language in segment.languages} == {"de", "en"}
    assert best(index, "Gerät") == GERMAN[1]
    assert best(index, "battery") == ENGLISH[1]


def test_a_passage_that_is_misread_does_not_change_the_stems_of_frequent_words():
    index = index_of(*ENGLISH, "Wir haben batteries und appliances für Sie im Geschäft.")
    (segment,) = index.segments
    assert segment.languages == ("en", "de")
    assert [segment.term_of(word) for word in ("orders", "delivery")] == [stem("orders"), stem("delivery")]


def test_a_word_the_index_does_not_have_is_stemmed_as_the_form_that_it_has():
    (segment,) = index_of(*GERMAN, *ENGLISH).segments
    assert segment.term_of("gutscheins") == segment.term_of("gutscheine") == stem("gutscheine", "de")
    assert segment.term_of("purchases") == segment.term_of("purchase")
    assert segment.term_of("zeppelins") is None


def test_two_forms_in_a_question_count_once():
    index = index_of(*GERMAN, *ENGLISH)
    for forms in ("Gerät Geräte", "battery batteries", "zeppelin zeppelins"):
        assert index.scores(f"label {forms}").tolist() == index.scores(f"label {forms.split()[0]}").tolist()


ROOT = Path(__file__).parent.parent
QUESTIONS = {
    "en": "How long does delivery take?|refund time|sv-3 pro wont charge|Hello|E3|expres max wieght|PIV card|invoice",
    "de": "Wie lange dauert die Lieferung?|Passwort vergessen|Was kostet der Versand?|Rückgabe geöffneter Ware",
    "fr": "Combien de temps prend la livraison ?|mot de passe oublié|délai de remboursement",
    "es": "¿Cuánto tarda el envío?|olvidé mi contraseña|plazo de devolución",
    "it": "Quanto tempo richiede la consegna?|Dov'è il mio pacco?|tempi di rimborso",
    "nl": "Hoe lang duurt de levering?|wachtwoord vergeten|retourtermijn",
    "zh": "退货期限是多久?|你好|謝謝|可以用支付宝付款吗|KM-450 显示 E3|人工客服",
    "ja": "配送にはどのくらいかかりますか?|こんにちは|パスワードを忘れました|担当者と話したい",
    "ko": "배송은 얼마나 걸리나요?|환불은 언제 되나요",
}


@pytest.mark.parametrize(("language", "question"), [(code, q) for code, qs in QUESTIONS.items() for q in qs.split("|")])
def test_short_questions(language, question):
    assert language_of(question) == language


def test_no_english_sample_question_counts_as_another_language():
    lines = (ROOT / "data" / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    assert [question for question in questions if language_of(question) != "en"] == []


@pytest.mark.parametrize("text", ["", " ", "12345678", "?!", "Garantie", "Hallo"])
def test_what_says_little_is_the_default(text):
    assert language_of(text) == "en"
    assert language_of(text, "de") == "de"


def test_a_default_decides_only_where_two_languages_share_the_characters():
    assert language_of("How long does delivery take to Germany?", "de") == "en"
    assert language_of("Wie lange dauert die Lieferung?", "fr") == "de"
    assert language_of("返品期限") == "zh"
    assert language_of("返品期限", "ja") == "ja"
    assert language_of("返品期限はいつですか", "zh") == "ja"
    assert language_of("What does the sign 保 on the kettle mean?") == "en"
    assert language_of("优酷の会员退款要多久可以到账,请问怎么申请?") == "zh"
