"""Hand-offs over the API: asking, writing, reading the agent's answer, going back; and whose they are."""

from collections.abc import Iterator

import pytest
from api_site import ApiSite, served_api

from app.support.handoff import AgentQueue


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiSite]:
    with served_api(tmp_path_factory.mktemp("api")) as site:
        yield site


def code(response: object) -> tuple[int, str]:
    status: int = response.status_code  # type: ignore[attr-defined]
    return status, response.json()["error"]["code"]  # type: ignore[attr-defined]


def test_a_program_hands_over_and_back(site: ApiSite) -> None:
    with site.http() as client:
        body = {"message": "My parcel is broken.", "user": "ann"}
        handed = client.post("/v1/handoffs", json=body).json()
        assert [handed[name] for name in ("object", "state", "reason", "place")] == ["handoff", "waiting", "api", 1]
        address = f"/v1/handoffs/{handed['conversation_id']}"
        written = client.post(f"{address}/messages", json={"message": "Order 1234.", "user": "ann"})
        assert written.json()["state"] == "waiting"
        said = [{"role": "user", "content": "And now?"}]
        asked = {"model": "warmdesk", "messages": said, "conversation_id": handed["conversation_id"], "user": "ann"}
        assert code(client.post("/v1/chat/completions", json=asked)) == (409, "with-person")
        queue = AgentQueue(site.desk.database, site.desk.settings)
        [row] = queue.rows()
        queue.take(row.handoff.id, "Ann")
        queue.answer(row.handoff.id, "Ann", "We send another one.")
        taken = client.get(address, params={"user": "ann"}).json()
        assert (taken["state"], taken["agent"]) == ("taken", "Ann")
        conversation = client.get(f"/v1/conversations/{handed['conversation_id']}", params={"user": "ann"}).json()
        assert [(one["role"], one["content"]) for one in conversation["messages"]] == [
            ("user", "My parcel is broken."),
            ("user", "Order 1234."),
            ("agent", "We send another one."),
        ]
        assert client.get(address).status_code == 404  # of another user
        assert client.delete(address, params={"user": "ann"}).json()["state"] == "closed"
        late = client.post(f"{address}/messages", json={"message": "Thanks", "user": "ann"})
        assert code(late) == (409, "not-with-person")
        assert client.post("/v1/chat/completions", json=asked).status_code == 200


def test_what_cannot_be_asked_is_refused(site: ApiSite) -> None:
    with site.http() as client:
        for body, status in (({}, 400), ({"conversation_id": "no"}, 404), ({"message": "Hi", "email": "none"}, 400)):
            assert client.post("/v1/handoffs", json=body).status_code == status, body
