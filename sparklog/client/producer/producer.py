"""The producer: sends records and tables to topics in the background, in order, acknowledged through futures."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from time import time_ns
from types import TracebackType
from typing import Any

from sparklog.client.group.group_offsets import Offsets
from sparklog.client.net import arguments as arg
from sparklog.client.net.answers import identity_of
from sparklog.client.net.arguments import text
from sparklog.client.net.cluster import cluster
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.accumulator import Accumulator, PartitionQueue
from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.futures import BatchFuture, BatchMetadata, RecordFuture
from sparklog.client.producer.open_batch import OpenBatch
from sparklog.client.producer.parallel_encoding import parallel_encoder
from sparklog.client.producer.pieces import TableQueue
from sparklog.client.producer.producer_core import ProducerCore
from sparklog.client.producer.producer_settings import producer_settings
from sparklog.client.producer.producer_topic import ProducerTopic
from sparklog.client.producer.record_sizes import ENVELOPE_FIXED_BYTES_MIN, ROW_OVERHEAD_BYTES, too_large
from sparklog.client.producer.rows import Headers, rows_of
from sparklog.client.producer.sender import Sender, SenderConfig
from sparklog.client.producer.sequences import WriteSession
from sparklog.client.producer.transaction_requests import Transactions
from sparklog.client.producer.transaction_state import State
from sparklog.client.producer.typed_rows import producer_topic
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
from sparklog.types import GroupMetadata, TopicPartition

__all__ = ["BatchFuture", "BatchMetadata", "Producer", "RecordFuture"]

_ACKS = {"0": 0, "1": 1, "all": -1}


class Producer:
    """A client that sends records to topics; thread-safe.

    Records of a partition are stored once and in the order of the calls that sent them, also across retries and
    restarts of the broker. The setting `enable_idempotence` ensures this; it is on by default if `acks` is `all`, which
    is the default, too. With a `transactional_id` all records belong to transactions.

    Nothing fails silently. A failed delivery is raised by the record's future; if the application never looked at that
    future, by `flush` or `close`.

    Example:
        ```python
        with Producer("127.0.0.1:9292", linger_ms=20) as producer:
            future = producer.send("trips", b"value", key=b"key")
            print(future.result(timeout=10).offset)
        ```
    """

    @arg.takes()
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        key_serializer: AnySerializer | None = None,
        value_serializer: AnySerializer | None = None,
        security: Security = None,
        **settings: Any,
    ) -> None:
        """Create a producer. The first call that needs a broker connects.

        Args:
            bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
                127.0.0.1:9292.
            key_serializer: A callable or a `sparklog.serialization.Serializer` that turns the keys of `send` into
                bytes. None: keys are bytes.
            value_serializer: The same for values. None: values are bytes.
            security: Client settings by their dotted names, such as {"security.protocol": "SASL_SSL"}, or the path of a
                properties file. None: plaintext, or the security parameters among `settings`.
            **settings: Producer settings of `sparklog.settings` with underscores, such as `acks`, `linger_ms`,
                `batch_size_bytes` and `compression`, and security settings, such as `security_protocol` and
                `sasl_mechanism`.

        Raises:
            InvalidConfigError: A setting is unknown or out of bounds, a serializer cannot be called, or security is
                given twice.
        """
        self._key_serializer = serializing(key_serializer, "key_serializer")
        self._value_serializer = serializing(value_serializer, "value_serializer")
        security, settings = with_parameters(security, settings)
        config: dict[str, Any] = producer_settings(settings)
        self.settings = config
        """All producer settings in effect, by their dotted names."""
        self._cluster = cluster(bootstrap_servers, security, config["client.id"])
        self._topics: dict[str, ProducerTopic] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._batch_size_bytes = config["batch.size.bytes"]
        self._policy = _retry_policy(config)
        encoder = BatchEncoder(
            config["compression"],
            checksum=not config["enable.idempotence"],
            memory_bytes=config["buffer.memory"],
        )
        parallel = parallel_encoder(encoder)
        self._accumulator = _accumulator(config)
        self._tables = TableQueue(self._accumulator, encoder, parallel, self._batch_size_bytes)
        self._idempotent = config["enable.idempotence"]
        if self._idempotent:
            self._accumulator.session = WriteSession()
        topics = self._topics  # not self: the sender's thread must not keep the producer
        self._sender = Sender(
            self._cluster, self._accumulator, encoder, _sender_config(config), lambda name: topics.pop(name, None)
        )
        self._accumulator.wake_sender = self._sender.wake
        core = self._core = ProducerCore(self._accumulator, self._sender, parallel)
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
        """Send one record. Returns at once, unless the topic is not known yet or `buffer.memory` is full; then it waits
        for up to `max.block.ms`.

        A typed topic takes a dict of its columns as the value, which is checked as `send_batch` checks tables. Rows are
        collected in batches like the records of envelope topics.

        Args:
            topic: The topic's name.
            value: The record's value: bytes, or an object for the value serializer; None: a tombstone. For a typed
                topic the row: a dict by column; columns that it lacks are null.
            key: The record's key: bytes, or an object for the key serializer. None: no key. Not for typed topics, whose
                rows hold their key.
            headers: Pairs of a name and bytes or None. None: no headers. Not for typed topics.
            timestamp_ms: The record's time in ms since 1970. None: now. Not for typed topics.
            partition: The partition's number. None: chosen by the hash of the key or of the key columns (Kafka's
                murmur2), or for a record without a key by the sticky partitioner.

        Returns:
            A future of the record's `RecordMetadata`.

        Raises:
            TypeError: A value, key or header is not bytes, or `timestamp_ms` is not an int.
            ValueError: `timestamp_ms` is out of bounds.
            SerializationError: A serializer has failed.
            SchemaMismatchError: The value does not fit the topic's columns, or the topic is compacted and the record
                has no key.
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidPartitionsError: The topic does not have this partition.
            MessageTooLargeError: The record is larger than the topic's `max.message.bytes`.
            BufferExhaustedError: `buffer.memory` stayed full for `max.block.ms`.
            InvalidTxnStateError: The producer has a `transactional_id`, and no transaction is open.
            ClosedError: The producer is closed.
            SparklogError: The open transaction has failed, or the topic could not be looked up within `max.block.ms`.

        Example:
            ```python
            producer.send("events", b"hello", key=b"Midtown").add_done_callback(on_stored)
            producer.send("trips", {"zone": "Midtown", "minutes": 12.5})
            ```
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
            except (InvalidPartitionsError, SchemaMismatchError) as e:
                state = self._changed(state, e)
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
            self._drop_unfinished(state)
            raise
        return future

    def _changed(self, state: ProducerTopic, error: SparklogError) -> ProducerTopic:
        """Return the newer state of a topic whose checks have refused a record, because a partition or column has
        perhaps been added. Raises `error` if the topic is unchanged."""
        newer = self._newer(state)
        if (newer.info.schema_id, newer.info.partitions) == (state.info.schema_id, state.info.partitions):
            raise error
        return newer

    def _drop_unfinished(self, state: ProducerTopic) -> None:
        """Remove the unfinished row of a `send` that an error or a signal has ended, and release the lock."""
        accumulator = self._accumulator
        with accumulator.lock:
            for queue in state.queues:
                accumulator.locked_drop_unfinished(queue)
        accumulator.release_if_held()
        self._sender.wake()

    def _locked_batch(self, state: ProducerTopic, partition: int | None, size_bytes: int) -> OpenBatch:
        """Return the batch that takes the next record: the open batch if it has room, else a new one."""
        if size_bytes > state.max_bytes - ENVELOPE_FIXED_BYTES_MIN:
            raise too_large(state.info.name, size_bytes, state.max_bytes)
        accumulator = self._accumulator
        accumulator.locked_reserve(size_bytes)  # first: a wait for memory releases the lock
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

    @arg.takes()
    def send_batch(self, topic: str, data: Any, *, partition: int | None = None) -> BatchFuture:
        """Send a table. Its columns are matched to the topic's columns by name.

        Envelope topics take the column `value`, and optionally `key`, `headers`, `timestamp` and `partition`. Tables
        are fitted to the topic's newest schema. A named index of pandas is a column. NaN counts as null only in pandas
        data. Python floats are rounded to the topic's float type.

        Rows are stored in batches of about `batch.size.bytes`, and each partition keeps their order. The calling thread
        encodes the batches; with compression other threads help. The memory of `data` can be changed after the call:
        data that are not copied are encoded by then.

        Args:
            topic: The topic's name.
            data: An object with `__arrow_c_stream__` or `__arrow_c_array__` (PyArrow, polars, …), a pandas DataFrame, a
                dict of columns, or a list of dicts.
            partition: The partition of all rows. None: chosen by the key columns of each row, or without key columns by
                the sticky partitioner.

        Returns:
            A future of one `BatchMetadata` per stored batch, in partition order; an empty list for a table without
                rows.

        Raises:
            TypeError: `data` is not tabular.
            SchemaMismatchError: The columns do not fit the topic's schema. Nothing was sent.
            MessageTooLargeError: A row is larger than `max.message.bytes`. Nothing was sent.
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidPartitionsError: The topic does not have this partition.
            BufferExhaustedError: `buffer.memory` stayed full for `max.block.ms`. The message says how many rows had
                been taken.
            InvalidTxnStateError: The producer has a `transactional_id`, and no transaction is open.
            ClosedError: The producer is closed.
            SparklogError: The open transaction has failed, or the topic could not be looked up within `max.block.ms`.

        Example:
            ```python
            producer.send_batch("trips", {"zone": ["Midtown"], "minutes": [12.5]}).result()
            ```
        """
        self._accumulator.check_open()
        state = self._topic(topic)

        def changed(refusal: SparklogError) -> TopicInfo:
            nonlocal state
            state = self._changed(state, refusal)
            return state.info

        rows = rows_of(data, state.info, partition, changed)
        return BatchFuture(self._tables.enqueue(rows, state) if rows.table.num_rows else [])

    @arg.takes(timeout_s=arg.optional(arg.wait))
    def flush(self, timeout_s: float | None = None) -> None:
        """Send all collected records and wait for the outcome of everything accepted so far.

        Args:
            timeout_s: The longest wait in seconds. None: until every record has its outcome, which
                `delivery.timeout.ms` bounds.

        Raises:
            SparklogError: The first failure since the last flush whose future the application never looked at.
            RequestTimedOutError: Not everything was acknowledged within `timeout_s`.
            ClosedError: The producer is closed.
        """
        self._core.check_open()
        self._core.flush(timeout_s)

    # -- transactions

    def init_transactions(self) -> None:
        """Prepare for transactions: fence earlier producers of the `transactional_id` and abort the transaction they
        left.

        Call it once, before the first transaction.

        Raises:
            InvalidTxnStateError: The producer has no `transactional_id`, or is initialised already.
            InvalidTransactionTimeoutError: `transaction.timeout.ms` is above the broker's `transaction.max.timeout.ms`.
            ClosedError: The producer is closed.
            SparklogError: The coordinator has refused the request, or has not answered within `max.block.ms`.
        """
        self._transactional().init()

    def begin_transaction(self) -> None:
        """Begin a transaction. Readers with read_committed see its records all together after the commit, or never.

        Raises:
            InvalidTxnStateError: The producer has no `transactional_id`, is not initialised, or has an open
                transaction.
            ProducerFencedError: Another producer has taken over the `transactional_id`. The error is final.
            ClosedError: The producer is closed.
        """
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Commit a group's offsets together with the open transaction.

        The group's offsets change only if the transaction is committed. If the group refuses the offsets, only
        `abort_transaction` is possible.

        Args:
            offsets: The next offset to read by partition: numbers, or `OffsetAndMetadata`.
            group: The result of `Consumer.group_metadata()`, which fences members that have lost their partitions; or
                the group's name.

        Raises:
            InvalidRequestError: An offset, a partition or the group is malformed. The transaction stays usable.
            InvalidTxnStateError: No transaction is open.
            ClosedError: The producer is closed.
            SparklogError: The group has refused the offsets, or has not answered within `max.block.ms`.
        """
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Flush, then commit the open transaction, all or nothing.

        If the coordinator does not answer within `max.block.ms`, the call raises a retriable error, and it is not known
        if the transaction is committed: call `commit_transaction` again.

        Raises:
            InvalidTxnStateError: No transaction is open.
            ClosedError: The producer is closed.
            SparklogError: A retriable error as above; or the first failure of the transaction, which is never
                retriable: the transaction has to be aborted.
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Abort the open transaction. Records that are not sent yet are dropped.

        Raises:
            InvalidTxnStateError: No transaction is open, or the outcome of its commit is not known.
            ClosedError: The producer is closed.
            SparklogError: The coordinator has refused the request, or has not answered within `max.block.ms`.
        """
        self._transactional().abort()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Run a `with` block in one transaction, which is committed at the end of the block.

        An exception that leaves the block aborts the transaction. The block is allowed to call `abort_transaction` or
        `commit_transaction` itself. `init_transactions` is called first if it has not been called yet.

        Yields:
            This producer.

        Raises:
            InvalidTxnStateError: The producer has no `transactional_id`, or a transaction is open already.
            SparklogError: As for `init_transactions`, `begin_transaction` and `commit_transaction`.

        Example:
            ```python
            with producer.transaction():
                producer.send("trips", b"value")
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            ```
        """
        transactions = self._transactional()
        if transactions.state.state is State.UNINITIALISED:
            transactions.init()
        transactions.begin()
        try:
            yield self
            # ended by hand: nothing is left to do; but a closing of the producer must not count as a commit
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
            raise InvalidTxnStateError("this producer has no transactions: create it with Producer(transactional_id=…)")
        self._core.check_open()
        return self._transactions

    @contextlib.contextmanager
    def participation(self, participant: Participant) -> Iterator[Producer]:
        """Run a `with` block as a participant of a shared transaction.

        All records of the block are sent under the participant's identity. The end of the block waits until they are
        stored, or raises the first failure. An exception that leaves the block drops the records that are not in
        flight. The same producer can take part again, each time with a new identity.

        Args:
            participant: The identity that joining the shared transaction returned.

        Yields:
            This producer.

        Raises:
            InvalidTxnStateError: The producer has no idempotence, has a `transactional_id`, or has unacknowledged
                records.
            ClosedError: The producer is closed.
            SparklogError: The first failure of the block's records.
        """
        accumulator = self._accumulator
        if not self._idempotent or self._transactions is not None:
            raise InvalidTxnStateError(
                "taking part in a shared transaction needs acks=all, enable.idempotence=true and no transactional_id"
            )
        accumulator.check_open()
        if accumulator.outstanding:
            raise InvalidTxnStateError("earlier records are not acknowledged yet: flush the producer first")
        identity = identity_of(participant)
        session = WriteSession(identity, participant.transactional_id)
        accumulator.begin_session(session)
        try:
            yield self
            self.flush()
            if session.error is not None:
                raise session.error
        except BaseException:
            accumulator.fail_session(TransactionAbortedError("the producer has abandoned this transaction"))
            self._core.wait_for_outcomes()
            raise
        finally:
            # sequences of the idempotent identity are forgotten by now: a new one is asked for when it is needed
            accumulator.begin_session(WriteSession())

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close the producer. An open transaction is aborted. A second call does nothing.

        The producer is closed after an error, too; the records without an outcome fail.

        Args:
            timeout_s: The longest wait in seconds. None: until every record has its outcome.

        Raises:
            SparklogError: The first failure since the last flush whose future the application never looked at. The
                failure of a transaction that an earlier call has raised is not raised again.
            RequestTimedOutError: Not everything was acknowledged within `timeout_s`.
        """
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
        """Read the topic's metadata again and return its new state."""
        self._learn(state.info.name, refresh=True)
        return self._topic(state.info.name)

    def _learn(self, name: str, *, refresh: bool = False) -> TopicInfo:
        """Return the topic, from the cache or from the cluster. The call waits up to `max.block.ms` for a broker that
        does not answer."""

        def ask(timeout_ms: int) -> TopicInfo:
            self._core.check_open()  # it may have been closed meanwhile
            return self._cluster.topic(name, refresh=refresh, to_write=not refresh, timeout_ms=timeout_ms)

        return until_answered(ask, Retries(self._policy))

    def _topic(self, name: str) -> ProducerTopic:
        """Return the topic's state. It is made again if the topic's metadata have been read again since."""
        text("topic", name)
        info = self._cluster.cached_topic(name) or self._learn(name)
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


def _retry_policy(config: Mapping[str, Any]) -> RetryPolicy:
    """Return the limits of calls that wait for a broker."""
    return RetryPolicy(
        config["max.block.ms"],
        config["request.timeout.ms"],
        config["retry.backoff.ms"],
        config["retry.backoff.max.ms"],
        "max.block.ms",
    )


def _accumulator(config: Mapping[str, Any]) -> Accumulator:
    """Return the queues of a producer with these settings."""
    return Accumulator(
        buffer_bytes=config["buffer.memory"],
        linger_s=config["linger.ms"] / 1000,
        max_block_s=config["max.block.ms"] / 1000,
        delivery_timeout_s=config["delivery.timeout.ms"] / 1000,
    )


def _sender_config(config: Mapping[str, Any]) -> SenderConfig:
    """Return the sender's part of the settings."""
    return SenderConfig(
        acks=_ACKS[config["acks"]],
        request_timeout_ms=config["request.timeout.ms"],
        max_in_flight=config["max.in.flight.requests.per.connection"],
        backoff_s=config["retry.backoff.ms"] / 1000,
        backoff_max_s=config["retry.backoff.max.ms"] / 1000,
    )
