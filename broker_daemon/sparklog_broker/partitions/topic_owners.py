"""Limits of the topics and partitions that a user owns (`max_topics`, `max_partitions`).

The user that creates a topic owns it; the owner is stored with the topic. Ownership gives no access, which ACLs decide.
Internal topics have no owner. In a cluster the controller enforces the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparklog.security.connection_limits import check_topics
from sparklog.security.quotas import QuotaTable
from sparklog_broker.partitions.partitions import Partitions


class TopicOwners:
    """Counts topics by owner. `quotas` returns the present quotas. Event-loop thread only."""

    def __init__(self, partitions: Partitions, quotas: Callable[[], QuotaTable]) -> None:
        self._partitions = partitions
        self._quotas = quotas
        self._coming_topics: Counter[str] = Counter()
        self._coming_partitions: Counter[str] = Counter()

    def owned(self, user: str) -> tuple[int, int]:
        """Return the numbers of topics and of partitions that a user owns."""
        topics = [topic for topic in self._partitions.topics.values() if topic.owner == user]
        return len(topics), sum(topic.partitions for topic in topics)

    @contextmanager
    def room_for(self, user: str, topics: int, partitions: int) -> Iterator[None]:
        """Count `topics` and `partitions` as the user's within the context; "" counts nothing. Raises
        PolicyViolationError, which names the exceeded limit.
        """
        if not user:
            yield
            return
        present = self.owned(user)
        check_topics(
            self._quotas(),
            user,
            present[0] + self._coming_topics[user] + topics,
            present[1] + self._coming_partitions[user] + partitions,
        )
        self._coming_topics[user] += topics
        self._coming_partitions[user] += partitions
        try:
            yield
        finally:
            self._coming_topics[user] -= topics
            self._coming_partitions[user] -= partitions
            if not self._coming_partitions[user]:
                del self._coming_topics[user], self._coming_partitions[user]
