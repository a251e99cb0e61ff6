"""Threads that are bounded, files that are sent while they are made, and templates that escape."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog.console
from sparklog.console.files import FORMATS, file_pieces
from sparklog.console.web import make_templates
from sparklog.console.work import BusyError, Work
from sparklog.environment.executors import ThreadExecutors
from tests.support.cases import for_each

PACKAGE = Path(sparklog.console.__file__).parent
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def test_too_many_questions_are_turned_away() -> None:
    async def main() -> None:
        work, go = Work(ThreadExecutors(), threads=1, waiting_max=1), threading.Event()
        first, second = (asyncio.ensure_future(work.run(go.wait)) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await work.run(lambda: None)
        go.set()
        assert await first
        assert await second
        assert await work.run(lambda: 7) == 7
        work.close()

    asyncio.run(main())


def test_an_abandoned_file_is_closed() -> None:
    closed = threading.Event()

    def pieces() -> Generator[bytes, None, None]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    async def main() -> None:
        work = Work(ThreadExecutors())
        steps = work.steps(pieces())
        assert await anext(steps) == b"x"
        await steps.aclose()  # type: ignore[attr-defined]
        assert await asyncio.get_running_loop().run_in_executor(None, closed.wait, 20)
        work.close()

    asyncio.run(main())


def batches() -> Iterator[pa.RecordBatch]:
    for n in range(5):
        yield pa.record_batch({"n": pa.array([n, n]), "s": pa.array(['a"b', None])}, SCHEMA)


@for_each("format", FORMATS)
def test_every_format_can_be_read_again(format: str) -> None:
    data = b"".join(file_pieces(batches(), SCHEMA, format))
    if format == "parquet":
        assert pq.read_table(io.BytesIO(data)).to_pydict() == pa.Table.from_batches(list(batches())).to_pydict()
    elif format == "arrow":
        assert pa.ipc.open_file(data).read_all().equals(pa.Table.from_batches(list(batches())))
    elif format == "csv":
        assert data.decode().splitlines()[:3] == ['"n","s"', '0,"a""b"', "0,"]
    else:
        assert data.decode().splitlines()[0] == '{"n":0,"s":"a\\"b"}'


@for_each("format", FORMATS)
def test_no_byte_comes_before_the_first_rows_are_encoded(format: str) -> None:
    def breaking() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise ValueError

    pieces = file_pieces(breaking(), SCHEMA, format)
    with pytest.raises(ValueError):
        next(filter(None, pieces))


@for_each("format", FORMATS)
def test_an_empty_file_has_its_columns(format: str) -> None:
    data = b"".join(file_pieces([], SCHEMA, format))
    if format == "parquet":
        assert pq.read_table(io.BytesIO(data)).schema.names == SCHEMA.names
    elif format == "arrow":
        assert pa.ipc.open_file(data).schema.names == SCHEMA.names


@for_each("template", sorted((PACKAGE / "templates").glob("*.html")), ids=lambda p: p.name)
def test_templates_keep_to_the_policy(template: Path) -> None:
    """No value is let through unescaped, no script or style is inside a page, no other site is named."""
    text = template.read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|hx-on|hx-vals=['\"]js|javascript:", text)
    assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    assert not re.search(r"(?:src|href|action|hx-get|hx-post)=[\"'](?:https?:)?//", text)
    assert make_templates().get_template(template.name)


def test_vendored_files_have_their_licence() -> None:
    assert (PACKAGE / "static" / "htmx.min.js").stat().st_size > 10_000
    assert "Permission to use" in (PACKAGE / "static" / "htmx.LICENSE.txt").read_text(encoding="utf-8")
