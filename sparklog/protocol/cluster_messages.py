"""The APIs between brokers: followers copy partitions, and all brokers fetch the controller's images and ask it for
changes.

The first fetch of a session names all partitions that the follower copies from the leader; later fetches name only the
partitions that have changed (KIP-227). So an idle partition appears in no request and no answer.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX, Int32, Int64, Message, Name, Partition, Text
from sparklog.protocol.topic_messages import REPLICAS_MAX, REQUEST_ID_CHARS_MAX, BrokerId
from sparklog.security.records import CHANGES_MAX, KEY_CHARS_MAX, VALUE_BYTES_MAX

WAIT_MS_MAX = 60_000
SEGMENTS_MAX = 1_000
"""Largest number of segment starts in the result of one partition."""
EPOCHS_MAX = 10_000
"""Largest number of leader epochs in the result of one partition."""
GAPS_MAX = 10_000
"""Largest number of gaps of one log in a fetch. A follower with more gaps copies the log again from its start."""
COMMITS_MAX = 200_000
"""Largest number of transactions that a snapshot of offsets compares. A transaction counts once for each of its
partitions."""
NO_SESSION = 0


class MissingOffsets(Message):
    """The offsets [first_offset, next_offset), which the log has lost permanently: a repair could not save their
    records."""

    first_offset: Int64
    next_offset: Int64


class ReplicaFetchPartition(Message):
    """State of a follower's log, which has the records from `log_start_offset` to before `fetch_offset`, except `gaps`.

    `last_epoch`: leader epoch of the last record; -1: the log is empty. `high_watermark`: the high watermark that the
    follower knows. `copied_to`: the value in the leader's last result, so that the leader answers when the
    value has changed.
    """

    topic: Name
    partition: Partition
    leader_epoch: Int32
    fetch_offset: Int64
    last_epoch: Int32
    log_start_offset: Int64
    high_watermark: Int64
    max_bytes: Annotated[int, Meta(ge=0)]
    gaps: Annotated[list[MissingOffsets], Meta(max_length=GAPS_MAX)] = []
    copied_to: Int64 = -1


class ForgottenPartition(Message):
    """A partition that the follower no longer copies from this leader."""

    topic: Name
    partition: Partition


class ReplicaFetchRequest(Message):
    """Long poll: the leader answers when a partition of the session has news, or after `max_wait_ms`.

    With `session_epoch` 0, `partitions` lists all partitions of a new session. With a higher epoch, it lists those that
    have changed since the preceding request, whose epoch was one less.
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
    """Result for one partition. The payload has whole batches from the fetch offset on, with the leader's stamps."""

    topic: Name
    partition: Partition
    error_code: int
    """Code of an error, or 0. With a refused offset, the log start and log end are those of the leader's log; with
    other errors the fields can be -1."""
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    log_start_offset: Int64 = -1
    log_end_offset: Int64 = -1
    diverging_epoch: Int32 = -1
    """Leader epoch at whose end the follower has to truncate its log; -1: the logs do not diverge. It is the follower's
    last epoch, or the largest earlier epoch that the leader knows. A result with a diverging epoch has no batches."""
    diverging_end: Int64 = -1
    """End of `diverging_epoch` in the leader's log, or, if a gap is in only one of the two logs, the first offset of
    that gap."""
    length_bytes: Annotated[int, Meta(ge=0)] = 0
    """Size in bytes of this partition's batches in the payload."""
    next_offset: Int64 = -1
    """Offset after the last batch in the payload."""
    message: str = ""
    epochs: Annotated[list[EpochBegin], Meta(max_length=EPOCHS_MAX)] = []
    """Leader epochs that begin in the payload's offsets. Compaction can have removed the first records of an epoch."""
    segments: Annotated[list[Int64], Meta(max_length=SEGMENTS_MAX)] = []
    """First offsets of the leader's segments in the payload's offsets. The follower starts segments at the same
    offsets, because copies in the object store are whole segments and have to fit the log of every replica."""
    gaps: Annotated[list[MissingOffsets], Meta(max_length=GAPS_MAX)] = []
    """Gaps of the leader's log from the fetch offset to `next_offset`. A result can have gaps without batches."""
    copied_to: Int64 = -1
    """All replicas have the records below this offset; -1: at least one replica is out of sync."""


class ReplicaFetchResponse(Message):
    """Results of the partitions with news. The payload is their batches, one partition after another."""

    session_id: Int64
    results: Annotated[list[ReplicaFetchResult], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class MetadataFetchRequest(Message):
    """Long poll for metadata newer than the broker's image, whose version is (`controller_epoch`, `zxid`); (-1, -1):
    the broker has no image."""

    broker_id: BrokerId
    controller_epoch: Int64
    zxid: Int64
    max_wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]


class ImageChange(Message):
    """One change of the image. `delta` (`replication/image_codec.py`) turns the image before it into the version
    (`controller_epoch`, `zxid`)."""

    controller_epoch: Int64
    zxid: Int64
    delta: bytes


class MetadataFetchResponse(Message):
    """The newer changes, in their order. If the controller no longer has all of them, or they are large, it sends the
    whole `image` instead, compressed by zstd (`replication/image_codec.py`). Without both, the broker's image is the
    newest. `image_bytes`: size of the image without compression."""

    image: bytes | None = None
    changes: Annotated[list[ImageChange], Meta(max_length=10_000)] = []
    image_bytes: Annotated[int, Meta(ge=0)] = 0


class IsrMember(Message):
    """A member of the ISR. `broker_epoch`: epoch of the broker's registration in which it is in sync; -1: a present
    member that has not fetched from this leader yet."""

    broker_id: BrokerId
    broker_epoch: Int64


class IsrProposal(Message):
    """A leader's proposal of the ISR for one partition (KIP-497, KIP-841). `recovering`: True until the leader confirms
    an unclean election."""

    topic: Name
    partition: Partition
    leader_epoch: Int32
    partition_epoch: Int32
    isr: Annotated[list[IsrMember], Meta(min_length=1, max_length=REPLICAS_MAX)]
    recovering: bool = False


class AlterPartitionRequest(Message):
    """Request of a leader to the controller: change the ISRs of partitions."""

    broker_id: BrokerId
    broker_epoch: Int64
    proposals: Annotated[list[IsrProposal], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]


class IsrDecision(Message):
    """Decision about one proposal. `state`: the partition's stored state (`replication/image_codec.py`); with an error,
    `message` has the reason of the refusal."""

    error_code: int
    message: str = ""
    state: bytes = b""


class AlterPartitionResponse(Message):
    """One decision per proposal, in their order."""

    decisions: Annotated[list[IsrDecision], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class ControlledShutdownRequest(Message):
    """Request of a broker that is about to stop: move its leaderships to other brokers (Kafka's API of this name)."""

    broker_id: BrokerId
    broker_epoch: Int64


class ControlledShutdownResponse(Message):
    """Number of partitions that the broker still leads. The broker repeats the request until this number is 0, or no
    other broker can lead the partitions.
    """

    remaining: Annotated[int, Meta(ge=0)]


class SuspectBrokerRequest(Message):
    """The broker `observer_id` does not reach the broker `broker_id`, and asks another broker to probe it, too."""

    observer_id: BrokerId
    observer_epoch: Int64
    broker_id: BrokerId
    broker_epoch: Int64


class SuspectBrokerResponse(Message):
    """`is_confirmed`: True if the receiver does not reach the broker either. The controller has then stored other
    leaders where possible."""

    is_confirmed: bool


class OfflinePartition(Message):
    """A partition in a DIRECTORY_FAILED report."""

    topic: Name
    partition: Partition


class DirectoryFailedRequest(Message):
    """Report of a broker's partitions with disk trouble (KIP-112); repeated to every new controller.

    `room` 0: the replicas are offline until the broker restarts, because their disk has failed or their files are
    damaged. 1: they are online, but on a full disk. 2: their disk has room again.
    """

    broker_id: BrokerId
    broker_epoch: Int64
    partitions: Annotated[list[OfflinePartition], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    room: Annotated[int, Meta(ge=0, le=2)] = 0


class DirectoryFailedResponse(Message):
    """Confirmation that the controller has stored new leaders and ISRs. `leaderless`: number of partitions that no
    broker can lead now. `moved`: with a full disk, number of partitions whose ISR the reporting broker has left."""

    leaderless: Annotated[int, Meta(ge=0)]
    moved: Annotated[int, Meta(ge=0)] = 0


MARKERS_MAX = PARTITIONS_PER_REQUEST_MAX


class TransactionPartitionName(Message):
    """A partition of a transaction."""

    topic: Name
    partition: Partition


class TransactionMarker(Message):
    """The end of one producer's transaction in one partition. `keeps_epoch`: True if the producer keeps
    `producer_epoch` after the transaction; False if the coordinator has raised the epoch."""

    topic: Name
    partition: Partition
    producer_id: Int64
    producer_epoch: Annotated[int, Meta(ge=-1, le=32_767)]
    commit: bool
    keeps_epoch: bool = False


class WriteTxnMarkersRequest(Message):
    """Request of a transaction coordinator to a partition leader: append the markers of decided transactions.

    `coordinator_epoch`: leader epoch of the coordinator's partition of the state topic; a leader that has seen a newer
    epoch refuses the request. `started_ms`: start of the transaction, which the markers contain; -1: not known.
    """

    coordinator_epoch: Int32
    markers: Annotated[list[TransactionMarker], Meta(min_length=1, max_length=MARKERS_MAX)]
    started_ms: Annotated[int, Meta(ge=-1, le=2**62)] = -1


class WriteTxnMarkersResponse(Message):
    """Answer to the coordinator. `failed`: indices of the markers that were not written. The coordinator sends them
    again, to the leaders of that time."""

    failed: Annotated[list[int], Meta(max_length=MARKERS_MAX)]


class AddPartitionsToTxnRequest(Message):
    """Request to the coordinator of a transaction, by a partition leader or a group coordinator: add these partitions
    before they append the first record of the transaction (KIP-890). With no partitions, the answer is the error of a
    producer whose epoch is too old."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Annotated[int, Meta(ge=-1, le=32_767)]
    partitions: Annotated[list[TransactionPartitionName], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]


class AddPartitionsToTxnResponse(Message):
    """Confirmation that the partitions are durably part of the transaction. `added`: their number. `started_ms`: start
    of the transaction; -1: not known."""

    added: Annotated[int, Meta(ge=0)]
    started_ms: Annotated[int, Meta(ge=-1, le=2**62)] = -1


class FindTxnOwnersRequest(Message):
    """Request of a partition leader to all brokers: name the open transactions that the asked broker coordinates and
    that include this partition."""

    topic: Name
    partition: Partition


class TransactionOwner(Message):
    """A producer and its transactional id."""

    producer_id: Int64
    transactional_id: Text


class FindTxnOwnersResponse(Message):
    """All open transactions that the answering broker coordinates and that include the partition."""

    owners: list[TransactionOwner]


class SecurityRecordChange(Message):
    """The new state of a security record (`security/records.py`). `value` None deletes the record."""

    kind: Annotated[str, Meta(max_length=32)]
    key: Annotated[str, Meta(min_length=1, max_length=KEY_CHARS_MAX)]
    value: Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)] | None


class AlterSecurityRecordsRequest(Message):
    """Request of a broker to the controller: store all changes together, or none."""

    changes: Annotated[list[SecurityRecordChange], Meta(min_length=1, max_length=CHANGES_MAX)]


class AlterSecurityRecordsResponse(Message):
    """Confirmation that the changes are stored. Images with this version, or a newer one, contain them."""

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
    """Random id, the same in all attempts of this request."""
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
    """A partition of a LIST_COMMITS request. The answer contains all transactions with a commit marker at or above
    `offset`, even if the marker is older than `since_ms`."""

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
    """Index of the partition in the request's list."""
    producer_id: Int64
    """Id of the producer; -1: a shared transaction."""
    epoch: Int64
    """Epoch of the producer. For a shared transaction, or a client that keeps its epoch, this field has the start of
    the transaction in ms instead."""
    first_offset: Int64
    last_offset: Int64
    started_ms: Int64


class ListCommitsResponse(Message):
    """Commits of the requested partitions that the answering broker leads."""

    parts: Annotated[list[CommittedPart], Meta(max_length=COMMITS_MAX)]


class HoldTransactionsRequest(Message):
    """Request to each transaction coordinator, by a broker that takes a snapshot of offsets at several leaders. The
    coordinator decides no transaction until the hold `name` is released, or for at most `hold_ms`."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    hold_ms: Annotated[int, Meta(ge=1, le=HOLD_MS_MAX)]
    release: bool = False


class HoldTransactionsResponse(Message):
    """The partitions of the state topic that are held, with their leader epochs. The coordinator answers a hold when
    all decided transactions have their markers. After a release, the list has only the partitions that were held all
    the time."""

    partitions: Annotated[list[int], Meta(max_length=STATE_PARTITIONS_MAX)]
    leader_epochs: Annotated[list[int], Meta(max_length=STATE_PARTITIONS_MAX)]
