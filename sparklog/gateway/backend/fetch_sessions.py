"""Fetch sessions (KIP-227), in which a client names each partition once, and later only the partitions that change.

The gateway keeps the partitions of a session, and answers with those that have news: records, another end or start of
the log, or an error. A session belongs to the client's connection and ends with it. The number of sessions and their
memory are limited. Beyond the limits a client gets no session, and goes on naming all partitions.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from msgspec import Struct

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka

NO_SESSION = 0
EPOCH_NONE, EPOCH_FIRST, EPOCH_MAX = -1, 0, 2**31 - 1
"""Epochs of a request that has no session, or ends its session, and of one that begins a session; the largest epoch,
after which 1 follows."""
PARTITIONS_MAX = 2_000
"""Largest number of partitions of a session."""
PARTITION_BYTES = 1_024
"""Memory in bytes of a partition, with the longest name of its topic."""
_ID_BITS = 31

TopicKey: TypeAlias = str | UUID | None
"""The name of a topic, or its id in the versions that have ids."""


class _State(NamedTuple):
    """The facts about a partition in its last answer."""

    high_watermark: int = -1
    log_start_offset: int = -1


class _Partition(Struct):
    requested: requests.FetchTopicPartition
    state: _State = _State()


class FetchSession:
    """The session of one connection."""

    def __init__(self, session_id: int, *, by_id: bool) -> None:
        """`by_id`: True if the client names topics by their ids."""
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1
        """The epoch of the next request."""
        self._partitions: dict[tuple[TopicKey, int], _Partition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def update(self, request: requests.Fetch) -> None:
        """Add the partitions of a request, and remove those that it forgets."""
        for topic in request["topics"]:
            for partition in topic["partitions"]:
                key = _key(topic), partition["partition"]
                cached = self._partitions.get(key)
                if cached is None:
                    self._partitions[key] = _Partition(partition)
                else:
                    cached.requested = partition
        for forgotten in request.get("forgotten_topics_data", ()):
            for number in forgotten["partitions"]:
                self._partitions.pop((_key(forgotten), number), None)

    def topics(self) -> list[requests.FetchTopic]:
        """Return all partitions of the session in the form of a request. Those that had records last are at the end, so
        that the others get a part of the answer, too."""
        by_topic: dict[TopicKey, list[requests.FetchTopicPartition]] = {}
        for (key, _), partition in self._partitions.items():
            by_topic.setdefault(key, []).append(partition.requested)
        return [
            {"topic_id": key, "partitions": partitions} if isinstance(key, UUID) else {"topic": key or "", "partitions": partitions}
            for key, partitions in by_topic.items()
        ]  # fmt: skip

    def take_news(self, answer: responses.Fetch, *, is_first: bool) -> None:
        """Reduce an answer to the partitions with news, all of them in the first answer, and count the epoch on."""
        for topic in answer["responses"]:
            topic["partitions"] = [p for p in topic["partitions"] if self._has_news(_key(topic), p) or is_first]
        answer["responses"] = [topic for topic in answer["responses"] if topic["partitions"]]
        answer["session_id"] = self.session_id
        if not is_first:
            self.epoch = self.epoch % EPOCH_MAX + 1

    def _has_news(self, key: TopicKey, answered: responses.FetchResponsePartition) -> bool:
        place = key, answered["partition_index"]
        partition = self._partitions.get(place)
        if partition is None:
            return True
        state = _State(answered["high_watermark"], answered.get("log_start_offset", -1))
        if answered["error_code"]:
            state = _State()  # the answer after the error is news
        has_changed, partition.state = state != partition.state, state
        has_records = bool(answered["records"])
        if has_records:
            self._partitions[place] = self._partitions.pop(place)
        preferred = answered.get("preferred_read_replica", -1)
        return has_changed or has_records or preferred >= 0 or bool(answered["error_code"])


def _key(topic: Any) -> TopicKey:
    """Return the name or the id of a topic in a request or an answer."""
    topic_id: UUID | None = topic.get("topic_id")
    name: str = topic.get("topic", "")
    return name if topic_id is None else topic_id


class FetchSessions:
    """The limits of all sessions of one gateway. Event-loop thread only."""

    def __init__(self, memory: MemoryBudget, sessions_max: int) -> None:
        self._memory = memory
        self._sessions_max = sessions_max
        self._counts: dict[int, int] = {}
        """Counted partitions by session id."""

    def begin(self, request: requests.Fetch) -> FetchSession | None:
        """Return a new session with the partitions of a request; None if it has none, or for lack of room."""
        session_id = secrets.randbits(_ID_BITS) or 1
        if len(self._counts) >= self._sessions_max or session_id in self._counts:
            return None
        session = FetchSession(session_id, by_id=any("topic_id" in t for t in request["topics"]))
        session.update(request)
        return session if len(session) and self.count(session) else None

    def count(self, session: FetchSession) -> bool:
        """Count the memory of a session after a change. Returns False for a session that is too large; it ends."""
        more = len(session) - self._counts.get(session.session_id, 0)
        has_room = self._memory.used_bytes + more * PARTITION_BYTES <= self._memory.limit_bytes
        if len(session) > PARTITIONS_MAX or (more > 0 and not has_room):
            self.end(session)
            return False
        self._counts[session.session_id] = len(session)
        if more >= 0:
            self._memory.take(more * PARTITION_BYTES)
        else:
            self._memory.release(session, -more * PARTITION_BYTES)
        return True

    def end(self, session: FetchSession | None) -> None:
        """Give back the memory of a session."""
        count = 0 if session is None else self._counts.pop(session.session_id, 0)
        if count:
            self._memory.release(session, count * PARTITION_BYTES)


def session_fault(session: FetchSession | None, request: requests.Fetch) -> Kafka | None:
    """Return the error of a request that does not go on with the connection's session; None if it does."""
    if session is None or session.session_id != request.get("session_id", NO_SESSION):
        return Kafka.FETCH_SESSION_ID_NOT_FOUND
    if request.get("session_epoch", EPOCH_NONE) != session.epoch:
        return Kafka.INVALID_FETCH_SESSION_EPOCH
    names = [*request["topics"], *request.get("forgotten_topics_data", ())]
    if any(("topic_id" in t) != session.by_id for t in names):
        return Kafka.FETCH_SESSION_TOPIC_ID_ERROR
    return None
