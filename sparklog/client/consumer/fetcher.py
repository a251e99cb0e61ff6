"""The consumer's background thread: resolves positions, fetches ahead of `poll`, decodes.

The next request goes out before the data of the last are decoded: the broker sends while the client looks at what it
has.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from sparklog.client.consumer.fetch_answer import Part, UnderWay
from sparklog.client.consumer.fetch_connection import FetchConnection
from sparklog.client.consumer.fetch_request import FetcherConfig, fetch_request
from sparklog.client.consumer.fetch_turn import PART_HEADER_BYTES, SPARSE_BYTES, FetchTurn
from sparklog.client.consumer.file_fetcher import FileFetcher, FileFetcherConfig, Piece
from sparklog.client.consumer.position import Fetched, Position, ReadyBatches
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.errors import OffsetOutOfRangeError, SparklogError, error_from_code
from sparklog.protocol.messages import Api, FetchResult
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, TopicPartition

_log = logging.getLogger(__name__)

BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0
CLOSE_S_MAX = 5.0

RESET_TO = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class Fetcher:
    """Starts its thread with the first assignment; `changed` guards and announces all shared state."""

    def __init__(self, cluster: Cluster, config: FetcherConfig) -> None:
        self._cluster = cluster
        self._config = config
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self._turn = FetchTurn(lock)
        self.positions: dict[TopicPartition, Position] = {}
        self.ready = ReadyBatches()
        self.failure: BaseException | None = None
        self._closed = False
        self._connection = FetchConnection(cluster, lock, config.request_timeout_ms)
        self._under_way: UnderWay | None = None
        """The request that went ahead; belongs to whose turn it is."""
        """What poll has received without sending the request that follows."""
        self._in_background = False
        """The background thread is at work."""
        self._backoff_s = BACKOFF_S
        self._resume_at = 0.0
        self._logged = ""
        self._thread: threading.Thread | None = None
        files = FileFetcherConfig(
            config.partition_max_bytes, config.request_timeout_ms, config.check_crcs, config.isolation
        )
        self._files = FileFetcher(cluster, files, self) if config.local_read else None

    # -- the consumer's side

    def replace(self, positions: dict[TopicPartition, Position]) -> None:
        """Sets the assignment; partitions that are not in it, or whose Position is another object, start afresh."""
        with self.changed:
            self.positions = positions
            self.ready.keep(positions)
            self._resume_at = 0.0
            if self._thread is None and positions:
                self._thread = threading.Thread(target=self._run, name="sparklog-consumer", daemon=True)
                self._thread.start()
            self._connection.abort()
            self._tell()

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Ends the threads, and waits for each of them."""
        self.begin_to_close()
        deadline = time.monotonic() + timeout_s
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._files is not None:
            self._files.close(max(0.0, deadline - time.monotonic()))

    def begin_to_close(self) -> None:
        """The threads end; poll is not called any more."""
        with self.changed:
            self._closed = True
            self.ready.keep({})
            self._connection.abort()
            self._tell()
            self._turn.close()
            if self._files is not None:
                self._files.begin_to_close()

    def drop_after_fork(self) -> None:
        """Closes a forked child's copies of the descriptors; nobody is there who may have the lock."""
        self._turn.close()

    def take(self, timeout_s: float, interrupted: Callable[[], bool] = lambda: False) -> Fetched | None:
        """The next batch, waiting for one up to `timeout_s`, or until `interrupted` says so after a `wake`. Raises
        what a partition failed with."""
        deadline = time.monotonic() + timeout_s
        looked = False
        with self.changed:
            if self._turn.poll_receives or self.ready.has_lost(self.positions):
                self._start_over()
        try:
            while True:
                with self.changed:
                    if self.ready:
                        self._tell_of_room()
                        return self.ready.take()
                    self._raise_failure()
                    remaining = deadline - time.monotonic()
                    if (remaining <= 0 and looked) or interrupted():
                        return None
                    looked = True
                    self._turn.begin_poll()
                    if self._left_to_poll() is None:
                        self._tell_of_room()
                        self.changed.wait(max(remaining, 0))
                        continue
                    self._turn.go_to_socket()
                self._receive_here(deadline)
        finally:
            with self.changed:
                self._turn.end_poll()

    def _knows(self, positions: list[Position]) -> bool:
        """Whether nobody has to be asked for their leaders."""
        return all(self._cluster.knows(topic) for topic in {p.tp.topic for p in positions})

    def _left_to_poll(self) -> UnderWay | None:
        """The request whose answer poll receives, if it is poll's turn."""
        under_way = self._under_way
        if under_way is None or self._in_background or self._connection.has_aborted or self._closed:
            return None
        return under_way if self._turn.is_polls(under_way.connection) else None

    def _receive_here(self, deadline: float) -> None:
        """Receives the answer on the polling thread, if it comes in time, all of it, and nothing has to be asked
        for."""
        under_way = self._under_way
        if under_way is not None:
            connection, positions = under_way.connection, under_way.positions
            is_there = connection.read_ahead()
            while not (is_there or connection.is_answer_large) and self._turn.is_readable(connection, deadline):
                is_there = connection.read_ahead()
            if is_there and self._knows(positions):
                self._under_way = None
                self._step(positions, under_way)
            elif is_there or connection.has_read_ahead:
                self._turn.is_sparse = False
        with self.changed:
            self._turn.leave_socket()
            if self._left_to_poll() is None:
                self._tell()

    def _start_over(self) -> None:
        """An exception has ended a poll in the middle: everything is read again from behind what was returned."""
        self.replace({tp: position.afresh() for tp, position in self.positions.items()})
        self._under_way = None
        self._turn.leave_socket()
        self._tell()

    def _tell_of_room(self) -> None:
        """Wakes the threads if they may be waiting for memory: to wake them for each batch would cost more than it
        has."""
        if self.ready.size_bytes >= self._config.prefetch_bytes:
            self._tell()

    def _tell(self) -> None:
        """All look again: with `changed` held."""
        self.changed.notify_all()
        self._turn.tell()

    def wake(self) -> None:
        """Lets a `take` that waits, and the thread, look again."""
        with self.changed:
            self._tell()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise SparklogError(f"the consumer's fetch thread failed: {self.failure!r}") from self.failure
        for position in self.positions.values():
            if position.error is not None:
                raise position.error

    # -- the thread

    def _run(self) -> None:
        try:
            while (wanted := self._wait_for_work()) is not None:
                ahead, self._under_way = self._under_way, None
                self._step(wanted, ahead)
        except BaseException as e:  # noqa: BLE001  poll raises it
            _log.exception("the consumer's fetch thread failed")
            self.fail(e)
        finally:
            self._connection.drop()

    def _wait_for_work(self) -> list[Position] | None:
        """The positions of the request under way, or those to fetch for, least recently served first, when there is
        memory for more; None at the end."""
        with self.changed:
            self._in_background = False
            if self._turn.is_polling:
                self.changed.notify_all()  # it may be poll's turn
            while not self._closed:
                now = time.monotonic()
                left = self._left_to_poll()
                if self._turn.poll_receives or left is not None:
                    self._turn.leave_to_poll(None if left is None else left.connection)
                    continue
                wanted = [p for p in self.positions.values() if p.is_fetchable]
                if self._under_way is not None:
                    wanted = self._under_way.positions
                elif now < self._resume_at:
                    self._turn.wait_in_background(self._resume_at - now)
                    continue
                if self._under_way is not None or (wanted and self.has_room()):
                    self._in_background = True
                    return wanted
                self._turn.wait_in_background()
        return None

    def _step(self, wanted: list[Position], ahead: UnderWay | None) -> None:
        """Receives what `ahead` asked for, or asks for what is `wanted`; deals with what goes wrong."""
        try:
            if ahead is None:
                self._fetch_once(wanted)
            else:
                self._take_answer(ahead)
            self._backoff_s, self._logged = BACKOFF_S, ""
        except SparklogError as e:
            self._under_way = None
            if self._connection.drop() or not self._is_current(wanted):
                return
            if not e.retriable:
                self._fail(wanted, e)
                return
            _log.log(logging.INFO if str(e) == self._logged else logging.WARNING, "%s; trying again", e)
            self._logged = str(e)
            for topic in {p.tp.topic for p in wanted}:
                self._cluster.expire(topic)
            with self.changed:
                if self._is_current(wanted):
                    self._resume_at = time.monotonic() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S_MAX)

    def _is_current(self, positions: list[Position]) -> bool:
        with self.changed:
            return not self._closed and all(self.positions.get(p.tp) is p for p in positions)

    def _fail(self, positions: list[Position], error: SparklogError) -> None:
        with self.changed:
            for position in positions:
                position.error = error
            self._tell()

    def _fetch_once(self, wanted: list[Position]) -> None:
        unresolved = [p for p in wanted if p.offset is None]
        if unresolved:
            self._resolve(unresolved)
        by_leader: dict[Endpoint, list[Position]] = {}
        for position in wanted:
            if position.error is None and position.offset is not None:
                leader = self._cluster.leader(position.tp, timeout_ms=self._config.request_timeout_ms)
                by_leader.setdefault(leader, []).append(position)
        for leader, positions in by_leader.items():
            self._fetch_from(leader, positions, wait=len(by_leader) == 1)

    def _resolve(self, positions: list[Position]) -> None:
        """Finds the offsets of positions that say only earliest or latest."""
        for position in positions:
            if position.reset_to is None:
                error = OffsetOutOfRangeError(
                    f"{position.tp} has no position and auto.offset.reset is none: seek to an offset first"
                )
                self._fail([position], error)
        asked = {p.tp: p.reset_to for p in positions if p.reset_to is not None}
        if not asked:
            return
        config = self._config
        found = list_offsets(self._cluster, asked, isolation=config.isolation, timeout_ms=config.request_timeout_ms)
        with self.changed:
            for position in positions:
                if position.tp in found and position.offset is None:  # `position()` may have asked, too
                    position.offset = position.consumed = found[position.tp].offset
            self._tell()

    def _fetch_from(self, leader: Endpoint, positions: list[Position], *, wait: bool) -> None:
        under_way = self._ask(leader, positions, self._config.max_wait_ms if wait else 0)
        if under_way is not None:
            self._take_answer(under_way, go_ahead=wait)

    def _ask(
        self, leader: Endpoint, positions: list[Position], wait_ms: int, *, taken_bytes: int = 0
    ) -> UnderWay | None:
        """Sends a request; None when the positions are gone. `taken_bytes` of prefetch.bytes are spoken for."""
        config = self._config
        with self.changed:
            room_bytes = config.prefetch_bytes - self.ready.size_bytes - taken_bytes
        request, asked = fetch_request(
            config, positions, room_bytes=room_bytes, wait_ms=wait_ms, is_probe=self._is_probe
        )
        connection = self._connection.to(leader)
        if not self._is_current(positions):
            return None
        connection.send(Api.FETCH, request, timeout_ms=config.request_timeout_ms + config.max_wait_ms)
        return UnderWay(leader, connection, asked)

    def _take_answer(self, under_way: UnderWay, *, go_ahead: bool = True) -> None:
        """Receives and decodes; with `go_ahead` the next request is sent in between, if nothing is wrong or has
        changed."""
        parts, size_bytes = under_way.receive()
        again: SparklogError | None = None
        for part in parts:
            part.position.is_new = False
        self._rotate([p.position for p in parts if p.result.length_bytes])
        behind = self._leave_to_files(parts)
        self._turn.is_sparse = size_bytes + len(parts) * PART_HEADER_BYTES <= SPARSE_BYTES
        if go_ahead and all(p.result.error_code == 0 for p in parts) and self._advance(parts):
            self._go_ahead(under_way, size_bytes)
        for part in parts:
            position = part.position
            try:
                self._take_part(part)
            except SparklogError as e:
                behind.pop(position, None)
                position.from_files = False
                if e.retriable:
                    self._step_back(part)
                    again = again or e  # the others have their answer all the same
                else:
                    self._fail([position], e)
        with self.changed:
            for position, bytes_per_offset in behind.items():  # what came before has been delivered
                assert self._files is not None
                self._files.take_over(position, bytes_per_offset)
        if again is not None:
            raise again

    def _advance(self, parts: list[Part]) -> bool:
        """Moves the positions behind what has come; False when it is not known where to before everything is
        checked."""
        if any(p.next_offset is None for p in parts):
            return False
        with self.changed:
            for part in parts:
                part.position.offset = part.next_offset
        return True

    def _step_back(self, part: Part) -> None:
        """What has come has not been taken, or not all of it: the rest is fetched again."""
        with self.changed:
            part.position.offset = part.offset

    def _go_ahead(self, last: UnderWay, taken_bytes: int) -> None:
        """Sends the request that follows `last`, for the partitions that stay with the socket, if there will be room
        for its answer."""
        with self.changed:
            wanted = [p for p in self.positions.values() if p.is_fetchable]
            is_room = self.ready.size_bytes + taken_bytes < self._config.prefetch_bytes
        if not is_room or not wanted or not last.is_for(wanted):
            return
        with contextlib.suppress(SparklogError):  # the next request meets it again, when what has come is safe
            if all(self._cluster.leader(p.tp) == last.leader for p in wanted):
                self._under_way = self._ask(last.leader, wanted, self._config.max_wait_ms, taken_bytes=taken_bytes)

    def _take_part(self, part: Part) -> None:
        position, offset, result = part.position, part.offset, part.result
        if position.error is not None:
            return
        if result.error_code == OffsetOutOfRangeError.code:
            self._out_of_range(position, result)
            return
        if result.error_code:
            raise error_from_code(result.error_code, result.message)
        if not result.length_bytes:
            return
        batches: list[ConsumedBatch] = []
        failure: SparklogError | None = None
        try:
            for batch in part.decode(check_crcs=self._config.check_crcs):
                batches.append(batch)
            end = part.end_offset
        except SparklogError as e:  # what is before is intact
            failure, end = e, batches[-1].next_offset if batches else offset
        self._deliver(position, Piece(batches, offset, end, result.length_bytes))
        part.offset = end
        if failure is not None:
            raise failure

    def _rotate(self, served: list[Position]) -> None:
        """Puts partitions that got data behind those that did not, so that none starves."""
        with self.changed:
            current = self.positions  # others copy it without a lock, so it is never changed itself
            moved = {p.tp: p for p in served if current.get(p.tp) is p}
            if len(moved) < len(current):
                self.positions = {tp: p for tp, p in current.items() if tp not in moved} | moved

    def _out_of_range(self, position: Position, result: FetchResult) -> None:
        where = f"offset {position.offset} of {position.tp} is outside of {result.log_start_offset} to {result.high_watermark}"
        if self._config.reset not in RESET_TO:
            self._fail(
                [position], OffsetOutOfRangeError(f"{where}, and auto.offset.reset is none: seek to a valid offset")
            )
            return
        _log.warning("%s: going on at the %s", where, self._config.reset)
        with self.changed:
            position.reset_to = RESET_TO[self._config.reset]
            position.offset = None

    # -- files

    def _is_probe(self, position: Position) -> bool:
        return self._files is not None and position.is_new and self._files.may_read(position.tp)

    def _leave_to_files(self, parts: list[Part]) -> dict[Position, float]:
        """The partitions that this answer has not brought to their ends, so that reading files pays, with their bytes
        per offset; they are not fetched from now on."""
        behind: dict[Position, float] = {}
        for part in parts if self._files is not None else ():
            result, end = part.result, part.next_offset
            bound = result.last_stable_offset if self._config.isolation == READ_COMMITTED else result.high_watermark
            if end is None or not part.offset < end < bound:
                continue
            with contextlib.suppress(SparklogError):
                if self._files is not None and self._files.is_here(part.position.tp, end):
                    behind[part.position] = result.length_bytes / (end - part.offset)
        with self.changed:
            for position in behind:
                position.from_files = True
        return behind

    def has_room(self) -> bool:
        return self.ready.size_bytes < self._config.prefetch_bytes or (self._turn.is_polling and not self.ready)

    def is_wanted(self, position: Position) -> bool:
        return not self._closed and self.positions.get(position.tp) is position

    def deliver(self, position: Position, piece: Piece) -> None:
        with self.changed:
            self._deliver(position, piece)
            self._tell()

    def _deliver(self, position: Position, piece: Piece) -> None:
        with self.changed:
            if not self.is_wanted(position):
                return
            position.end_at(piece.batches, piece.start_offset, piece.end_offset)
            self.ready.add(position, piece.batches, piece.size_bytes)
            if not self._turn.poll_receives:  # else who waits for it is here
                self.changed.notify_all()

    def take_back(self, position: Position) -> None:
        with self.changed:
            if not self.is_wanted(position):
                return
            if any(p.is_fetchable for p in self.positions.values()):
                self._connection.abort()  # it may wait for the others alone for long
            position.from_files = False
            self._tell()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = error
            self._tell()
