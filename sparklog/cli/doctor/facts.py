"""The input of the checks, as plain values. Unknown facts are None, -1 or empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sparklog.client.cluster_view import GroupPartition
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.admin.admin import TopicDescription


class BrokerFacts(NamedTuple):
    """A broker at one address."""

    address: str
    host: str
    broker_id: int = -1
    """-1 for a bootstrap address at which no broker answers."""
    version: str = ""
    request_bytes_max: int = 0
    """Size of the largest frame that the broker accepts."""
    problem: str = ""
    """Reason why no broker answers, and other facts are unknown; empty if it answers."""


class BrokerDiskFacts(NamedTuple):
    """The disk of a broker's log directory, as the broker reports it."""

    broker_id: int
    path: str
    free_bytes: int
    """-1: not known."""
    size_bytes: int
    """-1: not known."""
    put_aside: int = 0
    """Number of partition directories that the broker has put aside."""


class GroupFacts(NamedTuple):
    """A group."""

    group_id: str
    kind: str
    """"consumer", or "offsets" if the group never had members, such as the group of a Spark query."""
    members: int
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        return sum(p.lag for p in self.partitions)


class TransactionFacts(NamedTuple):
    """A transaction that has not ended, and some of the partitions in which it delays readers."""

    transactional_id: str
    state: str
    age_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()


class HangingFacts(NamedTuple):
    """A hanging transaction: open in a partition, and unknown to every coordinator."""

    partition: TopicPartition
    producer_id: int
    first_offset: int
    held_back: int
    """Number of offsets that readers of committed records cannot read because of the transaction."""
    quiet_ms: int
    """Time since the transaction's last write."""


class LakeFacts(NamedTuple):
    """The Delta table of a topic."""

    topic: str
    paused: str = ""
    """Reason of the pause; empty if the table is not paused."""
    error: str = ""
    """Error of the last commit; empty if it succeeded."""
    lag: int = 0
    """Number of offsets that the table lacks."""
    behind_s: float = 0.0
    """Age in s of the newest time up to which all records are in the table; -1: unknown."""


class MirrorFacts(NamedTuple):
    """A mirrored topic."""

    mirror: str
    topic: str
    paused: str = ""
    """Reason of the pause; empty if the mirror of the topic is not paused."""
    error: str = ""
    """Error of the worker's newest round; empty if it succeeded."""
    has_worker: bool = True
    """True if a worker has reported."""
    lag: int = 0
    """Number of offsets that the topic lacks; -1: unknown."""
    behind_s: float = 0.0
    """Seconds since the topic had all records of the source; -1: unknown."""
    lost: int = 0
    """Number of offsets that the source had deleted before the mirror read them."""
    refused: int = 0
    """Number of records that did not fit the columns of a typed topic."""
    held: int = 0
    """Number of offsets at the source that wait for the end of an open transaction."""
    held_s: float = 0.0
    """Time in s for which they have waited for the end of the same one."""


class ClusterFacts(NamedTuple):
    """A cluster."""

    bootstrap_servers: str
    problem: str = ""
    """Reason why no broker answers, and all other facts are unknown; empty if one answers."""
    brokers: tuple[BrokerFacts, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    over_s: float | None = None
    """Time in s between the two requests of the groups' offsets; None with a single request."""
    transactions: tuple[TransactionFacts, ...] = ()
    hanging: tuple[HangingFacts, ...] = ()
    unknown: tuple[str, ...] = ()
    """Facts that could not be read, with the reasons."""
    client_version: str = ""
    has_controller: bool = True
    """True if the broker that answered knows a controller."""
    disks: tuple[BrokerDiskFacts, ...] = ()
    lakes: tuple[LakeFacts, ...] = ()
    mirrors: tuple[MirrorFacts, ...] = ()
    down_brokers: frozenset[int] = frozenset()
    """Ids of brokers that have replicas and are not registered."""
    is_refused: bool = False
    """True if `problem` is a refusal, such as wrong credentials: a program listens, and would refuse again."""


class PageFacts(NamedTuple):
    """The content of a broker's metrics page."""

    url: str
    host: str
    problem: str = ""
    """Reason why the page cannot be read, and other facts are unknown; empty if it can be read."""
    ready: bool = True
    open_files: int = -1
    open_files_max: int = -1
    memory_used_bytes: float = 0.0
    memory_limit_bytes: float = 0.0
    memory_waiting: int = 0
    failed_directories: tuple[str, ...] = ()
    fsync_failures: int = 0
    cleaner_failing: int = 0
    tier_failing: int = 0
    has_older_store: bool = False
    put_aside: int = 0
    refused_connections: int = 0


class ClockFacts(NamedTuple):
    """The difference between the broker's clock and this machine's."""

    ahead_ms: int
    """Lead of the broker's clock in ms; negative if it is behind."""
    at_least: bool = False
    """True if the lead can be larger than `ahead_ms`."""


class DiskFacts(NamedTuple):
    """The file system of a directory."""

    size_bytes: int
    free_bytes: int
    files: int = 0
    """Number of inodes."""
    free_files: int = 0
    """Number of free inodes."""
    is_read_only: bool = False
    kind: str = ""
    """Type of the file system, as in /proc/mounts."""
    mount: str = ""


class DirectoryFacts(NamedTuple):
    """A log directory."""

    path: str
    problem: str = ""
    """Reason why the directory cannot be read; empty if it can be read."""
    identity: tuple[str, int, str] | None = None
    """cluster_id, broker_id and data_dir_id of meta.json; None if the file cannot be read."""
    disk: DiskFacts | None = None
    partitions: int = 0
    stopped_clean: bool = True
    """True if the last broker was stopped cleanly."""
    foreign: tuple[str, ...] = ()
    """Names of files that are not sparklog's."""
    set_aside: tuple[str, ...] = ()
    """Names of files that a broker or a repair has moved aside."""
    others_files: tuple[str, ...] = ()
    """Names of files whose owner is not that of the directory."""
    owner: str = ""
    damage: tuple[tuple[str, str], ...] | None = ()
    """Pairs of directory and result of `sparklog log verify`; None if the files were not verified."""
    size_bytes: int = 0
    """Size of the files to verify."""


class ProcessFacts(NamedTuple):
    """The process that holds the data directory's lock."""

    pid: int
    command: str
    state: str = "S"
    """Letter of the process state in /proc/PID/stat."""
    open_files: int = -1
    open_files_max: int = -1
    swapped_bytes: int = 0


class DataDirFacts(NamedTuple):
    """A data directory and its log directories."""

    path: str
    problem: str = ""
    """Reason why the data directory cannot be read; empty if it can be read."""
    log_dirs: tuple[DirectoryFacts, ...] = ()
    absent: tuple[str, ...] = ()
    """Log directories of earlier starts that are missing."""
    metadata_problem: str = ""
    """Fault of metadata.db; empty without a fault."""
    put_aside: tuple[str, ...] = ()
    """Topics whose files the broker has put aside, because the cluster's metadata lack the topics."""
    holder: ProcessFacts | None = None
    """The broker's process; None if no broker uses the directory."""


class ConfigFacts(NamedTuple):
    """A broker's configuration file."""

    path: str
    problem: str = ""
    """Reason why the file cannot be read; empty if it can be read."""
    listen_host: str = "127.0.0.1"
    metrics_host: str = ""
    socket_request_max_bytes: int = 0
    queued_max_request_bytes: int = 0
    max_message_bytes: int = 0
    readable_secrets: bool = False
    """True if the file holds the options of the object store, and every user of the machine can read it."""


class HostFacts(NamedTuple):
    """This machine."""

    overcommit: int = -1
    """vm.overcommit_memory."""
    descriptors_max: int = -1
    """The value of `ulimit -Hn`; -1 also for unlimited."""


class Facts(NamedTuple):
    """All facts. Parts that the user did not request are None."""

    cluster: ClusterFacts | None = None
    page: PageFacts | None = None
    clock: ClockFacts | None = None
    data_dir: DataDirFacts | None = None
    config: ConfigFacts | None = None
    host: HostFacts = HostFacts()
