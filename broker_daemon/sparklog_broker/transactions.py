"""The broker's transaction coordinator: which shard an id belongs to, loading, timeouts, and what operators ask.

An id belongs to the partition of `__transaction_state` that its hash names. All state is in that topic, so it is read at
the start; requests get COORDINATOR_LOADING meanwhile, and what was decided is driven on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from sparklog.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    SparklogError,
    UnknownServerError,
)
from sparklog.log.clock import Clock, SystemClock
from sparklog.protocol.transaction_messages import (
    DescribeProducersResponse,
    ProducerState,
    TransactionDetails,
    TransactionPartition,
    TransactionSummary,
)
from sparklog.replication.transactions import (
    Abort,
    AddPartitions,
    End,
    EndShared,
    Identity,
    InitProducer,
    Join,
    Joined,
    Limits,
    Marker,
    is_shared,
)
from sparklog.types import SHARED_PREFIX, TRANSACTION_STATE_TOPIC, TopicPartition, shared_transactional_id
from sparklog_broker.internal_topics import InternalTopic
from sparklog_broker.transaction_markers import MarkerWriter, OnOffsetsMarker
from sparklog_broker.transaction_shard import TransactionShard

if TYPE_CHECKING:
    from sparklog_broker.broker import Broker

log = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
SETTLE_S_MAX = 10.0
"""Ends that are under way when the broker stops have this long."""
EPOCH_MAX = 32_767


class TransactionCoordinator:
    """See the module. Event-loop thread only."""

    def __init__(
        self, broker: Broker, draw_producer_id: Callable[[], Awaitable[int]], *, clock: Clock | None = None
    ) -> None:
        self._broker = broker
        self._draw_producer_id = draw_producer_id
        self._clock = clock if clock is not None else SystemClock()
        self._topic = InternalTopic(broker, TRANSACTION_STATE_TOPIC, clock=self._clock)
        self._markers = MarkerWriter(broker)
        config = broker.config
        self._limits = Limits(
            config.transaction_max_timeout_ms,
            config.transactional_id_expiration_ms,
            config.transactional_app_expiration_ms,
        )
        self._tick_s = config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        self._shards: list[TransactionShard] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()
        self._settled.set()

    # -- life

    def start(self) -> None:
        """Begins to read the state, and to look for transactions that are open for too long."""
        self._shards = [
            TransactionShard(n, self._topic, self._markers, self._draw_producer_id, self._limits, self._clock)
            for n in range(self._topic.partitions)
        ]
        loop = asyncio.get_running_loop()
        if self._topic.exists:
            self._settled.clear()
        self._tasks = [
            loop.create_task(self._load()),
            loop.create_task(self._tick()),
            loop.create_task(self._settle()),
        ]

    async def loaded(self) -> None:
        """Returns when the state has been read."""
        await asyncio.wait(self._tasks[:1])

    async def settled(self) -> None:
        """For readers of committed records: returns when no transaction is half committed because the broker died between
        its markers; at once but in the first moments after a start, and at the latest SETTLE_S_MAX after it."""
        await self._settled.wait()

    async def _settle(self) -> None:
        if self._settled.is_set():
            return
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await asyncio.gather(*(shard.recovered() for shard in self._shards))
        except TimeoutError:
            log.warning("transactions decided before the start do not have all their markers yet; readers go on")
        finally:
            self._settled.set()

    async def _load(self) -> None:
        await asyncio.gather(*(shard.load() for shard in self._shards))
        await self._end_unknown()

    async def _end_unknown(self) -> None:
        """Aborts what is open in a partition though the state topic, all of which this broker has read, does not have it: a
        power cut took the record, or the files were restored without the topic. Nobody else could end it."""
        partitions = [TopicPartition(t.name, n) for t in self._broker.topics.values() for n in range(t.partitions)]
        for tp in partitions:
            try:
                partition_log = self._broker.partition(*tp).open_log
                if partition_log is None or partition_log.last_stable_offset >= partition_log.high_watermark:
                    continue
                for producer in partition_log.producers():
                    if producer.transaction_first_offset >= 0 and producer.producer_id not in self._owners(tp):
                        await self.abort_hanging(tp, producer.producer_id)
            except SparklogError as e:
                log.warning("%s: transactions that nobody knows may hang (%s): %s", tp, e.name, e)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            try:
                await self.end_overdue()
            except SparklogError as e:
                log.error("transactions: timeouts are not looked for: %s", e)  # noqa: TRY400
            except Exception:
                log.exception("transactions: timeouts are not looked for")

    async def end_overdue(self) -> None:
        """Aborts what is open for longer than its timeout, forgets what has not been used for long."""
        for shard in self._shards:
            await shard.tick()

    def stop_waiting(self) -> None:
        """Requests that wait are ended soon: the broker stops."""
        self._settled.set()
        if self._shards:
            asyncio.get_running_loop().call_later(STOP_GRACE_S, self._stop_shards)

    def _stop_shards(self) -> None:
        for shard in self._shards:
            shard.stop()

    async def stop(self) -> None:
        """Ends everything; what is decided is driven on at the next start."""
        ending = [task for shard in self._shards for task in shard.stop()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *ending, return_exceptions=True)

    # -- producers

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> Identity:
        """The identity of a transactional id. Raises InvalidTransactionTimeoutError, ProducerFencedError,
        InvalidProducerIdMappingError, ConcurrentTransactionsError, CoordinatorLoadingError, StorageError."""
        if is_shared(transactional_id):
            raise InvalidRequestError(f"a transactional id cannot begin with {SHARED_PREFIX!r}")
        request = InitProducer(transactional_id, timeout_ms, producer_id, producer_epoch)
        found: Identity = await self._shard(transactional_id).request(request)
        return found

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Notes durably that the producer's open transaction (which this may begin) includes these partitions.

        Raises InvalidProducerIdMappingError, ProducerFencedError, InvalidProducerEpochError, TransactionAbortedError,
        InvalidTxnStateError, ConcurrentTransactionsError, CoordinatorLoadingError, StorageError.
        """
        request = AddPartitions(transactional_id, producer_id, producer_epoch, tuple(partitions))
        await self._shard(transactional_id).request(request)

    async def add_partition(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> None:
        """`add_partitions` for one."""
        await self.add_partitions(transactional_id, producer_id, producer_epoch, (partition,))

    async def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> Identity:
        """Ends the open transaction; returns when all markers are in, with the identity for the next one."""
        if is_shared(transactional_id):
            raise InvalidRequestError("a shared transaction is ended as a whole")
        request = End(transactional_id, producer_id, producer_epoch, commit)
        found: Identity = await self._shard(transactional_id).request(request)
        return found

    def stale(self, transactional_id: str, producer_id: int, producer_epoch: int) -> SparklogError:
        """What to tell a producer whose batch a partition has refused for its old epoch."""
        try:
            coordinator = self._shard(transactional_id).loaded()
        except SparklogError as e:
            return e
        return coordinator.stale(transactional_id, Identity(producer_id, producer_epoch))

    # -- shared transactions

    async def join(self, app_id: str, version: int, run_id: str, ticket: int, timeout_ms: int) -> Joined:
        """An identity to take part with. Raises ProducerFencedError, TransactionAbortedError, ConcurrentTransactionsError,
        CoordinatorLoadingError, StorageError."""
        request = Join(shared_transactional_id(app_id), version, run_id, ticket, timeout_ms)
        found: Joined = await self._shard(request.transactional_id).request(request)
        return found

    async def end_shared(
        self, app_id: str, version: int, run_id: str, ticket: int, winners: Iterable[int], *, commit: bool
    ) -> bool:
        """Whether the version is committed. Raises as `join` does, and InvalidProducerIdMappingError for a winner that does
        not take part."""
        request = EndShared(shared_transactional_id(app_id), version, run_id, ticket, commit, frozenset(winners))
        return bool(await self._shard(request.transactional_id).request(request))

    @property
    def on_offsets_marker(self) -> list[OnOffsetsMarker]:
        """Called when a marker is in a partition of __consumer_offsets."""
        return self._markers.on_offsets_marker

    # -- operators

    def summaries(self, states: Iterable[str] = (), running_ms_min: int = 0) -> list[TransactionSummary]:
        """All transactional ids by name, or only those in `states`, or open for so long. Raises CoordinatorLoadingError."""
        wanted = frozenset(states)
        now_ms = self._clock.now_ms()
        found = (s for shard in self._shards for s in shard.loaded().summaries())
        return sorted(
            (
                s
                for s in found
                if (not wanted or s.state in wanted)
                and (not running_ms_min or (s.started_ms >= 0 and now_ms - s.started_ms >= running_ms_min))
            ),
            key=lambda s: s.transactional_id,
        )

    def describe(self, transactional_id: str) -> TransactionDetails:
        """One id with the partitions of its open transaction; an unknown one has an error code. Raises
        CoordinatorLoadingError."""
        coordinator = self._shard(transactional_id).loaded()
        try:
            partitions = coordinator.partitions(transactional_id)
        except InvalidProducerIdMappingError as e:
            return TransactionDetails(e.code, transactional_id, message=str(e))
        return TransactionDetails(
            0,
            transactional_id,
            coordinator.summary(transactional_id),
            [TransactionPartition(producer_id, *tp) for producer_id, tp in partitions],
            coordinator.last_committed_version(transactional_id),
        )

    async def abort(self, transactional_id: str) -> int:
        """Aborts the open transaction of an id; the number of markers. Raises InvalidTxnStateError if none is open,
        InvalidProducerIdMappingError."""
        return int(await self._shard(transactional_id).request(Abort(transactional_id)))

    async def abort_hanging(self, tp: TopicPartition, producer_id: int) -> int:
        """Ends a transaction that is open in a partition though no coordinator knows it. Raises InvalidTxnStateError if
        one does, or nothing is open; UnknownTopicOrPartitionError."""
        partition = self._broker.partition(*tp)
        owner = self._owners(tp).get(producer_id)
        if owner is not None:
            raise InvalidTxnStateError(
                f"producer {producer_id} writes to {tp} in the transaction of {owner!r}: abort that one"
            )
        found = next((p for p in partition.log.producers() if p.producer_id == producer_id), None)
        if found is None or found.transaction_first_offset < 0:
            raise InvalidTxnStateError(f"producer {producer_id} has no open transaction in {tp}")
        marker = Marker(tp, producer_id, min(found.producer_epoch + 1, EPOCH_MAX), commit=False)
        if not await self._markers.write((marker,), found.coordinator_epoch if found.coordinator_epoch >= 0 else 0):
            raise UnknownServerError(f"the marker could not be written to {tp}; see the broker's log")
        log.warning("aborted the hanging transaction of producer %d in %s", producer_id, tp)
        return 1

    def describe_producers(self, tp: TopicPartition) -> DescribeProducersResponse:
        """Who has written to a partition. Raises UnknownTopicOrPartitionError, CoordinatorLoadingError."""
        partition_log = self._broker.partition(*tp).log
        owners = self._owners(tp)
        producers = [
            ProducerState(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_time_ms,
                p.transaction_first_offset,
                owners.get(p.producer_id),
            )
            for p in sorted(partition_log.producers())
        ]
        return DescribeProducersResponse(producers, partition_log.last_stable_offset)

    def _owners(self, tp: TopicPartition) -> dict[int, str]:
        """Transactional ids, by producer id, whose open transactions include the partition."""
        return {
            producer_id: transactional_id
            for shard in self._shards
            for producer_id, transactional_id, partitions in shard.loaded().producers()
            if tp in partitions
        }

    def _shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise InvalidProducerIdMappingError("a transactional id cannot be empty")
        return self._shards[self._topic.partition_for(transactional_id) % len(self._shards)]
