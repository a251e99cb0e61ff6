"""Answers followers' fetches (REPLICA_FETCH).

A session keeps a follower's fetches that wait. A partition in a request is *armed* until one answer contains it. Then
the follower must name it again, with its new position. Armed partitions without new records cost no work, however many
there are (KIP-227).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from msgspec import Struct, field

from sparklog.errors import (
    InvalidFetchSessionError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    SparklogError,
)
from sparklog.format.gaps import gaps_within
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import FileSlice, RemoteReadRequired
from sparklog.protocol.cluster_messages import (
    EPOCHS_MAX,
    GAPS_MAX,
    SEGMENTS_MAX,
    EpochBegin,
    MissingOffsets,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from sparklog.replication.replica.model import FetchAccepted, FetchDiverging, FetchRefused, FollowerFetch
from sparklog.types import TopicPartition
from sparklog_broker.cluster.leader_side.remote_pieces import RemotePieces
from sparklog_broker.cluster.replica import UNKNOWN, ClusterReplica
from sparklog_broker.cluster.replication_throttle import Quota, is_throttled
from sparklog_broker.counters.replication import ReplicationCounters
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.partitions import Partitions

SLICES_MAX = 1_000
"""Largest number of file slices in one answer; each can keep a file open."""
LATE_MS = 700
"""Time in ms after the end of a fetch's wait, after which the follower's next fetch is late."""
FETCHED_RECENTLY_MS = 10_000
"""Time in ms after which a follower without a fetch is taken for one that does not copy from this broker any more."""
SESSIONS_MAX = 1_000


class _ArmedPartition(NamedTuple):
    requested: ReplicaFetchPartition
    noted_by: object
    """The `ClusterReplica.state` that has recorded the fetch. After a change of it, the follower must fetch again."""


class _Session(Struct, eq=False):
    session_id: int
    broker_epoch: int
    last_fetch_ms: int
    remote_reads: Executor | None
    late_at_ms: int = 0
    """Time from which the follower's next fetch is late, in ms."""
    epoch: int = 0
    armed: dict[TopicPartition, _ArmedPartition] = field(default_factory=dict)
    ready: dict[TopicPartition, None] = field(default_factory=dict)
    """Armed partitions for which there is perhaps something to answer."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    pieces: RemotePieces = field(default_factory=lambda: RemotePieces(None, lambda _: None))

    def __post_init__(self) -> None:
        self.pieces = RemotePieces(self.remote_reads, self.wake)

    def wake(self, key: TopicPartition) -> None:
        """Mark an armed partition as ready to answer."""
        if key in self.armed:
            self.ready[key] = None
            self.news.set()

    def disarm(self, key: TopicPartition) -> None:
        self.armed.pop(key, None)
        self.ready.pop(key, None)
        self.pieces.drop(key)


class ReplicaServer:
    """Serves followers; each has one session. Event-loop thread only."""

    def __init__(
        self,
        partitions: Partitions,
        now_ms: Callable[[], int],
        answer_bytes_max: int,
        remote_reads: Executor | None = None,
    ) -> None:
        """`remote_reads`: threads that wait for the object store; None for the loop's executor."""
        self.counters = ReplicationCounters()
        """Counters of replication on this broker, in both directions."""
        self._remote_reads = remote_reads
        self._partitions = partitions
        self._now_ms = now_ms
        self._answer_bytes_max = answer_bytes_max
        self._sessions: dict[int, _Session] = {}
        self._last_id = 0
        self.quota = Quota(now_ms)
        """Limit of the bytes that are sent to replicas that are being added."""

    def on_new_data(self, key: TopicPartition) -> None:
        """Wake the sessions that wait for the partition, after new records, a new high watermark or log start, or a
        change of leader."""
        for session in self._sessions.values():
            session.wake(key)

    def last_fetch_ms(self, broker_id: int) -> int:
        """Return the time of a broker's last fetch, in ms; 0 before its first fetch."""
        session = self._sessions.get(broker_id)
        return 0 if session is None else session.last_fetch_ms

    def silent_followers(self) -> list[int]:
        """Return the brokers that have fetched in the last FETCHED_RECENTLY_MS and whose next fetch is late."""
        now_ms = self._now_ms()
        return [i for i, s in self._sessions.items() if s.late_at_ms <= now_ms < s.late_at_ms + FETCHED_RECENTLY_MS]

    async def answer(self, request: ReplicaFetchRequest, times: RequestTimes | None = None) -> Response:
        """Answer a fetch, and add the time that it waits to `times`. Raises InvalidFetchSessionError,
        InvalidRequestError."""
        session = self._session_of(request)
        session.late_at_ms = self._now_ms() + request.max_wait_ms + LATE_MS
        results: list[ReplicaFetchResult] = []
        for forgotten in request.forgotten:
            session.disarm(TopicPartition(forgotten.topic, forgotten.partition))
        for requested in request.partitions:
            self._arm(session, request, requested, results)
        room = min(request.max_bytes, self._answer_bytes_max)
        slices: list[FileSlice] = []
        try:
            self._collect(session, request.replica_id, results, slices, room)
            if not results:
                began_ms = self._now_ms()
                try:
                    await self._wait(session, self._patience_ms(session, request) / 1_000)
                finally:
                    if times is not None:
                        times.wait_s += (self._now_ms() - began_ms) / 1_000
                self._check_current(session, request)
                self._collect(session, request.replica_id, results, slices, room)
        except BaseException:
            for piece in slices:
                piece.release()
            raise
        return Response(ReplicaFetchResponse(session.session_id, results), list(slices))

    def _session_of(self, request: ReplicaFetchRequest) -> _Session:
        if request.session_epoch == 0:
            if request.replica_id not in self._sessions and len(self._sessions) >= SESSIONS_MAX:
                raise InvalidRequestError(f"{SESSIONS_MAX} brokers fetch from this broker already, the most allowed")
            self._last_id += 1
            before = self._sessions.get(request.replica_id)
            if before is not None:
                before.news.set()  # an earlier request may still wait
                before.pieces.close()
            session = _Session(self._last_id, request.broker_epoch, self._now_ms(), self._remote_reads)
            self._sessions[request.replica_id] = session
            return session
        current = self._sessions.get(request.replica_id)
        if (
            current is None
            or current.session_id != request.session_id
            or current.epoch + 1 != request.session_epoch
            or current.broker_epoch != request.broker_epoch  # the armed fetches are from another life of the follower
        ):
            raise InvalidFetchSessionError(f"broker {request.replica_id}: fetch session not found: begin a new one")
        current.epoch, current.last_fetch_ms = request.session_epoch, self._now_ms()
        return current

    def _check_current(self, session: _Session, request: ReplicaFetchRequest) -> None:
        """Raise InvalidFetchSessionError if the follower has sent a newer request in the meantime: the older one must
        not take the newer one's records.
        """
        if self._sessions.get(request.replica_id) is not session or session.epoch != request.session_epoch:
            raise InvalidFetchSessionError(f"broker {request.replica_id} has begun a newer fetch session")

    def _patience_ms(self, session: _Session, request: ReplicaFetchRequest) -> int:
        """Return the longest wait of the request, in ms. If partitions are ready, only the quota holds them back, so
        the wait ends when the quota allows more."""
        return min(request.max_wait_ms, self.quota.wait_ms()) if session.ready else request.max_wait_ms

    async def _wait(self, session: _Session, wait_s: float) -> None:
        session.news.clear()
        try:
            async with asyncio.timeout(wait_s):
                await session.news.wait()
        except TimeoutError:
            return

    # --- one partition

    def _arm(
        self,
        session: _Session,
        request: ReplicaFetchRequest,
        requested: ReplicaFetchPartition,
        results: list[ReplicaFetchResult],
    ) -> None:
        """Report a fetch to the leader's rules, and answer at once if they refuse it."""
        key = TopicPartition(requested.topic, requested.partition)
        session.disarm(key)
        try:
            replica = _replica_of(self._partitions.get(*key))
            verdict = replica.take_fetch(
                FollowerFetch(
                    key,
                    request.replica_id,
                    request.broker_epoch,
                    requested.leader_epoch,
                    requested.fetch_offset,
                    requested.last_epoch,
                    requested.log_start_offset,
                    tuple((gap.first_offset, gap.next_offset) for gap in requested.gaps),
                )
            )
        except SparklogError as e:
            results.append(_refused(key, e))
            return
        match verdict:
            case FetchAccepted():
                session.armed[key] = _ArmedPartition(requested, replica.state)
                session.ready[key] = None
            case FetchDiverging(_, end, high_watermark, log_start_offset):
                results.append(
                    ReplicaFetchResult(
                        *key, 0, requested.leader_epoch, high_watermark, log_start_offset, -1, end.epoch, end.end_offset
                    )
                )
            case FetchRefused(_, error, log_start_offset, log_end_offset):
                refused = _refused(key, error)
                refused.log_start_offset, refused.log_end_offset = log_start_offset, log_end_offset
                results.append(refused)
            case None:
                results.append(_refused(key, NotLeaderError(f"this broker does not lead partition {key}")))

    def _collect(
        self,
        session: _Session,
        replica_id: int,
        results: list[ReplicaFetchResult],
        slices: list[FileSlice],
        room: int,
    ) -> None:
        """Add to `results` and `slices` the answers for ready partitions that have something new, as many as fit into
        `room` bytes. Partitions that do not fit stay ready."""
        for key in list(session.ready):
            if (room <= 0 and slices) or len(slices) >= SLICES_MAX:
                return
            armed = session.armed.get(key)
            if armed is None or session.pieces.is_reading(key):
                del session.ready[key]
                continue
            requested = armed.requested
            is_slow, image = False, UNKNOWN
            try:
                partition = self._partitions.get(*key)
                replica = _replica_of(partition)
                image = replica.image
                is_slow = bool(self.quota.rate_bytes) and is_throttled(image, replica_id)
                if is_slow and self.quota.wait_ms():
                    continue
                del session.ready[key]
                is_new = replica.state is not armed.noted_by or replica.awaits_fetch(replica_id)
                piece = session.pieces.take(key)
                result, read = _read(partition, requested, room, first=not slices, piece=piece, must_answer=is_new)
                if result is None and partition.log.log_end_offset > requested.fetch_offset:
                    session.ready[key] = None  # the batch does not fit: the next answer begins with it
            except RemoteReadRequired:
                size = min(requested.max_bytes, self._answer_bytes_max)
                session.pieces.read(key, partition.log, requested.fetch_offset, size)
                continue
            except SparklogError as e:
                session.ready.pop(key, None)
                result, read = _refused(key, e), []
                if isinstance(e, OffsetOutOfRangeError):
                    result.log_start_offset, result.log_end_offset = _bounds(self._partitions, key)
            if result is not None:
                del session.armed[key]
                results.append(result)
                slices += read
                room -= result.length_bytes
                self.counters.sent(result.length_bytes, replica_id, image)
                if is_slow:
                    self.quota.take(result.length_bytes)


def _replica_of(partition: Partition) -> ClusterReplica:
    if not isinstance(partition.replicas, ClusterReplica):
        raise InvalidRequestError("this broker runs without a cluster and serves no followers")
    return partition.replicas


def _read(
    partition: Partition,
    requested: ReplicaFetchPartition,
    room: int,
    *,
    first: bool,
    piece: FileSlice | None = None,
    must_answer: bool = False,
) -> tuple[ReplicaFetchResult | None, list[FileSlice]]:
    """Read the answer for one partition. Returns None and no slices if there is nothing new.

    `first`: True if the answer has no records yet, so that one batch can exceed `room`. `piece`: records that were read
    from the object store. `must_answer`: True to return an empty answer in place of None, so that the follower fetches
    again. Raises NotLeaderError, FencedLeaderEpochError and errors of the read, after the release of `piece`.
    """
    try:
        partition.check_leader_epoch(requested.leader_epoch)
        log = partition.log
    except SparklogError:
        if piece is not None:
            piece.release()
        raise
    slices = [piece] if piece is not None else []
    if piece is None:
        slices = _slices(log, requested.fetch_offset, min(room, requested.max_bytes), first=first)
    mark, start = log.high_watermark, log.log_start_offset
    next_offset = slices[-1].next_offset if slices else log.log_end_offset
    gaps = gaps_within(log.gaps, requested.fetch_offset, next_offset)[:GAPS_MAX] if log.gaps else []
    copied_to = mark if partition.replicas.all_have(mark) else -1
    is_unchanged = (
        mark <= requested.high_watermark and start <= requested.log_start_offset and requested.copied_to == copied_to
    )
    if not slices and not gaps and not must_answer and is_unchanged:
        return None, []
    length = sum(piece.length_bytes for piece in slices)
    result = ReplicaFetchResult(
        *partition.key, 0, requested.leader_epoch, mark, start, log.log_end_offset, copied_to=copied_to
    )
    if gaps:
        result.gaps, result.next_offset = [MissingOffsets(*gap) for gap in gaps], next_offset
    if slices:
        result.length_bytes, result.next_offset = length, next_offset
        result.segments = log.reader.bases_in(requested.fetch_offset, next_offset)[:SEGMENTS_MAX]
    if slices or gaps:
        begun = log.epochs.between(requested.fetch_offset, next_offset)
        if len(begun) > 1 or begun[0][0] != requested.last_epoch:
            result.epochs = [EpochBegin(*entry) for entry in begun[:EPOCHS_MAX] if entry[0] >= 0]
    return result, slices


def _slices(log: PartitionLog, offset: int, room: int, *, first: bool) -> list[FileSlice]:
    """Read up to `room` bytes from `offset` on. The first batch of an answer is read even if it is larger."""
    slices: list[FileSlice] = []
    try:
        while room > 0 or (first and not slices):
            piece = log.reader.read(
                offset, max(room, 0), min_one_batch=first and not slices, may_wait=False, to_log_end=True
            )
            if piece is None:
                break
            slices.append(piece)
            room -= piece.length_bytes
            offset = piece.next_offset
    except BaseException:
        for piece in slices:
            piece.release()
        raise
    return slices


def _bounds(partitions: Partitions, key: TopicPartition) -> tuple[int, int]:
    partition = partitions.find(key)
    log = None if partition is None else partition.open_log
    return (-1, -1) if log is None else (log.log_start_offset, log.log_end_offset)


def _refused(key: TopicPartition, error: SparklogError) -> ReplicaFetchResult:
    return ReplicaFetchResult(*key, error.code, message=str(error))
