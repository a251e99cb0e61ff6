"""Idle connections by endpoint and purpose."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.connection import Connection

IDLE_CONNECTIONS_MAX = 8
"""Largest number of idle connections per broker and purpose."""
IDLE_S_MAX = 60.0


class ConnectionPool:
    """The idle connections of one cluster; thread-safe. A connection is closed when it has been idle for IDLE_S_MAX, at
    the next use of the pool, and with the pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[Endpoint, str], list[Connection]] = {}
        # a consumer can give connections back to a cluster without any other reference
        weakref.finalize(self, _close_all, self._idle).atexit = False

    def has(self, endpoints: Sequence[Endpoint], purpose: str) -> bool:
        """True if there is an idle connection to any of the endpoints."""
        with self._lock:
            return bool(self._pools(endpoints, purpose))

    def take(self, endpoints: Sequence[Endpoint], purpose: str) -> Connection | None:
        """Return a usable connection to the first endpoint that has one; the caller then owns it."""
        while True:
            with self._lock:
                pools = self._pools(endpoints, purpose)
                if not pools:
                    return None
                connection = pools[0].pop()
            if time.monotonic() - connection.used_at < IDLE_S_MAX and connection.is_idle():
                return connection
            connection.close()

    def give_back(self, connection: Connection, purpose: str) -> None:
        """Keep the connection if it is open with nothing in flight, else close it. Connections that were idle for too
        long are closed, too."""
        stale: list[Connection] = []
        now = time.monotonic()
        with self._lock:
            for key, pool in list(self._idle.items()):
                stale += [c for c in pool if now - c.used_at >= IDLE_S_MAX]
                self._idle[key] = [c for c in pool if now - c.used_at < IDLE_S_MAX]
                if not self._idle[key]:
                    del self._idle[key]
            if not connection.closed and connection.in_flight == 0:
                pool = self._idle.setdefault((connection.endpoint, purpose), [])
                if len(pool) < IDLE_CONNECTIONS_MAX:
                    pool.append(connection)
                else:
                    stale.append(connection)
            else:
                stale.append(connection)
        for c in stale:
            c.close()

    def close(self) -> None:
        """Close all idle connections. Connections that are given back later are kept as before."""
        with self._lock:
            idle = dict(self._idle)
            self._idle.clear()
        _close_all(idle)

    def _pools(self, endpoints: Sequence[Endpoint], purpose: str) -> list[list[Connection]]:
        """Return the pools of the endpoints; with the lock held."""
        return [pool for e in endpoints if (pool := self._idle.get((e, purpose)))]


def _close_all(pools: dict[tuple[Endpoint, str], list[Connection]]) -> None:
    for connection in [c for pool in pools.values() for c in pool]:
        connection.close()
