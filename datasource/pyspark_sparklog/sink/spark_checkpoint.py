"""The source offsets of a micro-batch in a query's checkpoint, if this process can read the checkpoint.

Spark keeps a directory `<checkpoint>/offsets` with a file for each micro-batch. It writes the file before the batch
runs, and reads it if the batch runs again. The file has a line with a version, a line with metadata, then one line for
each source with the batch's end offset in that source. Spark keeps at least the last two files.
`<checkpoint>/metadata` holds the query's id. A checkpoint that `sparklog checkpoint move` has written keeps the newest
offsets as they were before the move.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparklog.format.source_offsets import MOVED_OFFSETS

FILE_CHARS_MAX = 64 << 20
CHECKPOINT_SETTING = "spark.sql.streaming.checkpointLocation"
"""Setting of the session, which tasks see as a local property. A query without the option checkpointLocation has its
checkpoint in the directory of that setting, under the query's name."""


def location_of(option: str, setting: str | None, query_name: str) -> str:
    """Return the path of the checkpoint, from the query's own option, the session's setting, and the query's name; "":
    unknown."""
    if option:
        return option
    return f"{setting.rstrip('/')}/{query_name}" if setting and query_name else ""


def input_digest(location: str, query_id: str, batch_id: int) -> str:
    """Return a digest of the query id and of the batch's start and end offsets in each source.

    Empty if they cannot be read here: the checkpoint is in an object store, or it is another query's.
    """
    directory = _local_path(location)
    if directory is None or not query_id or batch_id < 0:
        return ""
    try:
        if json.loads(_text(directory / "metadata")).get("id") != query_id:
            return ""
        begin = _offsets(directory, batch_id - 1) if batch_id else ""
        end = _offsets(directory, batch_id)
    except (OSError, ValueError, AttributeError):  # not there, or no checkpoint of Spark's
        return ""
    return hashlib.sha256("\n\n".join((query_id, begin, end)).encode()).hexdigest()[:32]


def _offsets(directory: Path, batch_id: int) -> str:
    """Return the lines of the sources in the file of a batch, as they were when the batch was planned. Raises OSError,
    ValueError."""
    before_move = directory / MOVED_OFFSETS / str(batch_id)
    file = before_move if before_move.is_file() else directory / "offsets" / str(batch_id)
    _, _, sources = _text(file).split("\n", 2)
    return sources.strip()


def _text(file: Path) -> str:
    with file.open(encoding="utf-8") as f:
        return f.read(FILE_CHARS_MAX)


def _local_path(location: str) -> Path | None:
    """Return the local path of a checkpoint (`dbfs:` under /dbfs); None if it is in another file system."""
    parts = urlsplit(location)
    if parts.scheme == "dbfs":
        return Path("/dbfs" + unquote(parts.path))
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme or not location else Path(location)
