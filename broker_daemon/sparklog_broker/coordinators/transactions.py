"""The broker's transaction coordinator: routing to shards, loading, timeouts, and operators' requests.

The hash of a transactional id selects a partition of `__transaction_state`, whose leader is the id's coordinator. All
state is in that topic. A new leader loads it first, replies with COORDINATOR_LOADING until then, and afterwards
continues decided transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping

from sparklog.environment.clock import MachineClock, SteadyClock
from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    NotCoordinatorError,
    SparklogError,
    UnknownServerError,
)
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
    Coordinator,
    End,
    EndShared,
    InitProducer,
    Join,
    JoinAnswer,
    Marker,
    Renew,
    RenewAnswer,
    TransactionLimits,
    is_shared,
)
from sparklog.security.owned_ids import number_of
from sparklog.types import FENCING_TOKENS_ID, SHARED_PREFIX, ProducerIdAndEpoch, TopicPartition, shared_transactional_id
from sparklog_broker.background.periodic import Periodic
from sparklog_broker.config import BrokerConfig
from sparklog_broker.coordinators.internal_topics import InternalTopic
from sparklog_broker.coordinators.led_shards import BEGIN_S, LedShards
from sparklog_broker.coordinators.transaction_holds import TransactionHolds
from sparklog_broker.coordinators.transaction_markers import MarkerWriter
from sparklog_broker.coordinators.transaction_shard import TransactionShard
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage

log = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
"""Time for ends of transactions in progress when the broker stops, in s."""
SETTLE_S_MAX = 10.0
"""Longest wait of readers of committed records after a start, in s, for the markers of earlier decisions."""
EPOCH_MAX = 32_767


class TransactionCoordinator:
    """The transaction coordinator of this broker. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        clock: MachineClock,
        storage: Storage,
        partitions: Partitions,
        topic: InternalTopic,
        markers: MarkerWriter,
    ) -> None:
        self._clock = SteadyClock(clock)  # a change of the wall clock must not end timeouts and leases
        self._storage = storage
        self._partitions = partitions
        self.topic = topic
        self._markers = markers
        self._limits = TransactionLimits(
            config.transaction_max_timeout_ms,
            config.transactional_id_expiration_ms,
            config.transactional_app_expiration_ms,
            config.max_transactional_ids_per_partition,
        )
        self._loop = loop
        self._tick_s = config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        self._ticker = Periodic("ending overdue transactions", loop, self.end_overdue, lambda: self._tick_s)
        self._shards = LedShards(self._new_shard)
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()
        self._settled.set()
        self._holds = TransactionHolds(loop, self._held_partitions)

    # -- life

    def start(self) -> None:
        """Begin to load the partitions that this broker leads, and to abort overdue transactions. Readers of committed
        records wait until `joined`.
        """
        self._shards.start(self.topic.partitions)
        for shard in self._shards.led:
            shard.load()
        if self.topic.exists:
            self._settled.clear()
        self._ticker.start(self._tick_s)

    def joined(self, *, is_sole: bool) -> None:
        """Note that the broker has joined its cluster. `is_sole`: True if it is the cluster's only broker."""
        if is_sole and (not self.topic.exists or len(self._shards.led) == self.topic.partitions):
            self._tasks = [self._loop.create_task(self._load()), self._loop.create_task(self._settle())]
        else:
            self._settled.set()

    async def begin(self) -> None:
        """Create the internal topic, and wait for at most BEGIN_S until the partitions that this broker leads are
        loaded. Raises the errors of `InternalTopic.ensure`.
        """
        await self.topic.ensure()
        await self._shards.until_loaded(BEGIN_S)

    def follow(self, number: int, *, leads: bool) -> None:
        """Note that this broker now leads a partition of `__transaction_state`, or no longer does."""
        self._shards.follow(number, leads=leads)

    def _new_shard(self, number: int) -> TransactionShard:
        shard = TransactionShard(
            number, self._loop, self.topic, self._markers, self._storage, self._limits, self._clock
        )
        shard.may_go_on = self._holds.passed
        return shard

    def _held_partitions(self) -> dict[int, int]:
        """Return the partitions of the state topic that this broker coordinates, with their leader epochs."""
        epochs = {}
        for shard in self._shards.led:
            with contextlib.suppress(SparklogError):  # its leader has just changed
                epochs[shard.number] = self.topic.partition_of(shard.number).replicas.leader_epoch
        return epochs

    async def hold(self, name: str, hold_s: float) -> dict[int, int]:
        """Begin the hold `name`: requests wait until `release(name)`, for at most `hold_s`. Then wait until earlier
        decisions have all their markers. Returns the leader epochs by partition of the state topic. Raises
        CoordinatorLoadingError, ConcurrentTransactionsError.
        """
        self._holds.begin(name, hold_s)
        try:
            async with asyncio.timeout(hold_s):
                await asyncio.gather(*(shard.quiet() for shard in self._shards.led))
        except TimeoutError as e:
            raise ConcurrentTransactionsError("decided transactions still lack markers") from e
        return self._holds.took_effect(name)

    def release(self, name: str) -> dict[int, int]:
        """Release a hold. Returns the leader epochs of the partitions that were held without interruption."""
        return self._holds.end(name)

    async def loaded(self) -> None:
        """Wait until a sole broker has loaded the state that existed when it joined."""
        if self._tasks:
            await asyncio.wait(self._tasks[:1])

    async def settled(self) -> None:
        """Wait until no transaction is partly committed because the broker died between its markers. Readers of
        committed records await this; it waits only after a start, for at most SETTLE_S_MAX.
        """
        await self._settled.wait()

    async def _settle(self) -> None:
        if self._settled.is_set():
            return
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await asyncio.gather(*(shard.recovered() for shard in self._shards.led))
        except TimeoutError:
            log.warning("transactions decided before the start still lack markers; readers continue")
        finally:
            self._settled.set()

    async def _load(self) -> None:
        await asyncio.gather(*(shard.loaded() for shard in self._shards.led))
        await self._end_unknown()

    async def _end_unknown(self) -> None:
        """Abort transactions that are open in a partition but missing in the state topic, which this broker has loaded
        completely. A power cut has lost their records in the state topic, or the files were restored without that
        topic. No producer could end such a transaction.
        """
        partitions = [TopicPartition(t.name, n) for t in self._partitions.topics.values() for n in range(t.partitions)]
        for tp in partitions:
            try:
                partition_log = self._partitions.get(*tp).open_log
                if partition_log is None or partition_log.last_stable_offset >= partition_log.high_watermark:
                    continue
                for producer in partition_log.producers():
                    if producer.transaction_first_offset >= 0 and producer.producer_id not in self.owners(tp):
                        await self.abort_hanging(tp, producer.producer_id, self.owners(tp))
            except SparklogError as e:
                log.warning("%s: transactions unknown to all coordinators may hang (%s): %s", tp, e.name, e)

    async def end_overdue(self) -> None:
        """Abort transactions that exceed their timeout, and remove ids that are unused for their expiration time."""
        for shard in self._shards.led:
            await shard.tick(self._storage.expiry_ms())

    def stop_waiting(self) -> None:
        """End waiting requests after STOP_GRACE_S, because the broker stops."""
        self._settled.set()
        if self._shards.all:
            self._loop.call_later(STOP_GRACE_S, self._stop_shards)

    def _stop_shards(self) -> None:
        for shard in self._shards.all:
            shard.stop()

    async def stop(self) -> None:
        """Stop all shards. The next start continues decided transactions."""
        ending = [task for shard in self._shards.all for task in shard.stop()]
        await self._ticker.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *ending, return_exceptions=True)

    # -- producers

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> ProducerIdAndEpoch:
        """Return the identity of a producer with a transactional id. Raises InvalidTransactionTimeoutError,
        ProducerFencedError, InvalidProducerIdMappingError, ConcurrentTransactionsError, StorageError,
        InvalidRequestError for the id of a shared transaction, and the errors of `last_committed`.
        """
        if is_shared(transactional_id):
            raise InvalidRequestError(f"a transactional id cannot begin with {SHARED_PREFIX!r}")
        request = InitProducer(transactional_id, timeout_ms, producer_id, producer_epoch)
        identity: ProducerIdAndEpoch = await self._shard(transactional_id).request(request)
        return identity

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> int:
        """Add partitions durably to the producer's open transaction, or begin one with them. Returns the time at which
        the transaction began; -1 if it has ended.

        Raises InvalidProducerIdMappingError, ProducerFencedError, InvalidProducerEpochError, TransactionAbortedError,
        InvalidTxnStateError, ConcurrentTransactionsError, StorageError, CoordinatorNotAvailableError (this broker does
        not know a partition yet), and the errors of `last_committed`.
        """
        request = AddPartitions(transactional_id, producer_id, producer_epoch, tuple(partitions))
        for tp in request.partitions:
            if self._partitions.find(tp) is None:  # its marker would count as unnecessary
                raise CoordinatorNotAvailableError(f"{tp} is not in the coordinator's metadata yet: try again")
        shard = self._shard(transactional_id)
        await shard.request(request)
        return shard.ready().summary(transactional_id).started_ms

    async def begin_transaction(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Open a transaction without partitions, or keep the open one. Raises InvalidRequestError for a shared
        transaction, and the errors of `add_partitions`."""
        if is_shared(transactional_id):
            raise InvalidRequestError("a shared transaction begins with its first participant")
        await self._shard(transactional_id).request(AddPartitions(transactional_id, producer_id, producer_epoch, ()))

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool, keeps_epoch: bool = False
    ) -> ProducerIdAndEpoch:
        """End the open transaction. Returns the producer's next identity, when all markers are written. `keeps_epoch`:
        the producer's epoch does not rise. Raises InvalidRequestError for a shared transaction, and the errors of
        `add_partitions`."""
        if is_shared(transactional_id):
            raise InvalidRequestError("a shared transaction can only be ended as a whole")
        request = End(transactional_id, producer_id, producer_epoch, commit, keeps_epoch)
        identity: ProducerIdAndEpoch = await self._shard(transactional_id).request(request)
        return identity

    def stale(self, transactional_id: str, producer_id: int, producer_epoch: int) -> SparklogError:
        """Return the error for a producer whose batch a partition has refused for its old epoch."""
        try:
            coordinator = self._shard(transactional_id).ready()
        except SparklogError as e:
            return e
        return coordinator.stale(transactional_id, ProducerIdAndEpoch(producer_id, producer_epoch))

    # -- shared transactions

    async def draw_fencing_token(self) -> int:
        """Return a fencing token that is larger than all earlier tokens of any broker. Raises StorageError, and the
        errors of `last_committed`.
        """
        return await self._shard(FENCING_TOKENS_ID).draw_fencing_token()

    async def join(
        self, app_id: str, version: int, run_id: str, fencing_token: int, timeout_ms: int, lease_ms: int = 0
    ) -> JoinAnswer:
        """Return the identity of a new participant. Raises InvalidProducerIdMappingError (the fencing token was not
        issued), ProducerFencedError, TransactionAbortedError, ConcurrentTransactionsError, StorageError, and the errors
        of `last_committed`.
        """
        number = number_of(fencing_token)
        request = Join(shared_transactional_id(app_id), version, run_id, number, timeout_ms, lease_ms)
        response: JoinAnswer = await self._shard_of_run(request).request(request)
        return response

    async def end_shared(
        self,
        app_id: str,
        version: int,
        run_id: str,
        fencing_token: int,
        committed_participants: Iterable[int],
        *,
        commit: bool,
        input_text: str = "",
    ) -> bool:
        """End a version of a shared transaction. Returns True if the version is committed.

        `input_text`: the application's own description of the version's data, which `last_committed` returns later.
        Raises the errors of `join`, and InvalidProducerIdMappingError for a producer id that is not a participant's.
        """
        transactional_id = shared_transactional_id(app_id)
        number = number_of(fencing_token)
        request = EndShared(
            transactional_id, version, run_id, number, commit, frozenset(committed_participants), input_text
        )
        return bool(await self._shard_of_run(request).request(request))

    async def renew(self, app_id: str, version: int, run_id: str) -> RenewAnswer:
        """Begin the lease of the transaction again. For an unknown transaction, the answer says so. Raises the errors
        of `last_committed`."""
        request = Renew(shared_transactional_id(app_id), version, run_id)
        response: RenewAnswer = await self._shard(request.transactional_id).request(request)
        return response

    def last_committed(self, app_id: str) -> tuple[int, str]:
        """Return the application's newest committed version, and the description of its data that `end_shared` got as
        `input_text`; (-1, "") if no version is committed, or the application has expired. Raises NotCoordinatorError,
        CoordinatorLoadingError, BrokerShuttingDownError.
        """
        transactional_id = shared_transactional_id(app_id)
        try:
            return self._shard(transactional_id).ready().last_committed(transactional_id)
        except InvalidProducerIdMappingError:  # it has expired meanwhile
            return -1, ""

    def _shard_of_run(self, request: Join | EndShared) -> TransactionShard:
        """Return the shard of a run. Raises InvalidProducerIdMappingError for a fencing token that was not issued: a
        token that is too large would fence every later run.
        """
        shard = self._shard(request.transactional_id)
        shard.ready()  # loaded records may have newer fencing tokens than the metadata store
        if not self._storage.is_issued(request.fencing_token):
            raise InvalidProducerIdMappingError(
                f"fencing token {request.fencing_token} of run {request.run_id!r} was never issued: request one with "
                "INIT_PRODUCER_ID"
            )
        return shard

    # -- operators

    def loaded_shards(self) -> list[Coordinator]:
        """Return the loaded coordinators. Callable on any thread."""
        return [c for shard in self._shards.all if (c := shard.coordinator) is not None]

    def summaries(
        self, states: Iterable[str] = (), running_ms_min: int = 0, after: str = ""
    ) -> Iterator[TransactionSummary]:
        """Yield the transactional ids above `after`, sorted, in one of `states` (empty: in any state), and with a
        transaction open for at least `running_ms_min` (0: also without one). The call itself, not the iteration, raises
        CoordinatorLoadingError, BrokerShuttingDownError.
        """
        coordinators = [shard.ready() for shard in self._shards.led]
        merged = heapq.merge(
            *([(i, c) for i in sorted(c.ids()) if i > after] for c in coordinators), key=operator.itemgetter(0)
        )
        return self._summaries(merged, frozenset(states), running_ms_min)

    def _summaries(
        self, merged: Iterable[tuple[str, Coordinator]], states: frozenset[str], running_ms_min: int
    ) -> Iterator[TransactionSummary]:
        now_ms = self._clock.now_ms()
        for transactional_id, coordinator in merged:
            try:
                summary = coordinator.summary(transactional_id)
            except InvalidProducerIdMappingError:  # it has expired meanwhile
                continue
            running = summary.started_ms >= 0 and now_ms - summary.started_ms >= running_ms_min
            if (not states or summary.state in states) and (not running_ms_min or running):
                yield summary

    def describe(self, transactional_id: str) -> TransactionDetails:
        """Return the details of a transactional id, with the partitions of its open transaction. For an unknown id the
        details contain an error code. Raises the errors of `last_committed`.
        """
        coordinator = self._shard(transactional_id).ready()
        try:
            partitions = coordinator.partitions(transactional_id)
        except InvalidProducerIdMappingError as e:
            return TransactionDetails(e.code, transactional_id, message=str(e))
        return TransactionDetails(
            0,
            transactional_id,
            coordinator.summary(transactional_id),
            [TransactionPartition(producer_id, *tp) for producer_id, tp in partitions],
            coordinator.last_committed(transactional_id)[0],
        )

    async def abort(self, transactional_id: str) -> int:
        """Abort the open transaction of an id, and return the number of its markers. Raises InvalidTxnStateError if no
        transaction is open, InvalidProducerIdMappingError if the id is unknown, ConcurrentTransactionsError, and the
        errors of `last_committed`.
        """
        return int(await self._shard(transactional_id).request(Abort(transactional_id)))

    async def abort_hanging(self, tp: TopicPartition, producer_id: int, owners: Mapping[int, str]) -> int:
        """Abort a transaction that is open in a partition but unknown to all coordinators. Returns 1, the number of
        markers. `owners`: transactional ids by producer id, from the coordinators of all brokers.

        Raises InvalidTxnStateError if the producer is among the owners or has no open transaction,
        UnknownTopicOrPartitionError, NotLeaderError, UnknownServerError (the marker was not written).
        """
        partition = self._partitions.get(*tp)
        owner = owners.get(producer_id)
        if owner is not None:
            raise InvalidTxnStateError(
                f"producer {producer_id} writes to {tp} in the transaction of {owner!r}: abort that transaction"
            )
        producer = next((p for p in partition.log.producers() if p.producer_id == producer_id), None)
        if producer is None or producer.transaction_first_offset < 0:
            raise InvalidTxnStateError(f"producer {producer_id} has no open transaction in {tp}")
        marker = Marker(tp, producer_id, min(producer.producer_epoch + 1, EPOCH_MAX), commit=False)
        if not await self._markers.write(
            (marker,), producer.coordinator_epoch if producer.coordinator_epoch >= 0 else 0
        ):
            raise UnknownServerError(f"the marker could not be written to {tp}; see the broker's log")
        log.warning("aborted the hanging transaction of producer %d in %s", producer_id, tp)
        return 1

    def describe_producers(self, tp: TopicPartition, owners: Mapping[int, str]) -> DescribeProducersResponse:
        """Return the producers of a partition. `owners` is as for `abort_hanging`. Raises
        UnknownTopicOrPartitionError, NotLeaderError."""
        partition_log = self._partitions.get(*tp).log
        producers = [
            ProducerState(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_time_ms,
                p.transaction_first_offset,
                owners.get(p.producer_id),
                p.coordinator_epoch,
            )
            for p in sorted(partition_log.producers())
        ]
        return DescribeProducersResponse(producers, partition_log.last_stable_offset)

    def owners(self, tp: TopicPartition) -> dict[int, str]:
        """Return, by producer id, the transactional ids that this broker coordinates and whose open transactions
        include the partition. Raises CoordinatorLoadingError, BrokerShuttingDownError.
        """
        return {
            producer_id: transactional_id
            for shard in self._shards.led
            for producer_id, transactional_id, partitions in shard.ready().producers()
            if tp in partitions
        }

    def _shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise InvalidProducerIdMappingError("a transactional id cannot be empty")
        number = self.topic.partition_for(transactional_id)
        if not self._shards.leads(number):
            raise NotCoordinatorError(
                f"{transactional_id!r} has its coordinator on another broker: look the coordinator up again"
            )
        if not self._shards.all:
            raise CoordinatorLoadingError("the broker is starting: try again")
        return self._shards.all[number % len(self._shards.all)]
