"""Copies partitions from one leader: a connection, a fetch session, and the next requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from msgspec import Struct

from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidFetchSessionError,
    InvalidRequestError,
    RequestTimedOutError,
    SparklogError,
    error_from_code,
)
from sparklog.format.epoch_checkpoint import EpochEntry
from sparklog.format.gaps import gaps_within
from sparklog.log.partition_log import PartitionLog
from sparklog.log.state.leader_epochs import EpochEnd
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import (
    GAPS_MAX,
    ForgottenPartition,
    MissingOffsets,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.model import Batches, Fetch, FetchAnswer, FetchFailure, FollowerEvent
from sparklog.types import TopicPartition
from sparklog_broker.cluster.peers import Peer
from sparklog_broker.cluster.replication_throttle import Quota

log = logging.getLogger(__name__)

ANSWER_S = 30.0
"""Time in s that a reply can take in addition to the request's wait at the leader. Then the request fails."""
LATE_MS = 300
"""Time in ms after the end of a request's wait at the leader, after which the reply is late."""
SETTLE_S = 0.02
"""Longest time, in s, for which the next request waits until the last answer has been applied."""
RESTLESS_MS = 1_000
"""Time in ms after a new partition has interrupted a request. More new partitions are likely to follow. During this
time they interrupt no request, and requests wait at most SETTLE_S at the leader.
"""
INTERRUPTED_MAX = 4_000
"""Largest number of fetches at the leader for which a new partition interrupts a request. The next request has to name
all of them again, which takes longer than the rest of the wait if they are many.
"""


class FetchLimits(Struct, frozen=True):
    """Settings: `replica.fetch.wait.max.ms`, `replica.fetch.max.bytes`, `replica.fetch.response.max.bytes`,
    `replica.fetch.backoff.ms`.
    """

    wait_max_ms: int = 500
    partition_max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    backoff_ms: int = 1_000


class FollowerState(Struct, eq=False):
    """One partition that is being copied: its rules and its log."""

    key: TopicPartition
    follower: Follower
    log: PartitionLog
    pending: int = 0
    """Number of jobs on the log that have not ended."""
    on_settled: Callable[[], None] | None = None
    """Called when the last pending job has ended, because a new role waits for the log; None if no role waits."""


class FetchEvent(Struct):
    """A leader's answer for one partition, as an event for the follower's rules."""

    following: FollowerState
    event: FollowerEvent


class ReplicaFetcher:
    """Copies partitions from one leader. Event-loop thread only.

    `deliver` takes the events of an answer, and calls `ask` again when they are applied. A request names the due
    partitions, and can wait long at the leader. So it is sent only when the partitions of the previous answer are due
    again, at the latest after SETTLE_S. It is interrupted if a partition becomes due unexpectedly.
    """

    def __init__(
        self,
        peer: Peer,
        broker_id: int,
        broker_epoch: Callable[[], int],
        limits: FetchLimits,
        now_ms: Callable[[], int],
        deliver: Callable[[list[FetchEvent]], None],
        quota: Quota | None = None,
        throttled: Callable[[TopicPartition], bool] = lambda key: False,
        copied: Callable[[TopicPartition, int], None] = lambda key, size_bytes: None,
    ) -> None:
        """`quota` limits the copying of the partitions for which `throttled` returns True. `copied` is called with each
        answered partition and the size of its received batches in bytes.
        """
        self._peer = peer
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._limits = limits
        self._now_ms = now_ms
        self._deliver = deliver
        self._quota = quota
        self._throttled = throttled
        self._copied = copied
        self._armed: dict[TopicPartition, tuple[FollowerState, Fetch]] = {}
        """Fetches that wait at the leader in this session."""
        self._due: dict[TopicPartition, tuple[FollowerState, Fetch]] = {}
        self._forgotten: dict[TopicPartition, None] = {}
        self._delivered: set[TopicPartition] = set()
        """Partitions whose last answer is not applied yet."""
        self._polling: asyncio.Task[tuple[ReplicaFetchResponse, memoryview]] | None = None
        self._is_cancelled = False
        self._restless_until_ms = 0
        self._session_id = 0
        self._session_epoch = 0
        self._late_at_ms: int | None = None
        """Time from which the reply to the present request is late, in ms; 0 after a request without a reply."""
        self._wake = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._peer.address

    def ask(self, following: FollowerState, fetch: Fetch) -> None:
        """Set a partition's next fetch, which is sent no earlier than `fetch.at_ms`."""
        self._armed.pop(following.key, None)
        self._forgotten.pop(following.key, None)
        self._due[following.key] = following, fetch
        self._wake.set()
        was_delivered = following.key in self._delivered
        self._delivered.discard(following.key)
        if not was_delivered and self._polling is not None:
            self._give_up(fetch)

    def _give_up(self, fetch: Fetch) -> None:
        now_ms = self._now_ms()
        if len(self._armed) > INTERRUPTED_MAX:
            return
        if self._polling is not None and fetch.at_ms <= now_ms and now_ms >= self._restless_until_ms:
            self._restless_until_ms = now_ms + RESTLESS_MS
            self._is_cancelled = self._polling.cancel()

    def forget(self, key: TopicPartition) -> None:
        """Stop copying the partition from this leader."""
        self._delivered.discard(key)
        self._wake.set()
        self._due.pop(key, None)
        if self._armed.pop(key, None) is not None:
            self._forgotten[key] = None

    def hand_over(self, other: ReplicaFetcher) -> None:
        """Pass all fetches to `other`."""
        for following, fetch in [*self._armed.values(), *self._due.values()]:
            other.ask(following, fetch)
        self._armed.clear()
        self._due.clear()
        self._delivered.clear()

    @property
    def is_idle(self) -> bool:
        """True if no fetch is waiting or sent. Partitions whose last answer is not applied yet do not count."""
        return not self._armed and not self._due

    @property
    def is_silent(self) -> bool:
        """True if partitions are copied, and the leader has not replied to the last request, or its reply is late."""
        return not self.is_idle and self._late_at_ms is not None and self._now_ms() >= self._late_at_ms

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                await self._until_something_is_due()
                try:
                    await self._fetch()
                except SparklogError as e:
                    self._fail(e)
        finally:
            self._peer.close()

    async def _until_something_is_due(self) -> None:
        """Wait up to SETTLE_S until the last answer is applied; then until a fetch is due, unless fetches wait at the
        leader."""
        settled_by_s = asyncio.get_running_loop().time() + SETTLE_S
        while self._delivered and asyncio.get_running_loop().time() < settled_by_s:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(settled_by_s):
                    await self._wake.wait()
        while not self._armed:
            self._wake.clear()
            first_ms = min((fetch.at_ms for _, fetch in self._due.values()), default=None)
            remaining_s = None if first_ms is None else (first_ms - self._now_ms()) / 1_000
            if remaining_s is not None and remaining_s <= 0:
                return
            try:
                async with asyncio.timeout(remaining_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _fetch(self) -> None:
        now_ms = self._now_ms()
        self._put_off(now_ms)
        new = {key: due for key, due in self._due.items() if due[1].at_ms <= now_ms}
        for key in new:
            del self._due[key]
        if self._session_epoch == 0:  # a new session: the request names all waiting fetches again
            new = {**self._armed, **new}
        self._armed.update(new)
        forgotten = [ForgottenPartition(*key) for key in self._forgotten]
        self._forgotten.clear()
        if not self._armed and not forgotten:
            return
        request = ReplicaFetchRequest(
            self._broker_id,
            self._broker_epoch(),
            self._wait_ms(now_ms),
            self._limits.response_max_bytes,
            self._session_id,
            self._session_epoch,
            [self._request_of(following, fetch) for following, fetch in new.values()],
            forgotten if self._session_epoch else [],
        )
        self._late_at_ms = now_ms + request.max_wait_ms + LATE_MS
        answer, payload = await self._poll(request)
        self._late_at_ms = None
        self._session_id = answer.session_id
        self._session_epoch += 1
        self._take(answer.results, payload)

    def _put_off(self, now_ms: int) -> None:
        """Postpone the due fetches of throttled partitions until the quota allows more."""
        wait_ms = 0 if self._quota is None else self._quota.wait_ms()
        if not wait_ms:
            return
        for key, (following, fetch) in self._due.items():
            if fetch.at_ms <= now_ms and self._throttled(key):
                later = Fetch(fetch.number, fetch.leader, fetch.leader_epoch, fetch.fetch_offset, now_ms + wait_ms)
                self._due[key] = following, later

    async def _poll(self, request: ReplicaFetchRequest) -> tuple[ReplicaFetchResponse, memoryview]:
        """Send a request, and return the reply and its payload. Raises InvalidFetchSessionError if a new partition
        interrupts it, and the errors of `Peer.request`."""
        timeout_s = request.max_wait_ms / 1_000 + ANSWER_S
        asking = self._peer.request(Api.REPLICA_FETCH, request, ReplicaFetchResponse, timeout_s=timeout_s)
        self._is_cancelled = False
        self._polling = asyncio.get_running_loop().create_task(asking)
        try:
            return await self._polling
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if not self._is_cancelled or (own is not None and own.cancelling()):
                raise
            raise InvalidFetchSessionError("the set of fetched partitions has changed") from None
        finally:
            self._polling = None

    def _wait_ms(self, now_ms: int) -> int:
        """Return the longest wait at the leader, in ms. It ends when the next partition becomes due."""
        first_ms = min((fetch.at_ms for _, fetch in self._due.values()), default=None)
        most = self._limits.wait_max_ms
        if self._delivered or now_ms < self._restless_until_ms:
            most = min(most, int(SETTLE_S * 1_000))
        return most if first_ms is None else max(0, min(most, first_ms - now_ms))

    def _request_of(self, following: FollowerState, fetch: Fetch) -> ReplicaFetchPartition:
        log = following.log
        return ReplicaFetchPartition(
            *following.key,
            fetch.leader_epoch,
            fetch.fetch_offset,
            following.follower.last_epoch(),
            log.durable_log_start_offset,  # the leader confirms deletions of records by it
            log.high_watermark,
            self._limits.partition_max_bytes,
            gaps_below(log, fetch.fetch_offset),
            following.follower.copied_to,
        )

    def _take(self, results: list[ReplicaFetchResult], payload: memoryview) -> None:
        arrived: list[FetchEvent] = []
        position = 0
        for result in results:
            piece = payload[position : position + result.length_bytes]
            position += result.length_bytes
            armed = self._armed.pop(TopicPartition(result.topic, result.partition), None)
            if armed is not None:
                following, fetch = armed
                self._delivered.add(following.key)
                self._copied(following.key, len(piece))
                if self._quota is not None and self._quota.rate_bytes and len(piece) and self._throttled(following.key):
                    self._quota.take(len(piece))
                arrived.append(FetchEvent(following, event_of(fetch, result, piece)))
        if position != len(payload):
            raise InvalidRequestError(f"{self.address}: {len(payload)} bytes for results that have {position}")
        self._deliver(arrived)

    def _fail(self, error: SparklogError) -> None:
        """Repeat all fetches in a new session, after a failed request."""
        self._session_id = self._session_epoch = 0
        self._late_at_ms = 0 if isinstance(error, BrokerNotAvailableError | RequestTimedOutError) else None
        again_ms = self._now_ms() + (0 if isinstance(error, InvalidFetchSessionError) else self._limits.backoff_ms)
        level = logging.INFO if self.address else logging.DEBUG  # do not log an unreachable leader at each attempt
        log.log(level, "restarting the fetch of %d partitions from %s: %s", len(self._armed), self.address, error)
        for key, (following, fetch) in self._armed.items():
            self._due.setdefault(
                key, (following, Fetch(fetch.number, fetch.leader, fetch.leader_epoch, fetch.fetch_offset, again_ms))
            )
        self._armed.clear()
        self._forgotten.clear()


def gaps_below(log: PartitionLog, offset: int) -> list[MissingOffsets]:
    """Return the gaps of the log below `offset`, including records at its start that a repair has lost. If there are
    more than GAPS_MAX gaps, return one gap from the log start to `offset`.
    """
    start = log.log_start_offset
    for first, behind in reversed(log.gaps):
        if behind == start:
            start = first
    gaps = gaps_within(log.gaps, start, offset) if log.gaps else []
    if len(gaps) > GAPS_MAX:
        gaps = [(start, offset)]
    return [MissingOffsets(*gap) for gap in gaps]


def event_of(fetch: Fetch, result: ReplicaFetchResult, piece: memoryview) -> FollowerEvent:
    if result.error_code:
        error = error_from_code(result.error_code, result.message)
        return FetchFailure(fetch.number, error, max(result.log_start_offset, 0), max(result.log_end_offset, 0))
    diverging = EpochEnd(result.diverging_epoch, result.diverging_end) if result.diverging_epoch >= 0 else None
    batches = None
    if len(piece) or result.gaps:
        epochs = tuple(EpochEntry(e.epoch, e.start_offset) for e in result.epochs)
        batches = Batches(
            fetch.fetch_offset,
            result.next_offset,
            piece,
            epochs,
            max(result.log_start_offset, 0),
            tuple(result.segments),
            tuple((gap.first_offset, gap.next_offset) for gap in result.gaps),
        )
    return FetchAnswer(
        fetch.number, result.leader_epoch, result.high_watermark, result.log_start_offset, batches, diverging,
        result.copied_to,
    )  # fmt: skip
