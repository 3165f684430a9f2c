"""A website that is read regularly: what is asked of it, and what a run says about its pages."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.words import translatable

MOST_PAGES = 5000
KEPT_EXAMPLES = 5

READ = "read"
REASONS: Mapping[str, str] = {
    READ: translatable("Read"),
    "alias": translatable("Another address of a page that is read"),
    "redirect": translatable("Leads to another page"),
    "outside": translatable("Outside of the website's folder"),
    "excluded": translatable("Excluded by a pattern"),
    "robots": translatable("Forbidden by robots.txt"),
    "noindex": translatable("The page asks not to be indexed"),
    "gone": translatable("Not found"),
    "soft-404": translatable("Says that there is no such page"),
    "login": translatable("Needs a login"),
    "browser": translatable("Is written by scripts: needs a browser"),
    "links": translatable("Only a list of links, which were followed"),
    "empty": translatable("No text of its own"),
    "file": translatable("Not a page: picture, archive or other file"),
    "action": translatable("Would change something, such as a logout"),
    "trap": translatable("Looks endless, such as a calendar"),
    "deep": translatable("Too many links away from the first page"),
    "private": translatable("Refused: in a private network"),
    "refused": translatable("The server refuses it"),
    "failed": translatable("The server fails"),
    "unreachable": translatable("No reply"),
    "too-large": translatable("Too large"),
    "unreadable": translatable("Cannot be read"),
    "left": translatable("Left for the next run: the limit was reached"),
}
"""What became of an address, in words for people, in the order of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOptions:
    """What of a website is read. pages: most requests for pages in one run. include, exclude: globs of a page's path,
    for example "/blog/*": further pages of the host, and pages to leave out.
    """

    pages: int = 500
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


WHOLE_SITE = SiteOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """How many addresses have a reason (a key of `REASONS`). examples: the first ones; each may end with a detail."""

    reason: str
    number: int
    examples: tuple[str, ...] = ()


def is_website(source: str) -> bool:
    """Return whether a synchronised source is a website rather than a folder."""
    return source.lower().startswith(("http://", "https://"))
