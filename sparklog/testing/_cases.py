"""Cases: records of production, masked and kept in a small file, from which tests replay them.

A case is a Parquet file: the topic's columns, then `_partition` and `_timestamp`. The rows are in the order of their
times, and the rows of a partition in the order of their offsets. The file's metadata have the topic's definition.

Masks are pseudonyms; `_masks` has their rules.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.client.admin.admin import Admin
from sparklog.client.reading.read_table import read_table
from sparklog.errors import InvalidRequestError
from sparklog.format.decoders import json_decoder
from sparklog.security.profiles import profile_directory
from sparklog.testing._masks import PARTITION, masked
from sparklog.units import parse_duration_ms

if TYPE_CHECKING:
    from sparklog.testing._broker import KitBroker

ROWS_MAX = 10_000
METADATA = b"sparklog.case"
TIMESTAMP, TYPED = "_timestamp", "typed"
KEY_FILE = "mask.key"
KEY_BYTES = 32


class _Definition(msgspec.Struct, forbid_unknown_fields=True):
    """The definition of a case's topic, in the metadata of the file."""

    topic: str
    kind: str
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    key_columns: list[str]
    timestamp_column: str | None
    masked: list[str]


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
            no value has a field to mask, or a value is no JSON object; the directory cannot be written. Nothing is
            written then.
        SparklogError: The topic cannot be read.
    """
    if mask_key is not None and not (isinstance(mask_key, bytes) and mask_key):
        raise InvalidRequestError("mask_key: bytes are needed, not empty: pseudonyms without a secret can be reversed")
    if isinstance(mask, str) or not isinstance(mask, Sequence) or not all(isinstance(name, str) for name in mask):
        example = mask if isinstance(mask, str) else "email"
        raise InvalidRequestError(f"mask = {mask!r}: a list of names is needed, such as [{example!r}]")
    try:
        directory = Path(out)
    except TypeError as e:
        raise InvalidRequestError(f"out = {out!r}: a directory is needed, such as 'cases'") from e
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
        key = load_key() if mask_key is None else mask_key
        table = masked(table, mask, key, is_typed=description.kind == TYPED)
    definition = _Definition(
        topic=topic,
        kind=description.kind,
        partitions=description.partitions,
        key_columns=list(description.key_columns),
        timestamp_column=description.timestamp_column,
        masked=sorted(set(mask)),
    )
    path = directory / f"{topic}.parquet"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata({METADATA: msgspec.json.encode(definition, order="sorted")}), path)
    except OSError as e:
        raise InvalidRequestError(f"out = {str(out)!r}: a directory is needed that can be written: {e}") from e
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
    is_pace = isinstance(speed, int | float) and not isinstance(speed, bool) and 0 < speed < math.inf
    if speed is not None and not is_pace:
        raise InvalidRequestError(
            f"speed = {speed!r}: 1 is the pace of the record, 60 an hour in a minute, None at once"
        )
    table, definition = _read_case(case)
    columns = table.drop_columns([PARTITION, TIMESTAMP]).replace_schema_metadata()
    name = definition.topic if topic is None else topic
    broker.create_topic(
        name,
        columns.schema if definition.kind == TYPED else None,
        definition.partitions,
        key_columns=definition.key_columns,
        timestamp_column=definition.timestamp_column,
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


def _read_case(case: str | os.PathLike[str]) -> tuple[pa.Table, _Definition]:
    """Return the records of a case, and the definition of its topic. Raises InvalidRequestError, and OSError if the
    file cannot be read."""
    if not isinstance(case, str | os.PathLike):
        raise InvalidRequestError(f"case = {case!r}: the path of a file is needed, such as 'cases/orders.parquet'")
    try:
        with Path(case).open("rb") as file:
            table = pq.read_table(file)  # of a path it would read directories, and columns from the path's names
        definition = json_decoder(_Definition).decode((table.schema.metadata or {})[METADATA])
        partitions, times = table[PARTITION], table[TIMESTAMP]
        are_times = pa.types.is_timestamp(times.type) and not times.null_count
        places = partitions.cast(pa.int32()).to_numpy()
        if not are_times or (len(places) and not 0 <= places.min() <= places.max() < definition.partitions):
            raise ValueError("partitions or times are wrong")
    except (KeyError, ValueError, msgspec.MsgspecError, pa.ArrowException, IsADirectoryError) as e:
        raise InvalidRequestError(f"{case} is no case: write one with `sparklog testing record`") from e
    return table, definition


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
