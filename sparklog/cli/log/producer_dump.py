"""Reads a producer snapshot or an index of aborted transactions for `sparklog log dump`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparklog.environment.files import read_regular
from sparklog.errors import LogCorruptError
from sparklog.format import producer_snapshot, txn_index
from sparklog.format.producer_snapshot import ProducerSnapshot, decode_snapshot
from sparklog.format.txn_index import decode_txn_index

SUFFIXES = (producer_snapshot.SUFFIX, txn_index.SUFFIX)


def dump_producer_file(path: Path) -> dict[str, Any]:
    """Return the file's content, for JSON. Raises LogCorruptError, StorageError, OSError."""
    data = read_regular(path)
    content: Any = decode_snapshot(data) if path.suffix == producer_snapshot.SUFFIX else decode_txn_index(data)
    if content is None:
        raise LogCorruptError(f"{path} cannot be read; the broker replays the log's headers instead")
    if isinstance(content, ProducerSnapshot):
        return {
            "path": str(path),
            "offset": content.offset,
            "producers": [
                p._asdict() | {"batches": [b._asdict() for b in p.batches]}
                for p in sorted(content.producers, key=lambda p: p.producer_id)
            ],
            "waiting": [{"first_offset": first, "last_offset": last} for first, last in content.waiting],
            "aborted_files": [f._asdict() for f in content.aborted_files],
        }
    return {"path": str(path), "aborted": [entry._asdict() for entry in content]}


def print_producer_file(facts: dict[str, Any]) -> None:
    """Print the file's content as text."""
    from sparklog.cli import console

    print(facts["path"])
    if "aborted" in facts:
        columns: tuple[str, ...] = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
        rows = facts["aborted"]
    else:
        print(f"  producers at offset {facts['offset']}")
        columns = ("producer_id", "epoch", "last sequence", "batches", "open since", "marker", "last written")
        rows = [
            {
                "producer_id": p["producer_id"],
                "epoch": p["epoch"],
                "last sequence": p["batches"][-1]["last_sequence"] if p["batches"] else "-",
                "batches": len(p["batches"]),
                "open since": p["transaction_first_offset"] if p["transaction_first_offset"] >= 0 else "-",
                "marker": p["marker_offset"] if p["marker_offset"] >= 0 else "-",
                "last written": console.time(p["last_time_ms"]),
            }
            for p in facts["producers"]
        ]
    table = console.table(*columns, right=columns)
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    console.stdout().print(table)
