"""SQL: a statement, its first rows as a table, all of them as a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sparklog.console.files import FORMATS, file_pieces
from sparklog.console.views.messages import grid
from sparklog.console.web import Console, ask, console_of, is_fragment, read_form, render, text
from sparklog.console.work import BusyError
from sparklog.errors import InvalidRequestError, QueryCancelledError, SparklogError
from sparklog.query.names import written
from sparklog.query.session import SqlSession
from sparklog.settings import MIB
from sparklog.types import INTERNAL_TOPICS

ROWS_MAX = 1_000
BYTES_MAX = 16 * MIB
MEMORY_LIMIT_BYTES = 512 * MIB
STATEMENTS_MAX = 2
"""At once; each may take the memory above."""
SECONDS_MAX = 60.0
TICK_S = 0.2
NAMES_SHOWN = 200

T = TypeVar("T")


class Statements:
    """Those that run; counted on the event loop."""

    def __init__(self) -> None:
        self.running = 0


_statements = Statements()


def _session(console: Console) -> SqlSession:
    return SqlSession(
        console.options.bootstrap_servers,
        memory_limit_bytes=MEMORY_LIMIT_BYTES,
        request_timeout_ms=console.options.request_timeout_ms,
        security=console.options.security,
    )


async def page(request: Request) -> Response:
    query, topic = text(request.query_params, "q"), text(request.query_params, "topic")
    if topic and not query:
        query = f"SELECT * FROM {written(topic)} ORDER BY _timestamp DESC LIMIT 100"
    return render(request, "sql.html", query=query, names=await ask(request, _names), result=None, formats=FORMATS)


async def run(request: Request) -> Response:
    """What is wrong with a statement is an answer, not an error of the page."""
    fields = await read_form(request)
    query, format = fields.get("q", ""), fields.get("format", "")
    if format:
        return await _file(request, query, format)
    console = console_of(request)
    clock = console.clock
    begun_s = clock.monotonic_s()
    result: dict[str, Any] = {"error": "", "hint": "", "grid": None, "complete": True, "rows": 0, "read": None}
    try:
        table, complete, read = await _interruptible(request, lambda session: _first_rows(session, query))
        result |= {"grid": grid(table), "complete": complete, "rows": table.num_rows, "read": read}
    except SparklogError as e:
        result |= {"error": str(e), "hint": console.hint(e), "name": e.name}
    result["took_ms"] = round(1000 * (clock.monotonic_s() - begun_s))
    if is_fragment(request):
        return render(request, "sql_result.html", result=result, query=query)
    return render(request, "sql.html", query=query, names=await ask(request, _names), result=result, formats=FORMATS)


def _names(console: Console) -> list[str]:
    """Some topics, as one writes them in SQL."""
    return [written(n) for n in console.names.get() if n not in INTERNAL_TOPICS][:NAMES_SHOWN]


def _first_rows(session: SqlSession, query: str) -> tuple[Any, bool, Any]:
    with session.execute(query) as result:
        table, complete = result.read_up_to(max_rows=ROWS_MAX, max_bytes=BYTES_MAX)
        return table, complete, result.statistics


async def _interruptible(request: Request, work: Callable[[SqlSession], T]) -> T:
    """Runs `work` with a session; cancels it after SECONDS_MAX, and when the browser has gone away. Raises
    QueryCancelledError, BusyError."""
    if _statements.running >= STATEMENTS_MAX:
        raise BusyError(f"{_statements.running} statements run already")
    console = console_of(request)
    clock = console.clock
    sessions: list[SqlSession] = []

    def job() -> T:
        with _session(console) as session:
            sessions.append(session)
            return work(session)

    _statements.running += 1
    running = asyncio.ensure_future(console.work.run(job))
    try:
        until_s = clock.monotonic_s() + SECONDS_MAX
        while not (await asyncio.wait({running}, timeout=TICK_S))[0]:
            is_late = clock.monotonic_s() >= until_s
            if is_late or await request.is_disconnected():
                for session in sessions:
                    session.interrupt()
                await asyncio.wait({running})
                if is_late:
                    raise QueryCancelledError(
                        f"cancelled after {SECONDS_MAX:.0f} s: `sparklog sql` in a terminal has no such limit"
                    )
        return running.result()
    finally:
        _statements.running -= 1


async def _file(request: Request, query: str, format: str) -> Response:
    if format not in FORMATS:
        raise InvalidRequestError(f"format {format!r}: use one of {', '.join(FORMATS)}")

    def pieces(console: Console) -> Generator[bytes, None, None]:
        with _session(console) as session, session.execute(query) as result:
            yield b""  # what is wrong with the statement is known by now
            yield from file_pieces(result, result.schema, format)

    console = console_of(request)
    steps = console.work.steps(pieces(console))
    await anext(steps)
    kind = FORMATS[format]
    headers = {"Content-Type": kind.media_type, "Content-Disposition": f'attachment; filename="result.{kind.suffix}"'}
    return StreamingResponse(steps, headers=headers)


routes = [Route("/sql", page), Route("/sql", run, methods=["POST"])]
