"""API keys: shown once, stored as a hash, checked and limited at every request; the commands, beside a desk too."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from app.access.identity import Keys
from app.domain.callers import NOBODY
from app.domain.errors import DeskError
from app.storage.data_folder import lock_data_folder
from app.storage.database import open_database

NOON = datetime(2026, 3, 12, 12, 0, tzinfo=UTC)


class Clock:
    time = NOON

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keys(database, clock):
    return Keys(database, now=clock)


def test_a_key_is_its_callers_name_scopes_and_conversations_and_only_its_hash_is_stored(keys, tmp_path):
    token = keys.create("shop", ["chat", "documents"])
    caller = keys.find_key(token)
    assert (caller.name, caller.role, caller.scopes) == ("shop", "", {"chat", "documents"})
    assert caller.owner == f"k-{keys.all()[0].id}"
    assert len(token) > 40
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert token.encode() not in files
    assert token[9:].encode() not in files
    assert keys.all()[0].shown == token[:9]


def test_other_tokens_are_nobody(keys):
    keys.create("shop")
    for token in ("", "wd_", "sk-other", "wd_" + "x" * 43, "wd_" + "x" * 9999, "wd_\udcff"):
        assert keys.find_key(token) is None, token


def test_a_revoked_key_stops_at_once_and_its_name_is_free_again(keys, database):
    token = keys.create("shop")
    Keys(database).revoke("shop")  # another process
    assert keys.find_key(token) is None
    again = keys.create("shop")
    assert keys.find_key(again) is not None
    assert [key.revoked is None for key in keys.all()] == [False, True]
    with pytest.raises(DeskError) as error:
        keys.create(" shop ")
    assert error.value.code == "key-exists"
    keys.revoke("shop")
    with pytest.raises(DeskError) as error:
        keys.revoke("shop")
    assert error.value.code == "key-unknown"


def test_what_a_key_cannot_be(keys):
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("",), "bad-key-name"),
        (("a" * 81,), "bad-key-name"),
        (("a\u202eb",), "bad-key-name"),
        (("shop", ["chat", "root"]), "bad-scope"),
        (("shop", []), "bad-scope"),
        (("shop", ["chat"], 0), "bad-limit"),
    ]
    for arguments, code in wrong:
        with pytest.raises(DeskError) as error:
            keys.create(*arguments)
        assert error.value.code == code, arguments
    assert keys.all() == []


def test_the_last_use_is_written_once_a_minute(keys, clock):
    token = keys.create("shop")
    assert keys.all()[0].last_used is None
    for seconds, written in ((0, NOON), (59, NOON), (61, NOON + timedelta(seconds=61))):
        clock.time = NOON + timedelta(seconds=seconds)
        keys.find_key(token)
        assert keys.all()[0].last_used == written


def test_each_key_has_a_limit_of_its_own(keys):
    small, other = keys.find_key(keys.create("small", per_minute=2)), keys.find_key(keys.create("other"))
    assert small is not None
    assert other is not None
    assert [keys.seconds_to_wait(small) for _ in range(2)] == [0, 0]
    assert 1 <= keys.seconds_to_wait(small) <= 60
    assert keys.seconds_to_wait(other) == 0
    assert keys.seconds_to_wait(NOBODY) == 0


@pytest.fixture
def run(tmp_path, warmdesk):
    """Run a command on the data folder of this test with --json; gives its document."""
    return lambda *words: json.loads(warmdesk("keys", *words, "--data-dir", tmp_path / "desk", "--json")[1])


def test_create_list_and_revoke(run, tmp_path):
    token = run("create", "shop", "--scope", "chat,admin", "--per-minute", "5")["key"]
    [listed] = run("list")["keys"]
    assert (listed["name"], listed["scopes"], listed["per_minute"]) == ("shop", ["admin", "chat"], 5)
    assert (listed["key"], listed["last_used"], listed["revoked"]) == (token[:9] + "...", None, None)
    assert (token in json.dumps(listed), "shown" in listed) == (False, False)
    assert run("revoke", "shop") == {"revoked": "shop"}
    assert run("list")["keys"][0]["revoked"]
    assert run("revoke", "shop")["error"]["code"] == "key-unknown"
    assert (tmp_path / "desk").stat().st_mode & 0o077 == 0


def test_the_commands_work_beside_a_running_desk(run, tmp_path):
    folder = tmp_path / "desk"
    with (
        lock_data_folder(folder, "warmdesk serve"),
        closing(open_database(f"sqlite:///{folder / 'warmdesk.sqlite3'}")) as database,
    ):
        keys = Keys(database)
        token = run("create", "shop")["key"]
        assert keys.find_key(token) is not None
        run("revoke", "shop")
        assert keys.find_key(token) is None
