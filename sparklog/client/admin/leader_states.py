"""Looks up partition sizes and offsets at the brokers with a replica. A broker without one knows only the leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparklog.client.admin.call import BROKER_MS, Call
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import SparklogError
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse, PartitionState
from sparklog.types import TopicPartition

TOPICS_PER_REQUEST = 200
"""Number of topics in one request to one broker."""


def states_at(call: Call, topics_of: Mapping[int, Iterable[str]]) -> dict[tuple[int, TopicPartition], PartitionState]:
    """Return the state of each partition by the broker that reports it. `topics_of` names the topics to request from
    each broker. Brokers that do not answer are left out."""
    states: dict[tuple[int, TopicPartition], PartitionState] = {}
    for broker, names in topics_of.items():
        endpoint = call.cluster.broker(broker)
        ordered = sorted(names)
        for first in range(0, len(ordered) if endpoint is not None else 0, TOPICS_PER_REQUEST):
            request = MetadataRequest(ordered[first : first + TOPICS_PER_REQUEST], with_schemas=False)
            try:
                answer = call.ask_broker(endpoint, request, MetadataResponse, BROKER_MS)
            except SparklogError:
                break  # a broker that is down must not fail the call
            for topic in answer.topics:
                for state in topic.partitions:
                    states[broker, TopicPartition(topic.name, state.partition)] = state
    return states


def with_figures(call: Call, topics: Sequence[TopicInfo]) -> list[TopicInfo]:
    """Return the topics with all partitions' offsets and sizes. Those of partitions that the answering broker has no
    replica of, or cannot read, come from their leaders; they stay -1 if the leader does not answer."""
    topics_of: dict[int, set[str]] = {}
    for topic in topics:
        for state in topic.partition_states:
            if state.high_watermark < 0 <= state.leader:
                topics_of.setdefault(state.leader, set()).add(topic.name)
    if not topics_of:
        return list(topics)
    states = states_at(call, topics_of)

    def best(topic: TopicInfo, state: PartitionState) -> PartitionState:
        at_leader = states.get((state.leader, TopicPartition(topic.name, state.partition)))
        if state.high_watermark >= 0 or at_leader is None or at_leader.leader != state.leader:
            return state
        return at_leader

    return [replace(t, partition_states=tuple(best(t, s) for s in t.partition_states)) for t in topics]
