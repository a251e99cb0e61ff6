"""Merges small files of a table: the choice of the files (pure), and the merge.

Only files that workers have written are merged, and only files without deletion vectors. Rows and their order do not
change. The commit has `dataChange = false`, so that streaming readers of the table do not read the rows again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_reader import TableFile
from sparklog.lake.delta_snapshot import DeltaSnapshot, reopen_newest
from sparklog.lake.parquet_files import PREFIX

FILES_MIN = 8
"""Smallest number of neighbouring small files that are merged."""
FILES_MAX = 256
TIER_BYTES = 64 * 1024
TIER_FACTOR = 8
"""Factor between the size limits of the files to merge, the lowest of which is TIER_BYTES. Files below the lowest limit
are merged first, so that a row is rewritten about once for each growth of its file by this factor.
"""


def files_to_merge(files: Sequence[TableFile], file_bytes: int, excluded: Collection[str] = ()) -> list[TableFile]:
    """Choose small files to merge into one. They have the same partition and partition values, and are neighbours in
    offset order. The smallest files are chosen first. `file_bytes`: size of a full file in bytes; files of at least
    half this size are not merged. `excluded`: names of files that must not be merged. Returns at least FILES_MIN files;
    empty if there is nothing to merge."""
    groups: dict[object, list[TableFile]] = {}
    for file in files:
        if (
            file.name.startswith(PREFIX)
            and file.name not in excluded
            and file.partition is not None
            and file.first_offset is not None
        ):
            key = (file.partition, tuple(sorted(file.partition_values.items(), key=str)))
            groups.setdefault(key, []).append(file)
    for tier in range(64):
        bound = min(TIER_BYTES * TIER_FACTOR**tier, file_bytes // 2)
        for group in groups.values():
            run = _run(sorted(group, key=lambda f: f.first_offset or 0), bound, file_bytes)
            if run:
                return run
        if bound == file_bytes // 2:
            break
    return []


def _run(files: Sequence[TableFile], bound: int, file_bytes: int) -> list[TableFile]:
    run: list[TableFile] = []
    size = 0
    for file in files:
        if file.size_bytes >= bound or size + file.size_bytes > file_bytes or len(run) == FILES_MAX:
            if len(run) >= FILES_MIN:
                return run
            run, size = [], 0
        if file.size_bytes < bound:
            run.append(file)
            size += file.size_bytes
    return run if len(run) >= FILES_MIN else []


def merge_small_files(table: DeltaSnapshot, file_bytes: int) -> DeltaSnapshot | None:
    """Merge one group of small files, in one commit on this version of the table. `table`: a version that `check_table`
    has accepted: a commit on an unchecked version would hide a RESTORE. Returns the new version; None if there is
    nothing to merge, or another writer has committed in between. Raises LakeUnavailableError: The table cannot be
    reached, or it refuses every commit; LakePausedError."""
    masks = table.deletion_masks()
    chosen = files_to_merge(table.files(), file_bytes, masks)
    if not chosen:
        return None
    schema = pa.schema([f.with_nullable(True) for f in table.schema])
    committer = DeltaCommitter(table)
    writer = committer.writer(schema, 2 * file_bytes, f"{chosen[0].partition or 0:05d}-merged")
    try:
        for file in chosen:
            for rows in table.reader.read_pieces(file, None, masks=masks):
                writer.write(rows)
        merged = writer.close()
    except BaseException:
        committer.remove_files(writer.abandon())
        raise
    try:
        committer.commit(merged, chosen, {}, information={"merged": len(chosen)}, is_change=False)
    except CommitConflictError as e:
        if e.lasting and reopen_newest(table).version == table.version:
            committer.remove_files([f.path for f in merged])
        e.raise_if_lasting(table.location)
        return None  # the files stay for VACUUM, because the commit has perhaps succeeded without a reply
    return DeltaSnapshot.open(table.location, table.version + 1)
