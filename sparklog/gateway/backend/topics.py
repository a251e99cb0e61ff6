"""The gateway's cache of topics: the properties that it needs to convert records."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from uuid import UUID
from weakref import WeakValueDictionary

from msgspec.structs import replace

from sparklog.client.net.topic_info import TopicInfo, topic_info
from sparklog.errors import (
    InvalidRequestError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.protocol.apis import Api
from sparklog.protocol.base import TOPICS_PER_REQUEST_MAX
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse, TopicState

TOPICS_KEPT_MAX = 10_000
KEPT_S = 60.0
"""Age in s after which a topic is looked up again, to notice changed settings, such as the type of timestamps."""
RENEWAL_S = 0.1
"""Shortest time in s between two look-ups of a topic by `renewed`, so that a producer of bad records causes no look-up
for each record."""
PAGES_MAX = 100_000


class Topics:
    """The cached topics of one gateway, by name. The cache checks no permissions, because the broker checks each
    request."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._by_name: OrderedDict[str, tuple[float, TopicInfo]] = OrderedDict()
        self._doubted: set[str] = set()
        """Names of cached topics that may have changed, by an answer of the broker."""
        self._renewing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of the topics for which `renewed` is being called."""

    async def get(self, connection: BrokerConnection, name: str, *, to_write: bool = False) -> TopicInfo:
        """Return a topic, from the cache if it is new enough. `to_write`: a look-up needs the permission to write,
        rather than that to describe. Raises UnknownTopicOrPartitionError, and the broker's errors."""
        cached = self._by_name.get(name)
        if cached is None:
            return await self.look_up(connection, name, to_write=to_write)
        if name in self._doubted:
            return await self.renewed(connection, name, to_write=to_write)
        is_new = self._clock_s() - cached[0] < KEPT_S
        return cached[1] if is_new else await self.look_up(connection, name, to_write=to_write)

    async def look_up(self, connection: BrokerConnection, name: str, *, to_write: bool = False) -> TopicInfo:
        """Ask the broker for a topic, and cache it. `to_write`: as in `get`. Raises the errors of `get`."""
        requested_s = self._clock_s()
        answer = await read_metadata(connection, MetadataRequest([name], paged=True, to_write=to_write))
        state = next((t for t in answer.topics if t.name == name), None)
        if state is None or state.error_code:
            code = UnknownTopicOrPartitionError.code if state is None else state.error_code
            if code != TopicAuthorizationFailedError.code:  # other clients may use the topic
                self.forget(name)
            raise error_from_code(code, f"topic {name!r} cannot be used: the broker answered error {code}")
        info = topic_info(state)
        self._by_name[name] = requested_s, info
        self._by_name.move_to_end(name)
        self._doubted.discard(name)
        if len(self._by_name) > TOPICS_KEPT_MAX:
            self.forget(next(iter(self._by_name)))
        return info

    async def renewed(
        self, connection: BrokerConnection, name: str, *, to_write: bool = False, waits: bool = True
    ) -> TopicInfo:
        """Return a topic as it was at the time of the call, or later. All callers together look a topic up once in
        RENEWAL_S at most; a caller waits for its turn. `to_write`: as in `get`. `waits`: False looks the topic up at
        once, together with the callers that wait for the same answer. Raises the errors of `get`."""
        called_s = self._clock_s()
        lock = self._renewing.setdefault(name, asyncio.Lock())
        async with lock:
            cached = self._by_name.get(name)
            if cached is not None:
                if cached[0] > called_s:
                    return cached[1]  # another caller has looked the topic up meanwhile
                if waits:
                    await asyncio.sleep(max(cached[0] + RENEWAL_S - self._clock_s(), 0))
            return await self.look_up(connection, name, to_write=to_write)

    def peek(self, name: str) -> TopicInfo | None:
        """Return the cached topic, of any age; None if it is not cached."""
        cached = self._by_name.get(name)
        return None if cached is None else cached[1]

    def forget(self, name: str) -> None:
        """Remove a topic from the cache."""
        self._by_name.pop(name, None)
        self._doubted.discard(name)

    def doubt(self, name: str) -> None:
        """Let the next `get` of a cached topic ask the broker, as `renewed` does."""
        if name in self._by_name:
            self._doubted.add(name)


class TopicNames:
    """The names of the topics that one session names by ids (KIP-516). An id has one name for ever; the broker knows if
    the topic still exists. A session has its own names, so that it learns nothing about topics that it cannot
    describe."""

    def __init__(self) -> None:
        self._names: OrderedDict[UUID, str] = OrderedDict()
        self._ids: dict[str, UUID] = {}
        """The id in `_names` of each name."""

    async def names_of(self, connection: BrokerConnection, topic_ids: Set[UUID]) -> dict[UUID, str]:
        """Return the names of the topics with these ids. Ids of no topic that the client can describe are left out.
        Raises the broker's errors."""
        missing = sorted(topic_ids - self._names.keys())
        for state in (await read_topics_by_id(connection, missing)).topics if missing else ():
            topic_id = topic_uuid(state)
            if topic_id is not None:
                self._add(topic_id, state.name)
        return {topic_id: self._names[topic_id] for topic_id in topic_ids if topic_id in self._names}

    def _add(self, topic_id: UUID, name: str) -> None:
        """Remember a name, and forget the id of an earlier topic of this name."""
        earlier = self._ids.pop(name, None)
        if earlier is not None:
            del self._names[earlier]
        self._names[topic_id], self._ids[name] = name, topic_id
        if len(self._names) > TOPICS_KEPT_MAX:
            _, oldest = self._names.popitem(last=False)
            del self._ids[oldest]


async def read_metadata(connection: BrokerConnection, request: MetadataRequest) -> MetadataResponse:
    """Send a paged METADATA request and return all pages as one answer. Raises the broker's errors."""
    answer = await connection.ask(Api.METADATA, request, MetadataResponse)
    topics = list(answer.topics)
    for _ in range(PAGES_MAX):
        if not answer.more:
            break
        last = answer.topics[-1] if answer.topics else None
        if last is None:
            raise InvalidRequestError("the broker answers a page without topics")
        request = MetadataRequest(
            request.topics,
            paged=True,
            after=last.name,
            schemas_from=answer.schemas_from,
            with_schemas=request.with_schemas,
            with_partitions=request.with_partitions,
            to_write=request.to_write,
            topic_ids=request.topic_ids,
        )
        answer = await connection.ask(Api.METADATA, request, MetadataResponse)
        page = list(answer.topics)
        if request.schemas_from >= 0 and page and page[0].name == topics[-1].name:
            topics[-1].schemas += page.pop(0).schemas
        topics += page
    answer.topics = topics
    return answer


async def read_topics(
    connection: BrokerConnection, names: list[str] | None, *, to_write: bool = False, with_partitions: bool = True
) -> MetadataResponse:
    """Return topics without their schemas, in as many requests as necessary. `names` None: all topics. `to_write`:
    topics that the client may not write to are answered as denied. Raises the broker's errors."""
    request = MetadataRequest(paged=True, with_schemas=False, with_partitions=with_partitions, to_write=to_write)
    first = names if names is None else names[:TOPICS_PER_REQUEST_MAX]
    answer = await read_metadata(connection, replace(request, topics=first))
    for start in range(TOPICS_PER_REQUEST_MAX, len(names or ()), TOPICS_PER_REQUEST_MAX):
        part = (names or [])[start : start + TOPICS_PER_REQUEST_MAX]
        answer.topics += (await read_metadata(connection, replace(request, topics=part))).topics
    return answer


async def read_topics_by_id(connection: BrokerConnection, topic_ids: Sequence[UUID]) -> MetadataResponse:
    """Return the topics with these ids, without their schemas. Raises the broker's errors."""
    request = MetadataRequest(
        paged=True, with_schemas=False, topic_ids=[i.hex for i in topic_ids[:TOPICS_PER_REQUEST_MAX]]
    )
    answer = await read_metadata(connection, request)
    if len(topic_ids) > TOPICS_PER_REQUEST_MAX:
        answer.topics += (await read_topics_by_id(connection, topic_ids[TOPICS_PER_REQUEST_MAX:])).topics
    return answer


def topic_uuid(state: TopicState) -> UUID | None:
    """Return the topic's id as a UUID, as Kafka's clients expect; None if the broker's id is no UUID."""
    return uuid_of(state.topic_id)


def uuid_of(topic_id: str) -> UUID | None:
    """Return a topic's id as `topic_uuid`."""
    try:
        return UUID(topic_id)
    except ValueError:
        return None
