"""Suspicions: other in-sync replicas lead instead of a broker that two others do not reach, before its session ends."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog import errors
from sparklog.replication.cluster_image import NO_LEADER, PartitionImage
from sparklog.replication.controller.election import ElectionRules, bypass
from sparklog.replication.controller.model import AlterConfig, Elect, ElectionKind, Reassign, Suspect, Tick
from tests.unit.replication.controllersupport import TP, Cluster

MIN_2 = {"min_insync_replicas": 2}
REST_MS = 10_000


def suspect(cluster: Cluster, broker: int, *observers: int, **changes: Any) -> Any:
    epochs = {i: b.broker_epoch for i, b in cluster.brokers.items()}
    epoch = changes.get("epoch", epochs[broker])
    return cluster.ask(Suspect("s", broker, epoch, tuple((i, epochs.get(i, 0)) for i in observers)))


def test_a_suspected_leader_is_replaced_and_stays_registered() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    assert suspect(cluster, 1, 2, 3) is True
    after = cluster.partition()
    assert (after.leader, after.isr, after.elr, after.leader_epoch) == (2, (2, 3), (), 1)
    assert cluster.image.brokers[1].is_suspected and set(cluster.image.known) == {1, 2, 3}
    assert cluster.propose(2, [1, 2, 3]).isr == (1, 2, 3), "it rejoins when it fetches: then it lives"


def test_a_suspected_follower_holds_up_no_acknowledgement() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    suspect(cluster, 3, 1, 2)
    assert (cluster.partition().leader, cluster.partition().isr, cluster.partition().leader_epoch) == (1, (1, 2), 0)


def test_a_suspicion_takes_no_isr_below_its_minimum() -> None:
    """Only the end of the session does: the suspected broker then becomes an eligible leader."""
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    cluster.propose(1, [1, 2])
    suspect(cluster, 1, 2, 3)
    assert (cluster.partition().leader, cluster.partition().isr, cluster.partition().elr) == (2, (1, 2), ())
    cluster.stop(1)
    assert (cluster.partition().leader, cluster.partition().isr, cluster.partition().elr) == (2, (2,), (1,))


def test_a_suspicion_elects_no_replica_outside_the_isr() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], unclean_leader_election_enable=True)
    cluster.propose(1, [1])
    before = cluster.partition()
    assert suspect(cluster, 1, 2, 3) is True
    assert cluster.partition() == before, "an unclean election needs the end of the session"


def test_one_observer_is_not_enough() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    before = cluster.image
    assert suspect(cluster, 1, 2) is False
    assert suspect(cluster, 1, 1, 2) is False, "a broker does not observe itself"
    assert suspect(cluster, 1, 2, 9) is False, "an observer has to be registered"
    assert isinstance(suspect(cluster, 1, 2, 3, epoch=9), errors.StaleBrokerEpochError)
    assert cluster.image == before


def test_a_broker_is_suspected_once_in_ten_seconds() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    suspect(cluster, 1, 2, 3)
    cluster.propose(2, [1, 2, 3])
    before = cluster.partition()
    assert not cluster.image.brokers[1].is_suspected, "it was reached again"
    cluster.now_ms = REST_MS - 1
    cluster.tell(Tick())
    assert suspect(cluster, 1, 2, 3) is False
    assert cluster.partition() == before, "leaders come back later"
    cluster.now_ms = REST_MS
    cluster.tell(Tick())
    assert suspect(cluster, 2, 1, 3) is suspect(cluster, 1, 2, 3) is True
    assert cluster.partition().leader == 3


def test_a_suspicion_ends_without_a_sign_of_life() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], min_insync_replicas=3)
    suspect(cluster, 1, 2, 3)
    before = cluster.partition()
    assert (before.leader, before.isr) == (2, (1, 2, 3))
    refused = cluster.ask(Elect("e", ElectionKind.PREFERRED, (TP,)))[TP]
    assert isinstance(refused, errors.EligibleLeadersNotAvailableError) and "did not reach it" in str(refused)
    cluster.now_ms = REST_MS
    cluster.tell(Tick())
    assert not cluster.image.brokers[1].is_suspected and cluster.partition() == before
    cluster.now_ms = 300_000
    cluster.tell(Tick())
    assert cluster.partition().leader == 1


def test_a_suspected_broker_leads_before_no_broker_does() -> None:
    cluster = Cluster()
    cluster.create([[1, 2]])
    cluster.ask(AlterConfig("c", "t", {"min.insync.replicas": 2}))
    suspect(cluster, 1, 2, 3)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (1, 2))
    cluster.stop(2)
    assert cluster.partition().leader == 1
    assert suspect(cluster, 3, 1, 2) is False, "broker 2 is gone"


def test_a_new_life_is_not_suspected() -> None:
    cluster = Cluster()
    cluster.create([[1, 2]])
    suspect(cluster, 1, 2, 3)
    cluster.start(1)
    assert not cluster.image.brokers[1].is_suspected
    cluster.propose(2, [1, 2])
    assert cluster.ask(Elect("e", ElectionKind.PREFERRED, (TP,))) == {TP: None}


def test_a_reassignment_ends_without_a_suspected_leader() -> None:
    cluster = Cluster(4)
    cluster.create([[1, 2, 3]])
    cluster.ask(Reassign("r", {TP: (1, 2, 4)}))
    suspect(cluster, 1, 2, 3)
    cluster.propose(2, [1, 2, 3, 4])
    assert (cluster.partition().leader, cluster.partition().replicas) == (2, (1, 2, 4))


REPLICAS = (1, 2, 3, 4)
SUBSETS = st.sets(st.sampled_from(REPLICAS))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(REPLICAS), SUBSETS, SUBSETS, SUBSETS, st.sampled_from((*REPLICAS, NO_LEADER)), st.integers(1, 3),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_bypass_is_always_safe(
    victim: int, isr: set[int], dead: set[int], avoided: set[int], leader: int, min_insync: int, unclean: bool,
    recovering: bool,
) -> None:  # fmt: skip
    """The leader is a member of the former ISR; the ISR loses at most the suspected broker, and stays large enough."""
    members = tuple(r for r in REPLICAS if r in isr)
    before = PartitionImage(REPLICAS, leader if leader in isr else NO_LEADER, 5, 9, members, recovering=recovering)
    rules = ElectionRules(lambda r: r not in dead, min_insync, unclean, lambda r: r in avoided or r == victim)
    after = bypass(before, victim, rules)
    assert {*before.isr} - {victim} <= {*after.isr} <= {*before.isr}
    assert after.elr == before.elr == () or len(after.isr) < min_insync
    assert after.isr == before.isr or len(after.isr) >= min_insync
    if after.leader != before.leader:
        assert before.leader == victim and after.leader in isr - dead - avoided - {victim}
    elif before.leader == victim:
        assert not isr - dead - avoided - {victim} or recovering
    assert bypass(after, victim, rules) == after
