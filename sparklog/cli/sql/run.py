"""Runs statements for the command line in a thread, so that the main thread can handle Ctrl-C and draw progress."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from sparklog.cli import console
from sparklog.cli.destination import destination
from sparklog.cli.sql.format import OutputFormat
from sparklog.cli.sql.output import print_table, writer_of
from sparklog.query.session import SqlSession

TICK_S = 0.1
BAR_AFTER_S = 1.0
"""Time before the progress bar appears."""

NO_RESULT = (["Count"], ["Success"])
"""The columns of the result of a statement that is not a query, such as CREATE VIEW."""

T = TypeVar("T")


def run_query(session: SqlSession, query: str, format: OutputFormat, output: Path | None, max_rows: int) -> str:
    """Run the statements and write the rows of the last one.

    Returns a note for stderr: the number of rows in the file, or that the table is cut; else "". Raises
    QueryCancelledError after Ctrl-C, and the errors of `sparklog.sql`.
    """
    if format is OutputFormat.table:
        table, complete = cancellable(session, lambda: _first_rows(session, query, max_rows))
        if table.num_rows or table.column_names not in NO_RESULT:
            print_table(table)
        return "" if complete else f"the first {max_rows:,} rows; --max-rows shows more, --format csv has all"
    rows = cancellable(session, lambda: _copy(session, query, format, output))
    return "" if output is None else f"wrote {rows:,} rows to {output}"


def cancellable(session: SqlSession, work: Callable[[], T]) -> T:
    """Run `work` in a thread; return its result or raise its error. Ctrl-C interrupts the session's statement."""
    done: list[T] = []
    failed: list[BaseException] = []
    ended = threading.Event()  # an interrupted `Thread.join` can report a running thread as ended

    def run() -> None:
        try:
            done.append(work())
        except BaseException as e:  # noqa: BLE001  raised below
            failed.append(e)
        finally:
            ended.set()

    threading.Thread(target=run, name="sparklog-sql", daemon=True).start()
    interrupted = False
    with _progress(session) as show:
        while not ended.is_set():
            try:
                if not ended.wait(TICK_S) and interrupted:
                    session.interrupt()  # again: an interrupt before the start of the statement has no effect
                show()
            except KeyboardInterrupt:
                interrupted = True
                session.interrupt()
    if failed:
        raise failed[0]
    return done[0]


def _first_rows(session: SqlSession, query: str, max_rows: int) -> tuple[pa.Table, bool]:
    with session.execute(query) as result:
        return result.read_up_to(max_rows=max_rows)


def _copy(session: SqlSession, query: str, format: OutputFormat, output: Path | None) -> int:
    rows = 0
    make = writer_of(format, output)
    with (
        session.execute(query) as result,
        destination(output) as out,
        contextlib.closing(make(out, result.schema)) as writer,
    ):
        for batch in result:
            writer.write(batch)
            rows += batch.num_rows
    return rows


@contextlib.contextmanager
def _progress(session: SqlSession) -> Iterator[Callable[[], None]]:
    """Yield a function that updates the progress bar. The bar appears after BAR_AFTER_S if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.fields[read]} read")
    bar = Progress(
        BarColumn(), TaskProgressColumn(), text, TimeRemainingColumn(), console=console.stderr(), transient=True
    )
    task = bar.add_task("", total=None, read="")
    show_from = time.monotonic() + BAR_AFTER_S

    def show() -> None:
        if time.monotonic() >= show_from:
            read = session.statistics
            bar.start()
            size = console.size(read.bytes_read)
            bar.update(task, completed=read.offsets_done, total=read.offsets_total or None, read=size)

    try:
        yield show
    finally:
        bar.stop()
