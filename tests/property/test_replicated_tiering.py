"""A tiered topic with three replicas: records that the leader has copied, and all replicas have released, exist exactly
once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from sparklog.log.housekeeping.tier_run import Role, tier_log
from sparklog.log.model.log_config import LogConfig
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from tests.property.replica_machine import BROKER, ReplicaMachine
from tests.property.tiering_machine import POLICY
from tests.support.compaction import SETTINGS
from tests.support.tiering import FailingStore, memory_store, stored_names
from tests.unit.broker.cluster.replica_group import BROKERS


class ReplicatedTiering(ReplicaMachine):
    """`looked`: the leader epoch in which a broker has searched for the copies of others."""

    @initialize(policy=POLICY, tiered=st.integers(0, 3), seed=st.integers(0, 1 << 32))
    def start(self, policy: dict[str, Any], tiered: int, seed: int) -> None:
        self.where = Path(tempfile.mkdtemp(prefix="replicated-tiering-"))
        self.store, self.looked = FailingStore(memory_store().url), dict[int, int]()
        self.begin({"cleanup.policy": "delete", **policy}, seed)
        for _ in range(tiered):
            self.a_calm_while()

    def remote(self, broker: int) -> RemoteAccess:
        return RemoteAccess(self.store, ReadCache(self.where / str(broker), 1 << 20))

    @rule(broker=BROKER)
    def tier(self, broker: int) -> None:
        if broker in self.dead:
            return
        log, epoch = self.group[broker], self.group.image.leader_epoch
        role = Role.FOLLOWER
        if broker == self.group.image.leader:
            role = Role.LEADER if self.looked.get(broker) == epoch else Role.NEW_LEADER
        tier_log(log, self.store, self.clock, role=role)
        self.looked[broker] = epoch
        log.retention.remove_dropped()

    def has_all(self, broker: int) -> bool:
        """A leader that has lost the beginning of its log has deleted its copies, too: another one has to delete these
        records, before others can copy its log."""
        there = stored_names(self.store)
        return all(any(s.prefix in name for name in there) for s in self.group[broker].tier.state.finished)

    def clean(self, broker: int) -> None:
        if broker not in self.dead:
            self.group[broker].appender.begin_segment()
            self.flush(broker)
            self.tier(broker)

    def settle(self) -> None:
        """Tell the leader the deletions of others in the store; its followers begin at its log start."""
        self.tier(self.group.image.leader)
        self.retain(self.group.image.leader)
        self.group.sync()

    @rule(broker=BROKER, fails_at=st.integers(0, 12))
    def tier_with_a_failing_store(self, broker: int, fails_at: int) -> None:
        with self.store.failing_after(fails_at):
            self.tier(broker)

    @rule()
    def a_calm_while(self) -> None:
        """A segment more is in the store, and released where it is to be."""
        for value in (b"1", b"2"):
            self.append([(b"calm", value)])
        self.sync()
        self.group.leader.log.appender.begin_segment()
        for broker in (self.group.image.leader, *BROKERS):
            self.flush(broker)
            self.tier(broker)

    @rule(policy=POLICY)
    def alter(self, policy: dict[str, Any]) -> None:
        self.group.alter({"cleanup.policy": "delete", **policy})
        for broker in set(BROKERS) - self.dead:
            self.group[broker].reconfigure(LogConfig.from_settings(SETTINGS | policy | {"cleanup.policy": "delete"}))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "group"):
            for name in stored_names(self.store):
                self.store.file_system.rm_file(self.store.path(name.strip("/")))
            shutil.rmtree(self.where)


ReplicatedTiering.TestCase.settings = settings(
    settings(), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestReplicatedTiering = ReplicatedTiering.TestCase
