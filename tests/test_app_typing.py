"""What pages send while a visitor types: who may send it, how much, and what reaches the desk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from desk_site import Site

from app.access.limits import PAUSES_A_QUESTION, VISITORS_AT_AN_ADDRESS, QuestionLimits
from app.domain.settings import Settings

SHOP = "https://shop.example"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, widget_origins=(SHOP,), questions_per_minute=1)
    yield site
    site.close()


@pytest.mark.parametrize("path", ["/typing", "/widget/typing"])
def test_what_is_typed_reaches_the_desk_and_nothing_comes_back(site: Site, path: str) -> None:
    client = site.client()
    for body in ({"text": "How long"}, {"text": "How long do", "conversation_id": "c1"}, {"text": ""}):
        reply = client.post(path, json=body)
        assert (reply.status_code, reply.content) == (204, b"")
    assert site.desk.typed == [("How long", None), ("How long do", "c1"), ("", None)]


def test_other_sites_may_not_send_it(site: Site) -> None:
    reply = site.client().post("/typing", json={"text": "How long"}, headers={"origin": SHOP})
    assert reply.status_code == 403
    assert site.desk.typed == []


def test_typing_has_a_limit_that_is_not_seen_and_takes_nothing_from_questions(site: Site) -> None:
    client = site.client()
    for number in range(2 * PAUSES_A_QUESTION):
        assert client.post("/typing", json={"text": f"text {number}"}).status_code == 204
    assert len(site.desk.typed) == PAUSES_A_QUESTION
    assert client.post("/typing", json={"text": ""}).status_code == 204
    assert site.desk.typed[-1] == ("", None), "to take back is always possible"


def test_visitors_and_addresses_are_counted_apart_from_their_questions() -> None:
    limits = QuestionLimits(Settings(questions_per_minute=1))
    typed = [limits.may_type(f"v-{i}", "1.2.3.4") for i in range(PAUSES_A_QUESTION * VISITORS_AT_AN_ADDRESS + 1)]
    assert typed == [True] * PAUSES_A_QUESTION * VISITORS_AT_AN_ADDRESS + [False]
    assert not limits.may_type("v-new", "1.2.3.4")
    assert limits.may_type("v-new", "1.2.3.5")
    with limits.asking("v-0", "1.2.3.4"):
        pass


@pytest.mark.parametrize("body", ["", "[]", '{"text": 1}', '{"words": "How long"}'])
def test_what_is_malformed_is_refused(site: Site, body: str) -> None:
    headers = {"content-type": "application/json"}
    assert site.client().post("/typing", content=body, headers=headers).status_code == 422
    assert site.desk.typed == []
