"""The APIs for the operators of a cluster: its brokers, their settings and disks, the places of replicas, the leaders.

Any broker accepts the requests, except those about its own settings and disks. It forwards a change to the controller,
and answers when the controller has stored it.
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
    """A partition in a request."""

    topic: Name
    partition: Partition


class PartitionOutcome(Message):
    """Outcome for one partition of a request."""

    topic: str
    partition: int
    error_code: int = 0
    message: str = ""


class ReassignmentTarget(Message):
    """Target of a reassignment. `replicas`: broker ids of the new replicas, the preferred leader first; None: cancel
    the partition's running reassignment (KIP-455)."""

    topic: Name
    partition: Partition
    replicas: Annotated[list[BrokerId], Meta(max_length=REPLICAS_MAX)] | None = None


class AlterPartitionReassignmentsRequest(Message):
    """Start or cancel reassignments. `throttle_bytes`: limit, in bytes per second, of the data that each broker sends
    to new replicas, and of the data that it receives for its own new replicas (KIP-73); 0: unlimited; -1: unchanged.
    The limit ends with the last reassignment."""

    partitions: Annotated[list[ReassignmentTarget], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    throttle_bytes: Annotated[int, Meta(ge=-1, le=2**62)] = -1


class AlterPartitionReassignmentsResponse(Message):
    """One outcome per partition of the request, in its order. The new replicas are created and copied after the
    answer."""

    outcomes: Annotated[list[PartitionOutcome], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    throttle_ms: ThrottleMs = 0


class ListPartitionReassignmentsRequest(Message):
    """Request the running reassignments of `topics`; None: those of all topics."""

    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None


class PartitionReassignment(Message):
    """A reassignment in progress. `replicas` has the old and the new replicas. `adding` are the new ones; `removing`
    are the old ones that leave when all new ones are in `isr`."""

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    adding: list[int]
    removing: list[int]


class ListPartitionReassignmentsResponse(Message):
    """The running reassignments, as the controller knows them. `throttle_bytes`: their limit in bytes per second; 0:
    unlimited."""

    reassignments: Annotated[list[PartitionReassignment], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
    throttle_bytes: int = 0
    throttle_ms: ThrottleMs = 0


class ElectLeadersRequest(Message):
    """Elect leaders of `partitions`; None: of all partitions. `kind` 0: the first replica of the assignment becomes the
    leader if it is in sync. `kind` 1: a partition without a leader gets one, even if the new leader lacks acknowledged
    records."""

    kind: Annotated[int, Meta(ge=0, le=1)]
    partitions: Annotated[list[PartitionName], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)] | None = None


class ElectLeadersResponse(Message):
    """One outcome per partition of the request, or, without `partitions`, per partition of the cluster. `changed`:
    number of partitions with a new leader."""

    outcomes: list[PartitionOutcome]
    changed: int = 0
    throttle_ms: ThrottleMs = 0


class CordonBrokerRequest(Message):
    """Cordon or uncordon a broker (KIP-1073). A cordoned broker gets no new replicas; it keeps its present ones."""

    broker_id: BrokerId
    cordoned: bool


class CordonBrokerResponse(Message):
    """The ids of all cordoned brokers."""

    cordoned: list[int]
    throttle_ms: ThrottleMs = 0


class DescribeClusterRequest(Message):
    """Request the list of registered brokers; with `include_missing` also the former brokers that are not registered
    now."""

    include_missing: bool = True


class BrokerState(Message):
    """A broker that is or was registered. If it is not registered now, `broker_epoch` is -1 and `host` is empty.
    `is_stopping`: the broker has announced its stop, and gets no leaderships."""

    broker_id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    broker_epoch: Int64 = -1
    is_stopping: bool = False
    is_cordoned: bool = False


class DescribeClusterResponse(Message):
    """State of the cluster as the answering broker knows it. `controller` -1: there is none. `throttle_bytes`: see
    AlterPartitionReassignmentsRequest."""

    cluster_id: str
    controller: int
    controller_epoch: Int64
    brokers: Annotated[list[BrokerState], Meta(max_length=BROKERS_MAX)]
    throttle_bytes: int = 0
    throttle_ms: ThrottleMs = 0


class DescribeLogDirsRequest(Message):
    """Request the state of the asked broker's log directories (KIP-113, KIP-827). `topics`: count only the partitions
    of these topics; None: all partitions."""

    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None


class LogDir(Message):
    """A log directory. `error_code` and `message`: the reason why the directory cannot be used. `total_bytes` and
    `usable_bytes`: size of its disk, and the free space; -1: not known. `partitions` and `size_bytes` count this
    broker's replicas in the directory. `put_aside`: number of partition directories that the broker has put aside,
    because the metadata lack their topics."""

    path: str
    error_code: int = 0
    message: str = ""
    total_bytes: Int64 = -1
    usable_bytes: Int64 = -1
    partitions: int = 0
    size_bytes: Int64 = 0
    put_aside: int = 0


class DescribeLogDirsResponse(Message):
    """Directories in the order of `log.dirs`."""

    log_dirs: Annotated[list[LogDir], Meta(max_length=LOG_DIRS_MAX)]
    throttle_ms: ThrottleMs = 0


ConfigName = Annotated[str, Meta(max_length=249)]


class AlterBrokerConfigsRequest(Message):
    """Change settings of one broker, or of all brokers (KIP-226). A value of None removes the stored value. Settings
    that are not named remain unchanged."""

    broker_id: int
    """Id of the broker; -1: the value for all brokers."""
    configs: Annotated[dict[ConfigName, ConfigValue], Meta(min_length=1, max_length=CONFIGS_MAX)]
    validate_only: bool = False
    """True: check the change, but do not store it."""
    at_least: AtLeast = NO_VERSION
    group_id: Name = ""
    """The group whose settings change, with `broker_id` -1; "": those of brokers."""


class AlterBrokerConfigsResponse(Message):
    """Confirmation that the change is stored, and in effect on the answering broker."""

    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DescribeBrokerConfigsRequest(Message):
    """Request the settings of the asked broker. A broker knows only its own settings."""

    broker_id: int
    """Id of the asked broker; -1: the values for all brokers, which any broker knows."""
    at_least: AtLeast = NO_VERSION
    group_id: Name = ""
    """The group whose settings are requested, with `broker_id` -1; "": those of brokers."""


class BrokerConfigEntry(Message):
    """A setting of a broker."""

    name: str
    value: str | None
    """Value in effect; None: not shown, because it is a secret."""
    source: int
    """Origin of the value: a number of `replication.dynamic_settings.Source`."""
    is_dynamic: bool = False
    """True if ALTER_BROKER_CONFIGS can change the setting."""


class DescribeBrokerConfigsResponse(Message):
    """Settings in the order of the table of settings."""

    configs: list[BrokerConfigEntry]
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION
    groups: list[str] = []
    """With the values for all brokers: the groups that have settings of their own."""
