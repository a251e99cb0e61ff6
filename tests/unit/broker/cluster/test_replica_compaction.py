"""Compacted topics with replicas: followers copy the records that compaction has left, and all converge under any
leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.format.batch import ATTRIBUTE_OFFSET_COLUMN
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tools.verify import verify
from tests.support.compaction import (
    Row,
    Stored,
    compact,
    headers,
    keyed_batch,
    last_values,
    open_keyed,
    stored,
)
from tests.support.logs import ManualClock
from tests.support.producers import produced
from tests.unit.broker.cluster.replica_group import Group, batches

DAY_MS = 86_400_000


def rewrite_keys(group: Group, rounds: int, keys: int = 3) -> dict[bytes, bytes]:
    """Every round writes all keys anew; the state afterwards."""
    rows: list[Row] = []
    for i in range(rounds):
        rows = [(b"%d" % k, b"round %d" % i) for k in range(keys)]
        group.append(keyed_batch(rows))
    return {k: v for k, v in rows if k is not None and v is not None}


def compact_leader(group: Group) -> None:
    """Of all but the last batch only the last values are left: there are gaps."""
    result = compact(group.leader.log)
    assert result is not None
    assert result.rows_removed


def state(log: PartitionLog) -> dict[bytes, bytes]:
    return last_values(stored(log))


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_replica_that_is_new_to_a_compacted_topic_joins_the_isr(tmp_path: Path, max_bytes: int) -> None:
    group = Group(tmp_path)
    group.leave(3)
    rewrite_keys(group, 8)
    group.append(keyed_batch([(b"once", b"1")]))
    want = rewrite_keys(group, 8) | {b"once": b"1"}
    group.sync()
    compact_leader(group)
    want |= rewrite_keys(group, 2)
    group.come_back(3)
    group.sync(max_bytes)
    assert group.image.isr == (1, 2, 3)
    assert group[3].log_end_offset == group[1].log_end_offset == group[3].high_watermark
    assert batches(group[3]) == batches(group[1])
    assert state(group[3]) == state(group[2]) == want
    assert len(headers(group[3])) < len(headers(group[2]))
    assert group.nodes[3].failures == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_copy_with_gaps_survives_a_restart_and_is_appended_to(tmp_path: Path, clean: bool) -> None:
    group = Group(tmp_path)
    group.leave(3)
    rewrite_keys(group, 10)
    group.sync()
    compact_leader(group)
    group.come_back(3)
    group.sync(1)
    end = group[3].log_end_offset
    group.leave(3)
    if clean:
        group[3].close()
    assert verify([group[3].directory]).damage == []
    again = group.open(3, clean=clean, high_watermark=end, recovery_point=end if clean else 0)
    assert again.log_end_offset == end
    want = rewrite_keys(group, 3)
    group.come_back(3, again)
    group.sync()
    assert group.image.isr == (1, 2, 3)
    assert batches(group[3]) == batches(group[1])
    assert state(group[3]) == want


def test_each_replica_compacts_its_own_log_below_its_high_watermark(tmp_path: Path) -> None:
    group = Group(tmp_path)
    want = rewrite_keys(group, 6)
    assert compact(group[2]) is None, "nothing has been copied yet"
    group.sync()
    for broker in (2, 3):
        result = compact(group[broker])
        assert result is not None
        assert result.rows_removed == 15
    group.append(keyed_batch([(b"0", b"not committed")]))
    group.leave(3)
    group.nodes[2].ask(group.leader, 1 << 20)  # copied, and nobody has said that it is committed
    assert group[2].high_watermark < group[2].log_end_offset
    compact(group[2])
    assert state(group[2]) == want
    group.change(2)
    group.come_back(3)
    group.sync()
    want |= {b"0": b"not committed"} | rewrite_keys(group, 1)
    group.sync()
    assert state(group[1]) == state(group[2]) == state(group[3]) == want
    assert group.image.isr == (1, 2, 3)


def test_a_log_is_cut_right_where_compaction_has_taken_the_beginning_of_an_epoch(tmp_path: Path) -> None:
    """Broker 1 has records of epoch 4 that were never committed. In epoch 5 others took their offsets and were
    compacted away before broker 3 copied, so that its batches alone would say that epoch 5 began later."""
    group = Group(tmp_path)
    rewrite_keys(group, 2)
    group.sync()
    group.leave(3)
    group.leave(1)
    for value in (b"lost 1", b"lost 2"):
        payload = keyed_batch([(b"x", value)])
        group[1].appender.append(payload, leader_epoch=4)
    group.change(2)
    rewrite_keys(group, 6)
    group.sync()
    begins = group[2].epochs.entries[-1]
    compact_leader(group)
    assert next(h for h in headers(group[2]) if h.leader_epoch == 5).base_offset > begins.start_offset + 2
    group[3].truncation.restart_at(0)
    group.come_back(3)
    group.sync()
    assert group[3].epochs.entries == group[2].epochs.entries
    group.leave(2)
    group.change(3)
    group.come_back(1)
    group.sync()
    assert b"x" not in state(group[1])
    assert group[1].log_end_offset == group[3].log_end_offset
    assert batches(group[1])[-1] == batches(group[3])[-1]


def write_alone(group: Group, broker: int, *rows: Row) -> None:
    """An unclean election after the other: the broker leads, and nobody copies."""
    group.come_back(broker)
    group.out.update({1, 2, 3} - {broker})
    group.change(broker, (broker,))
    group.append(keyed_batch(rows))


def test_a_follower_that_is_cut_in_a_gap_of_compaction_copies_the_batch_below_too(tmp_path: Path) -> None:
    group = Group(tmp_path)
    for number in range(3):
        write_alone(group, 1, (b"once" if number == 0 else b"again", b"%d" % number))
        write_alone(group, 2, (b"other", b"%d" % number))
    compact(group[2])
    assert [h.base_offset for h in headers(group[2])] == [2]
    write_alone(group, 1, (b"last", b"3"))
    compact(group[1])
    assert [h.base_offset for h in headers(group[1])] == [0, 2, 3]
    group.come_back(2)
    group.sync()
    assert batches(group[2]) == batches(group[1])
    assert group[2].epochs.entries == group[1].epochs.entries
    assert group.nodes[2].failures == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_record_replaced_by_an_undone_one_returns(tmp_path: Path, restarts: bool) -> None:
    """Compaction has removed it from the replicas that had both; the one that leads has only the older record."""
    group = Group(tmp_path)
    group.append(keyed_batch([(b"a", b"1"), (b"b", b"1")]))
    group.sync()
    group.leave(3)
    group.append(keyed_batch([(b"a", b"undone")]))
    group.sync()
    for broker in (1, 2):
        compact(group[broker])
        assert len(headers(group[broker])) == 2
    if restarts:  # and what it knows to be committed is not on the disk
        group.come_back(2, group.open(2, clean=False, high_watermark=2))
    group.come_back(3)
    group.change(3, (3,))
    group.append(keyed_batch([(b"c", b"1")]))
    group.sync()
    assert group.image.isr == (1, 2, 3)
    assert [state(group[b]) for b in (1, 2, 3)] == [{b"a": b"1", b"b": b"1", b"c": b"1"}] * 3


def test_a_leader_that_begins_in_a_batch_right_where_another_history_ends_is_copied(tmp_path: Path) -> None:
    group = Group(tmp_path, {"cleanup.policy": "delete"})
    write_alone(group, 1, *[(b"lost", b"%d" % i) for i in range(4)])
    write_alone(group, 2, *[(b"kept", b"%d" % i) for i in range(5)])
    group[2].retention.delete_records(4)
    group.come_back(1)
    group.come_back(3)
    group.sync()
    group.append(keyed_batch([(b"next", b"5")]))
    group.sync()
    assert group.image.isr == (1, 2, 3)
    assert [stored(group[b]) for b in (1, 2, 3)] == [[Stored(4, b"kept", b"4"), Stored(5, b"next", b"5")]] * 3
    assert [group[b].log_start_offset for b in (1, 2, 3)] == [4, 4, 4]
    assert all(node.failures == [] for node in group.nodes.values())


def clocked(directory: Path, clock: ManualClock, settings: dict[str, object] | None = None) -> Group:
    def open_log(where: Path, given: dict[str, object], **more: object) -> PartitionLog:
        return open_keyed(where, given, clock=clock, **more)  # type: ignore[arg-type]

    return Group(directory, settings, open_log=open_log)


def keys_of(log: PartitionLog) -> set[bytes | None]:
    return {row.key for row in stored(log)}


def test_a_deletion_stays_until_all_replicas_have_copied_it(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    group = clocked(tmp_path, clock)
    group.append(keyed_batch([(b"deleted", b"1"), (b"kept", b"1")]))
    group.sync()
    group.leave(3)
    group.append(keyed_batch([(b"deleted", None)]))
    want = rewrite_keys(group, 4) | {b"kept": b"1"}
    group.sync()
    group.compact(1)  # the delete horizon begins
    for _ in range(3):
        clock.time_ms += 3 * DAY_MS
        want |= rewrite_keys(group, 1)
        group.sync()
        assert group.compact(1) is not None
        assert b"deleted" in keys_of(group[1])
    clock.time_ms += 3 * DAY_MS
    group[1].appender.begin_segment()
    group.compact(1)
    assert group.compact(1, roll=False) is None, "what may not go makes no log due"
    group.come_back(3)
    group.sync(1)
    assert group.image.isr == (1, 2, 3)
    assert group.nodes[3].failures == []
    assert state(group[3]) == state(group[1]) == want
    group.compact(1)
    assert b"deleted" not in keys_of(group[1])


def test_a_follower_with_an_old_image_keeps_deletions(tmp_path: Path) -> None:
    """Broker 2 has heard of the tombstone's commit, and not yet that broker 3 has left the ISR before."""
    clock = ManualClock(1_000_000)
    group = clocked(tmp_path, clock, {"delete.retention.ms": 0})
    group.append(keyed_batch([(b"deleted", b"1")]))
    group.sync()
    old = group.image
    group.leave(3)
    group.nodes[2].replica.image = old
    group.append(keyed_batch([(b"deleted", None)]))
    want = rewrite_keys(group, 4)
    group.sync()
    group.nodes[2].replica.image = old
    for _ in range(3):
        clock.time_ms += DAY_MS
        group.compact(2)
    assert b"deleted" in keys_of(group[2])
    group.come_back(3)
    group.sync()
    assert group.image.isr == (1, 2, 3)
    group.change(leader=2)
    group.sync()
    assert state(group[3]) == want
    for broker_id in (1, 2, 3):
        group.compact(broker_id)
        clock.time_ms += DAY_MS
        group.compact(broker_id)
        assert b"deleted" not in keys_of(group[broker_id])


def test_a_replica_that_takes_longer_to_copy_than_deletions_stay_is_copied_once(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    group = clocked(tmp_path, clock, {"delete.retention.ms": 0})
    group.leave(3)
    for i in range(8):
        group.append(keyed_batch([(b"%d" % i, b"once")]))
        rewrite_keys(group, 4)
    group.sync()
    group.compact(1)
    group.come_back(3)
    end = -1
    while group[3].log_end_offset > end:
        end = group[3].log_end_offset
        group.nodes[3].ask(group.leader, 1)
        clock.time_ms += 1_000
    group.sync()
    assert group.image.isr == (1, 2, 3)
    assert group.nodes[3].failures == []
    assert state(group[3]) == state(group[1])


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_behind_others", [False, True])
@pytest.mark.parametrize("away_ms", [DAY_MS // 2, 3 * DAY_MS])
def test_a_key_does_not_come_back_if_a_replica_has_lost_the_deletion(
    tmp_path: Path, away_ms: int, is_behind_others: bool, is_cut: bool
) -> None:
    """A power cut has taken the batches behind the first one while the replica counted as in sync, or it is cut there
    because a repair could not save all. Before the deleted records there may be batches that lost no record."""
    clock = ManualClock(1_000_000)
    group = clocked(tmp_path, clock, {"segment.bytes": 4096})
    group.append(keyed_batch([(b"deleted", b"1"), (b"kept", b"1")]))
    group.sync()
    group.leave(3)
    if not is_cut:
        group[3].close()
    want = {b"kept": b"1"}
    if is_behind_others:
        want[b"large"] = b"x" * 3_000
        group.append(keyed_batch([(b"large", want[b"large"])]))
        group[1].appender.begin_segment()
    group.append(keyed_batch([(b"deleted", None)]))
    want |= rewrite_keys(group, 4)
    group.sync()
    compact_leader(group)  # the delete horizon begins
    clock.time_ms += away_ms
    group.append(keyed_batch([(b"0", b"later"), (b"1", b"later"), (b"2", b"later")]))
    group.sync()
    compact(group[1])
    is_gone = b"deleted" not in keys_of(group[1])
    assert is_gone is (away_ms > DAY_MS)
    if is_cut:
        for _, payload in batches(group[2])[1:]:
            group[3].replica.append(payload)
        group[3].truncation.truncate_to(2)
    group.come_back(3, group[3] if is_cut else group.open(3, high_watermark=2, recovery_point=2))
    group.sync(1)
    assert state(group[3]) == state(group[1]) == {**want, b"0": b"later", b"1": b"later", b"2": b"later"}
    assert group.image.isr == (1, 2, 3)
    assert len(group.nodes[3].failures) == (1 if is_gone else 0)
    if is_gone:
        assert "is emptied" in group.nodes[3].failures[0]


def test_a_leader_whose_log_begins_in_the_middle_of_a_batch_is_copied(tmp_path: Path) -> None:
    group = Group(tmp_path, {"cleanup.policy": "delete"})
    group.leave(3)
    group.append(keyed_batch([(b"%d" % i, b"v") for i in range(10)]))
    group.append(keyed_batch([(b"a", b"v")]))
    group.sync()
    group[1].retention.delete_records(5)
    group.come_back(3)
    group.sync()
    assert (group[3].log_start_offset, group[3].log_end_offset) == (5, 11)
    assert stored(group[3]) == stored(group[1])
    assert group[2].log_start_offset == 5
    assert group.image.isr == (1, 2, 3)


def test_the_log_start_is_followed_also_by_a_topic_that_is_only_compacted_now(tmp_path: Path) -> None:
    group = Group(tmp_path)
    rewrite_keys(group, 4)
    group.sync()
    group[1].retention.follow_log_start(6)
    group.sync()
    assert [group[b].log_start_offset for b in (1, 2, 3)] == [6, 6, 6]
    assert group.nodes[2].failures == []


def test_a_replica_with_a_copied_compacted_log_knows_its_producers(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.leave(3)
    for sequence in range(6):
        group.append(produced(7, sequence, key=b"k"))
    group.append(produced(8, 0, key=b"k"))
    group.sync()
    compact_leader(group)
    group.come_back(3)
    group.sync()
    group.change(3)
    again = group[3].appender.append(produced(7, 5, key=b"k"), leader_epoch=5)
    assert (again.duplicate, again.base_offset) == (True, 5)
    assert group.append(produced(7, 6, key=b"k")) == 7


def test_a_copy_that_is_cut_in_a_gap_keeps_all_that_lies_before(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.leave(3)
    group.append(keyed_batch([(b"before", b"1")]))
    rewrite_keys(group, 6)
    group.sync()
    compact_leader(group)
    group.come_back(3)
    group.sync()
    before, behind = headers(group[3])[:2]
    assert before.next_offset + 1 < behind.base_offset, "there is a gap"
    want = stored(group[3])
    for offset in range(behind.base_offset, before.next_offset - 1, -1):
        assert group[3].truncation.truncate_to(offset) == before.next_offset
        assert stored(group[3]) == want[: before.record_count]
    group.leave(3)
    group.come_back(3)
    group.sync()
    assert stored(group[3]) == want


def test_compacted_segments_of_a_follower_equal_the_leaders(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.leave(3)
    rewrite_keys(group, 5)
    group.sync()
    compact_leader(group)
    rewrite_keys(group, 2)
    group.come_back(3)
    group.sync()
    for segment in group[3].segments:
        found = {bool(h.attributes & ATTRIBUTE_OFFSET_COLUMN) for _, h in segment.headers_from(None)}
        assert found == {segment.compacted}
    assert [s.compacted for s in group[3].segments] == [True, False]
    assert all(a.next_offset == b.base_offset for a, b in zip(group[3].segments, group[3].segments[1:], strict=False))


def test_the_model_survives_changing_leaders(tmp_path: Path) -> None:
    group = Group(tmp_path, {"segment.bytes": 4096})
    model: list[Stored] = []
    for turn in range(6):
        for i in range(5):
            rows: list[Row] = [(b"%d" % (k * turn % 7), b"%d %d" % (turn, i)) for k in range(4)]
            base = group.append(keyed_batch(rows))
            model += [Stored(base + n, *row) for n, row in enumerate(rows)]
        group.sync()
        compact(group[turn % 3 + 1])
        away = turn % 2 + 2
        if group.image.leader != away:
            group.leave(away)
            rows = [(b"away", b"%d" % turn)]
            base = group.append(keyed_batch(rows))
            model += [Stored(base, *rows[0])]
            group.sync()
            compact(group.leader.log)
            group.come_back(away)
        group.sync()
        assert group.image.isr == (1, 2, 3)
        for broker in (1, 2, 3):
            assert state(group[broker]) == last_values(model)
        group.change((group.image.leader % 3) + 1)
