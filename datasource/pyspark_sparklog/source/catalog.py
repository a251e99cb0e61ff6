"""The data source's questions to brokers on Spark's driver: topics, offsets, and a wait for new data.

Every question is repeated while the broker is away, up to a time limit, so that a broker's restart does not end a
running query.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import Subscription
from pyspark_sparklog.schemas import TopicShape
from pyspark_sparklog.source.planning import Extent
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.connection import Connection
from sparklog.client.net.topic_info import TopicInfo, topic_error, topic_info
from sparklog.client.reading.history_range import HistorySource
from sparklog.client.reading.offset_lookup import LocatedOffset, look_up_offsets
from sparklog.errors import InvalidPartitionsError, NotLeaderError, SparklogError, UnknownTopicOrPartitionError
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchPartition, FetchRequest, FetchResponse
from sparklog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
)

T = TypeVar("T")
log = logging.getLogger("pyspark_sparklog")

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
TIMESTAMP_MS_MAX = 2**62
"""The largest timestamp that is sent to a broker; larger ones are reduced to it, and no record has a later one."""


class BrokerWait:
    """A wait for a broker that is away: growing pauses between attempts, one line in the log, and a time limit.

    `pause(error)` returns after a pause. It raises `error` if the error is not retriable, or if `wait_ms` have passed
    since the first failure. Call `reset()` after a success. `attempt_ms`: time limit of one request.
    """

    def __init__(self, description: str, wait_ms: int, attempt_ms: int = 30_000) -> None:
        self._description = description
        self._wait_s = wait_ms / 1000
        self.attempt_ms = attempt_ms
        self._since: float | None = None
        self._is_over = False
        self._pause_s = BACKOFF_FIRST_S

    def pause(self, error: SparklogError) -> None:
        now = time.monotonic()
        if not error.retriable or self._wait_s <= 0 or self._is_over:
            raise error
        if self._since is None:
            self._since = now
            log.warning("%s: %s; trying again for %g s", self._description, error, self._wait_s)
        remaining = self._since + self._wait_s - now
        if remaining <= 0:
            self._is_over = True
            raise type(error)(f"{error}; gave up after {self._wait_s:g} s (sparklog.broker.wait.ms)") from error
        time.sleep(min(self._pause_s, remaining))
        self._pause_s = min(2 * self._pause_s, BACKOFF_MAX_S)

    def reset(self) -> None:
        if self._since is not None:
            log.warning("%s: the broker answers again", self._description)
        self._since = None
        self._pause_s = BACKOFF_FIRST_S


@dataclass(frozen=True)
class Catalog:
    """Questions to the cluster at `address`; it holds no connection itself, so it can be pickled.

    `wait_ms`: time in ms for which a question is repeated while no broker answers. `isolation`: with READ_COMMITTED a
    partition ends at its last stable offset. `request_timeout_ms`: time limit of one answer in ms.
    """

    address: ClusterAddress
    wait_ms: int
    isolation: int = READ_UNCOMMITTED
    request_timeout_ms: int = 30_000
    history: bool = False
    """True if partitions begin with the first offset of the topics' Delta tables."""
    newest: bool = False
    """True if upserted Delta tables count for `history`, too."""

    def topics(
        self, subscription: Subscription, *, missing_is_error: bool, to_write: bool = False
    ) -> dict[str, TopicInfo]:
        """Return the existing subscribed topics by name; empty if a pattern matches no topic. `to_write`: the broker is
        allowed to create a named topic that does not exist.

        Raises UnknownTopicOrPartitionError if a named topic does not exist and `missing_is_error`, and
        InvalidPartitionsError for an assigned partition that does not exist.
        """
        if subscription.pattern is not None:
            return {n: t for n, t in self._describe(None).items() if subscription.names(n)}
        names = sorted(subscription.assign or subscription.topics)
        topics = self._describe(names, to_write=to_write)
        missing = [n for n in names if n not in topics]
        if missing and missing_is_error:
            hint = self.address.connect().nearest_topic(missing[0], self.request_timeout_ms)
            raise UnknownTopicOrPartitionError(
                f"no topic {', '.join(map(repr, missing))} at {self.address}{hint}: create it with "
                f"`sparklog topic create {shlex.quote(missing[0])}` or Admin.create_topic"
            )
        for name, partitions in subscription.assign.items():
            if name in topics and partitions[-1] >= topics[name].partitions:
                raise InvalidPartitionsError(
                    f"assign: topic {name!r} has partitions 0 to {topics[name].partitions - 1}, "
                    f"there is no {partitions[-1]}"
                )
        return topics

    def _describe(self, names: list[str] | None, *, to_write: bool = False) -> dict[str, TopicInfo]:
        response = self._ask("topics", lambda c, wait: c.metadata(names, to_write=to_write, timeout_ms=wait.attempt_ms))
        infos = {}
        for state in response.topics:
            if state.error_code == 0:
                infos[state.name] = topic_info(state)
            elif state.error_code != UnknownTopicOrPartitionError.code:
                raise topic_error(state.error_code, state.name)
        return infos

    def extents(
        self,
        partitions: Iterable[TopicPartition],
        reached: Mapping[TopicPartition, int] | None = None,
        begin: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, Extent]:
        """Return the first offset and end of every partition that exists.

        `reached`: positions of a reader. A position can be beyond the last stable offset if the reader has read with
        read_uncommitted before. The partition then ends at that position, and at the high watermark at most, so that
        no loss is reported. `begin`: the positions from which it reads, if they are earlier. With `history` a partition
        whose position is before the log's start begins in its table.
        """
        ordered = sorted(partitions)
        answers = self._list_offsets(dict.fromkeys(ordered, (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)))
        result = {tp: Extent(*answers[tp]) for tp in ordered if answers[tp]}
        if self.history:
            result = self._with_history(result, (reached if begin is None else begin) or {})
        beyond = [tp for tp, o in (reached or {}).items() if tp in result and o > result[tp].end]
        if beyond and self.isolation == READ_COMMITTED:
            ends = self._list_offsets(dict.fromkeys(sorted(beyond), (LATEST_TIMESTAMP,)), READ_UNCOMMITTED)
            for tp, (*_, high_watermark) in ((tp, offsets) for tp, offsets in ends.items() if offsets):
                assert reached is not None
                first, last = result[tp]
                result[tp] = Extent(first, max(last, min(reached[tp], high_watermark)))
        return result

    def _with_history(
        self, extents: dict[TopicPartition, Extent], begin: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Extent]:
        """Return the extents with the first offsets of the Delta tables. A table is opened only if the position in
        `begin` is below the log start offset, or missing."""
        before = [tp for tp, e in extents.items() if e.start > 0 and begin.get(tp, -1) < e.start]
        for name in {tp.topic for tp in before}:
            info = self.address.connect().topic(name, refresh=True)
            source = HistorySource(info, required=False, newest=self.newest)
            for tp in before:
                if tp.topic == name:
                    start, end = extents[tp]
                    extents[tp] = Extent(source.first_offset(tp.partition, start), end)
        return extents

    def offsets_for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset in each partition with at least the given timestamp; None if there is none."""
        times = {tp: (min(timestamps_ms[tp], TIMESTAMP_MS_MAX),) for tp in sorted(timestamps_ms)}
        return {tp: next((o for o in offsets if o >= 0), None) for tp, offsets in self._list_offsets(times).items()}

    def _list_offsets(
        self, questions: Mapping[TopicPartition, Sequence[int]], isolation: int | None = None
    ) -> dict[TopicPartition, list[int]]:
        """Return the offsets of each partition in the order of its questions. The list is empty for a partition that
        does not exist.

        With READ_COMMITTED the latest offsets never divide a transaction: its records in all partitions are below them,
        or none of its records is.
        """
        if not questions:
            return {}
        isolation = self.isolation if isolation is None else isolation
        are_ends = all(t in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP) for times in questions.values() for t in times)
        listed = self._ask(
            "offsets",
            lambda c, wait: look_up_offsets(
                c, questions, wait, isolation=isolation, all_at_once=are_ends, refused=_without_offsets
            ),
        )
        return {tp: [o.offset for o in offsets] for tp, offsets in listed.items()}

    def wait_for_data(self, positions: Mapping[TopicPartition, int], max_wait_ms: int) -> bool:
        """Wait until any partition grows beyond its position, at most `max_wait_ms`. Returns False if every leader
        answered that no partition has grown; else True, also without partitions to wait for."""
        if not positions:
            time.sleep(max_wait_ms / 1000)
            return True
        return self._ask(
            "new data", lambda c, wait: _wait_for_data(c, positions, max_wait_ms, self.isolation, wait.attempt_ms)
        )

    def _ask(self, subject: str, ask: Callable[[Cluster, BrokerWait], T]) -> T:
        wait = BrokerWait(f"asking {self.address} for {subject}", self.wait_ms, self.request_timeout_ms)
        while True:
            try:
                answer = ask(self.address.connect(), wait)
            except SparklogError as e:
                wait.pause(e)
            else:
                wait.reset()
                return answer


def _without_offsets(tp: TopicPartition, error: SparklogError) -> list[LocatedOffset]:
    """Return no offsets for a partition that does not exist. Raises any other `error`."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return []
    raise error


@contextmanager
def _lost_with(c: Cluster, leader: Endpoint, partitions: Iterable[TopicPartition]) -> Iterator[None]:
    """Make the client look up the partitions' leader again if the body raises a SparklogError."""
    try:
        yield
    except SparklogError:
        c.look_again({tp.topic for tp in partitions}, leader)
        raise


def _wait_for_data(
    c: Cluster, positions: Mapping[TopicPartition, int], max_wait_ms: int, isolation: int, timeout_ms: int
) -> bool:
    by_leader: dict[Endpoint, list[TopicPartition]] = {}
    for tp, leader in c.leaders(positions, timeout_ms=timeout_ms).items():
        if not isinstance(leader, SparklogError):
            by_leader.setdefault(leader.endpoint, []).append(tp)
        elif not isinstance(leader, UnknownTopicOrPartitionError):
            raise leader
    with ExitStack() as stack:
        waiting: list[tuple[Endpoint, list[FetchPartition], Connection]] = []
        for endpoint, partitions in by_leader.items():
            fetches = [FetchPartition(tp.topic, tp.partition, positions[tp], 0) for tp in partitions]
            # max_bytes 0: nothing is transferred, the answer comes when there is something to transfer
            request = FetchRequest(max_wait_ms, 1, 0, isolation, fetches)
            with _lost_with(c, endpoint, partitions):
                connection = stack.enter_context(c.connection(endpoint, purpose="wait", timeout_ms=timeout_ms))
                connection.send(Api.FETCH, request, wait_ms=max_wait_ms)
            waiting.append((endpoint, fetches, connection))
        grown = not waiting
        for endpoint, fetches, connection in waiting:
            with _lost_with(c, endpoint, [TopicPartition(a.topic, a.partition) for a in fetches]):
                response, _ = connection.receive(FetchResponse)
                check_named(endpoint, fetches, response.results)
            for r in response.results:
                if r.error_code == NotLeaderError.code:
                    c.look_again([r.topic], endpoint)
                end = r.last_stable_offset if isolation == READ_COMMITTED else r.high_watermark
                grown |= r.error_code != 0 or end > positions[TopicPartition(r.topic, r.partition)]
        return grown


def partitions_of(subscription: Subscription, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Return the topic partitions to read, in order."""
    result = []
    for name in sorted(topics):
        numbers = subscription.assign.get(name, ()) if subscription.assign else range(topics[name].partitions)
        result += [TopicPartition(name, p) for p in numbers]
    return result


def shapes_of(topics: Mapping[str, TopicInfo]) -> dict[str, TopicShape]:
    """Return the properties of the topics that decide their columns."""
    return {n: TopicShape(t.kind, t.schema) for n, t in topics.items()}


def ids_of(topics: Mapping[str, TopicInfo]) -> dict[str, str]:
    """Return topic ids by name."""
    return {n: t.topic_id for n, t in topics.items()}
