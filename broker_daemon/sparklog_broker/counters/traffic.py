"""What goes into and out of topics.

So many topics as `metrics.topics.max` have numbers of their own: those that the broker finds at its start, by name,
then new ones as they are made. A topic keeps its place until it is deleted. All other topics are counted together, so
nobody can fill the memory, or a dashboard, by making topics.
"""

from __future__ import annotations

from collections.abc import Iterator

OTHERS = "(others)"
"""Stands for the names that have no number of their own. No topic can have this name."""


class TopicTraffic:
    """Of one topic, since the broker's start (or since the topic was made)."""

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
        """By offsets: what compaction has removed between them counts, too."""
        self.located_bytes = 0
        """Told to clients of this host, which read them from the files."""
        self.produces = 0
        """Of requests, each partition counts."""
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0


class Traffic:
    """The numbers of all topics. Event-loop thread only, but for `items`."""

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._by_topic: dict[str, TopicTraffic] = {}
        self.others = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        """Where the topic is counted, from now on until `forget`."""
        found = self._by_topic.get(topic)
        if found is None:
            if len(self._by_topic) >= self._topics_max:
                return self.others
            found = self._by_topic[topic] = TopicTraffic()
        return found

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._by_topic.pop(topic, None)

    def has_own(self, topic: str) -> bool:
        """Whether the topic is not among the others. Any thread."""
        return topic in self._by_topic

    def items(self) -> Iterator[tuple[str, TopicTraffic]]:
        """By topic, the others last. Any thread."""
        yield from list(self._by_topic.items())
        yield OTHERS, self.others
