"""Rewrites all files of a table with the wider columns of its topic, without the log."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import LakeUnavailableError
from sparklog.lake.columns import wider_columns
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_reader import TableFile
from sparklog.lake.delta_snapshot import DeltaSnapshot, reopen_newest
from sparklog.lake.parquet_files import DataFile, DataFileWriter


def rewrite_wider(table: DeltaSnapshot, topic_schema: pa.Schema, file_bytes: int) -> bool:
    """Write the rows of a table again with wider columns, in one commit on this version. The next offsets stay. Returns
    False if no column of the topic is wider than in the table, and nothing was done. Raises LakeUnavailableError: The
    table cannot be reached, or has changed meanwhile; LakePausedError."""
    wider = wider_columns(topic_schema, table.schema)
    if not wider:
        return False
    fields = [f.with_type(wider[f.name][1]) if f.name in wider else f for f in table.schema]
    schema = pa.schema([f.with_nullable(True) for f in fields])
    masks, committer = table.deletion_masks(), DeltaCommitter(table)
    paths: list[str] = []
    added: list[DataFile] = []
    writer: DataFileWriter | None = None
    try:
        for partition, files in _by_partition(table).items():
            writer = committer.writer(schema, file_bytes, "mixed" if partition is None else f"{partition:05d}")
            for file in files:
                for rows in table.reader.read_pieces(file, None, masks=masks):
                    writer.write(rows.cast(schema))
            added += writer.close()
            paths, writer = [f.path for f in added], None
    except BaseException:
        committer.remove_files(paths if writer is None else [*paths, *writer.abandon()])
        raise
    try:
        committer.commit(added, table.files(), {}, information={"widened": sorted(wider)}, schema=pa.schema(fields))
    except CommitConflictError as e:
        if e.lasting or reopen_newest(table).version > table.version:
            committer.remove_files(paths)
        e.raise_if_lasting(table.location)
        raise LakeUnavailableError(f"the table at {table.location} has changed meanwhile: try again ({e})") from e
    return True


def _by_partition(table: DeltaSnapshot) -> dict[int | None, list[TableFile]]:
    groups: dict[int | None, list[TableFile]] = {}
    for file in sorted(table.files(), key=lambda f: (f.partition is None, f.partition or 0, f.first_offset or 0)):
        groups.setdefault(file.partition, []).append(file)
    return groups
