"""Customers, told apart without an account: a random token in a cookie, or a user id that the company's site vouches
for.

The company signs JSON Web Tokens (HS256) over the setting `visitor_secret`, with the claims `sub`, the user's id at the
company, and `exp`, when it ends. The widget sends one with each request. One in a link is short-lived and says since
when it is (`iat`), because links can be sent to others; the browser then gets a session that the desk signed. The desk
keeps only hashes of user ids; they say nothing of who it is.
"""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Any

import jwt

from app.domain.callers import NOBODY, Caller
from app.domain.errors import DeskError
from app.domain.translation import translatable

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
