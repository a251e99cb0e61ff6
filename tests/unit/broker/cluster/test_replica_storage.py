"""Log starts, retention and full disks with replicas."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from sparklog.environment.files import RealFiles
from sparklog.errors import NotLeaderError, RequestTimedOutError, StorageError, StorageFullError
from sparklog.format.gaps import GAPS_FILE, decode_gaps, encode_gaps
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tools.repair import repair
from sparklog.replication.cluster_image import PartitionImage
from tests.support.cases import in_gate
from tests.support.compaction import compact, keyed_batch, open_keyed, stored
from tests.support.logs import LimitedFiles
from tests.unit.broker.cluster.replica_group import BROKERS, LAG_MS, Group, batches

DELETE = {"cleanup.policy": "delete", "segment.bytes": 4096}


def filled(group: Group, count: int = 10) -> None:
    for i in range(count):
        group.append(keyed_batch([(b"k", b"%d" % i * 500)]))


def test_records_are_deleted_when_all_live_replicas_have_deleted_them(tmp_path: Path) -> None:
    group = Group(tmp_path, DELETE)
    filled(group)
    group.sync()
    group[1].retention.delete_records(4)
    group.leader.partition.on_log_start_raised()

    async def scene() -> None:
        replica = group.leader.replica
        with pytest.raises(RequestTimedOutError, match="not yet on all"):
            await replica.until_deleted(4, 0.0)
        waiting = asyncio.ensure_future(replica.until_deleted(4, 30.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(group.nodes[2].ask, group.leader, 1 << 20)
        await asyncio.to_thread(group.nodes[3].ask, group.leader, 1 << 20)
        assert [group[b].log_start_offset for b in (2, 3)] == [4, 4]
        await asyncio.sleep(0)
        assert not waiting.done()  # they have not said so yet
        for broker in (2, 3):
            await asyncio.to_thread(group.nodes[broker].ask, group.leader, 1 << 20)
        assert await waiting == 4
        later = asyncio.ensure_future(replica.until_deleted(9, 30.0))
        await asyncio.sleep(0)
        replica.resign(group.image)
        with pytest.raises(NotLeaderError):
            await later

    asyncio.run(scene())


def test_a_replica_that_was_away_for_longer_than_retention_begins_anew(tmp_path: Path) -> None:
    group = Group(tmp_path, DELETE)
    filled(group, 3)
    group.sync()
    group.leave(3)
    filled(group, 30)
    group.sync()
    group[1].retention.delete_records(20)
    group[1].retention.retain()
    assert group[1].retention.drop_below_log_start() > 0
    group.come_back(3)
    group.sync()
    assert (group[3].log_start_offset, group[3].log_end_offset) == (20, 33)
    assert stored(group[3]) == stored(group[1])
    assert group.image.isr == (1, 2, 3)


def test_a_replica_retains_on_its_own_and_never_behind_its_high_watermark(tmp_path: Path) -> None:
    group = Group(tmp_path, {**DELETE, "retention.bytes": 5000})
    filled(group, 20)
    group.nodes[2].ask(group.leader, 1 << 20)  # copied, not committed
    assert group[2].retention.retain().count == 0
    group.sync()
    for broker in (1, 2, 3):
        assert group[broker].retention.retain().count > 0
        group[broker].retention.drop_below_log_start()
    group.change(2)
    filled(group, 2)
    group.sync()
    assert stored(group[3])[-2:] == stored(group[2])[-2:]
    assert group.image.isr == (1, 2, 3)


def test_a_full_disk_shrinks_the_isr_without_a_loss(tmp_path: Path) -> None:
    disks: dict[str, LimitedFiles] = {}

    def open_log(directory: Path, settings: dict[str, Any], **more: object) -> PartitionLog:
        disks[directory.name] = LimitedFiles()
        return open_keyed(directory, settings, files=disks[directory.name])

    group = Group(tmp_path, DELETE, open_log=open_log, min_insync=2)
    filled(group)
    group.sync()
    disks["3"].free_bytes = 100
    end = group.append(keyed_batch([(b"k", b"v" * 500)])) + 1
    for broker in (2, 3):
        group.nodes[broker].ask(group.leader, 1 << 20)
    assert (group[2].log_end_offset, group[3].log_end_offset) == (end, end - 1)
    assert "full" in group.nodes[3].failures[0]
    assert group[1].high_watermark == end - 1, "nothing is acknowledged that is not on all in-sync replicas"
    group.time_ms += 2 * LAG_MS
    group.nodes[2].ask(group.leader, 1 << 20)
    group.tick()
    assert [sorted(b for b, _ in p.isr) for p in group.proposals] == [[1, 2]]
    group.leave(3)
    group.sync()
    assert group[1].high_watermark == end
    disks["3"].free_bytes = 1 << 30
    group.come_back(3)
    group.sync()
    assert batches(group[3]) == batches(group[1])
    assert group.image.isr == (1, 2, 3)
    disks["1"].free_bytes = 100
    with pytest.raises(StorageFullError):
        group.append(keyed_batch([(b"k", b"v" * 500)]))
    assert group[1].log_end_offset == end


def test_with_group_flush_a_followers_next_fetch_acknowledges_synced_records_only(tmp_path: Path) -> None:
    files: dict[str, LimitedFiles] = {}

    def open_log(directory: Path, settings: dict[str, Any], **more: object) -> PartitionLog:
        files[directory.name] = LimitedFiles()
        return open_keyed(directory, settings, files=files[directory.name])

    group = Group(tmp_path, {**DELETE, "flush.mode": "group"}, open_log=open_log)
    base = group.append(keyed_batch([(b"k", b"v")]))
    group[1].flusher.make_durable(base + 1)
    node = group.nodes[2]
    node.ask(group.leader, 1 << 20)
    assert node.log.flushed_offset == node.log.log_end_offset == base + 1
    files["2"].fail_sync = True
    group.append(keyed_batch([(b"k", b"w")]))
    group[1].flusher.make_durable(base + 2)
    node.ask(group.leader, 1 << 20)
    node.ask(group.leader, 1 << 20)
    state = group.leader.replica.state
    assert state is not None
    assert state.followers[2].log_end_offset == base + 1, "what the disk has not taken is not acknowledged"  # type: ignore[union-attr]
    assert node.failures


@pytest.mark.parametrize("restarted", [False, True])
def test_an_unclean_election_cuts_no_file_that_a_reader_may_have_mapped(tmp_path: Path, restarted: bool) -> None:
    """A mapped file that becomes shorter kills its reader with SIGBUS."""
    group = Group(tmp_path, {**DELETE, "segment.bytes": 1 << 20})
    filled(group, 2)
    group.sync()
    group.leave(3)
    filled(group, 3)
    group.sync()
    assert group[2].high_watermark == group[2].log_end_offset == 5
    located = group[2].reader.locate(0, 5)
    assert len(located) == 1
    with Path(located[0].path).open("rb") as mapped:
        size = os.fstat(mapped.fileno()).st_size
        before = mapped.read()
        group.leave(2)
        if restarted:  # and what it had told of is not known any more
            group.nodes[2].log.take_offline(StorageError("killed"))
            group.come_back(2, group.open(2, clean=False))
        group.out = {1}
        group.change(3, isr=(3,))
        filled(group, 1)
        if not restarted:
            group.come_back(2)
        group.sync()
        assert stored(group[2]) == stored(group[3])
        assert len(stored(group[2])) == 3
        assert os.fstat(mapped.fileno()).st_size >= size, "cut under its reader"
        mapped.seek(0)
        assert mapped.read(located[0].end_position) == before[: located[0].end_position]
    group.nodes[2].log.close()
    again = group.open(2)
    assert stored(again) == stored(group[3])


def damaged(log: PartitionLog, *offsets: int) -> Path:
    """Closes the log; the batches at the offsets are damaged. The path of the last one's segment."""
    for offset in offsets:
        segment = next(s for s in log.local_segments if s.base_offset <= offset < s.next_offset)
        content = bytearray(segment.path.read_bytes())
        content[segment.find(offset).position + 300] ^= 0x10
        segment.path.write_bytes(content)
    log.close()
    return segment.path


def lose(group: Group, broker_id: int, *offsets: int) -> None:
    """The batches at the offsets are damaged and repaired away while the broker is down. It opens its log again."""
    group.leave(broker_id)
    repair(damaged(group[broker_id], *offsets).parent, RealFiles(), dry_run=False)
    group.come_back(broker_id, group.open(broker_id))


def offsets_of(log: PartitionLog) -> list[int]:
    return [header.base_offset for header, _ in batches(log)]


@pytest.mark.parametrize("lost", [(4,), (9,), (0,), (0, 1, 2), tuple(range(10))], ids=str)
def test_a_repaired_replica_copies_the_lost_records_and_is_not_in_sync_until_then(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """Also if that is the beginning: it has not been deleted."""
    group = Group(tmp_path, DELETE)
    filled(group)
    group.sync()
    group.leave(3)
    path, note = damaged(group[3], *lost), tmp_path / "3" / BROKER_EPOCH_FILE
    note.write_bytes(b"{}")
    gaps = repair(path.parent, RealFiles(), dry_run=True).gaps
    assert (gaps[0][0], gaps[-1][1]) == (lost[0], lost[-1] + 1)
    assert note.exists()
    repair(path.parent, RealFiles(), dry_run=False)
    assert not note.exists()  # its broker has lost something, which the controller must know
    group.come_back(3, group.open(3))
    group.sync()
    assert group[3].gaps == ()  # it has been cut
    assert group[3].log_start_offset == 0
    assert batches(group[3]) == batches(group[1])
    assert group.image.isr == (1, 2, 3)
    group[3].close()
    again = group.open(3)
    assert (again.gaps, again.log_end_offset) == ((), 10)


def test_a_gap_is_forgotten_by_the_next_start_if_the_cut_was_not_finished(tmp_path: Path) -> None:
    log = open_keyed(tmp_path, DELETE)
    for i in range(5):
        log.appender.append(keyed_batch([(b"k", b"%d" % i)]))
    log.close()
    gaps = log.directory / GAPS_FILE
    gaps.write_bytes(encode_gaps([(2, 3), (5, 7)]))
    log = open_keyed(tmp_path, DELETE)
    assert log.gaps[0] == (2, 3)
    assert decode_gaps(gaps.read_bytes()) == [(2, 3)]
    log.truncation.truncate_to(2)
    assert (log.gaps, decode_gaps(gaps.read_bytes())) == ((), [])


ALL = tuple(range(10))
LOSSES = [*itertools.product([(0,), (4,), (9,), (4, 5), (3, 6), (0, 1, 8, 9), ALL], [(), (4,), (5, 9)])]


@pytest.mark.parametrize(
    ("lost", "others_lost"), in_gate(LOSSES, ((0,), (4,)), ((3, 6), (5, 9)), ((9,), ()), (ALL, (4,))), ids=str
)
def test_all_replicas_have_exactly_a_repaired_leaders_records(
    tmp_path: Path, lost: tuple[int, ...], others_lost: tuple[int, ...]
) -> None:
    """After an unclean election: one follower has more than the leader, one has lost something else, one is new."""
    group = Group(tmp_path, DELETE)
    filled(group)
    group.out = {2}
    group.sync()
    if others_lost:
        lose(group, 1, *others_lost)
    group.leave(3)
    repair(damaged(group[3], *lost).parent, RealFiles(), dry_run=False)
    group.out = {1, 2}
    group.image = PartitionImage(BROKERS, 3, 9, 20, (3,))
    group.come_back(3, group.open(3))
    left = [offset for offset in range(10) if offset not in lost]
    assert (offsets_of(group[3]), group[3].log_end_offset) == (left, 10)
    group.out.clear()
    group.follow_image()
    group.sync()
    assert group.image.isr == (1, 2, 3)
    for round_number in range(2):
        for broker in BROKERS:
            assert offsets_of(group[broker]) == left + list(range(10, 10 + round_number))
            assert group[broker].log_end_offset == group[broker].high_watermark == 10 + round_number
            start = group[broker].log_start_offset
            group[broker].close()
            group.nodes[broker].log = group.open(broker, log_start_offset=start)
        group.change(1 + round_number)
        for broker in BROKERS:
            group.come_back(broker)
        cuts = [group[broker].truncation.count for broker in BROKERS]
        filled(group, 1)
        group.sync()
        assert [group[broker].truncation.count for broker in BROKERS] == cuts  # nobody copies anything again
        assert len({tuple(batches(group[broker])) for broker in BROKERS}) == 1


def test_an_epoch_of_which_all_records_are_lost_is_copied(tmp_path: Path) -> None:
    """Of a broker that was alone, and was repaired: else its followers take the gap for another history, for ever."""
    group = Group(tmp_path, DELETE)
    filled(group, 8)
    group.out = {2, 3}
    group.change(1, (1,))
    filled(group, 2)
    group[1].flusher.flush()
    group.leave(1)
    repair(damaged(group[1], 8, 9).parent, RealFiles(), dry_run=False)
    group.image = PartitionImage(BROKERS, 1, 9, 20, (1,))
    group.come_back(1, group.open(1, recovery_point=10, high_watermark=10))
    assert (group[1].gaps, group[1].log_end_offset) == (((8, 10),), 10)
    for broker in (2, 3):
        group.come_back(broker)
    group.sync()
    assert group.image.isr == (1, 2, 3)
    filled(group, 1)
    group.sync()
    assert len({group[broker].epochs.entries for broker in BROKERS}) == 1
    assert [offsets_of(group[broker]) for broker in BROKERS] == [[*range(8), 10]] * 3


def test_a_gap_is_copied_when_a_broker_with_its_records_leads(tmp_path: Path) -> None:
    """Two unclean elections: the second leader has the records that the first one lacked."""
    group = Group(tmp_path, DELETE)
    filled(group)
    group.sync()
    group.leave(1)
    group.leave(3)
    repair(damaged(group[3], 4).parent, RealFiles(), dry_run=False)
    group.image = PartitionImage(BROKERS, 3, 9, 20, (3,))
    group.come_back(3, group.open(3))
    group.sync()
    assert group[2].gaps == group[3].gaps == ((4, 5),)
    group.image = PartitionImage(BROKERS, 1, 12, 30, (1,))
    group.come_back(1)
    group.sync()
    assert group.image.isr == (1, 2, 3)
    assert [group[broker].gaps for broker in BROKERS] == [(), (), ()]
    assert [offsets_of(group[broker]) for broker in BROKERS] == [list(range(10))] * 3


def newest(log: PartitionLog) -> dict[Any, Any]:
    return {record.key: record for record in stored(log)}


EVEN = tuple(range(0, 20, 2))
COMPACTED_LOSSES = [*itertools.product([(0,), (8,), (18,), (8, 10), (0, 16, 18), EVEN], [False, True])]


@pytest.mark.parametrize(
    ("lost", "is_compacted_first"),
    in_gate(COMPACTED_LOSSES, ((8,), False), ((0, 16, 18), True), (EVEN, True), ((18,), False)),
    ids=str,
)
def test_a_compacted_log_with_gaps_is_copied_too(
    tmp_path: Path, lost: tuple[int, ...], is_compacted_first: bool
) -> None:
    """A compacted batch may lie around a gap, or begin behind it."""
    group = Group(tmp_path, {"segment.bytes": 4096})
    for i in range(10):
        group.append(keyed_batch([(b"k%d" % (i % 3), b"%d" % i * 500), (b"u%d" % i, b"x")]))
    group.out = {2}
    group.sync()
    group.leave(3)
    if is_compacted_first:
        group[3].raise_high_watermark(20)
        compact(group[3])
    there = [
        n for n in lost if any(s.base_offset <= n < s.next_offset and s.data_bytes for s in group[3].local_segments)
    ]
    repair(damaged(group[3], *there).parent, RealFiles(), dry_run=False)
    group.out = {1, 2}
    group.image = PartitionImage(BROKERS, 3, 9, 20, (3,))
    group.come_back(3, group.open(3))
    if not is_compacted_first:
        group[3].raise_high_watermark(20)
        compact(group[3])
    group.out.clear()
    group.follow_image()
    for leader in (3, 1, 2):
        if group.image.leader != leader:
            group.change(leader)
        group.append(keyed_batch([(b"k", b"v")]))
        group.sync()
        assert group.image.isr == (1, 2, 3)
        assert len({group[broker].log_end_offset for broker in BROKERS}) == 1
        assert stored(group[2]) == stored(group[3])
        all_of_1, all_of_2 = newest(group[1]), newest(group[2])
        assert all_of_2.items() <= all_of_1.items()  # broker 1 has not been compacted
        assert {*all_of_1} - {*all_of_2} <= {b"k0"}  # an older record of a key whose newest was lost
