"""Who sends a request: an account that is signed in, an API key, a visitor, or nobody."""

from collections.abc import Callable

from starlette.requests import Request

from app.access.visitors import visitor
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
        return self._find_key(token) or self.visitor(token)

    def visitor(self, token: str) -> Caller:
        """The visitor of a token. Asks nobody."""
        return visitor(token, self._visitor_secret)
