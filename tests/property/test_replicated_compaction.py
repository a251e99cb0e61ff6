"""Each of three replicas compacts its own log: all end with the state that was written, and nothing deleted comes
back."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.property.replica_machine import BROKER, RETENTION_MS, ReplicaMachine

GIVEN = st.fixed_dictionaries(
    {
        "segment.bytes": st.sampled_from([4096, 8000, 1 << 20]),
        "delete.retention.ms": st.sampled_from([0, RETENTION_MS, RETENTION_MS]),
        "cleanup.policy": st.sampled_from(["compact", "compact", "compact,delete", "delete"]),
        "retention.ms": st.just(-1),
        "retention.bytes": st.sampled_from([-1, -1, 6_000]),
    }
)


class ReplicatedCompaction(ReplicaMachine):
    @initialize(given=GIVEN, seed=st.integers(0, 1 << 32))
    def start(self, given: dict[str, Any], seed: int) -> None:
        self.begin(given, seed)

    @rule(broker=BROKER, roll=st.booleans())
    def compact(self, broker: int, roll: bool) -> None:
        if broker not in self.dead:
            self.group.compact(broker, roll=roll)

    def clean(self, broker: int) -> None:
        self.compact(broker, roll=True)

    @rule(broker=BROKER, calm_ms=st.sampled_from([1, RETENTION_MS + 1]))
    def compact_twice(self, broker: int, calm_ms: int) -> None:
        """Compact twice, with enough time in between for tombstones to go."""
        if broker not in self.dead:
            self.group.compact(broker)
            self.wait(calm_ms)
            self.group.compact(broker)

    @rule(broker=BROKER, key=st.sampled_from([b"a", b"b"]), how=st.sampled_from(["leave", "kill", "power cut"]))
    def delete_without(self, broker: int, key: bytes, how: str) -> None:
        """Delete a key, and let the tombstone expire, while a replica is away, or has lost it."""
        leader = self.group.image.leader
        if broker == leader or broker in self.group.out:
            return
        self.append([(key, b"deleted")])
        self.sync()
        self.flush(broker)
        if how == "leave":
            self.leave(broker)
        self.append([(key, None)])
        self.sync()
        if how != "leave":
            self.crash(broker, how)
        self.compact_twice(leader, RETENTION_MS + 1)


ReplicatedCompaction.TestCase.settings = settings(
    settings(), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestReplicatedCompaction = ReplicatedCompaction.TestCase
