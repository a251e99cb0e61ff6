"""Which SELECTs of the newest rows are recognised, and the bounds that are found for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import duckdb
import pytest

from sparklog.query.ranges import OffsetRange
from sparklog.query.tail_queries import NewestRows, bound, find_newest_rows, probe_statement, tails, with_tables

FUNCTIONS = frozenset({"lower", "now", "-", "+", ">", "||"})


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as made:
        yield made


def found(connection: duckdb.DuckDBPyConnection, sql: str) -> list[NewestRows]:
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    assert row is not None
    parsed = json.loads(row[0])
    assert not parsed["error"], parsed
    return find_newest_rows(parsed["statements"][0], sql.encode(), FUNCTIONS)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM t ORDER BY _offset DESC LIMIT 10", ("t", "t", "_offset", True, 10)),
        ("SELECT x, lower(y) FROM t AS u ORDER BY u._OFFSET DESC, x LIMIT 3 OFFSET 4", ("t", "u", "_offset", False, 7)),
        (
            'SELECT "é" FROM "my-topic" ORDER BY _timestamp DESC LIMIT 1',
            ("my-topic", "my-topic", "_timestamp", True, 1),
        ),
        ("SELECT * EXCLUDE (x) FROM t WHERE x > now() ORDER BY _offset DESC LIMIT 10", ("t", "t", "_offset", True, 10)),
        ("WITH c AS (FROM t ORDER BY _offset DESC LIMIT 2) SELECT sum(x) FROM c", ("t", "t", "_offset", True, 2)),
        ("SELECT 1 IN (SELECT x FROM t ORDER BY _offset DESC LIMIT 2)", ("t", "t", "_offset", True, 2)),
    ],
)
def test_recognised(connection: duckdb.DuckDBPyConnection, sql: str, expected: tuple[str, str, str, bool, int]) -> None:
    (one,) = found(connection, sql)
    assert (one.topic, one.alias, one.by, one.only_by, one.rows) == expected
    assert sql.encode()[one.start : one.end].decode().strip('"').startswith(one.topic)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM t ORDER BY _offset LIMIT 10",
        "FROM t ORDER BY _offset DESC",
        "FROM t LIMIT 10",
        "FROM t ORDER BY x, _offset DESC LIMIT 10",
        "FROM t ORDER BY -_offset DESC LIMIT 10",
        "FROM t ORDER BY u._offset DESC LIMIT 10",
        "FROM t ORDER BY _offset DESC LIMIT 10%",
        "FROM t ORDER BY _offset DESC LIMIT (SELECT 3)",
        "FROM t ORDER BY _offset DESC LIMIT 0",
        "FROM t ORDER BY _offset DESC LIMIT 10000000",
        "SELECT -x AS _offset FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT * REPLACE (-_offset AS _offset) FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT * RENAME (x AS _offset) FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT DISTINCT x FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT count(*) FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT _offset FROM t GROUP BY _offset ORDER BY _offset DESC LIMIT 10",
        "SELECT unnest(x) FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT row_number() OVER () FROM t ORDER BY _offset DESC LIMIT 10",
        "FROM t QUALIFY row_number() OVER () > 1 ORDER BY _offset DESC LIMIT 10",
        "FROM t WHERE random() < 0.5 ORDER BY _offset DESC LIMIT 10",
        "FROM t WHERE x IN (SELECT 1) ORDER BY _offset DESC LIMIT 10",
        "FROM t, u ORDER BY _offset DESC LIMIT 10",
        "FROM t JOIN u USING (x) ORDER BY _offset DESC LIMIT 10",
        "FROM t TABLESAMPLE 10% ORDER BY _offset DESC LIMIT 10",
        "FROM t AS t(a, b) ORDER BY _offset DESC LIMIT 10",
        "FROM s.t ORDER BY _offset DESC LIMIT 10",
        "FROM range(3) ORDER BY _offset DESC LIMIT 10",
        "WITH t AS (SELECT 1 AS _offset) FROM t ORDER BY _offset DESC LIMIT 10",
        "SELECT 1 UNION ALL SELECT 2 ORDER BY _offset DESC LIMIT 10",
        "SELECT 1",
    ],
)
def test_statements_that_stay_unchanged(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert found(connection, sql) == []


def test_another_tables_name_stands_where_the_topics_stood(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT 'é', t.x FROM t ORDER BY t._offset DESC LIMIT 1; ".strip("; ")
    other = f'WITH a AS ({sql}) SELECT * FROM a, (FROM "my-topic" u ORDER BY u._offset DESC LIMIT 1)'
    both = sorted(found(connection, other), key=lambda n: n.topic)
    assert [n.topic for n in both] == ["my-topic", "t"]
    assert with_tables(other.encode(), [(both[0], "n0"), (both[1], "n1")]) == (
        'WITH a AS (SELECT \'é\', t.x FROM "n1" AS "t" ORDER BY t._offset DESC LIMIT 1) '
        'SELECT * FROM a, (FROM "n0" AS "u" ORDER BY u._offset DESC LIMIT 1)'
    )


def test_the_probe_asks_for_the_order_of_rows_that_pass_the_where(connection: duckdb.DuckDBPyConnection) -> None:
    (one,) = found(connection, "SELECT x FROM t AS u WHERE lower(u.x) = 'a' ORDER BY _offset DESC, x LIMIT 3 OFFSET 4")
    statement = json.dumps(probe_statement(one, "n0", one.rows))
    row = connection.execute("SELECT json_deserialize_sql(?::JSON)", [statement]).fetchone()
    assert row == ("SELECT _offset FROM n0 AS u WHERE (lower(u.x) = 'a') ORDER BY _offset DESC LIMIT 7",)


def newest(by: str, rows: int, *, only_by: bool = True) -> NewestRows:
    return NewestRows("t", 0, 1, "t", by, only_by, rows, {})


def log(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition, start, end, start)


def test_tails_grow_until_they_are_not_worth_it() -> None:
    logs = [log(0, 0, 10_000), log(1, 0, 9_990), log(2, 5, 5)]
    by_offset = list(tails(logs, newest("_offset", 10)))
    assert [[(t.partition, t.start, t.floor) for t in tail] for tail in by_offset] == [
        [(0, 9_980, 9_980), (1, 9_980, 9_980)],
        [(0, 9_840, 9_840), (1, 9_840, 9_840)],
        [(0, 8_720, 8_720), (1, 8_720, 8_720)],
    ]
    by_time = next(tails(logs, newest("_timestamp", 10)))
    assert [(t.start, t.floor) for t in by_time] == [(9_980, 0), (9_970, 0)]  # a row may count with its batch's time
    assert list(tails([log(0, 3, 3)], newest("_offset", 10))) == []
    assert list(tails([log(0, 0, 30)], newest("_offset", 10))) == []


def test_the_first_tail_with_enough_rows_is_the_bound() -> None:
    logs = [log(0, 0, 10_000)]
    tried: list[int] = []

    def probe(tail: Sequence[OffsetRange]) -> list[int]:
        tried.append(tail[0].start)
        return list(range(9_999, tail[0].start, -50))[:10]

    found = bound(newest("_offset", 10), logs, probe, lambda _: {})
    assert found == [log(0, 8_720, 10_000)]
    assert tried == [9_980, 9_840, 8_720]
    assert bound(newest("_offset", 10), logs, lambda _: [], lambda _: {}) is None


@pytest.mark.parametrize(("only_by", "asked"), [(True, 51), (False, 50)])
def test_by_time_later_rows_of_other_partitions_are_read_as_well(only_by: bool, asked: int) -> None:
    logs = [log(0, 0, 1000), log(1, 0, 1000), log(2, 0, 1000)]
    asked_ms: list[int] = []

    def offsets_from_ms(time_ms: int) -> dict[int, int]:
        asked_ms.append(time_ms)
        return {0: 990, 1: 200}

    found = bound(newest("_timestamp", 2, only_by=only_by), logs, lambda _: [70, 50], offsets_from_ms)
    assert asked_ms == [asked]
    assert found is not None
    assert [(r.start, r.end, r.floor) for r in found] == [(996 - 6, 1000, 0), (200, 1000, 0), (996, 1000, 0)]


def test_negative_times_cannot_be_looked_up() -> None:
    assert bound(newest("_timestamp", 1), [log(0, 0, 1000)], lambda _: [-7], lambda _: {}) is None
