"""The `Coordination` of a cluster of one broker: a tree of nodes in a SQLite file in the broker's data directory.

| table | content |
|---|---|
| `nodes(path, data, version, czxid, mzxid)` | the nodes that outlive a session, without the root |
| `store(name, value)` | `session`: number of the last session |

Reads use a copy of all nodes in memory. A write is one SQLite transaction, fsynced before the call returns its result
and before another call can read the change. Ephemeral nodes are in memory only: they end with the process.

The session begins when the file is opened, and ends with `close`; its number is one above the last one in the file.
Connections never break. The upper bits of a zxid are the number of the session, its lower 32 bits a counter. So every
zxid of a new session is above all zxids of earlier sessions, also above those that a killed process did not store.

Calls wait in a queue, which a thread of the environment processes. A thread that waits for a call's result processes
the queue itself. Waiting therefore works on every thread, before there is an event loop, and in a simulation.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparklog.environment import Environment
from sparklog.errors import SparklogError, StorageError, StorageFullError, StorageUnavailableError
from sparklog.metadata.coordination import (
    ANY_VERSION,
    CoordinationError,
    Create,
    Delete,
    Node,
    Op,
    OpResult,
    SessionExpiredError,
    SessionState,
    SetData,
    StoreWriteError,
    Watch,
)
from sparklog.metadata.znode_tree import Change, Znodes

METADATA_FILE = "metadata.db"
FORMAT = 2
ZXIDS_PER_SESSION = 1 << 32
NEVER_MS = 1 << 40
_SHORTAGES = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM})
"""SQLite's codes for a lack of file descriptors or of memory. After the file was opened once, they are temporary."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
TABLES = (
    "CREATE TABLE IF NOT EXISTS store (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS nodes (path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, "
    "czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL) STRICT",
)


def way_out(path: Path) -> str:
    """Return the remedy for a lost or damaged file, for the end of an error message."""
    return f"restore it from a copy, or make it again from the partitions: sparklog log rebuild-metadata --data-dir {path.parent}"


class _Call(Future[Any]):
    """A call in the queue. A thread that waits for the call's result processes the queue."""

    def __init__(self, work: Callable[[], None], perform: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work
        self.perform = perform

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._work()
        return super().result(timeout)


class LocalCoordination:
    """`Coordination` on a SQLite file. Thread-safe."""

    def __init__(self, path: Path, environment: Environment, *, create: bool = True, above: int = 0) -> None:
        """Opens the file and begins a session. `create`: True to create the file if it is missing. `above`: a lower
        bound: the new session's number is larger, also if the file is an older copy with a lower number. Raises
        StorageError: The file is missing, damaged, or of another format; StorageFullError."""
        self._path = path
        self._lock = threading.RLock()
        """Held while a thread processes the queue."""
        self._queue: deque[_Call] = deque()
        self._working = 0
        """Number of calls that run now. It is above 1 while a callback of one call waits for another call."""
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._is_closed = False
        if not create and not environment.files.exists(path):
            raise StorageError(f"the metadata store {path} is missing; {way_out(path)}")
        with self._storage_errors("open"):
            self._db = environment.databases.open(path)
        try:
            with self._storage_errors("open"):
                self._session = self._begin_session(above)
                rows = self._db.execute("SELECT path, data, version, czxid, mzxid FROM nodes ORDER BY path")
                self._tree = Znodes(
                    (Node(path, data, version, czxid, mzxid, 0) for path, data, version, czxid, mzxid in rows),
                    self._session * ZXIDS_PER_SESSION,
                )
        except BaseException:
            self._db.close()
            raise
        self._thread = environment.executors.pool("metadata", 1)

    def _begin_session(self, above: int) -> int:
        self._db.execute("PRAGMA synchronous = FULL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        is_new = version == 0
        if version != FORMAT and not is_new:
            raise StorageError(
                f"{self._path} has format {version}, this version reads {FORMAT}; "
                f"use {'a newer' if version > FORMAT else 'an earlier'} sparklog"
            )
        with self._transaction():
            for statement in TABLES:
                self._db.execute(statement)
            if is_new:
                self._db.execute(f"PRAGMA user_version = {FORMAT}")
            row = self._db.execute("SELECT value FROM store WHERE name = 'session'").fetchone()
            session = max(int(row[0] if row else 0), above) + 1
            self._db.execute("REPLACE INTO store VALUES ('session', ?)", (str(session),))
        return session

    # --- the protocol

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def session_timeout_ms(self) -> int:
        return NEVER_MS

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Future[Node]:
        return self._write([Create(path, data, ephemeral)], lambda _: self._tree.read(path))

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Node]:
        return self._write([SetData(path, data, version)], lambda _: self._tree.read(path))

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        return self._write([Delete(path, version)], lambda _: None)

    def transaction(self, ops: Sequence[Op]) -> Future[list[OpResult]]:
        return self._ask(lambda: self._commit(ops, in_transaction=True))

    def get(self, path: str, watch: Watch | None = None) -> Future[Node | None]:
        def read() -> Node | None:
            if watch is not None:
                self._data_watches.setdefault(path, {})[watch] = None
            return self._tree.find(path)

        return self._ask(read, is_read=True)

    def children(self, path: str, watch: Watch | None = None) -> Future[list[str]]:
        def read() -> list[str]:
            names = self._tree.children(path)
            if watch is not None:
                self._child_watches.setdefault(path, {})[watch] = None
            return names

        return self._ask(read, is_read=True)

    def stored(self) -> list[Node]:
        """Return all nodes that outlive the session, each after its parent."""
        with self._lock:
            return [node for node in self._tree.nodes() if not node.owner]

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Do nothing: the session's state never changes."""

    def close(self) -> None:
        """Answer the queued calls, then end the session. Blocks. A second `close` does nothing."""
        self._work()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._db.close()
        self._thread.shutdown()

    # --- calls

    def _write(self, ops: Sequence[Op], answer: Callable[[list[OpResult]], Any]) -> Future[Any]:
        return self._ask(lambda: answer(self._commit(ops, in_transaction=False)))

    def _ask(self, perform: Callable[[], Any], *, is_read: bool = False) -> Future[Any]:
        call = _Call(self._work, perform)
        if self._is_closed or (is_read and not self._queue and not self._working):
            with self._lock:
                self._answer(call)
            return call
        self._queue.append(call)
        self._thread.submit(self._work)
        return call

    def _work(self) -> None:
        with self._lock:
            while self._queue:
                self._answer(self._queue.popleft())

    def _answer(self, call: _Call) -> None:
        self._working += 1
        try:
            if self._is_closed:
                raise SessionExpiredError("the store is closed")
            result = call.perform()
        except BaseException as e:  # noqa: BLE001 - the future raises it in the waiting thread
            call.set_exception(e)
        else:
            call.set_result(result)
        finally:
            self._working -= 1

    def _commit(self, ops: Sequence[Op], *, in_transaction: bool) -> list[OpResult]:
        tree = self._tree.copy()
        results, changes = tree.commit(ops, self._session, in_transaction=in_transaction)
        paths = dict.fromkeys(path for path, is_about_children in changes if not is_about_children)
        written = [node for path in paths if (node := tree.find(path)) is not None and not node.owner]
        gone = [(path,) for path in paths if tree.find(path) is None and self._is_stored(path)]
        if written or gone:
            try:
                with self._storage_errors("write"), self._transaction():
                    self._db.executemany("DELETE FROM nodes WHERE path = ?", gone)
                    self._db.executemany("REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", [node[:5] for node in written])
            except SparklogError as e:
                raise StoreWriteError(e) from e
        self._tree = tree
        self._call_watches(changes)
        return results

    def _is_stored(self, path: str) -> bool:
        node = self._tree.find(path)
        return node is not None and not node.owner

    def _call_watches(self, changes: Sequence[Change]) -> None:
        for path, is_about_children in changes:
            watches = self._child_watches if is_about_children else self._data_watches
            for watch in watches.pop(path, {}):
                watch()

    # --- SQLite

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _storage_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            code = getattr(e, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL:
                raise StorageFullError(f"the disk is full: cannot {action} {self._path}; free space there") from e
            if action != "open" and code in _SHORTAGES:
                raise StorageUnavailableError(f"cannot {action} the metadata store {self._path} just now: {e}") from e
            if code in _DAMAGE:
                raise StorageError(f"the metadata store {self._path} is damaged: {e}; {way_out(self._path)}") from e
            raise StorageError(f"cannot {action} the metadata store {self._path}: {e}") from e
        except (CoordinationError, KeyError, ValueError) as e:
            raise StorageError(f"the metadata store {self._path} is damaged: {e}; {way_out(self._path)}") from e
