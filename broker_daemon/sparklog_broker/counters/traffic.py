"""Traffic by topic.

Up to `metrics.topics.max` topics have separate numbers: first the topics that exist at the broker's start, by name,
then new topics in the order of their creation. A topic keeps its entry until its deletion. All other topics are counted
together, so that many topics fill neither the memory nor a dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator

OTHERS = "(others)"
"""Name for all topics without separate numbers. No topic can have this name."""


class TopicTraffic:
    """Traffic of one topic since the broker's start, or since the topic's creation."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "located_bytes",
        "produces",
        "records_in",
        "records_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0
        self.records_out = 0
        """Counted as a difference of offsets, so that records which compaction has removed in between count too."""
        self.located_bytes = 0
        """Bytes of the whole batches that were located for clients on this host."""
        self.produces = 0
        """Number of partitions in produce requests."""
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0


class Traffic:
    """Traffic of all topics. Event-loop thread only, except for `has_own` and `items`."""

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._by_topic: dict[str, TopicTraffic] = {}
        self.others = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        """Return the topic's entry, which is valid until `forget`; the common entry if there are too many topics."""
        traffic = self._by_topic.get(topic)
        if traffic is None:
            if len(self._by_topic) >= self._topics_max:
                return self.others
            traffic = self._by_topic[topic] = TopicTraffic()
        return traffic

    def forget(self, topic: str) -> None:
        """Remove a deleted topic."""
        self._by_topic.pop(topic, None)

    def has_own(self, topic: str) -> bool:
        """True if the topic has separate numbers. Callable on any thread."""
        return topic in self._by_topic

    def items(self) -> Iterator[tuple[str, TopicTraffic]]:
        """Yield the entries by topic, the common one last. Callable on any thread."""
        yield from list(self._by_topic.items())
        yield OTHERS, self.others
