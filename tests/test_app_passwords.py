"""Admin password file, session tokens and the brake on guessing, without HTTP."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.domain.errors import DeskError
from app.web import passwords
from app.web.passwords import ensure_password, reset_password, session_key, verify
from app.web.sessions import FREE_FAILURES, LIFETIME_S, WINDOW_S, LoginBrake, Sessions


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


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


def test_reset_makes_the_old_password_and_the_old_key_useless(tmp_path: Path) -> None:
    old, old_key = reset_password(tmp_path), session_key(tmp_path)
    new = reset_password(tmp_path)
    assert old != new
    assert not verify(tmp_path, old)
    assert verify(tmp_path, new)
    assert session_key(tmp_path) != old_key


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = reset_password(tmp_path)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.web.passwords.os.replace", full)
    with pytest.raises(DeskError, match="No space left"):
        reset_password(tmp_path)
    assert verify(tmp_path, old)
    assert [path.name for path in tmp_path.iterdir()] == ["admin.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"password_hash": "x", "session_key": ""}', '{"session_key": "00"}'])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "admin.json").write_text(text)
    with pytest.raises(DeskError, match="set a new one with warmdesk reset-password"):
        session_key(tmp_path)


def test_overlong_passwords_are_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reset_password(tmp_path)

    def never(folder: Path) -> dict[str, str]:
        raise AssertionError("the file was read")

    monkeypatch.setattr(passwords, "_read", never)
    assert not verify(tmp_path, "x" * 5000)


def test_tokens_end_by_time_by_logout_and_by_a_new_key() -> None:
    clock, key = Clock(), [b"k" * 32]
    sessions = Sessions(lambda: key[0], clock)
    token, other = sessions.start(), sessions.start()
    assert sessions.is_valid(token)
    sessions.end(token)
    assert not sessions.is_valid(token)
    assert sessions.is_valid(other)
    clock.now += LIFETIME_S - 1
    assert sessions.is_valid(other)
    clock.now += 2
    assert not sessions.is_valid(other)
    third = sessions.start()
    key[0] = b"n" * 32
    assert not sessions.is_valid(third)


def test_tampered_tokens_are_refused() -> None:
    sessions = Sessions(lambda: b"k" * 32, Clock())
    expiry, nonce, signature = sessions.start().split(".")
    for token in (
        "",
        ".",
        "..",
        "a.b.c",
        f"{int(expiry) + 99}.{nonce}.{signature}",
        f"{expiry}.{nonce}x.{signature}",
        f"{expiry}.{nonce}.",
        f"{expiry}.{nonce}.{signature}ä",
    ):
        assert not sessions.is_valid(token)


def test_brake_stops_one_address_and_lets_go_later() -> None:
    clock = Clock()
    brake = LoginBrake(clock)
    for _ in range(FREE_FAILURES):
        assert brake.wait_s("a") == 0
        brake.failed("a")
    assert 0 < brake.wait_s("a") <= WINDOW_S
    assert brake.wait_s("b") == 0
    clock.now += WINDOW_S + 1
    assert brake.wait_s("a") == 0
    brake.failed("a")
    brake.succeeded("a")
    assert brake.wait_s("a") == 0
