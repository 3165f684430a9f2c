"""Accounts, their passwords and sessions, and the limit on guessing by address, without HTTP."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest
from argon2 import PasswordHasher
from refusals import one_line
from sqlalchemy import select
from starlette.requests import Request

from app.access.identity import ensure_admin, new_account, reset_password, verified
from app.access.limits import FREE_FAILURES, WINDOW_S, LoginRateLimiter, address_of, who_at
from app.domain.errors import DeskError
from app.storage.database import open_database
from app.storage.people import LIFETIME_S, Account, Accounts, Sessions
from app.storage.tables import SessionRow


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    """A hash takes little memory here: real ones would take most of the time of these tests."""
    cheap = partial(PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr("app.access.identity.PasswordHasher", cheap)


@pytest.fixture
def accounts(database):
    return Accounts(database)


def test_the_first_password_is_given_out_once_and_only_its_hash_is_kept(accounts):
    password = ensure_admin(accounts)
    assert password is not None
    assert len(password) >= 20
    assert ensure_admin(accounts) is None
    [account] = accounts.all()
    assert (account.name, account.role) == ("admin", "admin")
    assert account.password_hash.startswith("$argon2id$")
    assert verified(accounts, "admin", password) == account
    for name, wrong in (("admin", password + "x"), ("admin", ""), ("nobody", password)):
        assert verified(accounts, name, wrong) is None


def test_reset_makes_the_old_password_useless(accounts):
    old = new_account(accounts, "ann", "agent")
    new = reset_password(accounts, "ann")
    assert old != new
    assert verified(accounts, "ann", old) is None
    assert verified(accounts, "ann", new) is not None
    with pytest.raises(DeskError, match="there is no account 'bob'"):
        reset_password(accounts, "bob")


def test_names_and_roles_are_checked_and_names_are_unique(accounts):
    new_account(accounts, "ann@shop.example", "agent")
    with pytest.raises(DeskError, match="there is an account"):
        new_account(accounts, "ann@shop.example", "agent")
    for name in ("", "a b", "<b>", "x" * 81):
        with pytest.raises(DeskError, match="is not a valid name"):
            new_account(accounts, name, "agent")
    with pytest.raises(DeskError, match="is not a valid role"):
        new_account(accounts, "bob", "")


def test_the_last_admin_stays(accounts):
    new_account(accounts, "ann", "admin")
    new_account(accounts, "bob", "agent")
    for change in (lambda: accounts.remove("ann"), lambda: accounts.set_role("ann", "agent")):
        with pytest.raises(DeskError, match="last admin"):
            change()
    accounts.set_role("bob", "admin")
    accounts.remove("ann")
    assert [account.name for account in accounts.all()] == ["bob"]


def signed_in(accounts: Accounts, name: str) -> Account:
    account = accounts.named(name)
    assert account is not None
    return account


def test_overlong_passwords_are_not_hashed(accounts, monkeypatch):
    monkeypatch.delattr(PasswordHasher, "verify")
    assert verified(accounts, "admin", "x" * 5000) is None


def test_sessions_end_by_time_by_logout_and_with_their_account(database, accounts):
    clock = Clock()
    sessions = Sessions(database, now=clock.moment)
    new_account(accounts, "ann", "admin")
    new_account(accounts, "bob", "agent")
    ann, bob = (signed_in(accounts, name) for name in ("ann", "bob"))
    token, other = sessions.start(ann), sessions.start(ann)
    assert token != other
    assert sessions.account(token) == ann
    sessions.end(token)
    assert sessions.account(token) is None
    clock.now += LIFETIME_S - 1
    assert sessions.account(other) == ann
    clock.now += 2
    assert sessions.account(other) is None
    of_ann, of_bob = sessions.start(ann), sessions.start(bob)
    assert len(database.values(select(SessionRow.expires))) == 2, "the one that had expired is removed"
    reset_password(accounts, "ann")
    assert (sessions.account(of_ann), sessions.account(of_bob)) == (None, bob)
    accounts.set_role("bob", "admin")
    assert sessions.account(of_bob) is None
    of_bob = sessions.start(signed_in(accounts, "bob"))
    accounts.remove("bob")
    assert sessions.account(of_bob) is None


def test_an_account_that_changed_while_its_password_was_checked_is_not_signed_in(database, accounts):
    new_account(accounts, "ann", "admin")
    checked = signed_in(accounts, "ann")
    reset_password(accounts, "ann")
    with pytest.raises(DeskError, match="has just changed"):
        Sessions(database).start(checked)


def test_sessions_are_kept_in_the_database_without_their_tokens(database, accounts, database_url):
    new_account(accounts, "ann", "admin")
    token = Sessions(database).start(signed_in(accounts, "ann"))
    database.close()
    with closing(open_database(database_url)) as again:
        assert Sessions(again).account(token) is not None
        assert token not in repr([tuple(row) for row in again.rows(select(*SessionRow.__table__.columns))])


def test_what_is_no_token_opens_nothing_and_ends_nothing(database, accounts):
    sessions = Sessions(database)
    new_account(accounts, "ann", "admin")
    good = sessions.start(signed_in(accounts, "ann"))
    for wrong in (good[:-1], f"{good} ", "", "a.b.c", "\u00e4", "x" * 10_000, "' OR 1=1 --"):
        assert sessions.account(wrong) is None
        sessions.end(wrong)
    assert sessions.account(good) is not None


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.time", clock)
    return clock


def test_limit_stops_one_address_and_lets_go_later(clock):
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


def test_passwords_are_checked_one_at_a_time(accounts, monkeypatch):
    new_account(accounts, "ann", "admin")
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
        assert all(pool.map(lambda _: verified(accounts, "ann", "x"), range(8)))
    assert set(most) == {1}


def test_who_finds_many_signing_in_is_refused_at_once(accounts, monkeypatch):
    """Those that wait keep threads of all pages: tries from many addresses would stop every page."""
    password = new_account(accounts, "ann", "admin")
    monkeypatch.setattr("app.access.identity._PLACES", places := threading.BoundedSemaphore(1))
    with places, one_line("sign-in-busy", "many users are signing in"):
        verified(accounts, "ann", password)
    assert verified(accounts, "ann", "wrong") is None
    assert verified(accounts, "ann", password) is not None, "a place is given back"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_the_name_under_which_an_address_is_counted(host, name):
    assert who_at(host) == name
    assert address_of(Request({"type": "http", "headers": [], "client": (host, 1)})) == name
    assert address_of(Request({"type": "http", "headers": [], "client": None})) == ""


def test_another_address_of_the_same_network_gives_no_new_tries():
    limiter = LoginRateLimiter()
    assert not any(limiter.attempt(who_at(f"2001:db8::{last}")) for last in range(FREE_FAILURES))
    assert limiter.attempt(who_at("2001:db8::ffff")) > 0
    assert limiter.attempt(who_at("2001:db8:0:1::1")) == 0
