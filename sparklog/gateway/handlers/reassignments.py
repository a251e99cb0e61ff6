"""ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS and LIST_PARTITION_REASSIGNMENTS (KIP-455, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from sparklog.errors import SparklogError
from sparklog.gateway.backend.topics import read_topics
from sparklog.gateway.handlers.names import is_partition, is_topic_name, missing_code
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, kafka_code, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.operation_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionName,
    PartitionOutcome,
    ReassignmentTarget,
)
from sparklog.protocol.topic_messages import REPLICAS_MAX

PREFERRED, UNCLEAN = ELECTION_TYPES = (0, 1)
_PREFERRED_CODES = {Kafka.ELIGIBLE_LEADERS_NOT_AVAILABLE: Kafka.PREFERRED_LEADER_NOT_AVAILABLE}
"""Codes of a preferred election for those of an unclean one."""
_Place = tuple[str, int]
_Result = tuple[Kafka, str | None]


async def elect_leaders(session: Session, request: requests.ElectLeaders, version: int) -> responses.ElectLeaders:
    """Elect the preferred leaders of partitions, or leaders that are perhaps behind; without partitions, of all."""
    kind = request.get("election_type", PREFERRED)
    topics = request["topic_partitions"]
    if kind not in ELECTION_TYPES:
        return {"error_code": Kafka.INVALID_REQUEST, "replica_election_results": []}
    places = [(t["topic"], p) for t in topics or () for p in t["partitions"]]
    valid = [PartitionName(*place) for place in dict.fromkeys(places) if is_partition(*place)]
    outcomes: list[PartitionOutcome] = []
    if valid or topics is None:
        try:
            message = ElectLeadersRequest(kind, None if topics is None else valid)
            answer = await (await session.broker()).ask(Api.ELECT_LEADERS, message, ElectLeadersResponse)
        except SparklogError as e:
            return {"error_code": code_of(e), "replica_election_results": []}
        outcomes = answer.outcomes
    results = _results(outcomes)
    if kind == PREFERRED:
        results = {place: (_PREFERRED_CODES.get(code, code), text) for place, (code, text) in results.items()}
    named = places if topics is not None else list(results)
    return {
        "error_code": Kafka.NONE,
        "replica_election_results": [
            {
                "topic": topic,
                "partition_result": [
                    {"partition_id": p, "error_code": code, "error_message": text}
                    for p, (code, text) in ((p, results.get((t, p), _missing(t))) for t, p in some)
                ],
            }
            for topic, some in groupby(named, lambda place: place[0])
        ],
    }


async def alter_partition_reassignments(
    session: Session, request: requests.AlterPartitionReassignments, version: int
) -> responses.AlterPartitionReassignments:
    """Start or cancel reassignments. Each partition has its own result."""
    results: dict[_Place, _Result] = {}
    targets: dict[_Place, ReassignmentTarget] = {}
    try:
        broker = await session.broker()
        counts = {}
        if not request.get("allow_replication_factor_change", True):
            counts = await _replica_counts(session, [t["name"] for t in request["topics"]])
        for topic in request["topics"]:
            for p in topic["partitions"]:
                place = topic["name"], p["partition_index"]
                refusal = _refusal(place, p["replicas"], counts.get(topic["name"]))
                if place in targets or place in results:
                    refusal = Kafka.INVALID_REQUEST, "the partition is named twice"
                    targets.pop(place, None)
                if refusal is None:
                    targets[place] = ReassignmentTarget(*place, p["replicas"])
                else:
                    results[place] = refusal
        if targets:
            message = AlterPartitionReassignmentsRequest(list(targets.values()))
            answer = await broker.ask(Api.ALTER_PARTITION_REASSIGNMENTS, message, AlterPartitionReassignmentsResponse)
            results = _results(answer.outcomes) | results
    except SparklogError as e:
        return {"error_code": code_of(e), "error_message": text_of(e), "responses": []}
    return {
        "error_code": Kafka.NONE,
        "error_message": None,
        "responses": [
            {
                "name": t["name"],
                "partitions": [
                    {"partition_index": i, "error_code": code, "error_message": text}
                    for i, (code, text) in (
                        (p["partition_index"], results.get((t["name"], p["partition_index"]), _missing(t["name"])))
                        for p in t["partitions"]
                    )
                ],
            }
            for t in request["topics"]
        ],
    }


async def list_partition_reassignments(
    session: Session, request: requests.ListPartitionReassignments, version: int
) -> responses.ListPartitionReassignments:
    """List the running reassignments, as the controller knows them."""
    topics = request["topics"]
    requested = None if topics is None else {(t["name"], p) for t in topics for p in t["partition_indexes"]}
    names = None if topics is None else [n for n in dict.fromkeys(t["name"] for t in topics) if is_topic_name(n)]
    try:
        message = ListPartitionReassignmentsRequest(names)
        answer = await (await session.broker()).ask(
            Api.LIST_PARTITION_REASSIGNMENTS, message, ListPartitionReassignmentsResponse
        )
    except SparklogError as e:
        return {"error_code": code_of(e), "error_message": text_of(e), "topics": []}
    running = [r for r in answer.reassignments if requested is None or (r.topic, r.partition) in requested]
    return {
        "error_code": Kafka.NONE,
        "error_message": None,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": r.partition,
                        "replicas": r.replicas,
                        "adding_replicas": r.adding,
                        "removing_replicas": r.removing,
                    }
                    for r in some
                ],
            }
            for name, some in groupby(running, lambda r: r.topic)
        ],
    }


async def _replica_counts(session: Session, names: Iterable[str]) -> dict[str, int]:
    """Return the number of replicas of each topic that exists. Raises the broker's errors."""
    states = (await read_topics(await session.broker(), [n for n in dict.fromkeys(names) if is_topic_name(n)])).topics
    return {state.name: len(state.partitions[0].replicas) for state in states if state.partitions}


def _refusal(place: _Place, replicas: Sequence[int] | None, count: int | None) -> _Result | None:
    """Return the reason why a partition cannot get these replicas (None: the end of a reassignment); None if it perhaps
    can. `count`: the number that it must have; None: any number."""
    if not is_partition(*place):
        return _missing(place[0])
    if replicas is None:
        return None
    if not 0 < len(replicas) <= REPLICAS_MAX or min(replicas) < 0:
        text = f"name 1 to {REPLICAS_MAX} brokers by their ids, which are 0 or larger"
        return Kafka.INVALID_REPLICA_ASSIGNMENT, text
    if count is not None and len(replicas) != count:
        text = f"{len(replicas)} replicas instead of {count}, and the request forbids another number"
        return Kafka.INVALID_REPLICATION_FACTOR, text
    return None


def _results(outcomes: Iterable[PartitionOutcome]) -> dict[_Place, _Result]:
    return {(o.topic, o.partition): (kafka_code(o.error_code), text_of(o.message)) for o in outcomes}


def _missing(name: str) -> _Result:
    return missing_code(name), None
