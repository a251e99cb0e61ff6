"""Rewrites all files of a table with the wider columns of its topic, without the log."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import LakeUnavailableError
from sparklog.lake.columns import wider_columns
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_snapshot import LakeTable, TableFile, newest
from sparklog.lake.parquet_files import DataFile, DataFileWriter


def rewrite_wider(table: LakeTable, wanted: pa.Schema, file_bytes: int) -> bool:
    """Write the rows of a table again with wider columns, in one commit on this version. The next offsets stay. Returns
    False if no column of the topic is wider than in the table, and nothing was done. Raises LakeUnavailableError: The
    table cannot be reached, or has changed meanwhile; LakePausedError."""
    wider = wider_columns(wanted, table.schema())
    if not wider:
        return False
    fields = [f.with_type(wider[f.name][1]) if f.name in wider else f for f in table.schema()]
    schema = pa.schema([f.with_nullable(True) for f in fields])
    masks = table.deletion_masks()
    paths: list[str] = []
    added: list[DataFile] = []
    writer: DataFileWriter | None = None
    try:
        for partition, files in _by_partition(table).items():
            writer = table.writer(schema, file_bytes, "mixed" if partition is None else f"{partition:05d}")
            for file in files:
                for rows in table.read_pieces(file, None, masks=masks):
                    writer.write(rows.cast(schema))
            added += writer.close()
            paths, writer = [f.path for f in added], None
    except BaseException:
        table.remove_files(paths if writer is None else [*paths, *writer.abandon()])
        raise
    try:
        table.replace_all(pa.schema(fields), added, information={"widened": sorted(wider)})
    except CommitConflictError as e:
        if e.lasting or newest(table.location, table).version > table.version:
            table.remove_files(paths)
        e.raise_if_lasting(table.location)
        raise LakeUnavailableError(f"the table at {table.location} has changed meanwhile: try again ({e})") from e
    return True


def _by_partition(table: LakeTable) -> dict[int | None, list[TableFile]]:
    found: dict[int | None, list[TableFile]] = {}
    for file in sorted(table.files(), key=lambda f: (f.partition is None, f.partition or 0, f.first_offset or 0)):
        found.setdefault(file.partition, []).append(file)
    return found
