"""The metadata store of a single broker: one SQLite file, every change fsynced before it is acknowledged."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from sparklog.environment import Environment, real_environment
from sparklog.environment.files import RealFiles
from sparklog.errors import (
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.schema import KIND_TYPED
from sparklog.format.schema_evolution import SchemaChange
from sparklog.metadata.rebuild import Rebuilt
from sparklog.metadata.store import (
    ENVELOPE_SCHEMA_ID,
    Topic,
    TopicSpec,
    Unfinished,
    altered_schema,
    altered_topic,
    grown_topic,
    new_topic,
)
from sparklog.security.records import RecordChanges, RecordId, check_changes, settled

METADATA_FILE = "metadata.db"
_FORMAT = 1
_SHORTAGES = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM})
"""Of descriptors (it was open before) or memory."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TABLES = """
CREATE TABLE IF NOT EXISTS store (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS topics (
    name TEXT PRIMARY KEY,
    topic_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    key_columns TEXT NOT NULL,      -- JSON list
    timestamp_column TEXT,
    configs TEXT NOT NULL,          -- JSON object
    created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS schemas (
    topic_id TEXT NOT NULL REFERENCES topics (topic_id) ON DELETE CASCADE,
    schema_id INTEGER NOT NULL,
    arrow_schema BLOB NOT NULL,     -- Arrow IPC schema message
    PRIMARY KEY (topic_id, schema_id)
) STRICT;
CREATE TABLE IF NOT EXISTS topic_owners (
    topic_id TEXT PRIMARY KEY REFERENCES topics (topic_id) ON DELETE CASCADE,
    owner TEXT NOT NULL             -- the user who made the topic, if that is known
) STRICT;
CREATE TABLE IF NOT EXISTS topic_requests (
    topic_id TEXT PRIMARY KEY REFERENCES topics (topic_id) ON DELETE CASCADE,
    request_id TEXT NOT NULL        -- of the request that the topic was made for
) STRICT;
CREATE TABLE IF NOT EXISTS security_records (
    kind TEXT NOT NULL,             -- sparklog.security.records.RecordKind
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT;
CREATE TABLE IF NOT EXISTS unfinished_topics (
    topic_id TEXT PRIMARY KEY,
    state TEXT NOT NULL             -- making, deleting: not all of its directories are there, or gone, for sure
) STRICT;
"""


def way_out(path: Path) -> str:
    """What to do when the file is lost."""
    return f"restore it from a copy, or make it anew from the partitions: sparklog log rebuild-metadata --data-dir {path.parent}"


class SqliteStore:
    """Topics in a SQLite file; all of them are also in memory, so that reading them costs nothing."""

    def __init__(self, path: Path, environment: Environment | None = None, *, create: bool = True) -> None:
        """Opens the file, or with `create` makes it if there is none. Raises StorageError, StorageFullError."""
        self._path = path
        self._environment = environment if environment is not None else real_environment()
        self._lock = threading.Lock()
        if not create and not self._environment.files.exists(path):
            raise StorageError(f"the metadata store {path} is gone; {way_out(path)}")
        with self._storage_errors("open"):
            self._db = self._environment.databases.open(path)
        try:
            self._cluster_id = self._prepare()
            self._topics = self._load()
            self._next_schema_id = self._load_next_schema_id()
            self._security_records = self._load_security_records()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> str:
        with self._storage_errors("open"):
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise StorageError(
                    f"{self._path} has format {version}, this version reads {_FORMAT}; use a newer sparklog"
                )
            with self._transaction():
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_FORMAT}")
                self._db.execute(
                    "INSERT OR IGNORE INTO store VALUES ('cluster_id', ?)", (self._environment.randomness.new_id(),)
                )
            (cluster_id,) = self._db.execute("SELECT value FROM store WHERE name = 'cluster_id'").fetchone()
        return str(cluster_id)

    def _load(self) -> dict[str, Topic]:
        with self._storage_errors("read"):
            schemas: dict[str, dict[int, pa.Schema]] = {}
            for topic_id, schema_id, message in self._db.execute(
                "SELECT topic_id, schema_id, arrow_schema FROM schemas ORDER BY topic_id, schema_id"
            ):
                schemas.setdefault(topic_id, {})[schema_id] = pa.ipc.read_schema(pa.py_buffer(message))
            topics = {}
            for (
                name,
                topic_id,
                kind,
                partitions,
                keys,
                timestamp_column,
                configs,
                created_ms,
                owner,
                request_id,
            ) in self._db.execute(
                "SELECT name, topic_id, kind, partitions, key_columns, timestamp_column, configs, created_ms, "
                "coalesce(owner, ''), coalesce(request_id, '') FROM topics LEFT JOIN topic_owners USING (topic_id) "
                "LEFT JOIN topic_requests USING (topic_id) ORDER BY name"
            ):
                topics[name] = Topic(
                    name=name,
                    topic_id=topic_id,
                    kind=kind,
                    partitions=partitions,
                    schemas=MappingProxyType(schemas[topic_id]),
                    key_columns=tuple(json.loads(keys)),
                    timestamp_column=timestamp_column,
                    configs=MappingProxyType(json.loads(configs)),
                    created_ms=created_ms,
                    owner=owner,
                    request_id=request_id,
                )
        return topics

    def _load_next_schema_id(self) -> int:
        with self._storage_errors("read"):
            row = self._db.execute("SELECT value FROM store WHERE name = 'next_schema_id'").fetchone()
            return int(row[0]) if row else ENVELOPE_SCHEMA_ID + 1

    def _load_security_records(self) -> dict[RecordId, bytes]:
        with self._storage_errors("read"):
            rows = self._db.execute("SELECT kind, key, value FROM security_records").fetchall()
            return {RecordId(kind, key): value for kind, key, value in rows}

    def cluster_id(self) -> str:
        return self._cluster_id

    def create_topic(self, spec: TopicSpec) -> Topic:
        with self._lock:
            topic = new_topic(spec, self._next_schema_id, self._environment)
            if topic.name in self._topics:
                raise TopicAlreadyExistsError(f"topic {topic.name!r} exists already; delete it or choose another name")
            with self._storage_errors("write"), self._transaction():
                self._insert(topic)
                if topic.kind == KIND_TYPED:
                    self._take_schema_id()
                self._mark_unfinished(topic.topic_id, Unfinished.MAKING)
            self._next_schema_id += topic.kind == KIND_TYPED
            self._topics[topic.name] = topic
        return topic

    def _insert(self, topic: Topic) -> None:
        self._db.execute(
            "INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                topic.name,
                topic.topic_id,
                topic.kind,
                topic.partitions,
                json.dumps(topic.key_columns),
                topic.timestamp_column,
                json.dumps(dict(topic.configs)),
                topic.created_ms,
            ),
        )
        if topic.owner:
            self._db.execute("INSERT INTO topic_owners VALUES (?, ?)", (topic.topic_id, topic.owner))
        if topic.request_id:
            self._db.execute("INSERT INTO topic_requests VALUES (?, ?)", (topic.topic_id, topic.request_id))
        for schema_id, schema in topic.schemas.items():
            message = schema.serialize().to_pybytes()
            self._db.execute("INSERT INTO schemas VALUES (?, ?, ?)", (topic.topic_id, schema_id, message))

    def fill(self, content: Rebuilt) -> None:
        """Writes into a new store what the partitions' directories say. Raises StorageError, StorageFullError."""
        numbers = {"next_schema_id": content.next_schema_id, "next_producer_id": content.next_producer_id}
        with self._lock, self._storage_errors("write"), self._transaction():
            self._db.execute("REPLACE INTO store VALUES ('cluster_id', ?)", (content.cluster_id,))
            for name, number in numbers.items():
                self._db.execute("REPLACE INTO store VALUES (?, ?)", (name, str(number)))
            for topic in content.topics:
                self._insert(topic)
            self._db.executemany(
                "REPLACE INTO security_records VALUES (?, ?, ?)",
                [(*name, value) for name, value in content.security_records.items()],
            )

    def _take_schema_id(self) -> None:
        self._db.execute("REPLACE INTO store VALUES ('next_schema_id', ?)", (str(self._next_schema_id + 1),))

    def _mark_unfinished(self, topic_id: str, state: Unfinished) -> None:
        self._db.execute("REPLACE INTO unfinished_topics VALUES (?, ?)", (topic_id, state.value))

    def unfinished_topics(self) -> dict[str, Unfinished]:
        with self._lock, self._storage_errors("read"):
            found = self._db.execute("SELECT topic_id, state FROM unfinished_topics").fetchall()
            return {topic_id: Unfinished(state) for topic_id, state in found}

    def finish_topics(self, topic_ids: Iterable[str]) -> None:
        with self._lock, self._storage_errors("write"), self._transaction():
            self._db.executemany("DELETE FROM unfinished_topics WHERE topic_id = ?", [(i,) for i in topic_ids])

    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        with self._lock:
            topic = self._topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
            altered = altered_topic(topic, configs)
            with self._storage_errors("write"), self._transaction():
                self._db.execute(
                    "UPDATE topics SET configs = ? WHERE topic_id = ?",
                    (json.dumps(dict(altered.configs)), topic.topic_id),
                )
            self._topics[name] = altered
        return altered

    def add_partitions(self, name: str, total: int) -> Topic:
        with self._lock:
            topic = self._topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
            grown = grown_topic(topic, total)
            with self._storage_errors("write"), self._transaction():
                self._db.execute("UPDATE topics SET partitions = ? WHERE topic_id = ?", (total, topic.topic_id))
            self._topics[name] = grown
        return grown

    def delete_topic(self, name: str) -> Topic:
        with self._lock:
            topic = self._topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
            with self._storage_errors("write"), self._transaction():
                self._db.execute("DELETE FROM topics WHERE name = ?", (name,))
                self._mark_unfinished(topic.topic_id, Unfinished.DELETING)
            del self._topics[name]
        return topic

    def alter_schema(self, name: str, change: SchemaChange) -> Topic:
        with self._lock:
            topic = self._topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
            altered = altered_schema(topic, change, self._next_schema_id)
            if altered is not topic:
                message = altered.schemas[altered.schema_id].serialize().to_pybytes()
                with self._storage_errors("write"), self._transaction():
                    self._db.execute(
                        "INSERT INTO schemas VALUES (?, ?, ?)", (topic.topic_id, altered.schema_id, message)
                    )
                    self._take_schema_id()
                self._next_schema_id += 1
                self._topics[name] = altered
        return altered

    @property
    def is_shared(self) -> bool:
        return False

    def take_producer_ids(self, count: int, at_least: int = 0) -> int:
        with self._lock, self._storage_errors("write"), self._transaction():
            first = max(self._producer_ids_end(), at_least)
            self._db.execute("REPLACE INTO store VALUES ('next_producer_id', ?)", (str(first + count),))
        return first

    def producer_ids_end(self) -> int:
        with self._lock, self._storage_errors("read"):
            return self._producer_ids_end()

    def _producer_ids_end(self) -> int:
        row = self._db.execute("SELECT value FROM store WHERE name = 'next_producer_id'").fetchone()
        return int(row[0]) if row else 0

    def security_records(self) -> dict[RecordId, bytes]:
        with self._lock:
            return dict(self._security_records)

    def change_security_records(self, changes: RecordChanges) -> None:
        with self._lock:
            changes = settled(self._security_records, changes)
            check_changes(self._security_records, changes)
            gone = [name for name, value in changes.items() if value is None]
            set_to = {name: value for name, value in changes.items() if value is not None}
            with self._storage_errors("write"), self._transaction():
                self._db.executemany("DELETE FROM security_records WHERE kind = ? AND key = ?", gone)
                self._db.executemany(
                    "REPLACE INTO security_records VALUES (?, ?, ?)", [(*name, value) for name, value in set_to.items()]
                )
            self._security_records = {n: v for n, v in self._security_records.items() if n not in changes} | set_to

    def topics(self) -> dict[str, Topic]:
        with self._lock:
            return dict(self._topics)

    def close(self) -> None:
        with self._lock:
            self._db.close()

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
    def _storage_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            if getattr(e, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise StorageFullError(f"the disk is full: cannot {what} {self._path}; free space there") from e
            if what != "open" and getattr(e, "sqlite_errorcode", None) in _SHORTAGES:
                raise StorageUnavailableError(f"cannot {what} the metadata store {self._path} just now: {e}") from e
            if getattr(e, "sqlite_errorcode", None) in _DAMAGE:
                raise StorageError(f"the metadata store {self._path} is damaged: {e}; {way_out(self._path)}") from e
            raise StorageError(f"cannot {what} the metadata store {self._path}: {e}") from e
        except (KeyError, ValueError, pa.ArrowException) as e:
            raise StorageError(f"the metadata store {self._path} is damaged: {e}; {way_out(self._path)}") from e


def problem_with(path: Path, cluster_id: str) -> str | None:
    """Why the store at `path` cannot be used for the log directories of `cluster_id`; None: it can. Raises nothing."""
    try:
        store = SqliteStore(path, create=False)
    except StorageError as e:
        return str(e)
    try:
        if store.cluster_id() != cluster_id:
            return f"{path} is of another cluster than the log directories: a new one, made after the old was lost"
    finally:
        store.close()
    return None


def read_security_records(path: Path) -> dict[RecordId, bytes] | None:
    """All of a store's, also if other parts of it are damaged; None: not all of them can be read. Changes nothing."""
    if not path.exists():
        return None
    try:
        with closing(real_environment().databases.open(path)) as database:
            if database.execute("PRAGMA quick_check(security_records)").fetchone() != ("ok",):
                return None
            rows = database.execute("SELECT kind, key, value FROM security_records").fetchall()
    except (sqlite3.Error, StorageError):
        return None
    return {RecordId(str(kind), str(key)): bytes(value) for kind, key, value in rows}


def write_store(path: Path, content: Rebuilt, *, aside: str) -> Path | None:
    """Writes a new store with `content` to `path`; what is there is kept with the ending `aside`. Returns where. Raises
    StorageError, StorageFullError."""
    new = path.with_name(path.name + ".new")
    files = RealFiles()
    for leftover in (new, new.with_name(new.name + "-journal")):
        files.remove(leftover)
    store = SqliteStore(new)
    try:
        store.fill(content)
    finally:
        store.close()
    kept = None
    for ending in ("", "-journal", "-wal", "-shm"):  # a journal beside it would be played into the new one
        old = path.with_name(path.name + ending)
        if old.exists():
            kept = kept or path.with_name(f"{path.name}.{aside}")
            files.rename(old, path.with_name(f"{path.name}.{aside}{ending}"))
    files.rename(new, path)
    files.sync_directory(path.parent)
    return kept
