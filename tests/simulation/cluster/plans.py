"""Kinds of lives of clusters: their clients, faults and frequencies, and the settings of brokers and topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.simulation.plans import (
    AGED,
    AGED_CONFIG,
    COMPACTED,
    EXPIRING,
    INPUT,
    KEYED,
    OFTEN,
    OUTPUT,
    QUICK_HEARTBEATS,
    SMALL,
    SMALL_COMPACTED,
    TIERED,
    Plan,
)

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


def _plan(
    promise: Mapping[str, object],
    clients: Mapping[str, int],
    faults: Mapping[str, int],
    *,
    topics: Mapping[str, Mapping[str, object]] = {INPUT: {}, OUTPUT: {}},
    internal: Mapping[str, object] = {},
    seconds: float = 4.0,
    **more: Any,
) -> Plan:
    """Return a plan. `promise`: settings of all topics, the internal ones included, beside their own."""
    promised = {name: {**promise, **configs} for name, configs in topics.items()}
    return Plan(clients, faults, seconds=seconds, topics=promised, internal={**promise, **internal}, **more)


CLUSTER_PLANS: dict[str, Plan] = {
    "cluster-kills": _plan(
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
    "cluster-power": _plan(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1},
        {"power cut": 4, "power cut at step": 3, "kill broker": 1, "jump clock": 1, "move leaders": 1},
    ),
    "cluster-links": _plan(
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
    "cluster-zookeeper": _plan(
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
    "cluster-transactions": _plan(
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
    "cluster-groups": _plan(
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
    "cluster-disks": _plan(
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
    "cluster-replaced": _plan(
        FLUSHED,
        {"producer": 2, "reader": 1},
        {"replace broker": 4, "kill broker": 2, "power cut": 1, "isolate broker": 1, "move leaders": 1},
        seconds=5.0,
    ),
    "cluster-reassigned": _plan(
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
    "cluster-compaction": _plan(
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
    "cluster-retention": _plan(
        FLUSHED,
        {"producer": 1, "transactional": 1, "reader": 1, "member": 1, "aged": 1, "deleter": 1},
        {"jump clock far": 3, "kill broker": 2, "power cut at step": 2, "isolate broker": 1, "move leaders": 2},
        topics={INPUT: EXPIRING, OUTPUT: {}, AGED: AGED_CONFIG},
        settings=OFTEN,
        think_s=0.1,
        replicas_differ=True,
    ),
    "cluster-tiering": _plan(
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
    "cluster-intruders": _plan(
        SAFE,
        {"producer": 2, "twins": 1, "squatter": 1, "garbage": 1, "false broker": 1, "reader": 1},
        {"kill client": 2, "kill broker": 2, "move leaders": 2, "pause broker": 1, "isolate broker": 1},
        think_s=0.05,
    ),
    "cluster-joins": _plan(
        SAFE,
        {"producer": 2, "transactional": 1, "reader": 1},
        {"late join": 4, "unheard answer": 2, "lagging mark": 2, "move leaders": 1, "kill client": 1},
        seconds=8.0,
        brokers=(4, 4, 5),
        think_s=0.1,
    ),
    "cluster-outages": _plan(
        SAFE,
        {"producer": 2, "transactional": 1, "reader": 1, "member": 1},
        {"outage": 2, "kill one by one": 1, "move leaders": 3, "isolate broker": 2, "cut link": 1, "kill client": 1},
        seconds=6.0,
        think_s=0.1,
    ),
    "cluster-blackouts": _plan(
        FLUSHED,
        {"producer": 2, "transactional": 1, "reader": 1, "member": 1},
        {"blackout": 2, "blackout at step": 2, "outage": 1, "power cut at step": 1, "move leaders": 3, "cut link": 2},
        seconds=6.0,
        think_s=0.1,
    ),
}
"""Plans by name."""
