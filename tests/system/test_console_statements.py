"""SQL of the console: each statement in a process of its own, within limits, and ended for sure."""

from __future__ import annotations

import asyncio
import contextlib
import html
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from sparklog.client.local import LocalBroker
from sparklog.console.app import make_app
from sparklog.console.files import FORMATS
from sparklog.console.pages.sql import QUERY_CHARS_MAX, _ResultFile
from sparklog.console.sql_child import Job
from sparklog.console.statements import STATEMENTS_MAX, Statement, Statements
from sparklog.console.web import Options
from sparklog.console.work import BusyError
from sparklog.environment import real_environment
from sparklog.errors import InvalidQueryError, QueryCancelledError, SparklogError
from sparklog.security.client_security import ClientSecurity
from tests.support.waiting import until
from tests.system.console_browser import console_process

pytest.importorskip("duckdb")
BASE = "http://127.0.0.1:8080"
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
ENDLESS_ROWS = "FROM range(1000000000000)"
LONG_S = 600.0


def run(test: Callable[[Statements], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        statements = Statements()
        try:
            await test(statements)
        finally:
            await statements.close()

    asyncio.run(main())


def job_of(broker: LocalBroker, query: str, format: str = "", cpu_s: int = 600) -> Job:
    return Job(broker.bootstrap_servers, ClientSecurity(), 30_000, query, format, 1_000, 16 << 20, cpu_s)


async def result(statement: Statement) -> bytes:
    try:
        return b"".join([piece async for piece in statement.data()])
    finally:
        await statement.end()


async def rows(statements: Statements, broker: LocalBroker, query: str) -> list[tuple[Any, ...]]:
    content = await result(await statements.start(job_of(broker, query), LONG_S))
    return [tuple(row.values()) for row in pa.ipc.open_stream(content).read_all().to_pylist()]


async def next_one_runs(statements: Statements, broker: LocalBroker) -> None:
    assert await rows(statements, broker, "SELECT 1") == [(1,)]


def test_memory_that_duckdb_does_not_count_is_limited(broker: LocalBroker) -> None:
    async def main(statements: Statements) -> None:
        for query in (
            "SELECT length(format('{:>2000000000}', 1))",
            "SELECT length(printf('%2000000000d', 1))",
            "SELECT length(repeat('x', 4000000000))",
            "SELECT bitstring('1', 2147483647)::VARCHAR",
            "SELECT list(range) FROM range(1000000000)",
        ):
            with pytest.raises(InvalidQueryError, match=r"memory|Memory|ended its process"):
                await rows(statements, broker, query)
            await next_one_runs(statements, broker)

    run(main)


def test_a_statement_ends_at_its_limits_of_time(broker: LocalBroker) -> None:
    async def main(statements: Statements) -> None:
        with pytest.raises(QueryCancelledError, match=r"cancelled after 0\.2 s"):
            await result(await statements.start(job_of(broker, ENDLESS), 0.2))
        with pytest.raises(QueryCancelledError, match="processor time"):
            await result(await statements.start(job_of(broker, ENDLESS, cpu_s=1), LONG_S))
        stopped = await statements.start(job_of(broker, ENDLESS), LONG_S)
        stopped.stop()
        with pytest.raises(QueryCancelledError, match=r"cancelled$"):
            await result(stopped)
        await next_one_runs(statements, broker)

    run(main)


def test_a_planner_at_work_is_ended_too(broker: LocalBroker) -> None:
    """Before, a planner that did not look at interrupts took processors from all pages after its own was left."""
    query = "SELECT " + " + ".join(f"(SELECT count(*) FROM range({n}) t{n})" for n in range(1_500))
    assert len(query) < QUERY_CHARS_MAX

    async def main(statements: Statements) -> None:
        with pytest.raises(SparklogError):  # cancelled, unless the planner is quick to refuse it
            await result(await statements.start(job_of(broker, query), 0.5))
        await next_one_runs(statements, broker)

    run(main)


def test_as_many_run_as_may(broker: LocalBroker) -> None:
    async def main(statements: Statements) -> None:
        files = [await statements.start(job_of(broker, ENDLESS_ROWS, "csv"), LONG_S) for _ in range(STATEMENTS_MAX)]
        for file in files:  # at work, and nobody takes what they send
            await file.started()
        for _ in range(10):
            with pytest.raises(BusyError, match=f"{STATEMENTS_MAX} SQL statements are running"):
                await statements.start(job_of(broker, "SELECT 1"), LONG_S)
        await files[0].end()
        await next_one_runs(statements, broker)
        await files[1].end()
        assert statements.running == 0

    run(main)


def test_a_file_that_is_not_taken_ends_at_its_time(broker: LocalBroker) -> None:
    async def main(statements: Statements) -> None:
        file = await statements.start(job_of(broker, ENDLESS_ROWS, "csv"), 0.5)
        with pytest.raises(QueryCancelledError, match="cancelled after"):
            await file.started()
            while statements.running:
                await asyncio.sleep(0.01)
            await result(file)
        await next_one_runs(statements, broker)

    run(main)


def test_files_of_all_formats(broker: LocalBroker) -> None:
    async def main(statements: Statements) -> None:
        files = {}
        for format in ("csv", "json", "parquet", "arrow"):
            statement = await statements.start(job_of(broker, "FROM range(300_000)", format), LONG_S)
            await statement.started()
            files[format] = await result(statement)
            assert statement.outcome is not None
        assert len(files["csv"].splitlines()) == 300_001
        assert json.loads(files["json"].splitlines()[-1]) == {"range": 299_999}
        assert pq.read_table(io.BytesIO(files["parquet"])).num_rows == 300_000
        assert pa.ipc.open_file(files["arrow"]).read_all().num_rows == 300_000
        with pytest.raises(InvalidQueryError, match="Binder"):
            await (await statements.start(job_of(broker, "SELECT nothing", "csv"), LONG_S)).started()

    run(main)


def test_a_file_that_an_error_breaks_off_is_not_ended_as_if_it_were_complete() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"some"
        raise QueryCancelledError("cancelled after 600 s")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(_ResultFile(body()).stream_response(send))
    assert [m.get("more_body") for m in sent] == [None, True]


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked at in /proc")
def test_no_process_stays_behind(broker: LocalBroker) -> None:
    """Neither when the process that forks is killed, nor at the console's end."""

    async def main(statements: Statements) -> None:
        file = await statements.start(job_of(broker, ENDLESS_ROWS, "csv"), LONG_S)
        await file.started()
        (forker,) = [p for p in children_of(os.getpid()) if b"sql_child" in Path(f"/proc/{p}/cmdline").read_bytes()]
        (child,) = children_of(forker)
        os.kill(forker, signal.SIGKILL)
        with pytest.raises(SparklogError):
            await result(file)
        until(lambda: not is_alive(child), "the statement's process has ended")
        await next_one_runs(statements, broker)
        endless = await statements.start(job_of(broker, ENDLESS, "csv"), LONG_S)
        (forker,) = [p for p in children_of(os.getpid()) if b"sql_child" in Path(f"/proc/{p}/cmdline").read_bytes()]
        await statements.close()
        until(lambda: not is_alive(forker), "the process that forks has ended")
        assert statements.running == 0
        with pytest.raises(SparklogError):
            await result(endless)

    run(main)


# -- over HTTP


@contextlib.asynccontextmanager
async def posted(address: str, cookie: str, **fields: str) -> AsyncIterator[None]:
    """A form that is sent, and whose answer nobody reads."""
    url = urlsplit(address)
    assert url.hostname
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    body = urlencode(fields)
    head = (
        f"POST /sql HTTP/1.1\r\nHost: {url.netloc}\r\nOrigin: {address}\r\nCookie: {cookie}\r\n"
        f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write((head + body).encode())
    await writer.drain()
    if "format" in fields:
        await reader.readexactly(12)  # it is sent
    try:
        yield
    finally:
        writer.transport.abort()


def asked(address: str, path: str, cookie: str = "", **fields: str) -> tuple[int, str, str]:
    """Status, text and cookie of an answer; a form is sent if there are fields."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    with contextlib.closing(connection):
        headers = {"Origin": address, "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST" if fields else "GET", path, urlencode(fields) if fields else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("Set-Cookie", "").partition(";")[0]


def test_pages_work_beside_statements_and_abandoned_statements_are_ended(broker: LocalBroker) -> None:
    with console_process(broker.bootstrap_servers) as address:
        _, page, cookie = asked(address, "/sql")
        token = re.findall(r'name="token" value="([^"]+)"', page)[0]

        def status() -> int:
            return asked(address, "/sql", cookie, q="SELECT 1", token=token)[0]

        async def main(**fields: str) -> None:
            async with contextlib.AsyncExitStack() as open_ones:
                for _ in range(10):
                    await open_ones.enter_async_context(posted(address, cookie, token=token, **fields))
                while await asyncio.to_thread(status) != 503:
                    await asyncio.sleep(0.01)
                for path in ("/", "/topics", "/groups", "/sql"):
                    assert (await asyncio.to_thread(asked, address, path))[0] == 200
                _, busy, _ = await asyncio.to_thread(asked, address, "/sql", cookie, q="SELECT 1", token=token)
                assert "try again in a moment" in busy
            while await asyncio.to_thread(status) != 200:
                await asyncio.sleep(0.01)

        asyncio.run(main(q=ENDLESS_ROWS, format="csv"))
        asyncio.run(main(q=ENDLESS))


def test_statements_that_a_page_refuses(broker: LocalBroker) -> None:
    with TestClient(make_app(Options(broker.bootstrap_servers), real_environment()), base_url=BASE) as client:
        token = re.findall(r'name="token" value="([^"]+)"', client.get("/sql").text)[0]

        def answer(query: str) -> str:
            response = client.post("/sql", data={"q": query, "token": token}, headers={"Origin": BASE})
            assert response.status_code == 200, response.text
            return response.text

        assert "at most 65,536" in answer("SELECT '" + "x" * QUERY_CHARS_MAX + "'")
        assert "UPDATE EXTENSIONS: extensions cannot be installed" in answer("UPDATE EXTENSIONS")
        assert "600 columns: a page shows 500 at most" in answer(
            "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(600))
        )
        assert "200 rows, the first ones" in answer(
            "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(500)) + " FROM range(5000)"
        )
        assert "the first ones" in answer("SELECT repeat('x', 5000) FROM range(100000)")


def test_a_page_has_the_reason_of_a_statement_without_a_result(broker: LocalBroker) -> None:
    """Before, a union was a defect, a file without rows broke off, and other programs' options were recommended."""
    with TestClient(make_app(Options(broker.bootstrap_servers), real_environment()), base_url=BASE) as client:
        token = re.findall(r'name="token" value="([^"]+)"', client.get("/sql").text)[0]

        def answer(query: str, format: str = "") -> tuple[int, str]:
            fields = {"q": query, "token": token, "format": format}
            response = client.post("/sql", data=fields, headers={"Origin": BASE})
            return response.status_code, html.unescape(response.text)

        for query in ("SELECT INTERVAL 1 DAY AS i", "SELECT {} AS i", "SELECT union_value(n := 2) AS i"):
            status, page = answer(query, "parquet")
            assert (status, "Parquet has no form" in page, "::VARCHAR" in page) == (400, True, True)
            assert answer(query)[0] == 200
        for format in FORMATS:
            status, page = answer("SELECT CASE WHEN range = 2 THEN error('at last') END FROM range(3)", format)
            assert (status, "at last" in page) == (400, True)
            assert answer("SELECT 1 AS x WHERE false", format)[0] == 200
        for query, reason in (
            ("SELECT md5_number('b') AS x", "column x: a UHUGEINT has at most 38 digits in a result"),
            (
                "SELECT * FROM read_csv('/etc/passwd')",
                "The console reads no files: `sparklog sql --allow-files DIRECTORY`",
            ),
            ("CREATE TABLE t AS SELECT range, uuid() FROM range(100_000_000)", "in a terminal allows more"),
        ):
            status, page = answer(query)
            assert (status, reason in page, "allow_files=" in page) == (200, True, False)


def test_a_secured_console_hands_its_secrets_to_the_process() -> None:
    import pickle

    from sparklog.console.sql_child import HEAD_BYTES, job_frame
    from sparklog.security.secrets import Secret

    security = ClientSecurity(username="ann", password=Secret("right"))
    sent = job_frame(Job("a:1", security, 1, "SELECT 1", "", 1, 1, 1))
    assert pickle.loads(sent[HEAD_BYTES:]).security.password.reveal() == "right"


def test_an_orphan_ends_at_its_start() -> None:
    """The process that forks was killed before the statement's process asked the kernel to end with it."""
    program = "from sparklog.console.sql_child import _end_with; _end_with(1 << 30); print('lives')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert (ended.returncode, ended.stdout) == (1, b"")
