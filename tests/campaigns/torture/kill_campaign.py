"""kill -9 of a real broker again and again, under load; after every restart all of its logs are read and compared.

    python -m tests.campaigns.torture.kill_campaign [--kills 200] [--seed 1]        prints a line per ten kills

Producers have several requests each in progress (acks=all), to topics that are only kept, shortened by retention, or
compacted. After a seeded number of acknowledgements the process is killed, sometimes a second time while it starts.
Invariants after every restart:

- Every acknowledged record is at its acknowledged offset, unless its log begins behind it by now, or compaction was
  allowed to remove it.
- A record exists at most as often as it was sent, so once if it was acknowledged at the first attempt. A producer
  without an answer sends the batch again, as a client without sequence numbers has to.
- There is no record that was not sent, and in a log that is only kept no record changes that was read before the kill.
- Retention keeps at least retention.bytes. If compaction has removed a record, no older one of its key is left, and a
  newer one exists unless the last was a tombstone.

A record is identified by its timestamp in microseconds, which is unique.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import SparklogError
from sparklog.format.batch import encode_batch, iterate_batches
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.types import TopicPartition
from tests.campaigns.torture.frame import run_from_command_line
from tests.support.raw_client import RawClient
from tests.system.broker_process import BrokerProcess, create_topic, end_offset, fetch

SETTINGS = """log.retention.check.interval.ms = 20
log.flush.interval.ms = 100
log.cleaner.backoff.ms = 20
"""
RETAINED_BYTES = 200_000
COMMON: dict[str, Any] = {"retention.ms": -1, "file.delete.delay.ms": 0}
TOPICS: dict[str, dict[str, Any]] = {
    "all": COMMON | {"segment.bytes": 100_000},
    "short": COMMON | {"segment.bytes": 20_000, "retention.bytes": RETAINED_BYTES},
    "state": COMMON
    | {
        "segment.bytes": 30_000,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.01,
        "delete.retention.ms": 0,
    },
}
PARTITIONS = [
    TopicPartition("all", 0),
    TopicPartition("all", 1),
    TopicPartition("short", 0),
    TopicPartition("short", 1),
]
PARTITIONS += [TopicPartition("state", 0), TopicPartition("state", 1)]
PRODUCERS = 3
IN_FLIGHT = 4
KEYS_PER_PRODUCER = 15
FETCH_BYTES = 4 << 20


class Batch(NamedTuple):
    """A batch of a producer; `ids` are one higher from row to row."""

    tp: TopicPartition
    ids: range
    keys: list[bytes]
    dead: list[bool]
    """Which rows are tombstones."""
    data: bytes


def make_batch(rng: random.Random, tp: TopicPartition, producer: int, first_id: int) -> Batch:
    count = rng.randint(1, 12)
    ids = range(first_id, first_id + count)
    keys = [b"%d-%d" % (producer, rng.randrange(KEYS_PER_PRODUCER)) for _ in ids]
    dead = [tp.topic == "state" and rng.random() < 0.2 for _ in ids]
    size = rng.choice((20, 200, 200, 1500))
    columns = [
        pa.array(keys, pa.binary()),
        pa.array([None if d else b"%d" % i * (size // 8) for i, d in zip(ids, dead, strict=True)], pa.binary()),
        pa.nulls(count, ENVELOPE_SCHEMA.field("headers").type),
        pa.array(ids, ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    rows = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
    times: dict[str, Any] = {"min_timestamp_ms": ids[0] // 1000, "max_timestamp_ms": ids[-1] // 1000}
    return Batch(tp, ids, keys, dead, bytes(encode_batch(rows, schema_id=1, **times)))


class Rows(NamedTuple):
    """All records of a partition, as a reader gets them."""

    log_start: int
    log_end: int
    size_bytes: int
    offsets: np.ndarray
    ids: np.ndarray
    keys: list[bytes]
    dead: np.ndarray


@dataclass
class Ledger:
    """Required and allowed content of one partition."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Offset → id."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Id → how often it was sent, for those without an answer at the first attempt."""
    last_of_key: dict[bytes, tuple[int, bool]] = field(default_factory=dict)
    """Offset of the last acknowledged record, and whether it is a tombstone."""
    maybe_deleted: set[bytes] = field(default_factory=set)
    """Keys with a tombstone that was sent and not answered."""
    log_start: int = 0
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The ids that were read last time, by offset; for a log that is only kept."""

    def acknowledge(self, batch: Batch, base_offset: int) -> None:
        for i, (key, dead) in enumerate(zip(batch.keys, batch.dead, strict=True)):
            offset = base_offset + i
            assert offset not in self.acknowledged, f"{batch.tp}: offset {offset} was given out twice"
            self.acknowledged[offset] = batch.ids[i]
            if offset >= self.last_of_key.get(key, (-1, False))[0]:
                self.last_of_key[key] = offset, dead

    def check(self, tp: TopicPartition, rows: Rows) -> None:
        """Raises AssertionError."""
        assert rows.log_start >= self.log_start, "the log begins earlier than before"
        assert (np.diff(rows.offsets) > 0).all(), "not in order"
        known = np.fromiter(self.acknowledged, np.int64, len(self.acknowledged))
        assert not len(known) or rows.log_end > known.max(), "the log ends below an acknowledged record"
        expected = np.zeros(rows.log_end, np.int64)
        expected[known] = np.fromiter(self.acknowledged.values(), np.int64, len(known))
        promised = expected[rows.offsets]
        assert np.isin(rows.ids[promised != 0], promised[promised != 0]).all()
        assert (rows.ids == promised)[promised != 0].all(), "another record where an acknowledged one should be"
        self._check_strangers(rows, promised == 0)
        if tp.topic == "state":
            self._check_compacted(rows)
        else:
            assert len(rows.offsets) == rows.log_end - rows.log_start, "offsets are missing"
        if tp.topic == "all":
            assert rows.log_start == 0
            assert (rows.ids[: len(self.seen)] == self.seen).all(), "what was read before the kill has changed"
            self.seen = rows.ids
        if tp.topic == "short":
            assert not rows.log_start or rows.size_bytes >= RETAINED_BYTES, "retention has deleted too much"
        self.log_start = rows.log_start

    def _check_strangers(self, rows: Rows, unpromised: np.ndarray) -> None:
        for i in set(rows.ids[unpromised].tolist()):
            assert i in self.attempts, f"record {i} was never sent, or is there twice"
        ids, counts = np.unique(rows.ids, return_counts=True)
        for i, count in zip(ids[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
            assert count <= self.attempts[i], f"record {i} is there {count} times, sent {self.attempts[i]} times"

    def _check_compacted(self, rows: Rows) -> None:
        found: dict[bytes, list[int]] = {}
        for offset, key in zip(rows.offsets.tolist(), rows.keys, strict=True):
            found.setdefault(key, []).append(offset)
        for key, (offset, dead) in self.last_of_key.items():
            there = found.get(key, [])
            if offset in there:
                continue
            assert not any(o < offset for o in there), f"{key!r}: older than the last acknowledged one, which is gone"
            assert there or dead or key in self.maybe_deleted, f"{key!r}: its last value (offset {offset}) is gone"


class Campaign:
    """See the module. `say` gets a line of progress."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.directory, self.seed, self.say = directory, seed, say
        self.rng = random.Random(seed)
        self.ledgers = {tp: Ledger() for tp in PARTITIONS}
        self.unanswered: list[list[Batch]] = [[] for _ in range(PRODUCERS)]
        self.kills = self.kills_while_starting = self.rounds = self.batches_acknowledged = self.batches_unanswered = 0
        self.bytes_acknowledged = self.records_read = 0
        self._next_id = 1_000_000
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._target = 0
        self._failures: list[BaseException] = []

    def run(self, kills: int) -> None:
        """Raises AssertionError."""
        started = time.monotonic()
        broker = self._start()
        try:
            with broker.connect() as client:
                for topic, configs in TOPICS.items():
                    partitions = sum(tp.topic == topic for tp in PARTITIONS)
                    create_topic(client, topic, partitions, configs=configs)
            while self.kills < kills:
                self._load(broker)
                if self.rng.random() < 0.2:
                    self._kill_while_starting()
                broker = self._start()
                self._verify(broker)
                if self.kills % 10 == 0 or self.kills >= kills:
                    self.say(f"{time.monotonic() - started:5.0f} s: {self}")
        finally:
            broker.stop(signal.SIGKILL)

    def __str__(self) -> str:
        records = sum(len(ledger.acknowledged) for ledger in self.ledgers.values())
        return (
            f"{self.kills} kills ({self.kills_while_starting} while starting), {records:,} records in "
            f"{self.batches_acknowledged:,} batches ({self.bytes_acknowledged / 1e6:.0f} MB) acknowledged, "
            f"{self.batches_unanswered} batches unanswered, {self.records_read:,} records read and compared"
        )

    def _start(self) -> BrokerProcess:
        broker = BrokerProcess(self.directory / "data", settings=SETTINGS, work_dir=self.directory)
        if not broker.first_line:
            broker.stop(signal.SIGKILL)
            raise AssertionError(f"the broker does not start: {broker.stderr[-2000:]}")
        return broker

    def _kill_while_starting(self) -> None:
        command_started = BrokerProcess(
            self.directory / "data", settings=SETTINGS, work_dir=self.directory, wait_for_address=False
        )
        time.sleep(self.rng.uniform(0.2, 1.0))  # whenever it is: what follows must hold
        command_started.stop(signal.SIGKILL)
        self.kills += 1
        self.kills_while_starting += 1

    # --- load ---

    def _load(self, broker: BrokerProcess) -> None:
        """Producers write until the seeded number of batches is acknowledged; then the broker is killed under them."""
        self.rounds += 1
        self._enough.clear()
        for ledger in self.ledgers.values():
            ledger.maybe_deleted.clear()  # what was not answered is sent again, and then answered or not
        self._target = self.batches_acknowledged + self.rng.randint(20, 400)
        threads = [
            threading.Thread(
                target=self._produce, args=(number, broker, random.Random(f"{self.seed} {self.rounds} {number}"))
            )
            for number in range(PRODUCERS)
        ]
        for thread in threads:
            thread.start()
        self._enough.wait(120)
        broker.stop(signal.SIGKILL)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a producer hangs"
        self.kills += 1
        if self._failures:
            raise AssertionError(f"a producer failed: {self._failures}") from self._failures[0]
        assert self._enough.is_set(), f"too few acknowledgements in two minutes: {self}"

    def _produce(self, number: int, broker: BrokerProcess, rng: random.Random) -> None:
        again, self.unanswered[number] = deque(self.unanswered[number]), []
        under_way: deque[Batch] = deque()
        try:
            with broker.connect() as client:
                while True:
                    while len(under_way) < IN_FLIGHT:
                        batch = again.popleft() if again else self._new_batch(rng, number)
                        under_way.append(batch)
                        wanted = ProducePartition(*batch.tp, len(batch.data))
                        client.send(Api.PRODUCE, ProduceRequest(-1, 10_000, [wanted]), batch.data)
                    self._take_answer(client, under_way)
        except (OSError, EOFError):  # killed
            self._unanswered(number, [*under_way, *again], len(under_way))
        except BaseException as e:  # noqa: BLE001  (a thread's failure is the campaign's)
            self._failures.append(e)
            self._enough.set()

    def _new_batch(self, rng: random.Random, number: int) -> Batch:
        tp = rng.choice(PARTITIONS)
        with self._lock:
            first, self._next_id = self._next_id, self._next_id + 20
        return make_batch(rng, tp, number, first)

    def _take_answer(self, client: RawClient, under_way: deque[Batch]) -> None:
        result = client.receive(Api.PRODUCE, ProduceResponse)[0].results[0]
        batch = under_way.popleft()
        if result.error_code:
            raise SparklogError(f"{batch.tp}: {result.error_code} {result.message}")
        with self._lock:
            self.ledgers[batch.tp].acknowledge(batch, result.base_offset)
            self.batches_acknowledged += 1
            self.bytes_acknowledged += len(batch.data)
            if self.batches_acknowledged >= self._target:
                self._enough.set()

    def _unanswered(self, number: int, batches: list[Batch], sent: int) -> None:
        """Batches that got no answer, the first `sent` of which may be in the log now; all are sent again."""
        with self._lock:
            for batch in batches[:sent]:
                attempts = self.ledgers[batch.tp].attempts
                for i in batch.ids:
                    attempts[i] = max(1, attempts[i]) + 1  # this attempt, and the next
            for batch in batches:  # those behind have been sent in an earlier round
                dead = (key for key, is_dead in zip(batch.keys, batch.dead, strict=True) if is_dead)
                self.ledgers[batch.tp].maybe_deleted.update(dead)
            self.batches_unanswered += sent
        self.unanswered[number] = batches

    # --- check ---

    def _verify(self, broker: BrokerProcess) -> None:
        with broker.connect() as client:
            for tp, ledger in self.ledgers.items():
                rows = read_partition(client, tp)
                if tp.topic == "state":
                    rows = read_while_compacted(client, tp, rows)
                self.records_read += len(rows.offsets)
                try:
                    ledger.check(tp, rows)
                except AssertionError as e:
                    raise AssertionError(f"{tp} after {self}; seed {self.seed}; files in {self.directory}") from e


def read_partition(client: RawClient, tp: TopicPartition) -> Rows:
    """Everything from the log start to the log end, checksums verified. Compaction and retention may go on
    meanwhile."""
    end = end_offset(client, tp.topic, tp.partition)
    start = end_offset_earliest(client, tp)
    offsets, ids, dead = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    keys: list[bytes] = []
    at, size_bytes = start, 0
    while at < end:
        result, data = fetch(client, tp.topic, at, partition=tp.partition, max_bytes=FETCH_BYTES)
        if result.error_code and result.log_start_offset > at:  # retention was faster: begin again
            return read_partition(client, tp)
        assert result.error_code == 0, result.message
        assert data, f"{tp}: nothing at offset {at} of {end}"
        for position, header in iterate_batches(data):
            rows, column = decode_rows(data[position : position + header.size_bytes], ENVELOPE_SCHEMA, header)
            numbers = row_offsets(header, column)
            keep = numbers >= at
            offsets.append(numbers[keep])
            ids.append(rows.column("timestamp").cast(pa.int64()).to_numpy()[keep])
            dead.append(rows.column("value").is_null().to_numpy(zero_copy_only=False)[keep])
            if tp.topic == "state":
                keys += rows.column("key").filter(pa.array(keep)).to_pylist()
            size_bytes += header.size_bytes
            at = max(at, header.next_offset)
    return Rows(start, end, size_bytes, np.concatenate(offsets), np.concatenate(ids), keys, np.concatenate(dead))


def read_while_compacted(client: RawClient, tp: TopicPartition, before: Rows) -> Rows:
    """Return the common result of two successive readings. In one reading, a tombstone may disappear behind the
    reader's back together with a record that the reader has got."""
    while True:
        rows = read_partition(client, tp)
        if np.array_equal(rows.offsets, before.offsets):
            return rows
        before = rows


def end_offset_earliest(client: RawClient, tp: TopicPartition) -> int:
    return end_offset(client, tp.topic, tp.partition, timestamp_ms=-2)


def run(directory: Path, kills: int, seed: int) -> Campaign:
    """Run a campaign. Raises AssertionError."""
    campaign = Campaign(directory, seed)
    campaign.run(kills)
    return campaign


if __name__ == "__main__":
    run_from_command_line(run, __doc__, kills=200)
