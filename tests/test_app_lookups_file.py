"""The file of look-ups and its mistakes, the values in a message, and the address of a request."""

import json
from pathlib import Path

import pytest
from order_endpoint import EXAMPLE
from tiny_desk import small_settings

from app.domain.errors import DeskError
from app.lookups.calling import Refused, prepared
from app.lookups.definitions import Value, checked, load
from app.lookups.dialogue import means, says
from app.lookups.values import fits
from app.replies.replies import all_texts, heard

ORDER = "'[A-Z]{2}-?\\d{6}'"


def mistakes(folder, *changes, **settings):
    text = EXAMPLE.read_text("utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    (folder / "lookups.toml").write_text(text, "utf-8")
    allowed = {"private_hosts": ("127.0.0.1:8099",), **settings}
    return [(one.line, one.message) for one in checked(folder / "lookups.toml", small_settings(folder, **allowed))[1]]


def line(words):
    return next(number for number, text in enumerate(EXAMPLE.read_text("utf-8").splitlines(), 1) if words in text)


@pytest.mark.parametrize(
    ("old", "new", "where", "says"),
    [
        ("{ email = ", "{ email = {", "request = ", "TOML"),
        ('identity = "knows"', 'identity = "maybe"', "identity = ", "identity"),
        ('confirm = "inferred"', "titel = 1", "confirm = ", "titel is not a known key"),
        (ORDER, "'(\\w+)+'", 'name = "order"', "may never finish"),
        (ORDER, "'(foo|bar)*c'", 'name = "order"', "may never finish"),
        (ORDER, "'['", 'name = "order"', "not valid"),
        ("orders/{order}/status", "orders/{colour}/status", "request = ", "unknown placeholder {colour}"),
        ("orders/{order}/status", "orders/{email}/status", "request = ", "email is private"),
        ("http://127.0.0.1:8099", "http://{order}:8099", "request = ", "must not contain a placeholder"),
        ("http://127.0.0.1:8099", "http://shop.example", "request = ", "https://"),
        ("http://127.0.0.1:8099", "https://shop.example/\\\\x", "request = ", "forbidden character"),
        ("/v1/orders/{order}/status", "/v1/../{order}", "request = ", "."),
        ("Bearer env:SHOP_TOKEN", "Bearer abc", "request = ", "contains its secret"),
        ('status = "/status"', 'status = "status"', "fields = ", "not a JSON pointer"),
        ("is {status}. Delivery", "is {state}. Delivery", "answers = ", "unknown placeholder {state}"),
        ('name = "refund-status"', 'name = "order-status"', 'name = "refund-status"', "two look-ups"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, old, new, where, says):
    found = mistakes(tmp_path, (old, new))
    assert found[0][0] == line(where)
    assert says in found[0][1]


def test_a_day_that_the_customer_said_is_written_out(tmp_path):
    changes = ('kind = "email", private = true', 'kind = "date"'), ("find no order", "find no order of {email:date}")
    assert mistakes(tmp_path, *changes) == []


def test_the_documented_look_up_has_no_mistake(tmp_path):
    page = Path("docs/lookups.md").read_text("utf-8")
    (tmp_path / "lookups.toml").write_text(page.partition("```toml\n")[2].partition("```")[0], "utf-8")
    lookups, found = checked(tmp_path / "lookups.toml", small_settings(tmp_path))
    assert ([one.name for one in lookups], found) == (["repair"], [])


def test_http_needs_a_private_host_and_signed_in_a_secret(tmp_path):
    assert mistakes(tmp_path) == []
    assert "private_hosts" in mistakes(tmp_path, private_hosts=())[0][1]
    signed = ('identity = "knows"', 'identity = "signed_in"')
    assert "visitor_secret" in mistakes(tmp_path, signed)[0][1]
    mistakes(tmp_path)
    with pytest.raises(DeskError, match=rf"line {line('request = ')}: .*private_hosts.*1 more"):
        load(tmp_path / "lookups.toml", small_settings(tmp_path))


@pytest.mark.parametrize(
    ("value", "message", "found"),
    [
        ({"kind": "pattern", "pattern": r"[A-Z]{2}-?\d{6}", "clean": ("upper",)}, "it is ab-123456.", ["AB-123456"]),
        ({"kind": "pattern", "pattern": r"\d{6}", "clean": ("no-spaces",)}, "12 34 56", ["123456"]),
        ({"kind": "pattern", "pattern": r"\d{6}"}, "我的订单123456到哪了", ["123456"]),
        ({"kind": "pattern", "pattern": r"\d{6}"}, "order#123456, 654321", ["123456", "654321"]),
        ({"kind": "pattern", "pattern": r"\d{6}"}, "1234567", []),
        ({"kind": "pattern", "pattern": r"\d{6}"}, "../123456/..", []),
        ({"kind": "pattern", "pattern": r"[a-z]+"}, "a" * 65, []),
        ({"kind": "email"}, "I am Ann@Example.com!", ["ann@example.com"]),
        ({"kind": "email"}, "ann@", []),
        ({"kind": "phone"}, "call +353 91 570 123", ["+35391570123"]),
        ({"kind": "date"}, "on 3 March 2026 or 2026年3月3日", ["2026-03-03"]),
        ({"kind": "date"}, "31.02.2026", []),
        ({"kind": "choice", "choices": {"shop": {"en": "in the shop"}, "web": {"en": "online"}}}, "Online.", ["web"]),
    ],
)
def test_a_value_is_a_part_of_the_message_that_fits(value, message, found):
    assert fits(Value(name="x", ask={"en": "?"}, **value), message) == found


def path_of(folder, order):
    lookup = load(folder / "lookups.toml", small_settings(folder, allow_private_addresses=True))[0]
    return prepared(lookup, {"order": order, "email": 'a"@b'})


def test_no_value_leaves_its_place_in_the_address(tmp_path):
    assert mistakes(tmp_path) == []
    for value in ("a/b", "1?x=2", "#", "%2e%2e", "a b", "\\", "{email}"):
        request = path_of(tmp_path, value)
        head, _, tail = request.url.removeprefix("http://127.0.0.1:8099/v1/orders/").partition("/")
        assert tail == "status"
        assert not set(head) & set("/?#\\ {")
        assert json.loads(request.body) == {"email": 'a"@b'}
    for value in ("..", ".", "", "a\r\nb", "a\0"):
        with pytest.raises(Refused):
            path_of(tmp_path, value)


@pytest.mark.parametrize("language", sorted(all_texts()))
def test_each_language_has_its_ways_out(language):
    for kind in ("yes", "no", "cancel"):
        assert means(says(kind, language), kind)
    assert not means("Where is my order?", "cancel")
    assert not means("Can I cancel my order?", "cancel")
    person = heard(says("person", language), language)
    assert person is not None
    assert person.kind == "human"
