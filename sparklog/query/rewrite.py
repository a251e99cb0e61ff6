"""Rewrites queries for the newest rows, which `tail_queries` finds, so that they read the end of a topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparklog.query.ranges import OFFSET, OffsetRange
from sparklog.query.tail_queries import NewestRows, bound, find_newest_rows, probe_statement, with_tables
from sparklog.query.topic_table import TopicTable

if TYPE_CHECKING:
    import duckdb

_ROW_FUNCTIONS = """
    SELECT function_name FROM duckdb_functions() GROUP BY function_name
    HAVING bool_and(function_type = 'scalar' AND stability IN ('CONSISTENT', 'CONSISTENT_WITHIN_QUERY'))
"""
_NAME = "__sparklog_newest_{}"


class TopicPart:
    """A table of some offsets of a topic: those in `logs`, which can be changed between two statements."""

    def __init__(
        self,
        logs: Sequence[OffsetRange],
        make: Callable[[Callable[[], Sequence[OffsetRange]]], TopicTable],
        offsets_from_ms: Callable[[int], Mapping[int, int]],
    ) -> None:
        """Create a table of all offsets. `make`: function that returns a table. Its argument is called at each scan,
        and returns the offsets to read."""
        self.whole = logs
        self.logs = logs
        self.table = make(lambda: self.logs)
        self.offsets_from_ms = offsets_from_ms


class NewestRewriter:
    """Rewrites statements of one connection.

    The connection must be in one transaction from `rewrite` to the end of the statement, so that `now()` has one value
    in the tries and in the statement.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._functions: frozenset[str] | None = None
        self._registered_names: list[str] = []

    def find(self, query: str) -> list[NewestRows]:
        """Return the SELECTs of newest rows in a query. Raises duckdb.Error."""
        if "limit" not in query.lower() or "desc" not in query.lower():
            return []
        ((text,),) = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        statement = json.loads(text)
        if statement.get("error") or len(statement.get("statements", ())) != 1:
            return []
        return find_newest_rows(statement["statements"][0], query.encode(), self._row_functions())

    def rewrite(self, query: str, parts: Sequence[tuple[NewestRows, TopicPart]]) -> str:
        """Return the query, in which the topics of SELECTs are replaced by tables of the needed offsets.

        The tables exist until `end`. A SELECT whose needed offsets `tail_queries.bound` does not find stays as it is.
        Raises duckdb.Error.
        """
        replaced = []
        for number, (newest, part) in enumerate(parts):
            name = _NAME.format(number)
            self._connection.register(name, part.table)
            self._registered_names.append(name)

            def probe(logs: Sequence[OffsetRange], name: str = name) -> Sequence[int]:
                part.logs = logs  # noqa: B023 - `bound` calls this in the same iteration
                return self._probe(newest, name)  # noqa: B023

            logs = bound(newest, part.whole, probe, part.offsets_from_ms)
            if logs is not None:
                part.logs = logs
                replaced.append((newest, name))
        return with_tables(query.encode(), replaced) if replaced else query

    def end(self) -> None:
        """Drop the tables of `rewrite`. A second call does nothing."""
        for name in self._registered_names:
            self._connection.unregister(name)
        self._registered_names.clear()

    def _probe(self, newest: NewestRows, table: str) -> Sequence[int]:
        statement = json.dumps(probe_statement(newest, table, newest.rows))
        ((text,),) = self._connection.execute("SELECT json_deserialize_sql(?::JSON)", [statement]).fetchall()
        column = self._connection.sql(text).to_arrow_table().column(0)
        values = np.asarray(column.cast("int64"))
        return (values if newest.by == OFFSET else values // 1000).tolist()  # type: ignore[no-any-return]

    def _row_functions(self) -> frozenset[str]:
        if self._functions is None:
            rows: list[Any] = self._connection.execute(_ROW_FUNCTIONS).fetchall()
            self._functions = frozenset(name.lower() for (name,) in rows)
        return self._functions
