"""Reading of the broker's files on the same host, for partitions that are behind.

The fetch thread hands a partition over when an answer has left records behind (`take_over`). The fetch thread gets the
partition back at the end of the files, or after any error of the files: then fetching brings the data, or the broker's
error. So a consumer that keeps up with the log never asks for files.

One look-up of files covers about STRETCH_BYTES. Therefore neither the mapped memory nor the time for which deleted
records are still read grows with the log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparklog.client.consumer.position import Position
from sparklog.client.net.background import daemon_thread
from sparklog.client.net.cluster import Cluster
from sparklog.client.reading.consumed import ConsumedBatch, decode_one
from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.client.reading.segment_files import LOCAL_RETRY_S, MappedBatch, is_only_remote, locate, mapped_batches
from sparklog.errors import LocalReadUnavailableError, SparklogError
from sparklog.protocol.messages import LocateSegmentsResponse
from sparklog.settings import MIB
from sparklog.types import READ_COMMITTED, TopicPartition

_log = logging.getLogger(__name__)

PROBE_BYTES = 256 * 1024
"""Bytes of a partition's first fetch if the client can perhaps map files: enough to see if the partition is behind."""
STRETCH_BYTES = 64 * MIB
AGAIN_BYTES_MIN = MIB
"""Size in bytes of a stretch from which on files are looked up again, although the stretch has reached the end of the
log. After a smaller stretch the socket waits for more."""


class FileFetcherConfig(NamedTuple):
    """The consumer's settings that matter for files."""

    piece_bytes: int
    request_timeout_ms: int
    check_crcs: bool
    isolation: int


class Piece(NamedTuple):
    """A part of a partition: `batches` of `size_bytes` with the rows of [start_offset, end_offset). `epoch` is the
    leader epoch of the last batch."""

    batches: list[ConsumedBatch]
    start_offset: int
    end_offset: int
    size_bytes: int
    epoch: int


class Taker(Protocol):
    """The receiver of the pieces (the Fetcher). `changed` guards and announces its state."""

    changed: threading.Condition

    def is_needed(self, position: Position) -> bool:
        """True if the position is a current one of an open consumer; with `changed` held."""
        ...

    def has_room(self) -> bool:
        """True if there is memory for another piece. Call it with `changed` held."""
        ...

    def deliver(self, position: Position, piece: Piece) -> None:
        """Hand batches to poll; they are dropped if the position is no longer read."""
        ...

    def take_back(self, position: Position) -> None:
        """Give the position back to the socket, if it is still wanted."""
        ...

    def fail(self, error: BaseException) -> None:
        """Let poll raise that the thread has failed with `error`."""
        ...


class Stretch:
    """Located ranges of a partition, handed out piece by piece. Pure but for the files."""

    def __init__(self, tp: TopicPartition, offset: int, located: LocateSegmentsResponse, isolation: int) -> None:
        self._tp = tp
        self._begin = offset
        self.offset = offset
        self.size_bytes = sum(r.end_position - r.start_position for r in located.ranges)
        self._bound = located.last_stable_offset if isolation == READ_COMMITTED else located.high_watermark
        self._aborted = AbortedOffsets(located.aborted)
        self._batches: Iterator[MappedBatch] = mapped_batches(located.ranges)
        self.has_ended = False

    @property
    def is_followed(self) -> bool:
        """True if it is worth looking up the next stretch: this one has moved the offset, and more than a little
        probably follows."""
        return self.offset > self._begin and (self.offset < self._bound or self.size_bytes >= AGAIN_BYTES_MIN)

    @property
    def bytes_per_offset(self) -> float:
        return self.size_bytes / max(self.offset - self._begin, 1)

    def read(self, position: Position, max_bytes: int, *, check_crcs: bool) -> tuple[Piece, Exception | None]:
        """Return the next batches, up to about `max_bytes` of memory, and the error that has ended the reading, or
        None. At the end of the stretch `has_ended` is True."""
        batches: list[ConsumedBatch] = []
        start, size, epoch = self.offset, 0, position.epoch
        error: Exception | None = None
        try:
            while size < max_bytes:
                next_batch = next(self._batches, None)
                if next_batch is None:
                    self.has_ended = True
                    break
                if next_batch.header.leader_epoch > position.checked_epoch:
                    raise LocalReadUnavailableError(
                        f"{self._tp}: offset {next_batch.header.base_offset} is of leader epoch {next_batch.header.leader_epoch}, "
                        "whose leader has not confirmed the records before it"
                    )
                batch = decode_one(
                    next_batch.data,
                    next_batch.view,
                    next_batch.position,
                    next_batch.header,
                    self._tp,
                    position.projection,
                    self.offset,
                    None,
                    check_crcs=check_crcs,
                    aborted=self._aborted,
                )
                if batch is not None:
                    batches.append(batch)
                    size += batch.memory_bytes
                self.offset, epoch = max(self.offset, next_batch.header.next_offset), next_batch.header.leader_epoch
        except (SparklogError, OSError) as e:
            error = e
        return Piece(batches, start, self.offset, size, epoch), error


@dataclass(slots=True)
class _Turn:
    """A position that is read from files, and the stretch that is being read. `bytes_per_offset` is an estimate for the
    size of the next stretch."""

    position: Position
    bytes_per_offset: float
    stretch: Stretch | None = None


class FileFetcher:
    """Reader of files on a thread of its own, while the fetch thread waits for the broker. The thread starts with the
    first partition. Partitions take turns, one piece each."""

    def __init__(self, cluster: Cluster, config: FileFetcherConfig, taker: Taker) -> None:
        self._cluster = cluster
        self._config = config
        self._taker = taker
        self.stretch_bytes = STRETCH_BYTES
        """Approximate size of the ranges that are located at once."""
        self._turns: deque[_Turn] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def may_read(self, tp: TopicPartition) -> bool:
        """True if it is worth asking the partition's leader for files on this host. Raises the errors of
        `Cluster.leader`."""
        return self._cluster.local_reads.is_worth_trying(self._cluster.leader(tp))

    def is_here(self, tp: TopicPartition, offset: int) -> bool:
        """True if it is worth asking for the file of this offset: the leader perhaps offers files, and the offset is
        not only in the object store. Raises the errors of `Cluster.leader`."""
        return self.may_read(tp) and not is_only_remote(self._cluster, tp, offset)

    def take_over(self, position: Position, bytes_per_offset: float) -> None:
        """Continue a position from files, until `Taker.take_back`. Called with `changed` held."""
        self._turns.append(_Turn(position, bytes_per_offset))
        if self._thread is None:
            self._thread = daemon_thread(self._run, "sparklog-consumer-files")
            self._thread.start()
        self._taker.changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """End the thread; `changed` must not be held."""
        with self._taker.changed:
            self.begin_to_close()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def begin_to_close(self) -> None:
        """Let the thread end after its present piece; called with `changed` held."""
        self._closed = True
        self._taker.changed.notify_all()

    def _run(self) -> None:
        try:
            while self._take_turn():
                pass
        except BaseException as e:  # noqa: BLE001  poll raises it
            _log.exception("the consumer's thread for files failed")
            self._taker.fail(e)

    def _take_turn(self) -> bool:
        """Read a piece of the next position; False at the end."""
        turn = self._next_turn()
        if turn is None:
            return False
        if self._read(turn):
            with self._taker.changed:
                self._turns.append(turn)
        else:
            self._taker.take_back(turn.position)
        return True

    def _next_turn(self) -> _Turn | None:
        """Return the next turn of a position that is still read, when there is room for its data; None at the end."""
        with self._taker.changed:
            while not self._closed:
                while self._turns and not self._taker.is_needed(self._turns[0].position):
                    self._turns.popleft()
                if self._turns and self._taker.has_room():
                    return self._turns.popleft()
                self._taker.changed.wait()
            self._turns.clear()
        return None

    def _read(self, turn: _Turn) -> bool:
        """Deliver a piece. True if the files have more for the position."""
        position, config = turn.position, self._config
        stretch = turn.stretch = turn.stretch or self._locate(turn)
        if stretch is None:
            return False
        piece, error = stretch.read(position, config.piece_bytes, check_crcs=config.check_crcs)
        self._taker.deliver(position, piece)
        if error is not None:
            self._note(position, error)
            return False
        if stretch.has_ended:
            turn.bytes_per_offset, turn.stretch = stretch.bytes_per_offset, None
        return not stretch.has_ended or stretch.is_followed

    def _locate(self, turn: _Turn) -> Stretch | None:
        """Return the next stretch; None if reading has to continue through the socket."""
        config, position, offset = self._config, turn.position, turn.position.offset
        assert offset is not None
        try:
            if not self.is_here(position.tp, offset):
                return None
            leader = self._cluster.leader(position.tp)
            end = offset + 1 + int(self.stretch_bytes / max(turn.bytes_per_offset, 1e-3))
            timeout_ms = config.request_timeout_ms
            located = locate(self._cluster, leader, position.tp, offset, end, config.isolation, timeout_ms=timeout_ms)
        except (SparklogError, OSError) as e:
            _log.debug("reading %s through the socket: %s", position.tp, e)
            return None
        return Stretch(position.tp, offset, located, config.isolation) if located.ranges else None

    def _note(self, position: Position, error: Exception) -> None:
        """Log a failed read of a file at debug level. After an OSError that is not a missing file, such as a lack of
        permission, the broker's files are not tried again for LOCAL_RETRY_S."""
        _log.debug("reading %s through the socket: %s", position.tp, error)
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            with contextlib.suppress(SparklogError):  # the reader that goes on through the socket reports this error
                self._cluster.local_reads.avoid(self._cluster.leader(position.tp), LOCAL_RETRY_S)
