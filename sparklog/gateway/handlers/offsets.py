"""The APIs LIST_OFFSETS and OFFSET_FOR_LEADER_EPOCH."""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.gateway.handlers.entries import share_turns
from sparklog.gateway.handlers.names import is_partition, missing_code
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    EpochEndOffset,
    EpochPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)
from sparklog.types import READ_COMMITTED

TIMESTAMP_MIN = -5
TIMESTAMP_MAX = 2**62
"""Largest timestamp that the broker accepts. Larger ones are replaced by it; the result is the same, because no record
is as late."""


async def list_offsets(session: Session, request: requests.ListOffsets, version: int) -> responses.ListOffsets:
    """Answer with the offsets of timestamps, and with the first and last offsets of partitions."""
    requested = [(t["name"], p) for t in request["topics"] for p in t["partitions"]]
    partitions = [
        ListOffsetsPartition(
            name, p["partition_index"], min(p["timestamp"], TIMESTAMP_MAX), p.get("current_leader_epoch", -1)
        )
        for name, p in requested
        if is_partition(name, p["partition_index"]) and p["timestamp"] >= TIMESTAMP_MIN
    ]
    isolation = READ_COMMITTED if request.get("isolation_level") == READ_COMMITTED else 0
    results: dict[tuple[str, int], ListOffsetsResult] = {}
    failure: Kafka | None = None
    throttle_ms = 0
    if partitions:
        message = ListOffsetsRequest(partitions, isolation)
        try:
            answer = await (await session.broker()).ask(Api.LIST_OFFSETS, message, ListOffsetsResponse)
        except SparklogError as e:
            failure = code_of(e, of_partition=True)
        else:
            await share_turns(session, len(partitions))
            results = {(r.topic, r.partition): r for r in answer.results}
            throttle_ms = answer.throttle_ms

    def outcome(name: str, p: requests.ListOffsetsTopicPartition) -> responses.ListOffsetsTopicPartition:
        result = results.get((name, p["partition_index"]))
        if result is None:
            code = failure or missing_code(name)
            if p["timestamp"] < TIMESTAMP_MIN:
                code = Kafka.UNSUPPORTED_VERSION
            return {"partition_index": p["partition_index"], "error_code": code, "timestamp": -1, "offset": -1}
        return {
            "partition_index": p["partition_index"],
            "error_code": kafka_code(result.error_code, of_partition=True),
            "timestamp": result.timestamp_ms,
            "offset": result.offset,
            "leader_epoch": result.leader_epoch,
        }

    list_of = session.gateway.time_slices.list_of
    return {
        "throttle_time_ms": throttle_ms,
        "topics": [
            {"name": t["name"], "partitions": await list_of(outcome(t["name"], p) for p in t["partitions"])}
            for t in request["topics"]
        ],
    }


async def offset_for_leader_epoch(
    session: Session, request: requests.OffsetForLeaderEpoch, version: int
) -> responses.OffsetForLeaderEpoch:
    """Answer with the end offsets of leader epochs. A consumer learns from them if its position is still in the log
    (KIP-320)."""
    partitions = [
        EpochPartition(t["topic"], p["partition"], p["current_leader_epoch"], p["leader_epoch"])
        for t in request["topics"]
        for p in t["partitions"]
        if is_partition(t["topic"], p["partition"])
    ]
    results: dict[tuple[str, int], EpochEndOffset] = {}
    failure: Kafka | None = None
    throttle_ms = 0
    if partitions:
        message = OffsetsForLeaderEpochRequest(partitions)
        try:
            answer = await (await session.broker()).ask(
                Api.OFFSETS_FOR_LEADER_EPOCH, message, OffsetsForLeaderEpochResponse
            )
        except SparklogError as e:
            failure = code_of(e, of_partition=True)
        else:
            await share_turns(session, len(partitions))
            results = {(r.topic, r.partition): r for r in answer.results}
            throttle_ms = answer.throttle_ms

    def outcome(
        name: str, p: requests.OffsetForLeaderEpochTopicPartition
    ) -> responses.OffsetForLeaderEpochTopicPartition:
        result = results.get((name, p["partition"]))
        code = (failure or missing_code(name)) if result is None else kafka_code(result.error_code, of_partition=True)
        return {
            "error_code": code,
            "partition": p["partition"],
            "leader_epoch": -1 if result is None else result.epoch,
            "end_offset": -1 if result is None else result.end_offset,
        }

    list_of = session.gateway.time_slices.list_of
    return {
        "throttle_time_ms": throttle_ms,
        "topics": [
            {"topic": t["topic"], "partitions": await list_of(outcome(t["topic"], p) for p in t["partitions"])}
            for t in request["topics"]
        ],
    }
