"""The APIs of producers' identities and transactions; see docs/internals/delivery.md."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import Int32, Int64, Message, Name, Partition, Since, Text, ThrottleMs
from sparklog.types import SHARED_PREFIX

INPUT_CHARS_MAX = 1_000
PARTICIPANTS_MAX = 100_000
"""Largest number of participants of one shared transaction."""
TransactionalId = Annotated[str, Meta(max_length=1_024 + len(SHARED_PREFIX))]
"""A transactional id, of a producer or of an application of shared transactions."""


class InitProducerIdRequest(Message):
    """Ask for a producer's identity. Without `transactional_id`: a new one every time. With it: the id's own, its epoch
    raised, an open transaction aborted; `producer_id`, `producer_epoch` >= 0: only if they are the current or the
    previous ones. `fencing_token`: without a transactional id; a new id above all that any broker has issued before:
    sent to the coordinator of FENCING_TOKENS_ID (other ids are each broker's own)."""

    transactional_id: Text | None = None
    transaction_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    producer_id: Int64 = -1
    producer_epoch: Int32 = -1
    fencing_token: Annotated[bool, Since(2, ignorable=True)] = False


class InitProducerIdResponse(Message):
    """The identity to write with; sequences begin at 0."""

    producer_id: int
    producer_epoch: int
    throttle_ms: ThrottleMs = 0


class EndTxnRequest(Message):
    """Commits or aborts the open transaction of a transactional id. `keeps_epoch`: the producer keeps its epoch and
    continues counting sequence numbers, as Kafka's clients do before version 5 of END_TXN."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Int32
    committed: bool
    keeps_epoch: Annotated[bool, Since(5)] = False


class EndTxnResponse(Message):
    """The identity for the next transaction. Sequences begin at 0 if the epoch is another. All markers are written."""

    producer_id: int
    producer_epoch: int
    throttle_ms: ThrottleMs = 0


class JoinSharedTxnRequest(Message):
    """Make the client a participant of the transaction (app_id, version), which is opened if necessary.
    `fencing_token`: a producer id drawn by the run's driver; later runs have larger ones. `timeout_ms`: the transaction
    is aborted if it has not ended by then. `lease_ms` > 0: also if no participant has joined or renewed it for this
    time."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text
    fencing_token: Int64
    timeout_ms: Annotated[int, Meta(ge=1, le=604_800_000)] = 3_600_000
    lease_ms: Annotated[int, Meta(ge=0, le=604_800_000), Since(1, ignorable=True)] = 0


class JoinSharedTxnResponse(Message):
    """The identity of a participant. `committed`: True if the version is committed already, so that no task may write;
    otherwise the answer has an identity for one task. `last_committed_*`: the application's newest commit, see
    EndSharedTxnRequest; -1: not sent.
    """

    committed: bool
    producer_id: int = -1
    producer_epoch: int = -1
    last_committed_version: Annotated[int, Since(1, ignorable=True)] = -1
    last_committed_input: Annotated[str, Since(1, ignorable=True)] = ""
    throttle_ms: ThrottleMs = 0


class EndSharedTxnRequest(Message):
    """Commit the records of `committed_participants` (producer ids) and abort the rest, or abort everything. `input`:
    the version's input in the application's own words; it is kept with the newest committed version."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text
    fencing_token: Int64
    committed: bool
    committed_participants: Annotated[list[Int64], Meta(max_length=PARTICIPANTS_MAX)] = []
    input: Annotated[str, Meta(max_length=INPUT_CHARS_MAX), Since(1, ignorable=True)] = ""


class EndSharedTxnResponse(Message):
    """The decision, new or earlier. `last_committed_*`: the application's newest commit; -1: not given."""

    committed: bool
    last_committed_version: Annotated[int, Since(1, ignorable=True)] = -1
    last_committed_input: Annotated[str, Since(1, ignorable=True)] = ""
    throttle_ms: ThrottleMs = 0


class RenewSharedTxnRequest(Message):
    """Report that the run of the transaction (app_id, version) is alive: its lease starts again."""

    app_id: Text
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    run_id: Text


class RenewSharedTxnResponse(Message):
    """The state of the transaction. `known`: the run has opened the transaction, or ended it; `is_open`: it has not
    ended."""

    known: bool
    is_open: bool
    throttle_ms: ThrottleMs = 0


class ListTransactionsRequest(Message):
    """Ask for transactions. `states`: only these; `running_ms_min`: only those that are open for at least this time.
    `paged`: the client requests the rest of a long answer: the ids after `after`."""

    states: Annotated[list[Text], Meta(max_length=20)] = []
    running_ms_min: Annotated[int, Meta(ge=0, le=2**62)] = 0
    paged: Annotated[bool, Since(1, ignorable=True)] = False
    after: Annotated[Text, Since(1)] = ""


class TransactionSummary(Message):
    """One transactional id, or one application of shared transactions."""

    transactional_id: str
    """The id."""
    kind: str
    """"plain" or "shared"."""
    state: str
    """"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit" or "CompleteAbort"."""
    producer_id: int
    """Id of the producer."""
    producer_epoch: int
    """Epoch of the producer."""
    version: int = -1
    """Version of a shared transaction; -1 for a plain one."""
    run_id: str = ""
    """Id of the application's run; empty for a plain transaction."""
    started_ms: int = -1
    """Begin of the open transaction in ms since 1970; -1: none is open."""
    timeout_ms: int = -1
    """Timeout of the transaction in ms; -1: not known."""


class ListTransactionsResponse(Message):
    """Transactions in the order of their ids. `more`: True if a further page follows."""

    transactions: list[TransactionSummary]
    more: Annotated[bool, Since(1)] = False
    throttle_ms: ThrottleMs = 0


class DescribeTransactionsRequest(Message):
    """Ask for details of transactions. `paged`: True if the client requests the rest of a long answer. If
    `partitions_from` is above 0, the first id is the last one of the page before, from this partition on."""

    transactional_ids: Annotated[list[TransactionalId], Meta(min_length=1, max_length=10_000)]
    paged: Annotated[bool, Since(1, ignorable=True)] = False
    partitions_from: Annotated[int, Meta(ge=0, le=2**31 - 1), Since(1)] = 0


class TransactionPartition(Message):
    """A partition that a participant has written to."""

    producer_id: int
    """Id of the participant's producer."""
    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""


class TransactionDetails(Message):
    """One transaction with the partitions that it has written to."""

    error_code: int
    """Code of the error; 0: the id exists."""
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
    """One transaction per id of the request, in its order; an id that is named twice has one."""

    transactions: list[TransactionDetails]
    more: Annotated[bool, Since(1)] = False
    """True if a further page follows."""
    partitions_from: Annotated[int, Since(1)] = -1
    """Number of the first partition of the last transaction that is not in this page; -1: all its partitions are."""
    throttle_ms: ThrottleMs = 0


class AbortTransactionRequest(Message):
    """An operator's abort: of the open transaction of `transactional_id`, or, for one that no coordinator knows, of
    `producer_id` in one partition."""

    transactional_id: Text | None = None
    topic: Name = ""
    partition: Partition = 0
    producer_id: Int64 = -1


class AbortTransactionResponse(Message):
    """Result of an abort. `partitions`: number of partitions with a new abort marker."""

    partitions: int
    throttle_ms: ThrottleMs = 0


class DescribeProducersRequest(Message):
    """Ask for the producers of a partition. `paged`: the client requests the rest of a long answer: the producer ids
    above `after`."""

    topic: Name
    partition: Partition
    paged: Annotated[bool, Since(1, ignorable=True)] = False
    after: Annotated[Int64, Since(1)] = -1


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


class DescribeProducersResponse(Message):
    """The producers that a partition remembers, in order of their ids."""

    producers: list[ProducerState]
    """Producers in order of their ids."""
    last_stable_offset: int = -1
    """Offset of the first open transaction, or the high watermark; -1: not known."""
    more: Annotated[bool, Since(1)] = False
    """True if the partition remembers further producers."""
    throttle_ms: ThrottleMs = 0
    """Time in ms that the client has to wait before its next request."""
