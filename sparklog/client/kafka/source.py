"""A Kafka cluster as the source of a mirror: its topics, offsets, records, groups and settings.

`KafkaSource` keeps one connection per broker. It asks each partition's leader and each group's coordinator. It only
reads: nothing at the source is changed, and no group is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparklog.client.kafka.connection import HEAD_BYTES_MAX, KafkaConnection
from sparklog.client.net.addresses import Endpoint, endpoint_of, parse_bootstrap
from sparklog.errors import (
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownServerError,
)
from sparklog.kafka.wire.codec import NO_UUID
from sparklog.kafka.wire.errors import Kafka
from sparklog.mirror.placing import AbortedTransaction, Placed, place
from sparklog.mirror.rules import EpochAnswer, SourceBounds
from sparklog.mirror.source import (
    ConversionTarget,
    FetchedPartition,
    SourceOffset,
    SourcePartition,
    SourceTopic,
    absent_bounds,
    consistent_bounds,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.settings import MIB
from sparklog.types import TopicPartition

READ_COMMITTED = 1
LATEST, EARLIEST = -1, -2
CONSUMER = -1
TOPIC_RESOURCE = 2
TOPICS_PER_REQUEST = 100
GROUPS_PER_REQUEST = 100
BROKERS_MAX = 10_000
FETCH_BYTES, PARTITION_BYTES = 16 * MIB, 4 * MIB
"""Sizes of a fetch answer and of one partition's part, as asked for. A single batch can be larger."""
BATCH_BYTES_MAX = 128 * MIB
"""Largest batch that is received."""
_ABSENT = {Kafka.UNKNOWN_TOPIC_OR_PARTITION, Kafka.TOPIC_AUTHORIZATION_FAILED}
"""Errors of a topic that concern no other topic of the mirror: it does not exist, or its user must not describe it."""
_STALE = {
    Kafka.NOT_LEADER_OR_FOLLOWER,
    Kafka.FENCED_LEADER_EPOCH,
    Kafka.UNKNOWN_LEADER_EPOCH,
    Kafka.LEADER_NOT_AVAILABLE,
    Kafka.UNKNOWN_TOPIC_OR_PARTITION,
    Kafka.KAFKA_STORAGE_ERROR,
    Kafka.OFFSET_NOT_AVAILABLE,
}


class KafkaRecords(NamedTuple):
    """A partition's records in a fetch answer of Kafka's protocol."""

    data: memoryview
    stable: int
    """Last stable offset."""
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def place(self, position: int, target: ConversionTarget) -> Placed:
        """Return the records as batches at given offsets. Raises the errors of `place`."""
        return place(
            self.data,
            position,
            self.stable,
            self.aborted,
            target.inflated_bytes_max,
            target.now_ms,
            target.typed,
        )


NO_RECORDS = KafkaRecords(memoryview(b""), -1)


def source_error(code: int, about: str, right: str = "") -> SparklogError:
    """Return the error for an error code of the source. Errors that a repetition mends are retriable. `right`: right
    that the request needs, such as "Read on topic 't'"; "": none."""
    name = Kafka(code).name if code in Kafka._value2member_map_ else f"error {code}"
    text = f"the source answers {name} about {about}"
    if code in _STALE:
        return LeaderNotAvailableError(text)
    if code in (Kafka.COORDINATOR_NOT_AVAILABLE, Kafka.COORDINATOR_LOAD_IN_PROGRESS, Kafka.NOT_COORDINATOR):
        return LeaderNotAvailableError(text)
    if code == Kafka.REQUEST_TIMED_OUT:
        return RequestTimedOutError(text)
    if code in (Kafka.TOPIC_AUTHORIZATION_FAILED, Kafka.GROUP_AUTHORIZATION_FAILED):
        return TopicAuthorizationFailedError(f"{text}: the mirror's user needs {right}" if right else text)
    return UnknownServerError(text)


class KafkaSource:
    """A Kafka cluster, for one thread."""

    def __init__(
        self,
        bootstrap_servers: str,
        security: ClientSecurity,
        *,
        timeout_ms: int = 30_000,
        connect: Callable[[Endpoint, ClientSecurity, int], KafkaConnection] = KafkaConnection,
    ) -> None:
        """`bootstrap_servers`: host:port, several with commas. `connect`: makes a connection. Nothing is connected
        before the first request. Raises InvalidConfigError for a wrong address."""
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self._security = security
        self._timeout_ms = timeout_ms
        self._connect = connect
        self._connections: dict[Endpoint, KafkaConnection] = {}
        self._brokers: dict[int, Endpoint] = {}
        self._coordinators: dict[str, Endpoint] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- metadata

    def topics(self, names: Sequence[str] | None = None) -> dict[str, SourceTopic]:
        """Return topics by name. `names` None: all. Topics that do not exist are absent, and those that the mirror's
        user must not describe. Raises errors of the source."""
        found: dict[str, SourceTopic] = {}
        for topic in self._metadata(names):
            if topic["error_code"] in _ABSENT or topic["name"] is None:
                continue
            if topic["error_code"] and topic["error_code"] != Kafka.LEADER_NOT_AVAILABLE:
                raise source_error(topic["error_code"], f"topic {topic['name']!r:.200}")
            found[topic["name"]] = _topic(topic)
        return found

    def hidden_topics(self, names: Sequence[str]) -> set[str]:
        """Return those of the topics that the mirror's user must not describe. Raises errors of the source."""
        answers = self._metadata(names) if names else ()
        return {one["name"] for one in answers if one["error_code"] == Kafka.TOPIC_AUTHORIZATION_FAILED}

    def _metadata(self, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        """Yield the answers about topics, and note the brokers."""
        parts = (
            [None]
            if names is None
            else [names[i : i + TOPICS_PER_REQUEST] for i in range(0, len(names), TOPICS_PER_REQUEST)]
        )
        for part in parts:
            body = {
                "topics": None if part is None else [{"name": name} for name in part],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            }
            answer = self._any("Metadata", body)
            self._note_brokers(answer)
            yield from answer["topics"]

    def broker_of(self, broker_id: int) -> Endpoint | None:
        """Return the address of a broker, from the newest metadata; None: it is away."""
        return self._brokers.get(broker_id)

    def _note_brokers(self, answer: Mapping[str, Any]) -> None:
        brokers = answer["brokers"][:BROKERS_MAX]
        endpoints = {b["node_id"]: endpoint_of(b["host"], b["port"]) for b in brokers}
        self._brokers = {number: endpoint for number, endpoint in endpoints.items() if endpoint is not None}
        known = {*self._brokers.values(), *self._bootstrap}
        for endpoint in [e for e in self._connections if e not in known]:
            self._connections.pop(endpoint).close()

    # -- partitions

    def bounds(
        self, topics: Mapping[str, SourceTopic], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, SourceBounds | SparklogError]:
        """Return the offsets of partitions, or their errors."""
        result, tps = absent_bounds(topics, partitions)
        starts = self._offsets(topics, tps, EARLIEST, 0)
        ends = self._offsets(topics, tps, LATEST, 0)
        stable = self._offsets(topics, tps, LATEST, READ_COMMITTED)
        for tp in tps:
            values = (starts[tp], ends[tp], stable[tp])
            errors = [value for value in values if isinstance(value, SparklogError)]
            numbers = [value for value in values if isinstance(value, int)]
            result[tp] = errors[0] if errors else consistent_bounds(*numbers)
        return result

    def _offsets(
        self, topics: Mapping[str, SourceTopic], tps: Sequence[TopicPartition], timestamp: int, isolation: int
    ) -> dict[TopicPartition, int | SparklogError]:
        def body(group: Sequence[TopicPartition]) -> dict[str, Any]:
            return {
                "replica_id": CONSUMER,
                "isolation_level": isolation,
                "topics": _by_topic(
                    group,
                    "name",
                    lambda tp: {
                        "partition_index": tp.partition,
                        "current_leader_epoch": _epoch(topics, tp),
                        "timestamp": timestamp,
                    },
                ),
            }

        def read(part: Mapping[str, Any]) -> int:
            return int(part["offset"])

        return self._of_leaders("ListOffsets", topics, tps, body, "name", "partition_index", read)

    def epoch_ends(
        self, topics: Mapping[str, SourceTopic], epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochAnswer | SparklogError]:
        """Return the ends of leader epochs, or errors."""

        def body(group: Sequence[TopicPartition]) -> dict[str, Any]:
            return {
                "replica_id": CONSUMER,
                "topics": _by_topic(
                    group,
                    "topic",
                    lambda tp: {
                        "partition": tp.partition,
                        "current_leader_epoch": _epoch(topics, tp),
                        "leader_epoch": epochs[tp],
                    },
                ),
            }

        def read(part: Mapping[str, Any]) -> EpochAnswer:
            return EpochAnswer(part["leader_epoch"], part["end_offset"])

        return self._of_leaders("OffsetForLeaderEpoch", topics, list(epochs), body, "topic", "partition", read)

    def fetch(
        self,
        broker: Endpoint,
        positions: Mapping[TopicPartition, tuple[int, int, int]],
        *,
        wait_ms: int,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch committed records from one broker. `positions`: offset, leader epoch at the source, and leader epoch of
        the record before the offset, by partition. `wait_ms`: longest wait for records. Raises errors of
        connections."""

        def part(tp: TopicPartition) -> dict[str, Any]:
            offset, leader_epoch, last_epoch = positions[tp]
            return {
                "partition": tp.partition,
                "current_leader_epoch": leader_epoch,
                "fetch_offset": offset,
                "last_fetched_epoch": last_epoch,
                "partition_max_bytes": PARTITION_BYTES,
            }

        body = {
            "replica_id": CONSUMER,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "isolation_level": READ_COMMITTED,
            "topics": _by_topic(positions, "topic", part),
            "forgotten_topics_data": [],
        }
        answer = self._to(
            broker,
            "Fetch",
            body,
            timeout_ms=self._timeout_ms + wait_ms,
            bytes_max=FETCH_BYTES + BATCH_BYTES_MAX + HEAD_BYTES_MAX,
        )
        if answer.get("error_code"):
            raise source_error(answer["error_code"], "a fetch")
        fetched: dict[TopicPartition, FetchedPartition] = {}
        for topic in answer["responses"]:
            for p in topic["partitions"]:
                tp = TopicPartition(topic["topic"], p["partition_index"])
                if tp in positions:
                    fetched[tp] = _fetched(tp, p)
        return fetched

    # -- settings and sizes

    def settings(self, names: Sequence[str]) -> dict[str, Mapping[str, object] | SparklogError]:
        """Return the settings in effect of topics, by topic and by Kafka's name, or their errors."""
        result: dict[str, Mapping[str, object] | SparklogError] = {}
        for start in range(0, len(names), TOPICS_PER_REQUEST):
            resources = [
                {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
                for name in names[start : start + TOPICS_PER_REQUEST]
            ]
            answer = self._any("DescribeConfigs", {"resources": resources, "include_synonyms": False})
            for one in answer["results"]:
                if one["error_code"]:
                    about = f"the settings of topic {one['resource_name']!r:.200}"
                    right = f"DescribeConfigs on topic {one['resource_name']!r:.200}"
                    result[one["resource_name"]] = source_error(one["error_code"], about, right)
                    continue
                values = {c["name"]: c["value"] for c in one["configs"] if c["value"] is not None}
                result[one["resource_name"]] = values
        return result

    # -- groups

    def groups(self) -> list[str]:
        """Return the names of all groups of consumers."""
        names: set[str] = set()
        for broker in self._brokers.values():
            answer = self._to(broker, "ListGroups", {"states_filter": [], "types_filter": []})
            if answer["error_code"]:
                raise source_error(answer["error_code"], "its groups")
            names |= {g["group_id"] for g in answer["groups"] if g["protocol_type"] in ("consumer", "")}
        return sorted(names)

    def group_offsets(self, group_id: str) -> dict[TopicPartition, SourceOffset]:
        """Return the committed offsets of a group. Raises errors of the source."""
        try:
            return self._group_offsets(group_id)
        except SparklogError:
            self._coordinators.pop(group_id, None)
            raise

    def _group_offsets(self, group_id: str) -> dict[TopicPartition, SourceOffset]:
        broker = self._coordinators.get(group_id)
        if broker is None:
            broker = self._coordinators[group_id] = self._coordinator(group_id)
        connection = self._connection(broker)
        if connection.has("OffsetFetch", 8):
            asked = {"groups": [{"group_id": group_id, "topics": None}], "require_stable": True}
            answer = self._to(broker, "OffsetFetch", asked)["groups"]
            if len(answer) != 1:
                raise UnknownServerError(f"the source answers about {len(answer)} groups instead of {group_id!r}")
            group = answer[0]
        else:
            group = self._to(broker, "OffsetFetch", {"group_id": group_id, "topics": None, "require_stable": True})
        if group["error_code"]:
            raise source_error(group["error_code"], f"group {group_id!r:.200}", f"Describe on group {group_id!r:.200}")
        offsets = {}
        for topic in group["topics"]:
            for p in topic["partitions"]:
                if not p["error_code"] and p["committed_offset"] >= 0:
                    tp = TopicPartition(topic["name"], p["partition_index"])
                    offsets[tp] = SourceOffset(p["committed_offset"], p["metadata"] or "")
        return offsets

    def _coordinator(self, group_id: str) -> Endpoint:
        answer = self._any("FindCoordinator", {"key": group_id, "key_type": 0, "coordinator_keys": [group_id]})
        found = answer["coordinators"][0] if answer.get("coordinators") else answer
        if found.get("error_code"):
            about = f"the coordinator of group {group_id!r:.200}"
            raise source_error(found["error_code"], about, f"Describe on group {group_id!r:.200}")
        endpoint = endpoint_of(found["host"], found["port"])
        if endpoint is None:
            raise CoordinatorNotAvailableError(
                f"the source's coordinator of group {group_id!r:.200} has the impossible address {found['host']!r:.200}, "
                f"port {found['port']}"
            )
        return endpoint

    # -- requests

    def _of_leaders(
        self,
        name: str,
        topics: Mapping[str, SourceTopic],
        tps: Sequence[TopicPartition],
        body: Callable[[Sequence[TopicPartition]], dict[str, Any]],
        topic_field: str,
        partition_field: str,
        read: Callable[[Mapping[str, Any]], Any],
    ) -> dict[TopicPartition, Any]:
        """Ask the leaders of partitions; return results or errors by partition."""
        missing = LeaderNotAvailableError("the source does not answer about the partition")
        result: dict[TopicPartition, Any] = dict.fromkeys(tps, missing)
        by_leader: dict[Endpoint, list[TopicPartition]] = {}
        for tp in tps:
            leader = self.leader(topics, tp)
            if leader is None:
                result[tp] = LeaderNotAvailableError(f"{tp} has no leader at the source")
            else:
                by_leader.setdefault(leader, []).append(tp)
        for leader, group in by_leader.items():
            try:
                answer = self._to(leader, name, body(group))
            except SparklogError as e:
                result |= dict.fromkeys(group, e)
                continue
            for topic in answer["topics"]:
                for part in topic["partitions"]:
                    tp = TopicPartition(topic[topic_field], part[partition_field])
                    if tp in result:
                        code = part["error_code"]
                        result[tp] = source_error(code, str(tp), _right(tp, "Describe")) if code else read(part)
        return result

    def leader(self, topics: Mapping[str, SourceTopic], tp: TopicPartition) -> Endpoint | None:
        """Return the address of a partition's leader; None: it has none."""
        topic = topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return None
        return self._brokers.get(topic.partitions[tp.partition].leader)

    def _any(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask any broker. Raises the last error if none answers."""
        candidates = list(dict.fromkeys([*self._connections, *self._brokers.values(), *self._bootstrap]))
        failure: SparklogError | None = None
        for endpoint in candidates:
            try:
                return self._to(endpoint, name, body)
            except (BrokerNotAvailableError, RequestTimedOutError) as e:
                failure = e
        assert failure is not None
        raise failure

    def _to(self, endpoint: Endpoint, name: str, body: dict[str, Any], **limits: int) -> dict[str, Any]:
        return self._connection(endpoint).request(name, body, **limits)

    def _connection(self, endpoint: Endpoint) -> KafkaConnection:
        connection = self._connections.get(endpoint)
        if connection is None or connection.is_due:
            if connection is not None:
                connection.close()
            connection = self._connections[endpoint] = self._new_connection(endpoint)
        return connection

    def _new_connection(self, endpoint: Endpoint) -> KafkaConnection:
        try:
            return self._connect(endpoint, self._security, self._timeout_ms)
        except (BrokerNotAvailableError, RequestTimedOutError) as e:
            if endpoint in self._bootstrap:
                raise
            raise type(e)(
                f"{e}; the source advertises this address, which has to be reachable from here (advertised.listeners)"
            ) from e


def _topic(topic: Mapping[str, Any]) -> SourceTopic:
    """Return a topic of a metadata answer. Partitions that the answer leaves out have no leader."""
    by_number = {p["partition_index"]: p for p in topic["partitions"]}
    count = len(by_number)
    partitions = tuple(
        SourcePartition(p["leader_id"], p.get("leader_epoch", -1))
        if (p := by_number.get(i))
        else SourcePartition(-1, -1)
        for i in range(count)
    )
    topic_id = topic.get("topic_id", NO_UUID)
    return SourceTopic(
        topic["name"], "" if topic_id == NO_UUID else topic_id.hex, partitions, topic.get("is_internal", False)
    )


def _epoch(topics: Mapping[str, SourceTopic], tp: TopicPartition) -> int:
    return topics[tp.topic].partitions[tp.partition].leader_epoch


def _right(tp: TopicPartition, operation: str) -> str:
    return f"{operation} on topic {tp.topic!r:.200}"


def _fetched(tp: TopicPartition, part: Mapping[str, Any]) -> FetchedPartition:
    code = part["error_code"]
    diverging = part.get("diverging_epoch")
    other = None
    if diverging is not None and diverging["end_offset"] >= 0:
        other = EpochAnswer(diverging["epoch"], diverging["end_offset"])
    aborted = tuple(AbortedTransaction(a["producer_id"], a["first_offset"]) for a in part["aborted_transactions"] or ())
    stable, end = part["last_stable_offset"], part["high_watermark"]
    stable = stable if stable >= 0 else end
    return FetchedPartition(
        source_error(code, str(tp), _right(tp, "Read")) if code else None,
        code == Kafka.OFFSET_OUT_OF_RANGE,
        end,
        stable,
        other,
        KafkaRecords(part["records"] if part["records"] is not None else memoryview(b""), stable, aborted),
    )


def _by_topic(
    partitions: Iterable[TopicPartition], name: str, part: Callable[[TopicPartition], dict[str, Any]]
) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(part(tp))
    return [{name: topic, "partitions": parts} for topic, parts in topics.items()]
