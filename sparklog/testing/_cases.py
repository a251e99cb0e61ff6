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

In an envelope topic a name that is no column is a field of the JSON objects in `value`.
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
    out: Path,
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
        mask: Names of the columns to mask.
        mask_key: The secret of the pseudonyms. None: the file `mask.key` beside the profiles, which is created.
        limit: Largest number of records. If the topic has more, the first of them are kept.
        security: Client settings. None: plaintext.

    Returns:
        The file, `out`/`topic`.parquet.

    Raises:
        InvalidRequestError: A column to mask does not exist, or has a type without pseudonyms; or a value with a field
            to mask is no JSON object. Nothing is written then.
        SparklogError: The topic cannot be read.
    """
    if mask_key is not None and not mask_key:
        raise InvalidRequestError("mask_key is empty: pseudonyms without a secret can be reversed")
    with Admin(bootstrap_servers, security=security) as admin:
        description = admin.describe_topic(topic)
    table = read_table(
        bootstrap_servers, topic, start=f"-{last}", include_metadata=True, limit=limit, security=security
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
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{topic}.parquet"
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
    if speed is not None and not 0 < speed < math.inf:
        raise InvalidRequestError(
            f"speed = {speed!r}: 1 is the pace of the record, 60 an hour in a minute, None at once"
        )
    try:
        table = pq.read_table(case)
    except pa.ArrowInvalid as e:
        raise InvalidRequestError(f"{case} is no case: write one with `sparklog testing record`") from e
    definition = (table.schema.metadata or {}).get(METADATA)
    if definition is None:
        raise InvalidRequestError(f"{case} is no case: write one with `sparklog testing record`")
    described: Mapping[str, Any] = json.loads(definition)
    columns = table.drop_columns([PARTITION, TIMESTAMP]).replace_schema_metadata()
    name = topic or str(described["topic"])
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
    fields = [name for name in names if name not in table.column_names]
    if fields and is_typed:
        raise InvalidRequestError(f"mask {fields[0]!r}: the columns are {', '.join(table.column_names)}")
    for name in names:
        if name in table.column_names:
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(place), _pseudonyms(name, table[name], key))
    if fields:
        values = [_masked_json(value, fields, key) for value in table["value"].to_pylist()]
        table = table.set_column(table.column_names.index("value"), "value", pa.array(values, pa.binary()))
    return table


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


def _masked_json(value: bytes | None, fields: Sequence[str], key: bytes) -> bytes | None:
    """Return a JSON object with pseudonyms in the named fields. Raises InvalidRequestError."""
    if value is None:
        return None
    try:
        content: dict[str, Any] = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        for name in fields:
            field = json.loads(bytes(content.get(name, b"null")))
            if field is not None:
                content[name] = f"m-{_digest(str(field).encode(), key).hex()}"
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise InvalidRequestError(
            f"mask {', '.join(fields)}: a value of the topic is no JSON object: mask `value` itself"
        ) from e
    return msgspec.json.encode(content)  # the other fields stay as they are, byte by byte


def _digest(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, key=key[:64], digest_size=8).digest()


def _shift_days(key: bytes) -> int:
    return 1 + int.from_bytes(_digest(b"time", key)) % _SHIFT_DAYS_MAX
