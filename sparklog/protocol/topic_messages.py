"""Messages about topics: the cluster's metadata; creation, change and deletion of topics."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from sparklog.protocol.base import (
    CONFIGS_MAX,
    NO_VERSION,
    PARTITIONS_PER_TOPIC_MAX,
    TOPICS_PER_REQUEST_MAX,
    AnswerVersion,
    AtLeast,
    ConfigValue,
    Int32,
    Message,
    Name,
    Text,
    ThrottleMs,
    TopicId,
)

AUTO_CREATED_MAX = 100
REQUEST_ID_CHARS_MAX = 64


class MetadataRequest(Message):
    """Ask for metadata of the cluster and of topics. A topic that is named twice is answered once."""

    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    """Topics to describe; None: all topics."""
    paged: bool = False
    """True if the client reads long answers page by page. If False, an answer that is too long is an error."""
    after: Name = ""
    """Topic after which the page begins, in the order of `topics` or, without `topics`, by name; "": the first page."""
    schemas_from: Int32 = -1
    """If not -1, the page begins with the schemas of the topic `after` from this schema id on, without its
    partitions."""
    with_schemas: bool = True
    """False: the answer has no schemas."""
    with_partitions: bool = True
    """False: the answer has no partitions, but their number (`partition_count`)."""
    create_missing: bool = False
    """True if the client is about to write to `topics`, at most AUTO_CREATED_MAX. The broker creates missing topics if
    its auto.create.topics.enable allows it."""
    at_least: AtLeast = NO_VERSION
    to_write: bool = False
    """True: topics that the client may describe but not write are answered as denied."""
    topic_ids: Annotated[list[TopicId], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    """Ids of the topics to describe, if `topics` is None. An id of no topic is left out; None: all topics."""
    with_registries: bool = False
    """True: the answer has the addresses of the schema registry."""


BrokerId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
REPLICAS_MAX = 100
Assignment = Annotated[
    list[Annotated[list[BrokerId], Meta(max_length=REPLICAS_MAX)]], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)
]
"""Broker ids of the replicas of some partitions."""


class BrokerEndpoint(Message):
    """Address of a broker. `rack` "": not given."""

    broker_id: int
    host: str
    port: int
    rack: str = ""


class PartitionState(Message):
    """State of a partition. `error_code` is not 0 if the partition is offline.

    The offsets and sizes are those of the answering broker's own log; -1: it has no such log. `size_bytes`: size of all
    batches. `remote_size_bytes`: size of those that are only in the object store, below `local_log_start_offset`.
    `write_error`: the reason why the partition accepts no appends, or the error of the last append; empty: it
    succeeded.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    error_code: int = 0
    log_start_offset: int = -1
    high_watermark: int = -1
    size_bytes: int = -1
    local_log_start_offset: int = -1
    remote_size_bytes: int = -1
    write_error: str = ""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): replicas that are not in sync but have all committed records."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class SchemaVersion(Message):
    """One schema of a topic. `arrow_schema` is an Arrow IPC schema message."""

    schema_id: int
    arrow_schema: bytes


class TopicState(Message):
    """State of a topic. `error_code` is not 0 if the requested topic does not exist or may not be described; the fields
    after `name` then have their defaults.

    `configs` has the settings that are set for the topic, `broker_defaults` the answering broker's defaults for all
    topics. `schemas` has all versions, the newest last.
    """

    error_code: int
    name: str
    topic_id: str = ""
    kind: str = ""
    partitions: list[PartitionState] = []
    schemas: list[SchemaVersion] = []
    key_columns: list[str] = []
    timestamp_column: str | None = None
    configs: dict[str, Any] = {}
    created_ms: int = 0
    broker_defaults: dict[str, Any] = {}
    partition_count: int = -1


class MetadataResponse(Message):
    """The cluster as the answering broker knows it. `more`: True if a further page follows, which begins after the last
    topic here. `schemas_from` >= 0: the next page begins with that topic's schemas from this id on. `suspected`: ids of
    brokers that others do not reach. `registries`: addresses of the cluster's schema registry, as https://HOST:PORT;
    without HOST, it is the host of the client's connection. Empty with a registry outside of the cluster."""

    cluster_id: str
    controller: int
    brokers: list[BrokerEndpoint]
    topics: list[TopicState]
    more: bool = False
    schemas_from: int = -1
    throttle_ms: ThrottleMs = 0
    suspected: list[int] = []
    registries: list[str] = []


class CreateTopicRequest(Message):
    """Create a topic. `partitions` -1: the broker's `num.partitions`. `arrow_schema` None: an envelope topic.

    `replication_factor` -1: the cluster's `default.replication.factor`. `assignment`: broker ids of each partition's
    replicas, the preferred leader first; None: the controller places the replicas. `owner`: set by brokers of earlier
    releases; ignored. `request_id`: random, the same in all attempts of the request. A repeated request is answered
    with the topic that an earlier attempt created.
    """

    name: Name
    partitions: Annotated[int, Meta(ge=-1, le=PARTITIONS_PER_TOPIC_MAX)] = -1
    arrow_schema: bytes | None = None
    key_columns: Annotated[list[Text], Meta(max_length=100)] = []
    timestamp_column: Text | None = None
    configs: Annotated[dict[Name, ConfigValue], Meta(max_length=CONFIGS_MAX)] = {}
    replication_factor: Int32 = -1
    assignment: Assignment | None = None
    owner: Annotated[str, Meta(max_length=1_024)] = ""
    request_id: Annotated[str, Meta(max_length=REQUEST_ID_CHARS_MAX)] = ""
    validate_only: bool = False
    """True: check the request with its permissions, and create nothing."""


class CreateTopicResponse(Message):
    """State of the new topic; after `validate_only` without an id, schemas and partitions other than the first."""

    topic: TopicState
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DeleteTopicRequest(Message):
    """Delete a topic with all its data. `topic_id`: delete only the topic with this id, so that a repeated request
    cannot delete a newer topic of the same name; "": delete the topic with any id. `mirror`: delete only a topic that
    this mirror fills, because it can be promoted meanwhile; "": delete any topic."""

    name: Name
    topic_id: TopicId = ""
    mirror: Text = ""


class DeleteTopicResponse(Message):
    """The deleted topic's id."""

    topic_id: str
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class AlterTopicRequest(Message):
    """Change settings of a topic. A value of None restores the default. Settings that are not named remain
    unchanged."""

    name: Name
    configs: Annotated[dict[Name, ConfigValue], Meta(max_length=CONFIGS_MAX)] = {}
    validate_only: bool = False
    """True: check the request with its permissions, and change nothing."""


class AlterTopicResponse(Message):
    """State of the topic after the change; after `validate_only` its present state."""

    topic: TopicState
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class CreatePartitionsRequest(Message):
    """Add partitions to a topic. `total`: number of partitions afterwards. The existing partitions remain unchanged."""

    name: Name
    total: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_TOPIC_MAX)]
    validate_only: bool = False
    """True: check the request with its permissions, and change nothing."""
    assignment: Assignment | None = None
    """Broker ids of each new partition's replicas, the preferred leader first; None: the controller places the
    replicas."""


class CreatePartitionsResponse(Message):
    """State of the topic after the change; after `validate_only` its present state."""

    topic: TopicState
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class AlterSchemaRequest(Message):
    """Change a typed topic's schema. The three fields are Arrow IPC schema messages: columns to append, columns with
    wider types, or, alone, the whole new schema."""

    name: Name
    add_columns: bytes | None = None
    widen_columns: bytes | None = None
    arrow_schema: bytes | None = None
    validate_only: bool = False
    """True: check the request with its permissions, and change nothing."""


class AlterSchemaResponse(Message):
    """State of the topic after the change, with its newest schema last. The schema is unchanged if the topic had the
    change already, and after `validate_only`."""

    topic: TopicState
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION
