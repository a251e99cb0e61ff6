"""The outcomes of batches after an attempt to send them: stored, sent again, held, failed.

The module uses no sockets: the sender reports answers and errors, and the module changes queues, sequences and
deliveries.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from sparklog.client.producer.accumulator import Accumulator, PartitionQueue, PendingBatch
from sparklog.client.producer.delivery_errors import NOT_STORED, expired, session_failed, unknown_outcome
from sparklog.client.producer.sequences import AfterFailure, Refusal
from sparklog.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    LeaderNotAvailableError,
    OutOfOrderSequenceError,
    SparklogError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.protocol.messages import ProduceResult

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """The part of a request for one partition."""

    queue: PartitionQueue
    batches: list[PendingBatch]

    @property
    def size_bytes(self) -> int:
        return sum(len(b.encoded.payload) for b in self.batches if b.encoded is not None)


class Outcomes:
    """Handler of the outcomes of the sender's attempts, used by the sender's thread only. `doubt_metadata(topic,
    error)` is called after a failure, unless the answer names the new leader."""

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        backoff_s: float,
        backoff_max_s: float,
        doubt_metadata: Callable[[str, SparklogError], None] = lambda topic, error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accumulator = accumulator
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._doubt_metadata = doubt_metadata
        self._clock = clock

    def answered(self, entry: Entry, result: ProduceResult, *, moved: bool = False) -> None:
        """Handle the broker's answer for these batches. `moved`: True if the answer names a leader that is new to the
        client (KIP-951)."""
        if result.error_code == 0:
            self.stored(entry, result)
            return
        error = error_from_code(result.error_code, result.message)
        definite = isinstance(error, NOT_STORED)
        if isinstance(error, UnknownTopicOrPartitionError):
            # retriable: a broker can learn of a new topic late. If the topic was deleted, the metadata show it
            self._doubt_metadata(entry.queue.tp.topic, error)
            error = LeaderNotAvailableError(str(error))
        self.failed(entry, error, definite=definite, at_once=moved)

    def stored(self, entry: Entry, result: ProduceResult) -> None:
        """Complete batches that are in the log. With acks=0 their offsets are not known (-1)."""
        queue, batches = entry
        if queue.sequences is not None:
            with self._accumulator.lock:
                queue.sequences.stored(batches, self._clock())
        self._accumulator.complete(queue, batches, error=None)
        base_offset = result.base_offset
        for i, batch in enumerate(batches):
            if len(result.base_offsets) == len(batches):
                base_offset = result.base_offsets[i]
            stamped = batch.encoded is not None and batch.encoded.log_append_time
            batch.delivery.complete(base_offset, result.append_time_ms if stamped else -1)
            if base_offset >= 0:
                base_offset += batch.delivery.record_count
        self._restart_sequence(queue)

    def not_sent(self, entry: Entry) -> None:
        """Put batches back that were taken but did not fit into the request."""
        if entry.queue.sequences is not None:
            with self._accumulator.lock:
                entry.queue.sequences.refused(entry.batches, Refusal.RETRIABLE, definite=True)
        self._put_back(entry, 0.0)

    def failed(self, entry: Entry, error: SparklogError, *, definite: bool = False, at_once: bool = False) -> None:
        """Handle a failed attempt.

        `definite`: True if the attempt has stored nothing and never will; False if that is unknown. `at_once`: the next
        leader is known, so the next attempt need not wait.
        """
        queue, batches = entry
        if not at_once:
            self._doubt_metadata(queue.tp.topic, error)
        for batch in batches:
            batch.error = error
        session = self._accumulator.session
        if session is not None and session.error is not None:
            self.give_up(entry, session_failed(session))
            return
        then = self._judge(entry, error, definite=definite)
        if then is AfterFailure.RETRY:
            self._put_back(entry, 0.0 if at_once else self._retry_at(queue, error))
        elif then is AfterFailure.SPLIT:
            # one of the batches has caused the error: each is tried in a request of its own
            for batch in batches:
                batch.alone = True
            self._put_back(entry, 0.0)
        elif then is AfterFailure.HOLD:
            self._accumulator.complete(queue, [], error=None)
        else:
            self.give_up(entry, unknown_outcome(batches[0]) if then is AfterFailure.FAIL_UNKNOWN else error)
        self._restart_sequence(queue)

    def _judge(self, entry: Entry, error: SparklogError, *, definite: bool) -> AfterFailure:
        queue, batches = entry
        if queue.sequences is None:
            return (
                AfterFailure.RETRY if error.retriable else AfterFailure.SPLIT if len(batches) > 1 else AfterFailure.FAIL
            )
        refusal = Refusal.RETRIABLE if error.retriable else Refusal.FATAL
        if isinstance(error, OutOfOrderSequenceError):
            refusal = Refusal.OUT_OF_ORDER
        elif isinstance(error, InvalidProducerEpochError | InvalidProducerIdMappingError):
            refusal = Refusal.NO_IDENTITY
        with self._accumulator.lock:
            return queue.sequences.refused(batches, refusal, definite=definite)

    def not_sendable(self, queue: PartitionQueue, error: SparklogError) -> None:
        """Handle an error before the batches of a queue could be sent. A retriable error, such as a missing leader,
        delays the queue; any other error fails its batches."""
        self._doubt_metadata(queue.tp.topic, error)
        with self._accumulator.lock:
            self._accumulator.locked_close_open(queue)
            if error.retriable:
                queue.retry_at = self._retry_at(queue, error)
                for batch in queue.batches:
                    batch.error = error
                self._accumulator.wake_sender()  # when to wake up next was computed before
                return
            batches = list(queue.batches)
            queue.batches.clear()
            if queue.sequences is not None:
                for batch in batches:
                    queue.sequences.expired(batch)
        self.give_up(Entry(queue, batches), error, release=False)
        self._restart_sequence(queue)

    def expire(self) -> None:
        """Fail batches that are not in flight if they have reached `delivery.timeout.ms`, or if their transaction has
        failed."""
        accumulator = self._accumulator
        with accumulator.lock:
            session = accumulator.session
            late = accumulator.locked_expired(self._clock())
            failed = accumulator.locked_take_all() if session is not None and session.error is not None else []
        for queue, batch in late:
            self.give_up(Entry(queue, [batch]), expired(batch), release=False)
            self._restart_sequence(queue)
        for queue, batches in failed:
            self.give_up(Entry(queue, batches), session_failed(session), release=False)

    def give_up(self, entry: Entry, error: SparklogError, *, release: bool = True) -> None:
        """Fail the batches, and the transaction that they belong to. `release`: True if they were in flight."""
        session = self._accumulator.session
        if session is not None and session.transactional_id is not None and entry.batches:
            self._accumulator.fail_session(error)
        self._accumulator.complete(entry.queue, entry.batches, error=error, release=release)
        for batch in entry.batches:
            batch.delivery.fail(error)

    def _retry_at(self, queue: PartitionQueue, error: SparklogError) -> float:
        now = self._clock()
        if queue.retry_at > now:
            return queue.retry_at  # another request of the partition has failed at the same time
        queue.attempts += 1
        backoff: float = min(self._backoff_s * 2 ** min(queue.attempts - 1, 30), self._backoff_max_s)
        if queue.attempts == 1:
            _log.warning("%s: %s; trying again", queue.tp, error)
        return now + backoff * random.uniform(0.8, 1.2)

    def _put_back(self, entry: Entry, retry_at: float) -> None:
        self._accumulator.put_back(entry.queue, entry.batches, retry_at=retry_at)
        self._accumulator.wake_sender()  # when to wake up next was computed before

    def _restart_sequence(self, queue: PartitionQueue) -> None:
        with self._accumulator.lock:
            begun = self._accumulator.locked_begin_anew(queue)
        if begun:
            self._accumulator.wake_sender()
