"""Queries for the newest records, such as `… ORDER BY _offset DESC LIMIT 10`, read only the end of a topic.

DuckDB does not push a LIMIT below an ORDER BY. So this module first finds offsets such that the query on the records
from these offsets on has the same result as on the whole topic. It examines each SELECT, also of subqueries and CTEs,
that

- reads a single topic, and has no aggregates, windows, DISTINCT or subqueries,
- is ordered by `_offset` or `_timestamp` descending first, and has a constant LIMIT.

The WHERE of the SELECT is tried on longer and longer ends of the topic until enough rows pass. Other queries are not
changed: they read the whole topic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparklog.query.names import quoted
from sparklog.query.ranges import OFFSET, TIMESTAMP, OffsetRange

ROWS_MAX = 100_000
"""Largest LIMIT whose query is bounded. For larger ones the tries would cost more than they save."""
TAIL_GROWTH = 8
"""Factor by which the number of offsets grows from one try to the next."""
WORTH = 4
"""A try reads at most 1/WORTH of the topic's offsets. If no such try suffices, the query reads the whole topic."""
_TABLE = re.compile(r"""(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<bare>\w+))(?:\s+(?:as\s+)?(?:"(?:[^"]|"")*"|\w+))?""", re.I)

Node = Mapping[str, Any]


class NewestRows(NamedTuple):
    """A SELECT of the newest rows of a topic."""

    topic: str
    start: int
    """Position of the topic's name in the statement, in bytes."""
    end: int
    """Position after the topic's name and alias, in bytes."""
    alias: str
    """Name of the topic in the SELECT."""
    by: str
    """First column of the order."""
    only_by: bool
    """True if the order has no further column."""
    rows: int
    """LIMIT plus OFFSET."""
    probe: Node
    """The SELECT in DuckDB's JSON."""


def find_newest_rows(statement: Node, sql: bytes, row_functions: frozenset[str]) -> list[NewestRows]:
    """Return the SELECTs of newest rows in a statement. The result: the SELECTs. Their `topic` is any table name, which
    need not be an existing topic."""
    named = {entry.get("key", "").lower() for entry in _ctes(statement)}
    candidates = []
    for node in _walk(statement):
        if node.get("type") == "SELECT_NODE":
            newest = _newest(node, sql, row_functions)
            if newest is not None and newest.topic.lower() not in named:
                candidates.append(newest)
    return candidates


def probe_statement(newest: NewestRows, table: str, rows: int | None) -> dict[str, Any]:
    """Return, as DuckDB's JSON, a statement that tries the SELECT's WHERE on `table`.

    The statement returns the column `newest.by` of the rows that pass, in descending order. `rows` limits their number.
    """
    column = {
        "class": "COLUMN_REF",
        "type": "COLUMN_REF",
        "alias": "",
        "query_location": 0,
        "column_names": [newest.by],
    }
    source = dict(newest.probe["from_table"])
    source |= {"table_name": table, "alias": newest.alias, "qualified_name": {"path": [table]}}
    node = dict(newest.probe) | {"select_list": [column], "from_table": source}
    order, limit = node["modifiers"]
    first = dict(order["orders"][0]) | {"type": "DESCENDING", "expression": column}
    number = dict(limit["limit"]) | {"literal": {"kind": "INTEGER", "text": str(rows)}}
    node["modifiers"] = [dict(order) | {"orders": [first]}, dict(limit) | {"limit": number, "offset": None}]
    return {"error": False, "statements": [{"node": node, "named_param_map": []}]}


def with_tables(sql: bytes, replaced: Sequence[tuple[NewestRows, str]]) -> str:
    """Return the statement with the topic of each SELECT in `replaced` replaced by the table of the same pair."""
    for newest, table in sorted(replaced, key=lambda r: r[0].start, reverse=True):
        text = f'"{table}" AS {quoted(newest.alias)}'
        sql = sql[: newest.start] + text.encode() + sql[newest.end :]
    return sql.decode()


def tails(logs: Sequence[OffsetRange], newest: NewestRows) -> Iterator[list[OffsetRange]]:
    """Yield longer and longer ends of the logs to try the WHERE on, up to 1/WORTH of all offsets."""
    logs = [log for log in logs if log.start < log.end]
    if not logs:
        return
    whole = sum(log.end - log.start for log in logs)
    top = max(log.end for log in logs)
    length = 2 * newest.rows
    while True:
        if newest.by == OFFSET:  # one start offset for all partitions, because the order is by offset
            tail = [log.between(top - length, log.end) for log in logs]
        else:
            tail = [log.begun_at(log.end - length) for log in logs]
        tail = [log for log in tail if log.start < log.end]
        if sum(log.end - log.start for log in tail) * WORTH > whole:
            return
        yield tail
        length *= TAIL_GROWTH


def bound(
    newest: NewestRows,
    logs: Sequence[OffsetRange],
    probe: Callable[[Sequence[OffsetRange]], Sequence[int]],
    offsets_from_ms: Callable[[int], Mapping[int, int]],
) -> list[OffsetRange] | None:
    """Return the part of `logs` that suffices for the SELECT; None if no part was found, so that it reads all offsets.
    `probe`: function that tries the WHERE on the given offsets. It returns the values of `newest.by` (times in ms) of
    the rows that pass, in descending order, at most `newest.rows`. `offsets_from_ms`: function that returns the first
    offset with a timestamp of at least the given time in ms, by partition. Partitions without such an offset are left
    out."""
    for tail in tails(logs, newest):
        values = probe(tail)
        if len(values) < newest.rows:
            continue
        if newest.by == OFFSET:
            return tail
        # if the order is by time alone, it does not matter which of the rows with the last time are in the result
        least_ms = values[-1] + 1 if newest.only_by else values[-1]
        if least_ms < 0:
            return None
        later = offsets_from_ms(least_ms)
        starts = {log.partition: log.start for log in tail}
        return [
            log.begun_at(min(starts.get(log.partition, log.end), later.get(log.partition, log.end))) for log in logs
        ]
    return None


def _newest(node: Node, sql: bytes, row_functions: frozenset[str]) -> NewestRows | None:
    try:
        return _check_query(node, sql, row_functions)
    except (KeyError, TypeError, ValueError, AttributeError, UnicodeDecodeError):
        return None  # the JSON of another version of DuckDB


def _check_query(node: Node, sql: bytes, row_functions: frozenset[str]) -> NewestRows | None:
    table = node["from_table"]
    plain = (
        table["type"] == "BASE_TABLE"
        and not (table["schema_name"] or table["catalog_name"] or table["sample"] or table["at_clause"])
        and not (table["column_name_alias"] or node["sample"] or node["having"] or node["qualify"])
        and not (node["group_expressions"] or node["group_sets"] or node["cte_map"]["map"])
        and node["aggregate_handling"] == "STANDARD_HANDLING"
        and [m["type"] for m in node["modifiers"]] == ["ORDER_MODIFIER", "LIMIT_MODIFIER"]
    )
    if not plain:
        return None
    order, limit = node["modifiers"]
    rows = _constant(limit["limit"]) + (_constant(limit["offset"]) if limit["offset"] else 0)
    alias = table["alias"] or table["table_name"]
    by = _ordered_by(order["orders"][0], alias)
    if limit["limit_type"] != "ROW_COUNT" or by is None or not 1 <= rows <= ROWS_MAX:
        return None
    if not _keeps_rows(node, row_functions) or _renames(node["select_list"], by):
        return None
    start = table["query_location"]
    end = start + table["query_location_length"]
    text = _TABLE.fullmatch(sql[start:end].decode())
    if text is None or (text["bare"] or text["quoted"].replace('""', '"')) != table["table_name"]:
        return None
    return NewestRows(table["table_name"], start, end, alias, by, len(order["orders"]) == 1, rows, node)


def _constant(value: Node) -> int:
    if value["class"] != "CONSTANT" or value["literal"]["kind"] != "INTEGER":
        raise ValueError("no constant")
    return int(value["literal"]["text"])


def _ordered_by(order: Node, alias: str) -> str | None:
    expression = order["expression"]
    if order["type"] != "DESCENDING" or expression["class"] != "COLUMN_REF":
        return None
    *table, column = expression["column_names"]
    if table and [t.lower() for t in table] != [alias.lower()]:
        return None
    return column.lower() if column.lower() in (OFFSET, TIMESTAMP) else None


def _keeps_rows(node: Node, row_functions: frozenset[str]) -> bool:
    """True if the SELECT returns one row for each row that passes its WHERE, and the same rows in each run."""
    for part in _walk([node["select_list"], node["where_clause"], node["modifiers"]]):
        kind = part.get("class")
        if kind in ("SUBQUERY", "WINDOW", "PARAMETER"):
            return False
        if kind == "FUNCTION" and (part["function_name"].lower() not in row_functions or part["filter"]):
            return False
    return True


def _renames(select_list: Sequence[Node], by: str) -> bool:
    """True if the name in ORDER BY can mean something other than the topic's own column: an alias in the select list,
    or a name that `* REPLACE` or `* RENAME` gives."""
    for item in select_list:
        if item["class"] == "STAR":
            if set(item) - _PLAIN_STAR and any(item[key] for key in set(item) - _PLAIN_STAR):
                return True
        elif item["alias"].lower() == by:
            return True
    return False


_PLAIN_STAR = {"class", "type", "alias", "query_location", "query_location_length", "relation_name", "exclude_list"}


def _walk(value: Any) -> Iterator[Node]:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            yield part
            pending += part.values()
        elif isinstance(part, list):
            pending += part


def _ctes(statement: Node) -> Iterator[Node]:
    for part in _walk(statement):
        if isinstance(part.get("cte_map"), Mapping):
            yield from part["cte_map"].get("map", [])
