"""The producer: records and tables to topics, in the background, in order, acknowledged through futures."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  PyArrow imports it late, which fails in an exit handler
import contextlib
import logging
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from time import time_ns
from types import TracebackType
from typing import Any

from sparklog.client.accumulator import Accumulator, PartitionQueue
from sparklog.client.cluster import cluster
from sparklog.client.encoding import (
    ENVELOPE_FIXED_BYTES_MIN,
    ROW_OVERHEAD_BYTES,
    BatchEncoder,
    Headers,
    Rows,
    pieces_of,
    rows_of,
    too_large,
)
from sparklog.client.futures import BatchFuture, BatchMetadata, Delivery, RecordFuture
from sparklog.client.group_offsets import Offsets
from sparklog.client.open_batch import OpenBatch
from sparklog.client.parallel_encoding import Encoding, parallel_encoder
from sparklog.client.producer_settings import producer_settings
from sparklog.client.producer_topic import ProducerTopic
from sparklog.client.retry import RetryPolicy
from sparklog.client.sender import Sender, SenderConfig
from sparklog.client.sequences import Identity, WriteSession
from sparklog.client.shared_transaction import Participant
from sparklog.client.tabular import holds_objects, reusable
from sparklog.client.transaction_state import State
from sparklog.client.transactions import Transactions
from sparklog.errors import (
    InvalidTxnStateError,
    RequestTimedOutError,
    SchemaMismatchError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.types import GroupMetadata, TopicPartition

__all__ = ["BatchFuture", "BatchMetadata", "Producer", "RecordFuture"]

_log = logging.getLogger(__name__)

EXIT_FLUSH_S = 10.0
_ACKS = {"0": 0, "1": 1, "all": -1}

_live: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer:
    """Sends records to topics; thread-safe.

    `bootstrap_servers`: "host:port,…" (default: SPARKLOG_BOOTSTRAP_SERVERS, else 127.0.0.1:9292). Settings are the
    producer settings of `sparklog.settings` with underscores: acks, linger_ms, batch_size_bytes, compression, …

    Records of a partition are stored once and in the order of the calls that sent them, also across retries and restarts of
    the broker (`enable_idempotence`, on unless acks are not all). With a `transactional_id` what is sent belongs to
    transactions. Nothing fails silently: a failure is raised by the future, or by `flush` or `close` if nobody looked at the
    future.
    """

    def __init__(self, bootstrap_servers: str | Sequence[str] | None = None, **settings: Any) -> None:
        """Does not connect yet. Raises InvalidConfigError."""
        config: dict[str, Any] = producer_settings(settings)
        self.settings = config
        self._cluster = cluster(bootstrap_servers)
        self._topics: dict[str, ProducerTopic] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._batch_size_bytes = config["batch.size.bytes"]
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
        self._sender = Sender(self._cluster, self._accumulator, self._encoder, sender_config, self._forget_topic)
        self._accumulator.wake_sender = self._sender.wake
        self._accumulator.may_send_here = self._sender.may_send_here
        self._transactions: Transactions | None = None
        if config["transactional.id"]:
            self._transactions = Transactions(
                self._cluster,
                self._accumulator,
                RetryPolicy(
                    config["max.block.ms"],
                    config["request.timeout.ms"],
                    config["retry.backoff.ms"],
                    config["retry.backoff.max.ms"],
                ),
                transactional_id=config["transactional.id"],
                timeout_ms=config["transaction.timeout.ms"],
                flush=self.flush,
                settle=self._settle_all,
            )
        _live.add(self)

    # -- sending

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordFuture:
        """Sends one record to an envelope topic and returns at once (unless `buffer.memory` is full).

        Partition: the given one, else by the key's hash (Kafka's murmur2), else sticky. `timestamp_ms` default: now.
        Raises TypeError, SchemaMismatchError (a typed topic), UnknownTopicOrPartitionError, InvalidPartitionsError,
        MessageTooLargeError, BufferExhaustedError, ClosedError.
        """
        try:
            state = self._topics[topic]
        except KeyError:
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
            if accumulator.is_left_to_caller:
                self._sender.send_here()
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
        batch = batch or accumulator.locked_open(queue)
        accumulator.locked_give_room(batch, size_bytes, state.target_bytes)
        return batch

    def send_batch(self, topic: str, data: Any, *, partition: int | None = None) -> BatchFuture:
        """Sends a table: anything with `__arrow_c_stream__` or `__arrow_c_array__` (PyArrow, polars, …), pandas, a dict
        of columns or a list of dicts. Columns are matched to the topic's by name; envelope topics take `value` and
        optionally `key`, `headers`, `timestamp` and `partition`.

        Tables are fitted to the topic's newest schema. Rows go to `partition`, else by their key columns, else sticky;
        they are stored in batches of about `batch.size.bytes`, encoded on the calling thread, or with compression on
        threads beside it (of `data` that is no copy, before this returns). The future's result is one BatchMetadata per
        stored batch, in partition order; no rows, no batches. Raises SchemaMismatchError (nothing was sent),
        MessageTooLargeError (nothing was sent), BufferExhaustedError (the message says how many rows had been taken),
        and as `send`.
        """
        self._accumulator.check_open()
        state = self._topic(topic)
        data = reusable(data)
        try:
            rows = rows_of(data, state.info, partition)
        except SchemaMismatchError:
            # the topic may have got a column, or a wider one, since its metadata were read
            known = state.info.schema_id
            self._cluster.topic(topic, refresh=True)
            state = self._topic(topic)
            if state.info.schema_id == known:
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
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for delivery in self._accumulator.close_all_open():
            if not delivery.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise RequestTimedOutError(f"not everything was acknowledged within {timeout_s} s")
        error = self._accumulator.take_failure()
        if error is not None:
            raise error

    # -- transactions

    def init_transactions(self) -> None:
        """Once, before the first transaction: fences whoever used the `transactional_id` before and aborts what it left.

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
        committed. `group`: what `Consumer.group_metadata()` gives, which fences members that have lost their partitions,
        or the group's name. Raises InvalidRequestError for what is no offset, and the group's errors; after those only
        `abort_transaction` is possible."""
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
        identity = Identity(participant.producer_id, participant.producer_epoch)
        session = WriteSession(identity, participant.transactional_id)
        accumulator.begin_session(session)
        try:
            yield self
            self.flush()
            if session.error is not None:
                raise session.error
        except BaseException:
            accumulator.fail_session(TransactionAbortedError("the producer has given up this transaction"))
            self._settle_all()
            raise
        finally:
            # sequences of the idempotent identity are forgotten by now: a new one is asked for when it is needed
            accumulator.begin_session(WriteSession())

    def _settle_all(self) -> None:
        """Waits until everything accepted has an outcome, whatever it is."""
        for delivery in self._accumulator.close_all_open():
            delivery.wait()
        self._accumulator.take_failure()

    def close(self, timeout_s: float | None = None) -> None:
        """Flushes and ends the producer; again is fine. An open transaction is aborted. Raises what `flush` raises (the
        producer is closed then, too)."""
        if self._accumulator.closing:
            return
        if self._transactions is not None and self._transactions.is_open:
            try:
                self._transactions.abort()
            except SparklogError as e:
                _log.warning("the open transaction was not aborted, its timeout will do it: %s", e)
        self._accumulator.close("the producer is closed")
        _live.discard(self)
        try:
            self.flush(timeout_s)
        finally:
            self._sender.stop(5.0)
            if self._parallel is not None:
                self._parallel.close()

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

    def _topic(self, name: str) -> ProducerTopic:
        """The topic's state, looked up again when its metadata are old or it was re-created."""
        info = self._cluster.topic(name)
        state = self._topics.get(name)
        if state is None or state.info is not info:
            with self._accumulator.lock:
                queues = []
                for tp in (TopicPartition(name, p) for p in range(info.partitions)):
                    queue = self._queues.setdefault(tp, PartitionQueue(tp, info))
                    queue.info = info
                    queues.append(queue)
                state = self._topics[name] = ProducerTopic(info, self._batch_size_bytes, queues)
        return state

    def _forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    def _forked(self) -> None:
        self._accumulator.reset_after_fork()
        self._sender.drop_after_fork()

    def _at_exit(self) -> None:
        with self._accumulator.lock:
            records = bool(self._accumulator.outstanding)
        if records:
            warnings.warn("a sparklog Producer was not closed: flushing it at exit", RuntimeWarning, stacklevel=1)
        try:
            self.close(EXIT_FLUSH_S)
        except SparklogError as e:
            _log.error("records were lost at exit: %s", e)


def _flush_at_exit() -> None:
    for producer in list(_live):
        producer._at_exit()


def _drop_after_fork() -> None:
    for producer in list(_live):
        producer._forked()
    _live.clear()


atexit.register(_flush_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)
