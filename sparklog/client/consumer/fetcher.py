"""The state that a consumer's threads share: positions, and the batches fetched ahead of `poll`.

Each broker that serves a partition has a lane (`fetch_lane.py`) with its own thread and connection, so no lane waits
for another broker's answer. The first lane exists from the beginning, finds the leaders, and hands partitions over to
the other lanes. With one broker there is only the first lane.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from sparklog.client.consumer.fetch_lane import FetchLane
from sparklog.client.consumer.fetch_request import FetcherConfig
from sparklog.client.consumer.file_fetcher import FileFetcher, FileFetcherConfig, Piece
from sparklog.client.consumer.position import Divergence, FetchedBatch, Position, ReadyBatches
from sparklog.client.consumer.truncation import go_on_at
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.errors import LogTruncatedError, SparklogError
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

CLOSE_S_MAX = 5.0
LANE_IDLE_S = 60.0

RESET_TO = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class Fetcher:
    """The shared state of a consumer's threads, which start with the first assignment.

    `changed` guards and announces all shared state. The lanes' view of it is `fetch_lane.Shared`, the `FileFetcher`'s
    is `file_fetcher.Taker`.
    """

    def __init__(self, cluster: Cluster, config: FetcherConfig) -> None:
        self._cluster = cluster
        self._config = config
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.positions: dict[TopicPartition, Position] = {}
        self.ready = ReadyBatches()
        self.failure: BaseException | None = None
        self.closed = False
        self.has_diverged = False
        """True if a position waits for `settle`; poll returns nothing until then."""
        self.reset_to = RESET_TO.get(config.reset)
        files = FileFetcherConfig(
            config.partition_max_bytes, config.request_timeout_ms, config.check_crcs, config.isolation
        )
        self.files = FileFetcher(cluster, files, self) if config.local_read else None
        self.lane_idle_s = LANE_IDLE_S
        """Time in s after which a lane without partitions ends."""
        self.first = FetchLane(cluster, config, self, is_first=True)
        self._other_lanes: dict[Endpoint, FetchLane] = {}

    @property
    def lanes(self) -> list[FetchLane]:
        return [self.first, *self._other_lanes.values()]

    # -- the consumer's side

    def replace(self, positions: dict[TopicPartition, Position]) -> None:
        """Set the assignment. A partition that had another Position object, or none, is fetched from the offset of its
        new Position."""
        with self.changed:
            self.positions = positions
            self.ready.keep(positions)
            if positions:
                self.first.start()
            for lane in self.lanes:
                lane.begin_again()
            self.notify()

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """End the threads, and wait for them for at most `timeout_s` in all."""
        self.begin_to_close()
        deadline = time.monotonic() + timeout_s
        for lane in self.lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
        if self.files is not None:
            self.files.close(max(0.0, deadline - time.monotonic()))

    def begin_to_close(self) -> None:
        """Make the threads end, without waiting for them. `take` must not be called afterwards."""
        with self.changed:
            self.closed = True
            self.ready.keep({})
            for lane in self.lanes:
                lane.begin_again()
            self.notify()
            for lane in self.lanes:
                lane.turn.close()
            if self.files is not None:
                self.files.begin_to_close()

    def drop_after_fork(self) -> None:
        """Close a forked child's copies of the descriptors. The child has no other thread that could hold the lock."""
        for lane in self.lanes:
            lane.turn.close()

    def take(self, timeout_s: float, interrupted: Callable[[], bool] = lambda: False) -> FetchedBatch | None:
        """Return the next batch; None if none came within `timeout_s`.

        The wait also ends when `interrupted()` is True after a `wake`, or when `has_diverged` is True. Raises the error
        of a failed partition.
        """
        deadline = time.monotonic() + timeout_s
        looked = False
        first = self.first
        with self.changed:
            if first.turn.poll_receives or self.ready.has_lost(self.positions):
                self._start_over()
        try:
            while True:
                with self.changed:
                    if self.has_diverged:
                        return None
                    if self.ready:
                        self._notify_of_room()
                        return self.ready.take()
                    self._raise_failure()
                    remaining = deadline - time.monotonic()
                    if (remaining <= 0 and looked) or interrupted():
                        return None
                    looked = True
                    first.turn.begin_poll()
                    if first.fetch_for_poll() is None:
                        self._notify_of_room()
                        self.changed.wait(max(remaining, 0))
                        continue
                    first.turn.go_to_socket()
                first.receive_here(deadline)
        finally:
            with self.changed:
                first.turn.end_poll()

    def _start_over(self) -> None:
        """Read everything after the returned records again, because an exception has ended a poll in the middle."""
        self.replace({tp: position.restart() for tp, position in self.positions.items()})
        self.first.forget_request()
        self.notify()

    def _notify_of_room(self) -> None:
        """Wake the threads that wait for memory, if it was full. Waking them for each batch would cost more than the
        batch."""
        if self.ready.size_bytes >= self._config.prefetch_bytes:
            self.notify()

    def notify(self) -> None:
        """Wake all waiting threads; called with `changed` held."""
        self.changed.notify_all()
        for lane in self.lanes:
            lane.turn.notify()

    def wake(self) -> None:
        """Wake a waiting `take`, and the threads."""
        with self.changed:
            self.notify()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise SparklogError(f"the consumer's fetch thread failed: {self.failure!r}") from self.failure
        for position in self.positions.values():
            if position.error is not None:
                raise position.error

    # -- lanes

    def hand_over(self, positions: Iterable[Position], broker: Endpoint) -> None:
        """Hand these partitions over to the lane of `broker`, which is created if necessary."""
        with self.changed:
            if self.closed:
                return
            lane = self.first if broker == self.first.broker else self._other_lanes.get(broker)
            if lane is None:
                lane = self._other_lanes[broker] = FetchLane(self._cluster, self._config, self, broker=broker)
            for position in positions:
                position.lane = None if lane is self.first else lane
            lane.abort()  # a request for its other partitions alone may wait for long
            lane.start()
            self.notify()

    def has_lane(self, broker: Endpoint) -> bool:
        """True if a lane besides the first one fetches from the broker."""
        return broker in self._other_lanes

    def retire(self, lane: FetchLane) -> None:
        """Remove a lane that was idle for `lane_idle_s` and ends now; with `changed` held."""
        self._other_lanes = {broker: other for broker, other in self._other_lanes.items() if other is not lane}

    def share_of_room(self) -> int:
        """Return the number of lanes that share the remaining memory; with `changed` held."""
        return len({id(p.lane) for p in self.positions.values()}) or 1

    def rotate(self, served: list[Position]) -> None:
        """Move the partitions that got data to the end of the order, so that none starves."""
        with self.changed:
            current = self.positions  # others copy it without a lock, so it is never changed itself
            moved = {p.tp: p for p in served if current.get(p.tp) is p}
            if len(moved) < len(current):
                self.positions = {tp: p for tp, p in current.items() if tp not in moved} | moved

    # -- fetched records

    def has_room(self) -> bool:
        return self.ready.size_bytes < self._config.prefetch_bytes or (self.first.turn.is_polling and not self.ready)

    def wait_for_room(self, position: Position) -> bool:
        """Wait until there is memory for more batches of the position. Returns False if it is no longer read."""
        with self.changed:
            while self.is_needed(position) and not self.has_room():
                self.changed.wait()
            return self.is_needed(position)

    def is_needed(self, position: Position) -> bool:
        return not self.closed and self.positions.get(position.tp) is position

    def are_needed(self, positions: list[Position]) -> bool:
        """True if all positions are current ones of an open consumer."""
        with self.changed:
            return all(self.is_needed(p) for p in positions)

    def deliver(self, position: Position, piece: Piece, *, by_first: bool = False) -> None:
        """Add a piece for poll. `by_first`: True on the thread that has the first lane's turn, which can be the polling
        thread."""
        with self.changed:
            if self.is_needed(position):
                position.end_at(piece.batches, piece.start_offset, piece.end_offset, piece.epoch)
                self.ready.add(position, piece.batches, piece.size_bytes)
            if not by_first:
                self.notify()
            elif not self.first.turn.poll_receives:  # else the waiting thread is this one
                self.changed.notify_all()

    def take_back(self, position: Position) -> None:
        with self.changed:
            if not self.is_needed(position):
                return
            for lane in self.lanes:
                if position.lane is lane or (position.lane is None and lane is self.first):
                    lane.make_way()
            position.from_files = False
            self.notify()

    def fail_positions(self, positions: list[Position], error: SparklogError) -> None:
        """Let poll raise `error` for these positions."""
        with self.changed:
            for position in positions:
                position.error = error
            self.notify()

    def diverge(self, divergences: Iterable[tuple[Position, Divergence]]) -> None:
        """Note positions whose leaders lack the records that were read. The polling thread chooses the next offset in
        `settle`."""
        with self.changed:
            for position, divergence in divergences:
                if self.is_needed(position):
                    position.divergence = divergence
                    self.has_diverged = True
            self.notify()

    def settle(self) -> dict[TopicPartition, Position]:
        """Return the positions after the settlement of divergences: a diverged position restarts at its new offset, or
        has an error. Call it on the polling thread."""
        with self.changed:
            self.has_diverged = False
            positions = dict(self.positions)
            for tp, position in positions.items():
                if position.divergence is None:
                    continue
                new = positions[tp] = position.restart()
                try:
                    new.begin_at(*go_on_at(position, position.divergence, resets=self.reset_to is not None))
                except LogTruncatedError as e:
                    new.error = e
            return positions

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = error
            self.notify()
