"""Reading from the object store without the broker: only the byte ranges of the wanted columns.

The reader needs access of its own: fsspec takes settings (an endpoint, keys) from `FSSPEC_<PROTOCOL>_<OPTION>` in the
environment or from ~/.config/fsspec. Without a setting for the URL's protocol the reader fetches from the broker,
because fsspec would search many seconds for credentials. A directory (`file://`) needs no settings.
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
    """Yield the batches of [start_offset, end_offset) in `segments`, the broker's encoded descriptions in offset order.
    Stop before the first segment that cannot be read by columns. All fetched bytes are checked.

    Raises RemoteStorageError, CorruptBatchError, InvalidConfigError, and LocalReadUnavailableError if fsspec has no
    settings for the store.
    """
    _check_configured(url)
    store = _store(url, os.getpid())  # a forked child must not use its parent's connections
    for data in segments:
        segment: RemoteSegmentMetadata = decode_segment(data)
        schema = projection.stored_schema(segment.schema_id)
        reader = ColumnReader(store, segment, schema)
        if not reader.can_read:
            return
        yield from reader.read(start_offset, end_offset, _needed_columns(projection, schema))


def _check_configured(url: str) -> None:
    from fsspec.config import conf

    protocol = url.partition("://")[0]
    if protocol not in ("file", "local") and not conf.get(protocol):
        raise LocalReadUnavailableError(
            f"fsspec has no settings for {protocol!r} on this machine (FSSPEC_{protocol.upper()}_…)"
        )


def _needed_columns(projection: Projection, schema: pa.Schema) -> list[int]:
    """Return the indexes of the requested columns and of the timestamp column, which every decoded batch needs."""
    if projection.columns is None:
        return list(range(len(schema)))
    names = {*projection.columns, projection.timestamp_column}
    return [i for i, name in enumerate(schema.names) if name in names]
