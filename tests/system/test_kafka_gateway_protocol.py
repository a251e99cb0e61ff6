"""The gateway's answers to unusual requests: each has an answer that ends the client's attempts, or lets it go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.gateway.handlers.names import is_topic_name
from sparklog.gateway.records.small import write_small
from sparklog.gateway.registry import served_apis
from sparklog.kafka.records.batch_v2 import iterate_batches
from sparklog.kafka.records.compression import GZIP, NAMES, ZSTD, compress
from sparklog.kafka.wire.apis import Api
from sparklog.kafka.wire.codec import ELEMENTS_MAX, encoder
from sparklog.kafka.wire.error_answers import REFUSED_ENTRIES_MAX
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import DATA, REQUEST, messages
from sparklog.security.quotas import Entity
from sparklog.settings import MIB
from sparklog.types import TopicPartition
from tests.support.cases import for_each
from tests.support.kafka_bodies import TOPIC, long_bodies, plain_body, unusual_bodies
from tests.support.kafka_wire import KafkaWire, batch_of, batch_of_values, codes_in, fetched, produce_body, produced
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("protocol") / "data", kafka=True) as local:
        yield local


@pytest.fixture
def wire(kafka: LocalBroker) -> Iterator[KafkaWire]:
    with KafkaWire(kafka.kafka_bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def native(kafka: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        yield admin


def compressed(codec: int, count: int = 50) -> bytes:
    """A batch that is compressed with a codec of Kafka."""
    records = write_small(None, [b"value %d" % i for i in range(count)], [0] * count)
    return batch_of(compress(codec, [records]), count, codec=codec)


def codecs_of(result: dict[str, Any]) -> list[str]:
    """The codecs of the batches in a partition's result."""
    return [NAMES[head.codec] for head, _ in iterate_batches(memoryview(result["records"]))]


def test_a_changed_topic_takes_records_in_its_new_form_at_once(
    wire: KafkaWire, native: sparklog.Admin, topic: str
) -> None:
    native.create_topic(topic, schema="id BIGINT")
    assert produced(wire, topic, batch_of_values([b'{"id":1}']))["error_code"] == Kafka.NONE
    native.alter_schema(topic, add_columns="more BIGINT")
    assert produced(wire, topic, batch_of_values([b'{"id":2,"more":2}']))["error_code"] == Kafka.NONE
    assert produced(wire, topic, batch_of_values([b'{"id":3,"others":3}']))["error_code"] == Kafka.INVALID_RECORD
    native.delete_topic(topic)
    native.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    codes = [produced(wire, topic, batch_of_values([b"4"]))["error_code"] for _ in range(2)]
    assert codes[0] in (Kafka.NONE, Kafka.NOT_LEADER_OR_FOLLOWER) and codes[1] == Kafka.NONE


def test_keys_are_checked_by_the_rules_that_a_changed_topic_has_now(
    wire: KafkaWire, native: sparklog.Admin, topic: str
) -> None:
    """The gateway has the topic in its cache, by whose state it would accept the records."""
    native.create_topic(topic, schema="id BIGINT, name STRING", key_columns=["id"])
    without_key, other_key = b'{"name":"x"}', b'{"id":%d}' % next(i for i in range(100) if _partition_of_three(i))
    assert produced(wire, topic, batch_of_values([without_key]))["error_code"] == Kafka.NONE
    changes: tuple[tuple[Callable[[], object], bytes], ...] = (
        (lambda: native.alter_topic(topic, {"cleanup.policy": "compact"}), without_key),
        (lambda: native.add_partitions(topic, 3), other_key),
    )
    for change, value in changes:
        change()
        codes = [produced(wire, topic, batch_of_values([value]))["error_code"] for _ in range(2)]
        assert codes[0] in (Kafka.NOT_LEADER_OR_FOLLOWER, Kafka.INVALID_RECORD)
        assert codes[1] == Kafka.INVALID_RECORD
    assert sum(p.offset for p in native.list_offsets({TopicPartition(topic, 0): "latest"}).values()) == 1


def _partition_of_three(number: int) -> int:
    return partition_for_key(b'{"id":%d}' % number, 3)


def test_gzip_is_answered_as_gzip_or_as_the_topic_says(wire: KafkaWire, topic: str) -> None:
    wire.ask("Metadata", 4, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
    assert produced(wire, topic, compressed(GZIP))["error_code"] == Kafka.NONE
    assert codecs_of(fetched(wire, topic, 4)) == ["gzip"]
    config = {"name": "compression.type", "value": "uncompressed", "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    wire.ask("IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False})
    assert codecs_of(fetched(wire, topic, 4)) == ["none"]


def test_versions_before_zstd_neither_send_nor_get_it(wire: KafkaWire, topic: str) -> None:
    wire.ask("Metadata", 4, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
    assert produced(wire, topic, compressed(ZSTD), 6)["error_code"] == Kafka.UNSUPPORTED_COMPRESSION_TYPE
    assert produced(wire, topic, compressed(ZSTD), 7)["error_code"] == Kafka.NONE
    assert fetched(wire, topic, 9)["error_code"] == Kafka.UNSUPPORTED_COMPRESSION_TYPE
    assert codecs_of(fetched(wire, topic, 10)) == ["zstd"]


def test_new_partitions_are_validated_as_they_are_added(wire: KafkaWire, native: sparklog.Admin, topic: str) -> None:
    native.create_topic(topic, partitions=3)
    for validate_only in (True, False):
        for count in (2, 3, 0, 10**6):
            topics = [{"name": topic, "count": count, "assignments": None}]
            request = {"topics": topics, "timeout_ms": 1_000, "validate_only": validate_only}
            (result,) = wire.ask("CreatePartitions", 0, request)["results"]
            assert result["error_code"] == Kafka.INVALID_PARTITIONS, (count, validate_only)
    request = {"topics": [{"name": topic, "count": 4, "assignments": None}], "timeout_ms": 1_000, "validate_only": True}
    assert wire.ask("CreatePartitions", 0, request)["results"][0]["error_code"] == Kafka.NONE
    assert native.describe_topic(topic).partitions == 3


def test_replicas_of_new_partitions_are_where_the_client_places_them(
    wire: KafkaWire, native: sparklog.Admin, topic: str
) -> None:
    native.create_topic(topic, partitions=1)

    def code(*replicas: list[int], count: int = 3, validate_only: bool) -> int:
        topics = [{"name": topic, "count": count, "assignments": [{"broker_ids": ids} for ids in replicas]}]
        request = {"topics": topics, "timeout_ms": 30_000, "validate_only": validate_only}
        return int(wire.ask("CreatePartitions", 3, request)["results"][0]["error_code"])

    for validate_only in (True, False):
        for refused in ([], [[0]], [[0], [0], [0]], [[0], [1]], [[0], [0, 0]], [[0], []], [[0], [-1]]):
            assert code(*refused, validate_only=validate_only) == Kafka.INVALID_REPLICA_ASSIGNMENT, refused
        assert code([0], count=1, validate_only=validate_only) == Kafka.INVALID_PARTITIONS
    assert code([0], [0], validate_only=True) == Kafka.NONE and native.describe_topic(topic).partitions == 1
    assert code([0], [0], validate_only=False) == Kafka.NONE and native.describe_topic(topic).partitions == 3


def test_a_topic_is_validated_as_it_is_created(wire: KafkaWire, topic: str) -> None:
    def code(validate_only: bool, factor: int, *replicas: list[int]) -> int:
        assignment = [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(replicas)]
        count = -1 if replicas else 1
        one = {"name": topic, "num_partitions": count, "replication_factor": factor, "assignments": assignment}
        request = {"topics": [{**one, "configs": []}], "timeout_ms": 30_000, "validate_only": validate_only}
        return int(wire.ask("CreateTopics", 7, request)["topics"][0]["error_code"])

    for validate_only in (True, False):
        assert code(validate_only, 2) == Kafka.INVALID_REPLICATION_FACTOR
        for refused in ([[7]], [[0], []], [[0, 0]], [[-1]]):
            assert code(validate_only, -1, *refused) == Kafka.INVALID_REPLICA_ASSIGNMENT, refused
    assert code(True, -1, [0]) == Kafka.NONE


def test_topics_are_described_page_by_page(wire: KafkaWire, native: sparklog.Admin, topic: str) -> None:
    names = [f"{topic}-{i}" for i in range(3)]
    for i, name in enumerate(names):
        native.create_topic(name, partitions=i + 1)

    def pages(topics: list[str], limit: int, first: str | None = None) -> list[list[Any]]:
        """The partitions of each page, and the error of each topic that cannot be described."""
        cursor = None if first is None else {"topic_name": first, "partition_index": 0}
        found: list[list[Any]] = []
        while cursor is not None or not found:
            body = {"topics": [{"name": n} for n in topics], "response_partition_limit": limit, "cursor": cursor}
            answer = wire.ask("DescribeTopicPartitions", 0, body)
            cursor = answer["next_cursor"]
            found.append(
                [(t["name"], p["partition_index"]) for t in answer["topics"] for p in t["partitions"]]
                + [(t["name"], Kafka(t["error_code"])) for t in answer["topics"] if t["error_code"]]
            )
        return found

    all_partitions = [(name, p) for i, name in enumerate(names) for p in range(i + 1)]
    assert pages([*reversed(names), *names], 2_000) == [all_partitions]
    for limit in (-1, 1, 2, 3, 5):
        size = max(limit, 1)
        parts = [all_partitions[i : i + size] for i in range(0, len(all_partitions), size)]
        assert pages(names, limit) == parts
    assert [part for page in pages([], 2, names[0]) for part in page if part[0] in names] == all_partitions
    assert pages([names[2], "missing", "z/name"], 9, names[1]) == [
        [(names[2], p) for p in range(3)] + [("z/name", Kafka.INVALID_TOPIC_EXCEPTION)]
    ]
    assert pages(["missing"], 9) == [[("missing", Kafka.UNKNOWN_TOPIC_OR_PARTITION)]]
    body = {"topics": [{"name": topic}], "response_partition_limit": 9}
    before = {**body, "cursor": {"topic_name": "", "partition_index": -1}}
    assert list(codes_in(wire.ask("DescribeTopicPartitions", 0, before))) == [Kafka.INVALID_REQUEST]


def test_resources_with_settings_are_listed(wire: KafkaWire, native: sparklog.Admin, topic: str) -> None:
    native.create_topic(topic)
    config = {"name": "consumer.session.timeout.ms", "value": "50000", "config_operation": 0}
    resource = {"resource_type": 32, "resource_name": f"group-{topic}", "configs": [config]}
    assert set(codes_in(wire.ask("IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False}))) == {
        0
    }

    def listed(*kinds: int, version: int = 1) -> set[tuple[int, str]]:
        answer = wire.ask("ListConfigResources", version, {"resource_types": list(kinds)})
        assert answer["error_code"] == Kafka.NONE
        return {(r.get("resource_type", 16), r["resource_name"]) for r in answer["config_resources"]}

    expected = {(2, topic), (4, "0"), (8, "0"), (32, f"group-{topic}")}
    assert expected <= listed() and {kind for kind, _ in listed()} == {2, 4, 8, 32}
    assert listed(4) == {(4, "0")} and listed(32) == {(32, f"group-{topic}")}
    assert listed(16) == listed(version=0) == set()
    assert wire.ask("ListConfigResources", 1, {"resource_types": [3]})["error_code"] == Kafka.UNSUPPORTED_VERSION


@for_each("api", [served.api for served in served_apis().values()], ids=lambda api: str(api.name))
def test_every_field_of_every_request_gets_an_answer(kafka: LocalBroker, api: Api) -> None:
    creation = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True}
    before = len(kafka.log)
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        for version in sorted({api.first, api.last}):
            wire.ask("Metadata", 4, creation)  # the requests before have deleted it
            for path, value, body in unusual_bodies(api.name, version):
                if body.get("acks") == 0:
                    continue  # has no answer
                try:
                    codes = set(codes_in(wire.ask(api.name, version, body)))
                except (ConnectionError, TimeoutError) as e:
                    raise AssertionError(f"version {version}, {path} = {value!r:.60}: {e}") from e
                assert Kafka.UNKNOWN_SERVER_ERROR not in codes, (version, path, value)
                if path.endswith("name") and isinstance(value, str) and not is_topic_name(value):
                    assert Kafka.UNKNOWN_TOPIC_OR_PARTITION not in codes, (version, path, value)
    assert "disconnecting" not in kafka.log[before:], "the broker has closed the gateway's connection"


LONG = [("Produce", 9), ("Fetch", 11), ("CreateTopics", 5)]


@for_each("api, version", LONG)
def test_requests_with_too_many_entries_are_refused_by_name(wire: KafkaWire, api: str, version: int) -> None:
    check_long_requests(wire, api, version)


@pytest.mark.nightly
@for_each("api", [served.api for served in served_apis().values()], ids=lambda api: str(api.name))
def test_requests_of_every_api_with_too_many_entries_are_refused_by_name(wire: KafkaWire, api: Api) -> None:
    for version in sorted({api.first, api.last}):
        check_long_requests(wire, api.name, version)


def check_long_requests(wire: KafkaWire, api: str, version: int) -> None:
    """Check that lists of any depth beyond the limit are refused on the open connection."""
    for path, body in long_bodies(api, version, ELEMENTS_MAX + 1):
        wire.send(api, version, body)
        codes = set(codes_in(wire.receive(api, version, elements_max=REFUSED_ENTRIES_MAX))) - {Kafka.NONE}
        assert codes == {Kafka.INVALID_TOPIC_EXCEPTION if api == "Metadata" else Kafka.INVALID_REQUEST}, path


@for_each("api", [served.api for served in served_apis().values()], ids=lambda api: str(api.name))
def test_versions_that_are_not_served_are_refused_by_name(wire: KafkaWire, api: Api) -> None:
    known = messages()[REQUEST, api.name].versions
    for version in range(known.first, known.last + 1):
        if not api.first <= version <= api.last:
            codes = set(codes_in(wire.ask(api.name, version, plain_body(api.name, version))))
            assert codes - {Kafka.NONE} == {Kafka.UNSUPPORTED_VERSION}, version
    answer = wire.ask("ApiVersions", 0, {})
    reported = {key["api_key"]: (key["min_version"], key["max_version"]) for key in answer["api_keys"]}
    assert reported[api.key] == (api.advertised_from, api.last)


@for_each("client_id", ["a\tb", "\ufeffx", "\u202eabc", "\0", "x" * 300, "é", b"\xff\xfe", "", None], ids=ascii)
def test_clients_with_any_client_id_are_served(kafka: LocalBroker, client_id: str | bytes | None) -> None:
    with KafkaWire(kafka.kafka_bootstrap_servers, client_id=client_id) as wire:
        answer = wire.ask("Metadata", 4, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True})
        assert answer["topics"][0]["error_code"] == Kafka.NONE


def test_headers_with_keys_of_any_bytes_are_refused_by_name(wire: KafkaWire, topic: str) -> None:
    wire.ask("Metadata", 4, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
    plain, header = b"\x0c\0\0\0\1\1\0", b"\2\2\xff\2v"
    records = plain + bytes([2 * (5 + len(header))]) + b"\0\0\2\1\1" + header
    result = produced(wire, topic, batch_of(records, 2))
    assert result["error_code"] == Kafka.INVALID_RECORD
    assert [(one["batch_index"], "UTF-8" in one["batch_index_error_message"]) for one in result["record_errors"]] == [
        (1, True)
    ]


def test_large_requests_of_groups_are_answered(wire: KafkaWire, topic: str) -> None:
    large = bytes(5 * MIB)
    joined = wire.ask_coordinator("JoinGroup", 3, join_body(topic, large))
    assert joined["error_code"] == Kafka.NONE and joined["members"][0]["metadata"] == large
    assignments = [{"member_id": joined["member_id"], "assignment": large}]
    body = {"group_id": topic, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
    assert wire.ask("SyncGroup", 0, {**body, "assignments": assignments})["assignment"] == large
    refused = wire.ask_coordinator("JoinGroup", 3, join_body(topic + "x", bytes(20 * MIB)))
    assert refused["error_code"] == Kafka.GROUP_MAX_SIZE_REACHED
    wire.ask("LeaveGroup", 0, {"group_id": topic, "member_id": joined["member_id"]})
    wire.ask("CreateTopics", 2, creation_body(topic, 2_000))
    partitions = [
        {"partition_index": i, "committed_offset": i, "committed_metadata": "m" * 4_000} for i in range(2_000)
    ]
    answer = wire.ask_coordinator(
        "OffsetCommit", 2, {"group_id": topic, "topics": [{"name": topic, "partitions": partitions}]}
    )
    assert set(codes_in(answer)) == {Kafka.NONE}
    last = wire.ask_coordinator(
        "OffsetFetch", 5, {"group_id": topic, "topics": [{"name": topic, "partition_indexes": [1_999]}]}
    )
    assert last["topics"][0]["partitions"][0]["committed_offset"] == 1_999


def join_body(group: str, metadata: bytes) -> dict[str, Any]:
    """A JOIN_GROUP request of a first member."""
    times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    protocols = [{"name": "range", "metadata": metadata}]
    return {"group_id": group, "member_id": "", "protocol_type": "consumer", "protocols": protocols, **times}


def creation_body(topic: str, partitions: int) -> dict[str, Any]:
    """A CREATE_TOPICS request."""
    one = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [one], "timeout_ms": 30_000, "validate_only": False}


def note_error(failed: list[Any], error: Any, _: Any) -> None:
    """Keep the error of a record."""
    failed.append(error)


def test_writes_to_internal_topics_are_refused_before_they_exist(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data", kafka=True) as local:
        for name in ("__consumer_offsets", "__transaction_state", "__other"):
            failed: list[Any] = []
            producer = Producer({"bootstrap.servers": local.kafka_bootstrap_servers, "log_level": 0})
            producer.produce(name, b"x", on_delivery=partial(note_error, failed))
            assert producer.flush(PATIENCE_S) == 0
            assert failed[0].code() in (KafkaError.TOPIC_EXCEPTION, KafkaError._UNKNOWN_TOPIC), name


def test_transactional_ids_that_no_coordinator_takes_end_the_producer(kafka: LocalBroker, wire: KafkaWire) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.kafka_bootstrap_servers, "transactional.id": "x" * 2_000, "log_level": 0}
    )
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(PATIENCE_S)
    assert raised.value.args[0].fatal()
    assert "2000 characters" in str(raised.value)
    for text in ("", "x" * 2_000):
        identity = {"transactional_id": text, "producer_id": 1, "producer_epoch": 0}
        assert wire.ask("EndTxn", 3, {**identity, "committed": True})["error_code"] == Kafka.INVALID_REQUEST
        assert (
            wire.ask_coordinator("AddOffsetsToTxn", 3, {**identity, "group_id": "g"})["error_code"]
            == Kafka.INVALID_REQUEST
        )


def test_settings_that_only_kafka_has_are_accepted_at_their_defaults(wire: KafkaWire, topic: str) -> None:
    values = {"remote.log.delete.on.disable": "false", "flush.ms": str(2**63 - 1), "retention.ms": "1000"}
    creation = creation_body(topic, 1)
    creation["topics"][0]["configs"] = [{"name": name, "value": value} for name, value in values.items()]
    assert set(codes_in(wire.ask("CreateTopics", 4, creation))) == {Kafka.NONE}
    resource = {"resource_type": 2, "resource_name": topic}
    for name, value, code in (
        ("remote.log.delete.on.disable", "false", Kafka.NONE),
        ("remote.log.delete.on.disable", "true", Kafka.INVALID_CONFIG),
    ):
        for api, more in (("AlterConfigs", {}), ("IncrementalAlterConfigs", {"config_operation": 0})):
            configs = [{"name": name, "value": value, **more}]
            answer = wire.ask(api, 0, {"resources": [{**resource, "configs": configs}], "validate_only": False})
            assert set(codes_in(answer)) == {code}
            assert (name in (answer["responses"][0]["error_message"] or "")) == bool(code)
    described = wire.ask("DescribeConfigs", 1, {"resources": [{**resource, "configuration_keys": list(values)}]})
    shown = {entry["name"]: entry["value"] for entry in described["results"][0]["configs"]}
    assert shown == values | {"retention.ms": shown["retention.ms"]}
    throttle, broker = "leader.replication.throttled.rate", {"resource_type": 4, "resource_name": "0"}
    for operation, code in ((1, Kafka.NONE), (0, Kafka.INVALID_CONFIG)):  # deletion, as after each reassignment
        configs = [{"name": throttle, "value": "1", "config_operation": operation}]
        change = {"resources": [{**broker, "configs": configs}], "validate_only": False}
        assert set(codes_in(wire.ask("IncrementalAlterConfigs", 0, change))) == {code}


def test_a_topics_limit_is_that_of_the_batch_in_kafkas_format(wire: KafkaWire, topic: str) -> None:
    limit = 20_000
    creation = creation_body(topic, 1)
    creation["topics"][0]["configs"] = [{"name": "max.message.bytes", "value": str(limit)}]
    assert set(codes_in(wire.ask("CreateTopics", 4, creation))) == {Kafka.NONE}
    overhead = len(batch_of_values([bytes(limit)])) - limit
    for values in ([bytes(limit - overhead)], [b""] * ((limit - 70) // 7 - 1_000)):
        batch = batch_of_values(values)
        assert len(batch) <= limit
        result = produced(wire, topic, batch)
        assert result["error_code"] == Kafka.NONE, result
    refused = produced(wire, topic, batch_of_values([bytes(limit - overhead + 1)]))
    assert refused["error_code"] == Kafka.MESSAGE_TOO_LARGE
    assert f"max.message.bytes of topic '{topic}' is {limit}" in refused["error_message"]
    assert set(codes_in(fetched(wire, topic))) == {Kafka.NONE}


def test_quotas_apply_to_clients_behind_the_gateway(kafka: LocalBroker, native: sparklog.Admin, topic: str) -> None:
    native.create_topic(topic)
    limited = Entity(None, topic)
    native.alter_client_quotas(limited, {"producer_byte_rate": 20_000.0, "consumer_byte_rate": 20_000.0})
    batch = produce_body(topic, batch_of_values([bytes(200_000)]))
    with (
        KafkaWire(kafka.kafka_bootstrap_servers, client_id=topic) as bulk,
        KafkaWire(kafka.kafka_bootstrap_servers, client_id="other") as other,
    ):
        throttled = [bulk.ask("Produce", 9, batch)["throttle_time_ms"] for _ in range(2)]
        assert throttled[-1] > 0
        assert other.ask("Produce", 9, batch)["throttle_time_ms"] == 0
        assert fetched(other, topic)["error_code"] == Kafka.NONE
    groups = native.describe_client_quotas().throttled
    assert [(group.quota, group.client_id) for group in groups] == [("producer_byte_rate", topic)]
    native.alter_client_quotas(limited, {"producer_byte_rate": None, "consumer_byte_rate": None})


def test_topics_are_named_by_their_ids(wire: KafkaWire, native: sparklog.Admin, topic: str) -> None:
    """The newest versions name topics by ids alone. The gateway has seen neither the first nor the second topic."""
    records, ids = batch_of_values([b"value"]), list[UUID]()
    for _ in range(2):
        native.create_topic(topic)
        ids.append(UUID(native.describe_topic(topic).topic_id))
        assert set(codes_by_id(wire, ids[-1], records)) == {Kafka.NONE}
        native.delete_topic(topic)
    assert set(codes_by_id(wire, ids[0], records)) == {Kafka.UNKNOWN_TOPIC_ID}
    native.create_topic(topic)
    for earlier in ids:  # the name exists
        assert set(codes_by_id(wire, earlier, records)) == {Kafka.UNKNOWN_TOPIC_ID}
    assert fetched(wire, topic)["high_watermark"] == 0


def codes_by_id(wire: KafkaWire, topic_id: UUID, records: bytes) -> list[int]:
    """The results for partition 0 of the topic with this id, of each API that names topics by id, in all versions."""
    written = {"index": 0, "records": [records]}
    read = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    committed = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    group = {"group_id": "by-id", "topics": [{"topic_id": topic_id, "partition_indexes": [0]}]}
    produce = {"acks": -1, "timeout_ms": 10_000, "topic_data": [{"topic_id": topic_id, "partition_data": [written]}]}
    fetch = {
        "max_wait_ms": 0, "min_bytes": 0, "topics": [{"topic_id": topic_id, "partitions": [read]}],
        "forgotten_topics_data": [],
    }  # fmt: skip
    commit = {"group_id": "by-id", "topics": [{"topic_id": topic_id, "partitions": [committed]}]}
    requests: list[tuple[str, int, dict[str, Any]]] = [
        ("Produce", 13, produce),
        *(("Fetch", v, fetch) for v in range(13, 19)),
        ("OffsetCommit", 10, commit),
    ]
    answers = [wire.ask(*request) for request in [*requests, ("OffsetFetch", 10, {"groups": [group]})]]
    assert {t["topic_id"] for a in answers for t in a.get("responses", a.get("topics", ()))} == {topic_id}
    assert answers[-1]["groups"][0]["topics"][0]["topic_id"] == topic_id
    answers[-1] = answers[-1]["groups"][0]["topics"][0]
    return [code for answer in answers for code in codes_in(answer.get("responses", answer.get("topics", answer)))]


def test_offsets_are_deleted_unless_a_member_subscribes(wire: KafkaWire, native: sparklog.Admin, topic: str) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        native.create_topic(name)
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    commit = {"group_id": topic, "topics": [{"name": name, "partitions": [partition]} for name in (topic, other)]}
    assert set(codes_in(wire.ask_coordinator("OffsetCommit", 9, commit))) == {Kafka.NONE}
    subscription = b"\0\0" + b"".join(encoder(DATA, "ConsumerProtocolSubscription", 0)({"topics": [other]}))
    join = {
        "group_id": topic, "session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": subscription}],
    }  # fmt: skip
    member = wire.ask_coordinator("JoinGroup", 2, join)
    assert member["error_code"] == Kafka.NONE
    names = [topic, other, "no/name"]
    delete = {"group_id": topic, "topics": [{"name": n, "partitions": [{"partition_index": 0}]} for n in names]}
    answer = wire.ask_coordinator("OffsetDelete", 0, delete)
    assert list(codes_in(answer)) == [
        Kafka.NONE, Kafka.NONE, Kafka.GROUP_SUBSCRIBED_TO_TOPIC, Kafka.INVALID_TOPIC_EXCEPTION
    ]  # fmt: skip
    assert [(tp.topic, o.offset) for tp, o in native.list_group_offsets(topic).items()] == [(other, 0)]
    assert (
        wire.ask_coordinator("OffsetDelete", 0, delete | {"group_id": "none"})["error_code"] == Kafka.GROUP_ID_NOT_FOUND
    )
