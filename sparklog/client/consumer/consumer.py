"""The consumer: reads partitions ahead in the background, as records or as Arrow batches.

Partitions are assigned by hand or by a group.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
import warnings
import weakref
from _thread import start_new_thread
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from sparklog.client.consumer.calls import Calls, one_thread
from sparklog.client.consumer.deserialized import RecordDeserializer
from sparklog.client.consumer.fetch_request import FetcherConfig
from sparklog.client.consumer.fetcher import CLOSE_S_MAX, RESET_TO, Fetcher
from sparklog.client.consumer.group_reader import GroupReader
from sparklog.client.consumer.position import FetchedBatch, Position
from sparklog.client.consumer.record_buffer import RecordBuffer
from sparklog.client.group.committer import Callback
from sparklog.client.group.group_consumer import CLOSE_TIMEOUT_MS, GroupConsumer, Listener, require_group
from sparklog.client.group.group_offsets import Offsets
from sparklog.client.net import arguments as arg
from sparklog.client.net.background import on_exit
from sparklog.client.net.cluster import cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.reading.consumed import ConsumedBatch, Projection
from sparklog.client.reading.isolation import isolation_of
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.errors import (
    ClosedError,
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    SparklogError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
)
from sparklog.security.client_security import Security, with_parameters
from sparklog.serialization import AnyDeserializer, deserializing
from sparklog.settings import Scope, from_parameters
from sparklog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    TopicPartition,
    whole_number,
)

__all__ = ["ConsumedBatch", "Consumer"]

ITERATE_POLL_MS = 1_000
TIMESTAMP_MS_MAX = 2**62
_MAX_RECORDS = arg.whole(1)
_log = logging.getLogger(__name__)

_live: weakref.WeakSet[Consumer] = weakref.WeakSet()


class Consumer:
    """A client that reads partitions, assigned by hand (`assign`) or by a group (`group_id` and `subscribe`); for one
    thread.

    A call of a second thread, while the first thread is inside a call, raises ConcurrentModificationError. Two methods
    are for any thread: `wakeup` ends the wait of a poll with WakeupError, `close` ends it with ClosedError.

    With `group_id` reading begins at the group's committed offsets, else at the position that `auto_offset_reset`
    names. Unless `enable_auto_commit` is False, poll and close commit the records of earlier polls: process the records
    of a poll before the next poll. Without `group_id` the consumer commits nothing, and reading begins at the position
    that `auto_offset_reset` names.

    While the broker is away, poll returns nothing; reading continues when the broker is back. Every other error of a
    partition is raised by poll after all records read before it. Such errors are an offset out of range with
    auto.offset.reset=none, a damaged batch, and a deleted topic. Poll raises the error again until `seek` sets the
    partition's position, or the partition is no longer assigned.

    Example:
        ```python
        with Consumer("127.0.0.1:9292", group_id="billing") as consumer:
            consumer.subscribe(["trips"])
            for record in consumer:
                print(record.offset, record.value)
        ```
    """

    @arg.takes()
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        key_deserializer: AnyDeserializer | None = None,
        value_deserializer: AnyDeserializer | None = None,
        security: Security = None,
        **settings: Any,
    ) -> None:
        """Create a consumer. The first call that needs a broker connects.

        Args:
            bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
                127.0.0.1:9292.
            columns: Names of the columns to read; other columns are not decoded. Through the socket, the broker also
                leaves the others out of the batches of typed topics that are larger than 16 KiB, if that saves at least
                an eighth of the batch. None: all.
            key_deserializer: A callable or a `sparklog.serialization.Deserializer` for the keys of records of envelope
                topics; batches stay as they are. None: keys are bytes.
            value_deserializer: The same for values. None: values are bytes.
            security: Client settings by their dotted names, such as {"security.protocol": "SASL_SSL"}, or the path of a
                properties file. None: plaintext, or the security parameters among `settings`.
            **settings: Consumer settings of `sparklog.settings` with underscores, such as `group_id`,
                `auto_offset_reset`, `fetch_max_bytes` and `max_poll_records`, and security settings, such as
                `security_protocol` and `sasl_mechanism`.

        Raises:
            InvalidConfigError: A setting is unknown or out of bounds, a deserializer cannot be called, or security is
                given twice.
        """
        key, value = (
            deserializing(key_deserializer, "key_deserializer"),
            deserializing(value_deserializer, "value_deserializer"),
        )
        self._deserializer = None if key is None and value is None else RecordDeserializer(key, value)
        security, settings = with_parameters(security, settings)
        config: dict[str, Any] = from_parameters(Scope.CONSUMER, settings)
        self.settings = config
        """All consumer settings in effect, by their dotted names."""
        self._columns = None if columns is None else arg.texts("columns", columns)
        self._cluster = cluster(bootstrap_servers, security, config["client.id"])
        self._max_poll_records: int = config["max.poll.records"]
        self._api_timeout_ms: int = config["default.api.timeout.ms"]
        self._reset: str = config["auto.offset.reset"]
        self._isolation = isolation_of(config["isolation.level"])
        self._fetcher = Fetcher(self._cluster, FetcherConfig.from_settings(config))
        self._closed = ""
        self._calls = Calls()
        self._in_work_on = 0
        """Id of the thread that perhaps still works on the records of the last poll; 0: no record is in work."""
        self._buffer = RecordBuffer()
        self._has_unpolled = False
        """True if positions may exist that no poll has seen."""
        me = weakref.proxy(self)
        self._reader = GroupReader(
            self._fetcher,
            self._reset,
            lambda tp: me._position(tp, None, None),
            lambda positions: me._replace(positions),
        )
        self._group = GroupConsumer(self._cluster, self._reader, config) if config["group.id"] else None
        _live.add(self)

    # -- assignment and positions

    @one_thread
    def assign(self, partitions: arg.Partitions) -> None:
        """Read these partitions from now on, in place of all assigned before.

        Partitions that were assigned already keep their positions. With `group_id` new partitions begin at the group's
        committed offsets. The group does not divide partitions that are assigned by hand: two consumers can read the
        same partition.

        Args:
            partitions: One partition, or several.

        Raises:
            UnknownTopicOrPartitionError: A topic or partition does not exist.
            SchemaMismatchError: A topic lacks one of the consumer's `columns`.
            BrokerNotAvailableError: No broker could be reached within `default.api.timeout.ms`.
            InvalidRequestError: The consumer has subscribed, or `partitions` holds something else.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        if self._group is not None and self._group.subscribed:
            raise InvalidRequestError("the group assigns the partitions: call unsubscribe first, or do not subscribe")
        positions: dict[TopicPartition, Position] = {}
        tps = list(dict.fromkeys(arg.partitions("partitions", partitions)))
        deadline, attempts = Deadline(self._api_timeout_ms), self._attempts(self._api_timeout_ms)
        for topic in {tp.topic for tp in tps if tp not in self._fetcher.positions}:
            # old rows, too, come in the newest schema
            self._learn(topic, attempts, refresh=True)
        for leader in self._cluster.leaders(tps, timeout_ms=attempts.attempt_ms).values():
            if isinstance(leader, SparklogError) and not leader.retriable:
                raise leader
        new = [tp for tp in tps if tp not in self._fetcher.positions]
        committed = self._group.committed(new, deadline) if self._group is not None and new else {}
        for tp in tps:
            offset = committed.get(tp)
            current = positions[tp] = self._fetcher.positions.get(tp) or self._position(
                tp, None, RESET_TO.get(self._reset)
            )
            if offset is not None:  # only of new ones
                current.begin_at(offset.offset, offset.leader_epoch)
        self._replace(positions)

    @one_thread
    @arg.takes(
        on_assign=arg.optional(arg.function), on_revoke=arg.optional(arg.function), on_lost=arg.optional(arg.function)
    )
    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Join the group for these topics, in place of an earlier subscription. The group divides their partitions
        among its members.

        The callbacks run inside poll, unsubscribe and close, which raise the errors of the callbacks.

        Args:
            topics: Names of topics, which need not exist yet. None: `pattern` is given.
            pattern: A regular expression. All topics are read whose whole name matches. None: `topics` is given.
            on_assign: Called with the list of newly assigned partitions; it can call `seek`. None: no call.
            on_revoke: Called with the list of partitions before they are revoked; it can call `commit`. None: no
                call.
            on_lost: Called in place of `on_revoke` for partitions that another member perhaps has already, so that it
                is too late for a commit. None: `on_revoke` is called.

        Raises:
            InvalidGroupIdError: The consumer has no `group_id`.
            InvalidTopicError: A name cannot be a topic's name, or `pattern` is not a regular expression.
            InvalidRequestError: Both or neither of `topics` and `pattern` are given.
            ClosedError: The consumer is closed.

        Example:
            ```python
            consumer.subscribe(pattern=r"trips\\..*", on_revoke=lambda partitions: consumer.commit())
            ```
        """
        group = require_group(self._group, "subscribe")
        if (topics is None) == (pattern is None):
            raise InvalidRequestError("subscribe takes either topics or pattern")
        if not group.subscribed:
            self._replace({})
        group.subscribe(topics, pattern, (on_assign, on_revoke, on_lost))

    @one_thread
    def subscription(self) -> list[str]:
        """Return the topics of the subscription; for a pattern the topics that match it.

        Returns:
            Names of topics; empty without a subscription.

        Raises:
            ClosedError: The consumer is closed.
        """
        return [] if self._group is None else self._group.subscription

    @one_thread
    def unsubscribe(self) -> None:
        """Commit if `enable_auto_commit` is True, give up all partitions and leave the group.

        Without a subscription the call only gives up the partitions of `assign`.

        Raises:
            ClosedError: The consumer is closed.
        """
        if self._group is not None:
            self._group.unsubscribe(timeout_ms=self._close_timeout_ms)
        self._replace({})

    @one_thread
    def pause(self, *partitions: arg.Partitions) -> None:
        """Stop reading these partitions until `resume`: poll returns no records of them. Other partitions are read, and
        polling still keeps this member in its group.

        Args:
            *partitions: Assigned partitions, each alone or in lists.

        Raises:
            InvalidRequestError: A partition is not assigned.
            ClosedError: The consumer is closed.
        """
        positions = dict(self._fetcher.positions)
        for tp in arg.partitions("partitions", partitions):
            old = self._assigned(tp)
            with self._fetcher.changed:
                new = positions[old.tp] = old.restart()
                new.paused, new.error = True, None
        self._replace(positions)

    @one_thread
    def resume(self, *partitions: arg.Partitions) -> None:
        """Read paused partitions again.

        Args:
            *partitions: Assigned partitions, each alone or in lists.

        Raises:
            InvalidRequestError: A partition is not assigned.
            ClosedError: The consumer is closed.
        """
        for tp in arg.partitions("partitions", partitions):
            self._assigned(tp).paused = False
        self._fetcher.wake()

    @one_thread
    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions.

        Returns:
            The partitions in order.

        Raises:
            ClosedError: The consumer is closed.
        """
        with self._fetcher.changed:
            return sorted(tp for tp, position in self._fetcher.positions.items() if position.paused)

    @one_thread
    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions.

        Returns:
            The partitions in order.

        Raises:
            ClosedError: The consumer is closed.
        """
        return sorted(self._fetcher.positions)

    @one_thread
    @arg.takes(tp=arg.partition)
    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Set the position of a partition. The next poll reads it from there.

        Args:
            tp: An assigned partition.
            offset: The next offset to read, from 0.

        Raises:
            InvalidRequestError: The partition is not assigned, or `offset` is not a whole number from 0.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        number = whole_number(offset)
        if number is None or not 0 <= number <= arg.INT64_MAX:
            raise InvalidRequestError(f"cannot seek {tp} to {offset!r}: an offset is a whole number from 0 on")
        self._move([tp], number, None)

    @one_thread
    def seek_to_beginning(self, *partitions: arg.Partitions) -> None:
        """Set the positions to the first offsets that can be read.

        Args:
            *partitions: Assigned partitions, each alone or in lists. No argument: all assigned partitions.

        Raises:
            InvalidRequestError: A partition is not assigned.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        self._move(arg.partitions("partitions", partitions) or self.assignment(), None, EARLIEST_TIMESTAMP)

    @one_thread
    def seek_to_end(self, *partitions: arg.Partitions) -> None:
        """Set the positions to the offsets that the next records get.

        Args:
            *partitions: Assigned partitions, each alone or in lists. No argument: all assigned partitions.

        Raises:
            InvalidRequestError: A partition is not assigned.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        self._move(arg.partitions("partitions", partitions) or self.assignment(), None, LATEST_TIMESTAMP)

    @one_thread
    @arg.takes(tp=arg.partition)
    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that poll returns. The broker is asked if the position is not known yet.

        Args:
            tp: An assigned partition.

        Returns:
            The next offset to read.

        Raises:
            InvalidRequestError: The partition is not assigned.
            OffsetOutOfRangeError: The partition has no position and auto.offset.reset is none.
            BrokerNotAvailableError: No broker could be reached within `default.api.timeout.ms`.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        position = self._assigned(tp)
        deadline = Deadline(self._api_timeout_ms)
        if position.waiting and self._group is not None:
            committed = self._group.committed([position.tp], deadline)[position.tp]
            self._reader.start_at({position.tp: committed})
        with self._fetcher.changed:
            if position.consumed is not None:
                position.is_polled = True
                return position.consumed
        if position.reset_to is None:
            raise OffsetOutOfRangeError(f"{tp} has no position and auto.offset.reset is none: seek to an offset first")
        times = {position.tp: position.reset_to}
        answer = find_offsets(self._cluster, times, self._attempts(deadline.left_ms()), isolation=self._isolation)
        offset = answer[position.tp].offset
        with self._fetcher.changed:
            if position.consumed is None:
                position.begin_at(offset, answer[position.tp].leader_epoch)
            position.is_polled = True
            return offset if position.consumed is None else position.consumed

    @one_thread
    def beginning_offsets(self, partitions: arg.Partitions) -> dict[TopicPartition, int]:
        """Look up the first offsets that can be read. Positions stay as they are.

        Args:
            partitions: One partition, or several; they need not be assigned.

        Returns:
            The offset by partition.

        Raises:
            UnknownTopicOrPartitionError: A partition does not exist.
            BrokerNotAvailableError: No broker could be reached within `default.api.timeout.ms`.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        return self._ends(partitions, EARLIEST_TIMESTAMP)

    @one_thread
    def end_offsets(self, partitions: arg.Partitions) -> dict[TopicPartition, int]:
        """Look up the offsets of the next records. Positions stay as they are.

        With `isolation_level="read_committed"` the end is the last stable offset: the first record of the oldest open
        transaction, if there is one.

        Args:
            partitions: One partition, or several; they need not be assigned.

        Returns:
            The offset by partition.

        Raises:
            UnknownTopicOrPartitionError: A partition does not exist.
            BrokerNotAvailableError: No broker could be reached within `default.api.timeout.ms`.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.
        """
        return self._ends(partitions, LATEST_TIMESTAMP)

    @one_thread
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first record of each partition at or after a time. Positions stay as they are.

        Args:
            timestamps: The time by partition, in ms since 1970; the partitions need not be assigned.

        Returns:
            The record's offset and time by partition; None if all records of the partition are older.

        Raises:
            InvalidRequestError: A time is not a whole number from 0.
            UnknownTopicOrPartitionError: A partition does not exist.
            BrokerNotAvailableError: No broker could be reached within `default.api.timeout.ms`.
            WakeupError: Another thread has called `wakeup` during a wait for a broker.
            ClosedError: The consumer is closed.

        Example:
            ```python
            hour_ago_ms = int(time.time() * 1000) - 3_600_000
            for tp, found in consumer.offsets_for_times(dict.fromkeys(consumer.assignment(), hour_ago_ms)).items():
                consumer.seek(tp, found.offset) if found else consumer.seek_to_end(tp)
            ```
        """
        times = arg.mapping(arg.partition, arg.whole(0, TIMESTAMP_MS_MAX))("timestamps", timestamps)
        return {tp: result if result.offset >= 0 else None for tp, result in self._look_up(times).items()}

    # -- offsets of the group

    @one_thread
    @arg.takes(sync=arg.flag)
    def commit(self, offsets: Offsets | None = None, *, sync: bool = True) -> None:
        """Commit positions for the group and wait until the commit is durable.

        Args:
            offsets: The next offset to read by partition: numbers, or `OffsetAndMetadata`. None: the positions of all
                assigned partitions.
            sync: False does not wait: the call is `commit_async(offsets)`.

        Raises:
            InvalidRequestError: A partition or an offset is malformed.
            InvalidGroupIdError: The consumer has no `group_id`.
            CommitFailedError: This member does not hold one of the partitions, for example because the group has given
                it to another member; or too many commits are waiting.
            NonEmptyGroupError: The partitions are assigned by hand while the group has members.
            RequestTimedOutError: The commit did not end within `default.api.timeout.ms`.
            SparklogError: The group's coordinator has refused the commit for another reason.
            ClosedError: The consumer is closed.
        """
        if not sync:
            self.commit_async(offsets)
            return
        self._check_open()
        require_group(self._group, "commit").commit(offsets)

    @one_thread
    @arg.takes(callback=arg.optional(arg.function))
    def commit_async(self, offsets: Offsets | None = None, callback: Callback | None = None) -> None:
        """Commit positions for the group without waiting.

        Args:
            offsets: The next offset to read by partition: numbers, or `OffsetAndMetadata`. None: the positions of all
                assigned partitions.
            callback: Called by a later `poll`, `commit` or `close` as `callback(offsets, error)`; the error is None if
                the offsets are committed. None: a failure is logged.

        Raises:
            InvalidRequestError: A partition or an offset is malformed.
            InvalidGroupIdError: The consumer has no `group_id`.
            CommitFailedError: Too many commits are waiting.
            ClosedError: The consumer is closed.
        """
        require_group(self._group, "commit_async").commit_async(offsets, callback)

    @one_thread
    def committed(self, partitions: arg.Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets.

        Args:
            partitions: One partition, or several.

        Returns:
            The committed offset by partition; None for a partition without one.

        Raises:
            InvalidGroupIdError: The consumer has no `group_id`.
            UnstableOffsetCommitError: A transaction with these offsets stayed open for `default.api.timeout.ms`.
            SparklogError: The group's coordinator could not be asked within `default.api.timeout.ms`.
            ClosedError: The consumer is closed.
        """
        return require_group(self._group, "committed").committed(arg.partitions("partitions", partitions))

    @one_thread
    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's identity in its group, for `Producer.send_offsets_to_transaction`.

        Returns:
            The group, the member and its epoch.

        Raises:
            InvalidGroupIdError: The consumer has no `group_id`.
            ClosedError: The consumer is closed.
        """
        return require_group(self._group, "group_metadata").metadata

    # -- reading

    @one_thread
    @arg.takes()
    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[Record]:
        """Return the next records, in offset order within each partition.

        A record that cannot be deserialized raises DeserializationError after the records before it have been returned.
        Poll raises it again until the position is moved past the record.

        Args:
            timeout_ms: The longest wait for the first record in ms; 0 does not wait.
            max_records: The largest number of records. None: `max.poll.records`.

        Returns:
            The records that are fetched already, up to `max_records`; empty if none came within `timeout_ms`. For typed
                topics `value` is a dict of the columns.

        Raises:
            DeserializationError: A deserializer has failed for the next record.
            WakeupError: Another thread has called `wakeup`.
            ClosedError: The consumer is closed, or another thread closes it.
            InvalidRequestError: An argument is not a number, or `max_records` is below 1.
            SparklogError: A partition cannot be read any further, or the group does not accept this member.

        Example:
            ```python
            for record in consumer.poll(timeout_ms=500):
                print(record.partition, record.offset, record.value)
            ```
        """
        self._in_work_on = 0
        self._calls.check_signal()
        timeout_ms = arg.wait("timeout_ms", timeout_ms)
        limit = self._max_poll_records if max_records is None else _MAX_RECORDS("max_records", max_records)
        if self._group is not None:
            self._group.before_poll()
        if self._fetcher.has_diverged:
            self._settle_divergences()
        records: list[Record] = []
        moved: dict[Position, int | None] = {}
        try:
            try:
                while len(records) < limit and (more := self._next_records(limit - len(records), timeout_ms, moved)):
                    records += more
                    timeout_ms = 0
            except SparklogError:
                if not records:
                    raise  # else the next poll raises it
            self._note_poll(bool(records))
        except BaseException:  # the application does not get them
            self._take_back(moved)
            raise
        return records

    def _next_records(self, limit: int, timeout_ms: float, moved: dict[Position, int | None]) -> list[Record]:
        """Return the next records of one batch, at most `limit`. If `moved` has entries, the call uses only batches
        that are already fetched.

        The offset of the position is entered in `moved` before the position changes.
        """
        if not self._buffer:
            fetched = self._take(timeout_ms, only_ready=bool(moved))
            if fetched is None:
                return []
            try:
                self._buffer.fill(fetched)
            except DeserializationError as e:
                self._fail(fetched.position, e)
                raise
            except Exception as e:
                raise self._unreadable(fetched, e) from e
        chosen = self._buffer.first(limit)
        if self._deserializer is not None:
            chosen = self._deserialized(chosen)
        position = self._buffer.position
        assert position is not None
        moved.setdefault(position, position.consumed)
        self._buffer.give_out(len(chosen))
        return chosen

    def _take_back(self, moved: Mapping[Position, int | None]) -> None:
        """Restore the positions of records that the failing call was about to return."""
        if any(position.consumed != consumed for position, consumed in moved.items()):
            self._buffer.drop_records()
            self._buffer.take_rest()
        for position, consumed in moved.items():
            position.consumed = consumed

    def __iter__(self) -> Consumer:
        """Iterate over records one by one, as in `for record in consumer:`.

        The loop ends if no record has come for consumer.timeout.ms (-1: no limit) or if the consumer is closed. A
        record counts as consumed when the next record is requested. After an exception the loop can be begun again.
        """
        return self

    def __next__(self) -> Record:
        if self._closed:
            raise StopIteration
        timeout_ms: int = self.settings["consumer.timeout.ms"]
        deadline = None if timeout_ms < 0 else Deadline(timeout_ms)
        while True:
            wait_ms = ITERATE_POLL_MS if deadline is None else min(ITERATE_POLL_MS, int(deadline.left_s * 1000))
            try:
                records = self.poll(wait_ms, max_records=1)
            except ClosedError:
                if not self._calls.is_closing:
                    raise
                raise StopIteration from None
            if records:
                return records[0]
            if deadline is not None and deadline.is_over:
                raise StopIteration

    @one_thread
    def poll_batches(self, timeout_ms: float = 1000) -> list[ConsumedBatch]:
        """Return all received batches without copying them.

        The call returns at least one batch, unless none came in time. Batches beyond `prefetch.bytes` (or
        `max.partition.fetch.bytes`, if that is more) are left to the next call. `max.poll.records` has no effect,
        because batches are not split.

        Args:
            timeout_ms: The longest wait for the first batch in ms; 0 does not wait.

        Returns:
            Batches in offset order within each partition; empty if none came within `timeout_ms`.

        Raises:
            WakeupError: Another thread has called `wakeup`.
            ClosedError: The consumer is closed, or another thread closes it.
            InvalidRequestError: `timeout_ms` is not a number.
            SparklogError: A partition cannot be read any further, or the group does not accept this member.

        Example:
            ```python
            for batch in consumer.poll_batches():
                print(batch.tp, batch.base_offset, batch.data.num_rows)
            ```
        """
        self._in_work_on = 0
        self._calls.check_signal()
        timeout_ms = arg.wait("timeout_ms", timeout_ms)
        if self._group is not None:
            self._group.before_poll()
        if self._fetcher.has_diverged:
            self._settle_divergences()
        batches: list[ConsumedBatch] = []
        moved: dict[Position, int | None] = {}
        try:
            self._take_batches(timeout_ms, batches, moved)
            self._note_poll(bool(batches))
        except BaseException:  # the application does not get them
            self._buffer.take_rest()
            self._take_back(moved)
            raise
        return batches

    def _take_batches(self, timeout_ms: float, batches: list[ConsumedBatch], moved: dict[Position, int | None]) -> None:
        """Append fetched batches to `batches`; wait up to `timeout_ms` for the first one. The offset of each position
        is entered in `moved` before the position changes."""
        remaining_bytes = max(self.settings["prefetch.bytes"], self.settings["max.partition.fetch.bytes"])
        # without a bound it might never end: consumed records make room for more
        if self._buffer:
            rest, position = self._buffer.remainder(), self._buffer.position
            assert position is not None
            moved[position] = position.consumed
            position.consumed = rest.next_offset
            batches.append(rest)
        self._buffer.drop_records()
        while not batches or remaining_bytes > 0:
            fetched = self._take(0 if batches else timeout_ms, only_ready=bool(batches))
            if fetched is None:
                return
            try:
                fetched.batch.decode()
            except SparklogError as e:
                error = self._unreadable(fetched, e)
                if batches:
                    return  # the next calls raise it
                raise error from e
            moved.setdefault(fetched.position, fetched.position.consumed)
            fetched.position.consumed = fetched.batch.next_offset
            batches.append(fetched.batch)
            remaining_bytes -= max(fetched.size_bytes, fetched.batch.memory_bytes)

    def wakeup(self) -> None:
        """End the wait of another thread in `poll`, `poll_batches` or the loop with WakeupError.

        The call also ends the waits for a broker in `assign`, `seek`, `position` and the look-ups of offsets. If no
        thread waits, the next of these calls raises the error. Any thread can call it; no record is lost.
        """
        self._calls.wakeup()
        self._fetcher.wake()

    def close(self, timeout_s: float | None = None, *, autocommit: bool | None = None) -> None:
        """Stop reading, commit if `enable_auto_commit` is True, and leave the group. A second call does nothing.

        Commits that `commit_async` has begun end first, and their callbacks run.

        From another thread the call ends the wait of the consumer's thread with ClosedError; a loop just ends.

        Args:
            timeout_s: The longest time in seconds for the commit and for leaving the group. None:
                `default.api.timeout.ms`, at most 30 s.
            autocommit: False commits nothing, so the records of the last poll are read again. A `with` block that an
                exception leaves closes the consumer in this way. None: False if another thread perhaps still works on
                records of its last poll (it does not wait in a poll), else True.

        Raises:
            ConcurrentModificationError: Another thread was still inside a call at the end of the time.
            InvalidRequestError: `timeout_s` is not a number.
        """
        if self._closed:
            return
        timeout_ms = self._close_timeout_ms if timeout_s is None else int(arg.wait("timeout_s", timeout_s) * 1000)
        deadline, call = Deadline(timeout_ms), [threading.get_ident()]
        try:
            self._calls.enter_to_close(call, self._fetcher.wake, timeout_ms / 1000)
            if not self._closed:
                is_done = self._in_work_on in (0, call[0])
                self._close(deadline, autocommit=is_done if autocommit is None else autocommit)
        finally:
            self._calls.leave(call)

    def _close(self, deadline: Deadline, *, autocommit: bool) -> None:
        try:
            if self._group is not None:
                self._group.close(int(deadline.left_s * 1000), autocommit=autocommit)
        finally:
            self._closed = "the consumer is closed"
            self._fetcher.close(min(deadline.left_s, CLOSE_S_MAX))
            self._buffer.keep({})
            _live.discard(self)

    def __enter__(self) -> Consumer:
        """Return the consumer; the end of the `with` block closes it.

        A block that an exception leaves (Ctrl-C, too) commits nothing: the records that were not processed are read
        again.
        """
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(autocommit=None if exc_type is None else False)

    def __del__(self, warn: Any = warnings.warn, is_finalizing: Any = sys.is_finalizing) -> None:
        if getattr(self, "_closed", "not made") or is_finalizing():
            return
        self._closed = "the consumer was dropped"
        # a collection can run on any thread, with any lock held: a thread of its own waits for the fetcher's
        with contextlib.suppress(RuntimeError):  # the process ends
            start_new_thread(_abandon, (self._fetcher, self._group))
        warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __repr__(self) -> str:
        group = "" if self._group is None else f" group {self._group.group_id!r}"
        return f"<Consumer {self._cluster.bootstrap_servers}{group}>"

    # -- inside

    @property
    def _close_timeout_ms(self) -> int:
        return min(self._api_timeout_ms, CLOSE_TIMEOUT_MS)

    def _take(self, timeout_ms: float, *, only_ready: bool = False) -> FetchedBatch | None:
        try:
            fetched = self._take_fetched(timeout_ms, only_ready=only_ready)
        except UnknownSchemaError as e:  # of a thread that has decoded a batch
            again = self._begin_anew()
            if again is None:
                raise
            raise again from e
        if fetched is None and self._fetcher.has_diverged and not only_ready:
            self._settle_divergences()
        return fetched

    def _take_fetched(self, timeout_ms: float, *, only_ready: bool) -> FetchedBatch | None:
        rest = self._buffer.take_rest()
        if rest is not None:
            return rest
        if only_ready and not self._fetcher.ready:
            return None
        if only_ready:
            return self._fetcher.take(0.0)
        if self._group is None:
            fetched = self._fetcher.take(max(timeout_ms, 0) / 1000, self._calls.is_signalled)
            if fetched is None:
                self._calls.check_signal()
            return fetched
        group, deadline = self._group, time.monotonic() + max(timeout_ms, 0) / 1000
        while True:
            remaining_s = deadline - time.monotonic()
            try:
                taken = self._fetcher.take(
                    max(0.0, min(remaining_s, group.wait_s)), lambda: group.pending or self._calls.is_signalled()
                )
            except UnknownTopicOrPartitionError:
                if not group.subscribed:
                    raise
                self._reader.start_again(UnknownTopicOrPartitionError)  # the group is about to take it away
                taken = None
            if taken is not None:
                return taken
            self._calls.check_signal()
            if remaining_s <= 0 or self._fetcher.has_diverged:
                return None
            group.update()

    def _deserialized(self, records: list[Record]) -> list[Record]:
        """Return the records before the first one that cannot be deserialized. If there are none, the error is raised,
        now and by later polls."""
        assert self._deserializer is not None
        try:
            return self._deserializer.records(records)
        except DeserializationError as e:
            assert self._buffer.position is not None
            self._fail(self._buffer.position, e)
            raise

    def _unreadable(self, fetched: FetchedBatch, error: Exception) -> SparklogError:
        """Return `error` as a SparklogError, and let poll raise it for the partition from now on."""
        batch, position = fetched.batch, fetched.position
        if isinstance(error, UnknownSchemaError) and (again := self._begin_anew()) is not None:
            return again
        if not isinstance(error, SparklogError):
            error = SparklogError(
                f"{batch.tp}: the batch at offset {batch.base_offset} cannot be converted to Python objects "
                f"({error}): seek there and read it with poll_batches, or seek to offset {batch.next_offset}"
            )
        self._fail(position, error)
        return error

    def _settle_divergences(self) -> None:
        """Choose the next offsets of positions whose leaders lack the records that were read. Raises
        UnknownTopicOrPartitionError once for topics that were deleted and created again; their positions are reset."""
        again = self._begin_anew()
        if again is not None:
            raise again
        self._replace(self._fetcher.settle())

    def _begin_anew(self) -> SparklogError | None:
        """Set the positions in topics that were deleted and created again to auto.offset.reset. Return the error for
        the poll that has noticed it; None if there is no such topic."""
        positions = dict(self._fetcher.positions)
        topics = sorted({tp.topic for tp, p in positions.items() if p.projection.is_of_an_earlier_topic})
        if not topics:
            return None
        for tp, old in positions.items():
            if tp.topic in topics:
                positions[tp] = self._position(tp, None, RESET_TO.get(self._reset))
                positions[tp].paused = old.paused
        self._replace(positions)
        error = UnknownTopicOrPartitionError(
            f"deleted, and created again: {', '.join(map(repr, topics))}; the next poll begins in the new topic at "
            f"auto.offset.reset ({self._reset})"
        )
        _log.warning("%s", error)
        return error

    def _fail(self, position: Position, error: SparklogError) -> None:
        """Let poll raise `error` for the partition from now on."""
        positions = dict(self._fetcher.positions)
        if positions.get(position.tp) is position:
            failed = positions[position.tp] = position.restart()
            failed.error = error
            self._replace(positions)

    def _position(self, tp: TopicPartition, offset: int | None, reset_to: int | None) -> Position:
        newest = partial(self._cluster.topic, tp.topic, refresh=True, timeout_ms=self.settings["request.timeout.ms"])
        projection = Projection(self._cluster.topic(tp.topic), self._columns, newest=newest, follow=True)
        return Position(tp, projection, offset, reset_to)

    def _attempts(self, timeout_ms: int) -> Retries:
        """Return the attempts of a call to the broker; `wakeup` and `close` end them."""
        policy = RetryPolicy(timeout_ms, self.settings["request.timeout.ms"], limit="default.api.timeout.ms")
        return Retries(policy, sleep=self._calls.sleep)

    def _ends(self, partitions: arg.Partitions, timestamp: int) -> dict[TopicPartition, int]:
        times = dict.fromkeys(arg.partitions("partitions", partitions), timestamp)
        return {tp: result.offset for tp, result in self._look_up(times).items()}

    def _look_up(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        attempts = self._attempts(self._api_timeout_ms)
        offsets = find_offsets(self._cluster, times, attempts, isolation=self._isolation)
        return {tp: OffsetAndTimestamp(o.offset, o.timestamp_ms) for tp, o in offsets.items()}

    def _learn(self, topic: str, attempts: Retries, *, refresh: bool = False) -> None:
        """Ask the cluster about a topic. The call waits for a broker that does not answer, as long as `attempts`
        continue."""
        until_answered(
            lambda remaining_ms: self._cluster.topic(topic, refresh=refresh, timeout_ms=remaining_ms), attempts
        )

    def _move(self, partitions: Iterable[TopicPartition], offset: int | None, reset_to: int | None) -> None:
        self._check_open()
        positions = dict(self._fetcher.positions)
        attempts = self._attempts(self._api_timeout_ms)
        for tp in partitions:
            old = self._assigned(tp)
            self._learn(old.tp.topic, attempts)
            new = positions[old.tp] = self._position(old.tp, offset, reset_to)
            new.paused = old.paused
        self._replace(positions)

    def _replace(self, positions: dict[TopicPartition, Position]) -> None:
        self._has_unpolled = True
        self._buffer.keep(positions)
        self._fetcher.replace(positions)

    def _note_poll(self, has_records: bool) -> None:
        """Note that the application has polled the positions that are known, and perhaps got records."""
        if has_records:
            self._in_work_on = threading.get_ident()
        if self._has_unpolled:
            with self._fetcher.changed:
                positions = self._fetcher.positions.values()
                for position in positions:
                    position.is_polled = position.consumed is not None
                self._has_unpolled = not all(p.is_polled for p in positions)

    def _assigned(self, tp: TopicPartition) -> Position:
        position = self._fetcher.positions.get(tp)
        if position is None:
            raise InvalidRequestError(f"{tp} is not assigned: call assign first")
        return position

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(self._closed)


def _abandon(fetcher: Fetcher, group: GroupConsumer | None) -> None:
    """Tell the threads of a dropped consumer to end. The calling thread is not a `threading.Thread`, so it must not
    log."""
    fetcher.begin_to_close()
    if group is not None:
        group.abandon()


@on_exit
def _end_at_exit() -> None:
    """End the consumers that were not closed. As with dropped consumers, the members leave their groups and commit
    nothing."""
    for consumer in list(_live):
        consumer._closed = "the process ends"
        _abandon(consumer._fetcher, consumer._group)


def _drop_after_fork() -> None:
    for consumer in list(_live):
        consumer._closed = "this consumer belongs to the parent process: create one in the child"
        consumer._calls = Calls()  # a thread that the child does not have may have been inside a call
        consumer._fetcher.drop_after_fork()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)
