"""Reading from the object store without the broker: only the byte ranges of the wanted columns.

The access is the reader's own: fsspec takes settings (an endpoint, keys) from `FSSPEC_<PROTOCOL>_<OPTION>` in the
environment or from ~/.config/fsspec. Without any for the protocol the broker is asked instead, because an unconfigured
store would cost many seconds of search for credentials. A directory (`file://`) needs none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from sparklog.client.reading.projection import Projection
from sparklog.errors import LocalReadUnavailableError
from sparklog.log.tiering.columns import ColumnReader, Message
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.state import RemoteSegmentMetadata, decode_segment

STORES_MAX = 16


@lru_cache(STORES_MAX)
def _store(url: str, process_id: int) -> ObjectStore:
    return ObjectStore(url)


def read_remote(
    url: str, segments: Sequence[bytes], projection: Projection, start_offset: int, end_offset: int
) -> Iterator[Message]:
    """Yield the batches of [start_offset, end_offset) in `segments` (as the broker names them, in order), up to the
    first one that cannot be read by columns. All fetched bytes are checked.

    Raises RemoteStorageError, CorruptBatchError, InvalidConfigError, LocalReadUnavailableError (it is not set up here).
    """
    _check_configured(url)
    store = _store(url, os.getpid())  # connections must not get into a forked child
    for data in segments:
        segment: RemoteSegmentMetadata = decode_segment(data)
        schema = projection.stored_schema(segment.schema_id)
        reader = ColumnReader(store, segment, schema)
        if not reader.can_read:
            return
        yield from reader.read(start_offset, end_offset, _wanted_columns(projection, schema))


def _check_configured(url: str) -> None:
    from fsspec.config import conf

    protocol = url.partition("://")[0]
    if protocol not in ("file", "local") and not conf.get(protocol):
        raise LocalReadUnavailableError(
            f"fsspec has no settings for {protocol!r} on this machine (FSSPEC_{protocol.upper()}_…)"
        )


def _wanted_columns(projection: Projection, schema: pa.Schema) -> list[int]:
    """Return the needed columns, with the timestamps, which a batch has even if they are not requested."""
    if projection.columns is None:
        return list(range(len(schema)))
    names = {*projection.columns, projection.timestamp_column}
    return [i for i, name in enumerate(schema.names) if name in names]
