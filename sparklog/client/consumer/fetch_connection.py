"""The connection for a consumer's fetches. Another thread can end a request that waits on it."""

from __future__ import annotations

import threading

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.connection import Connection


class FetchConnection:
    """The connection of a lane, at most one at a time. Any thread can abort it; everything else belongs to the thread
    with the fetch turn."""

    def __init__(self, cluster: Cluster, lock: threading.RLock, timeout_ms: int) -> None:
        """`lock` guards all of it; the fetcher holds it while it calls `abort`."""
        self._cluster = cluster
        self._lock = lock
        self._timeout_ms = timeout_ms
        self._connection: Connection | None = None
        self._aborted: list[Connection] = []

    @property
    def has_aborted(self) -> bool:
        """True if a request was aborted and `drop` has not been called since."""
        return bool(self._aborted)

    def to(self, leader: Endpoint) -> Connection:
        """Return the connection to `leader`, a new one if necessary. A connection to another broker is closed. Raises
        as `Cluster.connect`."""
        connection = self._connection
        if connection is None or connection.closed or connection.endpoint != leader:
            self.drop()
            connection = self._cluster.connect(leader, timeout_ms=self._timeout_ms, for_data=True)
            with self._lock:
                self._connection = connection
        return connection

    def abort(self) -> None:
        """End the present request, which can be waiting for data. The caller holds the lock; the fetching thread closes
        the connection later."""
        if self._connection is not None:
            self._connection.abort()
            self._aborted.append(self._connection)
            self._connection = None

    def drop(self) -> bool:
        """Close the connection. Returns True if it had been aborted; then an error of its request is no failure of the
        broker."""
        with self._lock:
            dropped, self._aborted = self._aborted, []
            aborted = bool(dropped)
            if self._connection is not None:
                dropped.append(self._connection)
                self._connection = None
        for connection in dropped:
            connection.close()
        return aborted
