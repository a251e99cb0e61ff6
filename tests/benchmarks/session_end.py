"""The time at which a broker's ZooKeeper session ends: a watch on the broker's ephemeral node.

The end is not one timeout after a kill: the broker's last heartbeat was earlier, and ZooKeeper rounds up to its ticks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from sparklog.metadata.cluster_znodes import BROKER_IDS

from .processes import MeasurementError

CONNECT_TIMEOUT_S = 30.0


class SessionEnd:
    """The end of one broker's session."""

    def __init__(self, client: KazooClient, broker_id: int) -> None:
        """Watch from now on. Raises MeasurementError if the broker is not registered."""
        self._at: float | None = None
        self._ended = threading.Event()
        self._broker_id = broker_id
        if client.exists(f"{BROKER_IDS}/{broker_id}", watch=self._seen) is None:
            raise MeasurementError(f"broker {broker_id} is not registered in ZooKeeper")

    def _seen(self, event: WatchedEvent) -> None:
        if event.type == EventType.DELETED:
            self._at = time.monotonic()
        self._ended.set()

    def wait(self, timeout_s: float) -> float:
        """The time of the end on the monotonic clock, in seconds. Raises MeasurementError if the session
        did not end, or the node was changed instead."""
        if not self._ended.wait(timeout_s) or self._at is None:
            raise MeasurementError(f"the session of broker {self._broker_id} has not ended within {timeout_s:g} s")
        return self._at


@contextlib.contextmanager
def watched_session(hosts: str, broker_id: int) -> Iterator[SessionEnd]:
    """Watch a broker for the time of the block. `hosts`: ZooKeeper's, with the cluster's path. Raises
    MeasurementError."""
    client = KazooClient(hosts=hosts)
    client.start(CONNECT_TIMEOUT_S)
    try:
        yield SessionEnd(client, broker_id)
    finally:
        client.stop()
        client.close()
