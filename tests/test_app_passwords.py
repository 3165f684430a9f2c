"""Admin password file, sessions and the limit on guessing, without HTTP."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from app.domain.errors import DeskError
from app.storage.database import Database, open_database
from app.storage.sessions import LIFETIME_S, Sessions
from app.web import passwords
from app.web.login_rate import FREE_FAILURES, WINDOW_S, LoginRateLimiter
from app.web.passwords import ensure_password, password_hash, reset_password, verify


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "desk.sqlite3"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{path}")) as opened:
        yield opened


def test_password_is_given_out_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    password = ensure_password(tmp_path / "admin")
    assert password is not None
    assert len(password) >= 20
    assert ensure_password(tmp_path / "admin") is None
    text = (tmp_path / "admin" / "admin.json").read_text()
    assert password not in text
    assert json.loads(text)["password_hash"].startswith("$argon2id$")
    assert verify(tmp_path / "admin", password)
    assert not verify(tmp_path / "admin", password + "x")
    assert not verify(tmp_path / "admin", "")


def test_file_is_for_the_owner_only_and_nothing_is_left_behind(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        reset_password(tmp_path)
    finally:
        os.umask(mask)
    assert [path.name for path in tmp_path.iterdir()] == ["admin.json"]
    assert (tmp_path / "admin.json").stat().st_mode & 0o777 == 0o600


def test_reset_makes_the_old_password_useless(tmp_path: Path) -> None:
    old, old_hash = reset_password(tmp_path), password_hash(tmp_path)
    new = reset_password(tmp_path)
    assert old != new
    assert not verify(tmp_path, old)
    assert verify(tmp_path, new)
    assert password_hash(tmp_path) != old_hash


def test_a_file_of_an_earlier_version_keeps_its_password(tmp_path: Path) -> None:
    password = reset_password(tmp_path)
    file = tmp_path / "admin.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "session_key": "00" * 32}))
    assert verify(tmp_path, password)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = reset_password(tmp_path)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(DeskError, match="No space left"):
        reset_password(tmp_path)
    assert verify(tmp_path, old)
    assert [path.name for path in tmp_path.iterdir()] == ["admin.json"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"session_key": "00"}', '{"password_hash": 1}'),
        '{"password_hash": "x", "session_key": ""}',
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "admin.json").write_text(text)
    with pytest.raises(DeskError, match="set a new one with warmdesk reset-password"):
        password_hash(tmp_path)


def test_overlong_passwords_are_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reset_password(tmp_path)

    def never(folder: Path) -> str:
        raise AssertionError("the file was read")

    monkeypatch.setattr(passwords, "password_hash", never)
    assert not verify(tmp_path, "x" * 5000)


def test_sessions_end_by_time_by_logout_and_by_a_new_password(database: Database) -> None:
    clock, password = Clock(), ["hash one"]
    sessions = Sessions(database, lambda: password[0], now=clock.moment)
    token, other = sessions.start(), sessions.start()
    assert token != other
    assert sessions.is_valid(token)
    sessions.end(token)
    assert not sessions.is_valid(token)
    assert sessions.is_valid(other)
    clock.now += LIFETIME_S - 1
    assert sessions.is_valid(other)
    clock.now += 2
    assert not sessions.is_valid(other)
    third = sessions.start()
    password[0] = "hash two"
    assert not sessions.is_valid(third)
    assert sessions.is_valid(sessions.start())


def test_sessions_are_kept_in_the_database_without_their_tokens(database: Database, path: Path) -> None:
    clock = Clock()
    token = Sessions(database, lambda: "hash", now=clock.moment).start()
    database.close()
    with closing(open_database(f"sqlite:///{path}")) as again:
        assert Sessions(again, lambda: "hash", now=clock.moment).is_valid(token)
    assert token.encode() not in path.read_bytes()


def test_expired_sessions_are_removed(database: Database, path: Path) -> None:
    clock = Clock()
    sessions = Sessions(database, lambda: "hash", now=clock.moment)
    for _ in range(3):
        sessions.start()
    clock.now += LIFETIME_S
    sessions.start()
    with closing(sqlite3.connect(path)) as connection:
        [[expires]] = connection.execute("SELECT expires FROM sessions").fetchall()
    assert datetime.fromisoformat(expires + "+00:00") == clock.moment() + timedelta(seconds=LIFETIME_S)


@pytest.mark.parametrize("token", ["", ".", "a.b.c", "9999999999.x.y", "\u00e4", "x" * 10_000, "' OR 1=1 --"])
def test_what_is_no_token_opens_nothing_and_ends_nothing(database: Database, token: str) -> None:
    sessions = Sessions(database, lambda: "hash")
    good = sessions.start()
    for wrong in (token, good[:-1], f"{good} "):
        assert not sessions.is_valid(wrong)
    sessions.end(token)
    assert sessions.is_valid(good)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.time", clock)
    return clock


def test_limit_stops_one_address_and_lets_go_later(clock: Clock) -> None:
    limiter = LoginRateLimiter()
    for _ in range(FREE_FAILURES):
        assert limiter.attempt("a") == 0
        clock.now += 60
    wait_s = limiter.attempt("a")
    assert wait_s == WINDOW_S - FREE_FAILURES * 60
    assert limiter.attempt("b") == 0
    clock.now += wait_s + 1
    assert limiter.attempt("a") == 0
    assert limiter.attempt("a") > 0, "the other four still count"
    limiter.succeeded("a")
    assert limiter.attempt("a") == 0


def test_passwords_are_checked_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check takes 64 MiB."""
    reset_password(tmp_path)
    running: list[int] = []
    most: list[int] = []

    def checked(hasher: PasswordHasher, kept: str, password: str) -> bool:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return True

    monkeypatch.setattr(PasswordHasher, "verify", checked)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: verify(tmp_path, "x"), range(8)))
    assert set(most) == {1}


def test_many_tries_at_once_do_not_all_pass() -> None:
    limiter = LoginRateLimiter()
    with ThreadPoolExecutor(16) as pool:
        waits = list(pool.map(limiter.attempt, ["a"] * 200))
    assert waits.count(0) == FREE_FAILURES


def test_memory_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.login_rate.MAX_ADDRESSES", 20)
    limiter = LoginRateLimiter()
    for _ in range(FREE_FAILURES):
        limiter.attempt("late")
    for number in range(19):
        limiter.attempt(str(number))
    assert limiter.attempt("late") > 0, "an address that is known pushes none out"
    limiter.attempt("new")
    assert limiter.attempt("late") == 0
    assert len(limiter._storage.events) == 20
