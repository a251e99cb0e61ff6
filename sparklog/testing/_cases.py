"""Cases: records of production, masked and kept in a small file, from which tests replay them.

A case is a Parquet file: the topic's columns, then `_partition` and `_timestamp`. The rows are in the order of their
times, and the rows of a partition in the order of their offsets. The file's metadata have the topic's definition.

Masks are pseudonyms. The same value gets the same pseudonym in all columns, cases and runs with the same key, and no
value can be found from a pseudonym without the key:

| type | pseudonym |
|---|---|
| text | `m-` and 16 hexadecimal digits |
| bytes | 8 bytes |
| whole number | a number of the same type, not negative |
| timestamp, date | moved into the past by a time that all moments of all cases share: order and distances stay |

`who.email` is a field of the struct `who`. In an envelope topic a name that is no column is a field of the JSON objects
in `value`, there too with a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.client.admin.admin import Admin
from sparklog.client.reading.read_table import read_table
from sparklog.errors import InvalidRequestError
from sparklog.security.profiles import profile_directory
from sparklog.units import parse_duration_ms

if TYPE_CHECKING:
    from sparklog.testing._broker import KitBroker

ROWS_MAX = 10_000
METADATA = b"sparklog.case"
PARTITION, TIMESTAMP = "_partition", "_timestamp"
KEY_FILE = "mask.key"
KEY_BYTES = 32
_DAY_US = 86_400_000_000
_SHIFT_DAYS_MAX = 3_650


def record(
    topic: str,
    out: str | os.PathLike[str],
    *,
    bootstrap_servers: str | None = None,
    last: str = "1h",
    mask: Sequence[str] = (),
    mask_key: bytes | None = None,
    limit: int = ROWS_MAX,
    security: Any = None,
) -> Path:
    """Write a case of a topic's last records.

    Args:
        topic: The topic's name.
        out: Directory of the case. It is created.
        bootstrap_servers: "host:port,…". None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else 127.0.0.1:9292.
        last: The age of the oldest record, such as "1h".
        mask: Names of the columns to mask, or of fields, such as "who.email".
        mask_key: The secret of the pseudonyms. None: the file `mask.key` beside the profiles, which is created.
        limit: Largest number of records. If the topic has more, the first of them are kept.
        security: Client settings. None: plaintext.

    Returns:
        The file, `out`/`topic`.parquet.

    Raises:
        InvalidRequestError: The age is no duration; a column to mask does not exist, or has a type without pseudonyms;
            no value has a field to mask, or a value is no JSON object. Nothing is written then.
        SparklogError: The topic cannot be read.
    """
    if mask_key is not None and not (isinstance(mask_key, bytes) and mask_key):
        raise InvalidRequestError("mask_key: bytes are needed, not empty: pseudonyms without a secret can be reversed")
    if isinstance(mask, str) or not isinstance(mask, Sequence):
        raise InvalidRequestError(f"mask = {mask!r}: a list of names is needed, such as [{str(mask)!r}]")
    try:
        last_ms = parse_duration_ms(last)
    except (ValueError, AttributeError) as e:
        raise InvalidRequestError(f"last = {last!r}: a duration such as 15m, 1h or 7d is needed") from e
    with Admin(bootstrap_servers, security=security) as admin:
        description = admin.describe_topic(topic)
    table = read_table(
        bootstrap_servers, topic, start=f"-{last_ms}ms", include_metadata=True, limit=limit, security=security
    )
    table = _by_time(table).drop_columns(["_topic", "_offset"])
    if mask:
        table = _masked(table, mask, load_key() if mask_key is None else mask_key, is_typed=description.kind == "typed")
    definition = {
        "topic": topic,
        "kind": description.kind,
        "partitions": description.partitions,
        "key_columns": list(description.key_columns),
        "timestamp_column": description.timestamp_column,
        "masked": sorted(mask),
    }
    directory = Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{topic}.parquet"
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(definition, sort_keys=True)}), path)
    return path


def replay(
    case: str | os.PathLike[str],
    broker: KitBroker,
    *,
    topic: str | None = None,
    speed: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Create the topic of a case, and append its records in their order.

    Args:
        case: The file of the case.
        broker: The broker of the test.
        topic: The name of the new topic. None: the name of the recorded topic.
        speed: The pace: 1 as recorded, 60 for an hour in a minute. None: at once.
        sleep: The wait between records, in s.

    Returns:
        The topic's name.

    Raises:
        InvalidRequestError: The file is no case, or the pace is not above 0.
        SparklogError: The records could not be stored.
    """
    if speed is not None and (not isinstance(speed, int | float) or not 0 < speed < math.inf):
        raise InvalidRequestError(
            f"speed = {speed!r}: 1 is the pace of the record, 60 an hour in a minute, None at once"
        )
    try:
        with Path(case).open("rb") as file:
            table = pq.read_table(file)  # of a path it would read directories, and columns from the path's names
    except (pa.ArrowInvalid, IsADirectoryError) as e:
        raise InvalidRequestError(f"{case} is no case: write one with `sparklog testing record`") from e
    definition = (table.schema.metadata or {}).get(METADATA)
    if definition is None:
        raise InvalidRequestError(f"{case} is no case: write one with `sparklog testing record`")
    described: Mapping[str, Any] = json.loads(definition)
    columns = table.drop_columns([PARTITION, TIMESTAMP]).replace_schema_metadata()
    name = str(described["topic"]) if topic is None else topic
    is_typed = described["kind"] == "typed"
    broker.create_topic(
        name,
        columns.schema if is_typed else None,
        described["partitions"],
        key_columns=described["key_columns"],
        timestamp_column=described["timestamp_column"],
    )
    partitions = table[PARTITION].to_numpy()
    times_us = np.maximum.accumulate(table[TIMESTAMP].cast(pa.int64()).to_numpy()) if table.num_rows else np.array([])
    at_us = times_us if speed is not None else np.zeros(len(times_us), np.int64)
    ends = [0, *(np.flatnonzero(np.diff(at_us)) + 1), table.num_rows] if table.num_rows else [0]
    for start, end in pairwise(ends):
        if speed is not None and start:
            sleep(float(at_us[start] - at_us[start - 1]) / 1e6 / speed)
        for partition in np.unique(partitions[start:end]):
            here = columns.slice(start, end - start).filter(pa.array(partitions[start:end] == partition))
            broker.produce_table(name, here, partition=int(partition))
    return name


def load_key() -> bytes:
    """Return the user's secret of pseudonyms; the first call creates it. Raises InvalidRequestError."""
    path = profile_directory(os.environ) / KEY_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{KEY_FILE}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # another process has created it meanwhile
            os.link(draft, path)
        draft.unlink()
    key = path.read_bytes()
    if len(key) < KEY_BYTES:
        raise InvalidRequestError(
            f"{path} has {len(key)} bytes, a secret has {KEY_BYTES}: remove the file for a new one"
        )
    return key


def _by_time(table: pa.Table) -> pa.Table:
    """Return the rows in the order of their times. A partition keeps its order: a row counts as no older than the rows
    before it."""
    if not table.num_rows:
        return table
    times = table[TIMESTAMP].cast(pa.int64()).to_numpy()
    partitions = table[PARTITION].to_numpy()
    at = np.empty_like(times)
    for partition in np.unique(partitions):
        chosen = partitions == partition
        at[chosen] = np.maximum.accumulate(times[chosen])
    return table.take(pa.array(np.lexsort((table["_offset"].to_numpy(), partitions, at))))


def _masked(table: pa.Table, names: Sequence[str], key: bytes, *, is_typed: bool) -> pa.Table:
    """Return the table with pseudonyms in the named columns, or fields of JSON. Raises InvalidRequestError."""
    columns = [name for name in table.column_names if name != PARTITION]
    fields = []
    for name in names:
        head, _, path = (name, "", "") if name in columns else str(name).partition(".")
        if head in columns:
            place = table.column_names.index(head)
            masked = _masked_column(name, table[head], path, key)
            table = table.set_column(place, table.schema.field(place), masked)
        elif is_typed:
            raise InvalidRequestError(f"mask {name!r}: the columns are {', '.join(columns)}")
        else:
            fields.append(name)
    if fields:
        values = _masked_values(table["value"].to_pylist(), fields, key)
        table = table.set_column(table.column_names.index("value"), "value", pa.array(values, pa.binary()))
    return table


def _masked_column(name: str, column: pa.ChunkedArray, path: str, key: bytes) -> pa.ChunkedArray:
    """Return a column with pseudonyms, in a field of its structs if there is a path. Raises InvalidRequestError."""
    if not path:
        return _pseudonyms(name, column, key)
    field, _, rest = path.partition(".")
    structs = column.combine_chunks()
    if not pa.types.is_struct(structs.type) or structs.type.get_field_index(field) < 0:
        raise InvalidRequestError(f"mask {name!r}: {structs.type} has no field {field!r}")
    children = [structs.field(number) for number in range(structs.type.num_fields)]
    place = structs.type.get_field_index(field)
    children[place] = _masked_column(name, pa.chunked_array([children[place]]), rest, key).combine_chunks()
    masked = pa.StructArray.from_arrays(children, fields=list(structs.type), mask=structs.is_null())
    return pa.chunked_array([masked])


def _pseudonyms(name: str, column: pa.ChunkedArray, key: bytes) -> pa.ChunkedArray:
    """Return the pseudonyms of a column. Raises InvalidRequestError."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return pc.subtract(column, pa.scalar(_shift_days(key) * _DAY_US, pa.duration("us"))).cast(kind)
    if pa.types.is_date32(kind):
        return pc.subtract(column.cast(pa.int32()), pa.scalar(_shift_days(key), pa.int32())).cast(kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_integer(kind):
        unique = column.unique()
        by_value = {value: _pseudonym(value, kind, key) for value in unique.to_pylist()}
        masked = pa.array([by_value[value] for value in column.to_pylist()], kind)
        return pa.chunked_array([masked])
    raise InvalidRequestError(
        f"mask {name!r}: a column of {kind} has no pseudonyms; texts, bytes, integers and times have"
    )


def _pseudonym(value: Any, kind: pa.DataType, key: bytes) -> Any:
    if value is None:
        return None
    if isinstance(value, int):
        return int.from_bytes(_digest(str(value).encode(), key)) % 2 ** (kind.bit_width - 1)
    if isinstance(value, bytes):
        return _digest(value, key)
    return f"m-{_digest(value.encode(), key).hex()}"


def _masked_values(values: Sequence[bytes | None], fields: Sequence[str], key: bytes) -> list[bytes | None]:
    """Return JSON objects with pseudonyms in the named fields. Raises InvalidRequestError, also for a field that no
    value has: its name may be wrong, and its content would not be masked."""
    absent = set(fields) if any(value is not None for value in values) else set()
    masked = []
    for value in values:
        if value is not None:
            try:
                content: dict[str, Any] = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
                absent -= {name for name in fields if _mask_field(content, name, key)}
                value = msgspec.json.encode(content)  # the other fields stay as they are, byte by byte
            except (msgspec.MsgspecError, ValueError, RecursionError) as e:
                raise InvalidRequestError(
                    f"mask {', '.join(fields)}: a value of the topic is no JSON object: mask `value` itself"
                ) from e
        masked.append(value)
    if absent:
        raise InvalidRequestError(f"mask {', '.join(sorted(absent))}: no value has the field; outer.inner is a path")
    return masked


def _mask_field(content: dict[str, Any], path: str, key: bytes) -> bool:
    """Replace a field by its pseudonym. Returns False if the object has no such field. Raises ValueError if an outer
    field is no object."""
    if path in content:
        field = json.loads(bytes(content[path]))
        if field is not None:
            content[path] = msgspec.Raw(msgspec.json.encode(f"m-{_digest(str(field).encode(), key).hex()}"))
        return True
    outer, _, inner = path.partition(".")
    if not inner or outer not in content or bytes(content[outer]) == b"null":
        return False
    fields: dict[str, Any] = msgspec.json.decode(content[outer], type=dict[str, msgspec.Raw])
    is_present = _mask_field(fields, inner, key)
    content[outer] = msgspec.Raw(msgspec.json.encode(fields))
    return is_present


def _digest(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, key=key[:64], digest_size=8).digest()


def _shift_days(key: bytes) -> int:
    return 1 + int.from_bytes(_digest(b"time", key)) % _SHIFT_DAYS_MAX
