"""Who sends a request: an account that is signed in, an API key, a visitor, or nobody."""

from collections.abc import Callable

from starlette.requests import Request

from app.access.visitors import Linked, linked, new_session, of_cookie, visitor
from app.domain.callers import NOBODY, OPERATOR, Caller
from app.storage.sessions import Sessions

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
