"""The facts of the checks, as plain values. Unknown facts are None, -1 or empty."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.types import TopicPartition


class BrokerFacts(NamedTuple):
    """An address of the cluster. `problem`: the reason why it cannot be used; then the rest is unknown. `broker_id` -1:
    a bootstrap address without an answer. `request_bytes_max`: the largest frame that the broker accepts."""

    address: str
    host: str
    broker_id: int = -1
    version: str = ""
    request_bytes_max: int = 0
    problem: str = ""


class BrokerDiskFacts(NamedTuple):
    """The disk of a log directory of a broker, as the broker tells it."""

    broker_id: int
    path: str
    free_bytes: int
    size_bytes: int


class PartitionFacts(NamedTuple):
    """A partition. `error`: why it is offline, `write_error`: why nothing can be appended; empty: it is well.
    `stable_end`: where readers of committed records end."""

    partition: int
    log_start: int = 0
    end: int = 0
    stable_end: int = -1
    size_bytes: int = 0
    replicas: int = 1
    in_sync: int = 1
    error: str = ""
    write_error: str = ""
    down: tuple[int, ...] = ()
    """Ids of brokers that keep the partition and are not there."""


class TopicFacts(NamedTuple):
    """A topic, and settings that are in effect; `retention_ms`, `retention_bytes` -1: without limit."""

    name: str
    partitions: tuple[PartitionFacts, ...]
    max_message_bytes: int = 8 << 20
    retention_ms: int = -1
    retention_bytes: int = -1
    in_sync_min: int = 1
    """`min.insync.replicas`: with fewer in sync, records with acks=all are refused."""


class GroupPartition(NamedTuple):
    """The position of a group in one partition, of which [log_start, end) can be read. `*_before`: at the first of two
    looks. `due_offset`: records below it are older than most of `retention.ms` lets them become."""

    partition: TopicPartition
    committed: int
    log_start: int
    end: int
    size_bytes: int = 0
    committed_before: int = -1
    end_before: int = -1
    due_offset: int = -1

    @property
    def lag(self) -> int:
        """Number of readable offsets that the group has not read."""
        return max(0, self.end - max(self.committed, self.log_start))


class GroupFacts(NamedTuple):
    """A group. `kind`: "consumer", or "offsets" if it never had members: a Spark query, say."""

    group_id: str
    kind: str
    members: int
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        return sum(p.lag for p in self.partitions)


class TransactionFacts(NamedTuple):
    """A transaction that has not ended, and some of the partitions where it holds readers back."""

    transactional_id: str
    state: str
    age_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()


class HangingFacts(NamedTuple):
    """A transaction that is open in a partition though no coordinator knows it."""

    partition: TopicPartition
    producer_id: int
    first_offset: int
    held_back: int
    quiet_ms: int


class LakeFacts(NamedTuple):
    """The Delta table of a topic. `behind_s`: age of the newest moment whose records are all in it; -1: not known."""

    topic: str
    paused: str = ""
    error: str = ""
    lag: int = 0
    behind_s: float = 0.0


class ClusterFacts(NamedTuple):
    """A cluster. `problem`: the reason why no facts are known. `has_controller`: in the view of the broker that
    answered. `over_s`: time between the two looks at groups; None: there was one look. `unknown`: facts that could not
    be read, with the reasons. `refused_users`: names of users that cannot log in, with the reasons."""

    bootstrap_servers: str
    problem: str = ""
    brokers: tuple[BrokerFacts, ...] = ()
    topics: tuple[TopicFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    over_s: float | None = None
    transactions: tuple[TransactionFacts, ...] = ()
    hanging: tuple[HangingFacts, ...] = ()
    unknown: tuple[str, ...] = ()
    client_version: str = ""
    has_controller: bool = True
    disks: tuple[BrokerDiskFacts, ...] = ()
    lakes: tuple[LakeFacts, ...] = ()
    refused_users: tuple[tuple[str, str], ...] = ()


class PageFacts(NamedTuple):
    """The content of a broker's metrics page; `problem`: the reason why there is none."""

    url: str
    host: str
    problem: str = ""
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
    """The lead of the broker's clock over this machine's (negative: it lags). `at_least`: only this much is certain; it
    may be more."""

    ahead_ms: int
    at_least: bool = False


class DiskFacts(NamedTuple):
    """The file system of a directory; `mount` is where it is mounted, `kind` its type as in /proc/mounts."""

    size_bytes: int
    free_bytes: int
    files: int = 0
    free_files: int = 0
    is_read_only: bool = False
    kind: str = ""
    mount: str = ""


class DirectoryFacts(NamedTuple):
    """A log directory. `problem`: the reason why it cannot be read. `identity`: (cluster_id, broker_id, data_dir_id) of
    meta.json; None if it cannot be read. `foreign`: names that are not sparklog's; `set_aside`: files that were moved
    aside, or quarantined by a repair; `others_files`: names of another owner than the directory's. `damage`: the result
    of `sparklog log verify` by partition directory; None: not verified, because `size_bytes` is too large.
    """

    path: str
    problem: str = ""
    identity: tuple[str, int, str] | None = None
    disk: DiskFacts | None = None
    partitions: int = 0
    stopped_clean: bool = True
    foreign: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    others_files: tuple[str, ...] = ()
    owner: str = ""
    damage: tuple[tuple[str, str], ...] | None = ()
    size_bytes: int = 0


class ProcessFacts(NamedTuple):
    """The process that holds the data directory's lock. `state` is its letter in /proc/PID/stat."""

    pid: int
    command: str
    state: str = "S"
    open_files: int = -1
    open_files_max: int = -1
    swapped_bytes: int = 0


class DataDirFacts(NamedTuple):
    """A data directory and its log directories. `absent`: log directories of earlier starts that are missing.
    `metadata_problem`: the fault of metadata.db. `holder` None: no broker runs here."""

    path: str
    problem: str = ""
    log_dirs: tuple[DirectoryFacts, ...] = ()
    absent: tuple[str, ...] = ()
    metadata_problem: str = ""
    put_aside: tuple[str, ...] = ()
    """Topics whose files the broker has put aside, because the cluster's metadata lack them."""
    holder: ProcessFacts | None = None


class ConfigFacts(NamedTuple):
    """A broker's configuration. `problem`: why it cannot be read."""

    path: str
    problem: str = ""
    listen_host: str = "127.0.0.1"
    metrics_host: str = ""
    socket_request_max_bytes: int = 0
    queued_max_request_bytes: int = 0
    max_message_bytes: int = 0
    readable_secrets: bool = False


class HostFacts(NamedTuple):
    """Facts of this machine. `overcommit`: vm.overcommit_memory; `descriptors_max`: the value of `ulimit -Hn`."""

    overcommit: int = -1
    descriptors_max: int = -1


class Facts(NamedTuple):
    """All observations; None: not requested."""

    cluster: ClusterFacts | None = None
    page: PageFacts | None = None
    clock: ClockFacts | None = None
    data_dir: DataDirFacts | None = None
    config: ConfigFacts | None = None
    host: HostFacts = HostFacts()
