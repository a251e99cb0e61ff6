"""The APIs for the operators of a cluster: the brokers, the places of replicas, the leaders.

Any broker accepts them. It passes changes on to the controller, and answers when the controller has stored them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import (
    CONFIGS_MAX,
    NO_VERSION,
    PARTITIONS_PER_REQUEST_MAX,
    TOPICS_PER_REQUEST_MAX,
    AnswerVersion,
    AtLeast,
    ConfigValue,
    Int64,
    Message,
    Name,
    Partition,
    ThrottleMs,
)
from sparklog.protocol.topic_messages import REPLICAS_MAX, BrokerId

BROKERS_MAX = 10_000
LOG_DIRS_MAX = 10_000


class PartitionName(Message):
    """A partition."""

    topic: Name
    partition: Partition


class PartitionOutcome(Message):
    """Outcome for one partition of a request."""

    topic: str
    partition: int
    error_code: int = 0
    message: str = ""


class ReassignmentTarget(Message):
    """Target of a reassignment. `replicas`: the partition's new brokers, the preferred leader first; None: cancel the
    running reassignment (KIP-455)."""

    topic: Name
    partition: Partition
    replicas: Annotated[list[BrokerId], Meta(max_length=REPLICAS_MAX)] | None = None


class AlterPartitionReassignmentsRequest(Message):
    """Start or cancel reassignments. `throttle_bytes`: bytes per second that each broker sends to replicas that are
    being added, and receives as such a replica (KIP-73); 0: unlimited; -1: unchanged. The limit ends with the last
    reassignment."""

    partitions: Annotated[list[ReassignmentTarget], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    throttle_bytes: Annotated[int, Meta(ge=-1, le=2**62)] = -1


class AlterPartitionReassignmentsResponse(Message):
    """One outcome per partition, in their order. The replicas are made and copied from then on."""

    outcomes: Annotated[list[PartitionOutcome], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    throttle_ms: ThrottleMs = 0


class ListPartitionReassignmentsRequest(Message):
    """Request the running reassignments of `topics`; None: of all topics."""

    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None


class PartitionReassignment(Message):
    """A reassignment in progress. `replicas` has the old and the new replicas; `adding` are the new ones, and
    `removing` leave when all new ones are in `isr`.
    """

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    adding: list[int]
    removing: list[int]


class ListPartitionReassignmentsResponse(Message):
    """The reassignments that the controller knows. `throttle_bytes` per second, 0: none."""

    reassignments: Annotated[list[PartitionReassignment], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    throttle_bytes: int = 0
    throttle_ms: ThrottleMs = 0


class ElectLeadersRequest(Message):
    """Elect leaders of `partitions`; None: of all. `kind` 0: the first replica of the assignment leads if it is in
    sync; 1: a partition without a leader gets one even if that lacks acknowledged records. `partitions` None: all."""

    kind: Annotated[int, Meta(ge=0, le=1)]
    partitions: Annotated[list[PartitionName], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)] | None = None


class ElectLeadersResponse(Message):
    """One outcome per named or existing partition; `changed`: number of partitions with a new leader."""

    outcomes: list[PartitionOutcome]
    changed: int = 0
    throttle_ms: ThrottleMs = 0


class CordonBrokerRequest(Message):
    """Cordon the broker or not (KIP-1073): a cordoned broker gets no new replicas and keeps its present ones."""

    broker_id: BrokerId
    cordoned: bool


class CordonBrokerResponse(Message):
    """The ids of all brokers that are excluded from new replicas."""

    cordoned: list[int]
    throttle_ms: ThrottleMs = 0


class DescribeClusterRequest(Message):
    """Request the list of brokers; with `include_missing` also the unregistered ones."""

    include_missing: bool = True


class BrokerState(Message):
    """A present or former broker. `broker_epoch` is -1 and `host` empty if it is not registered. `is_stopping`: it
    leads nothing any more and is about to stop."""

    broker_id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    broker_epoch: Int64 = -1
    is_stopping: bool = False
    is_cordoned: bool = False


class DescribeClusterResponse(Message):
    """State of the cluster as the answering broker knows it. `controller` -1: none. `throttle_bytes`: see
    AlterPartitionReassignmentsRequest."""

    cluster_id: str
    controller: int
    controller_epoch: Int64
    brokers: Annotated[list[BrokerState], Meta(max_length=BROKERS_MAX)]
    throttle_bytes: int = 0
    throttle_ms: ThrottleMs = 0


class DescribeLogDirsRequest(Message):
    """Request the state of a broker's disks; each broker reports its own (KIP-113, KIP-827). `topics`: the topics whose
    partitions are counted; None: all.
    """

    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None


class LogDir(Message):
    """A log directory. `message`: the reason why it cannot be used, with `error_code`. `total_bytes` and `usable_bytes`
    are those of its disk, -1: unknown; `partitions` and `size_bytes` count this broker's replicas in it."""

    path: str
    error_code: int = 0
    message: str = ""
    total_bytes: Int64 = -1
    usable_bytes: Int64 = -1
    partitions: int = 0
    size_bytes: Int64 = 0


class DescribeLogDirsResponse(Message):
    """Directories in the order of `log.dirs`."""

    log_dirs: Annotated[list[LogDir], Meta(max_length=LOG_DIRS_MAX)]
    throttle_ms: ThrottleMs = 0


ConfigName = Annotated[str, Meta(max_length=249)]


class AlterBrokerConfigsRequest(Message):
    """Sets settings of one broker, or of all (KIP-226): a value of None removes the stored value; settings that are not
    named stay."""

    broker_id: int
    """Id of the broker; -1: the value for all brokers."""
    configs: Annotated[dict[ConfigName, ConfigValue], Meta(min_length=1, max_length=CONFIGS_MAX)]
    validate_only: bool = False
    """True: the change is checked, and not made."""
    at_least: AtLeast = NO_VERSION


class AlterBrokerConfigsResponse(Message):
    """The change is stored, and in effect on the answering broker."""

    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DescribeBrokerConfigsRequest(Message):
    """Request the settings of the asked broker; each broker reports only its own."""

    broker_id: int
    """Id of the asked broker; -1: the values for all brokers, which any broker knows."""
    at_least: AtLeast = NO_VERSION


class BrokerConfigEntry(Message):
    """A setting of a broker."""

    name: str
    value: str | None
    """Value in effect; None: a secret."""
    source: int
    """Origin of the value, as `replication.dynamic_settings.Source`."""
    is_dynamic: bool = False
    """True if ALTER_BROKER_CONFIGS changes the setting."""


class DescribeBrokerConfigsResponse(Message):
    """Settings in the order of the table of settings. Secrets have no value."""

    configs: list[BrokerConfigEntry]
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION
