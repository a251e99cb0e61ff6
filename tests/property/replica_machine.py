"""A topic with three replicas that delete old records, over changing leaders, absent replicas, kills, power cuts,
damage and repairs. The rules, the answers of leaders and the followers' changes of their logs are the product's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparklog.errors import LogCorruptError, RemoteStorageError
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL
from sparklog.format.checkpoint import RECOVERY_POINTS_FILE, PartitionPoints, RecoveryPoints, encode
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.log.tools.repair import read_points, repair
from sparklog.testing._sim_files import SimFiles
from tests.property.compaction_replay import Appended, committed_rows, replay, without_key
from tests.support.compaction import OWNER, SETTINGS, Row, keyed_batch, last_values
from tests.support.logs import SCHEMAS, ManualClock
from tests.unit.broker.cluster.replica_group import BROKERS, Group

RETENTION_MS = 1_000
"""`delete.retention.ms`, where it is not 0."""
KEYS = st.sampled_from([b"a", b"a", b"b", b"c", b"d", None])
VALUES = st.sampled_from([None, b"1", b"2", b"x" * 900])
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
BROKER = st.sampled_from(BROKERS)


class ReplicaMachine(RuleBasedStateMachine):
    """`written`: all appended records, by leader epoch and offset. `entries`: those that are not lost, by offset.
    `dead`: brokers that do not run. `lost`: those of them that may have lost records, and therefore leave the ISR
    before they return."""

    group: Group

    def begin(self, given: dict[str, Any], seed: int) -> None:
        self.rng, self.clock, self.given = random.Random(seed), ManualClock(), given
        self.files = {b: SimFiles() for b in BROKERS}
        self.entries: dict[int, Appended] = {}
        self.written: dict[tuple[int, int], Appended] = {}
        self.dead: set[int] = set()
        self.lost: set[int] = set()
        self.transactions = 100
        self.group = Group(Path("/sim"), given, open_log=self.open_log)

    def open_log(self, directory: Path, given: dict[str, Any], *, clean: bool = True, **_: Any) -> PartitionLog:
        files, where = self.files[int(directory.name)], directory / OWNER.directory_name
        points = read_points(where, files)
        return PartitionLog.open(
            where,
            OWNER,
            LogConfig.from_settings(SETTINGS | given),
            SCHEMAS.__getitem__,
            files=files,
            clock=self.clock,
            clean=clean,
            checkpointed=bool(points.topic_id),
            log_start_offset=points.log_start_offset,
            high_watermark=points.high_watermark,
            recovery_point=points.recovery_point,
            remote=self.remote(int(directory.name)),
        )

    def remote(self, broker: int) -> RemoteAccess:
        """Its object store."""
        return RemoteAccess()

    @property
    def alive_in_sync(self) -> list[int]:
        return [b for b in self.group.image.isr if b not in self.dead and b not in self.group.out]

    # --- clients

    def enter(self, base_offset: int, *entries: Appended) -> None:
        found = {base_offset + i: entry for i, entry in enumerate(entries)}
        self.entries |= found
        self.written |= {(self.group.image.leader_epoch, offset): entry for offset, entry in found.items()}

    @rule(rows=ROWS)
    def append(self, rows: list[Row]) -> None:
        self.enter(self.group.append(keyed_batch(rows, self.clock.time_ms)), *(Appended(*row) for row in rows))

    @rule(rows=ROWS, goes_on=st.booleans())
    def append_in_transaction(self, rows: list[Row], goes_on: bool) -> None:
        open_ids = replay(self.entries, self.group.leader.log.log_end_offset).open_ids
        if goes_on and open_ids:
            producer_id = min(open_ids)
        else:
            self.transactions += 1
            producer_id = self.transactions
        known = {i.producer_id: i for i in self.group.leader.log.producers()}.get(producer_id)
        payload = keyed_batch(
            rows, self.clock.time_ms, producer_id=producer_id, producer_epoch=0,
            base_sequence=0 if known is None else known.last_sequence + 1, attributes=ATTRIBUTE_TRANSACTIONAL,
        )  # fmt: skip
        node = self.group.leader
        guard = node.log.appender.begin_verification(producer_id, 0)
        info = node.log.appender.append(payload, guard=guard, leader_epoch=self.group.image.leader_epoch)
        node.partition.on_appended(info)
        self.enter(info.base_offset, *(Appended(*row, producer_id) for row in rows))

    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        node = self.group.leader
        for producer_id in sorted(replay(self.entries, node.log.log_end_offset).open_ids)[:1]:
            epoch = self.group.image.leader_epoch
            info = node.log.appender.append_marker(producer_id, 1, 0, commit=commit, leader_epoch=epoch)
            node.partition.on_appended(info)
            self.enter(info.base_offset, Appended(producer_id=producer_id, commit=commit))

    # --- replication

    @rule(broker=BROKER, max_bytes=st.sampled_from([1, 1_500, 1 << 20]))
    def copy(self, broker: int, max_bytes: int) -> None:
        node = self.group.nodes[broker]
        if node.follower is not None and broker not in self.group.out:
            node.ask(self.group.leader, max_bytes)
            self.group.take_proposals()

    @rule()
    def sync(self) -> None:
        if set(self.alive_in_sync) == set(self.group.image.isr):
            self.group.sync()

    @rule(broker=BROKER)
    def change_leader(self, broker: int) -> None:
        if broker in self.alive_in_sync and broker != self.group.image.leader:
            self.lead(broker)

    @rule(broker=BROKER)
    def elect_unclean(self, broker: int) -> None:
        """Let a replica that is not in sync lead; the others give up the records that it lacks."""
        if broker not in self.dead and broker not in self.group.image.isr and self.has_all(broker):
            self.group.out.discard(broker)
            self.lead(broker, (broker,))

    def has_all(self, broker: int) -> bool:
        """Return True if all data that it relies on exist."""
        return True

    @rule(broker=BROKER, how=st.sampled_from(["leave", "kill", "power cut"]), rows=ROWS, cleans=st.booleans())
    def fall_back_to(self, broker: int, how: str, rows: list[Row], cleans: bool) -> None:
        """The others go on without a broker, which then leads."""
        if broker == self.group.image.leader or broker in self.group.out:
            return
        if how == "leave":
            self.leave(broker)
        else:
            self.crash(broker, how)
            self.notice(broker)
        for row in rows:
            self.append([row])
        self.sync()
        for other in BROKERS if cleans else ():
            self.clean(other)
        self.come_back(broker)
        self.elect_unclean(broker)

    def clean(self, broker: int) -> None:
        """Remove old records, in the tested way."""

    def lead(self, broker: int, isr: tuple[int, ...] | None = None) -> None:
        """Let a broker lead: its records count from now on, including those that another leader has lost."""
        self.group.change(broker, isr)
        log = self.group[broker]
        epochs = list(log.epochs.entries)
        ends = [start for _, start in epochs[1:]] + [log.log_end_offset]
        deleted = {o: e for o, e in self.entries.items() if not epochs or o < epochs[0].start_offset}
        self.entries = deleted | {
            offset: self.written[epoch, offset]
            for (epoch, start), end in zip(epochs, ends, strict=True)
            for offset in range(start, end)
            if not any(first <= offset < behind for first, behind in log.gaps)  # lost, and repaired
        }

    # --- what brokers do by themselves

    @rule(broker=BROKER)
    def flush(self, broker: int) -> None:
        if broker not in self.dead:
            self.group[broker].flusher.flush()

    @rule(broker=BROKER)
    def checkpoint(self, broker: int) -> None:
        if broker not in self.dead:
            log = self.group[broker]
            points = PartitionPoints(OWNER.topic_id, log.log_start_offset, log.recovery_point, log.high_watermark)
            checkpoint = encode(RecoveryPoints({OWNER.directory_name: points}))
            self.files[broker].write_atomic(log.directory.parent / RECOVERY_POINTS_FILE, checkpoint)
            log.truncation.forget(log.truncation.count)

    @rule(broker=BROKER)
    def retain(self, broker: int) -> None:
        if broker not in self.dead:
            run_retention({OWNER.topic_partition: self.group[broker]}, lambda: self.checkpoint(broker))

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        log = self.group.leader.log
        if self.given["cleanup.policy"] != "compact":
            start, end = log.log_start_offset, log.high_watermark
            log.flusher.flush_to(end)
            log.retention.delete_records(start + int(share * max(0, end - start)))
            self.checkpoint(self.group.image.leader)

    @rule(step_ms=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS + 1]))
    def wait(self, step_ms: int) -> None:
        self.clock.time_ms += step_ms

    # --- what happens to brokers

    @rule(broker=BROKER)
    def leave(self, broker: int) -> None:
        """It runs, and copies nothing."""
        if broker != self.group.image.leader and broker not in self.group.out:
            self.group.leave(broker)

    @rule(broker=BROKER)
    def restart(self, broker: int) -> None:
        if broker not in self.group.out and broker != self.group.image.leader:
            self.group[broker].close()
            self.checkpoint(broker)
            self.group.come_back(broker, self.group.open(broker))

    @rule(broker=BROKER, how=st.sampled_from(["kill", "power cut", "damage", "replaced"]))
    def crash(self, broker: int, how: str) -> None:
        """Never of the last one that has everything."""
        left = [b for b in self.alive_in_sync if b != broker]
        if broker in self.dead or not left:
            return
        self.dead.add(broker)
        self.group.out.add(broker)
        if how == "power cut":
            self.files[broker].power_cut(self.rng)
        elif how == "replaced":
            self.files[broker] = SimFiles()
        else:
            self.files[broker].kill()
        if how != "kill":
            self.lost.add(broker)
        if how == "damage" and self.segments(broker):
            self.damage(broker)
        if broker == self.group.image.leader:
            self.lead(left[0], tuple(b for b in self.group.image.isr if b != broker))

    def directory(self, broker: int) -> Path:
        return Path("/sim") / str(broker) / OWNER.directory_name

    def segments(self, broker: int) -> list[str]:
        return [n for n in self.files[broker].list_directory(self.directory(broker)) if n.endswith(".arrow")]

    def damage(self, broker: int) -> None:
        file = self.files[broker].open(self.directory(broker) / self.rng.choice(self.segments(broker)))
        position = self.rng.randrange(file.size())
        file.write(position, bytes([file.read(position, 1)[0] ^ 0x55]))
        file.sync()
        self.repair(broker)

    def repair(self, broker: int) -> None:
        repair(self.directory(broker), self.files[broker], dry_run=False, schema_of=SCHEMAS.__getitem__)
        self.files[broker].kill()

    @rule(broker=BROKER)
    def notice(self, broker: int) -> None:
        """That it is away: it leaves the ISR."""
        if broker in self.dead and broker in self.group.image.isr:
            self.group.leave(broker)

    @rule(broker=BROKER)
    def come_back(self, broker: int) -> None:
        if broker in self.lost:
            self.notice(broker)
        if broker in self.dead:
            self.group.come_back(broker, self.opened(broker))
        elif broker in self.group.out:
            self.group.come_back(broker)
        self.dead.discard(broker)
        self.lost.discard(broker)

    def opened(self, broker: int) -> PartitionLog:
        try:
            return self.group.open(broker, clean=False)
        except LogCorruptError:  # a batch behind what never came to the disk
            assert broker in self.lost, "nothing was lost"
            self.repair(broker)
            return self.group.open(broker, clean=False)

    # --- what must hold

    @rule()
    def all_come_back(self) -> None:
        for broker in BROKERS:
            self.come_back(broker)
        self.group.time_ms += 10_000
        self.group.sync()
        self.settle()
        assert set(self.group.image.isr) == set(BROKERS)
        end = self.group.leader.log.log_end_offset
        expected = replay(self.entries, end)
        for broker in BROKERS:
            log = self.group[broker]
            assert (log.high_watermark, log.log_end_offset) == (end, end)
            start, stable = log.log_start_offset, log.last_stable_offset
            kept = replay({o: e for o, e in self.entries.items() if o >= start}, end)
            assert max(start, expected.stable_offset) <= stable <= kept.stable_offset
            rows = [row for row in committed_rows(log) if start <= row.offset < expected.stable_offset]
            wanted = [row for row in expected.rows if row.offset >= start]
            assert last_values(rows) == last_values(wanted), broker
            assert without_key(rows) == without_key(wanted), broker
            assert rows == wanted or "compact" in self.given["cleanup.policy"], broker

    def settle(self) -> None:
        """Do the steps that complete all replicas."""

    @invariant()
    def nothing_is_shown_that_was_not_written(self) -> None:
        if not hasattr(self, "group"):
            return
        for broker in self.alive_in_sync:
            log = self.group[broker]
            try:
                rows = [row for row in committed_rows(log) if row.offset >= log.log_start_offset]
            except RemoteStorageError:  # another leader has deleted it, this one has not heard of it yet
                continue
            written = {o: (e.key, e.value) for o, e in self.entries.items()}
            assert all(written[row.offset] == row[1:] for row in rows), broker
            assert [row.offset for row in rows] == sorted({row.offset for row in rows})

    def teardown(self) -> None:
        if hasattr(self, "group"):
            for broker in set(BROKERS) - self.dead:
                self.group[broker].close(seal=False)
