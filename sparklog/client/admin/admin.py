"""Topics: create, list, describe, delete, look up offsets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from sparklog.client.admin import acl_admin, cluster_admin, quota_admin, topic_admin, transaction_admin, user_admin
from sparklog.client.admin.cluster_admin import (
    BrokerDescription,
    ClusterDescription,
    LogDirDescription,
    PartitionReassignment,
)
from sparklog.client.admin.group_admin import GroupAdmin, GroupDescription, GroupListing
from sparklog.client.admin.leader_states import with_figures
from sparklog.client.admin.log_view import BatchDescription, SegmentDescription, describe_batches, describe_segments
from sparklog.client.admin.quota_admin import QuotaDescription
from sparklog.client.admin.record_deletion import delete_records
from sparklog.client.admin.schema_argument import Columns, arrow_schema_of
from sparklog.client.admin.transaction_admin import HangingTransaction
from sparklog.client.admin.user_admin import UserDescription
from sparklog.client.net import arguments as arg
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.net.topic_info import TopicInfo, topic_info
from sparklog.client.reading.isolation import isolation_of
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.errors import ClosedError, InvalidPartitionsError, InvalidRequestError
from sparklog.format.schema import canonical_schema, require_columns
from sparklog.protocol.base import PARTITIONS_PER_TOPIC_MAX, TOPICS_PER_REQUEST_MAX
from sparklog.protocol.topic_messages import AlterSchemaRequest, AlterTopicRequest, CreateTopicRequest
from sparklog.protocol.transaction_messages import (
    DescribeProducersResponse,
    TransactionDetails,
    TransactionSummary,
)
from sparklog.security.acl_records import ALL_ACLS, AclFilter
from sparklog.security.acls import Acl
from sparklog.security.client_security import Security, with_parameters
from sparklog.security.quotas import Entity
from sparklog.security.sasl import SCRAM_MECHANISMS
from sparklog.security.scram import ITERATIONS_MIN
from sparklog.security.secrets import Secret
from sparklog.settings import Scope, check, check_names, from_parameters, settings_of
from sparklog.types import INTERNAL_TOPICS, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, check_topic_name

__all__ = [
    "Admin",
    "BrokerDescription",
    "ClusterDescription",
    "LogDirDescription",
    "PartitionDescription",
    "PartitionReassignment",
    "TopicDescription",
]


T = TypeVar("T")


@dataclass(frozen=True)
class PartitionDescription:
    """A partition at one moment: [log_start_offset, high_watermark) can be read; `size_bytes` are bytes of batches,
    `remote_size_bytes` of them are only in the object store: what lies below `local_log_start_offset`. All are -1 while
    it is offline (`error_code` says why) or its leader does not answer. `write_error`: why nothing can be appended, or
    why the last append was not taken (no descriptor left, a full disk); empty: it was. `replicas` are the brokers that
    keep the partition, `isr` those of them that are in sync."""

    partition: int
    leader: int
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    error_code: int
    local_log_start_offset: int = -1
    remote_size_bytes: int = -1
    write_error: str = ""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): not in sync, but with all that is committed."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """Of `replicas`, while the partition is reassigned."""


@dataclass(frozen=True)
class TopicDescription:
    """A topic. `kind` is "envelope" or "typed", `partitions` their number, `schema` the newest version in the stored
    layout, `configs` what was set for this topic (`setting` gives what is in effect), `created_ms` its creation in ms
    since 1970, `schemas` all versions by id."""

    name: str
    topic_id: str
    kind: str
    partitions: int
    schema: pa.Schema
    schema_id: int
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    configs: dict[str, object]
    created_ms: int
    partition_details: tuple[PartitionDescription, ...] = ()
    broker_defaults: Mapping[str, object] = field(default_factory=dict)
    schemas: Mapping[int, pa.Schema] = field(default_factory=dict)

    def setting(self, name: str) -> object:
        """What is in effect for a topic setting: the topic's own, else the broker's, else the general default."""
        default = settings_of(Scope.TOPIC)[name].default
        return self.configs.get(name, self.broker_defaults.get(name, default))


def _description(info: TopicInfo) -> TopicDescription:
    return TopicDescription(
        name=info.name,
        topic_id=info.topic_id,
        kind=info.kind,
        partitions=info.partitions,
        schema=info.schema,
        schema_id=info.schema_id,
        key_columns=info.key_columns,
        timestamp_column=info.timestamp_column,
        configs=dict(info.configs),
        created_ms=info.created_ms,
        broker_defaults=dict(info.broker_defaults),
        schemas=dict(info.schemas),
        partition_details=tuple(
            PartitionDescription(
                p.partition,
                p.leader,
                p.log_start_offset,
                p.high_watermark,
                p.size_bytes,
                p.error_code,
                p.local_log_start_offset,
                p.remote_size_bytes,
                p.write_error,
                tuple(p.replicas),
                tuple(p.isr),
                tuple(p.elr),
                tuple(p.adding),
                tuple(p.removing),
            )
            for p in info.partition_states
        ),
    )


_SETTINGS = arg.mapping(arg.text, arg.anything)
_REPLICAS = arg.listed(arg.broker_id)


def _offsets_asked(argument: str, value: object) -> dict[TopicPartition, Any]:
    """For each partition the offset that is asked for; the latest, where partitions alone are named."""
    if isinstance(value, Mapping):
        found: dict[TopicPartition, Any] = arg.mapping(arg.partition, arg.anything)(argument, value)
        return found
    return dict.fromkeys(arg.partitions(argument, value), "latest")


def _password(argument: str, value: object) -> Secret:
    """Never shown, not even in an error."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise InvalidRequestError(f"{argument}: a text is needed, not {type(value).__name__}")
    return Secret(value)


def _quota(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        arg.refuse(argument, value, "a number is needed, or None to take the quota away")
    return float(value)


class Admin:
    """Administers the topics of a cluster; thread-safe.

    `bootstrap_servers`: "host:port,…" (default: SPARKLOG_BOOTSTRAP_SERVERS, else 127.0.0.1:9292). Every method waits
    for brokers that cannot be reached yet, or restart, and logs a warning after a second. Every method raises
    BrokerNotAvailableError when no broker could be reached within `request_timeout_ms`, RequestTimedOutError when none
    has answered within it, and ClosedError after `close`. All that a method asks has to fit into that time.
    `wait_for_broker=False`: a call raises BrokerNotAvailableError at once if it finds no broker.

    A change whose broker stops before it has answered is asked of another one, and made once. Not so
    `abort_transaction` and `abort_hanging_transaction`, which raise then. What `create_acls`, `delete_acls`,
    `elect_leaders` and `delete_group` return lacks what was done before they were asked again. What this process has
    changed is known to whichever broker answers it next.

    `security`: settings by their dotted names, as {"security.protocol": "SASL_SSL", …} (the client settings of
    `sparklog.settings`), or the path of a file of them; or each as a parameter: security_protocol, sasl_mechanism, …
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        request_timeout_ms: int = 30_000,
        client_id: str = "",
        security: Security = None,
        wait_for_broker: bool = True,
        **settings: Any,
    ) -> None:
        """Does not connect yet. `client_id`: as a producer's `client.id`. Raises InvalidConfigError."""
        security, others = with_parameters(security, settings)
        from_parameters(Scope.CLIENT, others)  # raises for what is none
        self._shared = cluster(bootstrap_servers, security, client_id)
        self._timeout_ms = arg.timeout("request_timeout_ms", request_timeout_ms)
        self._wait_for_broker = wait_for_broker
        self._group_admin = GroupAdmin(self._shared, request_timeout_ms)
        self._closed = False

    @property
    def _cluster(self) -> Cluster:
        """For one call. Raises ClosedError, and BrokerNotAvailableError unless the Admin waits for brokers."""
        if self._closed:
            raise ClosedError("this Admin is closed: make a new one")
        if not self._wait_for_broker:
            self._shared.reach(timeout_ms=self._timeout_ms)
        return self._shared

    @property
    def _groups(self) -> GroupAdmin:
        """For one call. Raises as `_cluster`."""
        assert self._cluster is self._shared
        return self._group_admin

    def _answer(self, ask: Callable[[Cluster, int], T]) -> T:
        """The answer of `ask(cluster, timeout_ms)`, which changes nothing; a broker that is away is waited for."""
        shared = self._cluster
        return until_answered(lambda left_ms: ask(shared, left_ms), Retries(RetryPolicy.within(self._timeout_ms)))

    @arg.takes(
        name=arg.text,
        key_columns=arg.texts,
        timestamp_column=arg.optional(arg.text),
        configs=arg.optional(_SETTINGS),
        replica_assignment=arg.optional(arg.listed(_REPLICAS)),
    )
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: Columns | None = None,
        key_columns: Iterable[str] = (),
        timestamp_column: str | None = None,
        configs: Mapping[str, object] | None = None,
        *,
        replication_factor: int | None = None,
        replica_assignment: Iterable[Iterable[int]] | None = None,
    ) -> TopicDescription:
        """Creates a topic: without `schema` an envelope topic (key, value, headers, timestamp), else a typed one.

        `schema`: an Arrow schema, a Spark `StructType`, a Spark DDL string ("zone STRING, minutes DOUBLE"), or
        {name: Arrow type}. `partitions` default: the broker's `num.partitions`. `key_columns` choose the partition of
        a row, `timestamp_column` is its event time. `configs` are topic settings under Kafka's names. In a cluster
        `replication_factor` brokers keep each partition (default: `default.replication.factor`), or those that
        `replica_assignment` names for each partition, the preferred leader first. Raises TopicAlreadyExistsError,
        InvalidTopicError, InvalidPartitionsError, InvalidConfigError, InvalidReplicationFactorError,
        InvalidReplicaAssignmentError. A topic of the name that somebody else has made is never taken for this one.
        """
        check_topic_name(name)
        if partitions is not None:
            _check_count("partitions", partitions)
        if replication_factor is not None:
            _check_count("replication_factor", replication_factor)
        keys = list(key_columns)
        checked = check(Scope.TOPIC, configs or {})
        arrow_schema = None
        if schema is not None:
            stored = canonical_schema(arrow_schema_of("schema", schema))
            require_columns(stored, keys, timestamp_column)
            arrow_schema = stored.serialize().to_pybytes()
        request = CreateTopicRequest(
            name,
            -1 if partitions is None else partitions,
            arrow_schema,
            keys,
            timestamp_column,
            dict(checked),
            -1 if replication_factor is None else replication_factor,
            None if replica_assignment is None else [list(replicas) for replicas in replica_assignment],
        )
        return _description(topic_admin.create_topic(self._cluster, request, self._timeout_ms))

    @arg.takes(include_internal=arg.flag)
    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted; with `include_internal` also of those the broker keeps for itself."""
        found = self._answer(lambda shared, left_ms: shared.partition_counts(timeout_ms=left_ms))
        return sorted(name for name in found if include_internal or name not in INTERNAL_TOPICS)

    @arg.takes(include_internal=arg.flag)
    def partition_counts(self, *, include_internal: bool = False) -> dict[str, int]:
        """The names of all topics with the number of their partitions, sorted."""
        found = self._answer(lambda shared, left_ms: shared.partition_counts(timeout_ms=left_ms))
        return {name: found[name] for name in sorted(found) if include_internal or name not in INTERNAL_TOPICS}

    def describe_cluster(self) -> ClusterDescription:
        """The brokers there are, and who is the controller."""
        return cluster_admin.describe_cluster(self._cluster, self._timeout_ms)

    def describe_log_dirs(self) -> dict[int, list[LogDirDescription]]:
        """The disks of each broker, by its id: how full they are, and which cannot be used. Brokers that do not answer
        within 5 s are left out."""
        return cluster_admin.describe_log_dirs(self._cluster, self._timeout_ms)

    @arg.takes(
        reassignments=arg.mapping(arg.partition, arg.optional(_REPLICAS)), throttle_bytes=arg.optional(arg.whole())
    )
    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None], *, throttle_bytes: int | None = None
    ) -> None:
        """Has other brokers keep partitions: for each the broker ids of its new replicas, the preferred leader first;
        None cancels. The new ones are copied from then on; `list_partition_reassignments` shows how far they are.

        `throttle_bytes` per second is what each broker sends at most to replicas that are being added, and takes as
        one; 0: no limit; None: as it is. The limit ends with the last reassignment. Raises
        InvalidReplicaAssignmentError, UnknownTopicOrPartitionError, NoReassignmentInProgressError for the first
        partition that is refused; the others are done. The error's `outcomes` has an error or None for each.
        """
        cluster_admin.alter_reassignments(self._cluster, reassignments, throttle_bytes, self._timeout_ms)

    @arg.takes(topics=arg.optional(arg.texts))
    def list_partition_reassignments(self, topics: Iterable[str] | None = None) -> list[PartitionReassignment]:
        """The reassignments that are under way, and how much of them is copied; of some topics, or of all."""
        return cluster_admin.list_reassignments(self._cluster, topics, self._timeout_ms)

    def cancel_partition_reassignments(self, partitions: arg.Partitions | None = None) -> int:
        """Partitions stay where they were: those given, or all that are being reassigned; how many it were. What was
        copied is deleted. Raises NoReassignmentInProgressError for a given one that is not reassigned."""
        if partitions is None:
            under_way = cluster_admin.list_reassignments(self._cluster, None, self._timeout_ms, with_sizes=False)
            partitions = [r.topic_partition for r in under_way]
        targets = dict.fromkeys(arg.partitions("partitions", partitions))
        if targets:
            cluster_admin.alter_reassignments(self._cluster, targets, None, self._timeout_ms)
        return len(targets)

    @arg.takes(kind=arg.text)
    def elect_leaders(self, kind: str = "preferred", partitions: arg.Partitions | None = None) -> int:
        """Elects leaders of partitions (None: of all); how many have another one now.

        "preferred": the first replica of the assignment leads, if it is in sync. "unclean": a partition without a
        leader gets one that may lack acknowledged records, which are lost then. Raises
        EligibleLeadersNotAvailableError for the first partition where it cannot be done; the others are done. The
        error's `outcomes` has an error or None for each.
        """
        chosen = None if partitions is None else arg.partitions("partitions", partitions)
        return cluster_admin.elect_leaders(self._cluster, kind, chosen, self._timeout_ms)

    @arg.takes(broker_id=arg.broker_id, cordoned=arg.flag)
    def cordon_broker(self, broker_id: int, *, cordoned: bool = True) -> tuple[int, ...]:
        """No new replicas are placed on a broker, or (`cordoned` False) some are again; what it has stays. Returns all
        brokers that are cordoned. Raises InvalidRequestError for one that there has never been."""
        return cluster_admin.cordon(self._cluster, broker_id, cordoned=cordoned, timeout_ms=self._timeout_ms)

    @arg.takes(name=arg.text)
    def describe_topic(self, name: str) -> TopicDescription:
        """Raises UnknownTopicOrPartitionError."""
        deadline = Deadline(self._timeout_ms)
        info = self._answer(lambda shared, left_ms: shared.topic(name, refresh=True, timeout_ms=left_ms))
        return _description(*with_figures(self._cluster, [info], deadline))

    @arg.takes(names=arg.texts)
    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Many topics with one question, at most 10,000; those that do not exist are left out. Raises
        InvalidRequestError."""
        wanted = list(dict.fromkeys(names))
        if len(wanted) > TOPICS_PER_REQUEST_MAX:
            raise InvalidRequestError(f"{len(wanted)} topics: at most {TOPICS_PER_REQUEST_MAX} at once")
        if not wanted:
            return {}
        deadline = Deadline(self._timeout_ms)
        found = self._answer(lambda shared, left_ms: shared.metadata(wanted, timeout_ms=left_ms)).topics
        infos = with_figures(self._cluster, [topic_info(t) for t in found if t.error_code == 0], deadline)
        return {info.name: _description(info) for info in infos}

    @arg.takes(name=arg.text)
    def alter_schema(
        self,
        name: str,
        *,
        add_columns: Columns | None = None,
        widen_columns: Columns | None = None,
        schema: Columns | None = None,
    ) -> TopicDescription:
        """Gives a typed topic a newer schema: `add_columns` are appended (null in what is stored already),
        `widen_columns` get a wider type (int8 → int16 → int32 → int64, float32 → float64). Both are a schema as
        `create_topic` takes it. Or `schema`: all the columns as they shall be. What is there already changes nothing.

        Raises InvalidTopicError that names the columns in the way, UnknownTopicOrPartitionError.
        """
        if (schema is None) == (add_columns is None and widen_columns is None):
            raise InvalidRequestError("alter_schema takes add_columns, widen_columns or both, or schema alone")
        given = {"add_columns": add_columns, "widen_columns": widen_columns, "schema": schema}
        parts = [None if s is None else arrow_schema_of(name, s) for name, s in given.items()]
        stored = [None if s is None else canonical_schema(s).serialize().to_pybytes() for s in parts]
        request = AlterSchemaRequest(name, *stored)
        return _description(topic_admin.alter_schema(self._cluster, request, self._timeout_ms))

    @arg.takes(name=arg.text, configs=_SETTINGS)
    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> TopicDescription:
        """Sets settings of a topic, or with None takes them back to the default; the others stay. They are in effect
        when this returns. Raises UnknownTopicOrPartitionError, InvalidConfigError.
        """
        check_names(Scope.TOPIC, configs)
        checked = check(Scope.TOPIC, {k: v for k, v in configs.items() if v is not None})
        request = AlterTopicRequest(name, {k: checked.get(k) for k in configs})
        return _description(topic_admin.alter_topic(self._cluster, request, self._timeout_ms))

    @arg.takes(before_offsets=arg.mapping(arg.partition, arg.anything))
    def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records below an offset in each partition (-1: all there are) for good; returns where each
        partition begins then. An offset below its beginning deletes nothing.

        Raises OffsetOutOfRangeError for an offset above a partition's end, UnknownTopicOrPartitionError: then nothing
        is deleted anywhere. Raises InvalidRequestError for a topic that is only compacted, and other errors; the
        error's `outcomes` tells for each partition where it begins now, or why it was refused.
        """
        return delete_records(self._cluster, before_offsets, timeout_ms=self._timeout_ms)

    @arg.takes(name=arg.text)
    def add_partitions(self, name: str, total: int) -> TopicDescription:
        """Gives a topic more partitions, empty ones, so that it has `total`; they can be written and read when this
        returns. (If its broker stops meanwhile, and the topic has so many then, whoever has added them, that is done.)

        What is stored stays where it is, and a key's next records may go to another partition than those before.
        Running producers use the new partitions when they next look at the topic (5 minutes at most), streaming
        queries read them from their first offset, members of groups from where auto.offset.reset says. Raises
        UnknownTopicOrPartitionError, InvalidPartitionsError (the topic has as many, or more), InvalidTopicError (a
        topic that the broker keeps for itself).
        """
        _check_count("total", total)
        return _description(topic_admin.add_partitions(self._cluster, name, total, self._timeout_ms))

    @arg.takes(name=arg.text)
    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all its data: the one that has the name now. Raises UnknownTopicOrPartitionError."""
        topic_admin.delete_topic(self._cluster, name, self._timeout_ms)

    @arg.takes(isolation_level=arg.text)
    def list_offsets(
        self,
        partitions: Mapping[TopicPartition, str | int] | arg.Partitions,
        *,
        isolation_level: str = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Looks up one offset per partition: "earliest", "latest" (the offset the next record gets), "max_timestamp",
        "earliest_local" (the first that is on the broker's disk), "latest_tiered" (the last that is in the object
        store, or -1), or a time in ms since 1970 (the first record at or after it; offset -1 if there is none). With
        `isolation_level="read_committed"` nothing is found from the first open transaction on, where the latest is,
        too. Partitions without a dictionary (one, or a list) stand for their latest offsets.

        Raises UnknownTopicOrPartitionError.
        """
        isolation, asked = isolation_of(isolation_level), _offsets_asked("partitions", partitions)
        return list_offsets(self._cluster, asked, isolation=isolation, timeout_ms=self._timeout_ms)

    @arg.takes(partition=arg.partition)
    def describe_segments(self, partition: TopicPartition) -> list[SegmentDescription]:
        """The segment files that hold the partition's records, in offset order; those that are only in the object store
        first. Files on the broker's disk are told to clients on its host only: raises LocalReadUnavailableError
        elsewhere, UnknownTopicOrPartitionError."""
        return describe_segments(self._cluster, partition, timeout_ms=self._timeout_ms)

    @arg.takes(partition=arg.partition, offset=arg.whole(), batches_max=arg.whole(1))
    def describe_batches(
        self, partition: TopicPartition, offset: int, *, batches_max: int = 100
    ) -> list[BatchDescription]:
        """The headers of the batches from the one that holds `offset` on, markers and aborted ones too, each with its
        checksum computed. Raises OffsetOutOfRangeError, UnknownTopicOrPartitionError."""
        return describe_batches(self._cluster, partition, offset, batches_max, self._timeout_ms)

    @arg.takes(states=arg.texts)
    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """The consumer groups by name; `states`: only those that are Empty, Reconciling or Stable."""
        return self._groups.list_groups(states)

    @arg.takes(group_id=arg.text)
    def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members, and for each partition the committed offset and the lag. Raises
        GroupIdNotFoundError."""
        return self._groups.describe(group_id)

    @arg.takes(group_id=arg.text)
    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed; nothing if there is no such group."""
        return self._groups.offsets(group_id)

    @arg.takes(group_id=arg.text)
    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commits offsets for a group that has no members (any more), or does not exist yet: where its consumers begin.

        Raises NonEmptyGroupError, UnknownTopicOrPartitionError (the other partitions' offsets are set, and the error's
        `outcomes` has an error or None for each), InvalidRequestError.
        """
        self._groups.alter_offsets(group_id, offsets)

    @arg.takes(group_id=arg.text)
    def delete_group(self, group_id: str) -> int:
        """Deletes a group without members; how many offsets it had. Raises GroupIdNotFoundError, NonEmptyGroupError,
        UnstableOffsetCommitError (a transaction with its offsets is open)."""
        return self._groups.delete(group_id)

    @arg.takes(states=arg.texts, running_ms_min=arg.whole())
    def list_transactions(self, states: Sequence[str] = (), running_ms_min: int = 0) -> list[TransactionSummary]:
        """The transactional ids and applications by name: all, or only those in `states` (Empty, Ongoing,
        PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort) and open for at least `running_ms_min`."""
        return transaction_admin.list_transactions(self._cluster, states, running_ms_min, timeout_ms=self._timeout_ms)

    @arg.takes(transactional_id=arg.text)
    def describe_transaction(self, transactional_id: str) -> TransactionDetails:
        """One of them with the partitions its open transaction has written to; an application's id is
        `sparklog.types.shared_transactional_id(app)`. Raises InvalidProducerIdMappingError."""
        return transaction_admin.describe_transaction(self._cluster, transactional_id, timeout_ms=self._timeout_ms)

    @arg.takes(transactional_id=arg.text)
    def abort_transaction(self, transactional_id: str) -> int:
        """Aborts the open transaction of an id; in how many partitions. Raises InvalidTxnStateError if none is open,
        InvalidProducerIdMappingError; RequestTimedOutError or BrokerNotAvailableError if its broker stops meanwhile:
        then it may be aborted."""
        return transaction_admin.abort_transaction(self._cluster, transactional_id, timeout_ms=self._timeout_ms)

    @arg.takes(partition=arg.partition, producer_id=arg.whole())
    def abort_hanging_transaction(self, partition: TopicPartition, producer_id: int) -> None:
        """Ends a producer's transaction in one partition that no coordinator knows. Raises InvalidTxnStateError if one
        does, or nothing is open."""
        transaction_admin.abort_hanging_transaction(self._cluster, partition, producer_id, timeout_ms=self._timeout_ms)

    @arg.takes(partition=arg.partition)
    def describe_producers(self, partition: TopicPartition) -> DescribeProducersResponse:
        """Who has written to a partition and is not forgotten yet. Raises UnknownTopicOrPartitionError."""
        return transaction_admin.describe_producers(self._cluster, partition, timeout_ms=self._timeout_ms)

    @arg.takes(topics=arg.optional(arg.texts))
    def find_hanging_transactions(self, topics: Iterable[str] | None = None) -> list[HangingTransaction]:
        """Transactions that are open in a partition of `topics` (default: all) though no coordinator knows them. The
        time limit holds for each request, of which there is one per partition."""
        names = self.list_topics(include_internal=True) if topics is None else list(topics)
        counts = self.partition_counts(include_internal=True)
        partitions = [
            TopicPartition(n, p)
            for n in names
            for p in range(counts[n] if n in counts else self.describe_topic(n).partitions)
        ]
        return transaction_admin.find_hanging_transactions(self._cluster, partitions, timeout_ms=self._timeout_ms)

    @arg.takes(name=arg.text, mechanisms=arg.texts, iterations=arg.whole(), only_new=arg.flag, only_existing=arg.flag)
    def set_user_password(
        self,
        name: str,
        password: Secret | str,
        mechanisms: Sequence[str] = SCRAM_MECHANISMS,
        *,
        iterations: int = ITERATIONS_MIN,
        only_new: bool = False,
        only_existing: bool = False,
    ) -> None:
        """Sets a user's password for SCRAM (and PLAIN); makes the user if there is none. The password stays here.

        Raises InvalidConfigError (also, with `only_new`, for a user who is there), ResourceNotFoundError (with
        `only_existing`). If the broker stops meanwhile, and there is a user with these mechanisms then, `only_new`
        takes it for the one that it has made: that somebody else has made another one in that moment is not seen.
        """
        user_admin.set_password(
            self._cluster,
            name,
            _password("password", password),
            mechanisms,
            iterations=iterations,
            only_new=only_new,
            only_existing=only_existing,
            timeout_ms=self._timeout_ms,
        )

    @arg.takes(names=arg.optional(arg.texts))
    def describe_users(self, names: Sequence[str] | None = None) -> list[UserDescription]:
        """The users of these names that are there, or all users with passwords."""
        return user_admin.describe_users(self._cluster, names, timeout_ms=self._timeout_ms)

    @arg.takes(name=arg.text)
    def remove_user(self, name: str) -> None:
        """Removes a user with a password; the user's connections end. Raises ResourceNotFoundError."""
        user_admin.remove_user(self._cluster, name, timeout_ms=self._timeout_ms)

    @arg.takes(acls=arg.listed(arg.instance(Acl)))
    def create_acls(self, acls: Iterable[Acl]) -> int:
        """Adds ACLs; how many were new. Raises InvalidConfigError for one that could never match,
        SecurityDisabledError if the broker has no authorizer, ClusterAuthorizationFailedError."""
        return acl_admin.create_acls(self._cluster, acls, timeout_ms=self._timeout_ms)

    @arg.takes(filters=arg.listed(arg.instance(AclFilter)))
    def delete_acls(self, *filters: AclFilter) -> list[Acl]:
        """Removes the ACLs that any of the filters takes, and returns them. Raises as `create_acls`."""
        return acl_admin.delete_acls(self._cluster, filters, timeout_ms=self._timeout_ms)

    @arg.takes(wanted=arg.instance(AclFilter))
    def describe_acls(self, wanted: AclFilter = ALL_ACLS) -> list[Acl]:
        """The ACLs that the filter takes, or all. Raises as `create_acls`."""
        return acl_admin.describe_acls(self._cluster, wanted, timeout_ms=self._timeout_ms)

    def describe_client_quotas(self) -> QuotaDescription:
        """All quotas of users and client ids, and who has to wait at the moment. Raises
        ClusterAuthorizationFailedError."""
        return quota_admin.describe_quotas(self._cluster, timeout_ms=self._timeout_ms)

    @arg.takes(entity=arg.instance(Entity), changes=arg.mapping(arg.text, arg.optional(_quota)))
    def alter_client_quotas(self, entity: Entity, changes: Mapping[str, float | None]) -> dict[str, float]:
        """Sets quotas of a user, a client id or both (`sparklog.security.quotas.Entity`; None: takes one away); the
        quotas that the entity has now. Raises InvalidConfigError, ClusterAuthorizationFailedError."""
        return quota_admin.alter_quotas(self._cluster, entity, changes, timeout_ms=self._timeout_ms)

    def close(self) -> None:
        """Every other method raises ClosedError from now on; again is fine. Nothing is held: connections are shared by
        the process and closed when they have been idle."""
        self._closed = True

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _check_count(name: str, partitions: object) -> None:
    """Raises InvalidPartitionsError."""
    if (
        isinstance(partitions, bool)
        or not isinstance(partitions, int)
        or not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX
    ):
        raise InvalidPartitionsError(f"{name} = {partitions!r}: 1 to {PARTITIONS_PER_TOPIC_MAX}")
