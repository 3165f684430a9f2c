"""Identify the sender of a request: an account, an API key or a visitor.

Accounts have a password that Warmdesk makes and shows once; only an argon2 hash is stored. An API key is 256 random
bits, so a plain SHA-256 of it is safe to store. Keys are looked up at every request, so a key that a command makes or
revokes while the server runs takes effect at once.

A customer needs no account: a random token in a cookie, or a user id in a JSON Web Token that the company's site signs
(docs/serving.md). A token in a link must be new, because links can be sent to others; the browser then gets a session
that Warmdesk signed. Only hashes of user ids are stored. Out of scope: who is signed in (`app.storage.people`), the
limit on guessing (`limits`), the scopes of routes (`app.web.access_rules`).
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.requests import Request

from app.access.limits import wait_of
from app.domain.callers import ADMIN, NOBODY, OPERATOR, Caller, Record, Role
from app.domain.errors import DeskError
from app.domain.words import translatable, utc_now
from app.storage.database import Database
from app.storage.people import Account, Accounts, ApiKey, ApiKeyTable, Sessions

COOKIE = "warmdesk_visitor"
PARAMETER = "visitor"
"""Query parameter of the chat page. With it, a company's site hands over a signed token."""
LIFETIME_S = 365 * 86_400
SESSION_S = 86_400
LINK_S, FRESH_S = 300, 60
"""Maximum lifetime of a link, and how long a link may replace another customer's session."""
_CLOCKS_S = 30  # allowed difference to the clock of the company's server
_TOKEN_CHARS = 43
_ENDED = translatable("This link is invalid or has expired. Go back to the previous page and open the link again.")
_OLD_FORM = translatable(
    "This link is invalid: its token must have iat, and exp at most 5 minutes later (docs/serving.md)."
)


@dataclass(frozen=True, slots=True)
class Linked:
    """The customer whom a link signs in. user: id at the company's site. is_fresh: made within `FRESH_S`."""

    owner: str
    user: str
    is_fresh: bool


def new_token() -> str:
    return secrets.token_urlsafe(32)


def owner_of_user(user: str) -> str:
    return f"u-{_digest(user)}"


def _stranger(token: str) -> Caller:
    if len(token) != _TOKEN_CHARS or not token.isascii():
        return NOBODY
    return Caller(owner=f"v-{_digest(token)}")


def _claims(token: str, secret: str | None, leeway: int = 0) -> dict[str, Any] | None:
    if secret is None:
        return None
    try:
        claims = jwt.decode(token, secret, ["HS256"], options={"require": ["exp", "sub"]}, leeway=leeway)
    except jwt.InvalidTokenError:
        return None
    return claims if claims["sub"] else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:40]


MAX_PASSWORD = 1024
_ONE_AT_A_TIME = threading.Lock()  # a check of a password takes 64 MiB: forty tries at once would take 2.5 GiB
WAITING = 8
_PLACES = threading.BoundedSemaphore(WAITING)
"""Maximum number of checks that run or wait; more are refused. Each occupies a thread that all pages share."""
_NOBODY = PasswordHasher().hash(secrets.token_urlsafe(18))
"""A hash to check if the account does not exist, so that the time does not reveal which names exist."""


def ensure_admin(accounts: Accounts) -> str | None:
    """Create the first account and return its password; None if an account exists. Raises DeskError."""
    if accounts.all():
        return None
    try:
        return new_account(accounts, ADMIN, "admin")
    except DeskError as error:
        if error.code != "account-exists":
            raise
        return None  # another server of the database was faster


def new_account(accounts: Accounts, name: str, role: Role) -> str:
    password = secrets.token_urlsafe(18)
    accounts.add(name, role, PasswordHasher().hash(password))
    return password


def reset_password(accounts: Accounts, name: str = ADMIN) -> str:
    """Set and return a new password, and sign the account out everywhere. Raises DeskError if it does not exist."""
    password = secrets.token_urlsafe(18)
    accounts.set_password(name, PasswordHasher().hash(password))
    return password


def verified(accounts: Accounts, name: str, password: str) -> Account | None:
    """Return the account with this name and password, or None. Takes some 50 ms on purpose, also if the account does
    not exist; long input is refused at once. Raises DeskError, "sign-in-busy" if many others sign in.
    """
    if len(password) > MAX_PASSWORD:
        return None
    account = accounts.named(name)
    if not _PLACES.acquire(blocking=False):
        raise DeskError("many users are signing in: try again in some seconds", code="sign-in-busy")
    try:
        with _ONE_AT_A_TIME:
            PasswordHasher().verify(_NOBODY if account is None else account.password_hash, password)
    except VerificationError:
        return None
    finally:
        _PLACES.release()
    return account


PREFIX = "wd_"
SCOPES = ("chat", "documents", "admin")
"""chat: questions, embeddings, the key's conversations. documents: list, add and delete documents. admin: metrics."""
PER_MINUTE, MOST_PER_MINUTE = 60, 100_000
LONGEST_NAME = 80
_SHOWN_CHARS = len(PREFIX) + 6
_LONGEST_TOKEN = 128
_USE_WRITTEN = timedelta(minutes=1)


class Keys(ApiKeyTable):
    """The API keys. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(database)
        self._now = now
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._limits: dict[str, RateLimitItemPerMinute] = {}
        self._lock = threading.Lock()

    def create(self, name: str, scopes: Iterable[str] = ("chat",), per_minute: int = PER_MINUTE) -> str:
        """Make a key and return it; it cannot be read again. Raises DeskError for an invalid name, scope or limit."""
        name, wanted = " ".join(name.split()), frozenset(scopes)
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise DeskError(f"the name of a key needs 1 to {LONGEST_NAME} printable characters", code="bad-key-name")
        if unknown := sorted(wanted.difference(SCOPES)):
            raise DeskError(f"unknown scope {unknown[0]!r}: choose from {', '.join(SCOPES)}", code="bad-scope")
        if not wanted:
            raise DeskError(f"a key needs a scope: {', '.join(SCOPES)}", code="bad-scope")
        if not 1 <= per_minute <= MOST_PER_MINUTE:
            raise DeskError(f"a key's limit must be 1 to {MOST_PER_MINUTE:,} requests per minute", code="bad-limit")
        token = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            shown=token[:_SHOWN_CHARS],
            scopes=wanted,
            per_minute=per_minute,
            created=self._now(),
        )
        self.add(key, hash_of(token))
        return token

    def find_key(self, token: str) -> Caller | None:
        """Return the caller with this key; None if it is not valid. Its use is stored at most once a minute."""
        if not token.startswith(PREFIX) or len(token) > _LONGEST_TOKEN:
            return None
        key = self.find(hash_of(token))
        if key is None:
            return None
        caller = Caller(owner=f"k-{key.id}", name=key.name, scopes=key.scopes)
        self._limits[caller.owner] = RateLimitItemPerMinute(key.per_minute)
        if key.last_used is None or self._now() - key.last_used >= _USE_WRITTEN:
            self.used(key.id, self._now())
        return caller

    def seconds_to_wait(self, caller: Caller) -> int:
        """Count a request that needs computation. Return 0, or the whole seconds until the next one is allowed."""
        limit = self._limits.get(caller.owner)
        if limit is None:
            return 0
        with self._lock:  # the storage counts and looks in two steps
            return 0 if self._limiter.hit(limit, caller.owner) else wait_of(self._limiter, limit, caller.owner)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class Administration:
    """Changes of accounts and API keys, each written to the audit log. Routes and commands make all changes here. Out
    of scope: the first account (`ensure_admin`). Every method may raise DeskError. who: see `app.storage.people`.
    """

    accounts: Accounts
    keys: Keys
    record: Record
    who: str

    def add_account(self, name: str, role: Role) -> str:
        password = new_account(self.accounts, name, role)
        self.record(self.who, "account-add", f"{name} ({role})")
        return password

    def reset_password(self, name: str) -> str:
        password = reset_password(self.accounts, name)
        self.record(self.who, "account-password", name)
        return password

    def set_role(self, name: str, role: Role) -> None:
        self.accounts.set_role(name, role)
        self.record(self.who, "account-role", f"{name} ({role})")

    def remove_account(self, name: str) -> None:
        self.accounts.remove(name)
        self.record(self.who, "account-remove", name)

    def create_key(self, name: str, scopes: Iterable[str], per_minute: int = PER_MINUTE) -> str:
        wanted = list(scopes)
        key = self.keys.create(name, wanted, per_minute)
        self.record(self.who, "key-create", f"{name} ({', '.join(wanted)})")
        return key

    def revoke_key(self, name: str) -> ApiKey:
        key = self.keys.revoke(name)
        self.record(self.who, "key-revoke", name)
        return key


def caller_of(request: Request) -> Caller:
    caller: Caller = getattr(request.state, "caller", NOBODY)
    return caller


class Identity:
    """Finds the caller of a request. Safe to use from any thread; methods that ask the database may raise DeskError."""

    def __init__(
        self,
        sessions: Sessions,
        secret: str | None,
        find_key: Callable[[str], Caller | None] = lambda token: None,
        *,
        agents_read_all: bool = False,
    ) -> None:
        """secret: the setting `visitor_secret`. agents_read_all: the setting of that name."""
        self._sessions, self._secret, self._find_key = sessions, secret, find_key
        self._agents_read_all = agents_read_all

    def signed_in(self, token: str) -> Caller:
        """Return the account that is signed in with a session's token, else NOBODY. Asks the database."""
        account = self._sessions.account(token) if token else None
        if account is None:
            return NOBODY
        reads_all = account.role == "admin" or self._agents_read_all
        return Caller(owner=OPERATOR, name=account.name, role=account.role, reads_all=reads_all)

    def bearer(self, token: str) -> Caller:
        """Return the caller of an Authorization header: an API key, or a visitor's token from `new_token` or the
        company. Asks the database.
        """
        if caller := self._find_key(token):
            return caller
        if "." not in token:
            return _stranger(token)
        claims = _claims(token, self._secret)
        return NOBODY if claims is None else Caller(owner=owner_of_user(claims["sub"]), user=claims["sub"])

    def visitor(self, token: str) -> Caller:
        """Return the visitor of a cookie from `new_token` or `session`, else NOBODY. Does not ask the database."""
        if "." not in token:
            return _stranger(token)
        claims = self._secret and _claims(token, self._session_key)
        return Caller(owner=claims["sub"], user=claims.get("user", "")) if claims else NOBODY

    def linked(self, token: str) -> Linked:
        claims = _claims(token, self._secret, leeway=_CLOCKS_S)
        if claims is None:
            raise DeskError(_ENDED, code="link-ended")
        if "iat" not in claims or not 0 < round(claims["exp"] - claims["iat"]) <= LINK_S:
            raise DeskError(_OLD_FORM, code="link-form")
        return Linked(owner_of_user(claims["sub"]), claims["sub"], is_fresh=time.time() - claims["iat"] <= FRESH_S)

    def session(self, owner: str, user: str = "") -> str:
        """Return the cookie of a customer whom a link signed in. It becomes invalid when the secret changes."""
        return jwt.encode({"sub": owner, "user": user, "exp": int(time.time()) + SESSION_S}, self._session_key, "HS256")

    @property
    def _session_key(self) -> str:
        """Return a key other than the company's, so that its tokens are not valid as sessions."""
        assert self._secret is not None, "links cannot sign customers in without it"
        return hmac.digest(self._secret.encode(), b"warmdesk session", "sha256").hex()
