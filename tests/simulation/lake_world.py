"""Lives of lake workers beside a model of the table with Delta's conflict rules.

The rounds are the real ones (`LakeSync`); the log and the table are models. Each worker is a thread that runs only
when the world lets it take its next step, so that a seed decides the whole life. Between two steps anything can happen:
records and transactions of several producers, another worker's commit, changes by users, a crash of a worker, a stop of
a worker for a long time, retention of the log, a lost answer.

    python -m tests.simulation.lake_world SEED       lives one life again
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import Struct, field

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import LakePausedError, LakeUnavailableError
from sparklog.lake.columns import POSITION_FIELDS
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_reader import TableFile
from sparklog.lake.parquet_files import DataFile
from sparklog.lake.rules import PartitionEnds, Span, TableState
from sparklog.lake.settings import LakeSettings
from sparklog.lake.worker.sync import LakeSync
from sparklog.log.producers.whole_transactions import Commit, atomic_ends

PARTITIONS = 3
WORKERS = 2
STEPS = 160
STOP_STEPS = 60
"""Steps of the world during which a stopped worker sleeps: the other one runs many rounds meanwhile."""
PLAIN = -1
TOPIC_SCHEMA = pa.schema([("transaction", pa.int64())])
TABLE_SCHEMA = pa.schema([*TOPIC_SCHEMA, *POSITION_FIELDS])
LIVES_GATE, LIVES_TORTURE = 30, 5_000

Row = tuple[int, int, int]
"""Partition, offset, transaction."""


class CrashError(BaseException):
    """Ends a worker at a step, as a kill does."""


class ViolationError(AssertionError):
    """A broken promise."""


class Version(NamedTuple):
    """A version of the table."""

    files: Mapping[str, tuple[Row, ...]]
    transactions: Mapping[int, int]
    restored_to: int | None
    """Version that a RESTORE behind the last worker's commit has brought back."""
    columns: int = 0
    doubled_by: int | None = None
    """Version of a compaction behind the last worker's commit that has added rows."""


class ModelLog(Struct):
    """The log of all partitions: rows with their transactions, and markers."""

    rows: list[list[int | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """Transaction of each offset; None: a marker."""
    outcome: dict[int, bool] = field(default_factory=dict)
    """True for a committed transaction, False for an aborted one; open ones are absent."""
    start: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def stable(self, partition: int) -> int:
        for offset, transaction in enumerate(self.rows[partition]):
            if transaction is not None and transaction != PLAIN and transaction not in self.outcome:
                return offset
        return len(self.rows[partition])

    def committed(self, partition: int, span: Span) -> list[int]:
        return [
            offset
            for offset in range(span.start, span.end)
            if (t := self.rows[partition][offset]) is not None and (t == PLAIN or self.outcome.get(t))
        ]


class World:
    """One life."""

    def __init__(self, seed: int, *, exact_version: bool = True, whole_transactions: bool = True) -> None:
        """`exact_version` False: commits are rebased as delta-rs does by itself. `whole_transactions` False: a cut is
        the last stable offsets. Only tests turn a safeguard off."""
        self.choose = random.Random(seed)
        self.seed = seed
        self.exact_version = exact_version
        self.whole_transactions = whole_transactions
        self.log = ModelLog()
        self.versions = [Version({}, {}, None)]
        self.store: dict[str, tuple[Row, ...]] = {}
        self.paused = ""
        self.deleted: set[Row] = set()
        self.restores = self.choose.random() < 0.5
        self.numbers = 0
        self.open: dict[int, list[int]] = {}
        self.names = 0
        self.workers = [_Worker(self) for _ in range(WORKERS)]
        self.sleeping: _Worker | None = None
        """The worker that is stopped (SIGSTOP), wherever it is in its round."""
        self.wakes_at = 0
        """Step of the world at which it goes on."""
        self.counts: Counter[str] = Counter()

    # -- life

    def run(self) -> Counter[str]:
        """Live. Raises ViolationError."""
        try:
            for step in range(STEPS):
                if step == self.wakes_at:
                    self.sleeping = None
                self._happen(step)
            self._heal()
        except ViolationError as e:
            raise ViolationError(f"seed {self.seed}: {e}") from None
        finally:
            for worker in self.workers:
                worker.end()
        return self.counts

    def _happen(self, step: int) -> None:
        draw = self.choose.random()
        if draw < 0.30:
            self._write()
        elif draw < 0.92:
            awake = [worker for worker in self.workers if worker is not self.sleeping]
            self.choose.choice(awake).advance(crash=self.choose.random() < 0.05)
        elif draw < 0.93:
            if self.sleeping is None:
                self.sleeping, self.wakes_at = self.choose.choice(self.workers), step + STOP_STEPS
                self.counts["stops"] += 1
            self._retain()
        elif draw < 0.97:
            self._user()
        elif self.paused:
            self._operate()

    def _retain(self) -> None:
        """Delete the records that the table has from the log, as retention does. A RESTORE would miss them."""
        if not self.restores:
            offsets = self.versions[-1].transactions
            self.log.start = [max(start, offsets.get(p, 0)) for p, start in enumerate(self.log.start)]

    def _write(self) -> None:
        draw = self.choose.random()
        if draw < 0.3 or len(self.open) < 2:
            if draw < 0.15:
                self.log.rows[self.choose.randrange(PARTITIONS)].append(PLAIN)
            else:
                self.numbers += 1
                self.open[self.numbers] = self.choose.sample(range(PARTITIONS), PARTITIONS)
            return
        number = self.choose.choice(list(self.open))
        if self.open[number]:
            self.log.rows[self.open[number].pop()].append(number)
        else:
            self._end(number, commit=self.choose.random() < 0.8)

    def _end(self, number: int, *, commit: bool) -> None:
        left = self.open.pop(number)
        self.log.outcome[number] = commit and not left
        for partition in set(range(PARTITIONS)) - set(left):
            self.log.rows[partition].append(None)

    def _user(self) -> None:
        newest = self.versions[-1]
        rows = [row for rows in newest.files.values() for row in rows]
        draw = self.choose.random()
        self.counts["users"] += 1
        if draw < 0.4 and rows:
            files = {self.name("user"): tuple(rows)}
            self.versions.append(newest._replace(files=files))
        elif draw < 0.5:
            self.versions.append(newest._replace(columns=newest.columns + 1))
        elif draw < 0.6 and rows and newest.doubled_by is None:
            again = self.choose.sample(rows, self.choose.randint(1, len(rows)))
            doubled = {**newest.files, self.name("stale"): tuple(again)}
            self.versions.append(newest._replace(files=doubled, doubled_by=len(self.versions)))
            self.counts["stale compactions"] += 1
        elif self.restores and len(self.versions) > 1:
            at = self.choose.choice([i for i, v in enumerate(self.versions) if v.doubled_by is None])
            old = self.versions[at]
            self.versions.append(Version(old.files, newest.transactions, at, newest.columns))
            self.counts["restores"] += 1
        elif not self.restores:
            plain = [row for row in rows if row[2] == PLAIN]
            if plain:
                gone = self.choose.choice(plain)
                self.deleted.add(gone)
                files = {n: tuple(r for r in f if r != gone) for n, f in newest.files.items()}
                self.versions.append(newest._replace(files=files))

    def _operate(self) -> None:
        """An operator reads the reason of a pause and decides: `lake resume --from-table`."""
        newest = self.versions[-1]
        if newest.doubled_by is not None:
            at = newest.doubled_by - 1
            newest = Version(self.versions[at].files, newest.transactions, at, newest.columns)
            self.versions.append(newest)
        if newest.restored_to is None:  # a worker that was stopped reports a restore after the operator's answer
            if all(version.restored_to is None for version in self.versions):
                raise ViolationError(f"paused without a reason: {self.paused}")
            self.counts["late pauses"] += 1
        largest = self.largest(newest)
        transactions = {p: max(largest.get(p, -1) + 1, self.log.start[p]) for p in range(PARTITIONS)}
        self.versions.append(newest._replace(transactions=transactions, restored_to=None))
        self.paused = ""

    def _heal(self) -> None:
        for number in list(self.open):
            self._end(number, commit=False)
        for _ in range(400):
            if self.paused:
                self._operate()
            for worker in self.workers:
                worker.advance()
            newest = self.versions[-1]
            if (
                newest.restored_to is None
                and newest.doubled_by is None
                and all(newest.transactions.get(p, 0) == len(self.log.rows[p]) for p in range(PARTITIONS))
            ):
                break
        found = Counter(row for rows in self.versions[-1].files.values() for row in rows)
        whole = {
            (p, offset, transaction)
            for p in range(PARTITIONS)
            for offset in self.log.committed(p, Span(0, len(self.log.rows[p])))
            if (transaction := self.log.rows[p][offset]) is not None
        }
        missing = whole - found.keys() - self.deleted
        foreign = found.keys() - whole
        if missing or foreign or any(n > 1 for n in found.values()):
            raise ViolationError(f"missing {sorted(missing)[:5]}, foreign {sorted(foreign)[:5]}")
        self.counts["rows"] += len(found)
        self.counts["versions"] += len(self.versions)

    # -- the table

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}-{self.names}"

    @staticmethod
    def largest(version: Version) -> dict[int, int]:
        largest: dict[int, int] = {}
        for rows in version.files.values():
            for partition, offset, _ in rows:
                largest[partition] = max(largest.get(partition, -1), offset)
        return largest

    def commit(self, base: int, added: Mapping[str, tuple[Row, ...]], transactions: Mapping[int, int]) -> None:
        """Delta's rules: on the base version always; on a newer one, when commits are rebased, unless an application
        transaction or the columns have changed since."""
        newest = self.versions[-1]
        if base != len(self.versions) - 1:
            before = self.versions[base]
            changed = any(newest.transactions.get(p) != before.transactions.get(p) for p in transactions)
            if self.exact_version or changed or newest.columns != before.columns:
                raise CommitConflictError(f"version {base + 1} exists")
        restored = None  # a worker's commit hides what was before
        version = Version({**newest.files, **added}, {**newest.transactions, **transactions}, restored, newest.columns)
        self._judge(version)
        self.versions.append(version)
        self.counts["commits"] += 1

    def _judge(self, version: Version) -> None:
        rows = [row for rows in version.files.values() for row in rows]
        twice = [row for row, n in Counter(rows).items() if n > 1]
        if twice:
            raise ViolationError(f"rows are there twice: {twice[:5]}")
        if self.restores:  # rows behind the last one of each partition come again, and may be a part until then
            return
        counts = Counter(row[2] for row in rows if row[2] != PLAIN)
        parts = [number for number, count in counts.items() if count != PARTITIONS]
        if parts:
            raise ViolationError(f"a part of transactions {parts[:5]} is visible")


class _Worker:
    """A thread that takes a step when it is told to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._crash = False
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def advance(self, *, crash: bool = False) -> None:
        """Let the worker go on to its next step; `crash` ends what it does there."""
        self._crash = crash
        self._go.release()
        self._done.acquire()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._go.release()
        self._thread.join()

    def step(self) -> None:
        """Wait until the world lets the worker go on. Raises CrashError."""
        self._done.release()
        self._go.acquire()
        if self._ended:
            raise SystemExit
        if self._crash:
            self._crash = False
            self._world.counts["crashes"] += 1
            raise CrashError

    def _live(self) -> None:
        self._go.acquire()
        try:
            while not self._ended:
                rounds = LakeSync(
                    _Log(self._world, self.step),  # type: ignore[arg-type]
                    tables=_Tables(self._world, self.step),  # type: ignore[arg-type]
                    now_ms=lambda: 0,
                    pause_s=lambda _: None,
                )
                try:
                    while True:
                        self._round(rounds)
                except CrashError:
                    continue  # what it knew is lost
        except SystemExit:
            pass
        except BaseException as e:  # noqa: BLE001 - the world's thread raises it
            self._failure = e
        self._done.release()

    def _round(self, rounds: LakeSync) -> None:
        self.step()
        if self._world.paused:
            return
        try:
            rounds.round(INFO, SETTINGS, lambda _: None)
        except LakePausedError as e:
            self._world.paused = str(e)
        except LakeUnavailableError:
            pass


INFO = TopicInfo("trips", "id", "typed", PARTITIONS, 0, {0: TOPIC_SCHEMA}, (), None, {}, 0, ())
SETTINGS = LakeSettings.of({"lake.location": "/model", "lake.table.id": "table"})


class _Log:
    def __init__(self, world: World, step: Callable[[], None]) -> None:
        self._world = world
        self._step = step

    def ends_and_topic(self, info: TopicInfo) -> tuple[dict[int, PartitionEnds], TopicInfo]:
        return self.ends(info), INFO

    def ends(self, info: TopicInfo) -> dict[int, PartitionEnds]:
        self._step()
        log = self._world.log
        stable = {p: log.stable(p) for p in range(PARTITIONS)}
        if self._world.whole_transactions:
            stable = atomic_ends(stable, {p: self._commits(p) for p in stable}).ends
        self._step()
        return {p: PartitionEnds(log.start[p], stable[p], len(log.rows[p])) for p in stable}

    def _commits(self, partition: int) -> list[Commit]:
        log = self._world.log
        return [
            Commit((number, 0), offset, offset, 0)
            for offset, number in enumerate(log.rows[partition])
            if number is not None and number != PLAIN and log.outcome.get(number)
        ]

    def read(
        self, info: TopicInfo, partition: int, span: Span, columns: Any, schema: pa.Schema, write: Callable[[Any], None]
    ) -> bool:
        self._step()
        if span.start < self._world.log.start[partition]:
            raise LakeUnavailableError("retention has deleted offsets of the span")
        rows = self._world.log.rows[partition]
        write([(partition, o, rows[o]) for o in self._world.log.committed(partition, span)])
        return any(t != PLAIN for t in rows[span.start : span.end])


class _Tables:
    def __init__(self, world: World, step: Callable[[], None]) -> None:
        self._world = world
        self._step = step

    def committer(self, table: _Table) -> _Table:
        return table

    def open(self, location: str, version: int | None = None) -> _Table:
        self._step()
        return _Table(self._world, self._step, len(self._world.versions) - 1 if version is None else version)


class _Table:
    topic_id, table_id, mode, partition_columns, location = "id", "table", "append", (), "/model"

    def __init__(self, world: World, step: Callable[[], None], version: int) -> None:
        self._world = world
        self._step = step
        self.version = version

    @property
    def schema(self) -> pa.Schema:
        return TABLE_SCHEMA

    def check_features(self, *, rewrites: str) -> None:
        pass

    def files(self) -> list[TableFile]:
        files = self._world.versions[self.version].files
        return [TableFile(name, 1, len(rows), None, None, None, {}) for name, rows in files.items()]

    def state(self, topic_id: str, partitions: int, *, checked_version: int | None, file_offsets: object) -> TableState:
        version = self._world.versions[self.version]
        return TableState(
            self.version, "table", "id", dict(version.transactions), World.largest(version), version.restored_to,
            version.doubled_by,
        )  # fmt: skip

    def can_undo_compaction(self) -> bool:
        return True

    def undo_compaction(self) -> None:
        self._step()
        if self.version != len(self._world.versions) - 1:
            raise CommitConflictError(f"version {self.version + 1} exists")
        before = self._world.versions[self.version - 1]
        self._world.versions.append(self._world.versions[-1]._replace(files=before.files, doubled_by=None))
        self._world.counts["undone"] += 1

    def writer(self, schema: pa.Schema, file_bytes: int, name: str) -> _Writer:
        return _Writer(self._world, name)

    def remove_files(self, paths: list[str]) -> None:
        named = {name for version in self._world.versions for name in version.files}
        if named & set(paths):
            raise ViolationError(f"files of the table are removed: {named & set(paths)}")

    def commit(
        self, added: list[DataFile], removed: list[Any], next_offsets: Mapping[int, int], *, information: Any
    ) -> None:
        self._step()
        files = {f.path: self._world.store[f.path] for f in added}
        self._world.commit(self.version, files, next_offsets)
        if self._world.choose.random() < 0.1:
            self._world.counts["lost answers"] += 1
            raise CommitConflictError("the answer is lost")


class _Writer:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = world.name(name)
        self._rows: list[Row] = []

    def write(self, rows: list[Row]) -> None:
        self._rows += rows

    def close(self) -> list[DataFile]:
        self._world.store[self._name] = tuple(self._rows)
        return [DataFile(self._name, 1, len(self._rows), {}, "{}")] if self._rows else []

    def abandon(self) -> list[str]:
        return [self._name]


if __name__ == "__main__":
    print(World(int(sys.argv[1])).run())
