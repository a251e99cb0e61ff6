"""The clients of programs in a simulation: producers, consumers, and a clock, with the names of sparklog's clients.

They use the product's messages, and its rules for groups and for reading. Topics have keys and values of bytes, without
columns. A producer has one request per partition in flight.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparklog.client.group.membership import EPOCH_JOIN, MemberConfig, Membership
from sparklog.client.net import arguments as arg
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.errors import (
    FencedMemberEpochError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTxnStateError,
    RequestTimedOutError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.format.batch import assign_producer
from sparklog.protocol import group_messages as g
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.topic_messages import (
    CreateTopicRequest,
    CreateTopicResponse,
    MetadataRequest,
    MetadataResponse,
)
from sparklog.testing._sim_cluster_client import ClusterClient
from sparklog.testing._sim_programs import Program
from sparklog.testing._sim_reader import SimReader
from sparklog.testing._sim_records import SimFuture, all_done, encode
from sparklog.types import ProducerIdAndEpoch, Record, TopicPartition

REQUEST_S = 3.0
BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0
COMMIT_S = 30.0
CREATED_S = 5.0
SESSION_TIMEOUT_MS = 15_000
TRANSACTION_TIMEOUT_MS = 20_000
HEARTBEAT_POLL_S = 0.2
EPOCH_MS = 1_700_000_000_000


def _group(argument: str, value: object) -> str:
    return arg.text(argument, value) or arg.refuse(argument, value, "the name of a group is needed; None: no group")


class SimProducer:
    """A producer of a program."""

    def __init__(
        self,
        clients: SimClients,
        *,
        transactional_id: str | None,
        enable_idempotence: bool,
        delivery_timeout_ms: int,
        retries: int | None,
    ) -> None:
        self._clients = clients
        self._id = transactional_id
        self._is_idempotent = enable_idempotence or transactional_id is not None
        self._delivery_s = delivery_timeout_ms / 1000
        self._attempts_max = None if retries is None else retries + 1
        self._identity: ProducerIdAndEpoch | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        self._identifying = asyncio.Lock()
        self._pending: list[asyncio.Task[int]] = []
        self._partitions: dict[str, int] = {}
        self._turns = itertools.count()
        self._is_open = False

    @arg.takes(topic=arg.name)
    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, partition: int | None = None
    ) -> SimFuture:
        """Send one record, without waiting for the acknowledgement. Raises TypeError for a key or value that is no
        bytes, and InvalidPartitionsError."""
        for name, content in {"value": value, "key": key}.items():
            if content is not None and not isinstance(content, bytes):
                raise TypeError(f"{name} = {content!r}: bytes are needed: topics of a simulation have no columns")
        if self._id is not None:
            self._check_open()
        program = self._clients.program
        count = self._partitions.get(topic) or program.wait(self._clients.count_partitions(topic))
        if not count:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist: name it in sim.run(…, topics={{…}})")
        self._partitions[topic] = count
        if partition is None:
            partition = next(self._turns) % count if key is None else partition_for_key(key, count)
        elif type(partition) is not int or not 0 <= partition < count:
            raise InvalidPartitionsError(f"partition = {partition!r}: {topic} has the partitions 0 to {count - 1}")
        tp = TopicPartition(topic, partition)
        task = program.background(self._deliver(tp, key, value))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._pending.append(task)
        return SimFuture(program, task, tp)

    def flush(self) -> None:
        """Wait until all records have an outcome. Raises the first error of a delivery."""
        pending, self._pending = self._pending, []
        self._clients.program.wait(all_done(pending))

    def close(self) -> None:
        """Do as `flush`."""
        self.flush()

    def __enter__(self) -> SimProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- transactions

    def init_transactions(self) -> None:
        """Get the producer's identity, and fence earlier producers with its transactional id. Raises
        InvalidTxnStateError."""
        self._check_transactional()
        self._clients.program.wait(self._identify())

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises InvalidTxnStateError."""
        self._check_transactional()
        if self._is_open:
            raise InvalidTxnStateError("a transaction is open: commit it or abort it first")
        self._is_open = True

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], consumer: SimConsumer) -> None:
        """Commit a group's offsets with the transaction. Raises InvalidTxnStateError."""
        self._check_open()
        self._clients.program.wait(self._send_offsets(offsets, consumer))

    def commit_transaction(self) -> None:
        """Commit the open transaction. Raises InvalidTxnStateError, and the error of a delivery."""
        self._check_open()
        self.flush()
        self._clients.program.wait(self._end(commit=True))

    def abort_transaction(self) -> None:
        """Abort the open transaction. Raises InvalidTxnStateError."""
        self._check_open()
        self._pending = []
        self._clients.program.wait(self._end(commit=False))

    def _check_transactional(self) -> None:
        """Raise InvalidTxnStateError if the producer has no transactions."""
        if not self._id:
            raise InvalidTxnStateError(
                "this producer has no transactions: create it with clients.producer(transactional_id=…)"
            )

    def _check_open(self) -> None:
        """Raise InvalidTxnStateError if no transaction is open."""
        self._check_transactional()
        if not self._is_open:
            raise InvalidTxnStateError("no transaction is open: call begin_transaction")

    async def _identify(self) -> ProducerIdAndEpoch:
        async with self._identifying:
            if self._identity is None:
                request = (
                    t.InitProducerIdRequest(self._id, TRANSACTION_TIMEOUT_MS) if self._id else t.InitProducerIdRequest()
                )
                answer = await self._clients.client.ask_until(Api.INIT_PRODUCER_ID, request, t.InitProducerIdResponse)
                self._identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                self._sequences.clear()
            return self._identity

    async def _send_offsets(self, offsets: Mapping[TopicPartition, int], consumer: SimConsumer) -> None:
        identity = await self._identify()
        member = consumer.membership
        committed = [g.CommittedOffset(*tp, offset) for tp, offset in offsets.items()]
        request = g.TxnOffsetCommitRequest(
            self._id or "", *identity, member.config.group_id, committed, member.member_id, member.epoch
        )
        answer = await self._clients.client.ask_until(Api.TXN_OFFSET_COMMIT, request, g.TxnOffsetCommitResponse)
        _raise_first(answer.results)

    async def _end(self, *, commit: bool) -> None:
        identity = await self._identify()
        self._is_open = False
        request = t.EndTxnRequest(self._id or "", *identity, commit)
        answer = await self._clients.client.ask_until(Api.END_TXN, request, t.EndTxnResponse)
        self._identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    # -- deliveries

    async def _deliver(self, tp: TopicPartition, key: bytes | None, value: bytes | None) -> int:
        """Return the offset of a record. Raises the error of the delivery."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            payload = encode(key, value, self._clients.now_ms())
            if self._is_idempotent:
                identity = await self._identify()
                sequence = self._sequences.get(tp, 0)
                assign_producer(
                    memoryview(payload),
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    base_sequence=sequence,
                    transactional=self._id is not None,
                )
            try:
                offset = await self._store(tp, bytes(payload))
            except SparklogError:
                if self._id is None:
                    self._identity = None  # the outcome is unknown: later records must not follow this sequence
                raise
            if self._is_idempotent:
                self._sequences[tp] = sequence + 1
            return offset

    async def _store(self, tp: TopicPartition, payload: bytes) -> int:
        """Send a batch until it is stored, or its time is over."""
        client, loop = self._clients.client, self._clients.program.loop
        request = ProduceRequest(-1, int(REQUEST_S * 1000), [ProducePartition(*tp, len(payload))], self._id)
        end_s, backoff_s = loop.time() + self._delivery_s, BACKOFF_S
        for attempt in itertools.count(1):
            try:
                answer, _ = await client.ask(Api.PRODUCE, request, ProduceResponse, payload, timeout_s=REQUEST_S)
                _raise_first(answer.results)
            except SparklogError as e:
                if not e.retriable or attempt == self._attempts_max:
                    raise
                if loop.time() + backoff_s > end_s:
                    raise RequestTimedOutError(f"{tp}: not acknowledged within {self._delivery_s:g} s: {e}") from e
            else:
                offset = int(answer.results[0].base_offset)
                loop.simulation.note(self._clients.program.host, "stored", tp, offset)
                return offset
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        raise AssertionError


class SimConsumer:
    """A consumer of a program: a member of a group, or without a group a reader of all partitions."""

    def __init__(
        self,
        clients: SimClients,
        topics: Sequence[str],
        group_id: str | None,
        session_timeout_ms: int,
        on_revoked: Callable[[list[TopicPartition]], object] | None,
    ) -> None:
        self._clients = clients
        self._topics = topics
        self._on_revoked = on_revoked
        self._reader: Any = SimReader(clients.client, committed=True)
        self.membership = Membership(MemberConfig(group_id or "", session_timeout_ms=session_timeout_ms))
        self.membership.member_id = f"{clients.program.host}-{clients.random.getrandbits(64):x}"
        self.membership.subscribe(topics)
        self._is_member = group_id is not None
        self._beating = clients.program.background(self._beat()) if self._is_member else None
        self._sequence = 0
        if not self._is_member:
            counts = {topic: clients.program.wait(clients.count_partitions(topic)) for topic in topics}
            missing = [topic for topic, count in counts.items() if not count]
            if missing:
                raise UnknownTopicOrPartitionError(f"topic {missing[0]!r} does not exist")
            self._reader.assign({TopicPartition(name, n): 0 for name, count in counts.items() for n in range(count)})

    @arg.takes(timeout_ms=arg.wait)
    def poll(self, timeout_ms: float = 1000) -> list[Record]:
        """Return the next records; an empty list if none has come within the time. Raises the member's fatal error."""
        program = self._clients.program
        end_s = program.loop.time() + timeout_ms / 1000
        while True:
            self._take_changes()
            records = program.wait(self._fetch(end_s))
            if records or program.loop.time() >= end_s:
                return records

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer reads."""
        return sorted(self._reader.positions)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns. Raises KeyError for other partitions."""
        return int(self._reader.positions[tp])

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit offsets; None: the positions after the last `poll`. Raises UnknownMemberIdError,
        FencedMemberEpochError or another error if the group has given the partitions to other members, and
        InvalidRequestError without a group."""
        if not self._is_member:
            raise InvalidRequestError(
                "commit: the consumer has no group: create it with clients.consumer(…, group_id=…)"
            )
        chosen = dict(self._reader.positions if offsets is None else offsets)
        if chosen:
            self._clients.program.wait(self._commit(chosen))

    def close(self) -> None:
        """Leave the group."""
        if self._beating is not None:
            self._beating.cancel()
            self._clients.program.wait(self._leave())
        self._reader.positions = {}

    def __enter__(self) -> SimConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the group

    def _take_changes(self) -> None:
        membership, program = self.membership, self._clients.program
        if self._beating is not None and self._beating.done():
            self._beating.result()
        if not membership.changed:
            return
        lost, revoked, added = membership.changes()
        if revoked and self._on_revoked is not None:
            self._on_revoked(sorted(revoked))
        for tp in lost | revoked:
            self._reader.positions.pop(tp, None)
        if revoked:
            membership.let_go(revoked)
        if added:
            try:
                self._reader.positions |= program.wait(self._committed(added))
            except SparklogError as e:
                membership.not_taken(added)
                if not _continues(e):
                    raise

    async def _beat(self) -> None:
        client, membership = self._clients.client, self.membership
        while True:
            pause_s = HEARTBEAT_POLL_S
            try:
                answer, _ = await client.ask(
                    Api.GROUP_HEARTBEAT, membership.request(), g.GroupHeartbeatResponse, timeout_s=REQUEST_S
                )
                membership.answered(answer)
                pause_s = answer.heartbeat_interval_ms / 1000
            except SparklogError as e:
                if not membership.failed(e):
                    raise
            due_s = client.loop.time() + pause_s
            await asyncio.sleep(HEARTBEAT_POLL_S)
            while client.loop.time() < due_s and not membership.has_news:
                await asyncio.sleep(HEARTBEAT_POLL_S)

    async def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        numbers: dict[str, list[int]] = {}
        for tp in sorted(partitions):
            numbers.setdefault(tp.topic, []).append(tp.partition)
        member = self.membership
        request = g.OffsetFetchRequest(
            member.config.group_id,
            [g.TopicPartitions(*item) for item in numbers.items()],
            require_stable=True,
            member_id=member.member_id,
            member_epoch=member.epoch,
        )
        answer, _ = await self._clients.client.ask(
            Api.OFFSET_FETCH, request, g.OffsetFetchResponse, timeout_s=REQUEST_S
        )
        _raise_first(answer.offsets)
        return {TopicPartition(o.topic, o.partition): max(o.offset, 0) for o in answer.offsets}

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        client, member = self._clients.client, self.membership
        committed = [g.CommittedOffset(*tp, offset) for tp, offset in sorted(offsets.items())]
        end_s = client.loop.time() + COMMIT_S
        while True:
            self._sequence += 1
            request = g.OffsetCommitRequest(
                member.config.group_id, committed, member.member_id, member.epoch, self._sequence
            )
            try:
                answer, _ = await client.ask(Api.OFFSET_COMMIT, request, g.OffsetCommitResponse, timeout_s=REQUEST_S)
                _raise_first(answer.results)
            except SparklogError as e:
                # an old epoch passes with the next heartbeat, as for the real consumer
                is_old = isinstance(e, StaleMemberEpochError) and offsets.keys() <= self._reader.positions.keys()
                if not (e.retriable or is_old) or client.loop.time() > end_s:
                    raise
            else:
                return
            await asyncio.sleep(HEARTBEAT_POLL_S)

    async def _leave(self) -> None:
        if self.membership.epoch != EPOCH_JOIN:
            request = self.membership.leave_request()
            await self._clients.client.ask_until(Api.GROUP_HEARTBEAT, request, g.GroupHeartbeatResponse, deadline_s=5.0)

    async def _fetch(self, end_s: float) -> list[Record]:
        loop = self._clients.program.loop
        remaining_s = end_s - loop.time()
        if not self._reader.positions:
            await asyncio.sleep(max(0.0, min(HEARTBEAT_POLL_S, remaining_s)))
            return []
        try:
            rows = await self._reader.poll(wait_ms=max(0, min(500, round(remaining_s * 1000))))
        except SparklogError as e:
            if not _continues(e):
                raise
            await asyncio.sleep(HEARTBEAT_POLL_S)
            return []
        now_ms = self._clients.now_ms()
        loop.simulation.note(self._clients.program.host, "polled", [(tp, len(polled)) for tp, polled in rows.items()])
        return [
            Record(tp.topic, tp.partition, row.offset, now_ms, row.key, row.value, [])
            for tp, of_partition in rows.items()
            if tp in self._reader.positions
            for row in of_partition
        ]


class SimClients:
    """The clients, the clock and the random numbers of a program in a simulation."""

    def __init__(self, program: Program, client: ClusterClient) -> None:
        """Connect a program; `Sim.run` passes the object to it.

        Args:
            program: The program's life.
            client: Its connections to the brokers.
        """
        self.program = program
        self.client: Any = client
        self.random = program.random
        """Random numbers of this life, which the seed determines."""

    @arg.takes(
        transactional_id=arg.optional(arg.text),
        enable_idempotence=arg.flag,
        delivery_timeout_ms=arg.whole(1),
        retries=arg.optional(arg.whole()),
    )
    def producer(
        self,
        *,
        transactional_id: str | None = None,
        enable_idempotence: bool = True,
        delivery_timeout_ms: int = 120_000,
        retries: int | None = None,
    ) -> SimProducer:
        """Return a producer.

        Args:
            transactional_id: The name of its transactions. None: it has none.
            enable_idempotence: False for a producer whose repeated requests store records twice.
            delivery_timeout_ms: The longest time of a record until its acknowledgement.
            retries: Number of repetitions of a request. None: as many as fit into the time.

        Returns:
            The producer.

        Raises:
            InvalidRequestError: An argument is wrong.
        """
        return SimProducer(
            self,
            transactional_id=transactional_id,
            enable_idempotence=enable_idempotence,
            delivery_timeout_ms=delivery_timeout_ms,
            retries=retries,
        )

    @arg.takes(
        topics=arg.listed(arg.name),
        group_id=arg.optional(_group),
        session_timeout_ms=arg.whole(1),
        on_revoked=arg.optional(arg.function),
    )
    def consumer(
        self,
        *topics: str,
        group_id: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        on_revoked: Callable[[list[TopicPartition]], object] | None = None,
    ) -> SimConsumer:
        """Return a consumer that begins at the group's offsets, or at the first records.

        Args:
            *topics: Names of the topics.
            group_id: The consumer's group. None: it reads all partitions, and commits nothing.
            session_timeout_ms: Time after which the group gives up a member that is silent.
            on_revoked: Called in `poll` with the partitions that the group takes back, before they are released. None:
                nothing is called.

        Returns:
            The consumer.

        Raises:
            ValueError: No topic is named.
            InvalidRequestError: An argument is wrong.
            UnknownTopicOrPartitionError: A topic does not exist, and the consumer has no group.
        """
        if not topics:
            raise ValueError("topics: name at least one topic, as in clients.consumer('orders', group_id='kitchen')")
        return SimConsumer(self, topics, group_id, session_timeout_ms, on_revoked)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass.

        Args:
            seconds: The time.

        Raises:
            ValueError: The time is negative, or no number.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds = {seconds!r}: a number from 0 is needed")
        self.program.wait(asyncio.sleep(seconds))

    def now_ms(self) -> int:
        """Return the virtual time in ms since 1970."""
        return EPOCH_MS + round(self.program.loop.time() * 1000)

    async def count_partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions; 0 if no broker has heard of the topic within CREATED_S."""
        end_s = self.program.loop.time() + CREATED_S
        while True:
            answer = await self.client.ask_until(Api.METADATA, MetadataRequest([topic]), MetadataResponse)
            count = sum(len(one.partitions) for one in answer.topics if one.name == topic)
            if count or self.program.loop.time() >= end_s:
                return count
            await asyncio.sleep(BACKOFF_S_MAX)


async def create_topic(client: Any, name: str, partitions: int, replicas: int) -> None:
    """Create an envelope topic whose acknowledged records survive the loss of a broker."""
    configs: dict[str, str | int | float | bool | None] = {"min.insync.replicas": 2} if replicas > 2 else {}
    request = CreateTopicRequest(name, partitions, configs=configs, replication_factor=replicas)
    await client.ask_until(Api.CREATE_TOPIC, request, CreateTopicResponse)


def _raise_first(results: Iterable[Any]) -> None:
    """Raise the first error of a response's results."""
    for result in results:
        if result.error_code:
            raise error_from_code(result.error_code, result.message)


def _continues(error: SparklogError) -> bool:
    """True if a consumer tries again after the error."""
    return error.retriable or isinstance(error, StaleMemberEpochError | UnknownMemberIdError | FencedMemberEpochError)
