"""Transactions: ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN, and the APIs that describe
transactions and producers.

The broker adds a partition to a transaction when the first batch is written, and a group when its offsets arrive. The
two ADD APIs check their requests and open the transaction, so that the coordinator can refuse an END_TXN without an
open transaction. Clients of transaction version 2 do not send them.
"""

from __future__ import annotations

from itertools import count
from operator import attrgetter

from sparklog.client.net.paging import after_last
from sparklog.errors import InvalidRequestError, SparklogError, TransactionAbortedError
from sparklog.gateway.backend.topics import read_topics
from sparklog.gateway.groups.runtime import NO_COMMITTER
from sparklog.gateway.handlers.commits import commit_answer, commits_of, committable
from sparklog.gateway.handlers.coordinators import refuse_group
from sparklog.gateway.handlers.entries import ENTRIES_MAX, check_entry
from sparklog.gateway.handlers.names import (
    TRANSACTIONAL_ID_CHARS_MAX,
    is_group_id,
    is_partition,
    is_topic_name,
    is_transactional_id,
    missing_code,
)
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, coordinator_code, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from sparklog.protocol.transaction_messages import (
    BeginTxnRequest,
    BeginTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TransactionDetails,
)

BUMPS_FROM = 5
"""First version of END_TXN whose clients continue with the epoch in the answer."""
ABORTABLE_FROM = {"Produce": 12, "EndTxn": BUMPS_FROM, "TxnOffsetCommit": 5}
"""First version of each API whose clients abort the transaction after TRANSACTION_ABORTABLE, and then use the epoch in
the answer of END_TXN. Older clients would keep their old epoch, with which they could never write again, so they need
an error after which they request a new epoch. That error is UNKNOWN_PRODUCER_ID; after INVALID_PRODUCER_EPOCH,
librdkafka's producers would end. APIs without an entry are only sent by such older clients."""
_BUMPS_AFTER_ADD_FROM = 2
"""First version of ADD_OFFSETS_TO_TXN, and of END_TXN, whose clients request a new epoch after UNKNOWN_PRODUCER_ID in
ADD_OFFSETS_TO_TXN. Clients of older versions, such as librdkafka, do so only after this error in the abort, which they
send if ADD_OFFSETS_TO_TXN has succeeded."""
FENCED_FROM = {"InitProducerId": 4, "EndTxn": 2, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2}
"""First version of each API whose answers can have PRODUCER_FENCED. Older versions and other APIs have
INVALID_PRODUCER_EPOCH instead, as in Kafka: after PRODUCER_FENCED in PRODUCE or TXN_OFFSET_COMMIT, librdkafka would let
the producer abort and continue."""
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


def transaction_error(error: SparklogError, api: str, version: int) -> Kafka:
    """Return Kafka's code for an error in a transaction. If the coordinator has aborted the transaction, the code lets
    the producer abort it and continue."""
    if isinstance(error, TransactionAbortedError):
        return aborted_code(api, version)
    return fenced_code(coordinator_code(error), api, version)


def aborted_code(api: str, version: int) -> Kafka:
    """Return the code for a transaction that the coordinator has aborted; see ABORTABLE_FROM."""
    is_abortable = 0 <= ABORTABLE_FROM.get(api, -1) <= version
    return Kafka.TRANSACTION_ABORTABLE if is_abortable else Kafka.UNKNOWN_PRODUCER_ID


def fenced_code(code: Kafka, api: str, version: int) -> Kafka:
    """Return `code`, but replace PRODUCER_FENCED if this version of the API does not have it; see FENCED_FROM."""
    is_fenced = code is Kafka.PRODUCER_FENCED
    return Kafka.INVALID_PRODUCER_EPOCH if is_fenced and not 0 <= FENCED_FROM.get(api, -1) <= version else code


async def add_partitions_to_txn(
    session: Session, request: requests.AddPartitionsToTxn, version: int
) -> responses.AddPartitionsToTxn:
    """Open the transaction. Nothing is opened if a partition does not exist or cannot be used; such partitions have
    errors in the answer."""
    topics = request["v3_and_below_topics"]
    names = list(dict.fromkeys(t["name"] for t in topics if is_topic_name(t["name"])))
    counts: dict[str, int] = {}
    failure: Kafka | None = None
    errors: dict[str, Kafka] = {}
    if names:
        try:
            broker = await session.broker()
            answer = await read_topics(broker, names, to_write=True)
        except SparklogError as e:
            failure = code_of(e)
        else:
            counts = {t.name: len(t.partitions) for t in answer.topics if not t.error_code}
            errors = {t.name: kafka_code(t.error_code) for t in answer.topics if t.error_code}

    def outcome(name: str, partition: int) -> Kafka:
        return opened if 0 <= partition < counts.get(name, 0) else errors.get(name, failure or missing_code(name))

    opened = Kafka.NONE
    if all(outcome(t["name"], p) is Kafka.NONE for t in topics for p in t["partitions"]):
        producer = request["v3_and_below_producer_id"], request["v3_and_below_producer_epoch"]
        begin = BeginTxnRequest(request["v3_and_below_transactional_id"], *producer)
        opened = await _open(session, begin, "AddPartitionsToTxn", version)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": t["name"],
                "results_by_partition": [
                    {"partition_index": p, "partition_error_code": outcome(t["name"], p)} for p in t["partitions"]
                ],
            }
            for t in request["v3_and_below_topics"]
        ]
    }


async def add_offsets_to_txn(
    session: Session, request: requests.AddOffsetsToTxn, version: int
) -> responses.AddOffsetsToTxn:
    """Check the group id, and open the transaction. The offsets themselves are added by TXN_OFFSET_COMMIT.

    If the coordinator has aborted the transaction, clients before _BUMPS_AFTER_ADD_FROM get no error. TXN_OFFSET_COMMIT
    then refuses their offsets, and END_TXN makes them request a new epoch.
    """
    if not is_group_id(request["group_id"]):
        return {"error_code": Kafka.INVALID_GROUP_ID}
    begin = BeginTxnRequest(request["transactional_id"], request["producer_id"], request["producer_epoch"])
    code = await _open(session, begin, "AddOffsetsToTxn", version)
    is_late = code is Kafka.UNKNOWN_PRODUCER_ID and version < _BUMPS_AFTER_ADD_FROM
    return {"error_code": Kafka.NONE if is_late else code}


async def _open(session: Session, message: BeginTxnRequest, api: str, version: int) -> Kafka:
    """Open a transaction, if it is not open. Returns the error code for the client."""
    if not is_transactional_id(message.transactional_id):
        return Kafka.INVALID_REQUEST
    try:
        await (await session.broker()).ask(Api.BEGIN_TXN, message, BeginTxnResponse)
    except SparklogError as e:
        return transaction_error(e, api, version)
    return Kafka.NONE


async def txn_offset_commit(
    session: Session, request: requests.TxnOffsetCommit, version: int
) -> responses.TxnOffsetCommit:
    """Add offsets to a transaction, which commits them at its end."""
    topics: list[requests.OffsetCommitTopic] = [
        {"name": t["name"], "partitions": t["partitions"]} for t in request["topics"]
    ]
    group_id = request["group_id"]
    outcomes: dict[tuple[str, int], Kafka] = {}
    default = Kafka.NONE if is_group_id(group_id) else Kafka.INVALID_GROUP_ID
    if not is_transactional_id(request["transactional_id"]):
        default = Kafka.INVALID_REQUEST
    member_id = request.get("member_id", "")
    is_member = bool(member_id) or request.get("generation_id", -1) >= 0
    if default is Kafka.NONE and is_member:
        default = await refuse_group(session, group_id) or Kafka.NONE
    committer = NO_COMMITTER
    if default is Kafka.NONE and is_member:
        committer = session.gateway.groups.committer(
            group_id, member_id, request.get("group_instance_id"), request.get("generation_id", -1)
        )
        default = committer.error
    throttle_ms = 0
    offsets = committable(topics, outcomes) if default is Kafka.NONE else []
    for part in commits_of(offsets):
        identity = request["transactional_id"], request["producer_id"], request["producer_epoch"]
        message = TxnOffsetCommitRequest(*identity, group_id, part, committer.member_id, committer.epoch)
        default = Kafka.UNKNOWN_SERVER_ERROR
        try:
            answer = await (await session.broker()).ask(Api.TXN_OFFSET_COMMIT, message, TxnOffsetCommitResponse)
        except SparklogError as e:
            default = transaction_error(e, "TxnOffsetCommit", version)
            break
        else:
            throttle_ms = max(throttle_ms, answer.throttle_ms)
            outcomes |= {
                (r.topic, r.partition): _offset_code(kafka_code(r.error_code), version) for r in answer.results
            }
    return {
        "throttle_time_ms": throttle_ms,
        "topics": [
            {"name": t["name"], "partitions": t["partitions"]} for t in commit_answer(topics, outcomes, default)
        ],
    }


def _offset_code(code: Kafka, version: int) -> Kafka:
    """Return the code for one offset of a transaction. For an offset of an earlier topic of the name, it is a code
    after which producers abort the transaction: after FENCED_LEADER_EPOCH they would end."""
    if code is Kafka.FENCED_LEADER_EPOCH:
        is_abortable = version >= ABORTABLE_FROM["TxnOffsetCommit"]
        return Kafka.TRANSACTION_ABORTABLE if is_abortable else Kafka.ILLEGAL_GENERATION
    return fenced_code(code, "TxnOffsetCommit", version)


async def end_txn(session: Session, request: requests.EndTxn, version: int) -> responses.EndTxn:
    """Commit or abort a transaction. The broker answers after all markers are written.

    If the coordinator has aborted the transaction, the producer's epoch has risen. Clients before _BUMPS_AFTER_ADD_FROM
    then get UNKNOWN_PRODUCER_ID for their abort, too: else they would continue with the old epoch.
    """
    if not is_transactional_id(request["transactional_id"]):
        return {"error_code": Kafka.INVALID_REQUEST}
    message = EndTxnRequest(
        request["transactional_id"],
        request["producer_id"],
        request["producer_epoch"],
        request["committed"],
        keeps_epoch=version < BUMPS_FROM,
    )
    try:
        answer = await (await session.broker()).ask(Api.END_TXN, message, EndTxnResponse)
    except SparklogError as e:
        return {"error_code": transaction_error(e, "EndTxn", version)}
    keeps_old_epoch = version < _BUMPS_AFTER_ADD_FROM and not request["committed"]
    is_stale = keeps_old_epoch and answer.producer_epoch != request["producer_epoch"]
    return {
        "throttle_time_ms": answer.throttle_ms,
        "error_code": Kafka.UNKNOWN_PRODUCER_ID if is_stale else Kafka.NONE,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


async def list_transactions(
    session: Session, request: requests.ListTransactions, version: int
) -> responses.ListTransactions:
    """List the transactions that the gateway's broker coordinates."""
    states = [s for s in request["state_filters"] if s in STATES]
    unknown = [s for s in request["state_filters"] if s not in STATES]
    transactions = []
    if states or not unknown:
        message = ListTransactionsRequest(states, max(request.get("duration_filter", -1), 0), paged=True)
        following = after_last("transactions", attrgetter("transactional_id"))
        try:
            pages = (await session.broker()).pages(Api.LIST_TRANSACTIONS, message, ListTransactionsResponse, following)
            transactions = [one async for page in pages for one in page.transactions]
        except SparklogError as e:
            return {"error_code": code_of(e), "unknown_state_filters": unknown, "transaction_states": []}
    producer_ids = set(request["producer_id_filters"])
    return {
        "error_code": Kafka.NONE,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": t.transactional_id,
                "producer_id": t.producer_id,
                "transaction_state": t.state,
            }
            for t in transactions
            if not producer_ids or t.producer_id in producer_ids
        ],
    }


async def describe_transactions(
    session: Session, request: requests.DescribeTransactions, version: int
) -> responses.DescribeTransactions:
    """Describe transactions by their ids, with one request to the broker for each."""
    states: list[responses.DescribeTransactionsTransactionState] = []
    for i, transactional_id in enumerate(request["transactional_ids"]):
        try:
            check_entry(i)
            details = await _details(session, transactional_id)
            code = kafka_code(details.error_code)
        except SparklogError as e:
            states.append(_no_transaction(transactional_id, code_of(e)))
            continue
        if code or details.summary is None:
            code_of_absence = Kafka.TRANSACTIONAL_ID_NOT_FOUND if code is Kafka.INVALID_PRODUCER_ID_MAPPING else code
            states.append(_no_transaction(transactional_id, code_of_absence or Kafka.TRANSACTIONAL_ID_NOT_FOUND))
            continue
        topics: dict[str, list[int]] = {}
        for p in details.partitions:
            topics.setdefault(p.topic, []).append(p.partition)
        states.append(
            {
                "error_code": Kafka.NONE,
                "transactional_id": transactional_id,
                "transaction_state": details.summary.state,
                "transaction_timeout_ms": min(max(details.summary.timeout_ms, 0), 2**31 - 1),
                "transaction_start_time_ms": details.summary.started_ms,
                "producer_id": details.summary.producer_id,
                "producer_epoch": details.summary.producer_epoch,
                "topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
            }
        )
    return {"transaction_states": states}


async def _details(session: Session, transactional_id: str) -> TransactionDetails:
    """Return a transaction with all its partitions, which the broker sends in pages. Raises InvalidRequestError, and
    the broker's errors."""
    if not is_transactional_id(transactional_id):
        raise InvalidRequestError(
            f"a transactional id of {len(transactional_id)} characters; 1 to {TRANSACTIONAL_ID_CHARS_MAX} are allowed"
        )
    broker = await session.broker()
    message = DescribeTransactionsRequest([transactional_id], paged=True)
    answer = await broker.ask(Api.DESCRIBE_TRANSACTIONS, message, DescribeTransactionsResponse)
    details = answer.transactions[0]
    while answer.more and answer.partitions_from > message.partitions_from:
        message.partitions_from = answer.partitions_from
        answer = await broker.ask(Api.DESCRIBE_TRANSACTIONS, message, DescribeTransactionsResponse)
        details.partitions += answer.transactions[0].partitions
    return details


def _no_transaction(transactional_id: str, code: Kafka) -> responses.DescribeTransactionsTransactionState:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "topics": [],
    }


async def describe_producers(
    session: Session, request: requests.DescribeProducers, version: int
) -> responses.DescribeProducers:
    """Describe the producers that partitions remember, with one request to the broker for each partition."""
    topics: list[responses.DescribeProducersTopic] = []
    indexes = count()
    for topic in request["topics"]:
        partitions = [await _producers(session, topic["name"], p, next(indexes)) for p in topic["partition_indexes"]]
        topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


async def _producers(
    session: Session, name: str, partition: int, index: int
) -> responses.DescribeProducersTopicPartition:
    body: responses.DescribeProducersTopicPartition = {
        "partition_index": partition,
        "error_code": Kafka.NONE,
        "active_producers": [],
    }
    if index >= ENTRIES_MAX:
        return body | {"error_code": Kafka.INVALID_REQUEST}
    if not is_partition(name, partition):
        return body | {"error_code": missing_code(name)}
    message = DescribeProducersRequest(name, partition, paged=True)
    producers: list[ProducerState] = []
    try:
        broker = await session.broker()
        while True:
            answer = await broker.ask(Api.DESCRIBE_PRODUCERS, message, DescribeProducersResponse)
            producers += answer.producers
            if not answer.more or not answer.producers:
                break
            message.after = answer.producers[-1].producer_id
    except SparklogError as e:
        return body | {"error_code": code_of(e, of_partition=True)}
    body["active_producers"] = [
        {
            "producer_id": p.producer_id,
            "producer_epoch": p.producer_epoch,
            "last_sequence": p.last_sequence,
            "last_timestamp": p.last_timestamp_ms,
            "coordinator_epoch": p.coordinator_epoch,
            "current_txn_start_offset": p.transaction_first_offset,
        }
        for p in producers
    ]
    return body
