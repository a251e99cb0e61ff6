"""What the data source asks brokers on Spark's driver: topics, offsets, and a wait for new data.

Every question is asked again while the broker is gone, up to a time limit, so that a broker's restart does not end a
running query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from pyspark_sparklog.cluster_address import ClusterAddress
from pyspark_sparklog.options import Subscription
from pyspark_sparklog.planning import Extent
from pyspark_sparklog.schemas import TopicShape
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo, topic_error, topic_info
from sparklog.errors import (
    InvalidPartitionsError,
    NotLeaderError,
    SparklogError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.protocol.messages import (
    Api,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
)
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
"""The largest timestamp a broker can be asked for; no record has a larger one."""


class BrokerWait:
    """Patience with a broker that is gone: pauses that grow, a line in the log, and a limit.

    `pause(error)` returns after a pause, or raises `error` when it is not retriable or `wait_ms` have passed since the
    first failure; `reset()` after a success.
    """

    def __init__(self, what: str, wait_ms: int) -> None:
        self._what = what
        self._wait_s = wait_ms / 1000
        self._since: float | None = None
        self._pause_s = BACKOFF_FIRST_S

    def pause(self, error: SparklogError) -> None:
        now = time.monotonic()
        if not error.retriable or self._wait_s <= 0:
            raise error
        if self._since is None:
            self._since = now
            log.warning("%s: %s; trying again for %g s", self._what, error, self._wait_s)
        left = self._since + self._wait_s - now
        if left <= 0:
            raise type(error)(f"{error}; gave up after {self._wait_s:g} s (sparklog.broker.wait.ms)") from error
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(2 * self._pause_s, BACKOFF_MAX_S)

    def reset(self) -> None:
        if self._since is not None:
            log.warning("%s: the broker answers again", self._what)
        self._since = None
        self._pause_s = BACKOFF_FIRST_S


@dataclass(frozen=True)
class Catalog:
    """Questions to the cluster at `address`; holds no connection itself, so it can be pickled.

    `wait_ms`: how long a question is asked again while no broker answers. `isolation`: with READ_COMMITTED a partition
    ends at its last stable offset. `request_timeout_ms`: how long one answer may take.
    """

    address: ClusterAddress
    wait_ms: int
    isolation: int = READ_UNCOMMITTED
    request_timeout_ms: int = 30_000

    def topics(
        self, subscription: Subscription, *, missing_is_error: bool, to_write: bool = False
    ) -> dict[str, TopicInfo]:
        """The subscribed topics there are, by name; a pattern may match none yet. `to_write`: the broker may make
        those that are named and do not exist.

        Raises UnknownTopicOrPartitionError if a named one does not exist and `missing_is_error`, and
        InvalidPartitionsError for an assigned partition that does not exist.
        """
        if subscription.pattern is not None:
            return {n: t for n, t in self._describe(None).items() if subscription.names(n)}
        names = sorted(subscription.assign or subscription.topics)
        found = self._describe(names, to_write=to_write)
        missing = [n for n in names if n not in found]
        if missing and missing_is_error:
            raise UnknownTopicOrPartitionError(
                f"no topic {', '.join(map(repr, missing))} at {self.address}: create it with "
                f"`sparklog topic create {missing[0]}` or Admin.create_topic"
            )
        for name, partitions in subscription.assign.items():
            if name in found and partitions[-1] >= found[name].partitions:
                raise InvalidPartitionsError(
                    f"assign: topic {name!r} has partitions 0 to {found[name].partitions - 1}, "
                    f"there is no {partitions[-1]}"
                )
        return found

    def _describe(self, names: list[str] | None, *, to_write: bool = False) -> dict[str, TopicInfo]:
        response = self._asking(
            "topics", lambda c: c.metadata(names, to_write=to_write, timeout_ms=self.request_timeout_ms)
        )
        found = {}
        for state in response.topics:
            if state.error_code == 0:
                found[state.name] = topic_info(state)
            elif state.error_code != UnknownTopicOrPartitionError.code:
                raise topic_error(state.error_code, state.name)
        return found

    def extents(
        self, partitions: Iterable[TopicPartition], reached: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, Extent]:
        """First offset and end of every partition that exists.

        `reached`: where a reader stands already. If that is beyond the last stable offset (it has read with
        read_uncommitted before), the log still has it: then the partition ends there, and nothing is lost.
        """
        wanted = sorted(partitions)
        asked = [(tp, t) for tp in wanted for t in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)]
        answers = iter(self._list_offsets(asked))
        result = {}
        for tp in wanted:
            first, last = next(answers), next(answers)
            if first is not None and last is not None:
                result[tp] = Extent(first, last)
        beyond = [tp for tp, o in (reached or {}).items() if tp in result and o > result[tp].end]
        if beyond and self.isolation == READ_COMMITTED:
            asked = [(tp, LATEST_TIMESTAMP) for tp in sorted(beyond)]
            ends = self._asking("offsets", lambda c: _list_offsets(c, asked, READ_UNCOMMITTED, self.request_timeout_ms))
            for (tp, _), high_watermark in zip(asked, ends, strict=True):
                if high_watermark is not None and reached is not None:
                    first, last = result[tp]
                    result[tp] = Extent(first, max(last, min(reached[tp], high_watermark)))
        return result

    def offsets_for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset with at least that timestamp, None where there is none."""
        asked = sorted((tp, min(t, TIMESTAMP_MS_MAX)) for tp, t in timestamps_ms.items())
        answers = self._list_offsets(asked)
        return {tp: None if o is None or o < 0 else o for (tp, _), o in zip(asked, answers, strict=True)}

    def _list_offsets(self, asked: list[tuple[TopicPartition, int]]) -> list[int | None]:
        """One offset per question, in order; None for a partition that does not exist."""
        if not asked:
            return []
        return self._asking("offsets", lambda c: _list_offsets(c, asked, self.isolation, self.request_timeout_ms))

    def wait_for_data(self, positions: Mapping[TopicPartition, int], max_wait_ms: int) -> bool:
        """Waits until any partition grows beyond its position, at most `max_wait_ms`. Whether one has, or might
        have."""
        if not positions:
            time.sleep(max_wait_ms / 1000)
            return True
        return self._asking("new data", lambda c: _wait_for_data(c, positions, max_wait_ms, self.isolation))

    def _asking(self, what: str, ask: Callable[[Cluster], T]) -> T:
        wait = BrokerWait(f"asking {self.address} for {what}", self.wait_ms)
        while True:
            try:
                answer = ask(self.address.connect())
            except SparklogError as e:
                wait.pause(e)
            else:
                wait.reset()
                return answer


def _by_leader(c: Cluster, partitions: Iterable[TopicPartition]) -> dict[Endpoint, list[TopicPartition]]:
    """Partitions by the broker to ask; partitions that do not exist are left out."""
    result: dict[Endpoint, list[TopicPartition]] = {}
    for tp in partitions:
        try:
            result.setdefault(c.leader(tp), []).append(tp)
        except UnknownTopicOrPartitionError:
            continue
    return result


def _list_offsets(
    c: Cluster, asked: list[tuple[TopicPartition, int]], isolation: int, timeout_ms: int
) -> list[int | None]:
    """With READ_COMMITTED of each transaction all is below the latest offsets, or nothing."""
    answers: dict[tuple[TopicPartition, int], int | None] = {}
    by_leader = _by_leader(c, dict.fromkeys(tp for tp, _ in asked))
    are_ends = {t for _, t in asked} in ({EARLIEST_TIMESTAMP, LATEST_TIMESTAMP}, {LATEST_TIMESTAMP})
    together = isolation == READ_COMMITTED and len(by_leader) > 1 and are_ends
    if together:  # one broker asks the others
        by_leader = {next(iter(by_leader)): [tp for tps in by_leader.values() for tp in tps]}
    for endpoint, partitions in by_leader.items():
        here = set(partitions)
        questions = [q for q in asked if q[0] in here]
        request = ListOffsetsRequest(
            [ListOffsetsPartition(tp.topic, tp.partition, t) for tp, t in questions], isolation, all_at_once=together
        )
        response = c.request(Api.LIST_OFFSETS, request, ListOffsetsResponse, endpoint=endpoint, timeout_ms=timeout_ms)
        answers |= {q: _offset(c, r) for q, r in zip(questions, response.results, strict=True)}
    return [answers.get(q) for q in asked]


def _offset(c: Cluster, result: ListOffsetsResult) -> int | None:
    if result.error_code == 0:
        return result.offset
    c.invalidate(result.topic)
    if result.error_code == UnknownTopicOrPartitionError.code:
        return None
    raise error_from_code(result.error_code, result.message or f"{result.topic}-{result.partition}")


def _wait_for_data(c: Cluster, positions: Mapping[TopicPartition, int], max_wait_ms: int, isolation: int) -> bool:
    with ExitStack() as stack:
        waiting = []
        for endpoint, partitions in _by_leader(c, positions).items():
            connection = stack.enter_context(c.connection(endpoint, purpose="wait"))
            asked = [FetchPartition(tp.topic, tp.partition, positions[tp], 0) for tp in partitions]
            # max_bytes 0: nothing is transferred, the answer comes when there is something to transfer
            connection.send(Api.FETCH, FetchRequest(max_wait_ms, 1, 0, isolation, asked))
            waiting.append(connection)
        grown = not waiting
        for connection in waiting:
            response, _ = connection.receive(FetchResponse)
            for r in response.results:
                if r.error_code == NotLeaderError.code:
                    c.invalidate(r.topic)
                end = r.last_stable_offset if isolation == READ_COMMITTED else r.high_watermark
                grown |= r.error_code != 0 or end > positions[TopicPartition(r.topic, r.partition)]
        return grown


def partitions_of(subscription: Subscription, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """The topic partitions to read, in order."""
    result = []
    for name in sorted(topics):
        numbers = subscription.assign.get(name, ()) if subscription.assign else range(topics[name].partitions)
        result += [TopicPartition(name, p) for p in numbers]
    return result


def shapes_of(topics: Mapping[str, TopicInfo]) -> dict[str, TopicShape]:
    """What decides the topics' columns."""
    return {n: TopicShape(t.kind, t.schema) for n, t in topics.items()}


def ids_of(topics: Mapping[str, TopicInfo]) -> dict[str, str]:
    """Topic ids by name."""
    return {n: t.topic_id for n, t in topics.items()}
