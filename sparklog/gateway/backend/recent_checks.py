"""Recent checks of clients' permissions: the gateway does not ask the broker again for each request.

All sessions share one table of limited size, because a client chooses the names, and can have many connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

CHECKS_MAX = 100_000
"""Largest number of remembered checks of all sessions together; about 50 MiB."""


class RecentChecks:
    """The times of successful checks. A key names the session, the kind of the check and the resource."""

    def __init__(self, clock_s: Callable[[], float], checks_max: int = CHECKS_MAX) -> None:
        self._clock_s = clock_s
        self._checks_max = checks_max
        self._checked_s: OrderedDict[Hashable, float] = OrderedDict()

    def is_recent(self, key: Hashable, age_s: float) -> bool:
        """Return True if `key` was checked less than `age_s` ago, as far as the check is remembered."""
        checked_s = self._checked_s.get(key)
        return checked_s is not None and self._clock_s() - checked_s < age_s

    def record(self, key: Hashable) -> None:
        """Remember a successful check. Beyond the limit, the oldest check is forgotten."""
        self._checked_s[key] = self._clock_s()
        self._checked_s.move_to_end(key)
        if len(self._checked_s) > self._checks_max:
            self._checked_s.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        """Forget a check after a failed one."""
        self._checked_s.pop(key, None)
