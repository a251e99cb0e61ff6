"""A sparklog cluster as the source of a mirror: its topics, offsets, batches, groups and settings.

Each partition is asked at its leader, without repetitions: the mirror looks for new leaders itself. Nothing at the
source is changed, and no group is joined.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparklog.client.admin.call import Call
from sparklog.client.admin.group_admin import group_offsets, list_groups
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.sockets import START_ADVICE
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.metadata.mirror_settings import SPARKLOG
from sparklog.mirror.copying import AbortedBatches, SourceBatches
from sparklog.mirror.definition import KAFKA
from sparklog.mirror.plan import INTERNAL_PREFIX
from sparklog.mirror.rules import EpochAnswer, SourceBounds
from sparklog.mirror.source import (
    FetchedPartition,
    SourceOffset,
    SourcePartition,
    SourceTopic,
    absent_bounds,
    consistent_bounds,
)
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.messages import (
    EpochEndOffset,
    EpochPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResult,
    OffsetsForLeaderEpochRequest,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.settings import MIB
from sparklog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
)

FETCH_BYTES, PARTITION_BYTES = 16 * MIB, 4 * MIB
"""Sizes of a fetch answer and of one partition's part, as asked for. A single batch can be larger."""


class SparklogSource:
    """A sparklog cluster, for one thread."""

    def __init__(self, bootstrap_servers: str, security: ClientSecurity, *, timeout_ms: int = 30_000) -> None:
        """`bootstrap_servers`: host:port, several with commas. Nothing is connected before the first request. Raises
        InvalidConfigError for a wrong address."""
        self._cluster: Cluster = cluster(bootstrap_servers, security)
        self._address = f"{SPARKLOG}{bootstrap_servers}"
        self._timeout_ms = timeout_ms
        self._infos: dict[str, TopicInfo] = {}
        """Topics by the newest metadata."""

    def close(self) -> None:
        """Do nothing: the process keeps the connections, and closes idle ones."""

    @contextlib.contextmanager
    def _naming_source(self) -> Iterator[None]:
        """Name the source in the error of a cluster that does not answer, which is not the cluster of the mirror."""
        try:
            yield
        except (BrokerNotAvailableError, RequestTimedOutError) as e:
            text, advice = str(e), ""
            if text.endswith(START_ADVICE):
                text = text.removesuffix(START_ADVICE)
            else:  # another program listens there
                advice = f" If it is a Kafka cluster, its address begins with {KAFKA}"
            raise type(e)(f"the source {self._address} does not answer: {text}.{advice}") from e

    # -- metadata

    def topics(self, names: Sequence[str] | None = None) -> dict[str, SourceTopic]:
        """Return topics by name. `names` None: all. Topics that do not exist are absent, and those that the mirror's
        user must not describe. Raises errors of the source."""
        with self._naming_source():
            infos = self._cluster.topic_infos(names, timeout_ms=self._timeout_ms)
        self._infos = infos if names is None else self._infos | infos
        for name in names or ():
            if name not in infos:
                self._infos.pop(name, None)
        return {name: _topic(info) for name, info in infos.items()}

    def hidden_topics(self, names: Sequence[str]) -> set[str]:
        """Return those of the topics that the mirror's user must not describe. Raises errors of the source."""
        hidden = set()
        for name in names:
            try:
                self._cluster.topic(name, refresh=True, timeout_ms=self._timeout_ms)
            except TopicAuthorizationFailedError:
                hidden.add(name)
            except UnknownTopicOrPartitionError:
                continue
        return hidden

    def leader(self, topics: Mapping[str, SourceTopic], tp: TopicPartition) -> Endpoint | None:
        """Return the address of a partition's leader; None: it has none."""
        topic = topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return None
        return self._cluster.broker(topic.partitions[tp.partition].leader)

    # -- partitions

    def bounds(
        self, topics: Mapping[str, SourceTopic], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, SourceBounds | SparklogError]:
        """Return the offsets of partitions, or their errors."""
        result, tps = absent_bounds(topics, partitions)
        starts = self._offsets(topics, tps, EARLIEST_TIMESTAMP, READ_UNCOMMITTED)
        ends = self._offsets(topics, tps, LATEST_TIMESTAMP, READ_UNCOMMITTED)
        stable = self._offsets(topics, tps, LATEST_TIMESTAMP, READ_COMMITTED)
        for tp in tps:
            answers = (starts[tp], ends[tp], stable[tp])
            failed = [one for one in answers if isinstance(one, SparklogError)]
            result[tp] = failed[0] if failed else consistent_bounds(*(o for o in answers if isinstance(o, int)))
        return result

    def _offsets(
        self, topics: Mapping[str, SourceTopic], tps: Sequence[TopicPartition], timestamp_ms: int, isolation: int
    ) -> dict[TopicPartition, int | SparklogError]:
        def ask(group: list[TopicPartition]) -> ListOffsetsRequest:
            return ListOffsetsRequest(
                [ListOffsetsPartition(*tp, timestamp_ms, _epoch(topics, tp)) for tp in group], isolation
            )

        def read(result: ListOffsetsResult) -> int | SparklogError:
            if not 0 <= result.offset < 2**62:
                return InvalidRequestError(f"the source's response has offset {result.offset}")
            return result.offset

        return self._of_leaders(Api.LIST_OFFSETS, topics, tps, ask, read)

    def epoch_ends(
        self, topics: Mapping[str, SourceTopic], epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochAnswer | SparklogError]:
        """Return the ends of leader epochs, or errors."""

        def ask(group: list[TopicPartition]) -> OffsetsForLeaderEpochRequest:
            return OffsetsForLeaderEpochRequest([EpochPartition(*tp, _epoch(topics, tp), epochs[tp]) for tp in group])

        def read(result: EpochEndOffset) -> EpochAnswer:
            return EpochAnswer(result.epoch, result.end_offset)

        return self._of_leaders(Api.OFFSETS_FOR_LEADER_EPOCH, topics, list(epochs), ask, read)

    def _of_leaders(
        self,
        api: Api,
        topics: Mapping[str, SourceTopic],
        tps: Sequence[TopicPartition],
        ask: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Any],
    ) -> dict[TopicPartition, Any]:
        """Ask the leaders of partitions; return results or errors by partition."""
        results: dict[TopicPartition, Any] = {}
        for leader, group in self._by_leader(topics, tps).items():
            if leader is None:
                results |= {tp: LeaderNotAvailableError(f"{tp} has no leader at the source") for tp in group}
                continue
            request = ask(group)
            try:
                answer: Any = self._cluster.request(
                    api, request, APIS[api].response, endpoint=leader, timeout_ms=self._timeout_ms
                )
                check_named(leader, request.partitions, answer.results)
            except SparklogError as e:
                results |= dict.fromkeys(group, e)
                continue
            for one in answer.results:
                tp = TopicPartition(one.topic, one.partition)
                error = _error(tp, one.error_code, one.message)
                results[tp] = read(one) if error is None else error
        return results

    def _by_leader(
        self, topics: Mapping[str, SourceTopic], tps: Iterable[TopicPartition]
    ) -> dict[Endpoint | None, list[TopicPartition]]:
        groups: dict[Endpoint | None, list[TopicPartition]] = {}
        for tp in tps:
            groups.setdefault(self.leader(topics, tp), []).append(tp)
        return groups

    def fetch(
        self, broker: Endpoint, positions: Mapping[TopicPartition, tuple[int, int, int]], *, wait_ms: int
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch committed batches from one broker. `positions`: offset, leader epoch at the source, and leader epoch of
        the record before the offset, by partition. `wait_ms`: longest wait for records. Raises errors of
        connections."""
        parts = [
            FetchPartition(
                *tp, offset, PARTITION_BYTES, epoch, leader_only=True, topic_id=self._infos[tp.topic].topic_id
            )
            for tp, (offset, epoch, _) in positions.items()
            if tp.topic in self._infos
        ]
        if not parts:
            return {}
        request = FetchRequest(wait_ms, 1, FETCH_BYTES, READ_COMMITTED, parts)
        timeout_ms = self._timeout_ms + wait_ms
        with self._cluster.connection(broker, purpose="mirror", timeout_ms=timeout_ms) as connection:
            answer, payload = connection.request(Api.FETCH, request, FetchResponse, timeout_ms=timeout_ms)
            data = memoryview(payload).cast("B")
            if sum(max(result.length_bytes, 0) for result in answer.results) != len(data):
                connection.close()
                raise InvalidRequestError(f"the answer of {broker} to a fetch does not have the announced length")
        check_named(broker, parts, answer.results)
        fetched, at = {}, 0
        for result in answer.results:
            tp = TopicPartition(result.topic, result.partition)
            fetched[tp] = self._fetched(tp, result, data[at : at + result.length_bytes])
            at += result.length_bytes
        return fetched

    def _fetched(self, tp: TopicPartition, result: FetchResult, data: memoryview) -> FetchedPartition:
        info = self._infos[tp.topic]
        error = _error(tp, result.error_code, result.message)
        aborted = tuple(AbortedBatches(a.producer_id, a.first_offset, a.last_offset) for a in result.aborted)
        return FetchedPartition(
            error,
            isinstance(error, OffsetOutOfRangeError),
            result.high_watermark,
            result.last_stable_offset,
            None,
            SourceBatches(data, result.last_stable_offset, aborted, info.schemas, info.timestamp_column),
        )

    # -- settings and groups

    def settings(self, names: Sequence[str]) -> dict[str, Mapping[str, object] | SparklogError]:
        """Return the settings of the topics themselves by the newest metadata, by topic and by name, or errors."""
        missing = UnknownTopicOrPartitionError("the source has no such topic, or the mirror's user cannot describe it")
        return {name: self._infos[name].configs if name in self._infos else missing for name in names}

    def groups(self) -> list[str]:
        """Return the names of all groups of consumers."""
        with self._naming_source():
            return [group.group_id for group in list_groups(Call(self._cluster, self._timeout_ms))]

    def group_offsets(self, group_id: str) -> dict[TopicPartition, SourceOffset]:
        """Return the committed offsets of a group. Raises errors of the source."""
        offsets = group_offsets(Call(self._cluster, self._timeout_ms), group_id)
        return {tp: SourceOffset(one.offset, one.metadata) for tp, one in offsets.items()}


def _topic(info: TopicInfo) -> SourceTopic:
    return SourceTopic(
        info.name,
        info.topic_id,
        tuple(SourcePartition(p.leader, p.leader_epoch) for p in info.partition_states),
        info.name.startswith(INTERNAL_PREFIX),
        () if info.is_envelope else tuple(info.schemas[number] for number in sorted(info.schemas)),
        () if info.is_envelope else info.key_columns,
        None if info.is_envelope else info.timestamp_column,
        info.key_schema,
    )


def _epoch(topics: Mapping[str, SourceTopic], tp: TopicPartition) -> int:
    return topics[tp.topic].partitions[tp.partition].leader_epoch


def _error(tp: TopicPartition, code: int, message: str) -> SparklogError | None:
    return error_from_code(code, f"{tp} at the source: {message}") if code else None
