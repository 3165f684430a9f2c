"""What is taken out of questions before they are kept, and what has to stay in them."""

import pytest

from app.privacy import redact

PRIVATE = [
    ("Write to ann.smith+shop@mail.example.co.uk please", "Write to [e-mail] please"),
    ("我的邮箱是ann@example.com谢谢", "我的邮箱是[e-mail]谢谢"),
    ("My card 4111 1111 1111 1111 12/27 was charged", "My card [card] 12/27 was charged"),
    ("378282246310005 is my Amex", "[card] is my Amex"),
    ("5555-5555-5555-4444", "[card]"),
    ("卡号6222021234567890128被扣款", "卡号[card]被扣款"),
    ("Call me at +353 1 555 0100 or 00 49 30 1234567", "Call me at [phone] or [phone]"),
    ("＋86 138 0013 8000", "[phone]"),
    ("+1 (415) 555-2671", "[phone]"),
    ("My number is (415) 555-2671.", "My number is [phone]."),
    ("ring 4155552671", "ring [phone]"),
    ("UK: 020 7946 0018, 07911 123456", "UK: [phone], [phone]"),
    ("Handy 0151-23456789, Büro 089/1234567", "Handy [phone], Büro [phone]"),
    ("Appelez-moi au 06 12 34 56 78", "Appelez-moi au [phone]"),
    ("Mi móvil es 612 345 678", "Mi móvil es [phone]"),
    ("llámame al 612345678 o al 91 123 45 67", "llámame al [phone] o al [phone]"),
    ("我的手机号是13800138000", "我的手机号是[phone]"),
    ("请打138-0013-8000或010-62345678", "请打[phone]或[phone]"),
    ("18002738255", "[phone]"),
    ("ann@example.com, 4111111111111111, +49 151 23456789", "[e-mail], [card], [phone]"),
]
HARMLESS = [
    "My KM-450 shows E3. What should I do?",
    "Order 4006381333931 has not arrived",
    "Where is my order 612 345 678?",
    "N° de commande 06 12 34 56 78",
    "订单号13800138000什么时候发货",
    "#0151-23456789",
    "Invoice LM-2026-0045123 of 2026-03-12",
    "I ordered on 12.03.2026 at 10:42 and on 03/12/2026, 12-03-2026",
    "2026年3月12日 14:30 下单的",
    "Open Mon-Fri 9:00-17:00, 24/7?",
    "It costs €1,299.00, 1 299 000 €, $4,155,552,671, 12.345.678 EUR",
    "Is 1-800-273-8255 your number? Or 1-800-FLOWERS?",
    "Ist 0800 330 1000 kostenlos?",
    "客服电话400-810-8888打不通",
    "4111 1111 1111 1112 is no card, 1234 5678 9012 3456 neither",
    "IBAN DE89 3704 0044 0532 0130 00",
    "The address 192.168.178.10 and version 10.0.19045.3693",
    "600 x 400 x 200 mm, 230 V, 50/60 Hz, 1850 W",
    "Berlin 10115, 75008 Paris, 28013 Madrid, 100020 北京",
    "Price@2.50, C++@home, @larkmoor on Instagram",
    "[e-mail] and [phone] stay",
    "",
]


@pytest.mark.parametrize(("text", "kept"), PRIVATE, ids=[text for text, _ in PRIVATE])
def test_what_is_private_is_replaced(text, kept):
    assert redact(text) == kept
    assert redact(kept) == kept


@pytest.mark.parametrize("text", HARMLESS)
def test_other_numbers_stay(text):
    assert redact(text) == text
