"""The topics here, as a mirror sees them: their ends, and appends at given offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.leader_questions import LedGroup, until_led
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.reading.mirrored_ends import MirroredEnd, mirrored_ends, refused_logs
from sparklog.environment.fault_points import reach
from sparklog.errors import InvalidRequestError, SparklogError, error_from_code
from sparklog.metadata.refused_topics import refused_topic
from sparklog.mirror.refused import RefusedLog
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.settings import MIB
from sparklog.types import TopicPartition

REQUEST_BYTES_MAX = 32 * MIB
"""Largest size of the batches in one request; a single partition's batches can be larger."""


class PlacedAppend(Struct, frozen=True):
    """Batches for one partition, at their own offsets from `offset` on."""

    offset: int
    batches: Sequence[memoryview]

    @property
    def size_bytes(self) -> int:
        """Size of the batches in bytes."""
        return sum(map(len, self.batches))


class LogSide:
    """The mirrored topics of one cluster. Any thread may use it."""

    def __init__(self, cluster: Cluster, timeout_ms: int = 30_000) -> None:
        self.cluster = cluster
        self._timeout_ms = timeout_ms

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, MirroredEnd]:
        """Return the ends of partitions. Raises errors of the brokers."""
        return mirrored_ends(self.cluster, partitions, self._timeout_ms)

    def refused_logs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, RefusedLog]:
        """Return the states of the refused logs of partitions of typed topics. `ends`: log ends of the partitions.
        Raises errors of the brokers."""
        return refused_logs(self.cluster, ends, self._timeout_ms)

    def append_refused(
        self, appends: Mapping[TopicPartition, PlacedAppend]
    ) -> dict[TopicPartition, SparklogError | None]:
        """Append refused records to the refused topics of `appends`, the partitions of the typed topics; see
        `append`."""
        refused = {TopicPartition(refused_topic(tp.topic), tp.partition): tp for tp in appends}
        reach("mirror.before-refused")
        outcomes = self._append({name: appends[tp] for name, tp in refused.items()})
        reach("mirror.after-refused")
        return {refused[name]: outcome for name, outcome in outcomes.items()}

    def append(self, appends: Mapping[TopicPartition, PlacedAppend]) -> dict[TopicPartition, SparklogError | None]:
        """Append batches at their offsets; return the error of each partition, None after success. The outcome of a
        partition with a retriable error is not known: read its end again."""
        reach("mirror.before-append")
        outcomes = self._append(appends)
        reach("mirror.after-append")
        return outcomes

    def _append(self, appends: Mapping[TopicPartition, PlacedAppend]) -> dict[TopicPartition, SparklogError | None]:
        attempts = Retries(RetryPolicy.one_attempt(self._timeout_ms))
        outcomes: dict[TopicPartition, SparklogError | None] = {}
        for part in _parts(appends):
            outcomes |= self._append_part(part, attempts)
        return outcomes

    def _append_part(
        self, appends: Mapping[TopicPartition, PlacedAppend], attempts: Retries
    ) -> dict[TopicPartition, SparklogError | None]:
        def ask(group: LedGroup) -> dict[TopicPartition, SparklogError | str]:
            chosen = [(tp, appends[tp]) for tp in group.partitions]
            request = ProduceRequest(
                -1,
                group.timeout_ms,
                [ProducePartition(*tp, one.size_bytes) for tp, one in chosen],
                None,
                [one.offset for _, one in chosen],
            )
            payload = [batch for _, one in chosen for batch in one.batches]
            with self.cluster.connection(group.leader, purpose="mirror", timeout_ms=group.timeout_ms) as connection:
                response, _ = connection.request(
                    Api.PRODUCE, request, ProduceResponse, payload, timeout_ms=group.timeout_ms
                )
            answers: dict[TopicPartition, SparklogError | str] = {}
            for r in response.results:
                error = error_from_code(r.error_code, r.message) if r.error_code else None
                answers[TopicPartition(r.topic, r.partition)] = error or ""
            missing = InvalidRequestError("the broker's answer to an append lacks a partition")
            return {tp: answers.get(tp, missing) for tp in group.partitions}

        failed: dict[TopicPartition, SparklogError] = {}

        def refused(tp: TopicPartition, error: SparklogError) -> str:
            failed[tp] = error
            return ""

        try:
            until_led(self.cluster, appends, ask, attempts, refused=refused)
        except SparklogError as e:
            return {tp: failed.get(tp, e) for tp in appends}
        return {tp: failed.get(tp) for tp in appends}


def _parts(appends: Mapping[TopicPartition, PlacedAppend]) -> Iterable[dict[TopicPartition, PlacedAppend]]:
    """Yield the appends in parts of at most REQUEST_BYTES_MAX, if a partition's batches are not larger."""
    part: dict[TopicPartition, PlacedAppend] = {}
    size = 0
    for tp, one in appends.items():
        if part and size + one.size_bytes > REQUEST_BYTES_MAX:
            yield part
            part, size = {}, 0
        part[tp] = one
        size += one.size_bytes
    if part:
        yield part
