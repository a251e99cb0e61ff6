"""Producers and transactions of a tiered log with two replicas, either of which may lead, over failovers, kills, power
cuts of the follower, retention and deletions: a replica's knowledge of a producer is true, or empty."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparklog.errors import LogCorruptError, RemoteStorageError
from sparklog.format.batch import BatchHeader
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.housekeeping.tier_run import Role, tier_log
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.testing._sim_files import SimFiles
from tests.property.producer_truth import (
    IDEMPOTENT,
    SIZES,
    TRANSACTIONAL,
    check_committed,
    check_known,
    info_of,
    new_headers,
)
from tests.property.tiering_machine import POLICY
from tests.support.logs import OWNER, SCHEMAS, ManualClock
from tests.support.producers import produced
from tests.support.tiering import FailingStore, memory_store, stored_names

DIRECTORY = Path("/sim") / OWNER.directory_name
WHICH = st.booleans()


class Replica:
    """A log on a disk of its own. `headers`: of all that is in it, and was before it was deleted."""

    def __init__(self, cache: Path, store: FailingStore, clock: ManualClock, policy: dict[str, Any]) -> None:
        self.store, self.clock, self.policy = store, clock, policy
        self.cache = ReadCache(cache, 1 << 20)
        self.files = SimFiles()
        self.points: dict[str, Any] = {}
        self.headers: list[BatchHeader] = []
        self.role = Role.FOLLOWER
        self.open(clean=True)

    def open(self, *, clean: bool) -> None:
        self.log = PartitionLog.open(
            DIRECTORY,
            OWNER,
            LogConfig.from_settings(self.policy),
            SCHEMAS.__getitem__,
            files=self.files,
            clock=self.clock,
            clean=clean,
            remote=RemoteAccess(self.store, self.cache),
            **self.points,
        )
        self.forget_lost()

    def forget_lost(self) -> None:
        self.headers = [h for h in self.headers if h.next_offset <= self.log.log_end_offset]

    def checkpoint(self) -> None:
        self.points = {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.recovery_point,
        }
        self.log.truncation.forget(self.log.truncation.count)

    def restart(self) -> None:
        self.log.close()
        self.checkpoint()
        self.open(clean=True)

    def kill(self) -> None:
        self.files.kill()
        self.open(clean=False)

    def lose_power(self, rng: random.Random) -> None:
        self.log.flusher.flush(active=False)
        self.files.power_cut(rng)
        try:
            self.open(clean=False)
        except LogCorruptError:  # a batch behind what never came to the disk: it begins anew
            self.files, self.points, self.headers = SimFiles(), {}, []
            self.open(clean=True)

    def retain(self) -> None:
        run_retention({OWNER.topic_partition: self.log}, self.checkpoint)

    def tier(self) -> None:
        tier_log(self.log, self.store, self.clock, role=self.role)
        if self.role is Role.NEW_LEADER:
            self.role = Role.LEADER
        self.log.retention.remove_dropped()

    def check(self) -> None:
        check_known(self.log, self.headers)
        check_committed(self.log, self.headers)


class ReplicatedProducers(RuleBasedStateMachine):
    """`leader` and `follower`. A follower may lead if it has all that is committed."""

    leader: Replica

    @initialize(policy=POLICY, seed=st.integers(0, 1 << 32))
    def begin(self, policy: dict[str, Any], seed: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="replicated-producers-"))
        self.store = FailingStore(memory_store().url)
        self.rng, self.clock, self.epoch = random.Random(seed), ManualClock(), 0
        self.follower = Replica(self.directory / "b", self.store, self.clock, policy)
        self.leader = Replica(self.directory / "a", self.store, self.clock, policy)
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        self.leader.role, self.follower.role = Role.NEW_LEADER, Role.FOLLOWER
        self.leader.log.replica.begin_epoch(self.epoch)

    def replica(self, leads: bool) -> Replica:
        return self.leader if leads else self.follower

    def enter(self) -> None:
        headers = self.leader.headers
        headers += new_headers(self.leader.log, headers[-1].next_offset if headers else 0)

    # --- clients

    @rule(producer_id=IDEMPOTENT, rows=st.integers(1, 3), size=SIZES)
    def produce(self, producer_id: int, rows: int, size: int) -> None:
        sequence = info_of(self.leader.headers, producer_id).last_sequence + 1
        payload = produced(producer_id, sequence, rows=rows, value=b"." * size)
        assert not self.leader.log.appender.append(payload, leader_epoch=self.epoch).duplicate
        self.enter()

    @rule(producer_id=TRANSACTIONAL, size=SIZES)
    def produce_in_transaction(self, producer_id: int, size: int) -> None:
        info, appender = info_of(self.leader.headers, producer_id), self.leader.log.appender
        guard = appender.begin_verification(producer_id, info.producer_epoch)
        payload = produced(
            producer_id, info.last_sequence + 1, epoch=info.producer_epoch, transactional=True, value=b"." * size
        )
        assert not appender.append(payload, guard=guard, leader_epoch=self.epoch).duplicate
        self.enter()

    @rule(producer_id=TRANSACTIONAL, commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        info = info_of(self.leader.headers, producer_id)
        if info.transaction_first_offset >= 0:
            self.leader.log.appender.append_marker(
                producer_id, info.producer_epoch + 1, 0, commit=commit, leader_epoch=self.epoch
            )
            self.enter()

    @rule()
    def roll(self) -> None:
        self.leader.log.appender.roll()
        self.leader.log.appender.append(produced(-1, -1, epoch=-1), leader_epoch=self.epoch)
        self.enter()

    @rule(leads=st.none() | WHICH)
    def a_calm_while(self, leads: bool | None) -> None:
        """The follower has all records, a segment is rolled, on the disk, and in the store of the replica that
        tiers."""
        self.roll()
        self.catch_up()
        for replica in (self.leader, self.follower):
            replica.log.flusher.flush()
        for one in (True, False) if leads is None else (leads,):
            self.replica(one).tier()

    def catch_up(self) -> None:
        for _ in range(10_000):
            if self.follower.headers == self.leader.headers:
                break
            self.replicate(1 << 20)
        assert self.follower.log.log_end_offset == self.leader.log.log_end_offset

    # --- replication

    @rule(max_bytes=st.sampled_from([1, 4_000, 1 << 20]))
    def replicate(self, max_bytes: int) -> None:
        """Replicate one piece, behind the common records."""
        leader, follower = self.leader.log, self.follower.log
        self.cut_follower()
        if follower.log_end_offset < leader.log_start_offset:
            follower.truncation.restart_at(leader.log_start_offset)
        end = follower.log_end_offset
        try:
            piece = leader.reader.read(end, max_bytes, to_log_end=True)
        except RemoteStorageError:
            return
        if piece is not None:
            bases = [s.base_offset for s in leader.segments]
            inside = end > follower.log_start_offset or end in {h.base_offset for h in self.leader.headers}
            if not inside:  # the leader's log begins in the middle of a batch
                follower.truncation.restart_at(follower.replica.first_header(piece.read()).base_offset)
            follower.replica.append(piece.read(), (), bases)
            piece.release()
        done = follower.log_end_offset
        self.follower.headers = [h for h in self.leader.headers if h.next_offset <= done]
        if done > leader.high_watermark:
            leader.raise_high_watermark(done)
        follower.raise_high_watermark(min(done, leader.high_watermark))
        follower.flusher.flush_to(min(leader.log_start_offset, follower.high_watermark))
        follower.retention.follow_log_start(leader.log_start_offset)

    def cut_follower(self) -> None:
        """To where its log and the leader's part."""
        end = 0
        for one, other in zip(self.leader.headers, self.follower.headers, strict=False):
            if one != other:
                break
            end = one.next_offset
        if self.follower.headers and end < self.follower.log.log_end_offset:
            self.follower.log.truncation.truncate_to(end)
            self.follower.forget_lost()

    @rule()
    def commit_without_the_follower(self) -> None:
        """It has left the ISR."""
        self.leader.log.raise_high_watermark(self.leader.log.log_end_offset)

    @precondition(lambda self: hasattr(self, "leader"))
    @rule()
    def fail_over(self) -> None:
        self.cut_follower()
        if self.follower.log.log_end_offset >= self.leader.log.high_watermark:
            self.leader, self.follower = self.follower, self.leader
            self.lead()

    # --- what happens to a replica

    @rule(leads=WHICH)
    def tier(self, leads: bool) -> None:
        self.replica(leads).tier()

    @rule(leads=WHICH, fails_at=st.integers(0, 12))
    def tier_with_a_failing_store(self, leads: bool, fails_at: int) -> None:
        with self.store.failing_after(fails_at):
            self.replica(leads).tier()

    @rule(leads=WHICH)
    def retain(self, leads: bool) -> None:
        self.replica(leads).retain()

    @rule(leads=WHICH)
    def flush(self, leads: bool) -> None:
        self.replica(leads).log.flusher.flush()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        log = self.leader.log
        log.flusher.flush_to(log.high_watermark)
        log.retention.delete_records(
            log.log_start_offset + int(share * max(0, log.high_watermark - log.log_start_offset))
        )
        self.leader.checkpoint()

    @rule(leads=WHICH)
    def restart(self, leads: bool) -> None:
        self.replica(leads).restart()

    @rule(leads=WHICH)
    def kill(self, leads: bool) -> None:
        self.replica(leads).kill()

    @rule()
    def the_follower_loses_power(self) -> None:
        self.follower.lose_power(self.rng)

    @rule(step_ms=st.sampled_from([1, 400, 1_500]))
    def time_passes(self, step_ms: int) -> None:
        self.clock.time_ms += step_ms

    @rule(policy=POLICY)
    def alter(self, policy: dict[str, Any]) -> None:
        for replica in (self.leader, self.follower):
            replica.policy = policy
            replica.log.reconfigure(LogConfig.from_settings(policy))

    @invariant()
    def what_is_known_of_producers_is_true(self) -> None:
        if hasattr(self, "leader"):
            self.leader.check()
            self.follower.check()

    def teardown(self) -> None:
        if not hasattr(self, "leader"):
            return
        self.catch_up()
        self.what_is_known_of_producers_is_true()
        for replica in (self.leader, self.follower):
            replica.log.close()
        for name in stored_names(self.store):
            self.store.file_system.rm_file(self.store.path(name.strip("/")))
        shutil.rmtree(self.directory)


ReplicatedProducers.TestCase.settings = settings(
    settings(), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestReplicatedProducers = ReplicatedProducers.TestCase
