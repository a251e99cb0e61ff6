"""The APIs of producers' identities and transactions; see docs/internals/delivery.md."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import Int32, Int64, Message, Name, Partition, Text, ThrottleMs
from sparklog.types import SHARED_PREFIX

INPUT_CHARS_MAX = 1_000
PARTICIPANTS_MAX = 100_000
"""Largest number of participants of one shared transaction."""
TransactionalId = Annotated[str, Meta(max_length=1_024 + len(SHARED_PREFIX))]
"""A transactional id, or the id of an application of shared transactions with SHARED_PREFIX."""


class InitProducerIdRequest(Message):
    """Ask for a producer's identity.

    Without `transactional_id`, the producer id is new with every request. With it, the answer has the id's producer id
    with a raised epoch, after an open transaction is aborted. `producer_id` and `producer_epoch` >= 0: the request
    fails unless they are the current or the preceding identity of the transactional id. `fencing_token`: the client
    needs a new producer id above all that any broker has issued before. Such a request has no `transactional_id` and
    goes to the coordinator of FENCING_TOKENS_ID; other new ids come from any broker.
    """

    transactional_id: Text | None = None
    transaction_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    producer_id: Int64 = -1
    producer_epoch: Int32 = -1
    fencing_token: bool = False


class InitProducerIdResponse(Message):
    """The identity with which the producer writes. Its sequences begin at 0."""

    producer_id: int
    producer_epoch: int
    throttle_ms: ThrottleMs = 0


class BeginTxnRequest(Message):
    """Open the transaction of a transactional id, before it has any records; an open transaction stays open. Only
    producers that keep their epoch (`keeps_epoch` of END_TXN) send it: their END_TXN ends no other transaction than
    one that is open."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Int32


class BeginTxnResponse(Message):
    """Confirmation that the transaction is open and that this is stored."""

    throttle_ms: ThrottleMs = 0


class EndTxnRequest(Message):
    """Commit or abort the open transaction of a transactional id. `keeps_epoch`: the producer keeps its epoch and
    continues counting sequence numbers, as Kafka's clients do before version 5 of EndTxn."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Int32
    committed: bool
    keeps_epoch: bool = False


class EndTxnResponse(Message):
    """The identity for the producer's next transaction. If its epoch is new, sequences begin at 0. The coordinator
    answers after all markers are written."""

    producer_id: int
    producer_epoch: int
    throttle_ms: ThrottleMs = 0


class JoinSharedTxnRequest(Message):
    """Make the client a participant of the transaction (`app_id`, `version`), which is opened if necessary.

    `fencing_token`: a producer id that the run's driver has requested; later runs have larger ones. `timeout_ms`: the
    transaction is aborted if it has not ended after this time. `lease_ms` > 0: it is also aborted if no participant has
    joined or renewed it for this time.
    """

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text
    fencing_token: Int64
    timeout_ms: Annotated[int, Meta(ge=1, le=604_800_000)] = 3_600_000
    lease_ms: Annotated[int, Meta(ge=0, le=604_800_000)] = 0


class JoinSharedTxnResponse(Message):
    """The identity of a participant. `committed`: True if the version is already committed, so that no task may write;
    the identity is then -1.

    `last_committed_version` and `last_committed_input`: the application's newest commit, see EndSharedTxnRequest; -1:
    not sent, as in answers with an identity.
    """

    committed: bool
    producer_id: int = -1
    producer_epoch: int = -1
    last_committed_version: int = -1
    last_committed_input: str = ""
    throttle_ms: ThrottleMs = 0


class EndSharedTxnRequest(Message):
    """Commit the records of `committed_participants` (producer ids) and abort the rest, or, with `committed` False,
    abort all. `input`: the application's own description of the version's data. The broker keeps it with the newest
    committed version."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text
    fencing_token: Int64
    committed: bool
    committed_participants: Annotated[list[Int64], Meta(max_length=PARTICIPANTS_MAX)] = []
    input: Annotated[str, Meta(max_length=INPUT_CHARS_MAX)] = ""


class EndSharedTxnResponse(Message):
    """The decision: that of this request, or an earlier one. `last_committed_*`: the application's newest commit; -1:
    not given."""

    committed: bool
    last_committed_version: int = -1
    last_committed_input: str = ""
    throttle_ms: ThrottleMs = 0


class RenewSharedTxnRequest(Message):
    """Report that the run of the transaction (`app_id`, `version`) is alive, which starts the lease again."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text


class RenewSharedTxnResponse(Message):
    """The state of the transaction. `known`: True if the run has opened the transaction; it stays True after the end.
    `is_open`: True if the transaction has not ended."""

    known: bool
    is_open: bool
    throttle_ms: ThrottleMs = 0


class ListTransactionsRequest(Message):
    """Ask for transactions. `states`: only those in one of these states; empty: in any state. `running_ms_min`: only
    those that have been open for at least this time; 0: all. `paged`: True if the client reads long answers page by
    page. `after`: last id of the page before; "": the first page."""

    states: Annotated[list[Text], Meta(max_length=20)] = []
    running_ms_min: Annotated[int, Meta(ge=0, le=2**62)] = 0
    paged: bool = False
    after: Text = ""


class TransactionSummary(Message):
    """One transactional id, or one application of shared transactions."""

    transactional_id: str
    """The id. That of an application begins with SHARED_PREFIX."""
    kind: str
    """"plain" or "shared"."""
    state: str
    """"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit" or "CompleteAbort"."""
    producer_id: int
    """Id of the producer; -1 for a shared transaction."""
    producer_epoch: int
    """Epoch of the producer; -1 for a shared transaction."""
    version: int = -1
    """Version of the application's newest transaction; -1: none, or a plain transaction."""
    run_id: str = ""
    """Id of the application's run; empty for a plain transaction."""
    started_ms: int = -1
    """Start of the open transaction in ms since 1970; -1: none is open."""
    timeout_ms: int = -1
    """Timeout of the transaction in ms; -1: not known."""


class ListTransactionsResponse(Message):
    """Transactions in the order of their ids. `more`: True if a further page follows."""

    transactions: list[TransactionSummary]
    more: bool = False
    throttle_ms: ThrottleMs = 0


class DescribeTransactionsRequest(Message):
    """Ask for details of transactions. `paged`: True if the client reads long answers page by page. `partitions_from`
    above 0 continues a transaction whose partitions did not fit into the page before: the answer has the partitions of
    the first requested id from this index on."""

    transactional_ids: Annotated[list[TransactionalId], Meta(min_length=1, max_length=10_000)]
    paged: bool = False
    partitions_from: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class TransactionPartition(Message):
    """A partition that a participant has written to."""

    producer_id: int
    """Id of the participant's producer."""
    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""


class TransactionDetails(Message):
    """One transaction with its partitions."""

    error_code: int
    """Code of the error; 0: the id exists and may be described."""
    transactional_id: str
    """The id."""
    summary: TransactionSummary | None = None
    """State of the transaction; None after an error."""
    partitions: list[TransactionPartition] = []
    """Partitions of the open transaction."""
    last_committed_version: int = -1
    """Newest committed version of an application; -1: none."""
    message: str = ""
    """Text of the error; empty: none."""


class DescribeTransactionsResponse(Message):
    """One transaction per id of the request, in its order. An id that is named twice has one transaction."""

    transactions: list[TransactionDetails]
    more: bool = False
    """True if a further page follows."""
    partitions_from: int = -1
    """Index of the first partition of the last transaction that is not in this page; -1: all its partitions are."""
    throttle_ms: ThrottleMs = 0


class AbortTransactionRequest(Message):
    """Abort a transaction on behalf of an operator: the open transaction of `transactional_id`. If no coordinator knows
    the transaction, the request names `producer_id` and one partition instead."""

    transactional_id: Text | None = None
    topic: Name = ""
    partition: Partition = 0
    producer_id: Int64 = -1


class AbortTransactionResponse(Message):
    """Result of an abort. `partitions`: number of partitions with a new abort marker."""

    partitions: int
    throttle_ms: ThrottleMs = 0


class DescribeProducersRequest(Message):
    """Ask for the producers of a partition. `paged`: True if the client reads long answers page by page. `after`: last
    producer id of the page before; -1: the first page."""

    topic: Name
    partition: Partition
    paged: bool = False
    after: Int64 = -1


class ProducerState(Message):
    """A producer that a partition remembers."""

    producer_id: int
    """Id of the producer."""
    producer_epoch: int
    """Epoch of the producer."""
    last_sequence: int
    """Sequence number of its last record."""
    last_timestamp_ms: int
    """Time of its last batch in ms since 1970."""
    transaction_first_offset: int = -1
    """First offset of its open transaction; -1: none is open."""
    transactional_id: str | None = None
    """Transactional id of the producer; None: no coordinator knows it."""
    coordinator_epoch: int = -1
    """Epoch of the coordinator that has ended the producer's last transaction; -1: it has ended none."""


class DescribeProducersResponse(Message):
    """The producers that a partition remembers, in order of their ids."""

    producers: list[ProducerState]
    """Producers in order of their ids."""
    last_stable_offset: int = -1
    """Offset of the first open transaction, or the high watermark; -1: not known."""
    more: bool = False
    """True if the partition remembers further producers."""
    throttle_ms: ThrottleMs = 0
    """Time in ms that the client has to wait before its next request."""
