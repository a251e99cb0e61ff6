"""Ids of schemas in the headers of records, as newer serializers write them.

The header `__value_schema_id` or `__key_schema_id` has a version byte, 1 with the schema's GUID in 16 bytes or 0 with
its id in four, and for Protobuf the index of the message. The value or key is the payload alone. A record with such a
header becomes one in Confluent's framing here, so that all other code knows one form.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.format.key_format import SCHEMA_FORMATS
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.records.varints import Array
from sparklog.kafka.values.framing import FRAME_BYTES, MAGIC, frame_of
from sparklog.kafka.values.keys import RowForm
from sparklog.kafka.values.schemas import Schemas, SchemasNotLoadedError

KEY_HEADER, VALUE_HEADER = "__key_schema_id", "__value_schema_id"
GUID_MAGIC = 1
GUID_BYTES = 17
IDS_PER_BATCH_MAX = 100
INDEX_BYTES_MAX = 64
"""Largest size in bytes of the index of a Protobuf message."""


class FramedParts(NamedTuple):
    """Keys and values in Confluent's framing, and the headers that remain."""

    keys: Any
    values: Any
    has_headers: Array
    """True for each record that has other headers."""


def framed_parts(
    keys: Any, values: Any, headers: Any, topic: RowForm, value_format: str, schemas: Schemas
) -> FramedParts:
    """Return keys and values with the ids of their headers. `keys`, `values`, `headers`: columns of the records.
    `value_format`: the topic's form of values. Raises InvalidRecordError; SchemasNotLoadedError."""
    counts = np.diff(np.asarray(headers.offsets)).astype(np.int64)
    records = np.repeat(np.arange(len(headers)), counts)
    entries = headers.flatten()
    names, contents = entries.field(0), entries.field(1)
    is_read = np.zeros(len(entries), bool)
    for name, form in ((KEY_HEADER, topic.key_format), (VALUE_HEADER, value_format)):
        is_own = np.asarray(pc.fill_null(pc.equal(names, name), False).to_numpy(zero_copy_only=False))
        is_unused = name == KEY_HEADER and not topic.key_columns  # such a topic does not store keys
        if not is_own.any() or not (form in SCHEMA_FORMATS or is_unused):
            continue
        is_read |= is_own
        if is_unused:
            continue
        places = np.flatnonzero(is_own)
        frames = _frames(records[places], contents.take(pa.array(places)), name, schemas)
        if name == KEY_HEADER:
            keys = _with_frames(keys, records[places], frames)
        else:
            values = _with_frames(values, records[places], frames)
    has_headers = np.zeros(len(headers), bool)
    has_headers[records[~is_read]] = True
    return FramedParts(keys, values, has_headers)


def _frames(records: Array, contents: Any, name: str, schemas: Schemas) -> Any:
    """Return the frame of each record that has the header. Raises InvalidRecordError; SchemasNotLoadedError."""
    encoded = contents.dictionary_encode()
    if len(encoded.dictionary) > IDS_PER_BATCH_MAX:
        beyond = np.unique(records[np.asarray(pc.fill_null(encoded.indices, 0)) >= IDS_PER_BATCH_MAX])
        reason = f"the batch has more than {IDS_PER_BATCH_MAX} headers {name}: send smaller batches"
        raise InvalidRecordError({i: f"record {i}: {reason}" for i in beyond[:RECORDS_NAMED_MAX].tolist()})
    frames: list[bytes | None] = []
    reasons: dict[int, str] = {}
    missing: list[SchemasNotLoadedError] = []
    for i, content in enumerate([*encoded.dictionary.to_pylist(), None]):
        try:
            frames.append(_frame(content or b"", schemas))
        except SchemasNotLoadedError as e:
            missing.append(e)
        except ValueError as e:
            frames.append(None)
            reasons[i] = str(e)
    if missing:
        raise SchemasNotLoadedError.of(missing)
    indices = np.asarray(pc.fill_null(encoded.indices, len(encoded.dictionary)))
    is_refused = np.isin(indices, list(reasons))
    if is_refused.any():
        places = np.flatnonzero(is_refused)
        refused = {
            int(records[i]): f"record {records[i]}: its header {name} {reasons[int(indices[i])]}" for i in places
        }
        raise InvalidRecordError(dict(islice(sorted(refused.items()), RECORDS_NAMED_MAX)))
    return pa.array(frames, pa.binary()).take(pa.array(indices))


def _frame(content: bytes, schemas: Schemas) -> bytes:
    """Return the bytes before a payload. Raises ValueError with the reason; SchemasNotLoadedError."""
    if content[:1] == bytes([GUID_MAGIC]) and GUID_BYTES <= len(content) <= GUID_BYTES + INDEX_BYTES_MAX:
        guid = UUID(bytes=content[1:GUID_BYTES])
        schema_id = schemas.id_of(guid)
        if schema_id is None:
            raise ValueError(f"names {guid}, and the registry has no schema of this GUID")
        return frame_of(schema_id) + content[GUID_BYTES:]
    if content[:1] == bytes([MAGIC]) and FRAME_BYTES <= len(content) <= FRAME_BYTES + INDEX_BYTES_MAX:
        return content
    raise ValueError(
        f"has {len(content)} bytes, {content[:GUID_BYTES].hex() or 'none'}: a byte 1 and a GUID in 16 bytes, or a byte 0 "
        "and an id in four, are needed"
    )


def _with_frames(parts: Any, records: Array, frames: Any) -> Any:
    """Return keys or values with the frames of some records; the last one of a record counts."""
    place = np.full(len(parts), -1, np.int64)
    place[records] = np.arange(len(records))
    of_records = frames.take(pa.array(place, mask=place < 0))
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(pc.fill_null(of_records, b""), parts, nothing)
