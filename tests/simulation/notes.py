"""Notes of a life's clients beside their histories, and the promises that are judged by them.

The checker judges histories. These notes show the facts that a history lacks: a correct producer that is refused, two
owners of a partition, a run that commits after a later one has taken over, and logs with wrong batches or markers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from sparklog.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    OutOfOrderSequenceError,
    SparklogError,
)
from sparklog.format.batch import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader
from sparklog.log.producers.states import last_sequence_of, sequence_after
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_reader import Row
from sparklog.types import ProducerIdAndEpoch, TopicPartition

_IDENTITY_ERRORS = OutOfOrderSequenceError, InvalidProducerEpochError, InvalidProducerIdMappingError


class SharedEnd(NamedTuple):
    """A driver's request at the end of a batch."""

    app: str
    batch: int
    run: str
    fencing_token: int
    commit: bool
    committed_participants: frozenset[int]


class _Grant(NamedTuple):
    """The assignment of a partition to a member, at some time between the heartbeat's request and its answer."""

    member: str
    asked_s: float
    answered_s: float


class Notes:
    """Notes and checks. `check` raises AssertionError for earlier violations, the other checks for their own."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._violations: list[str] = []
        self._strangers: set[int] = set()
        self._refusals: list[tuple[int, str]] = []
        """Refusals by producer id. An id may turn out later to be shared."""
        self._repaired: set[str] = set()
        self._given_up: set[tuple[str, int, int]] = set()
        self._grants: dict[tuple[str, TopicPartition], list[_Grant]] = {}
        self._owned: dict[tuple[str, str], frozenset[TopicPartition]] = {}
        self._joined: dict[str, list[tuple[float, int, str]]] = {}
        self._ends: list[tuple[float, SharedEnd]] = []
        self._keyed: dict[bytes, tuple[int, int]] = {}
        self._committed = 0
        self._aged: dict[int, int] = {}
        self._deleted = self._asked_deletion = 0
        self.deletes_everywhere: Callable[[], bool] | None = None
        """Returns True if all replicas have deleted the records; None with one broker. Only then a requested deletion
        is final; records deleted by retention may be on another replica, which leads later.
        """
        self._deleted_for_good = 0
        self.aged_start = 0
        """Reported log start of the topic with a small retention."""

    def check(self) -> None:
        if self._violations:
            raise AssertionError("; ".join(self._violations[:5]))

    def violated(self, what: str) -> None:
        self._violations.append(f"{what} (at {self._simulation.now_s:.3f} s)")

    # -- producers

    def shared_identity(self, producer_id: int) -> None:
        """Note a producer id that several producers use: they refuse each other."""
        self._strangers.add(producer_id)

    def repaired(self, partition: str) -> None:
        """Note a partition with a hole after a power cut and a repair: some of a producer's last batches exist, and
        earlier ones do not.
        """
        self._repaired.add(partition)

    def refused(self, producer_id: int, error: SparklogError) -> None:
        """Note a refusal of the next batch of a producer without failed batches."""
        if not self._repaired and isinstance(error, _IDENTITY_ERRORS):
            what = f"refused without a cause: {type(error).__name__}: {error} (at {self._simulation.now_s:.3f} s)"
            self._refusals.append((producer_id, what))

    def gave_up(self, partition: TopicPartition, identity: ProducerIdAndEpoch | None) -> None:
        """Note a batch that has failed for good. If it was the first of its epoch, the next one is the first that the
        partition gets, and may have any sequence.
        """
        if identity is not None:
            self._given_up.add((str(partition), *identity))

    # -- groups

    def granted(self, group: str, member: str, asked_s: float, partitions: frozenset[TopicPartition]) -> None:
        """Note the partitions of a member in a heartbeat's answer."""
        before = self._owned.get((group, member), frozenset())
        self._owned[group, member] = partitions
        for tp in partitions - before:
            grant = _Grant(member, asked_s, self._simulation.now_s)
            self._grants.setdefault((group, tp), []).append(grant)

    def confirmed(self, group: str, member: str, asked_s: float, held: frozenset[TopicPartition]) -> None:
        """Note a heartbeat with these partitions that was answered as a member's: no other member was assigned one of
        them between the member's own assignment and this heartbeat.
        """
        for tp in held:
            grants = self._grants.get((group, tp), [])
            mine = max((g.answered_s for g in grants if g.member == member), default=None)
            if mine is None:
                continue
            for other in grants:
                if other.member != member and mine < other.asked_s and other.answered_s < asked_s:
                    self.violated(f"{group} {tp}: {other.member} was given it while {member} had it")

    def lost(self, group: str, member: str) -> None:
        """Note that the member starts again, or has left."""
        self._owned.pop((group, member), None)

    def committed(self, offset: int) -> None:
        """Note an offset that a group with and without transactions has committed, without a lower one since."""
        self._committed = max(self._committed, offset)

    def check_committed(self, offset: int) -> None:
        """Check the broker's committed offset of such a group, at a moment without commits in progress."""
        if offset < self._committed:
            self.violated(f"a group had committed {self._committed}, the broker says {offset}")

    # -- shared transactions

    def joined(self, app: str, run: str, fencing_token: int) -> None:
        """Note the answer to a join: earlier runs are fenced from now on."""
        self._joined.setdefault(app, []).append((self._simulation.now_s, fencing_token, run))

    def ends(self, end: SharedEnd) -> None:
        """Note that a driver is about to end its batch."""
        self._ends.append((self._simulation.now_s, end))

    def on_final(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Check the final rows of readers of committed records: each batch is the choice of one driver."""
        writers: dict[tuple[str, int, int], set[int]] = {}
        for row in (r for found in rows.values() for r in found if r.key is not None and r.key.count(b"/") == 4):
            assert row.key is not None
            app, batch, fencing_token, producer_id, _ = row.key.decode().split("/")
            writers.setdefault((app, int(batch), int(fencing_token)), set()).add(int(producer_id))
        for (app, batch, fencing_token), found in writers.items():  # type: ignore[assignment]
            asked = [
                (at, e)
                for at, e in self._ends
                if (e.app, e.batch, e.fencing_token) == (app, batch, fencing_token) and e.commit
            ]
            if not any(found <= e.committed_participants for _, e in asked):
                self.violated(f"{app} batch {batch}: what {sorted(found)} wrote is committed, no driver has chosen it")
            else:
                self._check_fence(*min(asked))
        if len({key[:2] for key in writers}) < len(writers):
            self.violated(f"a batch was committed by several drivers: {sorted(writers)}")
        self.check()

    def _check_fence(self, asked_s: float, end: SharedEnd) -> None:
        for at, fencing_token, run in self._joined.get(end.app, []):
            if at < asked_s and fencing_token > end.fencing_token and run != end.run:
                self.violated(f"{end.app} batch {end.batch}: run {end.run} has committed, {run} had taken over")

    # -- keys

    def keyed(self, key: bytes, value: int, offset: int) -> None:
        """Note the acknowledgement of a record of a compacted topic."""
        if offset > self._keyed.get(key, (-1, 0))[0]:
            self._keyed[key] = offset, value

    def check_keyed(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Check that the last record of each key exists."""
        last = {row.key: row for found in rows.values() for row in found}
        for key, (offset, value) in self._keyed.items():
            row = last.get(key)
            if row is None or row.offset < offset or (row.offset == offset and row.value != str(value).encode()):
                self.violated(f"key {key!r}: {value} was acknowledged at {offset}, at the end there is {row}")
        self.check()

    # -- what grows old

    def on_stored(self, offset: int, values: Sequence[int]) -> None:
        """Note the acknowledgement of records of the topic with a small retention."""
        self._aged |= dict(zip(range(offset, offset + len(values)), values, strict=True))

    def check_log_start(self, offset: int) -> None:
        """Check a reported start of that topic's log, which never decreases."""
        known = self._deleted_for_good if self.deletes_everywhere is not None else self.aged_start
        if offset < known:
            self.violated(f"the log began at {known}, now at {offset}")
        self.aged_start = max(self.aged_start, offset)

    def on_deletion_request(self, before_offset: int) -> None:
        """Note the request of a deletion; without an answer it may have happened."""
        self._asked_deletion = max(self._asked_deletion, before_offset)

    def on_deletion(self, offset: int) -> None:
        """Note the acknowledgement of a deletion up to this offset."""
        self._deleted = max(self._deleted, offset)
        if self.deletes_everywhere is None or self.deletes_everywhere():
            self._deleted_for_good = max(self._deleted_for_good, offset)
        self.aged_start = max(self.aged_start, offset)

    def check_aged(self, start: int, size_bytes: int, kept_bytes: int, rows: Mapping[int, int]) -> None:
        """Check the final records of that topic, from the offset `start` on."""
        self.check_log_start(start)
        if start > max(self._deleted, self._asked_deletion) and size_bytes < kept_bytes:
            self.violated(f"{size_bytes} bytes are left, {kept_bytes} are to be kept")
        for offset, value in self._aged.items():
            if offset >= start and rows.get(offset) != value:
                self.violated(f"{value} was acknowledged at {offset}, {rows.get(offset)} is there")
        self.check()

    # -- logs

    def check_logs(self, logs: Mapping[str, Sequence[BatchHeader]], decided: Mapping[str, int]) -> None:
        """Check the batches of each partition from its first one on, as a reader of all records gets them. `decided`:
        the end of readers of committed records; batches of a dead client may follow.
        """
        self._violations += [what for producer, what in self._refusals if producer not in self._strangers]
        for partition, headers in logs.items():
            if partition in self._repaired:
                continue
            for producer_id in {h.producer_id for h in headers} - {-1}:
                mine = [h for h in headers if h.producer_id == producer_id]
                open_ended = {e for p, i, e in self._given_up if (p, i) == (partition, producer_id)}
                if producer_id in self._strangers:  # they continue after failed batches too
                    open_ended = {h.producer_epoch for h in mine}
                is_whole = headers[0].base_offset == 0
                for what in _faults_of(mine, decided[partition], open_ended, from_start=is_whole):
                    self.violated(f"{partition}: producer {producer_id}: {what}")
        self.check()


def _faults_of(headers: Sequence[BatchHeader], decided: int, open_ended: Set[int], *, from_start: bool) -> list[str]:
    """Return the faults of one producer's batches and markers in one partition. `open_ended`: epochs that may begin
    with any sequence.
    """
    found: list[str] = []
    epoch, due, marked, open_from = -1, 0, -1, -1
    for header in headers:
        if header.producer_epoch < epoch:
            found.append(f"epoch {header.producer_epoch} at {header.base_offset} is behind {epoch}")
        if header.attributes & ATTRIBUTE_CONTROL:
            if header.producer_epoch <= marked:
                found.append(f"a second marker of epoch {header.producer_epoch} at {header.base_offset}")
            marked, open_from, due = header.producer_epoch, -1, 0  # the next transaction has the marker's epoch
        else:
            if header.producer_epoch != epoch:
                due = header.base_sequence if header.producer_epoch in open_ended else 0
            if (from_start or epoch >= 0) and header.base_sequence != due:
                found.append(f"sequence {header.base_sequence} at {header.base_offset}, {due} is due")
            due = sequence_after(last_sequence_of(header))
            if header.attributes & ATTRIBUTE_TRANSACTIONAL and open_from < 0:
                open_from = header.base_offset
        epoch = max(epoch, header.producer_epoch)
    if 0 <= open_from < decided:
        found.append("its transaction stays open")
    return found
