"""Closes connections when their peer's certificate expires.

One timer serves all connections. It runs at least every POLL_INTERVAL_S, because the clock can be set.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from sparklog.environment.clock import Clock
from sparklog_broker.network.connection import Connection, State

POLL_INTERVAL_S = 60.0
_AFTER_S = 0.01


class CertificateExpiry:
    """Watches the certificates of connections. `expired` is called once for each open connection whose certificate has
    expired. Event-loop thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, expired: Callable[[Connection], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._expired = expired
        self._expires_ms: weakref.WeakKeyDictionary[Connection, int] = weakref.WeakKeyDictionary()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: Connection, expires_ms: int) -> None:
        """Watch a connection until it closes. `expires_ms`: expiry of its certificate, in ms since 1970."""
        self._expires_ms[connection] = expires_ms
        self._schedule(expires_ms)

    def _schedule(self, earliest_ms: int) -> None:
        """Set the timer to `earliest_ms`, or to POLL_INTERVAL_S from now if that is earlier."""
        in_s = min(max(earliest_ms - self._clock.now_ms(), 0) / 1000 + _AFTER_S, POLL_INTERVAL_S)
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + in_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(in_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        for connection, expires_ms in list(self._expires_ms.items()):
            if connection.state is State.CLOSED:
                del self._expires_ms[connection]
            elif expires_ms <= now_ms:
                del self._expires_ms[connection]
                self._expired(connection)
        if self._expires_ms:
            self._schedule(min(self._expires_ms.values()))
