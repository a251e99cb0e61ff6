"""The content of `sparklog cluster describe`, computed from descriptions of the cluster and of its topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sparklog.client.cluster_view import is_offline, is_under_min_insync, leads, settled_replicas, skew

if TYPE_CHECKING:
    from sparklog.client.admin.admin import TopicDescription
    from sparklog.client.admin.cluster_admin import ClusterDescription


def summarize(cluster: ClusterDescription, topics: Collection[TopicDescription]) -> dict[str, Any]:
    """Return a summary for JSON, with partitions named `topic-number`.

    `problems` is a list of sentences. A missing broker without replicas has the state "gone" and is not a problem.
    """
    led = leads(topics)
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    listed: dict[str, list[str]] = {
        name: [] for name in ("offline", "under_min_insync", "under_replicated", "not_preferred", "reassigning")
    }
    for topic in topics:
        for p in topic.partition_details:
            name = f"{topic.name}-{p.partition}"
            replicas.update(p.replicas)
            in_sync.update(p.isr)
            if is_offline(p):
                listed["offline"].append(name)
            elif is_under_min_insync(topic, p):
                listed["under_min_insync"].append(name)
            if not set(settled_replicas(p)) <= set(p.isr):
                listed["under_replicated"].append(name)
            if p.adding or p.removing:
                listed["reassigning"].append(name)
            elif p.leader >= 0 and p.replicas and p.leader != p.replicas[0]:
                listed["not_preferred"].append(name)
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
        broker |= {"leads": led[broker_id], "replicas": replicas[broker_id], "in_sync": in_sync[broker_id]}
    alive = [b.broker_id for b in cluster.brokers]
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": brokers,
        "topics": len(topics),
        "partitions": sum(len(topic.partition_details) for topic in topics),
        **listed,
        "throttle_bytes": cluster.throttle_bytes,
        "leader_skew": skew([led[i] for i in alive]),
        "replica_skew": skew([replicas[i] for i in alive]),
        "problems": _problems(cluster, listed, [i for i in cluster.missing if replicas[i]]),
    }


def _problems(cluster: ClusterDescription, listed: dict[str, list[str]], missing: list[int]) -> list[str]:
    problems = []
    if cluster.controller_id < 0:
        problems.append("no controller: is ZooKeeper running, and can the brokers reach it?")
    problems += [f"broker {i} is down, and has replicas: start it, or decommission it" for i in missing]
    texts = {
        "offline": "offline: without a leader, their records can neither be read nor written",
        "under_min_insync": "below min.insync.replicas: acks=all is refused",
        "under_replicated": "under-replicated: another failure can make them unavailable",
    }
    problems += [f"{len(listed[name])} partitions are {text}" for name, text in texts.items() if listed[name]]
    return problems
