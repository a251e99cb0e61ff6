"""Power cuts during the life of a broker's logs: flushed records survive, and every record was appended.

A script (`actions_of(seed)`) of appends, rolls, flushes, checkpoints, truncations, deletions, retention, compaction and
restarts runs over a disk in memory. The power fails before call number `cut`; `loss` seeds the choice of the surviving
unsynced data. Then the logs are opened, compared with the model, opened again (without a change), and appended to. The
power may fail during that recovery too. The compacted log must have the last record of each key, and tombstones for
their time; removed records do not come back.

    python tests/simulation/power_cut.py SEED CUT LOSS      runs one case and prints its events
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sparklog.errors import LogCorruptError
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping.cleaner import compact_log, due_for_compaction
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tools.repair import repair
from sparklog.testing._sim_files import PowerCut, SimFiles
from sparklog.types import TopicPartition
from tests.support.compaction import stored
from tests.support.logs import SCHEMAS, ManualClock, batch

DATA = Path("/data")
KEPT_BYTES = 12_000
SETTINGS: dict[str, Any] = {"segment.bytes": 4096, "index.interval.bytes": 600, "file.delete.delay.ms": 0}
KEPT = LogConfig.from_settings(SETTINGS | {"retention.ms": -1, "retention.bytes": KEPT_BYTES})
TOMBSTONES_MS = 1000
COMPACTED = LogConfig.from_settings(
    SETTINGS
    | {
        "retention.ms": -1,
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": TOMBSTONES_MS,
    }
)
CONFIGS = (KEPT, KEPT, COMPACTED)
KEYED = 2
"""The compacted partition."""
RECOVERY_CUTS_MAX = 5

Record = tuple[bytes | None, bytes | None]
"""Key and value; apart from tombstones all are different."""


@cache
def encoded(records: tuple[Record, ...], time_ms: int, schema_id: int) -> bytes:
    keys, values = zip(*records, strict=True)
    return bytes(batch([time_ms] * len(records), keys=keys, values=values, schema_id=schema_id))


def records_for(rng: random.Random, number: int, size: int, count: int, *, keyed: bool) -> tuple[Record, ...]:
    value = f"{number}:".encode() + bytes([number % 251]) * size
    if not keyed:
        return tuple((b"%d" % i, value) for i in range(count))
    keys = rng.sample([b"a", b"b", b"c", b"d", None], count)
    return tuple((key, None if key is not None and rng.random() < 0.3 else value) for key in keys)


@dataclass
class Model:
    """The expected content of one partition. `records[i]` has offset i; those below `start` are deleted."""

    records: list[Record] = field(default_factory=list)
    start: int = 0
    flushed: int = 0
    """End of the records that are on the disk."""
    durable_start: int = 0
    """Lower bound of the log start."""
    under_way: list[Record] = field(default_factory=list)
    """Records of the append in progress."""
    truncating_to: int | None = None
    missing: set[int] = field(default_factory=set)
    """Offsets lost in a repair, or removed by compaction."""
    first_run_ms: dict[int, int] = field(default_factory=dict)
    """Start of the first compaction that may have read the record, by offset."""

    def may_be(self, offset: int) -> Record | None:
        """Return the record at `offset`, if it may exist."""
        known = [*self.records, *self.under_way]
        return known[offset] if offset < len(known) else None

    @property
    def must_reach(self) -> int:
        """Return the smallest log end after any power cut."""
        return self.flushed if self.truncating_to is None else min(self.flushed, self.truncating_to)

    def removable(self, found: set[int], end: int, now_ms: int) -> set[int]:
        """Return the offsets below `end` that compaction may have removed if `found` is left: those with a newer record
        of their key in it, and expired tombstones with all earlier records of the key, if none is left to delete.
        """
        of_key: dict[bytes, list[int]] = {}
        known = [*self.records, *self.under_way][:end]
        for offset, (key, _) in enumerate(known):
            if key is not None:
                of_key.setdefault(key, []).append(offset)
        removable: set[int] = set()
        for offsets in of_key.values():
            newest = max(found.intersection(offsets), default=-1)
            removable.update(o for o in offsets if o < newest)
            for tombstone in (o for o in offsets if known[o][1] is None):
                over = now_ms >= self.first_run_ms.get(tombstone, now_ms) + TOMBSTONES_MS
                older = [o for o in offsets if o <= tombstone]
                if over and found.isdisjoint(older):
                    removable.update(older)
        return removable


class Machine:
    """A broker's logs on a disk that can lose its power, and their models."""

    def __init__(self, files: SimFiles, say: Callable[[str], None]) -> None:
        self.files = files
        self.say = say
        self.clock = ManualClock(5_000)
        self.models = [Model() for _ in CONFIGS]
        self.number = 0
        self.leader_epoch = 0
        self.repairs = 0
        self.manager: LogManager

    def start(self) -> None:
        """Open all logs. Raises LogCorruptError if one is damaged."""
        self.manager = LogManager(DATA, files=self.files, clock=self.clock)
        specs = []
        for i, config in enumerate(CONFIGS):
            owner = LogOwner("events", "0" * 32, i, "timestamp", ("key",), ("value",))
            specs.append(PartitionSpec(owner, config, SCHEMAS.__getitem__))
        self.manager.load("cluster", specs)
        for tp, error in self.manager.table.offline.items():
            if not isinstance(error, LogCorruptError):
                raise error
            report = repair(DATA / str(tp), self.files, dry_run=False, schema_of=SCHEMAS.__getitem__)
            self.repairs += 1
            self.say(f"{tp}: {error}; {report}")
            assert report.changed, error
        if self.manager.table.offline:
            self.files.kill()
            self.start()

    def log(self, i: int) -> PartitionLog:
        log = self.manager.table.get(TopicPartition("events", i))
        log.raise_high_watermark(log.log_end_offset)
        return log

    # --- actions ---

    def append(self, i: int, rng: random.Random) -> None:
        model, payload = self.models[i], bytearray()
        for _ in range(rng.randint(1, 3)):
            self.number += 1
            size, count = rng.choice((10, 10, 300, 2000)), rng.randint(1, 3)
            records = records_for(rng, self.number, size, count, keyed=i == KEYED)
            payload += encoded(records, self.number, rng.choice((1, 1, 1, 2)))
            model.under_way += records
        log = self.log(i)
        assert log.appender.append(payload, leader_epoch=self.leader_epoch).base_offset == len(model.records)
        model.records, model.under_way = [*model.records, *model.under_way], []
        log.raise_high_watermark(log.log_end_offset)

    def new_epoch(self, _i: int, _rng: random.Random) -> None:
        self.leader_epoch += 1

    def roll(self, i: int, _rng: random.Random) -> None:
        self.log(i).appender.roll()

    def flush(self, i: int, rng: random.Random) -> None:
        self.log(i).flusher.flush(active=rng.random() < 0.7)
        self.models[i].flushed = self.log(i).flushed_offset

    def commit(self, i: int, _rng: random.Random) -> None:
        self.log(i).flusher.flush()
        self.models[i].flushed = len(self.models[i].records)
        assert self.log(i).flushed_offset == len(self.models[i].records)

    def checkpoint(self, _i: int, _rng: random.Random) -> None:
        starts = [model.start for model in self.models]
        self.manager.checkpoints.write()
        for model, start in zip(self.models, starts, strict=True):
            model.durable_start = start

    def truncate(self, i: int, rng: random.Random) -> None:
        model, log = self.models[i], self.log(i)
        offset = rng.randint(max(model.start, len(model.records) - 12), len(model.records))
        whole = [h.next_offset for s in log.segments for _, h in s.headers_from(None) if h.next_offset <= offset]
        end = max([log.segments[0].base_offset, *whole]) if offset < len(model.records) else offset
        model.truncating_to = end
        assert log.truncation.truncate_to(offset) == end
        del model.records[end:]
        model.flushed, model.truncating_to = min(model.flushed, end), None
        model.start = model.durable_start = min(model.start, end)
        model.missing = {o for o in model.missing if o < end}
        model.first_run_ms = {o: ms for o, ms in model.first_run_ms.items() if o < end}

    def delete_records(self, i: int, rng: random.Random) -> None:
        model = self.models[i]
        model.start = rng.randint(model.start, len(model.records))
        self.log(i).retention.delete_records(model.start)
        self.manager.checkpoints.write()
        model.durable_start, model.flushed = model.start, max(model.flushed, model.start)
        self.log(i).retention.drop_below_log_start()
        self.log(i).retention.remove_dropped()

    def retain(self, i: int, _rng: random.Random) -> None:
        model, log = self.models[i], self.log(i)
        raised = False

        def checkpoint() -> None:
            nonlocal raised
            raised, model.start = True, log.log_start_offset
            self.manager.checkpoints.write()
            model.durable_start, model.flushed = model.start, max(model.flushed, model.start)

        run_retention({log.owner.topic_partition: log}, checkpoint)
        if raised and i != KEYED:
            assert log.size_bytes >= KEPT_BYTES, "retention has deleted too much"
        log.retention.remove_dropped()

    def compact(self, _i: int, rng: random.Random) -> None:
        model, log = self.models[KEYED], self.log(KEYED)
        for offset in range(len(model.records)):
            model.first_run_ms.setdefault(offset, self.clock.time_ms)
        if rng.random() < 0.7:
            log.appender.begin_segment()
        due = due_for_compaction(log)
        if due is not None:
            compact_log(due, OffsetMap(1 << 16))
            self.compare()
        log.retention.remove_dropped()

    def wait(self, _i: int, _rng: random.Random) -> None:
        self.clock.time_ms += TOMBSTONES_MS + 1

    def restart(self, _i: int, _rng: random.Random) -> None:
        assert self.manager.close()
        for model in self.models:
            model.flushed, model.durable_start = len(model.records), model.start
        self.start()
        assert self.manager.started_clean
        self.compare()

    def kill(self, _i: int, _rng: random.Random) -> None:
        """Kill the process; the machine lives, and no data are lost."""
        self.files.kill()
        for model in self.models:
            model.start = model.durable_start
        self.start()
        for i, model in enumerate(self.models):
            assert self.log(i).log_end_offset == len(model.records)

    # --- checks ---

    def compare(self, *, exactly: bool = True) -> None:
        """Compare the logs with the models. With `exactly` False, after a power cut, the models take over the rest."""
        for i, model in enumerate(self.models):
            log = self.log(i)
            found = records_of(log)
            there = {o for o, _ in found}
            start, end = log.log_start_offset, log.log_end_offset
            self.say(f"partition {i}: {start} to {end}; {model.flushed} flushed, {len(model.records)} appended")
            for offset, record in found:
                assert record == model.may_be(offset), (i, offset, record)
            assert model.missing.isdisjoint(there), (i, "came back", model.missing & there)
            offsets = [o for o, _ in found]
            missing = set(range(start, end)) - there
            removable = model.removable(there, end, self.clock.time_ms) if i == KEYED else set()
            assert offsets == sorted(set(offsets))
            assert end >= model.must_reach, (i, end, model)
            assert all(o >= model.must_reach for o in missing - model.missing - removable), (i, missing, model)
            # the first segments may be lost, like any others without flushed records
            assert model.durable_start <= start, (i, start, model)
            assert start <= model.start or model.must_reach <= model.start, (i, start, model)
            if exactly:
                assert end == len(model.records)
                assert missing <= model.missing | removable
            model.missing = missing
            known = [*model.records, *model.under_way]
            model.records, model.under_way, model.truncating_to = known[:end], [], None
            model.start = start
            model.flushed = min(model.flushed, end)
            model.durable_start = min(model.durable_start, start)
            assert log.leader_epoch <= self.leader_epoch

    def content(self) -> list[tuple[int, int, list[tuple[int, Record]]]]:
        logs = [self.log(i) for i in range(len(CONFIGS))]
        return [(log.log_start_offset, log.log_end_offset, records_of(log)) for log in logs]


def records_of(log: PartitionLog) -> list[tuple[int, Record]]:
    """Return (offset, record) of every record from the log start on."""
    return [(row.offset, (row.key, row.value)) for row in stored(log, max_bytes=3000)]


FIRST = """append flush append roll append new_epoch append commit checkpoint append truncate append delete_records append
kill append commit append append retain append restart append truncate append restart append"""
THEN = """append append roll append commit append compact append kill append wait compact append restart append compact
truncate append commit compact wait compact append"""


def actions_of(seed: int) -> Iterator[tuple[str, int]]:
    """Yield (action, partition): every action at least once, then at random, unless the seed is 0."""
    rng = random.Random(seed)
    yield from ((action, 0) for action in FIRST.split())
    yield from ((action, KEYED) for action in THEN.split())
    for _ in range(30 if seed else 0):
        weights = {"append": 12, "truncate": 2, "delete_records": 1, "restart": 1, "kill": 1, "compact": 3, "wait": 1}
        weights |= dict.fromkeys(("flush", "commit", "checkpoint", "roll", "retain"), 2)
        action = rng.choices(list(weights), list(weights.values()))[0]
        yield action, rng.randrange(len(CONFIGS))


def run(seed: int, cut: int | None, loss: int, say: Callable[[str], None] = lambda _: None) -> tuple[int, int]:
    """Run one case; return the number of the script's calls, and of repairs. Raises AssertionError."""
    rng = random.Random(seed)
    machine = Machine(SimFiles(cut_at=cut), say)
    try:
        machine.start()
        for action, partition in actions_of(seed):
            say(f"{len(machine.files.calls)}: {action} {partition}")
            getattr(machine, action)(partition, rng)
        machine.compare()
        return len(machine.files.calls), machine.repairs
    except PowerCut as e:
        say(f"power cut: {e}")
    return 0, _recover(machine, random.Random(f"{seed} {cut} {loss}"), say)


def _recover(machine: Machine, rng: random.Random, say: Callable[[str], None]) -> int:
    """Start the machine again, with further power cuts meanwhile; then everything has to work."""
    for _ in range(rng.randint(0, RECOVERY_CUTS_MAX)):
        machine.files.power_cut(rng, cut_at=rng.randint(0, 25))
        try:
            machine.start()
        except PowerCut as e:
            say(f"power cut during recovery: {e}")
    machine.files.power_cut(rng)
    machine.start()
    machine.compare(exactly=False)
    first = machine.content()
    machine.files.kill()
    machine.start()
    assert machine.content() == first, "a second recovery found something else"
    for i in range(len(CONFIGS)):
        machine.append(i, rng)
        machine.commit(i, rng)
    machine.restart(0, rng)
    return machine.repairs


def command(seed: int, cut: int | None, loss: int) -> str:
    """Return the command that runs the case again."""
    return f"python tests/simulation/power_cut.py {seed} {cut} {loss}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="   %(message)s")
    wanted = sys.argv[1:4]
    run(int(wanted[0]), None if wanted[1] == "None" else int(wanted[1]), int(wanted[2]), print)
