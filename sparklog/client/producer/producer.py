"""The producer: records and tables to topics, in the background, in order, acknowledged through futures."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from time import time_ns
from types import TracebackType
from typing import Any

from sparklog.client.group.group_offsets import Offsets
from sparklog.client.net.arguments import text
from sparklog.client.net.cluster import cluster
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.accumulator import Accumulator, PartitionQueue
from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.futures import BatchFuture, BatchMetadata, Delivery, RecordFuture
from sparklog.client.producer.open_batch import OpenBatch
from sparklog.client.producer.parallel_encoding import Encoding, parallel_encoder
from sparklog.client.producer.pieces import pieces_of
from sparklog.client.producer.producer_core import ProducerCore
from sparklog.client.producer.producer_settings import producer_settings
from sparklog.client.producer.producer_topic import ProducerTopic, producer_topic
from sparklog.client.producer.record_sizes import ENVELOPE_FIXED_BYTES_MIN, ROW_OVERHEAD_BYTES, too_large
from sparklog.client.producer.rows import Headers, Rows, rows_of
from sparklog.client.producer.sender import Sender, SenderConfig
from sparklog.client.producer.sequences import WriteSession
from sparklog.client.producer.tabular import holds_objects, reusable
from sparklog.client.producer.transaction_requests import Transactions
from sparklog.client.producer.transaction_state import State
from sparklog.client.transactions.shared_transaction import Participant
from sparklog.errors import (
    InvalidPartitionsError,
    InvalidTxnStateError,
    SchemaMismatchError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.security.client_security import Security, with_parameters
from sparklog.serialization import AnySerializer, serializing
from sparklog.types import GroupMetadata, ProducerIdAndEpoch, TopicPartition

__all__ = ["BatchFuture", "BatchMetadata", "Producer", "RecordFuture"]

_ACKS = {"0": 0, "1": 1, "all": -1}


class Producer:
    """Sends records to topics; thread-safe.

    `bootstrap_servers`: "host:port,…" (default: SPARKLOG_BOOTSTRAP_SERVERS, else 127.0.0.1:9292). Settings are the
    producer settings of `sparklog.settings` with underscores: acks, linger_ms, batch_size_bytes, compression, …
    `security`: settings by their dotted names, as {"security.protocol": "SASL_SSL", …} (the client settings of
    `sparklog.settings`), or the path of a file of them; or each as a parameter: security_protocol, sasl_mechanism, …

    Records of a partition are stored once and in the order of the calls that sent them, also across retries and
    restarts of the broker (`enable_idempotence`, on unless acks are not all). With a `transactional_id` what is sent
    belongs to transactions. Nothing fails silently: a failure is raised by the future, or by `flush` or `close` if
    nobody looked at the future.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        key_serializer: AnySerializer | None = None,
        value_serializer: AnySerializer | None = None,
        security: Security = None,
        **settings: Any,
    ) -> None:
        """Does not connect yet. The serializers (`sparklog.serialization`) are for `send`: keys and values need not be
        bytes then. Raises InvalidConfigError."""
        self._key_serializer = serializing(key_serializer, "key_serializer")
        self._value_serializer = serializing(value_serializer, "value_serializer")
        security, settings = with_parameters(security, settings)
        config: dict[str, Any] = producer_settings(settings)
        self.settings = config
        self._cluster = cluster(bootstrap_servers, security, config["client.id"])
        self._topics: dict[str, ProducerTopic] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._batch_size_bytes = config["batch.size.bytes"]
        self._policy = RetryPolicy(
            config["max.block.ms"],
            config["request.timeout.ms"],
            config["retry.backoff.ms"],
            config["retry.backoff.max.ms"],
            "max.block.ms",
        )
        self._encoder = BatchEncoder(
            config["compression"],
            checksum=not config["enable.idempotence"],
            memory_bytes=config["buffer.memory"],
        )
        self._parallel = parallel_encoder(self._encoder)
        self._accumulator = Accumulator(
            buffer_bytes=config["buffer.memory"],
            linger_s=config["linger.ms"] / 1000,
            max_block_s=config["max.block.ms"] / 1000,
            delivery_timeout_s=config["delivery.timeout.ms"] / 1000,
        )
        sender_config = SenderConfig(
            acks=_ACKS[config["acks"]],
            request_timeout_ms=config["request.timeout.ms"],
            max_in_flight=config["max.in.flight.requests.per.connection"],
            backoff_s=config["retry.backoff.ms"] / 1000,
            backoff_max_s=config["retry.backoff.max.ms"] / 1000,
        )
        self._idempotent = config["enable.idempotence"]
        if self._idempotent:
            self._accumulator.session = WriteSession()
        topics = self._topics  # not self: the sender's thread must not keep the producer
        self._sender = Sender(
            self._cluster, self._accumulator, self._encoder, sender_config, lambda name: topics.pop(name, None)
        )
        self._accumulator.wake_sender = self._sender.wake
        core = self._core = ProducerCore(self._accumulator, self._sender, self._parallel)
        self._transactions: Transactions | None = None
        if config["transactional.id"]:
            self._transactions = core.transactions = Transactions(
                self._cluster,
                self._accumulator,
                self._policy,
                transactional_id=config["transactional.id"],
                timeout_ms=config["transaction.timeout.ms"],
                flush=core.flush,
                wait_for_outcomes=core.wait_for_outcomes,
            )

    # -- sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordFuture:
        """Sends one record to an envelope topic and returns at once (unless `buffer.memory` is full). `value` and
        `key` are bytes (or None), or what the producer's serializers take.

        Partition: the given one, else by the key's hash (Kafka's murmur2), else sticky. `timestamp_ms` default: now.
        Raises TypeError, SerializationError, SchemaMismatchError (a typed topic), UnknownTopicOrPartitionError,
        InvalidPartitionsError, MessageTooLargeError, BufferExhaustedError, ClosedError.
        """
        try:
            state = self._topics[topic]
        except (KeyError, TypeError):  # not known yet; no topic's name
            state = self._topic(topic)
        if (
            type(value) is bytes
            and key is None
            and partition is None
            and headers is None
            and timestamp_ms is None
            and state.takes_values_alone
        ):
            size, rest = len(value) + ROW_OVERHEAD_BYTES, None
        else:
            try:
                value, size, partition, rest = state.checked(value, key, headers, timestamp_ms, partition)
            except InvalidPartitionsError:  # the partition may have been added since the metadata were read
                state = self._newer(state)
                value, size, partition, rest = state.checked(value, key, headers, timestamp_ms, partition)
        accumulator = self._accumulator
        lock = accumulator.lock
        try:  # not `with`, which costs more than acquiring and releasing
            lock.acquire()
            if accumulator.refusal is not None:
                accumulator.check_open()
            batch = state.queues[state.sticky.current if partition is None else partition].open
            if batch is None or batch.room_bytes < size:
                batch = self._locked_batch(state, partition, size)
            batch.room_bytes -= size
            values = batch.values
            future = RecordFuture()
            future.delivery = batch.delivery
            future.index = len(values)
            now_ns = time_ns()
            if rest is not None:
                batch.set_rest(future.index, rest)
            batch.timestamps_ns.append(now_ns)
            values.append(value)  # last: before it nothing of the row counts, should a signal interrupt this
            lock.release()
        except BaseException:
            with lock:
                for queue in state.queues:
                    accumulator.locked_drop_unfinished(queue)
            accumulator.release_if_held()
            self._sender.wake()
            raise
        return future

    def _locked_batch(self, state: ProducerTopic, partition: int | None, size_bytes: int) -> OpenBatch:
        """The batch that takes the next record, with room for it: the open one, or a new one if that is full."""
        if size_bytes > state.max_bytes - ENVELOPE_FIXED_BYTES_MIN:
            raise too_large(state.info.name, size_bytes, state.max_bytes)
        accumulator = self._accumulator
        accumulator.locked_reserve(size_bytes)  # first: who waits for memory lets go of the lock
        queue = state.queues[state.sticky.current if partition is None else partition]
        while (batch := queue.open) is not None and batch.size_bytes + size_bytes > state.target_bytes:
            accumulator.locked_close_open(queue)
            if partition is None:
                state.sticky.advance()
                queue = state.queues[state.sticky.current]
        if batch is None:
            if not self._cluster.is_current(state.info):  # the next send looks at the topic again
                self._topics.pop(state.info.name, None)
            batch = accumulator.locked_open(queue)
        accumulator.locked_give_room(batch, size_bytes, state.target_bytes)
        return batch

    def send_batch(self, topic: str, data: Any, *, partition: int | None = None) -> BatchFuture:
        """Sends a table: anything with `__arrow_c_stream__` or `__arrow_c_array__` (PyArrow, polars, …), pandas, a dict
        of columns or a list of dicts. Columns are matched to the topic's by name; envelope topics take `value` and
        optionally `key`, `headers`, `timestamp` and `partition`. An index of pandas that has a name is a column. NaN is
        null in pandas alone; Python floats are rounded to the topic's float.

        Tables are fitted to the topic's newest schema. Rows go to `partition`, else by their key columns, else sticky;
        each partition keeps their order. They are stored in batches of about `batch.size.bytes`, encoded on the calling
        thread, or with compression on threads beside it (of `data` that is no copy, before this returns). The future's
        result is one BatchMetadata per stored batch, in partition order; no rows, no batches. Raises
        SchemaMismatchError (nothing was sent), TypeError (data that are not tabular), MessageTooLargeError (nothing was
        sent), BufferExhaustedError (the message says how many rows had been taken), and as `send`.
        """
        self._accumulator.check_open()
        state = self._topic(topic)
        data = reusable(data)
        try:
            rows = rows_of(data, state.info, partition)
        except (SchemaMismatchError, InvalidPartitionsError):
            # the topic may have got a column, a wider one, or a partition since its metadata were read
            known = state.info
            state = self._newer(state)
            if (state.info.schema_id, state.info.partitions) == (known.schema_id, known.partitions):
                raise
            rows = rows_of(data, state.info, partition)
        deliveries: list[Delivery] = []
        if rows.table.num_rows:
            self._enqueue(rows, state, deliveries, wait=not holds_objects(data))
        return BatchFuture(deliveries)

    def _enqueue(self, rows: Rows, state: ProducerTopic, deliveries: list[Delivery], *, wait: bool) -> None:
        """Hands over what `rows` hold. With `wait` their memory is not looked at any more when this returns."""
        parallel = self._parallel
        if wait and rows.table.nbytes <= self._batch_size_bytes:  # one batch: there is nothing to do beside it
            parallel = None
        unfinished: deque[Encoding] = deque()
        taken = 0
        try:
            for chosen, piece in pieces_of(rows, state.info, state.sticky, self._batch_size_bytes):
                queue = state.queues[chosen]
                encoding = None if parallel is None else parallel.encoding_of(piece, state.info)
                if encoding is not None:
                    deliveries.append(self._accumulator.enqueue_encoding(queue, encoding))
                    taken += piece.num_rows
                    while unfinished and unfinished[0].done:
                        unfinished.popleft()
                    if wait:
                        unfinished.append(encoding)
                    continue
                for encoded in self._encoder.encode_within(piece, state.info):
                    deliveries.append(self._accumulator.enqueue(queue, encoded))
                    taken += encoded.record_count
        except SparklogError as e:
            if taken:
                total = rows.table.num_rows
                raise type(e)(f"{e} ({taken} of the {total} rows had been taken and may be stored)") from e
            raise
        finally:
            for encoding in unfinished:
                encoding.wait()

    def flush(self, timeout_s: float | None = None) -> None:
        """Sends what is collected and waits for everything accepted so far.

        Raises the first failure since the last flush that nobody has looked at, and RequestTimedOutError after
        `timeout_s`.
        """
        self._core.check_open()
        self._core.flush(timeout_s)

    # -- transactions

    def init_transactions(self) -> None:
        """Once, before the first transaction: fences whoever used the `transactional_id` before and aborts what it
        left.

        Raises InvalidTxnStateError, InvalidTransactionTimeoutError, and after `max.block.ms` the last error.
        """
        self._transactional().init()

    def begin_transaction(self) -> None:
        """What is sent from now on is visible to read_committed readers all together, once it is committed, or never.

        Raises InvalidTxnStateError, and ProducerFencedError for good once another producer has the id.
        """
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Commits a group's offsets (the next ones to read: numbers, or OffsetAndMetadata) if the transaction is
        committed. `group`: what `Consumer.group_metadata()` gives, which fences members that have lost their
        partitions, or the group's name. Raises InvalidRequestError for what is no offset, and the group's errors;
        after those only `abort_transaction` is possible."""
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Flushes, then commits: all or nothing.

        Raises the first failure of the transaction, after which it has to be aborted. After a retriable error
        (`max.block.ms` is over) nobody knows whether it is committed: call it again.
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Drops what is not sent and aborts the rest."""
        self._transactional().abort()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Producer]:
        """`with producer.transaction():` begins one, commits it at the end, and aborts it if an exception leaves the
        block, or before that by `abort_transaction`. `init_transactions` is called when it is needed."""
        transactions = self._transactional()
        if transactions.state.state is State.UNINITIALISED:
            transactions.init()
        transactions.begin()
        try:
            yield self
            # ended by hand: nothing is left to do; but who closes the producer may not take that for a commit
            if transactions.state.state is not State.READY or self._accumulator.closing:
                transactions.commit()
        except BaseException as e:
            if transactions.is_open:
                try:
                    transactions.abort()
                except SparklogError as failed:
                    e.add_note(f"aborting the transaction failed, too: {failed}")
            raise

    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise InvalidTxnStateError(
                "this producer has no transactional_id: Producer(transactional_id=…) has transactions"
            )
        self._core.check_open()
        return self._transactions

    @contextlib.contextmanager
    def participation(self, participant: Participant) -> Iterator[Producer]:
        """What is sent within belongs to a shared transaction, under the identity that joining it gave; at the end all
        of it is stored, else the first failure is raised. Leaving by an exception drops what is not under way.

        Needs a producer with idempotence that has nothing outstanding; the same producer can take part again and again,
        each time with a new identity. Raises InvalidTxnStateError.
        """
        accumulator = self._accumulator
        if not self._idempotent or self._transactions is not None:
            raise InvalidTxnStateError(
                "taking part in a shared transaction needs acks=all, enable.idempotence=true and no transactional_id"
            )
        accumulator.check_open()
        if accumulator.outstanding:
            raise InvalidTxnStateError("records sent before are not acknowledged yet: flush the producer first")
        identity = ProducerIdAndEpoch(participant.producer_id, participant.producer_epoch)
        session = WriteSession(identity, participant.transactional_id)
        accumulator.begin_session(session)
        try:
            yield self
            self.flush()
            if session.error is not None:
                raise session.error
        except BaseException:
            accumulator.fail_session(TransactionAbortedError("the producer has given up this transaction"))
            self._core.wait_for_outcomes()
            raise
        finally:
            # sequences of the idempotent identity are forgotten by now: a new one is asked for when it is needed
            accumulator.begin_session(WriteSession())

    def close(self, timeout_s: float | None = None) -> None:
        """Flushes and ends the producer, within `timeout_s`; again is fine. An open transaction is aborted. Raises what
        `flush` raises (the producer is closed then, too, and what is left fails)."""
        self._core.close(timeout_s)

    def __del__(self, warn: Any = warnings.warn, is_finalizing: Any = sys.is_finalizing) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.is_open and not is_finalizing():
            core.abandon()  # first: a warning may be an error
            warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<Producer {self._cluster.bootstrap_servers}{'' if self._core.is_open else ' closed'}>"

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SparklogError as e:
            if exc is None:
                raise
            exc.add_note(f"closing the producer failed, too: {e}")

    # -- inside

    def _newer(self, state: ProducerTopic) -> ProducerTopic:
        """The topic's state as the broker tells it now."""
        self._learn(state.info.name, refresh=True)
        return self._topic(state.info.name)

    def _learn(self, name: str, *, refresh: bool = False) -> TopicInfo:
        """Ask the cluster about a topic; a broker that is away is waited for up to `max.block.ms`."""

        def ask(timeout_ms: int) -> TopicInfo:
            self._core.check_open()  # it may have been closed meanwhile
            return self._cluster.topic(name, refresh=refresh, to_write=not refresh, timeout_ms=timeout_ms)

        return until_answered(ask, Retries(self._policy))

    def _topic(self, name: str) -> ProducerTopic:
        """The topic's state, looked up again when its metadata are old or it was re-created."""
        text("topic", name)
        info = self._learn(name)
        state = self._topics.get(name)
        if state is None or state.info is not info:
            with self._accumulator.lock:
                queues = []
                for tp in (TopicPartition(name, p) for p in range(info.partitions)):
                    queue = self._queues.setdefault(tp, PartitionQueue(tp, info))
                    queue.info = info
                    queues.append(queue)
                state = self._topics[name] = producer_topic(
                    info, self._batch_size_bytes, queues, self._key_serializer, self._value_serializer
                )
        return state
