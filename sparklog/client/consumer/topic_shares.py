"""Topics shared among worker processes: each topic belongs to the worker that a group assigns its partition 0 to.

The consumer only keeps the worker in the group: all its partitions are paused, and no offsets are committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparklog.client.consumer.consumer import Consumer
from sparklog.security.client_security import Security

SESSION_TIMEOUT_MS = 10_000


class TopicShares:
    """The share of one worker; for one thread."""

    def __init__(self, bootstrap_servers: str | None, group_id: str, client_id: str, security: Security) -> None:
        """`group_id`: the workers' group. No connection is made before the first topic."""
        self._bootstrap = bootstrap_servers
        self._group_id = group_id
        self._client_id = client_id
        self._security = security
        self._topics: list[str] = []
        self._consumer: Consumer | None = None

    def use(self, topics: Iterable[str]) -> None:
        """Share these topics from now on. Raises the broker's errors."""
        names = sorted(topics)
        if names == self._topics:
            return
        if not names:
            self.close()
            return
        if self._consumer is None:
            self._consumer = Consumer(
                self._bootstrap,
                group_id=self._group_id,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                client_id=self._client_id,
                security=self._security,
                prefetch_bytes=0,
                session_timeout_ms=SESSION_TIMEOUT_MS,
            )
        self._consumer.subscribe(names)
        self._topics = names

    def owned(self) -> set[str]:
        """Return the topics of this worker. The call keeps the worker in the group. Raises the broker's errors."""
        if self._consumer is None:
            return set()
        self._consumer.poll_batches(0)
        assigned = self._consumer.assignment()
        fresh = set(assigned) - set(self._consumer.paused())
        if fresh:
            self._consumer.pause(list(fresh))
        return {tp.topic for tp in assigned if tp.partition == 0}

    def close(self) -> None:
        """Leave the group."""
        consumer, self._consumer, self._topics = self._consumer, None, []
        if consumer is not None:
            consumer.close(autocommit=False)
