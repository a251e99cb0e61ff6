"""Requests that wait for an event of a partition: a fetch for records, a produce for the high watermark.

A request avoids lost wake-ups by this protocol: check the condition; if it is false, register under all keys; check
again; only then sleep. `check(key)` is called after every change of a key. A wait ends exactly once: satisfied,
expired, refused because too many requests wait, stopped by the broker, or cancelled with its coroutine. All code here
runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from enum import Enum


class Outcome(Enum):
    """The reason for the end of a wait."""

    SATISFIED = "satisfied"
    EXPIRED = "expired"
    REFUSED = "refused"
    STOPPED = "stopped"


Satisfied = Callable[[Hashable | None], bool]
"""Returns True if the wait must end. The argument is the changed key; None to check all keys."""


class _Waiter:
    __slots__ = ("future", "keys", "satisfied")

    def __init__(self, satisfied: Satisfied, keys: tuple[Hashable, ...], future: asyncio.Future[Outcome]) -> None:
        self.satisfied = satisfied
        self.keys = keys
        self.future = future

    def finish(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Purgatory:
    """Waiting requests by key, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_key: dict[Hashable, dict[_Waiter, None]] = {}
        self._count = 0
        self._stopped = False
        self.ended: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        """Number of ended waits by outcome. Requests that did not have to wait are not counted."""

    @property
    def waiting_count(self) -> int:
        return self._count

    async def wait(self, keys: Iterable[Hashable], satisfied: Satisfied, timeout_s: float) -> Outcome:
        """Wait until `satisfied` returns True for one of `keys`, for at most `timeout_s`. With a full purgatory, return
        REFUSED at once.

        `satisfied` must be cheap and must not raise. If the caller is cancelled, the wait is removed.
        """
        if satisfied(None):
            return Outcome.SATISFIED
        if self._stopped:
            return Outcome.STOPPED
        if timeout_s <= 0:
            return Outcome.EXPIRED
        if self._count >= self._limit:
            self.ended[Outcome.REFUSED] += 1
            return Outcome.REFUSED
        loop = asyncio.get_running_loop()
        waiter = _Waiter(satisfied, tuple(dict.fromkeys(keys)), loop.create_future())
        self._register(waiter)
        timer = None
        try:
            if satisfied(None):
                return Outcome.SATISFIED
            timer = loop.call_later(timeout_s, waiter.finish, Outcome.EXPIRED)
            outcome = await waiter.future
            self.ended[outcome] += 1
            return outcome
        finally:
            if timer is not None:
                timer.cancel()
            self._remove(waiter)

    def check(self, key: Hashable) -> int:
        """End the waits under `key` whose condition is true, and return their number."""
        waiters = self._by_key.get(key)
        if not waiters:
            return 0
        done = [w for w in waiters if not w.future.done() and w.satisfied(key)]
        for waiter in done:
            waiter.finish(Outcome.SATISFIED)
        return len(done)

    def stop(self) -> None:
        """End all present and later waits, because the broker stops."""
        self._stopped = True
        for waiters in list(self._by_key.values()):
            for waiter in list(waiters):
                waiter.finish(Outcome.STOPPED)

    def _register(self, waiter: _Waiter) -> None:
        self._count += 1
        for key in waiter.keys:
            self._by_key.setdefault(key, {})[waiter] = None

    def _remove(self, waiter: _Waiter) -> None:
        """Remove the waiter from all its keys. A second call has no effect."""
        keys, waiter.keys = waiter.keys, ()
        self._count -= 1 if keys else 0
        for key in keys:
            waiters = self._by_key.get(key, {})
            waiters.pop(waiter, None)
            if not waiters:
                self._by_key.pop(key, None)
