"""Customers, told apart without an account: a random token in a cookie, or a user id that the company's site vouches
for.

The company signs JSON Web Tokens (HS256) over the setting `visitor_secret`, with the claims `sub`, the user's id at the
company, and `exp`, when it ends. The widget sends one with each request. One in a link is short-lived and says since
when it is (`iat`), because links can be sent to others; the browser then gets a session that the desk signed. The desk
keeps only hashes of user ids; they say nothing of who it is.

Passwords of accounts: made by the desk, shown once, kept only as argon2 hashes.

Not covered: who is signed in (`app.storage.people`), the limit on guessing (`login_rate`).

API keys: made once and shown once, checked at every request, limited in how much they may ask.

A key is 256 random bits, so a plain SHA-256 of it is safe to store. Keys are looked up anew each time: one that a
command made or revoked beside the running desk counts from its next request on. Not covered: routes and their scopes
(`app.web.access_rules`).

Changes of accounts and API keys in somebody's name: each is done and written to the audit log.

Routes and commands make them through this, so that none goes unrecorded. Not covered: the first account, which the
first start makes (`passwords.ensure_admin`).

Who sends a request: an account that is signed in, an API key, a visitor, or nobody.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.requests import Request

from app.domain.callers import NOBODY, OPERATOR, Caller, Record, Role
from app.domain.errors import DeskError
from app.domain.words import translatable
from app.storage.database import Database
from app.storage.people import ADMIN, Account, Accounts, ApiKey, ApiKeyTable, Sessions

COOKIE = "warmdesk_visitor"
PARAMETER = "visitor"
"""Query parameter of the chat page in which a company's site hands over a signed token."""
LIFETIME_S = 365 * 86_400
SESSION_S = 86_400
"""How long somebody stays signed in whom a link signed in."""
LINK_S, FRESH_S = 300, 60
"""How long a link may be used at most, and how long it may take the place of another customer."""
_CLOCKS_S = 30
"""So much may the clock of the company's server differ."""
_TOKEN_CHARS = 43
_ENDED = translatable("This link has ended: go back to the page where it stands, and open it again.")
_OLD_FORM = translatable(
    "This link was not made as the desk needs it: its token has iat, and exp 5 minutes later at most (docs/serving.md)."
)


@dataclass(frozen=True, slots=True)
class Linked:
    """Whom a link signs in. is_fresh: it was made just now."""

    owner: str
    is_fresh: bool


def new_token() -> str:
    """A token for somebody who has none."""
    return secrets.token_urlsafe(32)


def visitor(token: str, secret: str | None) -> Caller:
    """Whose token this is in a header: made by `new_token` or signed by the company; nobody's for anything else."""
    if "." not in token:
        return _stranger(token)
    claims = _claims(token, secret)
    return NOBODY if claims is None else Caller(owner=owner_of_user(claims["sub"]))


def of_cookie(token: str, secret: str | None) -> Caller:
    """Whose cookie this is: made by `new_token` or `new_session`; nobody's for anything else."""
    if "." not in token:
        return _stranger(token)
    claims = None if secret is None else _claims(token, _session_key(secret))
    return NOBODY if claims is None else Caller(owner=claims["sub"])


def new_session(owner: str, secret: str) -> str:
    """The cookie of somebody whom a link signed in. Another secret ends it."""
    return jwt.encode({"sub": owner, "exp": int(time.time()) + SESSION_S}, _session_key(secret), "HS256")


def linked(token: str, secret: str | None) -> Linked:
    """Whom a link signs in. Raises DeskError, whose line is for the customer or, about a link that was never right, for
    whoever makes them.
    """
    claims = _claims(token, secret, leeway=_CLOCKS_S)
    if claims is None:
        raise DeskError(_ENDED, code="link-ended")
    if "iat" not in claims or not 0 < round(claims["exp"] - claims["iat"]) <= LINK_S:
        raise DeskError(_OLD_FORM, code="link-form")
    return Linked(owner_of_user(claims["sub"]), is_fresh=time.time() - claims["iat"] <= FRESH_S)


def owner_of_user(user: str) -> str:
    """The owner of the conversations of a user of the company's own site."""
    return f"u-{_digest(user)}"


def _stranger(token: str) -> Caller:
    if len(token) != _TOKEN_CHARS or not token.isascii():
        return NOBODY
    return Caller(owner=f"v-{_digest(token)}")


def _claims(token: str, secret: str | None, leeway: int = 0) -> dict[str, Any] | None:
    """What a token says that is signed with the secret, valid now and about somebody, else None."""
    if secret is None:
        return None
    try:
        claims = jwt.decode(token, secret, ["HS256"], options={"require": ["exp", "sub"]}, leeway=leeway)
    except jwt.InvalidTokenError:
        return None
    return claims if claims["sub"] else None


def _session_key(secret: str) -> str:
    """Not the company's own: its tokens are no sessions, nor the other way round."""
    return hmac.digest(secret.encode(), b"warmdesk session", "sha256").hex()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:40]


MAX_PASSWORD = 1024
_ONE_AT_A_TIME = threading.Lock()
"""Checking a password takes 64 MiB: forty tries sent at once would take 2.5 GiB."""
WAITING = 8
_PLACES = threading.BoundedSemaphore(WAITING)
"""So many checks run or wait, and one more is refused: those that wait keep threads that all pages share."""
_NOBODY = PasswordHasher().hash(secrets.token_urlsafe(18))
"""Checked where there is no such account, so that the time does not tell which names exist."""


def ensure_admin(accounts: Accounts) -> str | None:
    """Make the first account. Returns its password, or None if there are accounts. Raises DeskError."""
    if accounts.all():
        return None
    try:
        return new_account(accounts, ADMIN, "admin")
    except DeskError as error:
        if error.code != "account-exists":
            raise
        return None  # another server of the database was faster


def new_account(accounts: Accounts, name: str, role: Role) -> str:
    """An account with a new password, which is given. Raises DeskError if the name is taken."""
    password = secrets.token_urlsafe(18)
    accounts.add(name, role, PasswordHasher().hash(password))
    return password


def reset_password(accounts: Accounts, name: str = ADMIN) -> str:
    """Sets and gives a new password; ends the account's sign-ins. Raises DeskError if there is no such account."""
    password = secrets.token_urlsafe(18)
    accounts.set_password(name, PasswordHasher().hash(password))
    return password


def verified(accounts: Accounts, name: str, password: str) -> Account | None:
    """The account whose name and password these are. Takes some 50 ms on purpose, whether there is such an account or
    not; overlong input is refused before it costs anything. Raises DeskError, "sign-in-busy" where many others sign in.
    """
    if len(password) > MAX_PASSWORD:
        return None
    account = accounts.named(name)
    if not _PLACES.acquire(blocking=False):
        raise DeskError("many sign in at this moment: try again in some seconds", code="sign-in-busy")
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
"""chat: questions, embeddings, the conversations of the key. documents: list, add and remove them. admin: metrics."""
PER_MINUTE, MOST_PER_MINUTE = 60, 100_000
LONGEST_NAME = 80
_SHOWN_CHARS = len(PREFIX) + 6
_LONGEST_TOKEN = 128
_USE_WRITTEN = timedelta(minutes=1)


class Keys:
    """The keys of a desk. Safe to use from any thread; every method may raise DeskError."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._table, self._now = ApiKeyTable(database), now
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._limits: dict[str, RateLimitItemPerMinute] = {}
        self._lock = threading.Lock()

    def create(self, name: str, scopes: Iterable[str] = ("chat",), per_minute: int = PER_MINUTE) -> str:
        """Make a key; gives it, and nothing else ever will. Raises DeskError for a name or scope that cannot be."""
        name, wanted = " ".join(name.split()), frozenset(scopes)
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise DeskError(f"the name of a key has 1 to {LONGEST_NAME} characters", code="bad-key-name")
        if unknown := sorted(wanted.difference(SCOPES)):
            raise DeskError(f"unknown scope {unknown[0]!r}: there are {', '.join(SCOPES)}", code="bad-scope")
        if not wanted:
            raise DeskError(f"a key needs a scope: {', '.join(SCOPES)}", code="bad-scope")
        if not 1 <= per_minute <= MOST_PER_MINUTE:
            raise DeskError(f"a key may send 1 to {MOST_PER_MINUTE:,} requests a minute", code="bad-limit")
        token = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            shown=token[:_SHOWN_CHARS],
            scopes=wanted,
            per_minute=per_minute,
            created=self._now(),
        )
        self._table.add(key, hash_of(token))
        return token

    def all(self) -> list[ApiKey]:
        """Every key, also revoked ones."""
        return self._table.all()

    def revoke(self, name: str) -> ApiKey:
        """End the key of this name at once. Raises DeskError if none is in use."""
        return self._table.revoke(name, self._now())

    def find_key(self, token: str) -> Caller | None:
        """Who sends this key; None if it is none of ours. Its use is written down once a minute."""
        if not token.startswith(PREFIX) or len(token) > _LONGEST_TOKEN:
            return None
        key = self._table.find(hash_of(token))
        if key is None:
            return None
        caller = Caller(owner=f"k-{key.id}", name=key.name, scopes=key.scopes)
        self._limits[caller.owner] = RateLimitItemPerMinute(key.per_minute)
        if key.last_used is None or self._now() - key.last_used >= _USE_WRITTEN:
            self._table.used(key.id, self._now())
        return caller

    def seconds_to_wait(self, caller: Caller) -> int:
        """Count a request that costs something. Gives 0, or the whole seconds until the key may send the next one; 0
        for a caller without a key.
        """
        limit = self._limits.get(caller.owner)
        if limit is None:
            return 0
        with self._lock:  # the storage counts and looks in two steps
            if self._limiter.hit(limit, caller.owner):
                return 0
            return max(1, ceil(self._limiter.get_window_stats(limit, caller.owner).reset_time - time.time()))


def hash_of(token: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class Administration:
    """Every method may raise DeskError. who: see `app.storage.people`."""

    accounts: Accounts
    keys: Keys
    record: Record
    who: str

    def add_account(self, name: str, role: Role) -> str:
        """A new account; gives its password."""
        password = new_account(self.accounts, name, role)
        self.record(self.who, "account-add", f"{name} ({role})")
        return password

    def reset_password(self, name: str) -> str:
        """A new password, which is given; the account's sign-ins end."""
        password = reset_password(self.accounts, name)
        self.record(self.who, "account-password", name)
        return password

    def set_role(self, name: str, role: Role) -> None:
        """Change a role; the account's sign-ins end."""
        self.accounts.set_role(name, role)
        self.record(self.who, "account-role", f"{name} ({role})")

    def remove_account(self, name: str) -> None:
        """Remove an account and its sign-ins."""
        self.accounts.remove(name)
        self.record(self.who, "account-remove", name)

    def create_key(self, name: str, scopes: Iterable[str], per_minute: int = PER_MINUTE) -> str:
        """Make a key, which is given."""
        wanted = list(scopes)
        key = self.keys.create(name, wanted, per_minute)
        self.record(self.who, "key-create", f"{name} ({', '.join(wanted)})")
        return key

    def revoke_key(self, name: str) -> ApiKey:
        """End a key at once."""
        key = self.keys.revoke(name)
        self.record(self.who, "key-revoke", name)
        return key


FindKey = Callable[[str], Caller | None]


def caller_of(request: Request) -> Caller:
    """Who sends a request that the guard let through."""
    caller: Caller = getattr(request.state, "caller", NOBODY)
    return caller


class Identity:
    """Finds callers. Safe to use from any thread; what asks the database may raise DeskError."""

    def __init__(self, sessions: Sessions, visitor_secret: str | None, find_key: FindKey = lambda token: None) -> None:
        """find_key: the caller of an API key, if it is one that is valid now."""
        self._sessions, self._visitor_secret, self._find_key = sessions, visitor_secret, find_key

    def signed_in(self, token: str) -> Caller:
        """The account of a session's token. Asks the database."""
        account = self._sessions.account(token) if token else None
        return NOBODY if account is None else Caller(owner=OPERATOR, name=account.name, role=account.role)

    def bearer(self, token: str) -> Caller:
        """The API key or the visitor of an Authorization header. Asks the database."""
        return self._find_key(token) or visitor(token, self._visitor_secret)

    def visitor(self, token: str) -> Caller:
        """The visitor of a cookie. Asks nobody."""
        return of_cookie(token, self._visitor_secret)

    def linked(self, token: str) -> Linked:
        """Whom a link to the chat signs in. Raises DeskError."""
        return linked(token, self._visitor_secret)

    def session(self, owner: str) -> str:
        """The cookie of somebody whom a link signed in."""
        assert self._visitor_secret is not None, "no link signs anybody in without it"
        return new_session(owner, self._visitor_secret)
