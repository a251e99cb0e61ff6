"""Messages of connections, of data and of offsets. The other messages are in modules of their own area.

Every type is encoded as a MessagePack array in the order of its fields. Evolution: a new version may only append fields
with defaults, marked with `Since`; a decoder ignores trailing fields that it does not know and fills in defaults for
missing ones. `apis` has the versions, `codec` encodes them, and `negotiation` chooses one. Limits of list lengths are
part of the types (`Annotated[..., Meta(max_length=…)]`), so a decoder enforces them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import (
    PARTITIONS_PER_REQUEST_MAX,
    TOPICS_PER_REQUEST_MAX,
    Int32,
    Int64,
    Message,
    Name,
    Partition,
    Text,
    ThrottleMs,
    TopicId,
)
from sparklog.protocol.topic_messages import BrokerEndpoint

REMOTE_SEGMENTS_MAX = 1_000
ABORTED_RANGES_MAX = 10_000
"""Approximate limit of the aborted ranges in the answer of LOCATE_SEGMENTS or LOCATE_REMOTE. A reader asks again for
the rest."""


class ErrorBody(Message):
    """Header of every response with an error code.

    The text has no limit, because a decoder would refuse the whole body for a text that is too long. `version_min` and
    `version_max`: with UNSUPPORTED_VERSION, the versions of the API that the broker has; otherwise -1.
    """

    message: str = ""
    version_min: int = -1
    version_max: int = -1
    throttle_ms: ThrottleMs = 0


class HandshakeRequest(Message):
    """First request of a connection. It describes the client. `client_address`: the client's end of the connection as
    the client sees it (HOST:PORT; "": not given), so that the broker notices a proxy or an address translation in
    between.

    HANDSHAKE has one version only, because it comes before versions are known. A field of a later release comes last,
    and an older broker skips it. `client_id`: the
    client's `client.id`; "": none is set, and the broker uses `client_name`. `gateway`: name of the gateway that serves
    Kafka's clients over this connection; "": the client is none, or the broker's own gateway.
    """

    client_name: Text = ""
    client_version: Text = ""
    client_address: Text = ""
    client_id: Text = ""
    gateway: Annotated[str, Meta(max_length=1_000)] = ""


COLUMNS_PER_REQUEST_MAX = 10_000
UInt16 = Annotated[int, Meta(ge=0, le=65_535)]
APIS_MAX = 1_000


class ApiRange(Message):
    """The oldest and the newest version of one API that the broker speaks."""

    api: UInt16
    version_min: UInt16
    version_max: UInt16


class HandshakeResponse(Message):
    """The broker's identity, its APIs, and its largest frame. `local_socket`: name of the abstract Unix socket on which
    the broker listens beside TCP; "": this client has to use TCP."""

    broker_id: int
    cluster_id: str
    broker_version: Annotated[str, Meta(max_length=200)]
    apis: Annotated[list[ApiRange], Meta(max_length=APIS_MAX)]
    request_bytes_max: Annotated[int, Meta(ge=0)]
    local_socket: Text = ""


class ProducePartition(Message):
    """The batches of one partition: `length_bytes` bytes of the payload, in the order of the list. `key_rules`: the
    rules (`format/key_format.py`) by which the gateway has checked the records' keys; the broker refuses the batches if
    the topic has others now; -1: not checked. `topic_id`: the broker refuses a topic of this name with another id; "":
    not checked."""

    topic: Name
    partition: Partition
    length_bytes: Annotated[int, Meta(ge=1)]
    key_rules: Int32 = -1
    topic_id: TopicId = ""


class ProduceRequest(Message):
    """Write batches, which are the payload. `acks`: 0 no response at all, 1 after the leader's append, -1 after all
    in-sync replicas have the records."""

    acks: Annotated[int, Meta(ge=-1, le=1)]
    timeout_ms: Annotated[int, Meta(ge=0, le=86_400_000)]
    partitions: Annotated[list[ProducePartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    transactional_id: Text | None = None
    """Transactional id of the producer of all transactional batches in the payload; None: no id."""
    expected_offsets: Annotated[list[Int64], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)] = []
    """One per partition if the batches have offsets of their own, for mirrored topics: the log end offset at which they
    are appended. The broker refuses them if the log ends elsewhere. Empty: the broker assigns the offsets."""


class ProduceResult(Message):
    """Outcome for one partition. `base_offset`: offset of the first row of the first batch; the rows of a batch have
    consecutive offsets.

    `newest_schema_id`: a producer that wrote with an older schema should read the topic's metadata again; -1: not
    given. `base_offsets`: one per batch, if the batches are not contiguous because some were stored already.
    `leader_id`, `leader_epoch`: the present leader, if the answering broker knows that another broker leads (KIP-951).
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str = ""
    newest_schema_id: int = -1
    base_offsets: list[int] = []
    leader_id: int = -1
    leader_epoch: int = -1


class ProduceResponse(Message):
    """One result per partition of the request, in its order. `brokers`: addresses of the leaders that results name.
    `throttle_ms`: time in ms for which the broker reads nothing more from the connection, because of a quota."""

    results: list[ProduceResult]
    brokers: list[BrokerEndpoint] = []
    throttle_ms: int = 0


class FetchPartition(Message):
    """Start and largest size of a read. `leader_epoch`: the partition's leader epoch as the client knows it; the broker
    refuses a different epoch (KIP-320); -1: not known. `leader_only`: True to read from the leader, although the
    request has a `rack`. `topic_id`: as in ProducePartition. `columns`: names of the only columns that the reader
    decodes; the answer can lack others (`format/pruned_batch.py`). None: all."""

    topic: Name
    partition: Partition
    fetch_offset: Int64
    max_bytes: Annotated[int, Meta(ge=0)]
    leader_epoch: Int32 = -1
    leader_only: bool = False
    topic_id: TopicId = ""
    columns: Annotated[list[Text], Meta(max_length=COLUMNS_PER_REQUEST_MAX)] | None = None


class FetchRequest(Message):
    """Long poll: the broker answers when all partitions together have `min_bytes`, when one has an error, or after
    `max_wait_ms`.

    `max_bytes` 0: the broker waits as usual, but sends no batches; the answer has the high watermarks. `rack`: the
    reader's rack; the leader can direct the reader to a replica in this rack (KIP-392).
    """

    max_wait_ms: Annotated[int, Meta(ge=0, le=60_000)]
    min_bytes: Annotated[int, Meta(ge=0)]
    max_bytes: Annotated[int, Meta(ge=0)]
    isolation: Annotated[int, Meta(ge=0, le=1)]
    partitions: Annotated[list[FetchPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    rack: Text = ""


class AbortedRange(Message):
    """An aborted transaction: the transactional batches of `producer_id` with a base offset in [first_offset,
    last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int


class FetchResult(Message):
    """Result for one partition. Its batches are `length_bytes` bytes of the payload. Batches are whole, so the first
    can begin below the fetch offset; the reader skips those rows.

    With isolation 1, the batches end at the last stable offset. `aborted` has the aborted ranges that overlap with
    them, and the reader leaves the batches of these ranges out. `leader_id`, `leader_epoch`: with some errors, the
    present leader and its epoch (KIP-951). `preferred_replica`: id of the follower to read from instead, in a result
    without batches; -1: read on from this broker (KIP-392).
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    length_bytes: int = 0
    message: str = ""
    aborted: list[AbortedRange] = []
    leader_id: int = -1
    leader_epoch: int = -1
    preferred_replica: int = -1


class FetchResponse(Message):
    """One result per partition of the request, in its order. The payload is their batches, one partition after another.
    `brokers`: addresses of the brokers that results name. `throttle_ms`: as in ProduceResponse."""

    results: list[FetchResult]
    brokers: list[BrokerEndpoint] = []
    throttle_ms: int = 0


class EpochPartition(Message):
    """A question for the end of leader epoch `epoch` in a partition. `leader_epoch`: as in FetchPartition."""

    topic: Name
    partition: Partition
    leader_epoch: Int32
    epoch: Int32


class OffsetsForLeaderEpochRequest(Message):
    """Ask the leader for the ends of leader epochs. A reader learns from them if the leader still has the records that
    it has read (KIP-320)."""

    partitions: Annotated[list[EpochPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]


class EpochEndOffset(Message):
    """The largest leader epoch up to the requested one of which the leader has records, and the offset after those
    records. Both are -1 if the leader has only later epochs, or if the requested epoch is later than all that it
    knows."""

    topic: str
    partition: int
    error_code: int
    epoch: int = -1
    end_offset: int = -1
    message: str = ""


class OffsetsForLeaderEpochResponse(Message):
    """One result per partition of the request, in its order."""

    results: list[EpochEndOffset]
    throttle_ms: ThrottleMs = 0


class ListOffsetsPartition(Message):
    """A look-up in one partition. `leader_epoch`: as in FetchPartition. `timestamp_ms` >= 0: the first record with at
    least this timestamp. Negative values have the meanings of Kafka: -1 latest, -2 earliest, -3 largest timestamp, -4
    earliest on the local disk, -5 latest in the object store."""

    topic: Name
    partition: Partition
    timestamp_ms: Annotated[int, Meta(ge=-5, le=2**62)]
    leader_epoch: Int32 = -1


class ListOffsetsRequest(Message):
    """Look up offsets. With isolation 1, the latest offset is the last stable offset, and no record behind it is found.

    `all_at_once`: look up the earliest and latest offsets of partitions, also those that other brokers lead, at one
    moment. With isolation 1 no transaction then lies partly below the latest offsets, so these can be lower than the
    last stable offsets.
    """

    partitions: Annotated[list[ListOffsetsPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0
    all_at_once: bool = False


class ListOffsetsResult(Message):
    """The result of a look-up. `offset` -1 and `timestamp_ms` -1: no record matches. `leader_epoch`: epoch of the
    record that matches, and for the earliest and latest offsets of the record before them; -1: not known.
    `has_commits_behind`: True if a transaction may have been committed by a marker at or behind the latest offset."""

    topic: str
    partition: int
    error_code: int
    offset: int = -1
    timestamp_ms: int = -1
    message: str = ""
    leader_epoch: int = -1
    has_commits_behind: bool = False


class ListOffsetsResponse(Message):
    """One result per partition of the request, in its order."""

    results: list[ListOffsetsResult]
    throttle_ms: ThrottleMs = 0


class SnapshotOffsetsRequest(Message):
    """Ask for the beginning and end of one partition in the snapshot `name`. The principal's first request under this
    name observes all partitions of `topics` at one moment; its later requests get the same offsets. With isolation 1,
    no transaction lies partly below the ends."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    topics: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_PER_REQUEST_MAX)]
    topic: Name
    partition: Partition
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0


class SnapshotOffsetsResponse(Message):
    """The partition's offsets [start, end) in the snapshot."""

    start: int
    end: int
    throttle_ms: ThrottleMs = 0


class LocateSegmentsRequest(Message):
    """Request the file ranges of [start_offset, end_offset), for a client on the broker's host that maps the files."""

    topic: Name
    partition: Partition
    start_offset: Int64
    end_offset: Int64
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0


class SegmentRange(Message):
    """Whole batches in a segment file. `base_offset`: base offset of the segment. `first_offset`: base offset of the
    batch at `start_position`, which can be below the requested start. If the client finds a different batch there, the
    file has been replaced."""

    path: str
    schema_id: int
    base_offset: int
    start_position: int
    end_position: int
    first_offset: int = -1


class LocateSegmentsResponse(Message):
    """Ranges in offset order. They end at the high watermark, or with isolation 1 at the last stable offset; then
    `aborted` has the aborted ranges that overlap with them. They can end before the requested end: the reader asks
    again. `data_dir_id` is the field of that name in the file `<data_dir>/meta.json`: a client that reads the same id
    there sees the same files."""

    data_dir: str
    data_dir_id: str
    high_watermark: int
    log_start_offset: int
    ranges: list[SegmentRange]
    last_stable_offset: int = -1
    aborted: list[AbortedRange] = []
    throttle_ms: ThrottleMs = 0


class LocateRemoteRequest(Message):
    """Ask for the segments with offsets in [start_offset, end_offset) that are only in the object store. The client
    reads them there."""

    topic: Name
    partition: Partition
    start_offset: Int64
    end_offset: Int64
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0


class LocateRemoteResponse(Message):
    """Copies of segments below `url`, in offset order. Each is the MessagePack form of the copy's metadata
    (`sparklog.log.tiering.state`). An answer has at most REMOTE_SEGMENTS_MAX copies.

    With isolation 1, the client may read only the records below `last_stable_offset`, and `aborted` has the aborted
    ranges that overlap with them. If the ranges are many, the answered `last_stable_offset` is lower than the
    partition's, and the reader asks again for the rest.
    """

    url: str
    log_start_offset: int
    segments: list[bytes]
    last_stable_offset: int = -1
    aborted: list[AbortedRange] = []
    throttle_ms: ThrottleMs = 0


class DeleteRecordsPartition(Message):
    """Delete the records below `before_offset`; -1: below the high watermark."""

    topic: Name
    partition: Partition
    before_offset: Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class DeleteRecordsRequest(Message):
    """Delete the oldest records of partitions. `timeout_ms`: longest wait until all replicas have raised their log
    starts."""

    timeout_ms: Annotated[int, Meta(ge=0, le=86_400_000)]
    partitions: Annotated[list[DeleteRecordsPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]


class DeleteRecordsResult(Message):
    """Result for one partition. `low_watermark`: the smallest log start of the partition's replicas, so no replica can
    serve records below it."""

    topic: str
    partition: int
    error_code: int
    low_watermark: int = -1
    message: str = ""


class DeleteRecordsResponse(Message):
    """One result per partition of the request, in its order."""

    results: list[DeleteRecordsResult]
    throttle_ms: ThrottleMs = 0
