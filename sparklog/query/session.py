"""SQL statements over the topics of a cluster, in a DuckDB that can access only the topics.

DuckDB writes no files, reads only files of allowed directories, loads no extensions and opens no connections. No
statement can change that (`enable_external_access`, `lock_configuration`), so untrusted users can write the SQL.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import re
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

import pyarrow as pa

from sparklog.client.net import arguments as arg
from sparklog.client.net.background import EXIT_S
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.reading.isolation import isolation_of
from sparklog.errors import (
    ClosedError,
    InvalidConfigError,
    InvalidQueryError,
    InvalidRequestError,
    QueryCancelledError,
    SparklogError,
)
from sparklog.query.calls import CALLS
from sparklog.query.connection import (
    MEMORY_LIMIT_BYTES,
    MEMORY_LIMIT_BYTES_MAX,
    MEMORY_LIMIT_BYTES_MIN,
    THREADS_MAX,
    locked_connection,
    require_duckdb,
)
from sparklog.query.dialect import (
    in_this_dialect,
    is_description,
    is_table_list,
    table_list,
    with_subjects,
)
from sparklog.query.exact_values import with_exact_values
from sparklog.query.explain import ADVICE, explained
from sparklog.query.keyword_errors import keyword_error
from sparklog.query.names import topics_named
from sparklog.query.registered_topics import RegisteredTopics
from sparklog.query.result import QueryResult
from sparklog.query.rewrite import NewestRewriter
from sparklog.query.scan import (
    Control,
    ReadOptions,
    ScanStatistics,
    newest_info,
    table_schema,
)
from sparklog.query.statement_kinds import check_kind, kind_of
from sparklog.security.client_security import Security
from sparklog.times import parse_time_ms
from sparklog.types import INTERNAL_TOPICS

RESULT_BATCH_ROWS = 65_536
_END = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/)*(?:commit|rollback|end|abort)\b", re.IGNORECASE | re.DOTALL)

_log = logging.getLogger(__name__)

_open_sessions: weakref.WeakSet[SqlSession] = weakref.WeakSet()
_kept_sessions: list[SqlSession] = []
"""Sessions that must stay alive: at the end of the process all, in a forked child those of the parent."""


@functools.cache
def _end_before_duckdb() -> None:
    """Register the end of the sessions. DuckDB registers its own end when it is imported; it then refuses the calls of
    daemon threads with errors that are no cancellation. Functions registered later run earlier."""
    atexit.register(_close_at_exit)


@arg.servers_may_follow("query")
@arg.takes(
    query=arg.behind_servers("sql(bootstrap_servers, query)"),
    max_rows=arg.optional(arg.whole()),
    max_bytes=arg.optional(arg.whole()),
)
def sql(
    bootstrap_servers: str | Sequence[str] | None,
    query: str,
    *,
    isolation_level: str = "read_committed",
    local: str = "auto",
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    lateness_ms: int | None = None,
    request_timeout_ms: int = 30_000,
    security: Security = None,
) -> pa.Table:
    """Run an SQL statement, or several separated by semicolons, and return the rows of the last one.

    Topics are tables with the columns `_partition`, `_offset`, `_timestamp` (UTC), then the topic's columns. Each
    statement sees the rows that the topics hold at its beginning.

    Args:
        bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
            127.0.0.1:9292. The argument can be left out, or be given by name after the query.
        query: The SQL text.
        isolation_level: "read_committed" leaves out records of open and aborted transactions, and ends at the first
            open transaction; "read_uncommitted" reads all.
        local: "auto" maps the broker's files if they are visible on this host; "off" reads through the socket.
        memory_limit_bytes: Memory limit of DuckDB in bytes. DuckDB spills nothing to disk.
        max_rows: Largest number of rows of the result. None: no limit.
        max_bytes: Largest size of the result in bytes. None: no limit.
        lateness_ms: The caller's promise about the order of timestamps: no record's timestamp is more than this many ms
            below that of an earlier record of its partition. A query with a latest time stops reading a partition
            there. None: no promise.
        request_timeout_ms: The time limit of requests in ms.
        security: Client settings by their dotted names, or the path of a properties file. None: plaintext.

    Returns:
        The rows.

    Raises:
        InvalidQueryError: DuckDB cannot run the statement, or a kind of statement is not allowed.
        QueryResultTooLargeError: The result is larger than `max_rows` or `max_bytes`.
        UnknownTopicOrPartitionError: A table does not exist.
        DataLossError: Records were deleted during the read.
        RequestTimedOutError: No broker has answered in time.
        InvalidConfigError: The extra `sparklog[sql]` is missing, or an option has no allowed value.
        InvalidRequestError: A number has the wrong type or is out of bounds.

    Example:
        ```python
        sparklog.sql("SELECT zone, count(*) FROM trips GROUP BY zone").to_pandas()
        ```
    """
    with (
        SqlSession(
            bootstrap_servers,
            isolation_level=isolation_level,
            local=local,
            memory_limit_bytes=memory_limit_bytes,
            lateness_ms=lateness_ms,
            request_timeout_ms=request_timeout_ms,
            security=security,
        ) as session,
        session.execute(query) as result,
    ):
        return result.read_all(max_rows=max_rows, max_bytes=max_bytes)


class SqlSession:
    """A session of SQL statements, in a DuckDB whose tables are the topics.

    Views, tables and macros that statements create are in memory, and end with the session. Only one thread is allowed
    to use a session; another thread can call `interrupt`.

    Example:
        ```python
        with SqlSession() as session:
            for batch in session.execute("SELECT * FROM trips WHERE minutes > 60"):
                print(batch.num_rows)
        ```
    """

    _advice = ADVICE
    """The options that error messages name."""

    @arg.takes(
        memory_limit_bytes=arg.whole(0, MEMORY_LIMIT_BYTES_MAX),
        threads=arg.optional(arg.whole(1, THREADS_MAX)),
        allow_files=arg.texts,
        lateness_ms=arg.optional(arg.whole(-1)),
        request_timeout_ms=arg.timeout,
    )
    @CALLS
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        isolation_level: str = "read_committed",
        local: str = "auto",
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
        threads: int | None = None,
        lateness_ms: int | None = None,
        allow_files: Sequence[str] = (),
        request_timeout_ms: int = 30_000,
        security: Security = None,
    ) -> None:
        """Create a session. The first statement connects to the brokers.

        Args:
            bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
                127.0.0.1:9292.
            isolation_level: "read_committed" leaves out records of open and aborted transactions, and ends at the first
                open transaction; "read_uncommitted" reads all.
            local: "auto" maps the broker's files if they are visible on this host; "off" reads through the socket.
            memory_limit_bytes: Memory limit of DuckDB in bytes. DuckDB spills nothing to disk.
            threads: Number of DuckDB's threads. None: the number of processors.
            lateness_ms: The caller's promise about the order of timestamps: no record's timestamp is more than this
                many ms below that of an earlier record of its partition. A query with a latest time stops reading a
                partition there. None: no promise.
            allow_files: Directories whose files statements are allowed to read, as in `FROM 'zones.csv'`. Empty: none.
                For untrusted statements, name only directories that their authors are allowed to read.
            request_timeout_ms: The time limit of requests in ms.
            security: Client settings by their dotted names, or the path of a properties file. None: plaintext.

        Raises:
            InvalidConfigError: The extra `sparklog[sql]` is missing, or an option has no allowed value.
            InvalidRequestError: A number has the wrong type or is out of bounds.
        """
        if not isinstance(local, str) or local not in ("auto", "off"):
            raise InvalidConfigError(f"local read {local!r}: use auto or off")
        if memory_limit_bytes < MEMORY_LIMIT_BYTES_MIN:
            raise InvalidConfigError(
                f"memory_limit_bytes = {memory_limit_bytes}: at least {MEMORY_LIMIT_BYTES_MIN} are needed"
            )
        if lateness_ms is not None and lateness_ms < 0:
            raise InvalidConfigError(f"lateness_ms = {lateness_ms}: 0 or more, or None")
        self._cluster: Cluster = cluster(bootstrap_servers, security)
        self._options = ReadOptions(isolation_of(isolation_level), local, request_timeout_ms, lateness_ms)
        self._duckdb = require_duckdb()
        _end_before_duckdb()
        self._connection = locked_connection(self._duckdb, memory_limit_bytes, threads, allow_files)
        self._rewriter = NewestRewriter(self._connection)
        self._topics = RegisteredTopics(self._connection, self._cluster, self._options)
        self._control = Control()
        self._result: QueryResult | None = None
        self._in_transaction = False
        self._now_ms = 0
        """Start of the running statement in ms since 1970, for the function `moment`."""
        self._allows_files = bool(allow_files)
        self._connection.create_function("moment", self._moment, ["VARCHAR"], "TIMESTAMPTZ")
        self._closed = ""
        """The reason why the session refuses statements; empty while it accepts them."""
        _open_sessions.add(self)

    @arg.takes(query=arg.text)
    @CALLS
    def execute(self, query: str) -> QueryResult:
        """Run the statements of a text and return the rows of the last one. The session's previous result is closed.

        Args:
            query: One SQL statement, or several separated by semicolons.

        Returns:
            The rows, which are computed as they are requested.

        Raises:
            InvalidQueryError: DuckDB cannot run a statement, or the text has none.
            UnknownTopicOrPartitionError: A table does not exist.
            DataLossError: Records were deleted during the read.
            QueryCancelledError: Another thread has called `interrupt`.
            RequestTimedOutError: No broker has answered in time.
            ClosedError: The session is closed.
        """
        if self._closed:
            raise ClosedError(self._closed)
        self._end_statement()
        self._control = Control()
        try:
            query.encode()
            query = in_this_dialect(query)
            statements = self._connection.extract_statements(query)
        except self._duckdb.Error as e:
            raise self._syntax_error(e, query) from e
        except UnicodeEncodeError as e:
            raise InvalidQueryError(f"the statement is not valid Unicode: {e.reason} at position {e.start}") from e
        if not statements:
            raise InvalidQueryError("no statement: write SQL, for example SELECT count(*) FROM topic")
        kinds = [kind_of(statement) for statement in statements]
        for statement, kind in zip(statements, kinds, strict=True):
            check_kind(kind, statement.query, allows_files=self._allows_files)
        for statement, kind in zip(statements[:-1], kinds, strict=False):
            self._start(statement.query, kind).close()
        self._result = self._start(statements[-1].query, kinds[-1])
        return self._result

    def interrupt(self) -> None:
        """Cancel the running statement, which raises QueryCancelledError. Any thread can call this."""
        self._control.cancelled.set()
        with contextlib.suppress(AttributeError, self._duckdb.ConnectionException):  # closed
            self._connection.interrupt()

    @property
    def statistics(self) -> ScanStatistics:
        """Numbers of records and bytes that the running or the last statement has read."""
        return self._control.statistics

    def topics(self, *, include_internal: bool = False) -> list[str]:
        """List the topics.

        Args:
            include_internal: True adds the broker's own topics.

        Returns:
            The sorted names.
        """
        return sorted(name for name in self._partition_counts() if include_internal or name not in INTERNAL_TOPICS)

    @arg.takes(topic=arg.text)
    def columns(self, topic: str) -> pa.Schema:
        """Return the columns of a topic's table: `_partition`, `_offset`, `_timestamp`, then the topic's columns.

        Args:
            topic: The topic's name.

        Returns:
            The table's schema.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
        """
        return table_schema(newest_info(self._cluster, topic, self._options.request_timeout_ms))

    def close(self) -> None:
        """End the running statement and close the session. A second call does nothing."""
        with contextlib.suppress(ClosedError), CALLS:  # at the end of the process the main thread closes the sessions
            if not self._closed:
                self._closed = "this SqlSession is closed: create a new one"
                self._end_statement()
                self._topics.close()
                self._connection.close()
                del self._rewriter, self._connection  # DuckDB releases the GIL when it drops a connection

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _partition_counts(self) -> Mapping[str, int]:
        attempts = Retries(RetryPolicy.within(self._options.request_timeout_ms))
        return until_answered(lambda remaining_ms: self._cluster.partition_counts(timeout_ms=remaining_ms), attempts)

    def _end_statement(self) -> None:
        if self._result is not None:
            self._result.close()
            self._result = None

    def _start(self, query: str, kind: str) -> QueryResult:
        """Run one statement and return its rows. Changes, such as those of a CREATE, are complete on return."""
        self._topics.begin_statement(self._control)
        self._now_ms = time.time_ns() // 1_000_000
        topics: Collection[str] = ()
        named: list[str] = []
        try:
            topics = self._partition_counts()
            if is_table_list(query):
                query = table_list(t for t in topics if t not in INTERNAL_TOPICS)
                return self._read(self._connection.sql(query), query, topics, named)
            named = topics_named(query, topics)
            for topic in named:
                self._topics.register(topic)
            self._topics.register_latest(query, named)
            if named and is_description(query):
                query = with_subjects(query, self._cluster.topic(named[0]))
            if kind == "TRANSACTION":
                self._in_transaction = _END.match(query) is None
            bounded = self._run_bounded(query, named) if kind == "SELECT" and not self._in_transaction else None
            if bounded is not None:
                return bounded
            return self._read(self._connection.sql(query), query, topics, named)
        except self._duckdb.Error as e:
            traceback.clear_frames(e.__traceback__)  # DuckDB releases the GIL when it drops a relation
            raise self._translate(e, query, topics, named) from e

    def _read(
        self,
        relation: Any,
        query: str,
        topics: Collection[str],
        named: Sequence[str],
        end: Callable[[], None] | None = None,
    ) -> QueryResult:
        reader = with_exact_values(relation).to_arrow_reader(RESULT_BATCH_ROWS)
        return QueryResult(reader, lambda e: self._translate(e, query, topics, named), self._control, end)

    def _run_bounded(self, query: str, named: Sequence[str]) -> QueryResult | None:
        """Run a query for the newest rows on the ends of its topics. Returns None for any other query, and if the
        attempt fails.

        The query gets a transaction of its own, so this method must not be called inside a transaction.
        """
        topics = {topic.lower(): topic for topic in named}
        rewriter = self._rewriter
        try:
            bounded = [
                (n, self._topics.part(topics[n.topic.lower()]))
                for n in rewriter.find(query)
                if n.topic.lower() in topics and not self._topics.snapshot(topics[n.topic.lower()]).reaches_back
            ]
            if not bounded:
                return None
        except (self._duckdb.Error, RecursionError):  # DuckDB cannot serialize the query
            return None
        self._connection.begin()
        try:
            relation = self._connection.sql(rewriter.rewrite(query, bounded))
            return self._read(relation, query, topics, named, self._end_bounded)
        except (self._duckdb.Error, RecursionError) as e:
            self._end_bounded()
            if self._control.failure is not None or self._control.cancelled.is_set():
                raise
            _log.debug("not bounded: %s", e)
            return None
        except BaseException:
            self._end_bounded()
            raise

    def _end_bounded(self) -> None:
        self._connection.rollback()  # the transaction has written nothing
        self._rewriter.end()

    def _moment(self, text: str) -> datetime:
        """Return the value of the SQL function `moment` for a time such as `-1h` or `yesterday`. Raises
        InvalidRequestError."""
        time_ms = parse_time_ms(text, self._now_ms)
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
        except OverflowError as e:
            raise InvalidRequestError(f"time {text!r} lies outside of the years 1 to 9999") from e

    def _syntax_error(self, error: Exception, query: str) -> SparklogError:
        """Return the error to raise for text with a syntax error, with the corrected text if keywords are its cause."""
        partition_counts = self._partition_counts()

        def names() -> set[str]:
            topics = topics_named(query, partition_counts)
            return {column for topic in topics for column in self.columns(topic).names} | set(topics)

        of_keywords = keyword_error(self._connection, query, self._parses, names)
        return of_keywords or explained(type(error).__name__, str(error), query, partition_counts, {})

    def _parses(self, query: str) -> bool:
        try:
            self._connection.extract_statements(query)
        except self._duckdb.Error:
            return False
        return True

    def _translate(self, error: Exception, query: str, topics: Collection[str], named: Sequence[str]) -> BaseException:
        """Return the error to raise for an error of DuckDB: the error of a scan if one has failed."""
        control = self._control
        if control.failure is not None:
            return control.failure
        if control.cancelled.is_set() or str(error).startswith("INTERRUPT Error"):  # from DuckDB, or through Arrow
            return QueryCancelledError("cancelled")
        columns = self._topics.columns_of(named)
        return explained(type(error).__name__, str(error), query, topics, columns, self._advice)


def _close_at_exit() -> None:
    """End all statements and close the sessions, because neither a daemon thread nor DuckDB's own threads must call
    Python after the end of the interpreter."""

    def interrupt() -> None:
        for session in list(_open_sessions):
            session.interrupt()

    interrupt()
    CALLS.end(interrupt, EXIT_S)
    _kept_sessions.extend(_open_sessions)
    for session in _kept_sessions:
        with contextlib.suppress(Exception):  # errors of the cancelled statement
            session.close()


def _drop_after_fork() -> None:
    """Keep the parent's sessions alive in a forked child: to close a connection, DuckDB would wait forever for threads
    that the child lacks."""
    for session in list(_open_sessions):
        session._closed = "this SqlSession belongs to the parent process: create one in the child"
        if session._result is not None:
            session._result.is_parents = True
        _kept_sessions.append(session)
    _open_sessions.clear()
    CALLS.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)
