"""The APIs of producers' identities and transactions; see docs/internals/delivery.md."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import Int32, Int64, Message, Name, Partition, Text


class InitProducerIdRequest(Message):
    """A producer's identity. Without `transactional_id` a new one every time, larger than all before. With it: the id's
    own, its epoch raised, an open transaction aborted; `producer_id`, `producer_epoch` >= 0: only if they are the
    current ones or those before."""

    transactional_id: Text | None = None
    transaction_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    producer_id: Int64 = -1
    producer_epoch: Int32 = -1


class InitProducerIdResponse(Message):
    """The identity to write with; sequences begin at 0."""

    producer_id: int
    producer_epoch: int


class EndTxnRequest(Message):
    """Commits or aborts the open transaction of a transactional id."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Int32
    committed: bool


class EndTxnResponse(Message):
    """The identity for the next transaction; sequences begin at 0. All markers are written."""

    producer_id: int
    producer_epoch: int


class JoinSharedTxnRequest(Message):
    """Makes the caller a participant of the transaction (app_id, version), which is opened if need be. `ticket`: a
    producer id drawn by the run's driver; later runs have larger ones. `timeout_ms`: the transaction is aborted if it
    has not ended by then."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text
    ticket: Int64
    timeout_ms: Annotated[int, Meta(ge=1, le=604_800_000)] = 3_600_000


class JoinSharedTxnResponse(Message):
    """`committed`: the version has been committed before, nothing is to be written; else the identity to write with,
    once."""

    committed: bool
    producer_id: int = -1
    producer_epoch: int = -1


class EndSharedTxnRequest(Message):
    """Commits what the participants in `winners` (producer ids) wrote, or aborts everything."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text
    ticket: Int64
    committed: bool
    winners: Annotated[list[Int64], Meta(max_length=1_000_000)] = []


class EndSharedTxnResponse(Message):
    """What was decided, now or before."""

    committed: bool


class ListTransactionsRequest(Message):
    """`states`: only these; `running_ms_min`: only those open at least so long."""

    states: Annotated[list[Text], Meta(max_length=20)] = []
    running_ms_min: Annotated[int, Meta(ge=0, le=2**62)] = 0


class TransactionSummary(Message):
    """One transaction. `kind`: "plain" or "shared"; `version` -1 for a plain one; `started_ms` -1: not open."""

    transactional_id: str
    kind: str
    state: str
    producer_id: int
    producer_epoch: int
    version: int = -1
    run_id: str = ""
    started_ms: int = -1
    timeout_ms: int = -1


class ListTransactionsResponse(Message):
    """In the order of their ids."""

    transactions: list[TransactionSummary]


class DescribeTransactionsRequest(Message):
    """Asks for details."""

    transactional_ids: Annotated[list[Text], Meta(min_length=1, max_length=10_000)]


class TransactionPartition(Message):
    """A partition a participant has written to."""

    producer_id: int
    topic: str
    partition: int


class TransactionDetails(Message):
    """One transaction with the partitions it has written to. `error_code` is not 0 if there is no such id."""

    error_code: int
    transactional_id: str
    summary: TransactionSummary | None = None
    partitions: list[TransactionPartition] = []
    last_committed_version: int = -1
    message: str = ""


class DescribeTransactionsResponse(Message):
    """One per id of the request, in its order."""

    transactions: list[TransactionDetails]


class AbortTransactionRequest(Message):
    """An operator's abort: of the open transaction of `transactional_id`, or, for one that no coordinator knows, of
    `producer_id` in one partition."""

    transactional_id: Text | None = None
    topic: Name = ""
    partition: Partition = 0
    producer_id: Int64 = -1


class AbortTransactionResponse(Message):
    """`partitions`: in how many an abort marker was written."""

    partitions: int


class DescribeProducersRequest(Message):
    """Asks who has written to a partition."""

    topic: Name
    partition: Partition


class ProducerState(Message):
    """One producer. `transaction_first_offset` -1: no transaction is open; `transactional_id` None: no coordinator knows
    it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_first_offset: int = -1
    transactional_id: str | None = None


class DescribeProducersResponse(Message):
    """By producer id."""

    producers: list[ProducerState]
    last_stable_offset: int = -1
