"""The APIs of brokers among themselves: copying partitions, following the controller's images, asking it for changes.

A follower names all its partitions of a leader in the first fetch of a session; later ones name those that have
changed (KIP-227). So idle partitions cost nothing: they are neither asked for nor answered.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX, Int32, Int64, Message, Name, Partition, Since, Text
from sparklog.protocol.topic_messages import REPLICAS_MAX, REQUEST_ID_CHARS_MAX, BrokerId
from sparklog.security.records import CHANGES_MAX, KEY_CHARS_MAX, VALUE_BYTES_MAX

WAIT_MS_MAX = 60_000
SEGMENTS_MAX = 1_000
"""Largest number of slices in an answer."""
EPOCHS_MAX = 10_000
"""Largest number of epochs that begin in one answer's part of a log; an answer ends before there are more."""
GAPS_MAX = 10_000
"""Largest number of gaps of one log in a fetch; a follower with more copies the log from its start."""
COMMITS_MAX = 200_000
"""Largest number of transactions, counted in each of their partitions, that a snapshot of offsets compares."""
NO_SESSION = 0
NOT_ASKED = -2


class MissingOffsets(Message):
    """Offsets [first_offset, next_offset) that the log has lost for good: a repair could not save them."""

    first_offset: Int64
    next_offset: Int64


class ReplicaFetchPartition(Message):
    """State of a follower's log: it goes from `log_start_offset` to `fetch_offset`, the last record is of `last_epoch`
    (-1: there is none), and the records below `high_watermark` are known to be committed. `gaps`: missing offsets in
    between; a leader that does not know the field would take the log for complete. `copied_to`: the value of the last
    result, so that the leader reports a change; NOT_ASKED from a broker of an earlier release."""

    topic: Name
    partition: Partition
    leader_epoch: Int32
    fetch_offset: Int64
    last_epoch: Int32
    log_start_offset: Int64
    high_watermark: Int64
    max_bytes: Annotated[int, Meta(ge=0)]
    gaps: Annotated[list[MissingOffsets], Meta(max_length=GAPS_MAX), Since(4)] = []
    copied_to: Annotated[Int64, Since(4, ignorable=True)] = NOT_ASKED


class ForgottenPartition(Message):
    """A partition that the follower no longer copies from this leader."""

    topic: Name
    partition: Partition


class ReplicaFetchRequest(Message):
    """Long poll: answered when there is anything for any partition of the session, or after `max_wait_ms`.

    `session_epoch` 0: `partitions` are all that the session has; above: those that have changed since the request
    before, whose epoch was one less.
    """

    replica_id: BrokerId
    broker_epoch: Int64
    max_wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]
    max_bytes: Annotated[int, Meta(ge=1)]
    session_id: Int64
    session_epoch: Annotated[int, Meta(ge=0)]
    partitions: Annotated[list[ReplicaFetchPartition], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    forgotten: Annotated[list[ForgottenPartition], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)] = []


class EpochBegin(Message):
    """The leader epoch `epoch` begins at `start_offset`."""

    epoch: Int32
    start_offset: Int64


class ReplicaFetchResult(Message):
    """Result for one partition: whole batches in the payload from the fetch offset on, with the leader's stamps."""

    topic: Name
    partition: Partition
    error_code: int
    """0, or an error; the offsets are then the leader's bounds."""
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    log_start_offset: Int64 = -1
    log_end_offset: Int64 = -1
    diverging_epoch: Int32 = -1
    """The epoch at which the follower has to cut its log; -1: the logs do not diverge. It is the follower's last epoch,
    or the largest earlier one that the leader knows. With it there are no batches."""
    diverging_end: Int64 = -1
    """End of `diverging_epoch` in the leader's log, or the offset from which the two logs lack different offsets."""
    length_bytes: Annotated[int, Meta(ge=0)] = 0
    """Bytes of the batches in the payload."""
    next_offset: Int64 = -1
    """Offset after the last batch in the payload."""
    message: str = ""
    epochs: Annotated[list[EpochBegin], Meta(max_length=EPOCHS_MAX)] = []
    """Leader epochs that begin in the payload's offsets; compaction may have removed their first records."""
    segments: Annotated[list[Int64], Meta(max_length=SEGMENTS_MAX)] = []
    """Starts of the leader's segments in the payload's offsets. A follower's segments begin there, too, because copies
    in the object store are whole segments and have to fit every replica's log."""
    gaps: Annotated[list[MissingOffsets], Meta(max_length=GAPS_MAX), Since(4, ignorable=True)] = []
    """Offsets of the payload that the leader's log lacks; there may be gaps without batches."""
    copied_to: Annotated[Int64, Since(4, ignorable=True)] = -1
    """Every replica has the records below this offset; -1: a replica is out of sync."""


class ReplicaFetchResponse(Message):
    """Results of the partitions with news; the payload is their data back to back."""

    session_id: Int64
    results: Annotated[list[ReplicaFetchResult], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class MetadataFetchRequest(Message):
    """Ask the controller for metadata that are newer than the broker's image (`controller_epoch`, `zxid`); (-1, -1): it
    has none. Long poll."""

    broker_id: BrokerId
    controller_epoch: Int64
    zxid: Int64
    max_wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]


class ImageChange(Message):
    """One change of the image. `delta` leads to the version (`controller_epoch`, `zxid`)
    (`replication/image_codec.py`)."""

    controller_epoch: Int64
    zxid: Int64
    delta: bytes


class MetadataFetchResponse(Message):
    """The changes in their order, or, if the controller does not have them all any more, the whole `image` and no
    changes; `image` None and no changes: nothing is newer."""

    image: bytes | None = None
    changes: Annotated[list[ImageChange], Meta(max_length=10_000)] = []


class IsrMember(Message):
    """A member, in the life in which it is in sync; `broker_epoch` -1: not known, it was in before."""

    broker_id: BrokerId
    broker_epoch: Int64


class IsrProposal(Message):
    """A leader's proposal for one partition (KIP-497, KIP-841)."""

    topic: Name
    partition: Partition
    leader_epoch: Int32
    partition_epoch: Int32
    isr: Annotated[list[IsrMember], Meta(min_length=1, max_length=REPLICAS_MAX)]
    recovering: bool = False


class AlterPartitionRequest(Message):
    """A leader asks the controller to change in-sync replicas."""

    broker_id: BrokerId
    broker_epoch: Int64
    proposals: Annotated[list[IsrProposal], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]


class IsrDecision(Message):
    """The partition's state as it is stored now (`replication/image_codec.py`), or why the proposal was refused."""

    error_code: int
    message: str = ""
    state: bytes = b""


class AlterPartitionResponse(Message):
    """One decision per proposal, in their order."""

    decisions: Annotated[list[IsrDecision], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class ControlledShutdownRequest(Message):
    """A broker is about to stop: its leaderships are to move (Kafka's API of this name)."""

    broker_id: BrokerId
    broker_epoch: Int64


class ControlledShutdownResponse(Message):
    """Number of partitions that the broker still leads. The broker repeats the request until this number is 0, or no
    other broker can lead the partitions.
    """

    remaining: Annotated[int, Meta(ge=0)]


class OfflinePartition(Message):
    """A partition whose log this broker cannot use."""

    topic: Name
    partition: Partition


class DirectoryFailedRequest(Message):
    """Report partitions whose replicas on this broker are offline until its restart: their disk has failed, or they are
    damaged (KIP-112). Repeated to every new controller. `room`: 0 for these; 1 for replicas on a
    full disk, which are not offline; 2 for replicas on a disk that has room again.
    """

    broker_id: BrokerId
    broker_epoch: Int64
    partitions: Annotated[list[OfflinePartition], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    room: Annotated[int, Meta(ge=0, le=2), Since(4)] = 0


class DirectoryFailedResponse(Message):
    """Other brokers lead the partitions of the directory, and the broker is in none of their ISRs. `leaderless`:
    partitions that no broker can lead now. `moved`: for a full disk, partitions whose ISR the broker has left."""

    leaderless: Annotated[int, Meta(ge=0)]
    moved: Annotated[int, Meta(ge=0), Since(4, ignorable=True)] = 0


MARKERS_MAX = PARTITIONS_PER_REQUEST_MAX


class TransactionPartitionName(Message):
    """A partition that is added to a transaction."""

    topic: Name
    partition: Partition


class TransactionMarker(Message):
    """The end of one producer's transaction in one partition. `keeps_epoch`: the epoch is the transaction's own, not a
    newer one."""

    topic: Name
    partition: Partition
    producer_id: Int64
    producer_epoch: Annotated[int, Meta(ge=-1, le=32_767)]
    commit: bool
    keeps_epoch: Annotated[bool, Since(5)] = False


class WriteTxnMarkersRequest(Message):
    """Request of the coordinator of decided transactions to the leader of their partitions.

    `coordinator_epoch`: the leader epoch of its partition of the state topic; a leader that has seen a newer one
    refuses. `started_ms`: time at which the transaction began, for the markers; -1: not known.
    """

    coordinator_epoch: Int32
    markers: Annotated[list[TransactionMarker], Meta(min_length=1, max_length=MARKERS_MAX)]
    started_ms: Annotated[int, Meta(ge=-1, le=2**62), Since(4, ignorable=True)] = -1


class WriteTxnMarkersResponse(Message):
    """Positions in the request of the markers that are not written: the coordinator sends them again, to the leaders of
    that moment."""

    failed: Annotated[list[int], Meta(max_length=MARKERS_MAX)]


class AddPartitionsToTxnRequest(Message):
    """Request of the leader of partitions, or the coordinator of a group, to the coordinator of a transaction, before
    the first record of the transaction is appended there (KIP-890). Without partitions: asks why a partition has
    refused the producer's epoch as too old."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Annotated[int, Meta(ge=-1, le=32_767)]
    partitions: Annotated[list[TransactionPartitionName], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class AddPartitionsToTxnResponse(Message):
    """Number of the partitions, all named ones, that are durably part of the transaction. `started_ms`: time at which
    the transaction began; -1: not known."""

    added: Annotated[int, Meta(ge=0)]
    started_ms: Annotated[int, Meta(ge=-1, le=2**62), Since(5, ignorable=True)] = -1


class FindTxnOwnersRequest(Message):
    """Request to all brokers, by the leader of a partition, for the open transactions in the partition that they
    coordinate."""

    topic: Name
    partition: Partition


class TransactionOwner(Message):
    """A producer and its transactional id."""

    producer_id: Int64
    transactional_id: Text


class FindTxnOwnersResponse(Message):
    """All transactions of the answering broker that include the partition."""

    owners: list[TransactionOwner]


class SecurityRecordChange(Message):
    """The new state of a security record (`security/records.py`); None deletes it."""

    kind: Annotated[str, Meta(max_length=32)]
    key: Annotated[str, Meta(min_length=1, max_length=KEY_CHARS_MAX)]
    value: Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)] | None


class AlterSecurityRecordsRequest(Message):
    """Request of a broker to the controller: all changes are stored together, or none."""

    changes: Annotated[list[SecurityRecordChange], Meta(min_length=1, max_length=CHANGES_MAX)]


class AlterSecurityRecordsResponse(Message):
    """The changes are stored; images from this version on have them."""

    controller_epoch: Int64
    zxid: Int64


FORWARDED_BYTES_MAX = 4 * 1024 * 1024
PRINCIPAL_CHARS_MAX = 1_100


class ForwardRequest(Message):
    """Request of a broker to the controller: a client's request that only the controller answers (KIP-590).

    The sending broker has checked the client's permissions, and writes the audit log.
    """

    api: Annotated[int, Meta(ge=0, le=65_535)]
    version: Annotated[int, Meta(ge=0, le=65_535)]
    request: Annotated[bytes, Meta(max_length=FORWARDED_BYTES_MAX)]
    """The bytes that the client sent."""
    principal: Annotated[str, Meta(max_length=PRINCIPAL_CHARS_MAX)]
    request_id: Annotated[str, Meta(max_length=REQUEST_ID_CHARS_MAX)]
    """Random; the same in all attempts."""
    is_repeated: bool = False
    """True if an earlier attempt may have taken effect."""


class ForwardResponse(Message):
    """The controller's answer. The sending broker answers its client once its image has the version
    (`controller_epoch`, `zxid`)."""

    controller_epoch: Int64
    zxid: Int64
    response: bytes = b""
    """The API's response in the request's version; empty with an error."""
    error_code: int = 0
    message: str = ""


HOLD_MS_MAX = 10_000
STATE_PARTITIONS_MAX = 10_000


class CommitsFrom(Message):
    """A partition of a LIST_COMMITS request. The answer has every transaction whose commit marker is at or above
    `offset`, also those before `since_ms`."""

    topic: Name
    partition: Partition
    offset: Int64


class ListCommitsRequest(Message):
    """Request to a leader, by a broker that takes a snapshot, for the transactions whose commit marker was appended
    since `since_ms`."""

    since_ms: Annotated[int, Meta(ge=-(2**62), le=2**62)]
    partitions: Annotated[list[CommitsFrom], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class CommittedPart(Message):
    """The records of one committed transaction in a partition."""

    number: Annotated[int, Meta(ge=0, le=PARTITIONS_PER_REQUEST_MAX)]
    """Index of the partition in the request."""
    producer_id: Int64
    """Id of the producer; -1: a shared transaction."""
    epoch: Int64
    """Epoch of the producer. For a shared transaction, or if the client keeps its epoch: the start in ms."""
    first_offset: Int64
    last_offset: Int64
    started_ms: Int64


class ListCommitsResponse(Message):
    """Commits of the requested partitions that the answering broker leads."""

    parts: Annotated[list[CommittedPart], Meta(max_length=COMMITS_MAX)]


class HoldTransactionsRequest(Message):
    """Request to each coordinator, by a broker that takes a snapshot of several leaders: decide no transaction until
    the hold `name` is released, or for at most `hold_ms`."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    hold_ms: Annotated[int, Meta(ge=1, le=HOLD_MS_MAX)]
    release: bool = False


class HoldTransactionsResponse(Message):
    """The held partitions, after all decided transactions have their markers. `partitions`: partitions of the state
    topic, with their leader epochs; after a release only those that were held all the time.
    """

    partitions: Annotated[list[int], Meta(max_length=STATE_PARTITIONS_MAX)]
    leader_epochs: Annotated[list[int], Meta(max_length=STATE_PARTITIONS_MAX)]
