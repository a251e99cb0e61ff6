"""The SQL page: runs a statement, and shows its first rows or returns all rows as a file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from sparklog.console.files import FORMATS
from sparklog.console.sql_child import THREADS_MAX, Job
from sparklog.console.statements import Statement
from sparklog.console.views.messages import grid
from sparklog.console.web import Console, ask, console_of, is_fragment, read_form, render, text
from sparklog.console.work import BusyError
from sparklog.errors import InvalidQueryError, InvalidRequestError, SparklogError
from sparklog.query.names import written
from sparklog.settings import MIB
from sparklog.types import INTERNAL_TOPICS

ROWS_MAX = 1_000
BYTES_MAX = 16 * MIB
SECONDS_MAX = 60.0
FILE_SECONDS_MAX = 600.0
"""Time limit of a statement whose rows are saved as a file."""
QUERY_CHARS_MAX = 65_536
"""Length of the longest statement. DuckDB plans longer statements for minutes."""
TICK_S = 0.2
NAMES_SHOWN = 200

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def page(request: Request) -> Response:
    with contextlib.suppress(BusyError):  # the first statement reports the error
        await console_of(request).statements.prepare()
    query, topic = text(request.query_params, "q"), text(request.query_params, "topic")
    if topic and not query:
        query = f"SELECT * FROM {written(topic)} ORDER BY _timestamp DESC LIMIT 100"
    return render(request, "sql.html", query=query, names=await ask(request, _names), result=None, formats=FORMATS)


async def run(request: Request) -> Response:
    """Run a statement. The response to a faulty statement has status 200 and shows the error."""
    fields = await read_form(request)
    query, format = fields.get("q", ""), fields.get("format", "")
    if format:
        return await _file(request, query, format)
    console = console_of(request)
    clock = console.clock
    begun_s = clock.monotonic_s()
    result: dict[str, Any] = {"error": "", "hint": "", "grid": None, "complete": True, "rows": 0, "read": None}
    try:
        result |= await _first_rows(request, query)
    except SparklogError as e:
        result |= {"error": str(e), "hint": console.hint(e), "name": e.name}
    result["took_ms"] = round(1000 * (clock.monotonic_s() - begun_s))
    if is_fragment(request):
        return render(request, "sql_result.html", result=result, query=query)
    return render(request, "sql.html", query=query, names=await ask(request, _names), result=result, formats=FORMATS)


def _names(console: Console) -> list[str]:
    """Return the first NAMES_SHOWN topics, quoted for SQL if necessary."""
    return [written(n) for n in console.names.get() if n not in INTERNAL_TOPICS][:NAMES_SHOWN]


def _job(console: Console, query: str, format: str) -> tuple[Job, float]:
    """Return the job of a statement, and its time limit in s. Raises InvalidQueryError if the statement is too long."""
    if len(query) > QUERY_CHARS_MAX:
        raise InvalidQueryError(f"the statement has {len(query):,} characters: at most {QUERY_CHARS_MAX:,}")
    seconds_max = FILE_SECONDS_MAX if format else SECONDS_MAX
    options = console.options
    cpu_s = int(seconds_max * min(THREADS_MAX, os.cpu_count() or 1)) + 10
    timeout_ms = options.request_timeout_ms
    return (
        Job(options.bootstrap_servers, options.security, timeout_ms, query, format, ROWS_MAX, BYTES_MAX, cpu_s),
        seconds_max,
    )


async def _first_rows(request: Request, query: str) -> dict[str, Any]:
    """Run a statement, and return its first rows for the template. Raises the errors of `Statement.data`, BusyError."""
    console = console_of(request)
    statement = await console.statements.start(*_job(console, query, ""))
    try:
        content = await _while_connected(request, _whole_result(statement), statement)
    finally:
        await statement.end()
    outcome = statement.outcome
    assert outcome is not None  # set by the last frame
    table = pa.ipc.open_stream(content).read_all()
    shown = await console.work.run(lambda: grid(table))
    return {"grid": shown, "complete": outcome.is_complete, "rows": table.num_rows, "read": outcome}


async def _whole_result(statement: Statement) -> bytes:
    return b"".join([piece async for piece in statement.data()])


async def _while_connected(request: Request, answer: Awaitable[T], statement: Statement) -> T:
    """Return the result of `answer`. Stop the statement if the browser disconnects meanwhile."""
    task = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({task}, timeout=TICK_S))[0]:
            if await request.is_disconnected():
                statement.stop()
        return task.result()
    finally:
        task.cancel()


async def _file(request: Request, query: str, format: str) -> Response:
    if format not in FORMATS:
        raise InvalidRequestError(f"format {format!r}: use one of {', '.join(FORMATS)}")
    console = console_of(request)
    statement = await console.statements.start(*_job(console, query, format))
    try:
        await _while_connected(request, statement.started(), statement)  # raises before a response with status 200
    except BaseException:
        statement.stop()
        raise
    kind = FORMATS[format]
    headers = {"Content-Type": kind.media_type, "Content-Disposition": f'attachment; filename="result.{kind.suffix}"'}
    return _ResultFile(_body(statement), headers=headers)


class _ResultFile(StreamingResponse):
    """A response with a file. After an error the response is not ended, so that the server closes the connection and
    the browser reports an incomplete file."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except SparklogError as e:
            _log.warning("writing the file of a result failed: %s", e)


async def _body(statement: Statement) -> AsyncIterator[bytes]:
    try:
        async for piece in statement.data():
            yield piece
    finally:
        statement.stop()


routes = [Route("/sql", page), Route("/sql", run, methods=["POST"])]
