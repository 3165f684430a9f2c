"""The language of short texts, as customers type them."""

import json
from pathlib import Path

import pytest

from retrieval.text.terms import language_of

ROOT = Path(__file__).parent.parent
QUESTIONS = {
    "en": (
        "How long does delivery take?|refund time|can i return an opened pillow|sv-3 pro wont charge|Hello|thanks!|E3"
        "|gift card expired|error code|invoice|minimum pasword length|expres max wieght|PIV card|open on sunday?"
    ),
    "de": (
        "Wie lange dauert die Lieferung?|Kann ich meine Bestellung stornieren?|Passwort vergessen|Wo ist mein Paket?"
        "|Was kostet der Versand?|Rückgabe geöffneter Ware|Ich möchte mit einem Menschen sprechen"
    ),
    "fr": (
        "Combien de temps prend la livraison ?|Puis-je annuler ma commande ?|mot de passe oublié|Où est mon colis ?"
        "|Quels sont les frais de port ?|Je veux parler à un conseiller|délai de remboursement"
    ),
    "es": (
        "¿Cuánto tarda el envío?|¿Puedo cancelar mi pedido?|olvidé mi contraseña|¿Dónde está mi pedido?"
        "|¿Cuáles son los gastos de envío?|Quiero hablar con una persona|plazo de devolución"
    ),
    "it": (
        "Quanto tempo richiede la consegna?|Posso annullare il mio ordine?|ho dimenticato la password"
        "|Dov'è il mio pacco?|Quanto costa la spedizione?|Vorrei parlare con un operatore|tempi di rimborso"
    ),
    "nl": (
        "Hoe lang duurt de levering?|Kan ik mijn bestelling annuleren?|wachtwoord vergeten|Waar is mijn pakket?"
        "|Wat zijn de verzendkosten?|Ik wil met een medewerker spreken|retourtermijn"
    ),
    "zh": (
        "退货期限是多久?|多久可以收到退款?|你好|运费多少钱|我的包裹在哪里?|如何重置密码|謝謝|可以用支付宝付款吗"
        "|KM-450 显示 E3|人工客服"
    ),
    "ja": (
        "配送にはどのくらいかかりますか?|注文をキャンセルできますか|こんにちは|パスワードを忘れました|送料はいくらですか?"
        "|返金はいつですか|担当者と話したい"
    ),
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


def test_a_default_does_not_hide_another_language():
    assert language_of("How long does delivery take to Germany?", "de") == "en"
    assert language_of("Wie lange dauert die Lieferung?", "fr") == "de"


def test_characters_that_two_languages_share_are_the_default():
    assert language_of("返品期限") == "zh"
    assert language_of("返品期限", "ja") == "ja"
    assert language_of("返品期限はいつですか", "zh") == "ja"


def test_a_few_foreign_characters_do_not_decide():
    assert language_of("What does the sign 保 on the kettle mean?") == "en"
    assert language_of("优酷の会员退款要多久可以到账,请问怎么申请?") == "zh"
