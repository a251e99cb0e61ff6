"""Points in time as people write them: `-1h`, `yesterday`, `2026-11-27T10:00`, `2026-11-27 Europe/Berlin`. Pure.

Every command, page and call that takes a time parses it with this module.

| form | meaning |
|---|---|
| `now`, `-1h`, `now-1h`, `1h ago` | a duration before now; a day has 24 hours |
| `today`, `yesterday`, `yesterday 10:30` | the beginning of the calendar day, or a time on it |
| `2026-11-27`, `2026-11-27T10:00`, `2026-11-27 10:00:30.5` | ISO 8601; a date is the beginning of the day |
| `@1764237600000` | ms since 1970 |

A time without a zone is UTC. A zone is `Z`, an offset as `+01:00`, or a word after the time: a name (`Europe/Berlin`),
`UTC`, or `local` for the machine's zone. A time that a zone's clock shows twice is the first of the two. A time that
the clock skips moves by the length of the gap: 02:30 becomes 03:30.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from sparklog.errors import InvalidRequestError
from sparklog.units import parse_duration_ms

TIME_HELP = "write a time as -1h, yesterday, 2026-11-27, 2026-11-27T10:00Z or '2026-11-27 10:00 Europe/Berlin'"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_AGO = re.compile(r"(?:now\s*)?-\s*(?P<minus>\d.*)|(?P<ago>\d.*?)\s+ago", re.IGNORECASE)
_EPOCH_MS = re.compile(r"@\s*(\d{1,18})", re.ASCII)
_DAY = re.compile(r"(today|yesterday)(?:[ T]+(.+))?", re.IGNORECASE)
_ZONE = re.compile(r"(?P<moment>.*\S)\s+\[?(?P<zone>[A-Za-z][\w+\-/]*)\]?", re.ASCII)
_DAYS_BACK = {"today": 0, "yesterday": 1}


def parse_time_ms(text: str, now_ms: int) -> int:
    """Return a time in ms since 1970. `text`: the time, in a form of this module's table. Raises InvalidRequestError:
    The text is not a time, or its zone is unknown."""
    plain = text.strip()
    try:
        if plain.lower() == "now":
            return now_ms
        if match := _EPOCH_MS.fullmatch(plain):
            return int(match[1])
        if match := _AGO.fullmatch(plain):
            return now_ms - parse_duration_ms(match["minus"] or match["ago"])
        if plain.isdigit():
            raise ValueError
        at = _calendar_time(plain, now_ms)
    except (ValueError, OverflowError) as e:
        raise InvalidRequestError(f"time {text!r}: {TIME_HELP}") from e
    return at


def time_ms_of(value: str | datetime | date, now_ms: int) -> int:
    """Return a time in ms since 1970, from a text or an object of the library datetime. `value`: the time. A datetime
    without a zone is UTC; a date is its beginning in UTC. Raises InvalidRequestError."""
    if isinstance(value, str):
        return parse_time_ms(value, now_ms)
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return _ms(value, UTC)


def _calendar_time(text: str, now_ms: int) -> int:
    """Parse a date, or a date and time, to ms since 1970. Raises ValueError and OverflowError."""
    match = _ZONE.fullmatch(text)
    if match is None:
        return _ms(_moment(text, now_ms, UTC), UTC)
    if _moment(match["moment"], now_ms, UTC).tzinfo is not None:
        raise ValueError
    zone = _zone(match["zone"])  # after the time is parsed: else the error would call any last word a zone
    return _ms(_moment(match["moment"], now_ms, zone), zone)


def _moment(text: str, now_ms: int, zone: tzinfo | None) -> datetime:
    """Parse an ISO 8601 time, or a day such as `yesterday` with or without a time. Raises ValueError and
    OverflowError."""
    day = _DAY.fullmatch(text)
    if day is None:
        return datetime.fromisoformat(text)
    now = _EPOCH + now_ms * _MS
    on = now.astimezone(zone).date() - timedelta(days=_DAYS_BACK[day[1].lower()])
    return datetime.combine(on, time.fromisoformat(day[2]) if day[2] else time())


def _zone(name: str) -> tzinfo | None:
    """Return the zone of this name; None for the machine's own. Raises InvalidRequestError."""
    from zoneinfo import ZoneInfo  # its import reads files, and few texts name a zone

    if name.lower() == "local":
        return None
    if name.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as e:  # ZoneInfoNotFoundError is a KeyError
        raise InvalidRequestError(
            f"time zone {name!r} is unknown: use UTC, local, an offset as +01:00, or a name as Europe/Berlin"
        ) from e


def _ms(at: datetime, zone: tzinfo | None) -> int:
    if at.tzinfo is None:
        at = at.replace(tzinfo=zone) if zone is not None else at.astimezone(UTC)
    return (at.astimezone(UTC) - _EPOCH) // _MS
