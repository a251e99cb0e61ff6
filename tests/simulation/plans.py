"""Kinds of lives, of one broker and of clusters: clients, faults and their frequencies, coordination, settings.

Each kind aims its faults at one area; a seed selects its kind (`kind_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SMALL: Mapping[str, object] = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "num.io.threads": 2,
}
"""Settings for quick starts, which change no rule."""
INPUT, OUTPUT = "in", "out"
KEYED, AGED = "keyed", "aged"
HOUR_MS = 3_600_000


class Plan(NamedTuple):
    """The plan of a kind of life."""

    clients: Mapping[str, int]
    faults: Mapping[str, int]
    """Frequencies of the faults (methods of `Trouble`)."""
    seconds: float = 1.0
    settings: Mapping[str, object] = {}
    """Settings of the broker; names after `topic.` are settings of all topics."""
    topics: Mapping[str, Mapping[str, object]] = {INPUT: {}, OUTPUT: {}}
    """Topics and their settings."""
    internal: Mapping[str, object] | None = None
    """Settings of the internal topics, which then exist from the start; None: they are created at their first use."""
    disks: tuple[str, ...] = ()
    """Log directories beside the data directory, for the faults of disks."""
    has_store: bool = False
    """True if there is an object store."""
    brokers: tuple[int, ...] = (1,)
    """Possible numbers of brokers; the seed chooses."""
    has_zookeeper: bool = False
    """True if brokers coordinate through ZooKeeper; otherwise there is one broker, with the store in its data
    directory."""
    replicas_differ: bool = False
    """True if the files of replicas may differ, because each is cleaned alone. Readers get the same records."""
    slow_share: float = 0.02
    """Share of messages with a delay."""
    think_s: float = 0.2
    calls_in_flight: int = 6
    delivery_s: tuple[float, ...] = (60.0,)
    """Delivery timeouts of producers; each uses one of them."""

    def of_length(self, length: float) -> Plan:
        """Return the plan with its time multiplied by `length`."""
        return self._replace(seconds=self.seconds * length)


EVERYBODY = {"producer": 2, "transactional": 1, "shared": 1, "reader": 1, "uncommitted": 1, "member": 2, "pipeline": 1}
SMALL_COMPACTED = {"segment.bytes": 4096, "min.cleanable.dirty.ratio": 0.01, "file.delete.delay.ms": 0}
COMPACTED = {"cleanup.policy": "compact", **SMALL_COMPACTED}
EXPIRING = {"retention.ms": HOUR_MS, "segment.bytes": 4096, "file.delete.delay.ms": 0}
AGED_CONFIG = {"retention.bytes": 12_000, "segment.bytes": 4096, "file.delete.delay.ms": 0}
TIERED = {
    "remote.storage.enable": True,
    "segment.bytes": 4096,
    "local.retention.bytes": 4096,
    "retention.ms": HOUR_MS,
    "file.delete.delay.ms": 0,
}
OFTEN = {
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 100,
    "remote.log.manager.task.interval.ms": 100,
    "log.flush.interval.ms": 300,
}
"""Settings for frequent background work in lives of a few seconds."""

QUICK_HEARTBEATS = {"group.consumer.heartbeat.interval.ms": 100}

BROKERS = (3, 3, 3, 3, 4, 5)
"""Numbers of brokers of a cluster."""
SESSION_MS = 600
QUICK: Mapping[str, object] = {
    **SMALL,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 1_000,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 50,
    **QUICK_HEARTBEATS,
}
"""Settings for failovers within a second; real clusters have twenty times as much."""
SAFE: Mapping[str, object] = {"min.insync.replicas": 2}
FLUSHED: Mapping[str, object] = {**SAFE, "flush.mode": "group"}
"""Settings with which any number of brokers may lose their power at any time."""


def _cluster(
    promise: Mapping[str, object],
    clients: Mapping[str, int],
    faults: Mapping[str, int],
    *,
    topics: Mapping[str, Mapping[str, object]] = {INPUT: {}, OUTPUT: {}},
    internal: Mapping[str, object] = {},
    seconds: float = 4.0,
    brokers: tuple[int, ...] = BROKERS,
    **more: Any,
) -> Plan:
    """Return the plan of a cluster. `promise`: settings of all topics, the internal ones included, beside their own."""
    promised = {name: {**promise, **configs} for name, configs in topics.items()}
    return Plan(
        clients,
        faults,
        seconds=seconds,
        topics=promised,
        internal={**promise, **internal},
        brokers=brokers,
        has_zookeeper=True,
        **more,
    )


PLANS: dict[str, Plan] = {
    "kills": Plan(
        EVERYBODY,
        {
            "kill broker": 3,
            "kill client": 3,
            "reset connections": 3,
            "cut client": 1,
            "stop broker": 1,
            "pause client": 1,
            "pause broker": 1,
            "zombie client": 3,
            "late requests": 1,
        },
    ),
    "power": Plan(
        {"producer": 2, "transactional": 1, "shared": 1, "reader": 1, "member": 1, "pipeline": 1},
        {"power cut": 2, "power cut at step": 4, "kill client": 1, "jump clock": 1},
        settings={"topic.flush.mode": "group"},
    ),
    "compaction": Plan(
        {"transactional": 2, "shared": 1, "reader": 1, "member": 1, "pipeline": 1, "keyed": 2},
        {"kill broker": 2, "power cut": 1, "power cut at step": 3, "kill client": 1, "zombie client": 1},
        seconds=2.0,
        settings={"topic.flush.mode": "group", **OFTEN},
        topics={INPUT: COMPACTED, OUTPUT: COMPACTED, KEYED: COMPACTED},
        internal=SMALL_COMPACTED,
        think_s=0.1,
    ),
    "retention": Plan(
        {"producer": 1, "transactional": 1, "reader": 1, "member": 1, "aged": 1, "deleter": 1},
        {"jump clock far": 4, "kill broker": 2, "stop broker": 1, "power cut": 1, "power cut at step": 2},
        seconds=1.5,
        settings={"topic.flush.mode": "group", **OFTEN},
        topics={INPUT: EXPIRING, OUTPUT: {}, AGED: AGED_CONFIG},
        think_s=0.1,
    ),
    "tiering": Plan(
        {"producer": 2, "transactional": 1, "shared": 1, "reader": 1, "uncommitted": 1, "member": 1},
        {"kill broker": 2, "power cut": 1, "power cut at step": 3, "store fails": 3, "store works": 3, "jump clock": 1},
        seconds=1.5,
        settings={"topic.flush.mode": "group", **OFTEN},
        topics={INPUT: TIERED, OUTPUT: TIERED},
        has_store=True,
        think_s=0.1,
    ),
    "disks": Plan(
        {"producer": 2, "transactional": 2, "shared": 1, "reader": 1, "uncommitted": 1, "member": 1, "pipeline": 1},
        {
            "full disk": 4,
            "one disk error": 3,
            "shortage": 2,
            "space again": 4,
            "broken disk": 1,
            "new disk": 2,
            "kill broker": 1,
            "power cut": 1,
            "late requests": 1,
        },
        seconds=1.5,
        settings={"topic.flush.mode": "group", "log.flush.interval.ms": 300},
        disks=("/disk-1", "/disk-2"),
        think_s=0.1,
        calls_in_flight=12,
    ),
    "producers": Plan(
        {"producer": 2, "reader": 1},
        {"reset connections": 2, "late requests": 6, "late answers": 3, "kill broker": 1},
        think_s=0.02,
        calls_in_flight=40,
        delivery_s=(0.3, 60.0),
    ),
    "gaps": Plan(
        {"producer": 3, "reader": 1},
        {"late requests": 8, "late answers": 1},
        slow_share=0.3,
        think_s=0.02,
        calls_in_flight=40,
        delivery_s=(0.3,),
    ),
    "refusals": Plan(
        {"beginner": 4, "reader": 1},
        {"one full write": 8, "full disk": 1, "space again": 2, "late requests": 1},
        disks=("/disk-1", "/disk-2"),
        think_s=0.02,
    ),
    "intruders": Plan(
        {"producer": 4, "twins": 1, "inventor": 1, "squatter": 1, "reader": 1},
        {"kill client": 4, "reset connections": 1, "kill broker": 1},
        think_s=0.05,
    ),
    "transactions": Plan(
        {"transactional": 3, "reader": 1},
        {"zombie client": 4, "kill client": 3, "late requests": 3, "kill broker": 2, "kill broker at marker": 2},
        think_s=0.02,
    ),
    "shared": Plan(
        {"shared": 3, "reader": 1},
        {"zombie client": 5, "kill client": 4, "late requests": 1, "kill broker": 1, "kill broker at marker": 1},
        think_s=0.02,
    ),
    "groups": Plan(
        {"producer": 1, "member": 2, "pipeline": 2, "mixed": 1, "auditor": 1},
        {
            "kill client": 3,
            "pause client": 4,
            "late requests": 3,
            "zombie client": 1,
            "reset connections": 1,
            "kill broker": 1,
            "leave group": 3,
        },
        seconds=1.5,
        settings=QUICK_HEARTBEATS,
        think_s=0.1,
    ),
    "commits": Plan(
        {"producer": 2, "member": 1, "trespasser": 1, "auditor": 2},
        {"late requests": 6, "leave group": 2, "reset connections": 1},
        seconds=2.0,
        settings=QUICK_HEARTBEATS,
        think_s=0.05,
    ),
    "cluster-kills": _cluster(
        SAFE,
        {"producer": 1, "transactional": 1, "reader": 1, "member": 1},
        {
            "kill broker": 4,
            "stop broker": 2,
            "pause broker": 2,
            "kill client": 1,
            "reset connections": 1,
            "delete controller": 1,
            "move leaders": 2,
        },
    ),
    "cluster-power": _cluster(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1},
        {"power cut": 4, "power cut at step": 3, "kill broker": 1, "jump clock": 1, "move leaders": 1},
    ),
    "cluster-links": _cluster(
        SAFE,
        {"producer": 2, "transactional": 1, "reader": 2},
        {
            "isolate broker": 3,
            "cut link": 4,
            "cut client": 2,
            "late requests": 2,
            "late answers": 1,
            "reset connections": 1,
            "move leaders": 1,
            "kill broker": 1,
        },
        delivery_s=(0.5, 60.0),
    ),
    "cluster-zookeeper": _cluster(
        SAFE,
        {"producer": 2, "member": 1, "reader": 1},
        {
            "cut zookeeper": 3,
            "expire session": 3,
            "zookeeper away": 1,
            "delete controller": 2,
            "kill broker": 2,
            "move leaders": 2,
            "pause broker": 1,
        },
    ),
    "cluster-transactions": _cluster(
        FLUSHED,
        {"transactional": 2, "shared": 1, "reader": 1},
        {
            "kill broker": 3,
            "move leaders": 3,
            "zombie client": 2,
            "kill client": 1,
            "isolate broker": 1,
            "cut link": 1,
            "late requests": 1,
        },
        think_s=0.05,
    ),
    "cluster-groups": _cluster(
        FLUSHED,
        {"producer": 1, "member": 2, "pipeline": 1},
        {
            "kill broker": 3,
            "move leaders": 3,
            "stop broker": 1,
            "kill client": 1,
            "leave group": 1,
            "pause client": 1,
            "isolate broker": 1,
        },
        think_s=0.1,
    ),
    "cluster-disks": _cluster(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1},
        {
            "full disk": 3,
            "space again": 4,
            "one disk error": 3,
            "broken disk": 1,
            "new disk": 2,
            "kill broker": 1,
            "move leaders": 1,
        },
        disks=("/disk-1", "/disk-2"),
    ),
    "cluster-replaced": _cluster(
        FLUSHED,
        {"producer": 2, "reader": 1},
        {"replace broker": 4, "kill broker": 2, "power cut": 1, "isolate broker": 1, "move leaders": 1},
        seconds=5.0,
    ),
    "cluster-reassigned": _cluster(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1, "member": 1},
        {
            "reassign": 6,
            "cancel reassignments": 1,
            "kill broker": 2,
            "power cut": 1,
            "isolate broker": 1,
            "move leaders": 1,
        },
        brokers=(4, 4, 5),
    ),
    "cluster-compaction": _cluster(
        FLUSHED,
        {"transactional": 2, "keyed": 2, "reader": 1, "member": 1},
        {
            "kill broker": 1,
            "power cut": 1,
            "power cut at step": 1,
            "isolate broker": 1,
            "move leaders": 4,
            "kill client": 2,
        },
        topics={INPUT: COMPACTED, OUTPUT: COMPACTED, KEYED: COMPACTED},
        internal=SMALL_COMPACTED,
        settings=OFTEN,
        think_s=0.02,
        replicas_differ=True,
    ),
    "cluster-retention": _cluster(
        FLUSHED,
        {"producer": 1, "transactional": 1, "reader": 1, "member": 1, "aged": 1, "deleter": 1},
        {"jump clock far": 3, "kill broker": 2, "power cut at step": 2, "isolate broker": 1, "move leaders": 2},
        topics={INPUT: EXPIRING, OUTPUT: {}, AGED: AGED_CONFIG},
        settings=OFTEN,
        think_s=0.1,
        replicas_differ=True,
    ),
    "cluster-tiering": _cluster(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1, "uncommitted": 1},
        {
            "kill broker": 2,
            "power cut": 1,
            "power cut at step": 2,
            "isolate broker": 1,
            "move leaders": 2,
            "store fails": 2,
            "store works": 2,
        },
        topics={INPUT: TIERED, OUTPUT: TIERED},
        settings=OFTEN,
        has_store=True,
        think_s=0.1,
        replicas_differ=True,
    ),
    "cluster-intruders": _cluster(
        SAFE,
        {"producer": 2, "twins": 1, "squatter": 1, "garbage": 1, "false broker": 1, "reader": 1},
        {"kill client": 2, "kill broker": 2, "move leaders": 2, "pause broker": 1, "isolate broker": 1},
        think_s=0.05,
    ),
    "cluster-joins": _cluster(
        SAFE,
        {"producer": 2, "transactional": 1, "reader": 1},
        {"late join": 4, "unheard answer": 2, "lagging mark": 2, "move leaders": 1, "kill client": 1},
        seconds=8.0,
        brokers=(4, 4, 5),
        think_s=0.1,
    ),
    "cluster-outages": _cluster(
        SAFE,
        {"producer": 2, "transactional": 1, "reader": 1, "member": 1},
        {"outage": 2, "kill one by one": 1, "move leaders": 3, "isolate broker": 2, "cut link": 1, "kill client": 1},
        seconds=6.0,
        think_s=0.1,
    ),
    "cluster-blackouts": _cluster(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1, "member": 1},
        {"blackout": 2, "blackout at step": 2, "outage": 1, "power cut at step": 1, "move leaders": 3, "cut link": 2},
        seconds=6.0,
        think_s=0.1,
    ),
}
"""Plans by name: lives of one broker, and of clusters."""

CLUSTER_KINDS = tuple(kind for kind, plan in PLANS.items() if plan.has_zookeeper)
BROKER_KINDS = tuple(kind for kind in PLANS if kind not in CLUSTER_KINDS)


def kind_of(seed: int, kinds: Sequence[str] = tuple(PLANS)) -> str:
    """Return the kind of life that a seed selects from `kinds`."""
    return kinds[seed % len(kinds)]
