"""Checks of a partition's files about its producers: snapshots, and files of aborted transactions.

All their content can be replayed from the batches, so visible damage only costs time at a start. But a wrong file that
looks valid would show aborted records to readers. So the aborted transactions are derived again from the batches and
compared.
"""

from __future__ import annotations

from pathlib import Path

from sparklog.environment.files import RealFiles
from sparklog.errors import CorruptBatchError
from sparklog.format import producer_snapshot, txn_index
from sparklog.format.producer_snapshot import ProducerSnapshot, decode_snapshot, snapshot_name
from sparklog.format.txn_index import AbortedEntry, decode_txn_index, entries_crc
from sparklog.log.producers.partition_producers import PartitionProducers
from sparklog.log.segments.header_walk import header_at, walk_headers
from sparklog.log.tools.verify_segment import Findings, SegmentCheck, read_if_exists

_REPLAYED = "the next start replays the log's headers instead"


def check_producers(directory: Path, checks: list[SegmentCheck], findings: Findings, *, stopped_clean: bool) -> None:
    """Check the files about producers in `directory`; `checks` are the results of its segments. Unless the broker has
    `stopped_clean`, an incomplete file is only a note, because a crash can leave it."""
    report = findings.add if stopped_clean else findings.note
    aborted: dict[int, list[AbortedEntry]] = {}
    for path in sorted(directory.glob(f"*{txn_index.SUFFIX}")):
        data = read_if_exists(path)
        if data is None:
            continue
        entries = decode_txn_index(data)
        if entries is None or not path.stem.isdigit():
            report(path, 0, "aborted transactions", f"cannot be read; {_REPLAYED}")
        else:
            aborted[int(path.stem)] = entries
    newest: ProducerSnapshot | None = None
    for path in sorted(directory.glob(f"*{producer_snapshot.SUFFIX}")):
        data = read_if_exists(path)
        if data is None:  # a broker at work has replaced it by a newer one
            continue
        if not data:  # by a repair, or odd
            findings.note(path, 0, "producers", f"emptied; {_REPLAYED}")
            continue
        snapshot = decode_snapshot(data)
        if snapshot is None or snapshot_name(snapshot.offset) != path.name:
            report(path, 0, "producers", f"cannot be read; {_REPLAYED}")
        else:
            newest = snapshot
    if newest is None or any(c.findings.damage or c.info is None for c in checks) or not checks:
        return
    path = directory / snapshot_name(newest.offset)
    expected: set[AbortedEntry] = set()
    for file in newest.aborted_files:
        entries = aborted.get(file.base_offset, [])[: file.entries]
        if entries_crc(entries) != file.crc:
            report(path, 0, "producers", f"refers to {file.base_offset:020d}{txn_index.SUFFIX}, which is missing")
            return
        expected.update(entries)
    if stopped_clean:
        _compare(path, expected, _derive_producers(checks), newest.offset, findings)


def _derive_producers(checks: list[SegmentCheck]) -> PartitionProducers:
    """Derive the producers from the batch headers. Raises FileNotFoundError if a segment has changed since its
    check."""
    producers = PartitionProducers()
    for check in checks:
        positions = check.batches.positions
        if not positions:
            continue
        file = RealFiles().open(check.path)
        try:
            end = positions[-1] + header_at(file.read, positions[-1], check.size_bytes).size_bytes
            producers.apply((header for _, header in walk_headers(file.read, positions[0], end)), 0)
        except CorruptBatchError:  # the check found no damage, so the broker is changing the file
            raise FileNotFoundError(check.path) from None
        finally:
            file.close()
    return producers


def _compare(
    path: Path, entries: set[AbortedEntry], derived: PartitionProducers, offset: int, findings: Findings
) -> None:
    markers = {(e.producer_id, e.last_offset) for e in entries}
    for entry in derived.aborted.entries(0, offset):
        if (entry.producer_id, entry.last_offset) not in markers:
            findings.add(
                path,
                0,
                "aborted transactions",
                f"the transaction of producer {entry.producer_id} at offsets {entry.first_offset} to "
                f"{entry.last_offset} is aborted, but readers are not informed; remove the {producer_snapshot.SUFFIX} "
                "files, the next start replays the log's headers",
            )
