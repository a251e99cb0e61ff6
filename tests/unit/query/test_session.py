"""SQL: the session, its calls, and scans of batches by their headers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from sparklog.errors import ClosedError, InvalidConfigError, InvalidQueryError
from sparklog.format.batch import ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_LOG_APPEND_TIME, BatchHeader
from sparklog.query.calls import Calls
from sparklog.query.ranges import TIME_MS_MAX, Interval, OffsetRange
from sparklog.query.registered_topics import RegisteredTopics
from sparklog.query.scan import TopicSnapshot, may_have_time
from sparklog.query.session import SqlSession
from sparklog.query.statement_kinds import PREPARED, check_kind
from tests.support.cases import for_each
from tests.support.clients import info


def header(low_ms: int, high_ms: int, *, attributes: int = 0, append_ms: int = 0) -> BatchHeader:
    return BatchHeader(0, 0, 0, append_ms, attributes, 1, 3, 2, low_ms, high_ms, -1, -1, -1, 0, 0, 0)


TIMES = [Interval(100, 200), Interval(500, 600)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (header(0, 99), False),
        (header(0, 100), True),
        (header(200, 300), True),
        (header(201, 499), False),
        (header(201, 700), True),
        (header(601, 700), False),
        (header(0, 0, attributes=ATTRIBUTE_LOG_APPEND_TIME, append_ms=550), True),
        (header(150, 150, attributes=ATTRIBUTE_LOG_APPEND_TIME, append_ms=300), False),
        (header(10**15, 700, attributes=ATTRIBUTE_DELETE_HORIZON), True),
        (header(0, 50, attributes=ATTRIBUTE_DELETE_HORIZON), False),
    ],
)
def test_by_header(given: BatchHeader, expected: bool) -> None:
    assert may_have_time(given, TIMES) is expected


def test_times_beyond_microseconds_are_at_the_edge() -> None:
    assert may_have_time(header(2**62, 2**62), [Interval(TIME_MS_MAX, TIME_MS_MAX)])


# Calls of DuckDB at the end of the process


def test_calls_end_with_the_process() -> None:
    calls, inside, interrupted = Calls(), threading.Event(), threading.Event()
    said: list[str] = []

    def run() -> None:
        with calls:
            inside.set()
            interrupted.wait(60)
        try:
            with calls:
                pass
        except ClosedError as e:
            said.append(str(e))

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait(60)
    calls.end(lambda: None, 0)  # it does not wait longer
    calls.end(interrupted.set, 60)
    thread.join(60)
    assert said == ["the process ends"]
    with calls:  # the main thread closes what is left
        pass
    calls.reset()
    with pytest.raises(ValueError), calls:
        raise ValueError
    calls.end(lambda: pytest.fail("no call runs"), 60)


# The statements of a session: texts without a statement, and queries whose topics have older rows in a Delta table


NEWEST = "SELECT v FROM t ORDER BY _offset DESC LIMIT 1"


@pytest.fixture
def session() -> Iterator[SqlSession]:
    with SqlSession("127.0.0.1:9") as session:
        yield session


def test_a_promised_lateness_is_no_negative_time() -> None:
    with SqlSession("127.0.0.1:9", lateness_ms=0):
        pass
    with pytest.raises(InvalidConfigError, match="lateness_ms = -1: 0 or more, or None"):
        SqlSession("127.0.0.1:9", lateness_ms=-1)


@pytest.mark.parametrize("text", ["", " ", ";", "-- a comment", "/* a comment */;"])
def test_a_text_without_a_statement_is_refused_by_name(session: SqlSession, text: str) -> None:
    with pytest.raises(InvalidQueryError, match="no statement: write SQL"):
        session.execute(text)


@pytest.mark.parametrize("reaches_back", [False, True])
def test_the_newest_rows_of_a_topic_are_bounded_unless_its_table_reaches_back(
    session: SqlSession, monkeypatch: pytest.MonkeyPatch, reaches_back: bool
) -> None:
    """The bounds of the query follow from the offsets in the log, and the table has offsets before these."""
    topic = info(pa.schema([("v", pa.int64())]), partitions=1)
    session._topics._snapshots["t"] = TopicSnapshot(topic, [OffsetRange(0, 5, 9, 5)], None, reaches_back)
    monkeypatch.setattr(RegisteredTopics, "part", lambda *_: None)
    rewritten: list[Any] = []

    def rewrite(query: str, bounded: Any) -> str:
        rewritten.append(bounded)
        return "SELECT 1"

    monkeypatch.setattr(session._rewriter, "rewrite", rewrite)
    result = session._run_bounded(NEWEST, ["t"])
    assert (result is None) is reaches_back
    assert len(rewritten) == (not reaches_back)
    if result is not None:
        cast("Any", result).close()


@for_each("kind", PREPARED)
def test_a_session_with_files_prepares_no_statement(kind: str) -> None:
    check_kind(kind, "PREPARE p AS SELECT 1")
    check_kind("SELECT", "SELECT 1", allows_files=True)
    with pytest.raises(InvalidQueryError, match=f"{kind}: with allowed files"):
        check_kind(kind, "PREPARE p AS SELECT 1", allows_files=True)
