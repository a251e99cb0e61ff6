"""The statements of a session: texts without a statement, and queries whose topics have older rows in a Delta table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from sparklog.errors import InvalidQueryError
from sparklog.query.ranges import OffsetRange
from sparklog.query.scan import TopicSnapshot
from sparklog.query.session import SqlSession
from tests.support.clients import info

NEWEST = "SELECT v FROM t ORDER BY _offset DESC LIMIT 1"


@pytest.fixture
def session() -> Iterator[SqlSession]:
    with SqlSession("127.0.0.1:9") as session:
        yield session


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
    session._snapshots["t"] = TopicSnapshot(topic, [OffsetRange(0, 5, 9, 5)], None, reaches_back)
    monkeypatch.setattr(SqlSession, "_part", lambda *_: None)
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
