"""Messages about topics: the cluster's metadata, and what makes, changes and deletes topics."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from sparklog.protocol.base import (
    CONFIGS_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    TOPICS_PER_REQUEST_MAX,
    Message,
    Name,
    Text,
)


class MetadataRequest(Message):
    """`topics` None asks for all."""

    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None


class BrokerEndpoint(Message):
    """Where a broker listens."""

    broker_id: int
    host: str
    port: int


class PartitionState(Message):
    """Who leads a partition. `error_code` is not 0 if it is offline.

    What follows it is as the answering broker's log is at the moment, -1: not known. `size_bytes` are bytes of batches, `remote_size_bytes` of them
    are only in the object store: those below `local_log_start_offset`.
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


class SchemaVersion(Message):
    """One schema of a topic: an Arrow IPC schema message."""

    schema_id: int
    arrow_schema: bytes


class TopicState(Message):
    """All about a topic. `error_code` is not 0 if the asked topic does not exist; then the rest is empty.

    `configs` holds only what was set for the topic, `broker_defaults` what the broker's configuration sets for topics that
    do not set it themselves; `schemas` all versions, the newest last.
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


class MetadataResponse(Message):
    """The cluster as this broker knows it."""

    cluster_id: str
    controller: int
    brokers: list[BrokerEndpoint]
    topics: list[TopicState]


class CreateTopicRequest(Message):
    """`partitions` -1: the broker's `num.partitions`. `arrow_schema` None: an envelope topic."""

    name: Name
    partitions: Annotated[int, Meta(ge=-1, le=PARTITIONS_PER_TOPIC_MAX)] = -1
    arrow_schema: bytes | None = None
    key_columns: Annotated[list[Text], Meta(max_length=100)] = []
    timestamp_column: Text | None = None
    configs: Annotated[dict[str, Any], Meta(max_length=CONFIGS_MAX)] = {}


class CreateTopicResponse(Message):
    """The new topic."""

    topic: TopicState


class DeleteTopicRequest(Message):
    """Deletes a topic with all its data."""

    name: Name


class DeleteTopicResponse(Message):
    """The deleted topic's id."""

    topic_id: str


class AlterTopicRequest(Message):
    """Sets topic settings, or with None takes them back to the default; those not named stay."""

    name: Name
    configs: Annotated[dict[str, Any], Meta(max_length=CONFIGS_MAX)] = {}


class AlterTopicResponse(Message):
    """The topic as it is now."""

    topic: TopicState


class AlterSchemaRequest(Message):
    """Changes a typed topic's schema. All three are Arrow IPC schema messages: columns to append, columns with the type
    they shall be widened to, or (alone) the whole schema as it shall be."""

    name: Name
    add_columns: bytes | None = None
    widen_columns: bytes | None = None
    arrow_schema: bytes | None = None


class AlterSchemaResponse(Message):
    """The topic, with its newest schema last; nothing new if the change was there already."""

    topic: TopicState
