"""Tiered topics with replicas: only the leader copies to the object store, all replicas know the copies, and any new
leader continues without a second copy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import RemoteStorageError
from sparklog.log.housekeeping import tier_run
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.housekeeping.tier_run import Role, TierResult, tier_log
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.log.tiering.state import ObjectInfo
from tests.support.compaction import keyed_batch, open_keyed, stored
from tests.support.logs import ManualClock
from tests.support.tiering import FailingStore, memory_store, stored_names
from tests.unit.broker.cluster.replica_group import KEY, Group

SETTINGS = {
    "cleanup.policy": "delete",
    "segment.bytes": 1 << 20,
    "index.interval.bytes": 1,
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
    "file.delete.delay.ms": 0,
}


class TieredGroup(Group):
    """`leads`: brokers that have led in this epoch, and looked at the store."""

    def __init__(self, directory: Path, store: ObjectStore) -> None:
        self.store = store
        self.clock = ManualClock(1_000_000)
        self.looked: dict[int, int] = {}
        super().__init__(directory, SETTINGS, open_log=self._opened)

    def _opened(self, directory: Path, settings: dict[str, Any], **more: Any) -> PartitionLog:
        access = RemoteAccess(self.store, ReadCache(directory / "cache", 64 << 20))
        return open_keyed(directory, settings, clock=self.clock, remote=access, **more)

    def segment(self) -> None:
        """One more segment of two batches, on all replicas that copy."""
        for i in range(2):
            self.append(keyed_batch([(b"k", b"%d" % i)]))
        self.leader.log.appender.begin_segment()
        self.sync()

    def tier(self, broker_id: int) -> TierResult:
        log = self.nodes[broker_id].log
        log.flusher.flush()
        role = Role.FOLLOWER
        if self.image.leader == broker_id:
            epoch = self.image.leader_epoch
            role = Role.LEADER if self.looked.get(broker_id) == epoch else Role.NEW_LEADER
            self.looked[broker_id] = epoch
        return tier_log(log, self.store, self.clock, role=role)

    def lead_alone(self) -> None:
        """Broker 1 is isolated, leads on with records that nobody else has, and copies them before it knows."""
        self.out = {2, 3}
        for i in range(2):
            self[1].appender.append(keyed_batch([(b"k", b"alone %d" % i)]), leader_epoch=4)
        self[1].appender.begin_segment()
        self[1].raise_high_watermark(self[1].log_end_offset)
        self.tier(1)

    def copies(self) -> int:
        return sum(name.endswith("manifest.json") for name in stored_names(self.store))


def filled(tmp_path: Path, segments: int = 3, store: ObjectStore | None = None) -> TieredGroup:
    group = TieredGroup(tmp_path, store if store is not None else memory_store())
    for _ in range(segments):
        group.segment()
    group.append(keyed_batch([(b"k", b"tail")]))
    group.sync()
    return group


def test_the_segments_of_all_replicas_begin_where_the_leaders_do(tmp_path: Path) -> None:
    group = filled(tmp_path)
    bases = [s.base_offset for s in group[1].segments]
    assert bases == [0, 2, 4, 6]
    assert [[s.base_offset for s in group[b].segments] for b in (2, 3)] == [bases, bases]


def test_only_the_leader_copies_and_followers_release_copied_segments(tmp_path: Path) -> None:
    group = filled(tmp_path)
    assert group.tier(2) == TierResult()
    assert (group[2].local_log_start_offset, group.copies()) == (0, 0), "nothing is released before it is in the store"
    assert group.tier(1) == TierResult(copied=3, released=3)
    for broker in (2, 3):
        assert group.tier(broker) == TierResult(released=3)
        assert group[broker].local_log_start_offset == 6
        assert stored(group[broker]) == stored(group[1])
    assert group.copies() == 3


def test_a_new_leader_goes_on_without_a_second_copy(tmp_path: Path) -> None:
    group = filled(tmp_path)
    group.tier(1)
    group.change(2)
    group.segment()
    assert group.tier(2) == TierResult(copied=1, released=4)
    assert group.copies() == 4
    group.append(keyed_batch([(b"k", b"tail")]))
    group.sync()
    group.tier(1)
    group.tier(3)
    want = stored(group[2])
    assert stored(group[1]) == stored(group[3]) == want
    assert group[1].local_log_start_offset == group[3].local_log_start_offset == group[2].local_log_start_offset
    assert group.copies() == 4


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_replica_restarts_with_a_part_only_in_the_store(tmp_path: Path, role: str) -> None:
    group = filled(tmp_path)
    group.tier(1)
    group.tier(2)
    broker = 1 if role == "leader" else 2
    want, end = stored(group[broker]), group[broker].log_end_offset
    if role == "leader":
        group.change(2)
    group.leave(broker)
    group[broker].close()
    again = group.open(broker, high_watermark=end, recovery_point=end)
    assert stored(again) == want
    group.come_back(broker, again)
    group.segment()
    assert stored(group[broker])[: len(want)] == want
    assert group.image.isr == (1, 2, 3)


def test_a_new_replica_copies_the_part_in_the_store_from_its_leader(tmp_path: Path) -> None:
    store = FailingStore("memory://replica-tiering")
    group = TieredGroup(tmp_path, store)
    group.leave(3)
    for _ in range(3):
        group.segment()
    group.append(keyed_batch([(b"k", b"tail")]))
    group.sync()
    group.tier(1)
    assert group[1].local_log_start_offset == 6
    store.fails = lambda what, key: what.startswith("read")
    group.come_back(3)
    leader = group.leader
    group.nodes[3].ask(leader, 1 << 20)
    assert group[3].log_end_offset == 0
    store.fails = lambda what, key: False
    group.sync()
    assert group[3].log_end_offset == group[1].log_end_offset
    assert stored(group[3]) == stored(group[1])
    assert group.image.isr == (1, 2, 3)
    assert group.tier(3).released == 3


def test_the_leader_deletes_expired_copies_and_the_others_forget_them(tmp_path: Path) -> None:
    group = filled(tmp_path)
    group.tier(1)
    group.tier(2)
    group[1].retention.delete_records(4)
    group.leader.partition.on_log_start_raised()
    group.sync()
    for broker in (2, 1):
        log = group[broker]
        assert log.log_start_offset == 4
        run_retention({KEY: log}, lambda: None)
        log.retention.drop_below_log_start()
        group.tier(broker)
        assert len(log.tier.state.copies) == 1
        assert group.copies() == (3 if broker == 2 else 1)


def test_copies_of_a_dead_leader_are_deleted_by_the_next_one(tmp_path: Path) -> None:
    group = filled(tmp_path)
    group.tier(1)
    group.leave(1)
    group.change(2, isr=(2, 3))
    group[2].retention.delete_records(2)
    run_retention({KEY: group[2]}, lambda: None)
    group.tier(2)
    assert group.copies() == 2
    assert group[2].local_log_start_offset == 6


def test_a_copy_of_another_history_is_not_taken(tmp_path: Path) -> None:
    """Broker 1 was isolated, led on with records that nobody else has, and copied them before it knew."""
    group = filled(tmp_path, 1)
    group.lead_alone()
    assert group.copies() == 2
    group.out = {1}
    group.change(2, isr=(2, 3))
    group.segment()
    group.tier(2)
    assert {s.base_offset for s in group[2].tier.state.finished} == {0, 2}
    assert b"alone 0" not in {row.value for row in stored(group[2])}
    group.come_back(1)
    group.sync()
    group.tier(1)
    assert stored(group[1]) == stored(group[2])


def test_a_copy_of_another_history_that_begins_where_they_part_is_not_taken(tmp_path: Path) -> None:
    """As above, and no record of both is in the segment."""
    group = filled(tmp_path, 1)
    group[1].appender.begin_segment()
    group.sync()
    group.lead_alone()
    assert [s.base_offset for s in group[1].tier.state.finished] == [0, 2, 3]
    group.out = {1}
    group.change(2, isr=(2, 3))
    group[2].appender.begin_segment()
    group.segment()
    group.tier(2)
    want = stored(group[2])
    assert [row.offset for row in want] == list(range(5))
    assert b"alone 0" not in {row.value for row in want}
    group.come_back(1)
    group.sync()
    for broker in (2, 1, 3):
        group.tier(broker)
        assert stored(group[broker]) == want

    def there() -> int:
        return sum("/00000000000000000003-" in n and n.endswith("manifest.json") for n in stored_names(group.store))

    assert there() == 2, "somebody who has the other one's records may still lead"
    group.segment()
    group[2].retention.delete_records(5)
    run_retention({KEY: group[2]}, lambda: None)
    group.sync()
    group.tier(1)
    group.tier(2)
    assert there() == 0


@pytest.mark.parametrize("how", ["cut", "emptied"])
def test_a_copy_stays_when_its_maker_has_lost_the_records(tmp_path: Path, how: str) -> None:
    """A repair could not save all, so it copies them again; others have given their local files away."""
    group = filled(tmp_path)
    group.tier(1)
    want = stored(group[1])
    group.change(2)
    group.tier(2)
    group.tier(3)
    assert group[2].local_log_start_offset == group[3].local_log_start_offset == 6
    group.leave(1)
    if how == "cut":
        group[1].truncation.truncate_to(5)
    else:
        group[1].truncation.restart_at(0)
    group.tier(1)
    group.come_back(1)
    group.sync()
    for _ in range(2):
        for broker in (1, 2, 3):
            group.tier(broker)
            assert stored(group[broker]) == want
    assert group.copies() == 3
    assert not group[1].tier.state.orphans
    group.change(1)
    group[1].retention.delete_records(4)
    run_retention({KEY: group[1]}, lambda: None)
    group.tier(1)
    assert group.copies() == 1


def test_a_failing_store_stops_only_tiering(tmp_path: Path) -> None:
    store = FailingStore("memory://replica-tiering-fails")
    group = filled(tmp_path, store=store)
    store.fails = lambda what, key: what == "write"
    with pytest.raises(RemoteStorageError):
        group.tier(1)
    assert group.tier(2) == TierResult()
    group.change(2)
    store.fails = lambda what, key: False
    assert group.tier(2).copied == 3
    group.tier(1)
    assert stored(group[1]) == stored(group[2])


class AnswersLost(ObjectStore):
    """Stores a manifest, and says that it could not."""

    is_lost = True

    def write(self, key: str, parts: Iterable[bytes]) -> ObjectInfo:
        info = super().write(key, parts)
        if self.is_lost and key.endswith("manifest.json"):
            self.is_lost = False
            raise RemoteStorageError(f"{key}: no answer")
        return info


@pytest.mark.parametrize("dies", [False, True])
def test_a_copy_that_others_may_use_is_not_deleted_by_a_leader_that_missed_its_end(
    tmp_path: Path, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = filled(tmp_path, store=AnswersLost(f"memory://answers-lost-{dies}"))
    want = stored(group[1])
    with monkeypatch.context() as patch:
        if dies:  # before it can look what became of the copy
            patch.setattr(tier_run, "_try_delete", lambda *_: None)
        with pytest.raises(RemoteStorageError):
            group.tier(1)
    assert group.tier(2).released == 1
    group.tier(1)
    group.tier(3)
    assert group.copies() == 3
    group.change(2)
    assert stored(group[2]) == want
    assert stored(group[3]) == want


def test_a_follower_with_earlier_retention_deletes_no_segment_of_its_leader(tmp_path: Path) -> None:
    group = filled(tmp_path)
    group.tier(1)
    want = stored(group[1])
    group.change(2)
    group.tier(2)
    group[1].reconfigure(LogConfig.from_settings({**SETTINGS, "retention.bytes": 0}))
    run_retention({KEY: group[1]}, lambda: None)
    assert group[1].log_start_offset > 6
    group.tier(1)
    assert stored(group[2]) == want
    group[2].retention.delete_records(4)
    run_retention({KEY: group[2]}, lambda: None)
    group.tier(2)
    assert group.copies() == 1
