"""Looks up partition sizes and offsets at the brokers with a replica. A broker without one knows only the leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse, PartitionState
from sparklog.types import TopicPartition

TOPICS_ASKED = 200
"""Number of topics in one request to one broker."""
BROKER_MS = 5_000
"""Time limit for one answer in ms. A broker that exceeds the limit is left out of the result."""


def states_at(
    cluster: Cluster, asked: Mapping[int, Iterable[str]], deadline: Deadline
) -> dict[tuple[int, TopicPartition], PartitionState]:
    """Return the state of each partition by the broker that reports it. `asked` names the topics to request from each
    broker. Brokers that do not answer are left out."""
    found: dict[tuple[int, TopicPartition], PartitionState] = {}
    for broker, names in asked.items():
        endpoint = cluster.broker(broker)
        ordered = sorted(names)
        for first in range(0, len(ordered) if endpoint is not None else 0, TOPICS_ASKED):
            request = MetadataRequest(ordered[first : first + TOPICS_ASKED], with_schemas=False)
            try:
                answer = cluster.request(
                    Api.METADATA,
                    request,
                    MetadataResponse,
                    endpoint=endpoint,
                    timeout_ms=min(BROKER_MS, deadline.left_ms()),
                )
            except SparklogError:
                break  # a broker that is down must not fail the call
            for topic in answer.topics:
                for state in topic.partitions:
                    found[broker, TopicPartition(topic.name, state.partition)] = state
    return found


def with_figures(cluster: Cluster, topics: Sequence[TopicInfo], deadline: Deadline) -> list[TopicInfo]:
    """Return the topics with all partitions' offsets and sizes. Those of partitions that the answering broker has no
    replica of, or cannot read, come from their leaders; they stay -1 if the leader does not answer."""
    asked: dict[int, set[str]] = {}
    for topic in topics:
        for state in topic.partition_states:
            if state.high_watermark < 0 <= state.leader:
                asked.setdefault(state.leader, set()).add(topic.name)
    if not asked:
        return list(topics)
    found = states_at(cluster, asked, deadline)

    def best(topic: TopicInfo, state: PartitionState) -> PartitionState:
        told = found.get((state.leader, TopicPartition(topic.name, state.partition)))
        return state if state.high_watermark >= 0 or told is None or told.leader != state.leader else told

    return [replace(t, partition_states=tuple(best(t, s) for s in t.partition_states)) for t in topics]
