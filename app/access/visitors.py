"""Customers, told apart without an account: a random token in a cookie, or a user id that the company's site vouches
for.

A signed visitor token is a JSON Web Token (HS256) over the setting `visitor_secret`, with the claims `sub`, the user's
id at the company, and `exp`, when it ends. The desk keeps only hashes of either; they say nothing of who it is.
"""

import hashlib
import secrets

import jwt

from app.domain.callers import NOBODY, Caller

COOKIE = "warmdesk_visitor"
PARAMETER = "visitor"
"""Query parameter of the chat page in which a company's site hands over a signed token."""
LIFETIME_S = 365 * 86_400
_TOKEN_CHARS = 43


def new_token() -> str:
    """A token for somebody who has none."""
    return secrets.token_urlsafe(32)


def visitor(token: str, secret: str | None) -> Caller:
    """Whose token this is: made by `new_token` or signed with the secret; nobody's for anything else."""
    if "." in token:
        subject = signed_subject(token, secret)
        return NOBODY if subject is None else Caller(owner=owner_of_user(subject))
    if len(token) != _TOKEN_CHARS or not token.isascii():
        return NOBODY
    return Caller(owner=f"v-{_digest(token)}")


def signed_subject(token: str, secret: str | None) -> str | None:
    """The user id in a signed token that is valid now, else None."""
    if secret is None:
        return None
    try:
        claims = jwt.decode(token, secret, algorithms=["HS256"], options={"require": ["exp", "sub"]})
    except jwt.InvalidTokenError:
        return None
    return str(claims["sub"]) or None


def owner_of_user(user: str) -> str:
    """The owner of the conversations of a user of the company's own site."""
    return f"u-{_digest(user)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:40]
