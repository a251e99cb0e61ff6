"""The content of `sparklog cluster describe`, computed from descriptions of the cluster and of its topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.client.admin.admin import TopicDescription
    from sparklog.client.admin.cluster_admin import ClusterDescription


def summarize(cluster: ClusterDescription, topics: Iterable[TopicDescription]) -> dict[str, Any]:
    """Return a summary for JSON, with partitions named `topic-number`.

    `problems` is a list of sentences. A missing broker without replicas has the state "gone" and is not a problem.
    """
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    by_state: dict[str, list[str]] = {
        name: [] for name in ("offline", "under_min_insync", "under_replicated", "not_preferred", "reassigning")
    }
    counts = Counter[str]()
    for topic in topics:
        counts["topics"] += 1
        min_insync = int(str(topic.setting("min.insync.replicas")))
        for p in topic.partition_details:
            name = f"{topic.name}-{p.partition}"
            counts["partitions"] += 1
            leads[p.leader] += 1
            replicas.update(p.replicas)
            in_sync.update(p.isr)
            targets = [r for r in p.replicas if r not in p.adding]
            if p.leader < 0 or p.error_code:
                by_state["offline"].append(name)
            elif len(p.isr) < min(min_insync, len(targets)):
                by_state["under_min_insync"].append(name)
            if not set(targets) <= set(p.isr):
                by_state["under_replicated"].append(name)
            if p.adding or p.removing:
                by_state["reassigning"].append(name)
            elif p.leader >= 0 and p.replicas and p.leader != p.replicas[0]:
                by_state["not_preferred"].append(name)
    brokers = [
        {
            "broker_id": b.broker_id,
            "address": f"{b.host}:{b.port}",
            "rack": b.rack,
            "state": "stopping" if b.is_stopping else "cordoned" if b.is_cordoned else "up",
        }
        for b in cluster.brokers
    ]
    brokers += [
        {"broker_id": i, "address": "", "rack": None, "state": "missing" if replicas[i] else "gone"}
        for i in cluster.missing
    ]
    brokers.sort(key=lambda b: int(str(b["broker_id"])))
    for broker in brokers:
        broker_id = int(str(broker["broker_id"]))
        broker |= {"leads": leads[broker_id], "replicas": replicas[broker_id], "in_sync": in_sync[broker_id]}
    present = [b.broker_id for b in cluster.brokers]
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": brokers,
        **{name: counts[name] for name in ("topics", "partitions")},
        **by_state,
        "throttle_bytes": cluster.throttle_bytes,
        "leader_skew": _skew([leads[i] for i in present]),
        "replica_skew": _skew([replicas[i] for i in present]),
        "problems": _problems(cluster, by_state, [i for i in cluster.missing if replicas[i]]),
    }


def _skew(loads: list[int]) -> float:
    """Return the largest load divided by the mean load; 1 if all loads are 0."""
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


def _problems(cluster: ClusterDescription, by_state: dict[str, list[str]], missing: list[int]) -> list[str]:
    problems = []
    if cluster.controller_id < 0:
        problems.append("no controller: is ZooKeeper running, and can the brokers reach it?")
    problems += [f"broker {i} is down, and has replicas: start it, or decommission it" for i in missing]
    texts = {
        "offline": "offline: without a leader, their records can neither be read nor written",
        "under_min_insync": "below min.insync.replicas: acks=all is refused",
        "under_replicated": "under-replicated: another failure can make them unavailable",
    }
    problems += [f"{len(by_state[name])} partitions are {text}" for name, text in texts.items() if by_state[name]]
    return problems
