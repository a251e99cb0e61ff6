"""Snapshots of a log's producers and files of its aborted transactions: they save time, and none is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import StorageFullError
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers import partition_producers
from sparklog.log.tools.verify import verify
from tests.support.logs import ManualClock, open_log, records
from tests.support.producers import end, produced, send, send_in_transaction

SMALL = {"segment.bytes": 8192, "file.delete.delay.ms": 0}


def filled(directory: Path, transactions: int = 24) -> PartitionLog:
    """Several segments, every second transaction aborted, one open, two other producers."""
    log = open_log(directory, SMALL)
    for n in range(7):
        send(log, produced(1, n))
    for n in range(transactions):
        send_in_transaction(log, 7, 0, epoch=n, value=b"x" * 500)
        send(log, produced(2, n))
        end(log, 7, n + 1, commit=n % 2 == 0)
    send_in_transaction(log, 8, 0)
    assert log.segment_count > 3
    return log


def state(log: PartitionLog) -> tuple[object, ...]:
    return (
        log.producers(),
        log.last_stable_offset,
        log.reader.aborted_transactions(0, log.log_end_offset),
        sorted(log._state.producers.states),
    )


def files_of(directory: Path, suffix: str) -> list[Path]:
    return sorted((directory / "events-0").glob(f"*{suffix}"))


def test_a_clean_start_reads_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    expected = state(log)
    log.close()

    def refuse(*_: object) -> None:
        raise AssertionError("a header was applied")

    monkeypatch.setattr(partition_producers.PartitionProducers, "_apply", refuse)
    assert state(open_log(tmp_path, SMALL)) == expected


def test_a_start_after_a_crash_reads_only_the_part_behind_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    expected, newest = state(log), log._state.producer_files.newest_snapshot
    log.close(seal=False)
    applied = []
    original = partition_producers.PartitionProducers._apply

    def note(self: object, header: object, high_watermark: int) -> None:
        applied.append(header.base_offset)  # type: ignore[attr-defined]
        original(self, header, high_watermark)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_producers.PartitionProducers, "_apply", note)
    assert state(open_log(tmp_path, SMALL, clean=False)) == expected
    assert applied and min(applied) >= newest


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["newest snapshot", "snapshots", "index", "all"])
def test_none_of_the_files_is_needed(tmp_path: Path, clean: bool, lost: str) -> None:
    log = filled(tmp_path)
    expected = state(log)
    log.close(seal=clean)
    snapshots, indexes = files_of(tmp_path, ".snapshot"), files_of(tmp_path, ".txnindex")
    assert len(snapshots) == 2
    assert len(indexes) > 1
    gone = {
        "newest snapshot": snapshots[-1:],
        "snapshots": snapshots,
        "index": indexes[:1],
        "all": snapshots + indexes,
    }
    for path in gone[lost]:
        path.unlink()
    log = open_log(tmp_path, SMALL, clean=clean)
    assert state(log) == expected
    log.close()
    assert state(open_log(tmp_path, SMALL)) == expected


@pytest.mark.parametrize("suffix", [".snapshot", ".txnindex"])
def test_damage_to_any_byte_is_noticed(tmp_path: Path, suffix: str) -> None:
    log = filled(tmp_path, transactions=8)
    expected = state(log)
    log.close()
    path = files_of(tmp_path, suffix)[-1]
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        log = open_log(tmp_path, SMALL)
        assert state(log) == expected, position
        log.close(seal=False)
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert state(open_log(tmp_path, SMALL)) == expected, size


def test_a_snapshot_beyond_the_end_is_not_believed(tmp_path: Path) -> None:
    """A power cut can keep a snapshot and lose the batches below it."""
    log = filled(tmp_path)
    log.close()
    snapshot = files_of(tmp_path, ".snapshot")[-1].read_bytes()
    log = open_log(tmp_path, SMALL)
    cut = log.truncation.truncate_to(log.log_end_offset - 4)
    expected = state(log)
    log.close(seal=False)
    path = tmp_path / "events-0" / f"{cut + 4:020d}.snapshot"
    path.write_bytes(snapshot)
    log = open_log(tmp_path, SMALL, clean=False)
    assert not path.exists()
    assert state(log) == expected


def test_truncated_state_does_not_come_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=False)
    log.close()
    log = open_log(tmp_path, SMALL)
    log.truncation.truncate_to(1)
    end(log, 7, 1, commit=True)  # decided the other way
    send(log, records(3))
    expected = state(log)
    assert expected[2] == []
    for clean in (False, True, True):
        log.close(seal=clean)
        log = open_log(tmp_path, SMALL, clean=clean)
        assert state(log) == expected


def test_producers_survive_their_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.retention.delete_records(log.last_stable_offset)
    before = log.producers()
    assert log.retention.drop_below_log_start() > 0
    log.retention.remove_dropped()
    assert log.producers() == before
    assert log.reader.aborted_transactions(0, log.log_end_offset) == []
    start = log.log_start_offset
    log.close(seal=False)
    log = open_log(tmp_path, SMALL, clean=False, log_start_offset=start)
    assert log.producers() == before
    assert send(log, produced(1, 6)).base_offset == 6
    assert files_of(tmp_path, ".txnindex") == []


def test_retention_of_everything_keeps_the_producers(tmp_path: Path) -> None:
    clock = ManualClock(10**9)
    log = open_log(tmp_path, SMALL | {"retention.ms": 1000}, clock=clock)
    send(log, produced(1, 0))
    clock.time_ms += 10_000
    assert log.retention.retain().count == 1
    log.retention.drop_below_log_start()
    log.retention.remove_dropped()
    log.close(seal=False)
    log = open_log(tmp_path, SMALL, clean=False, log_start_offset=1, high_watermark=1, recovery_point=1)
    assert send(log, produced(1, 0)).duplicate
    assert send(log, produced(1, 1)).base_offset == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_snapshot_is_not_used_if_the_batches_behind_it_are_deleted(tmp_path: Path, clean: bool) -> None:
    """The newer one has gone with the end of the log."""
    log = open_log(tmp_path, SMALL)
    send_in_transaction(log, 7, 0)  # 0
    log.appender.roll()
    send(log, produced(5, 0))  # 1, a snapshot at 2
    end(log, 7, 1, commit=True)  # 2
    send(log, produced(5, 1))  # 3
    log.appender.roll()
    send(log, records(1), records(1))  # 4 and 5, a snapshot at 6
    log.retention.delete_records(4)
    assert log.retention.drop_below_log_start() == 2
    log.retention.remove_dropped()
    assert log.truncation.truncate_to(5) == 5
    assert state(log) == ([], 5, [], [])
    log.close(seal=clean)
    log = open_log(tmp_path, SMALL, clean=clean, log_start_offset=4, high_watermark=5)
    assert state(log) == ([], 5, [], [])
    assert send(log, produced(5, 2)).base_offset == 5, "any sequence of a producer that is not known"


def test_an_emptied_log_forgets_all(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.retention.delete_records(20)
    log.truncation.truncate_to(10)  # below the log start
    assert state(log) == ([], 10, [], [])
    assert [p.name for p in files_of(tmp_path, ".snapshot")] == [f"{10:020d}.snapshot"]
    assert files_of(tmp_path, ".txnindex") == []


def test_a_full_disk_costs_only_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparklog.log.producers import files as producer_files

    log = filled(tmp_path)

    def full(*_: object) -> None:
        raise StorageFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(producer_files, "write_whole", full)
        log.appender.roll()
        send(log, produced(1, 7))
        send(log, produced(1, 8))
        expected = state(log)
        log.close(seal=False)
    assert state(open_log(tmp_path, SMALL, clean=False)) == expected


def test_verify_compares_with_the_batches(tmp_path: Path) -> None:
    from sparklog.format.producer_snapshot import decode_snapshot, encode_snapshot

    log = filled(tmp_path)
    log.close()
    (tmp_path / "clean-shutdown").write_text('{"broker_id": 0, "unclean": []}')
    directory = tmp_path / "events-0"
    assert verify([directory]).damage == []
    path = files_of(tmp_path, ".snapshot")[-1]
    data = path.read_bytes()
    snapshot = decode_snapshot(data)
    assert snapshot is not None
    path.write_bytes(encode_snapshot(snapshot._replace(aborted_files=snapshot.aborted_files[1:])))
    assert "readers are not informed" in verify([directory]).damage[0].message
    path.write_bytes(data[:-1])
    assert [f.kind for f in verify([directory]).damage] == ["producers"]
