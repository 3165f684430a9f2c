"""The cookies of the desk: one of visitors, one of people who are signed in to the admin area.

Where browsers use TLS, the names begin with what makes them take it over TLS alone, and that of visitors from this very
host: a page of a neighbouring domain can plant none.
"""

from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from app.access.visitors import COOKIE
from app.web.site import Site


@dataclass(frozen=True, slots=True)
class SiteCookie:
    """name: without TLS. prefix: what the name begins with over TLS. path: below which it is sent."""

    name: str
    prefix: str
    path: str
    samesite: Literal["lax", "strict"]

    def read(self, request: Request, site: Site) -> str:
        """Its value; "" if it was not sent."""
        return request.cookies.get(self._named(request, site), "")

    def give(self, response: Response, value: str, lifetime_s: int, request: Request, site: Site) -> None:
        """Let the browser keep it."""
        response.set_cookie(
            self._named(request, site),
            value,
            max_age=lifetime_s,
            path=self.path,
            httponly=True,
            samesite=self.samesite,
            secure=site.is_secure(request),
        )

    def drop(self, response: Response, request: Request, site: Site) -> None:
        """Let the browser forget it."""
        self.give(response, "", 0, request, site)

    def _named(self, request: Request, site: Site) -> str:
        return self.prefix + self.name if site.is_secure(request) else self.name


VISITOR = SiteCookie(COOKIE, "__Host-", "/", "lax")
ADMIN = SiteCookie("warmdesk_admin", "__Secure-", "/admin", "strict")
"""Sent to /admin only, which a name that begins with `__Host-` does not allow."""
