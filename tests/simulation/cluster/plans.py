"""Kinds of lives of clusters: who is there, what goes wrong and how often, and what brokers and topics are told."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.plans import INPUT, OUTPUT, QUICK_HEARTBEATS, SMALL, Plan

SESSION_MS = 600
QUICK: Mapping[str, object] = {
    **SMALL,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 1_000,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 50,
    **QUICK_HEARTBEATS,
}
"""Failovers within a second; real clusters have twenty times as much."""
SAFE: Mapping[str, object] = {"min.insync.replicas": 2}
FLUSHED: Mapping[str, object] = {**SAFE, "flush.mode": "group"}
"""Any number of brokers may lose their power at any time."""


def _topics(configs: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    return {INPUT: configs, OUTPUT: configs}


CLUSTER_PLANS: dict[str, Plan] = {
    "cluster-kills": Plan(
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
        seconds=4.0,
        topics=_topics(SAFE),
        internal=SAFE,
    ),
    "cluster-power": Plan(
        {"producer": 2, "transactional": 1, "reader": 1},
        {"power cut": 4, "power cut at step": 3, "kill broker": 1, "jump clock": 1, "move leaders": 1},
        seconds=4.0,
        topics=_topics(FLUSHED),
        internal=FLUSHED,
    ),
    "cluster-links": Plan(
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
        seconds=4.0,
        topics=_topics(SAFE),
        internal=SAFE,
        delivery_s=(0.5, 60.0),
    ),
    "cluster-zookeeper": Plan(
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
        seconds=4.0,
        topics=_topics(SAFE),
        internal=SAFE,
    ),
    "cluster-transactions": Plan(
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
        seconds=4.0,
        topics=_topics(FLUSHED),
        internal=FLUSHED,
        think_s=0.05,
    ),
    "cluster-groups": Plan(
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
        seconds=4.0,
        topics=_topics(FLUSHED),
        internal=FLUSHED,
        think_s=0.1,
    ),
    "cluster-disks": Plan(
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
        seconds=4.0,
        topics=_topics(FLUSHED),
        internal=FLUSHED,
        disks=("/disk-1", "/disk-2"),
    ),
    "cluster-replaced": Plan(
        {"producer": 2, "reader": 1},
        {"replace broker": 4, "kill broker": 2, "power cut": 1, "isolate broker": 1, "move leaders": 1},
        seconds=5.0,
        topics=_topics(FLUSHED),
        internal=FLUSHED,
    ),
}
"""By name."""
