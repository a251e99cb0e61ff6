"""The pages of a topic's records: browsing, following new records, a single record, and export as a file."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sparklog.client.admin.admin import TopicDescription
from sparklog.console.files import FORMATS, file_pieces
from sparklog.console.reading import (
    FILTER_S_MAX,
    FILTERED_BYTES_MAX,
    NEWER,
    OLDER,
    PARTITIONS_MAX,
    SHOWN_BYTES_MAX,
    Bounds,
    Budget,
    Cursor,
    Read,
    RecordPage,
    exported,
    look_through,
    offsets_from_text,
    reader_of,
)
from sparklog.console.views.messages import message_row, message_view, number_columns, raw_bytes, shown_columns
from sparklog.console.views.values import MODES
from sparklog.console.web import Console, ask, console_of, is_on, one_of, render, text, url, whole_number
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError, SparklogError
from sparklog.format.column_names import column_list, column_names
from sparklog.format.schema import KIND_ENVELOPE, TIMESTAMP_TYPE
from sparklog.times import parse_time_ms
from sparklog.types import TopicPartition

STARTS = ("newest", "oldest", "offset", "time")
ROWS, ROWS_MAX = 50, 500
TAIL_ROWS_MAX = 100
EXPORT_ROWS, EXPORT_ROWS_MAX = 100_000, 100_000_000
_METADATA = (
    ("_topic", pa.string()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
    ("_timestamp", TIMESTAMP_TYPE),
)


@dataclass(frozen=True)
class Wish:
    """The requested records."""

    topic: str
    partition: int
    """-1: all partitions."""
    start: str
    """Start of the first page, one of STARTS."""
    value: str
    """Offset or time of `start`."""
    direction: str
    """OLDER or NEWER, for `at`."""
    at: str
    """Cursor of the page as text; empty for the first page."""
    filter_text: str
    mode: str
    """Presentation of bytes, one of MODES."""
    rows: int
    """Largest number of records of a page."""
    columns: tuple[str, ...]
    """Shown columns; empty: all."""
    uncommitted: bool
    tail: bool
    """True if the page follows new records."""

    @property
    def isolation_level(self) -> str:
        return "read_uncommitted" if self.uncommitted else "read_committed"

    def link(self, path: str, **changed: object) -> str:
        """Return a link to `path` with this request's parameters, except `dir`, `at` and `tail`. `changed` replaces or
        adds parameters."""
        parameters: dict[str, object] = {
            "partition": "" if self.partition < 0 else self.partition,
            "start": self.start,
            "value": self.value,
            "q": self.filter_text,
            "mode": self.mode,
            "n": self.rows,
            "columns": column_list(self.columns),
            "uncommitted": "1" if self.uncommitted else "",
        }
        return url(path, **(parameters | changed))


def wish_of(request: Request) -> Wish:
    """Parse the query parameters of a request. Raises InvalidRequestError."""
    query = request.query_params
    columns = [c for entry in query.getlist("columns") for c in column_names(entry)]
    return Wish(
        request.path_params["topic"],
        whole_number(query, "partition", -1, 0, 2**31),
        one_of(query, "start", STARTS),
        text(query, "value"),
        one_of(query, "dir", (OLDER, NEWER)),
        text(query, "at"),
        text(query, "q"),
        one_of(query, "mode", MODES),
        whole_number(query, "n", ROWS, 1, ROWS_MAX),
        tuple(columns[:100]),
        is_on(query, "uncommitted"),
        is_on(query, "tail"),
    )


def _bounds(console: Console, topic: TopicDescription, wish: Wish) -> dict[int, Bounds]:
    """Return the bounds of the requested partition, or of the first PARTITIONS_MAX partitions."""
    if wish.partition >= topic.partitions:
        raise InvalidRequestError(f"topic {topic.name} has partitions 0 to {topic.partitions - 1}")
    chosen = range(min(topic.partitions, PARTITIONS_MAX)) if wish.partition < 0 else [wish.partition]
    tps = [TopicPartition(topic.name, p) for p in chosen]
    start = console.admin.list_offsets(dict.fromkeys(tps, "earliest"))
    end = console.admin.list_offsets(dict.fromkeys(tps, "latest"), isolation_level=wish.isolation_level)
    bounds = {}
    for tp in tps:
        details = topic.partition_details[tp.partition]
        stored = max(1, details.high_watermark - details.log_start_offset)
        low, high = start[tp].offset, end[tp].offset
        bounds[tp.partition] = Bounds(low, max(low, high), max(0, details.size_bytes) / stored)
    return bounds


def _cursor(console: Console, topic: str, wish: Wish, bounds: Mapping[int, Bounds]) -> Cursor:
    if wish.at:
        try:
            return Cursor(wish.direction, offsets_from_text(wish.at))
        except ValueError as e:
            raise InvalidRequestError("the position of the next page cannot be read: start again") from e
    if wish.start == "newest":
        return Cursor(OLDER, {p: b.end for p, b in bounds.items()})
    if wish.start == "oldest":
        return Cursor(NEWER, {p: b.start for p, b in bounds.items()})
    if wish.start == "offset":
        try:
            return Cursor(NEWER, dict.fromkeys(bounds, max(0, int(wish.value))))
        except ValueError as e:
            raise InvalidRequestError(f"offset {wish.value!r}: a whole number is needed") from e
    time_ms = max(0, parse_time_ms(wish.value, console.clock.now_ms()))
    times = {TopicPartition(topic, p): time_ms for p in bounds}
    offsets = console.admin.list_offsets(times, isolation_level=wish.isolation_level)
    return Cursor(
        NEWER, {tp.partition: at.offset if at.offset >= 0 else bounds[tp.partition].end for tp, at in offsets.items()}
    )


def _layout(topic: TopicDescription, wish: Wish) -> pa.Schema | None:
    chosen = [f for f in topic.schema if f.name in wish.columns]
    return pa.schema(chosen) if chosen else None


def _read(console: Console, topic: TopicDescription, wish: Wish) -> Read:
    return reader_of(
        console.options.bootstrap_servers,
        topic.name,
        layout=_layout(topic, wish),
        isolation_level=wish.isolation_level,
        timeout_ms=console.options.request_timeout_ms,
        security=console.options.security,
    )


def _read_page(
    console: Console, topic: TopicDescription, wish: Wish, rows_max: int
) -> tuple[dict[int, Bounds], RecordPage]:
    bounds = _bounds(console, topic, wish)
    cursor = _cursor(console, topic.name, wish, bounds)
    clock = console.clock
    budget = Budget(
        FILTERED_BYTES_MAX if wish.filter_text else SHOWN_BYTES_MAX, clock.monotonic_s() + FILTER_S_MAX, clock
    )
    return bounds, look_through(_read(console, topic, wish), bounds, cursor, rows_max, wish.filter_text, budget)


def _table(topic: TopicDescription, wish: Wish, records: RecordPage) -> tuple[list[str], list[Any]]:
    columns = shown_columns(topic.schema, wish.columns, is_envelope=topic.kind == KIND_ENVELOPE)
    rows = [message_row(r.partition, r.offset, r.timestamp_ms, r.data, r.row, columns, wish.mode) for r in records.rows]
    return columns, rows


def _tail_cursor(records: RecordPage, bounds: Mapping[int, Bounds]) -> Cursor:
    return records.newer or Cursor(NEWER, {p: b.end for p, b in bounds.items()})


def _messages(console: Console, wish: Wish) -> dict[str, Any]:
    topic = console.admin.describe_topic(wish.topic)
    bounds, records = _read_page(console, topic, wish, wish.rows)
    columns, rows = _table(topic, wish, records)
    page = f"/topics/{topic.name}/messages"
    return {
        "topic": topic,
        "wish": wish,
        "columns": columns,
        "numbers": number_columns(topic.schema),
        "all_columns": shown_columns(topic.schema, (), is_envelope=topic.kind == KIND_ENVELOPE),
        "rows": rows,
        "found": records,
        "older": records.older and wish.link(page, dir=OLDER, at=records.older.as_text()),
        "newer": records.newer and wish.link(page, dir=NEWER, at=records.newer.as_text()),
        "tail_on": wish.link(page, start="newest", value="", tail="1"),
        "tail_off": wish.link(page, start="newest", value=""),
        "tail_next": wish.link(f"/topics/{topic.name}/tail", dir=NEWER, at=_tail_cursor(records, bounds).as_text()),
        "omitted_partitions": max(0, topic.partitions - PARTITIONS_MAX) if wish.partition < 0 else 0,
        "starts": STARTS,
        "modes": MODES,
        "formats": FORMATS,
        "export_rows": EXPORT_ROWS,
        "problem": "",
    }


async def messages(request: Request) -> Response:
    wish = wish_of(request)
    return render(request, "messages.html", **await ask(request, lambda console: _messages(console, wish)))


def _tail(console: Console, wish: Wish) -> dict[str, Any]:
    topic = console.admin.describe_topic(wish.topic)
    bounds, records = _read_page(console, topic, wish, TAIL_ROWS_MAX)
    columns, rows = _table(topic, wish, records)
    following = _tail_cursor(records, bounds)
    return {
        "topic": topic,
        "wish": wish,
        "columns": columns,
        "rows": rows,
        "problem": "",
        "tail_next": wish.link(f"/topics/{topic.name}/tail", dir=NEWER, at=following.as_text()),
    }


async def tail(request: Request) -> Response:
    """Return the records since the last response, and the HTML element that requests the next records."""
    wish = wish_of(request)
    try:
        context = await ask(request, lambda console: _tail(console, wish))
    except SparklogError as e:
        if not e.retriable:
            raise
        again = wish.link(request.url.path, dir=NEWER, at=wish.at)
        context = {"wish": wish, "rows": [], "columns": [], "problem": f"{e.name}: {e}", "tail_next": again}
    return render(request, "tail.html", **context)


def _read_record(console: Console, wish: Wish, partition: int, offset: int) -> tuple[TopicDescription, Any, int]:
    """Return the topic, a batch with only the record, and the record's timestamp. Raises OffsetOutOfRangeError."""
    topic = console.admin.describe_topic(wish.topic)
    bounds = _bounds(console, topic, wish)[partition]
    if bounds.start <= offset < bounds.end:
        for batch in _read(console, topic, wish)(partition, offset, offset + 1):
            return topic, batch.data, int(batch.timestamps_ms()[0])
    raise OffsetOutOfRangeError(
        f"partition {partition} of {topic.name} has no record with offset {offset} to be shown: it holds offsets "
        f"{bounds.start} to {bounds.end - 1}, without markers of transactions, and what compaction has removed"
    )


def _message(console: Console, wish: Wish, offset: int) -> dict[str, Any]:
    topic, data, timestamp_ms = _read_record(console, wish, wish.partition, offset)
    tp = TopicPartition(topic.name, wish.partition)
    return {
        "topic": topic,
        "tp": tp,
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "wish": wish,
        "modes": MODES,
        "view": message_view(data, 0, wish.mode, is_envelope=topic.kind == KIND_ENVELOPE),
        "batch": console.admin.describe_batches(tp, offset, batches_max=1)[0],
    }


async def message(request: Request) -> Response:
    wish, offset = _record_wish(request)
    return render(request, "message.html", **await ask(request, lambda console: _message(console, wish, offset)))


async def message_value(request: Request) -> Response:
    """Return the unchanged value of one column of a record, as a file."""
    wish, offset = _record_wish(request)
    name = text(request.query_params, "column")

    def work(console: Console) -> bytes:
        _, data, _ = _read_record(console, wish, wish.partition, offset)
        if name not in data.schema.names:
            raise InvalidRequestError(f"unknown column {name!r}")
        return raw_bytes(data.column(name)[0])

    content = await ask(request, work)
    return Response(
        content, headers=_as_file(f"{wish.topic}-{wish.partition}-{offset}.bin", "application/octet-stream")
    )


def _record_wish(request: Request) -> tuple[Wish, int]:
    """Return the wish and the offset of a request for one record. Raises InvalidRequestError."""
    wish = wish_of(request)
    if wish.partition < 0:
        raise InvalidRequestError("partition is needed")
    return wish, whole_number(request.query_params, "offset", 0)


def _as_file(name: str, media_type: str) -> dict[str, str]:
    """Return the headers of a file to save. A topic's name needs no quoting: letters, digits, '.', '_' and '-'."""
    return {"Content-Type": media_type, "Content-Disposition": f'attachment; filename="{name}"'}


def _export(console: Console, wish: Wish, format: str, rows_max: int) -> Generator[bytes, None, None]:
    topic = console.admin.describe_topic(wish.topic)
    bounds = _bounds(console, topic, wish)
    cursor = _cursor(console, topic.name, wish, bounds)
    ranges = {
        p: (max(b.start, b.end - rows_max) if cursor.direction == OLDER else max(b.start, cursor.offsets[p]), b.end)
        for p, b in bounds.items()
        if cursor.direction == OLDER or p in cursor.offsets
    }
    columns: Sequence[Any] = _layout(topic, wish) or topic.schema
    layout = pa.schema(columns)
    read = reader_of(
        console.options.bootstrap_servers,
        topic.name,
        layout=layout,
        isolation_level=wish.isolation_level,
        timeout_ms=console.options.request_timeout_ms,
        security=console.options.security,
    )
    schema = pa.schema([*_METADATA, *layout])
    return file_pieces(exported(read, ranges, wish.filter_text, rows_max), schema, format)


async def export(request: Request) -> Response:
    """Return a file with the records from the requested start to the end, at most `rows` of each partition. From
    `newest` these are the last `rows` offsets of each partition."""
    wish = wish_of(request)
    format = one_of(request.query_params, "format", tuple(FORMATS))
    rows_max = whole_number(request.query_params, "rows", EXPORT_ROWS, 1, EXPORT_ROWS_MAX)
    pieces = await ask(request, lambda console: _export(console, wish, format, rows_max))
    kind = FORMATS[format]
    headers = _as_file(f"{wish.topic}.{kind.suffix}", kind.media_type)
    return StreamingResponse(console_of(request).work.steps(pieces), headers=headers)


routes = [
    Route("/topics/{topic}/messages", messages),
    Route("/topics/{topic}/tail", tail),
    Route("/topics/{topic}/message", message),
    Route("/topics/{topic}/value", message_value),
    Route("/topics/{topic}/export", export),
]
