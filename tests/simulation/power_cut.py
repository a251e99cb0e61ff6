"""Power cuts during the life of a broker's logs: what was flushed is there, what is there was appended.

A script (`actions_of(seed)`) of appends, rolls, flushes, checkpoints, truncations, deletions and restarts runs over a
disk in memory; before call number `cut` the power goes off, `loss` seeds what of the unsynced survives. Then the logs
are opened, compared with the model, opened again (nothing may change), and written to again; the power may go off
during that recovery, too.

    python tests/simulation/power_cut.py SEED CUT LOSS      runs one case and prints what happens
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sparklog.errors import LogCorruptError
from sparklog.format.batch import decode_batch, iterate_batches
from sparklog.log.log_manager import LogManager, PartitionSpec
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.repair import repair
from sparklog.testing.sim_files import PowerCut, SimFiles
from sparklog.types import TopicPartition
from tests.unit.log.support import SCHEMAS, ManualClock, batch

DATA = Path("/data")
CONFIG = LogConfig.from_settings(
    {"segment.bytes": 4096, "index.interval.bytes": 600, "file.delete.delay.ms": 0, "retention.ms": 1_000_000}
)
PARTITIONS = 2
RECOVERY_CUTS_MAX = 5


@cache
def encoded(number: int, size: int, count: int, schema_id: int) -> bytes:
    return bytes(batch([number] * count, value=value_of(number, size), schema_id=schema_id))


def value_of(number: int, size: int) -> bytes:
    return f"{number}:".encode() + bytes([number % 251]) * size


@dataclass
class Model:
    """What one partition should hold. `records[i]` has offset i; those below `start` are deleted."""

    records: list[bytes] = field(default_factory=list)
    start: int = 0
    flushed: int = 0
    """Everything below is on the disk."""
    durable_start: int = 0
    """The log start cannot be below this any more."""
    under_way: list[bytes] = field(default_factory=list)
    """What is being appended."""
    truncating_to: int | None = None
    missing: set[int] = field(default_factory=set)
    """Offsets that a repair has given up."""

    def may_be(self, offset: int) -> bytes | None:
        """The value of the record at `offset`, if it may exist."""
        known = [*self.records, *self.under_way]
        return known[offset] if offset < len(known) else None

    @property
    def must_reach(self) -> int:
        """The log end after any power cut, at the least."""
        return self.flushed if self.truncating_to is None else min(self.flushed, self.truncating_to)


class Machine:
    """A broker's logs on a disk that can lose its power, and what they should hold."""

    def __init__(self, files: SimFiles, say: Callable[[str], None]) -> None:
        self.files = files
        self.say = say
        self.clock = ManualClock(5_000)
        self.models = [Model() for _ in range(PARTITIONS)]
        self.number = 0
        self.leader_epoch = 0
        self.repairs = 0
        self.manager: LogManager

    def start(self) -> None:
        """Opens all logs; raises LogCorruptError if one is damaged."""
        self.manager = LogManager(DATA, files=self.files, clock=self.clock)
        specs = []
        for i in range(PARTITIONS):
            owner = LogOwner("events", "0" * 32, i, "timestamp")
            specs.append(PartitionSpec(owner, CONFIG, SCHEMAS.__getitem__))
        self.manager.load("cluster", specs)
        for tp, error in self.manager.offline.items():
            if not isinstance(error, LogCorruptError):
                raise error
            report = repair(DATA / str(tp), self.files, dry_run=False, schema_of=SCHEMAS.__getitem__)
            self.repairs += 1
            self.say(f"{tp}: {error}; {report}")
            assert report.changed, error
        if self.manager.offline:
            self.files.kill()
            self.start()

    def log(self, i: int) -> PartitionLog:
        log = self.manager.get(TopicPartition("events", i))
        log.raise_high_watermark(log.log_end_offset)
        return log

    # --- actions ---

    def append(self, i: int, rng: random.Random) -> None:
        model, payload = self.models[i], bytearray()
        for _ in range(rng.randint(1, 3)):
            self.number += 1
            size, count = rng.choice((10, 10, 300, 2000)), rng.randint(1, 3)
            payload += encoded(self.number, size, count, rng.choice((1, 1, 1, 2)))
            model.under_way += [value_of(self.number, size)] * count
        log = self.log(i)
        assert log.append(payload, leader_epoch=self.leader_epoch).base_offset == len(model.records)
        model.records, model.under_way = [*model.records, *model.under_way], []
        log.raise_high_watermark(log.log_end_offset)

    def new_epoch(self, _i: int, _rng: random.Random) -> None:
        self.leader_epoch += 1

    def roll(self, i: int, _rng: random.Random) -> None:
        self.log(i).roll()

    def flush(self, i: int, rng: random.Random) -> None:
        self.log(i).flush(active=rng.random() < 0.7)
        self.models[i].flushed = self.log(i).flushed_offset

    def commit(self, i: int, _rng: random.Random) -> None:
        self.log(i).flush()
        self.models[i].flushed = len(self.models[i].records)
        assert self.log(i).flushed_offset == len(self.models[i].records)

    def checkpoint(self, _i: int, _rng: random.Random) -> None:
        starts = [model.start for model in self.models]
        self.manager.checkpoint()
        for model, start in zip(self.models, starts, strict=True):
            model.durable_start = start

    def truncate(self, i: int, rng: random.Random) -> None:
        model, log = self.models[i], self.log(i)
        offset = rng.randint(max(model.start, len(model.records) - 12), len(model.records))
        held = log.read(offset, 1) if offset < len(model.records) else None
        end = offset if held is None else held.base_offset
        if held is not None:
            held.release()
        model.truncating_to = end
        assert log.truncate_to(offset) == end
        del model.records[end:]
        model.flushed, model.truncating_to = min(model.flushed, end), None
        model.start = model.durable_start = min(model.start, end)

    def delete_records(self, i: int, rng: random.Random) -> None:
        model = self.models[i]
        model.start = rng.randint(model.start, len(model.records))
        self.log(i).delete_records(model.start)
        self.manager.checkpoint()
        model.durable_start, model.flushed = model.start, max(model.flushed, model.start)
        self.log(i).drop_below_log_start()
        self.log(i).remove_dropped()

    def restart(self, _i: int, _rng: random.Random) -> None:
        assert self.manager.close()
        for model in self.models:
            model.flushed, model.durable_start = len(model.records), model.start
        self.start()
        assert self.manager.started_clean
        self.compare()

    def kill(self, _i: int, _rng: random.Random) -> None:
        """The process dies, the machine lives: nothing is lost."""
        self.files.kill()
        for model in self.models:
            model.start = model.durable_start
        self.start()
        for i, model in enumerate(self.models):
            assert self.log(i).log_end_offset == len(model.records)

    # --- checks ---

    def compare(self, *, exactly: bool = True) -> None:
        """The logs against the models; not `exactly`: after a power cut, after which the models are what is left."""
        for i, model in enumerate(self.models):
            log = self.log(i)
            found = records_of(log)
            start, end = log.log_start_offset, log.log_end_offset
            self.say(f"partition {i}: {start} to {end}; {model.flushed} flushed, {len(model.records)} appended")
            for offset, value in found:
                assert value == model.may_be(offset), (i, offset, value[:20])
            offsets = [o for o, _ in found]
            missing = set(range(start, end)) - set(offsets)
            assert offsets == sorted(set(offsets))
            assert end >= model.must_reach, (i, end, model)
            assert all(o >= model.must_reach for o in missing - model.missing), (i, missing, model)
            # the first segments may be lost, as any others may, if nothing of them was flushed
            assert model.durable_start <= start, (i, start, model)
            assert start <= model.start or model.must_reach <= model.start, (i, start, model)
            if exactly:
                assert end == len(model.records)
                assert missing <= model.missing
            model.missing = missing
            known = [*model.records, *model.under_way]
            model.records, model.under_way, model.truncating_to = known[:end], [], None
            model.start = start
            model.flushed = min(model.flushed, end)
            model.durable_start = min(model.durable_start, start)
            assert log.leader_epoch <= self.leader_epoch

    def content(self) -> list[tuple[int, int, list[tuple[int, bytes]]]]:
        logs = [self.log(i) for i in range(PARTITIONS)]
        return [(log.log_start_offset, log.log_end_offset, records_of(log)) for log in logs]


def records_of(log: PartitionLog) -> list[tuple[int, bytes]]:
    """(offset, value) of every record from the log start on."""
    found, offset = [], log.log_start_offset
    while (piece := log.read(offset, 3000)) is not None:
        data = piece.read()
        for position, header in iterate_batches(data):
            column = decode_batch(data[position : position + header.size_bytes], SCHEMAS[header.schema_id])["value"]
            found += [(header.base_offset + i, v) for i, v in enumerate(column.to_pylist())]
        assert piece.next_offset > offset
        offset = piece.next_offset
        piece.release()
    return [(o, v) for o, v in found if o >= log.log_start_offset]


def actions_of(seed: int) -> Iterator[tuple[str, int]]:
    """(action, partition): every action at least once, then at random."""
    rng = random.Random(seed)
    first = [
        "append",
        "flush",
        "append",
        "roll",
        "append",
        "new_epoch",
        "append",
        "commit",
        "checkpoint",
        "append",
        "truncate",
        "append",
    ]
    first += [
        "delete_records",
        "append",
        "kill",
        "append",
        "commit",
        "restart",
        "append",
        "truncate",
        "append",
        "restart",
        "append",
    ]
    yield from ((action, 0) for action in first)
    for _ in range(25):
        choices = ("append", "flush", "commit", "checkpoint", "roll", "truncate", "delete_records", "restart", "kill")
        action = rng.choices(choices, (10, 2, 2, 2, 2, 2, 1, 1, 1))[0]
        yield action, rng.randrange(PARTITIONS)


def run(seed: int, cut: int | None, loss: int, say: Callable[[str], None] = lambda _: None) -> tuple[int, int]:
    """One case; returns how many calls the script made, and how often a repair was needed. Raises AssertionError."""
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
    """The machine starts again, losing power again while it does; then everything has to work."""
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
    for i in range(PARTITIONS):
        machine.append(i, rng)
        machine.commit(i, rng)
    machine.restart(0, rng)
    return machine.repairs


def command(seed: int, cut: int | None, loss: int) -> str:
    """What runs the case again."""
    return f"python tests/simulation/power_cut.py {seed} {cut} {loss}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="   %(message)s")
    wanted = sys.argv[1:4]
    run(int(wanted[0]), None if wanted[1] == "None" else int(wanted[1]), int(wanted[2]), print)
