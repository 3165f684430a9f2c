"""Whose conversations a request is about. Who sends it was found by the guard, which also checked what it may do."""

import hashlib

from app.access.keys import Keys
from app.api.errors import ApiError
from app.domain.callers import Caller

_KEY = "k-"


def owner_of(caller: Caller, user: str | None) -> str:
    """Whose conversations: the caller's, or those of one of its own users. user: OpenAI's field; any text. Only keys
    speak for others.
    """
    if not user or not caller.owner.startswith(_KEY):
        return caller.owner
    return f"{caller.owner}-{hashlib.sha256(user.encode('utf-8', 'replace')).hexdigest()[:16]}"


def count(caller: Caller, keys: Keys) -> None:
    """Count a request that costs something. Raises ApiError when the key has sent too many within a minute."""
    if wait_s := keys.seconds_to_wait(caller):
        raise ApiError(
            429,
            f"this key has sent as many requests as it may in a minute: try again in {wait_s} s",
            "rate_limit_exceeded",
            headers={"retry-after": str(wait_s)},
        )
