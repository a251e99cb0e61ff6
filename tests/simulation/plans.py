"""Kinds of lives: their clients, their faults and frequencies, and the broker's settings. Each kind aims its faults at
one area; a seed selects its kind (`plan_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
    internal: Mapping[str, object] = {}
    """Settings of the broker's own topics, set after their creation."""
    disks: tuple[str, ...] = ()
    """Log directories beside the data directory, for the faults of disks."""
    has_store: bool = False
    """True if there is an object store."""
    brokers: tuple[int, ...] = ()
    """Numbers of brokers for a cluster; () for the default."""
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

PLANS: dict[str, Plan] = {
    "kills": Plan(
        EVERYBODY,
        {
            "kill broker": 3,
            "kill client": 3,
            "reset connections": 3,
            "cut network": 1,
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
        seconds=1.5,
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
}
"""Plans by name."""


def plan_of(seed: int) -> str:
    """Return the kind of life that a seed selects."""
    names = tuple(PLANS)
    return names[seed % len(names)]
