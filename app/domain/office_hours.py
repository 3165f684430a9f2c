"""When people of the company answer: hours as people write them, with a time zone."""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo

from opening_hours import OpeningHours, validate

_DAY = re.compile(r"\b(mo|tu|we|th|fr|sa|su)(n|e|es|d|dnes|u|urs|i|t|tur)?(day)?\b", re.IGNORECASE)
_ZONE = re.compile(r"(.*\S)\s+([A-Za-z]+(?:/[\w+-]+)+|UTC)")


@dataclass(frozen=True, slots=True)
class OfficeHours:
    """Hours of a week in one time zone."""

    hours: OpeningHours
    zone: ZoneInfo

    def cover(self, moment: datetime) -> bool:
        """Whether somebody answers then. moment: with a zone of its own."""
        return self.hours.is_open(moment.astimezone(self.zone))


@cache
def office_hours(text: str) -> OfficeHours:
    """Hours such as "Mon-Fri 9:00-17:00, Sat 10:00-14:00 Europe/Dublin": the notation of OpenStreetMap, in which days
    may also be written out, and the name of a time zone. Raises ValueError for anything else.
    """
    parts = _ZONE.fullmatch(text.strip())
    if parts is None:
        raise ValueError("no time zone")
    hours = _DAY.sub(lambda day: day[1].capitalize(), parts[1])
    if not validate(hours):
        raise ValueError("not hours")
    try:
        zone = ZoneInfo(parts[2])
    except (KeyError, OSError) as error:  # unknown; a folder of zones
        raise ValueError(str(error)) from None
    return OfficeHours(OpeningHours(hours, timezone=zone), zone)


def is_open(hours: str | None, now: datetime) -> bool:
    """Whether somebody answers now. hours: as `office_hours` reads them; None: always."""
    return hours is None or office_hours(hours).cover(now)
