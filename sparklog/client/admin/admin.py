"""`Admin`: administers topics, partitions, groups, transactions, users, ACLs and quotas of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import TracebackType
from typing import Any

import pyarrow as pa

from sparklog.client.admin import (
    acl_admin,
    cluster_admin,
    config_admin,
    group_admin,
    lake_admin,
    mirror_admin,
    mirror_description,
    quota_admin,
    topic_admin,
    transaction_admin,
    user_admin,
)
from sparklog.client.admin.call import Call
from sparklog.client.admin.cluster_admin import (
    BrokerDescription,
    ClusterDescription,
    LogDirDescription,
    PartitionReassignment,
)
from sparklog.client.admin.config_admin import BrokerSetting
from sparklog.client.admin.group_admin import GroupDescription, GroupListing
from sparklog.client.admin.lake_admin import LakeDescription, LakePartition
from sparklog.client.admin.leader_states import with_figures
from sparklog.client.admin.log_view import BatchDescription, SegmentDescription, describe_batches, describe_segments
from sparklog.client.admin.mirror_description import MirrorDescription, MirrorPartition, MirrorTopic
from sparklog.client.admin.quota_admin import QuotaDescription
from sparklog.client.admin.record_deletion import delete_records
from sparklog.client.admin.schema_argument import Columns, arrow_schema_of
from sparklog.client.admin.transaction_admin import HangingTransaction
from sparklog.client.admin.user_admin import UserDescription
from sparklog.client.group.group_offsets import commit_offsets
from sparklog.client.net import arguments as arg
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.coordinator_key import transaction_key
from sparklog.client.net.paging import after_last
from sparklog.client.net.retry import RetryPolicy
from sparklog.client.net.topic_info import TopicInfo, topic_info
from sparklog.client.reading.isolation import isolation_of
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.errors import ClosedError, InvalidConfigError, InvalidPartitionsError, InvalidRequestError
from sparklog.format.schema import canonical_schema, require_columns
from sparklog.metadata.refused_topics import refused_topic
from sparklog.protocol.base import PARTITIONS_PER_TOPIC_MAX, TOPICS_PER_REQUEST_MAX
from sparklog.protocol.operation_messages import CordonBrokerRequest, CordonBrokerResponse
from sparklog.protocol.quota_messages import AlterClientQuotasRequest, AlterClientQuotasResponse, QuotaAlteration
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterSchemaResponse,
    AlterTopicRequest,
    AlterTopicResponse,
    CreateTopicRequest,
)
from sparklog.protocol.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    DescribeProducersResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
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
from sparklog.types import (
    INTERNAL_TOPICS,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    check_topic_name,
    whole_number,
)

__all__ = [
    "Admin",
    "BrokerDescription",
    "ClusterDescription",
    "LakeDescription",
    "LakePartition",
    "LogDirDescription",
    "MirrorDescription",
    "MirrorPartition",
    "MirrorTopic",
    "PartitionDescription",
    "PartitionReassignment",
    "TopicDescription",
]


@dataclass(frozen=True)
class PartitionDescription:
    """The state of a partition at one moment.

    Offsets and sizes are -1 while the partition is offline or its leader does not answer.
    """

    partition: int
    """Number of the partition."""
    leader: int
    """Id of the leading broker; -1: none."""
    log_start_offset: int
    """First offset that can be read."""
    high_watermark: int
    """End of the offsets that can be read (exclusive)."""
    size_bytes: int
    """Size of all batches in bytes, those in the object store included."""
    error_code: int
    """Code of the error that keeps the partition offline; 0: none."""
    local_log_start_offset: int = -1
    """First offset on the leader's disk. Lower offsets are in the object store only."""
    remote_size_bytes: int = -1
    """Size in bytes of the batches that are in the object store only."""
    write_error: str = ""
    """Reason why the last append failed or no append is possible, such as a full disk; empty: appends work."""
    replicas: tuple[int, ...] = ()
    """Ids of the brokers that keep the partition."""
    isr: tuple[int, ...] = ()
    """Ids of the replicas that are in sync."""
    elr: tuple[int, ...] = ()
    """Ids of the eligible leader replicas (KIP-966): not in sync, but with all committed records."""
    adding: tuple[int, ...] = ()
    """Ids of the replicas that a reassignment adds."""
    removing: tuple[int, ...] = ()
    """Ids of the replicas that a reassignment removes."""


@dataclass(frozen=True)
class TopicDescription:
    """The description of a topic at one moment."""

    name: str
    """Name of the topic."""
    topic_id: str
    """Id of the topic. A topic that is created again under the name has another id."""
    kind: str
    """"envelope" (key, value, headers, timestamp) or "typed"."""
    partitions: int
    """Number of partitions."""
    schema: pa.Schema
    """Newest schema in the stored layout."""
    schema_id: int
    """Id of the newest schema."""
    key_columns: tuple[str, ...]
    """Names of the columns that choose a row's partition; empty: none."""
    timestamp_column: str | None
    """Name of the column with the event time; None if the topic has none."""
    configs: dict[str, object]
    """Settings of this topic alone; `setting` returns the value in effect."""
    created_ms: int
    """Time of creation in ms since 1970."""
    partition_details: tuple[PartitionDescription, ...] = ()
    """State of each partition."""
    broker_defaults: Mapping[str, object] = field(default_factory=dict)
    """Topic settings that the broker sets for all topics."""
    schemas: Mapping[int, pa.Schema] = field(default_factory=dict)
    """All versions of the schema by their ids."""

    def setting(self, name: str) -> object:
        """Return the value in effect for a topic setting: the topic's own, else the broker's, else the general default.

        Args:
            name: Name of the setting, such as "retention.ms".

        Returns:
            The value.

        Raises:
            KeyError: There is no such setting.
        """
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
    """Return the requested offset of each partition; the latest for partitions that are named without an offset."""
    if isinstance(value, Mapping):
        found: dict[TopicPartition, Any] = arg.mapping(arg.partition, arg.anything)(argument, value)
        return found
    return dict.fromkeys(arg.partitions(argument, value), "latest")


def _password(argument: str, value: object) -> Secret:
    """Return the password as a Secret, whose text appears nowhere, not even in an error. Raises InvalidRequestError."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise InvalidRequestError(f"{argument}: use a str, not {type(value).__name__}")
    return Secret(value)


def _quota(argument: str, value: object) -> float:
    allowed = "a number is needed, or None to take the quota away"
    quota = arg.real(argument, value, allowed)
    if not math.isfinite(quota):
        arg.refuse(argument, value, allowed)
    return float(quota)


class Admin:
    """A client that administers a cluster; thread-safe.

    Every method waits for brokers that cannot be reached yet or restart, and logs a warning after a second. Every
    method can raise these errors in addition to those that it lists:

    - BrokerNotAvailableError: no broker could be reached within `request_timeout_ms`.
    - RequestTimedOutError: no broker has answered within `request_timeout_ms`, which limits the whole call.
    - ClosedError: the Admin is closed.
    - InvalidRequestError: an argument has the wrong type or is out of bounds.
    - TopicAuthorizationFailedError, GroupAuthorizationFailedError, TransactionalIdAuthorizationFailedError or
      ClusterAuthorizationFailedError: the user is not allowed to do this.

    If a broker stops before it has answered a change, the change is sent to another broker and made once.
    `abort_transaction` and `abort_hanging_transaction` raise an error instead. The results of `create_acls`,
    `delete_acls`, `elect_leaders` and `delete_group` do not count the effect of an attempt that was not answered. A
    change is visible to all later calls of this process, at any broker.

    Example:
        ```python
        with Admin("127.0.0.1:9292") as admin:
            admin.create_topic("trips", partitions=4, schema="zone STRING, minutes DOUBLE")
        ```
    """

    @arg.takes()
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
        """Create an Admin. The first call connects.

        Args:
            bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
                127.0.0.1:9292.
            request_timeout_ms: The time limit of each call in ms.
            client_id: The client's name in quotas and the audit log, as a producer's `client.id`. Empty: none.
            security: Client settings by their dotted names, such as {"security.protocol": "SASL_SSL"}, or the path of a
                properties file. None: plaintext, or the security parameters among `settings`.
            wait_for_broker: False makes a call raise BrokerNotAvailableError at once if it can reach no broker.
            **settings: Security settings of `sparklog.settings` with underscores, such as `security_protocol` and
                `sasl_mechanism`.

        Raises:
            InvalidConfigError: A setting is unknown or out of bounds, or security is given twice.
            InvalidRequestError: `request_timeout_ms` is not a whole number from 1.
        """
        security, others = with_parameters(security, settings)
        from_parameters(Scope.CLIENT, others)  # raises for a name that is no setting
        self._shared = cluster(bootstrap_servers, security, client_id)
        self._timeout_ms = arg.timeout("request_timeout_ms", request_timeout_ms)
        self._wait_for_broker = wait_for_broker
        self._closed = False

    @property
    def _cluster(self) -> Cluster:
        """The cluster, for one call.

        Raises:
            ClosedError: The Admin is closed.
            BrokerNotAvailableError: No broker can be reached, and the Admin does not wait for one.
        """
        if self._closed:
            raise ClosedError("this Admin is closed: create a new one")
        if not self._wait_for_broker:
            self._shared.reach(timeout_ms=self._timeout_ms)
        return self._shared

    def _call(self) -> Call:
        """Return the sender of one call's requests; its time limit begins now. Raises the errors of `_cluster`."""
        return Call(self._cluster, self._timeout_ms)

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
        """Create a topic: an envelope topic (key, value, headers, timestamp), or with a schema a typed topic.

        If another client has created a topic of this name, the call raises TopicAlreadyExistsError, even after a
        repetition of the request.

        Args:
            name: The topic's name.
            partitions: Number of partitions. None: the broker's `num.partitions`.
            schema: An Arrow schema, a Spark `StructType`, a Spark DDL string ("zone STRING, minutes DOUBLE"), or {name:
                Arrow type}. None: an envelope topic.
            key_columns: Names of the columns that choose the partition of a row, by Kafka's hash of the key in the form
                `kafka.key.format` of `configs`. Empty: none.
            timestamp_column: Name of the column with the event time of a row. None: the time of sending.
            configs: Topic settings under Kafka's names. None: the broker's defaults.
            replication_factor: Number of brokers that keep each partition. None: the broker's
                `default.replication.factor`.
            replica_assignment: For each partition the ids of its brokers, the preferred leader first. None: the
                controller places the replicas.

        Returns:
            The new topic.

        Raises:
            TopicAlreadyExistsError: A topic of this name exists.
            InvalidTopicError: The name, the schema or a column is not acceptable.
            InvalidPartitionsError: `partitions` or `replication_factor` is out of bounds.
            InvalidConfigError: A setting is unknown or out of bounds.
            InvalidReplicationFactorError: The cluster does not have this many brokers.
            InvalidReplicaAssignmentError: The assignment names unknown brokers, or one broker twice.
            PolicyViolationError: The user would own more topics or partitions than their quota allows.
            TypeError: `schema` has none of these forms.

        Example:
            ```python
            admin.create_topic("trips", partitions=4, schema="zone STRING, minutes DOUBLE", key_columns=["zone"])
            ```
        """
        check_topic_name(name)
        if partitions is not None:
            partitions = _check_count("partitions", partitions)
        if replication_factor is not None:
            replication_factor = _check_count("replication_factor", replication_factor)
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
        return _description(topic_admin.create_topic(self._call(), request))

    @arg.takes(include_internal=arg.flag)
    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """List the names of all topics.

        Args:
            include_internal: True adds the broker's own topics.

        Returns:
            Names in order.
        """
        return list(self.partition_counts(include_internal=include_internal))

    @arg.takes(include_internal=arg.flag)
    def partition_counts(self, *, include_internal: bool = False) -> dict[str, int]:
        """Count the partitions of all topics.

        Args:
            include_internal: True adds the broker's own topics.

        Returns:
            Number of partitions by topic name, in order of the names.
        """
        call = self._call()
        counts = call.answer(lambda left_ms: call.cluster.partition_counts(timeout_ms=left_ms))
        return {name: counts[name] for name in sorted(counts) if include_internal or name not in INTERNAL_TOPICS}

    def describe_cluster(self) -> ClusterDescription:
        """Describe the brokers and the controller.

        Returns:
            The cluster.
        """
        return cluster_admin.describe_cluster(self._call())

    def describe_log_dirs(self) -> dict[int, list[LogDirDescription]]:
        """Describe the disks of each broker: their space and their errors.

        Returns:
            Log directories by broker id. A broker that does not answer within 5 s is left out.
        """
        return cluster_admin.describe_log_dirs(self._call())

    @arg.takes(
        reassignments=arg.mapping(arg.partition, arg.optional(_REPLICAS)), throttle_bytes=arg.optional(arg.whole())
    )
    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None], *, throttle_bytes: int | None = None
    ) -> None:
        """Move partitions to other brokers. `list_partition_reassignments` shows the progress of the copies.

        Args:
            reassignments: For each partition the ids of its new replicas, the preferred leader first; None cancels its
                reassignment.
            throttle_bytes: Limit of each broker's copying in bytes/s: for sending to the added replicas of other
                brokers, and for receiving into its own added replicas. 0: no limit. None: the limit stays. The limit
                ends with the last reassignment.

        Raises:
            InvalidReplicaAssignmentError: A list names unknown brokers, or one broker twice.
            UnknownTopicOrPartitionError: A partition does not exist.
            NoReassignmentInProgressError: There is nothing to cancel.
            EligibleLeadersNotAvailableError: A reassignment cannot be cancelled: no old replica is in sync.
            SparklogError: Any of these errors belongs to the first refused partition; the other partitions are done.
                Its `outcomes` holds an error or None for each partition.

        Example:
            ```python
            admin.alter_partition_reassignments({TopicPartition("trips", 0): [2, 3]}, throttle_bytes=50_000_000)
            ```
        """
        cluster_admin.alter_reassignments(self._call(), reassignments, throttle_bytes)

    @arg.takes(topics=arg.optional(arg.texts))
    def list_partition_reassignments(self, topics: Iterable[str] | None = None) -> list[PartitionReassignment]:
        """List the reassignments in progress, with the copied bytes.

        Args:
            topics: Names of topics. None: all topics.

        Returns:
            One entry per partition that is being reassigned.
        """
        return cluster_admin.list_reassignments(self._call(), topics)

    def cancel_partition_reassignments(self, partitions: arg.Partitions | None = None) -> int:
        """Cancel reassignments: the partitions stay at their old brokers, and the copies are deleted.

        Args:
            partitions: One partition, or several. None: all that are being reassigned.

        Returns:
            Number of cancelled reassignments.

        Raises:
            NoReassignmentInProgressError: A given partition is not being reassigned; the other partitions are done.
        """
        if partitions is None:
            under_way = cluster_admin.list_reassignments(self._call(), None, with_sizes=False)
            partitions = [r.topic_partition for r in under_way]
        targets = dict.fromkeys(arg.partitions("partitions", partitions))
        if targets:
            cluster_admin.alter_reassignments(self._call(), targets, None)
        return len(targets)

    @arg.takes(kind=arg.text)
    def elect_leaders(self, kind: str = "preferred", partitions: arg.Partitions | None = None) -> int:
        """Elect the leaders of partitions.

        Args:
            kind: "preferred" makes the first replica of the assignment the leader, if that replica is in sync.
                "unclean" lets any live replica lead a partition that has no leader. Acknowledged records that this
                replica lacks are lost.
            partitions: One partition, or several. None: all.

        Returns:
            Number of partitions with a new leader.

        Raises:
            EligibleLeadersNotAvailableError: The preferred replica of a partition, or with "unclean" every replica,
                cannot lead; the other partitions are done. The error's `outcomes` holds an error or None for each
                partition.
            UnknownTopicOrPartitionError: A partition does not exist; the other partitions are done.
            InvalidRequestError: `kind` is unknown.
        """
        chosen = None if partitions is None else arg.partitions("partitions", partitions)
        return cluster_admin.elect_leaders(self._call(), kind, chosen)

    @arg.takes(broker_id=arg.broker_id, cordoned=arg.flag)
    def cordon_broker(self, broker_id: int, *, cordoned: bool = True) -> tuple[int, ...]:
        """Stop or resume the placement of new replicas on a broker. Replicas that it has stay.

        Args:
            broker_id: Id of the broker.
            cordoned: True stops the placement, False resumes it.

        Returns:
            Ids of all cordoned brokers.

        Raises:
            InvalidRequestError: The cluster never had this broker.
        """
        return tuple(self._call().change(CordonBrokerRequest(broker_id, cordoned), CordonBrokerResponse).cordoned)

    def describe_broker(self, broker_id: int | None) -> dict[str, BrokerSetting]:
        """Describe the settings of a running broker, without secrets.

        Args:
            broker_id: Id of the broker. None: the values that are stored for all brokers.

        Returns:
            Settings by name, with the value in effect and its source.

        Raises:
            InvalidRequestError: The broker is not running.
            ClusterAuthorizationFailedError: The user is not allowed to describe settings.

        Example:
            ```python
            admin.describe_broker(1)["max.connections"].source
            ```
        """
        number = None if broker_id is None else arg.broker_id("broker_id", broker_id)
        return config_admin.describe_broker(self._call(), number)

    @arg.takes(configs=_SETTINGS)
    def alter_broker(
        self, broker_id: int | None, configs: Mapping[str, object | None], *, validate_only: bool = False
    ) -> None:
        """Change dynamic settings of running brokers. The change survives restarts.

        A value for one broker takes precedence over a value for all brokers; both take precedence over the broker's
        configuration file.

        Args:
            broker_id: Id of the broker. None: all brokers.
            configs: Values by setting name, defaults of topic settings with the prefix `topic.`; None removes the
                stored value.
            validate_only: True checks the change without making it.

        Raises:
            InvalidConfigError: A setting is unknown, out of bounds, or needs a restart.
            InvalidRequestError: The cluster never had this broker.
            ClusterAuthorizationFailedError: The user is not allowed to change settings.

        Example:
            ```python
            admin.alter_broker(None, {"max.connections": 5_000, "topic.retention.ms": "3d"})
            ```
        """
        number = None if broker_id is None else arg.broker_id("broker_id", broker_id)
        config_admin.alter_broker(self._call(), number, configs, validate_only=arg.flag("validate_only", validate_only))

    @arg.takes(name=arg.name)
    def describe_topic(self, name: str) -> TopicDescription:
        """Describe a topic and its partitions.

        Args:
            name: The topic's name.

        Returns:
            The topic.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
        """
        call = self._call()
        return _description(*with_figures(call, [call.topic(name)]))

    @arg.takes(names=arg.texts)
    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Describe many topics in one call.

        Args:
            names: At most 10,000 names.

        Returns:
            Topics by name. A topic that does not exist is left out.

        Raises:
            InvalidRequestError: There are more than 10,000 names.
        """
        wanted = list(dict.fromkeys(names))
        if len(wanted) > TOPICS_PER_REQUEST_MAX:
            raise InvalidRequestError(f"{len(wanted)} topics: at most {TOPICS_PER_REQUEST_MAX} at once")
        if not wanted:
            return {}
        call = self._call()
        states = call.answer(lambda left_ms: call.cluster.metadata(wanted, timeout_ms=left_ms)).topics
        infos = with_figures(call, [topic_info(t) for t in states if t.error_code == 0])
        return {info.name: _description(info) for info in infos}

    @arg.takes(name=arg.name)
    def alter_schema(
        self,
        name: str,
        *,
        add_columns: Columns | None = None,
        widen_columns: Columns | None = None,
        schema: Columns | None = None,
    ) -> TopicDescription:
        """Give a typed topic a newer schema. Columns that the topic has already in this form change nothing.

        A Delta table of the topic gets new columns by itself. It pauses at a wider column until `rebuild_lake` with
        `keep_rows`, unless the table is in a directory and has `delta.enableTypeWidening`.

        Args:
            name: The topic's name.
            add_columns: Columns to append, in a form of `create_topic`; they are null in stored rows. None: none.
            widen_columns: Columns with their wider types (int8 → int16 → int32 → int64, float32 → float64). None: none.
            schema: All columns of the newer schema. None: `add_columns` or `widen_columns` is given instead.

        Returns:
            The topic with the newer schema.

        Raises:
            InvalidTopicError: The change is not possible. The message names the columns.
            InvalidConfigError: The topic's Delta table cannot have a new column.
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidRequestError: `schema` is given together with another argument, or none of the three is given.
            TypeError: An argument is no schema.

        Example:
            ```python
            admin.alter_schema("trips", add_columns="tip DOUBLE")
            ```
        """
        if (schema is None) == (add_columns is None and widen_columns is None):
            raise InvalidRequestError("alter_schema takes add_columns, widen_columns or both, or schema alone")
        given = {"add_columns": add_columns, "widen_columns": widen_columns, "schema": schema}
        parts = [None if s is None else arrow_schema_of(name, s) for name, s in given.items()]
        add, widen, whole = (None if s is None else canonical_schema(s).serialize().to_pybytes() for s in parts)
        request = AlterSchemaRequest(name, add, widen, whole)
        return _description(topic_admin.alter_topic(self._call(), request, AlterSchemaResponse))

    @arg.takes(name=arg.name, configs=_SETTINGS)
    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> TopicDescription:
        """Set settings of a topic. The new values are in effect on return; settings that are not named stay.

        Args:
            name: The topic's name.
            configs: Values by setting name; None resets a setting to its default.

        Returns:
            The topic with its new settings.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidConfigError: A setting is unknown or out of bounds.
        """
        check_names(Scope.TOPIC, configs)
        checked = check(Scope.TOPIC, {k: v for k, v in configs.items() if v is not None})
        request = AlterTopicRequest(name, {k: checked.get(k) for k in configs})
        return _description(topic_admin.alter_topic(self._call(), request, AlterTopicResponse))

    @arg.takes(before_offsets=arg.mapping(arg.partition, arg.anything))
    def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition, permanently.

        Args:
            before_offsets: The first offset to keep by partition; -1 deletes all records. An offset below the beginning
                of the partition deletes nothing.

        Returns:
            The new first offset by partition.

        Raises:
            OffsetOutOfRangeError: An offset lies above a partition's end. Nothing is deleted anywhere.
            UnknownTopicOrPartitionError: A partition does not exist. Nothing is deleted anywhere.
            InvalidRequestError: A topic is only compacted.
            SparklogError: The error of the first refused partition. Its `outcomes` holds the new first offset or an
                error for each partition.
        """
        return delete_records(self._call(), before_offsets)

    @arg.takes(name=arg.name)
    def add_partitions(self, name: str, total: int) -> TopicDescription:
        """Add empty partitions to a topic. They can be written and read on return.

        Stored records stay in their partitions, and later records of a key can go to another partition. Running
        producers use the new partitions after at most 5 minutes. Streaming queries read them from their first offset,
        group members from the position of `auto.offset.reset`.

        If the broker stops before it has answered, the call succeeds if the topic then has `total` partitions, no
        matter which client added them.

        Args:
            name: The topic's name.
            total: The new number of partitions.

        Returns:
            The topic with its partitions.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidPartitionsError: The topic has this many partitions or more, or `total` is out of bounds.
            InvalidTopicError: The topic is one of the broker's own.
        """
        total = _check_count("total", total)
        return _description(topic_admin.add_partitions(self._call(), name, total))

    @arg.takes(
        topic=arg.name,
        location=arg.text,
        interval_ms=arg.optional(arg.whole()),
        mode=arg.optional(arg.text),
        file_size_bytes=arg.optional(arg.whole()),
        partition_by=arg.texts,
    )
    def enable_lake(
        self,
        topic: str,
        *,
        location: str,
        interval_ms: int | None = None,
        mode: str | None = None,
        file_size_bytes: int | None = None,
        partition_by: Sequence[str] = (),
    ) -> LakeDescription:
        """Keep a topic as a Delta table, too: create the table, which a lake worker fills from the first record on.

        The table has the topic's columns (or key, value and headers), then `_partition`, `_offset` and `_timestamp`. An
        earlier table of the topic at this location is continued.

        Args:
            topic: The topic's name.
            location: Place of the table: a directory, or an address with s3://, gs:// or az://. This process and the
                worker need access to it.
            interval_ms: Time between commits in ms. None: the default of lake.commit.interval.ms; a value that the
                topic has is removed.
            mode: "append": every record is a row; "upsert": the newest row of each key. None: the default of lake.mode.
            file_size_bytes: Size of a full file in bytes. None: the default of lake.file.size.bytes.
            partition_by: Columns that partition the table. Empty: none. An upserted table is also partitioned by
                `_partition`.

        Returns:
            The state of the table.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidConfigError: Delta cannot hold a column, another table is at the location, the topic has a table at
                another location, the topic has no key for upsert or is internal, or the package deltalake is not
                installed.
            LakeUnavailableError: The location cannot be reached.

        Example:
            ```python
            admin.enable_lake("trips", location="/data/lake/trips", interval_ms=10_000)
            ```
        """
        lake_admin.enable_lake(
            self._call().topic(topic),
            self.alter_topic,
            location=location,
            interval_ms=interval_ms,
            mode=mode,
            file_size_bytes=file_size_bytes,
            partition_by=partition_by,
        )
        return self.describe_lake(topic)

    @arg.takes(topic=arg.name)
    def describe_lake(self, topic: str) -> LakeDescription:
        """Describe the Delta table of a topic: its lag, its last commit, its errors.

        Args:
            topic: The topic's name.

        Returns:
            The state of the table.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidConfigError: The topic has no Delta table.
        """
        call = self._call()
        return lake_admin.describe_lake(call, call.topic(topic))

    @arg.takes(topic=arg.name)
    def disable_lake(self, topic: str) -> None:
        """Stop filling the Delta table of a topic. The table stays; `enable_lake` with its location continues it.

        Args:
            topic: The topic's name.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
        """
        lake_admin.disable_lake(self._call().topic(topic), self.alter_topic)

    @arg.takes(topic=arg.name, reason=arg.text)
    def pause_lake(self, topic: str, reason: str = lake_admin.PAUSED_BY_USER) -> None:
        """Stop commits to the Delta table of a topic until `resume_lake`.

        Args:
            topic: The topic's name.
            reason: Text that `describe_lake` shows.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidConfigError: The topic has no Delta table.
        """
        lake_admin.settings_with_lake(self._call().topic(topic))
        self.alter_topic(topic, {"lake.paused": reason or lake_admin.PAUSED_BY_USER})

    @arg.takes(topic=arg.name, from_table=arg.flag)
    def resume_lake(self, topic: str, *, from_table: bool = False) -> None:
        """Resume commits to the Delta table of a topic.

        Args:
            topic: The topic's name.
            from_table: True continues after the last row of each partition that the table has, and ignores the next
                offsets that are stored in the table. It is for a table that was restored to an older version: the rows
                that the restore removed are appended again. So are rows beyond that last row that users deleted.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidConfigError: The topic has no Delta table.
            LakePausedError: With `from_table` the table is gone, or the log lacks the next offsets.
            LakeUnavailableError: With `from_table` the location cannot be reached, or other writers commit all the
                time.
        """
        call = self._call()
        info = call.topic(topic)
        lake_admin.settings_with_lake(info)
        if from_table:
            lake_admin.resume_from_table(call, info)
        self.alter_topic(topic, {"lake.paused": None})

    @arg.takes(topic=arg.name, keep_rows=arg.flag)
    def rebuild_lake(self, topic: str, *, keep_rows: bool = False) -> None:
        """Empty the Delta table of a topic and fill it again from the log's first record, with the topic's columns.

        A table that was dropped is created again. Rows that the log has deleted are not in the new table.

        Args:
            topic: The topic's name.
            keep_rows: True to keep the table's rows, also those that the log has deleted, and only make the columns
                wider that are wider in the topic: all files are written again.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            InvalidConfigError: The topic has no Delta table, or Delta cannot hold a column; or with `keep_rows` no
                column is wider.
            LakePausedError: Another table is at the location; or with `keep_rows` the table is not sound.
            LakeUnavailableError: The location cannot be reached, or other writers commit all the time.
        """
        call = self._call()
        info = call.topic(topic)
        if keep_rows:
            lake_admin.widen_table(info, self.alter_topic)
        else:
            lake_admin.rebuild_lake(call, info, self.alter_topic)

    @arg.takes(
        name=arg.text,
        source=arg.text,
        topics=arg.text,
        groups=arg.optional(arg.text),
        source_config=arg.optional(arg.text),
        registry=arg.optional(arg.text),
        value_format=arg.optional(arg.text),
        columns=arg.optional(arg.mapping(arg.text, arg.anything)),
        key_columns=arg.optional(arg.mapping(arg.text, arg.texts)),
        key_format=arg.optional(arg.text),
        drop_headers=arg.flag,
        refused_max=arg.optional(arg.whole(-1)),
        bytes_per_second=arg.whole(),
    )
    def create_mirror(
        self,
        name: str,
        *,
        source: str,
        topics: str,
        groups: str | None = None,
        source_config: str | None = None,
        value_format: str | None = None,
        columns: Mapping[str, Columns] | None = None,
        key_columns: Mapping[str, Iterable[str]] | None = None,
        drop_headers: bool = False,
        refused_max: int | None = None,
        bytes_per_second: int = 0,
        registry: str | None = None,
        key_format: str | None = None,
    ) -> MirrorDescription:
        """Mirror topics of a Kafka or sparklog cluster: create them here, for a mirror worker that fills them with the
        same offsets. They are read-only until `promote_mirror`.

        A call that was interrupted can be repeated.

        Args:
            name: Name of the mirror.
            source: Address of the source, kafka://HOST:PORT, or sparklog://HOST:PORT for a sparklog cluster, whose
                topics keep their columns; several brokers with commas.
            topics: Regular expressions of whole names of topics, separated by commas. Topics that the source adds
                later are mirrored, too.
            groups: Regular expressions of the groups whose offsets are copied, separated by commas. None: no group.
            source_config: Path of a properties file with the client settings for the source (TLS, login), on this
                machine and on those of the workers; a relative path counts from the working directory here. None:
                plaintext.
            value_format: "json", "avro", "protobuf" or "json-schema": the values become the columns of typed topics.
                Records that do not fit are rows of the topic `<topic>.refused`, with the reason. None: envelope topics,
                whose values are bytes.
            columns: Columns of the typed topics, as for `create_topic`, by regular expressions of topics; a topic has
                those of the first expression that matches its name. Without one, a topic of Avro or Protobuf has those
                of its newest schema in the registry, and gets the columns of later ones.
            key_columns: Columns that the records' keys fill, by the same expressions. None: no column; the keys are
                left out.
            drop_headers: True to leave out the headers of records for typed topics. False to refuse records with
                headers.
            refused_max: Number of refused records of a topic at which it pauses before the next one; -1: no limit.
                None: the default of `mirror.refused.max`.
            bytes_per_second: Largest rate at which one worker fetches records from the source. 0: no limit.
            registry: Address of the schema registry for all formats but "json", http:// or https:// with host and port;
                the subjects are `<topic>-value` and `<topic>-key`. It is read without a login.
            key_format: "avro", "protobuf" or "json-schema" for keys with schemas. Without `key_columns` the fields of
                the newest schema of the keys are the key columns; the topics get this schema with its id
                (`kafka.key.schema`), so that keys have the same bytes here. None: keys in JSON, or as the text of the
                only key column.

        Returns:
            The mirror with its topics.

        Raises:
            InvalidConfigError: The address or an expression is wrong, no topic matches, a topic exists here that the
                mirror has not created, or a mirror of this name has another definition.
            BrokerNotAvailableError: The source cannot be reached.
            SaslAuthenticationFailedError: The source refuses the login.

        Example:
            admin.create_mirror("old", source="kafka://old:9092", topics="orders,logs-.*", groups=".*")
        """
        definition = mirror_admin.mirror_definition(
            name,
            source=source,
            topics=topics,
            groups=groups,
            source_config=source_config,
            value_format=value_format,
            columns=columns,
            key_columns=key_columns,
            drop_headers=drop_headers,
            bytes_per_second=bytes_per_second,
            registry=registry,
            key_format=key_format,
        )
        mirror_admin.create_mirror(self, self._topic_infos, definition, self._timeout_ms, refused_max)
        for mirror in self.describe_mirrors():
            if mirror.name == name:
                return mirror
        raise InvalidConfigError(
            f"mirror {name!r} has no topic: another mirror has created them in the same moment; 'sparklog mirror status' "
            "lists the mirrors"
        )

    @arg.takes(topics=arg.optional(arg.texts), asks_source=arg.flag)
    def describe_mirrors(
        self, topics: Iterable[str] | None = None, *, asks_source: bool = True
    ) -> list[MirrorDescription]:
        """Describe all mirrors that have topics, with their lags.

        Args:
            topics: Names of the topics to describe. None: all mirrored topics.
            asks_source: False to take the source's ends from the newest reports of the workers. The source need not be
                reachable from here then.

        Returns:
            Mirrors by name. `error` of a mirror has the reason if its source does not answer now; the newest reports of
            the workers then have the source's ends.
        """
        infos = self._topic_infos()
        names = [] if topics is None else [one for name in topics for one in (name, refused_topic(name))]
        chosen = infos if topics is None else {name: infos[name] for name in names if name in infos}
        return mirror_description.describe_mirrors(self._cluster, chosen, self._timeout_ms, asks_source=asks_source)

    @arg.takes(name=arg.text, topics=arg.optional(arg.texts), now=arg.flag, timeout_ms=arg.timeout)
    def promote_mirror(
        self, name: str, topics: Iterable[str] | None = None, *, now: bool = False, timeout_ms: int = 600_000
    ) -> list[str]:
        """Open topics of a mirror for writers: wait until they have all records that are committed at the source now,
        copy the groups' offsets a last time, and end the mirror of these topics. There is no way back.

        Stop the producers at the source before the call.

        Args:
            name: Name of the mirror.
            topics: Names of topics. None: all topics of the mirror.
            now: True to promote the topics with the records that they have, also if the source is gone.
            timeout_ms: Limit of the wait in ms.

        Returns:
            Names of the promoted topics.

        Raises:
            InvalidConfigError: The mirror or a topic does not exist; or `now` is False, and a topic is paused, or the
                source does not have it any more.
            RequestTimedOutError: The topics have not reached the source's end in time. Nothing is promoted.
            BrokerNotAvailableError: The source cannot be reached, and `now` is False.
        """
        return mirror_admin.promote_mirror(
            self,
            self._cluster,
            self._topic_infos(),
            name,
            None if topics is None else list(topics),
            now=now,
            request_timeout_ms=self._timeout_ms,
            timeout_ms=timeout_ms,
        )

    @arg.takes(name=arg.text, reason=arg.text)
    def pause_mirror(self, name: str, reason: str = mirror_admin.PAUSED_BY_USER) -> list[str]:
        """Stop a mirror until `resume_mirror`.

        Args:
            name: Name of the mirror.
            reason: Text that `describe_mirrors` shows.

        Returns:
            Names of the paused topics.

        Raises:
            InvalidConfigError: The mirror does not exist.
        """
        return mirror_admin.pause_mirror(self, self._topic_infos(), name, reason)

    @arg.takes(name=arg.text)
    def resume_mirror(self, name: str) -> list[str]:
        """Continue a paused mirror. If the cause of a pause remains, the mirror pauses again.

        Args:
            name: Name of the mirror.

        Returns:
            Names of the resumed topics.

        Raises:
            InvalidConfigError: The mirror does not exist.
        """
        return mirror_admin.resume_mirror(self, self._topic_infos(), name)

    @arg.takes(name=arg.text)
    def delete_mirror(self, name: str) -> list[str]:
        """Delete a mirror with its topics. Promoted topics stay.

        Args:
            name: Name of the mirror.

        Returns:
            Names of the deleted topics.

        Raises:
            InvalidConfigError: The mirror does not exist.
        """
        return mirror_admin.delete_mirror(
            lambda topic: topic_admin.delete_topic(self._call(), topic, mirror=name), self._topic_infos, name
        )

    def _topic_infos(self) -> dict[str, TopicInfo]:
        """Return all topics by name, without their figures."""
        call = self._call()
        return call.answer(lambda left_ms: call.cluster.topic_infos(timeout_ms=left_ms))

    @arg.takes(name=arg.name)
    def delete_topic(self, name: str) -> None:
        """Delete the topic that has the name now, with all its data.

        Args:
            name: The topic's name.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
        """
        topic_admin.delete_topic(self._call(), name)

    @arg.takes(isolation_level=arg.text)
    def list_offsets(
        self,
        partitions: Mapping[TopicPartition, str | int] | arg.Partitions,
        *,
        isolation_level: str = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Look up one offset per partition.

        Each look-up is one of these:

        - "earliest": the first offset that can be read.
        - "latest": the offset of the next record.
        - "max_timestamp": the record with the largest timestamp.
        - "earliest_local": the first offset on the broker's disk.
        - "latest_tiered": the last offset in the object store; -1 if it holds none.
        - A time in ms since 1970: the first record at or after it; offset -1 if there is none.

        Args:
            partitions: A look-up by partition; or one partition or several, for their latest offsets.
            isolation_level: "read_uncommitted" finds all records. "read_committed" only finds records before the first
                open transaction; "latest" is the offset of that transaction's first record then.

        Returns:
            The offset and its timestamp by partition.

        Raises:
            UnknownTopicOrPartitionError: A partition does not exist.
            InvalidRequestError: A look-up has none of these forms.
            InvalidConfigError: `isolation_level` is unknown.

        Example:
            ```python
            admin.list_offsets({TopicPartition("trips", 0): "earliest"})[TopicPartition("trips", 0)].offset
            ```
        """
        isolation, asked = isolation_of(isolation_level), _offsets_asked("partitions", partitions)
        return list_offsets(self._cluster, asked, isolation=isolation, timeout_ms=self._timeout_ms)

    @arg.takes(partition=arg.partition)
    def describe_segments(self, partition: TopicPartition) -> list[SegmentDescription]:
        """Describe the segment files of a partition, at most 10,000. The call works on the leader's host only.

        Args:
            partition: The partition.

        Returns:
            Segments in offset order; those that are only in the object store come first.

        Raises:
            LocalReadUnavailableError: The client is on another host than the partition's leader.
            UnknownTopicOrPartitionError: The partition does not exist.
        """
        return describe_segments(self._call(), partition)

    @arg.takes(partition=arg.partition, offset=arg.whole(), batches_max=arg.whole(1))
    def describe_batches(
        self, partition: TopicPartition, offset: int, *, batches_max: int = 100
    ) -> list[BatchDescription]:
        """Describe the batches of a partition by their headers, including markers and aborted batches.

        Args:
            partition: The partition.
            offset: An offset in the first batch to describe.
            batches_max: The largest number of batches.

        Returns:
            Batches in offset order. `checksum_is_right` is the result of the check of a batch's checksum.

        Raises:
            OffsetOutOfRangeError: The partition does not have this offset.
            UnknownTopicOrPartitionError: The partition does not exist.
        """
        return describe_batches(self._call(), partition, offset, batches_max)

    @arg.takes(states=arg.texts)
    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """List the consumer groups.

        Args:
            states: Only groups in these states: "Empty", "Reconciling" or "Stable". An empty sequence: all groups.

        Returns:
            Groups in order of their names.
        """
        return group_admin.list_groups(self._call(), states)

    @arg.takes(group_id=arg.name)
    def describe_group(self, group_id: str) -> GroupDescription:
        """Describe a group: its members, and the committed offset and lag of each partition.

        Args:
            group_id: Name of the group.

        Returns:
            The group.

        Raises:
            GroupIdNotFoundError: The group does not exist.
        """
        return group_admin.describe_group(self._call(), group_id)

    @arg.takes(group_id=arg.name)
    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """List the committed offsets of a group.

        Args:
            group_id: Name of the group.

        Returns:
            Offsets by partition; empty if the group does not exist.
        """
        return group_admin.group_offsets(self._call(), group_id)

    @arg.takes(group_id=arg.name)
    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members: the positions at which its consumers begin. The group need not
        exist.

        Args:
            group_id: Name of the group.
            offsets: The next offset to read by partition.

        Raises:
            NonEmptyGroupError: The group has members.
            UnknownTopicOrPartitionError: A partition does not exist; the other partitions' offsets are set. The error's
                `outcomes` holds an error or None for each partition.
            InvalidRequestError: An offset or a partition is malformed.
        """
        policy = RetryPolicy.within(self._timeout_ms)
        commit_offsets(self._cluster, GroupMetadata(group_id), offsets, policy=policy)

    @arg.takes(group_id=arg.name)
    def delete_group(self, group_id: str) -> int:
        """Delete a group without members.

        Args:
            group_id: Name of the group.

        Returns:
            Number of the committed offsets that the group had.

        Raises:
            GroupIdNotFoundError: The group does not exist.
            NonEmptyGroupError: The group has members.
            UnstableOffsetCommitError: A transaction with offsets of the group is open.
        """
        return group_admin.delete_group(self._call(), group_id)

    @arg.takes(states=arg.texts, running_ms_min=arg.whole())
    def list_transactions(self, states: Sequence[str] = (), running_ms_min: int = 0) -> list[TransactionSummary]:
        """List transactional ids and applications of shared transactions.

        Args:
            states: Only transactions in these states: "Empty", "Ongoing", "PrepareCommit", "PrepareAbort",
                "CompleteCommit" or "CompleteAbort". An empty sequence: all.
            running_ms_min: Only transactions that have been open for at least this many ms. 0: all.

        Returns:
            Transactions in order of their ids.
        """
        request = ListTransactionsRequest(list(states), running_ms_min, paged=True)
        following = after_last("transactions", attrgetter("transactional_id"))
        pages = self._call().pages_of_all_brokers(request, ListTransactionsResponse, following)
        summaries = {t.transactional_id: t for page in pages for t in page.transactions}
        return [summaries[transactional_id] for transactional_id in sorted(summaries)]

    @arg.takes(transactional_id=arg.text)
    def describe_transaction(self, transactional_id: str) -> TransactionDetails:
        """Describe a transaction and the partitions that it has written to.

        Args:
            transactional_id: The id; for an application `sparklog.types.shared_transactional_id(app)`.

        Returns:
            The transaction.

        Raises:
            InvalidProducerIdMappingError: The id does not exist.
        """
        return transaction_admin.describe_transaction(self._call(), transactional_id)

    @arg.takes(transactional_id=arg.text)
    def abort_transaction(self, transactional_id: str) -> int:
        """Abort the open transaction of an id.

        Args:
            transactional_id: The id; for an application `sparklog.types.shared_transactional_id(app)`.

        Returns:
            Number of partitions that got an abort marker.

        Raises:
            InvalidTxnStateError: No transaction is open.
            InvalidProducerIdMappingError: The id does not exist.
            RequestTimedOutError: The broker did not answer in time; the transaction is perhaps aborted.
            BrokerNotAvailableError: The broker stopped before it answered; the transaction is perhaps aborted.
        """
        request, key = AbortTransactionRequest(transactional_id), transaction_key(transactional_id)
        return self._call().ask(request, AbortTransactionResponse, coordinator=key, once=True).partitions

    @arg.takes(partition=arg.partition, producer_id=arg.whole())
    def abort_hanging_transaction(self, partition: TopicPartition, producer_id: int) -> None:
        """Abort a hanging transaction: one that a producer has open in a partition and that no coordinator knows.

        Args:
            partition: The partition.
            producer_id: Id of the producer.

        Raises:
            InvalidTxnStateError: A coordinator knows the transaction, or the producer has none open in the partition.
            RequestTimedOutError: The broker did not answer in time; the transaction is perhaps aborted.
            BrokerNotAvailableError: The broker stopped before it answered; the transaction is perhaps aborted.
        """
        request = AbortTransactionRequest(None, partition.topic, partition.partition, producer_id)
        self._call().ask(request, AbortTransactionResponse, leader_of=partition, once=True)

    @arg.takes(partition=arg.partition)
    def describe_producers(self, partition: TopicPartition) -> DescribeProducersResponse:
        """Describe the producers that a partition remembers.

        Args:
            partition: The partition.

        Returns:
            Producers in order of their ids.

        Raises:
            UnknownTopicOrPartitionError: The partition does not exist.
        """
        return transaction_admin.describe_producers(self._call(), partition)

    @arg.takes(topics=arg.optional(arg.texts))
    def find_hanging_transactions(self, topics: Iterable[str] | None = None) -> list[HangingTransaction]:
        """Find transactions that are open in a partition although no coordinator knows them.

        The partitions are asked one after the other, and the time limit holds for each partition.

        Args:
            topics: Names of topics. None: all topics.

        Returns:
            The transactions by partition.

        Raises:
            UnknownTopicOrPartitionError: A topic does not exist.
        """
        names = self.list_topics(include_internal=True) if topics is None else list(topics)
        counts = self.partition_counts(include_internal=True)
        partitions = [
            TopicPartition(n, p)
            for n in names
            for p in range(counts[n] if n in counts else self.describe_topic(n).partitions)
        ]
        return [
            HangingTransaction(partition, producer)
            for partition in partitions
            for producer in transaction_admin.describe_producers(self._call(), partition).producers
            if producer.transaction_first_offset >= 0 and producer.transactional_id is None
        ]

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
        """Set a user's password for SCRAM (and PLAIN), and create the user if necessary. The password stays in this
        process.

        If the broker stops before it has answered, `only_new` accepts an existing user with these mechanisms as its
        own. A user that another client created at that moment is not noticed.

        Args:
            name: Name of the user.
            password: The password.
            mechanisms: SCRAM mechanisms to store credentials for.
            iterations: Number of iterations of the SCRAM hash.
            only_new: True refuses a user that exists.
            only_existing: True refuses a user that does not exist.

        Raises:
            InvalidConfigError: The name, the password, a mechanism or `iterations` is not acceptable, or with
                `only_new` the user exists.
            ResourceNotFoundError: With `only_existing` the user does not exist.
        """
        user_admin.set_password(
            self._call(),
            name,
            _password("password", password),
            mechanisms,
            iterations,
            only_new=only_new,
            only_existing=only_existing,
        )

    @arg.takes(names=arg.optional(arg.texts))
    def describe_users(self, names: Sequence[str] | None = None) -> list[UserDescription]:
        """Describe users that have passwords.

        Args:
            names: Names of users. None: all users.

        Returns:
            The users; names of users that do not exist are left out.
        """
        return user_admin.describe_users(self._call(), names)

    @arg.takes(name=arg.text)
    def remove_user(self, name: str) -> None:
        """Remove a user with a password. The user's connections end.

        Args:
            name: Name of the user.

        Raises:
            ResourceNotFoundError: The user does not exist.
        """
        user_admin.remove_user(self._call(), name)

    @arg.takes(acls=arg.listed(arg.instance(Acl)))
    def create_acls(self, acls: Iterable[Acl]) -> int:
        """Add ACLs.

        Args:
            acls: The ACLs, as `sparklog.security.acls.Acl`.

        Returns:
            Number of new ACLs.

        Raises:
            InvalidConfigError: An ACL could never match.
            SecurityDisabledError: The broker has no authorizer.
            ClusterAuthorizationFailedError: The user is not allowed to change ACLs.
        """
        return acl_admin.create_acls(self._call(), acls)

    @arg.takes(filters=arg.listed(arg.instance(AclFilter)))
    def delete_acls(self, *filters: AclFilter) -> list[Acl]:
        """Remove the ACLs that match any of the filters.

        Args:
            *filters: Filters, as `sparklog.security.acl_records.AclFilter`.

        Returns:
            The removed ACLs.

        Raises:
            SecurityDisabledError: The broker has no authorizer.
            ClusterAuthorizationFailedError: The user is not allowed to change ACLs.
        """
        return acl_admin.delete_acls(self._call(), filters)

    @arg.takes(wanted=arg.instance(AclFilter))
    def describe_acls(self, wanted: AclFilter = ALL_ACLS) -> list[Acl]:
        """List the ACLs that match a filter.

        Args:
            wanted: The filter. By default all ACLs match.

        Returns:
            The ACLs in order.

        Raises:
            SecurityDisabledError: The broker has no authorizer.
            ClusterAuthorizationFailedError: The user is not allowed to see ACLs.
        """
        return acl_admin.describe_acls(self._call(), wanted)

    def describe_client_quotas(self) -> QuotaDescription:
        """Describe all quotas of users, client ids and IP addresses, and the throttled clients.

        Returns:
            The quotas, and the clients that the queried broker throttles.

        Raises:
            ClusterAuthorizationFailedError: The user is not allowed to see quotas.
        """
        return quota_admin.describe_quotas(self._call())

    @arg.takes(entity=arg.instance(Entity), changes=arg.mapping(arg.text, arg.optional(_quota)))
    def alter_client_quotas(self, entity: Entity, changes: Mapping[str, float | None]) -> dict[str, float]:
        """Set quotas of a user, a client id, a pair of both, or an IP address.

        Args:
            entity: The subject of the quotas, as `sparklog.security.quotas.Entity`.
            changes: Values by quota name, in bytes/s, percent, connections/s or a number; None removes a quota.

        Returns:
            All quotas of the entity after the change.

        Raises:
            InvalidConfigError: A quota is unknown or out of bounds.
            ClusterAuthorizationFailedError: The user is not allowed to change quotas.
        """
        alteration = QuotaAlteration(entity.user, entity.client_id, dict(changes), entity.ip)
        answer = self._call().change(AlterClientQuotasRequest([alteration]), AlterClientQuotasResponse)
        return answer.entries[0].quotas

    def close(self) -> None:
        """Close the Admin: every other method raises ClosedError from now on. A second call does nothing.

        An Admin holds no connections: the process shares them and closes idle ones.
        """
        self._closed = True

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _check_count(name: str, partitions: object) -> int:
    """Return a number of partitions or replicas as an int. Raises InvalidPartitionsError if it is out of bounds."""
    count = whole_number(partitions)
    if count is None or not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"{name} = {partitions!r}: 1 to {PARTITIONS_PER_TOPIC_MAX}")
    return count
