"""Producers and transactions of the part that is only in the store: known after every start, without reading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.log.producers.transactions import AbortedTransaction
from tests.support.logs import read_all, records
from tests.support.producers import end, produced, send, send_in_transaction
from tests.support.tiering import FailingStore, Tiered, memory_store


def roll(tiered: Tiered) -> None:
    tiered.log.appender.roll()
    send(tiered.log, records(1))
    tiered.log.flusher.flush()


def test_an_undecided_transaction_is_not_copied(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    send(tiered.log, records(1))
    tiered.log.appender.roll()
    send_in_transaction(tiered.log, 7, 0)
    roll(tiered)
    assert tiered.log.tierable_end == 1
    assert tiered.tier().copied == 1
    end(tiered.log, 7, 1, commit=False)
    tiered.log.flusher.flush()
    assert tiered.tier().copied == 1, "decided, with its marker still in the local part"
    tiered.log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_aborted_transactions_in_the_store_stay_aborted(tmp_path: Path, clean: bool) -> None:
    store = FailingStore(memory_store().url)
    tiered = Tiered(tmp_path, store)
    log = tiered.log
    send_in_transaction(log, 7, 0, value=b"aborted")
    send_in_transaction(log, 8, 0, value=b"spans")
    roll(tiered)
    end(log, 7, 1, commit=False)
    send_in_transaction(log, 9, 0, value=b"committed")
    end(log, 9, 1, commit=True)
    roll(tiered)
    end(log, 8, 1, commit=False)
    roll(tiered)
    log.flusher.flush()
    known = log.reader.aborted_transactions(0, log.log_end_offset), log.producers(), log.last_stable_offset
    assert known[0] == [AbortedTransaction(7, 0, 3), AbortedTransaction(8, 1, 7)]
    assert tiered.tier().released == 3
    for _ in range(2):
        store.calls.clear()
        if clean:
            tiered.reopen()
        else:
            tiered.checkpoint()
            tiered.crash()
        assert store.calls == [], "the start has read nothing from the store"
        log = tiered.log
        assert (
            log.reader.aborted_transactions(0, log.log_end_offset),
            log.producers(),
            log.last_stable_offset,
        ) == known
        assert log.reader.aborted_transactions(4, 6) == [AbortedTransaction(8, 1, 7)]
    assert len(read_all(log)) == 9
    log.close()


def test_a_marker_in_the_local_part_ends_a_transaction_begun_in_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    log = tiered.log
    send_in_transaction(log, 7, 0)
    roll(tiered)
    end(log, 7, 1, commit=False)
    log.flusher.flush()
    assert tiered.tier().released == 1
    log = tiered.reopen()
    assert log.last_stable_offset == log.log_end_offset
    assert log.reader.aborted_transactions(0, 1) == [AbortedTransaction(7, 0, 2)]
    log.close()


def test_a_batch_sent_again_is_recognised_though_the_first_is_in_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    for i in range(3):
        send(tiered.log, produced(5, i))
        roll(tiered)
    assert tiered.tier().released == 3
    log = tiered.reopen()
    before = log.log_end_offset
    assert [send(log, produced(5, i)).base_offset for i in (2, 0)] == [4, 0]
    assert log.log_end_offset == before
    assert send(log, produced(5, 3)).base_offset == before
    log.flusher.flush()
    log.close()


def test_deleting_behind_a_released_part_leaves_no_transaction_open(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    log = tiered.log
    send_in_transaction(log, 7, 0)
    roll(tiered)
    assert tiered.tier().copied == 0
    end(log, 7, 1, commit=True)
    tiered.log.flusher.flush()
    assert tiered.tier().released == 1
    roll(tiered)
    log.retention.delete_records(3)
    tiered.retain()
    tiered.tier()
    log = tiered.reopen()
    assert log.last_stable_offset == log.log_end_offset
    log.close()


def test_deleting_behind_a_released_part_leaves_no_producer_with_an_old_sequence(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    log = tiered.log
    send(log, produced(5, 0))  # 0
    roll(tiered)  # 1
    assert tiered.tier().released == 1, "the journal knows of sequence 0"
    send(log, produced(5, 1))  # 2
    roll(tiered)  # 3
    log.retention.delete_records(3)
    tiered.retain()
    log.close()
    tiered.checkpoint()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    log = tiered.open()
    assert log.local_log_start_offset == 3
    assert send(log, produced(5, 2)).base_offset == 4
    log.close()


def test_without_any_snapshot_the_journal_knows(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    log = tiered.log
    send(log, produced(5, 0))
    send_in_transaction(log, 7, 0, value=b"aborted")
    roll(tiered)
    end(log, 7, 1, commit=False)
    roll(tiered)
    send(log, produced(5, 1))
    log.flusher.flush()
    known = log.reader.aborted_transactions(0, log.log_end_offset), log.producers()
    assert len(known[0]) == 1
    assert tiered.tier().released == 2
    for _ in range(2):  # the second start has the snapshot that the first has made
        log.close()
        tiered.checkpoint()
        if _ == 0:
            gone = [p for p in log.directory.iterdir() if p.suffix in (".snapshot", ".txnindex")]
            assert gone
            for path in gone:
                path.unlink()
        log = tiered.open()
        assert (log.reader.aborted_transactions(0, log.log_end_offset), log.producers()) == known
        assert send(log, produced(5, 0)).base_offset == 0, "recognised"
    log.close()


@pytest.mark.parametrize("lost", ["snapshots", "all"])
def test_producers_across_the_store_and_the_local_part_are_restored_without_snapshots(
    tmp_path: Path, lost: str
) -> None:
    tiered = Tiered(tmp_path)
    log = tiered.log
    send_in_transaction(log, 7, 0, value=b"spans")  # 0, released
    roll(tiered)
    send_in_transaction(log, 8, 0)
    end(log, 8, 1, commit=False)  # its index entry must not hide what ends later
    send(log, produced(7, 1, transactional=True))
    end(log, 7, 1, commit=False)
    log.flusher.flush()
    known = log.reader.aborted_transactions(0, log.log_end_offset)
    assert len(known) == 2
    assert tiered.tier().released == 1
    log.close()
    directory = tmp_path / "events-0" if (tmp_path / "events-0").exists() else log.directory
    for path in [*directory.glob("*.snapshot"), *(directory.glob("*.txnindex") if lost == "all" else ())]:
        path.unlink()
    log = tiered.reopen()
    assert log.reader.aborted_transactions(0, log.log_end_offset) == known
    assert log.reader.aborted_transactions(0, 1) == [AbortedTransaction(7, 0, known[1].last_offset)]
    log.close()


def test_a_snapshot_that_is_older_than_the_local_files_is_not_used(tmp_path: Path) -> None:
    """The newer one is removed with the end of the log. The records in between are not here to be replayed: a
    transaction that has ended there would be open forever."""
    tiered = Tiered(tmp_path)
    log = tiered.log
    send_in_transaction(log, 7, 0)  # 0
    roll(tiered)  # 1, a snapshot at 2
    end(log, 7, 1, commit=False)  # 2
    send(log, produced(5, 0))  # 3
    log.appender.roll()
    send(log, records(1), records(1))  # 4 and 5, a snapshot at 6
    log.flusher.flush()
    assert tiered.tier().released == 2
    assert log.truncation.truncate_to(5) == 5
    for _ in range(2):
        assert [p.name for p in sorted(log.directory.glob("*.snapshot"))] == [f"{5:020d}.snapshot"]
        assert log.last_stable_offset == 5
        assert log.reader.aborted_transactions(0, 5) == [AbortedTransaction(7, 0, 2)]
        log = tiered.reopen()
    assert send(log, produced(5, 0)).base_offset == 3, "recognised"
    log.close()
