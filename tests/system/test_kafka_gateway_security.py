"""Kafka's clients with passwords and certificates: the broker knows each of them, behind the gateway."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import admin as confluent_admin
from confluent_kafka.admin import AdminClient

from sparklog import Admin, read_table
from sparklog.gateway.registry import HANDLERS
from sparklog.kafka.wire.codec import decoder, encoder
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import REQUEST, RESPONSE, messages
from sparklog.security.acl_records import AclFilter
from sparklog.security.acls import Operation, ResourceType
from sparklog.security.principals import user
from tests.support.kafka_wire import codes_in
from tests.support.waiting import PATIENCE_S, until
from tests.system.kafka_requests_about import LAST_VERSION_ONLY, REQUESTS_ABOUT, Names
from tests.system.secure_broker import PASSWORD, now, write_identity
from tests.system.secure_gateway import SecureGateway, allow

LIFETIME_S = 15.0
"""Lifetime of a short certificate."""
kafka: Any = confluent_admin
"""The administration of librdkafka, whose types are incomplete."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    broker = SecureGateway(tmp_path_factory.mktemp("kafka-security"))
    with Admin(broker.addresses["LOCAL"]) as admin:
        admin.set_user_password("alice", PASSWORD, ["SCRAM-SHA-256", "SCRAM-SHA-512"])
        for name in ("mine", "certified"):
            admin.create_topic(name)
        admin.create_topic("others")
        admin.create_acls(
            [
                *allow("alice", ResourceType.TOPIC, "mine", Operation.READ, Operation.WRITE),
                *allow("alice", ResourceType.GROUP, "mine", Operation.READ),
                *allow("CN=robot", ResourceType.TOPIC, "certified", Operation.WRITE),
            ]
        )
    yield broker
    assert broker.stop() == 0, broker.process.stderr
    assert "Traceback" not in broker.process.stderr, broker.process.stderr


def outcome(settings: dict[str, Any], topic: str) -> KafkaError | None:
    """Outcome of a record."""
    found: list[Any] = []
    producer = Producer(settings | {"message.timeout.ms": int(PATIENCE_S * 1000), "error_cb": found.append})
    producer.produce(topic, b"v", on_delivery=lambda error, _: found.append(error))
    until(lambda: producer.poll(0.05) or found, "an outcome")
    if found[0] is not None:
        producer.purge()
    return found[0]


def test_the_right_to_write_to_a_topic_is_sufficient_for_its_refused_records(secure: SecureGateway) -> None:
    settings = secure.settings("SASL")
    with Admin(secure.addresses["LOCAL"]) as admin:
        admin.create_topic("typed", 1, "id BIGINT", configs={"kafka.refused.records": "topic"})
        admin.create_acls(allow("alice", ResourceType.TOPIC, "typed", Operation.WRITE))
    assert outcome(settings, "typed") is None
    refused = outcome(settings, "typed.refused")
    assert refused is not None and refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    rows = read_table(secure.addresses["LOCAL"], "typed.refused").to_pylist()
    assert [(row["value"], row["offset"]) for row in rows] == [(b"v", 0)]


@pytest.mark.parametrize(
    ("listener", "more"),
    [
        ("SASL", {}),
        ("SASL", {"sasl_mechanism": "SCRAM-SHA-256"}),
        ("BOTH", {}),
        ("BOTH", {"sasl_mechanism": "PLAIN"}),
    ],
)
def test_a_user_has_exactly_the_rights_of_its_acls(secure: SecureGateway, listener: str, more: dict[str, str]) -> None:
    settings = secure.settings(listener, **more)
    assert outcome(settings, "mine") is None
    denied = outcome(settings, "others")
    assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    topics = AdminClient(settings).list_topics(timeout=PATIENCE_S).topics
    assert "mine" in topics and "others" not in topics


def test_a_wrong_password_is_refused(secure: SecureGateway) -> None:
    for listener, more in (("SASL", {}), ("BOTH", {"sasl_mechanism": "PLAIN"})):
        refused = outcome(secure.settings(listener, sasl_password="wrong", **more), "mine")
        assert refused is not None and refused.code() == KafkaError._AUTHENTICATION


def test_plain_without_tls_is_refused(secure: SecureGateway) -> None:
    refused = outcome(secure.settings("SASL", sasl_mechanism="PLAIN"), "mine")
    assert refused is not None and refused.code() == KafkaError._AUTHENTICATION


def test_a_client_is_whom_its_certificate_names(secure: SecureGateway) -> None:
    mine = write_identity(secure.directory, "robot", secure.authority.issue("robot", (), now(), 1, broker=False))
    settings = secure.settings("MUTUAL", **mine)
    assert outcome(settings, "certified") is None
    denied = outcome(settings, "mine")
    assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_without_a_certificate_connections_are_refused(secure: SecureGateway) -> None:
    refused = outcome(secure.settings("MUTUAL"), "certified")
    assert refused is not None and refused.code() in (
        KafkaError._SSL,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    )


def test_groups_are_for_those_that_may_read_them(secure: SecureGateway) -> None:
    assert outcome(secure.settings("SASL"), "mine") is None
    for group, code in (("mine", None), ("theirs", KafkaError.GROUP_AUTHORIZATION_FAILED)):
        settings = secure.settings("SASL", group_id=group, auto_offset_reset="earliest")
        consumer = Consumer(settings)
        consumer.subscribe(["mine"])
        found: list[Any] = []

        def look(consumer: Consumer = consumer, found: list[Any] = found) -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                found.append(message.error())
            return bool(found)

        until(look, f"an answer for the group {group}")
        assert (found[0].code() if found[0] is not None else None) == code
        consumer.close()


def test_the_audit_log_has_the_clients_user_and_listener(secure: SecureGateway) -> None:
    outcome(secure.settings("SASL"), "others")
    audit = secure.directory / "data" / "audit.log"
    words = ("kafka.SASL", "alice", "127.0.0.1")  # the other tests' users have lines there, too
    until(
        lambda: audit.exists() and any(all(w in line for w in words) for line in audit.read_text().splitlines()),
        "alice's line",
    )


def test_a_renewed_certificate_is_used_without_a_restart(secure: SecureGateway) -> None:
    host, _, port = secure.kafka["BOTH"].rpartition(":")
    before = ssl.get_server_certificate((host, int(port)))
    identity = secure.authority.issue("broker", ("localhost", "127.0.0.1"), now(), 1, broker=True)
    write_identity(secure.directory, "broker", identity)
    until(lambda: ssl.get_server_certificate((host, int(port))) != before, "the new certificate")
    assert outcome(secure.settings("BOTH"), "mine") is None


@pytest.mark.nightly
def test_a_client_is_disconnected_when_its_certificate_expires(secure: SecureGateway) -> None:
    body: dict[str, Any] = {"topics": []}
    clients: list[RawClient] = []

    def is_served() -> bool:  # on a slow machine a certificate may expire before the first answer
        clients.append(RawClient(secure, "short", 10 / 86_400))
        return bool(clients[-1].ask("Metadata", body, 1))  # the gateway answers ApiVersions without the broker

    until(is_served, "an answer", passing=(OSError,))

    def is_ended() -> bool:
        try:
            return not clients[-1].ask("Metadata", body, 1)
        except OSError:
            return True

    until(is_ended, "the end of the connection")
    for client in clients:
        client.__exit__()
    until(lambda: "the certificate of the client has expired" in secure.process.stderr, "the reason in the log")


class RawClient:
    """A connection with a certificate of the name `name`, valid for `days`, for requests as bytes."""

    def __init__(self, secure: SecureGateway, name: str, days: float = 1) -> None:
        files = write_identity(secure.directory, name, secure.authority.issue(name, (), now(), days, broker=False))
        context = ssl.create_default_context(cafile=str(secure.ca))
        context.load_cert_chain(files["ssl.certificate.location"], files["ssl.key.location"])
        host, _, port = secure.kafka["MUTUAL"].rpartition(":")
        plain = socket.create_connection((host, int(port)), PATIENCE_S)
        self._socket = context.wrap_socket(plain, server_hostname="localhost")
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, api: str, body: dict[str, Any], version: int) -> bytes:
        """Send a request, and return the body of the answer; empty: the connection has ended."""
        message = messages()[REQUEST, api]
        tags = b"\0" if message.is_flexible(version) else b""
        head = struct.pack(">hhih", message.api_key, version, 7, -1) + tags
        data = head + b"".join(bytes(part) for part in encoder(REQUEST, api, version)(body))
        self._socket.sendall(struct.pack(">i", len(data)) + data)
        size = self._file.read(4)
        return b"" if not size else self._file.read(int.from_bytes(size, "big"))[4 + len(tags) :]

    def call(self, api: str, body: dict[str, Any], version: int) -> dict[str, Any]:
        """Send a request, and return the decoded answer."""
        return decoder(RESPONSE, api, version)(memoryview(self.ask(api, body, version)))


EXISTING = Names("secret", uuid4(), "crew", "member", "cash")
MISSING = Names("nosuch", UUID(int=77), "none", "nobody", "noid")
BEFORE_ALL = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
"""APIs that name nothing."""


def furnish(secure: SecureGateway) -> None:
    """Create the typed topic of EXISTING."""
    with Admin(secure.addresses["LOCAL"]) as admin:
        admin.create_topic(EXISTING.topic, 2, pa.schema([("salary", pa.int64())]))


def warm_up(root: RawClient) -> Names:
    """Let a client with all permissions fill the gateway's caches, join the group and open a transaction. Returns the
    names with the ids that it has got."""
    metadata = root.call("Metadata", REQUESTS_ABOUT["Metadata"][0](EXISTING), 12)
    names = EXISTING._replace(topic_id=metadata["topics"][0]["topic_id"])
    produce = REQUESTS_ABOUT["Produce"][2](names)
    del produce["topic_data"][0]["partition_data"][1:]  # an error would empty the cache
    produced = root.call("Produce", produce, 8)
    assert produced["responses"][0]["partition_responses"][0]["error_code"] == 0
    assert root.call("InitProducerId", REQUESTS_ABOUT["InitProducerId"][0](names), 4)["error_code"] == 0
    joined = root.call("JoinGroup", REQUESTS_ABOUT["JoinGroup"][0](names), 2)
    assert joined["error_code"] == 0
    names = names._replace(member=joined["member_id"])
    assignment = {"member_id": names.member, "assignment": b"what the member reads"}
    sync = REQUESTS_ABOUT["SyncGroup"][0](names) | {"assignments": [assignment]}
    assert root.call("SyncGroup", sync, 0)["assignment"] == b"what the member reads"
    return names


def _as_bytes(names: Names) -> list[bytes]:
    return [name.bytes if isinstance(name, UUID) else str(name).encode() for name in names]


def answers(client: RawClient, api: str, names: Names, like: Names) -> list[bytes]:
    """Return the answers to all requests about `names`, in the first and the last version, with the names of `like` in
    place of `names`."""
    found = []
    first, last = messages()[REQUEST, api].served
    for request in REQUESTS_ABOUT[api]:
        for version in (last,) if request in LAST_VERSION_ONLY else (first, last):
            answer = client.ask(api, request(names), version)
            for name, other in zip(_as_bytes(names), _as_bytes(like), strict=True):
                answer = answer.replace(name, other)
            found.append(answer)
    return found


def test_changes_need_the_right_of_the_operation_not_that_to_describe(secure: SecureGateway) -> None:
    """Also when nothing is changed: with `validate_only`, and before a transaction."""
    rights = {
        "reader": (Operation.DESCRIBE, Operation.READ),
        "changer": (Operation.ALTER_CONFIGS, Operation.ALTER, Operation.CREATE, Operation.WRITE),
    }
    with Admin(secure.addresses["LOCAL"]) as admin:
        admin.create_topic("owned")
        for name, operations in rights.items():
            for topic in ("owned", "planned"):
                admin.create_acls(allow(f"CN={name}", ResourceType.TOPIC, topic, *operations))
    configs = [{"name": "retention.ms", "value": "5", "config_operation": 0}]
    resources = [{"resource_type": 2, "resource_name": "owned", "configs": configs}]
    partitions = {"topics": [{"name": "owned", "count": 3, "assignments": None}], "timeout_ms": 30_000}
    created = {"name": "planned", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    requests: list[tuple[str, int, dict[str, Any]]] = [
        ("AlterConfigs", 1, {"resources": resources, "validate_only": True}),
        ("IncrementalAlterConfigs", 0, {"resources": resources, "validate_only": True}),
        ("CreatePartitions", 1, {**partitions, "validate_only": True}),
        ("CreateTopics", 4, {"topics": [created], "timeout_ms": 30_000, "validate_only": True}),
        ("Produce", 8, REQUESTS_ABOUT["Produce"][2](EXISTING._replace(topic="owned"))),
        ("AddPartitionsToTxn", 2, REQUESTS_ABOUT["AddPartitionsToTxn"][0](EXISTING._replace(topic="owned"))),
    ]
    with RawClient(secure, "reader") as reader, RawClient(secure, "changer") as changer:
        for api, version, body in requests:
            refused = set(codes_in(reader.call(api, body, version)))
            assert refused == {Kafka.TOPIC_AUTHORIZATION_FAILED}, api
            assert Kafka.TOPIC_AUTHORIZATION_FAILED not in set(codes_in(changer.call(api, body, version))), api
            if "validate_only" in body:
                assert set(codes_in(changer.call(api, body, version))) == {Kafka.NONE}, api


def test_acls_and_users_are_administered_with_kafkas_clients(secure: SecureGateway) -> None:
    files = write_identity(secure.directory, "root", secure.authority.issue("root", (), now(), 1, broker=False))
    root: Any = AdminClient(secure.settings("MUTUAL", **files))
    mine = kafka.ResourcePatternType.LITERAL
    acl = kafka.AclBinding(
        kafka.ResourceType.TOPIC,
        "managed",
        mine,
        "User:bob",
        "*",
        kafka.AclOperation.READ,
        kafka.AclPermissionType.ALLOW,
    )
    like = kafka.AclBindingFilter(
        kafka.ResourceType.ANY,
        None,
        kafka.ResourcePatternType.ANY,
        "User:bob",
        None,
        kafka.AclOperation.ANY,
        kafka.AclPermissionType.ANY,
    )
    assert root.create_acls([acl])[acl].result(PATIENCE_S) is None
    assert root.describe_acls(like).result(PATIENCE_S) == [acl]
    with Admin(secure.addresses["LOCAL"]) as admin:
        assert [(a.name, a.operation) for a in admin.describe_acls(AclFilter(principal=user("bob")))] == [
            ("managed", Operation.READ)
        ]
    assert root.delete_acls([like])[like].result(PATIENCE_S) == [acl]
    assert root.describe_acls(like).result(PATIENCE_S) == []
    with pytest.raises(KafkaException, match="does not exist for resource type"):
        wrong = kafka.AclBinding(
            kafka.ResourceType.TOPIC,
            "t",
            mine,
            "User:b",
            "*",
            kafka.AclOperation.CLUSTER_ACTION,
            kafka.AclPermissionType.ALLOW,
        )
        root.create_acls([wrong])[wrong].result(PATIENCE_S)
    mechanism = kafka.ScramMechanism.SCRAM_SHA_512
    change = kafka.UserScramCredentialUpsertion("bob", kafka.ScramCredentialInfo(mechanism, 8192), b"secret of bob")
    assert root.alter_user_scram_credentials([change])["bob"].result(PATIENCE_S) is None
    (info,) = root.describe_user_scram_credentials(["bob"])["bob"].result(PATIENCE_S).scram_credential_infos
    assert (info.mechanism, info.iterations) == (mechanism, 8192)
    denied = outcome(secure.settings("SASL", sasl_username="bob", sasl_password="secret of bob"), "mine")
    assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, "he has logged in"
    change = kafka.UserScramCredentialUpsertion("bob", kafka.ScramCredentialInfo(mechanism, 10), b"secret of bob")
    with pytest.raises(KafkaException, match="iterations"):
        root.alter_user_scram_credentials([change])["bob"].result(PATIENCE_S)
    info = kafka.ScramCredentialInfo(mechanism, 8192)
    change = kafka.UserScramCredentialUpsertion("bob", info, b"secret of bob", b"salt")
    with pytest.raises(KafkaException, match="a salt of 4 bytes: use 12 bytes or more"):
        root.alter_user_scram_credentials([change])["bob"].result(PATIENCE_S)
    assert (
        root.alter_user_scram_credentials([kafka.UserScramCredentialDeletion("bob", mechanism)])["bob"].result(30)
        is None
    )
    with pytest.raises(KafkaException, match="no user 'bob'"):
        root.describe_user_scram_credentials(["bob"])["bob"].result(PATIENCE_S)
    assert "alice" in root.describe_user_scram_credentials().result(PATIENCE_S)


def test_quotas_and_leaders_are_administered_with_kafkas_messages(secure: SecureGateway) -> None:
    def entity(**names: str | None) -> list[dict[str, Any]]:
        return [{"entity_type": t.replace("_", "-"), "entity_name": name} for t, name in names.items()]

    def altered(
        names: list[dict[str, Any]], value: float | None, *, key: str = "producer_byte_rate", **more: Any
    ) -> int:
        ops = [{"key": key, "value": value or 0.0, "remove": value is None}]
        body = {"entries": [{"entity": names, "ops": ops}], "validate_only": False} | more
        (entry,) = root.call("AlterClientQuotas", body, 1)["entries"]
        assert entry["entity"] == names
        return int(entry["error_code"])

    def described(*components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
        parts = [dict(zip(("entity_type", "match_type", "match"), c, strict=True)) for c in components]
        answer = root.call("DescribeClientQuotas", {"components": parts, "strict": strict}, 1)
        assert answer["error_code"] == Kafka.NONE, answer
        entries = sorted(answer["entries"], key=lambda e: len(e["entity"]))
        return [(e["entity"], [(v["key"], v["value"]) for v in e["values"]]) for e in entries]

    rate = [("producer_byte_rate", 5e6)]
    carol, default = entity(user="carol"), entity(user="carol", client_id=None)
    with RawClient(secure, "root") as root:
        assert altered(carol, 5e6, validate_only=True) == Kafka.NONE
        assert described(("user", 0, "carol")) == []
        assert altered(carol, 5e6) == altered(default, 5e6) == Kafka.NONE
        assert described(("user", 0, "carol"), strict=True) == [(carol, rate)]
        assert described(("user", 0, "carol")) == [(carol, rate), (default, rate)]
        assert described(("user", 2, None), ("client-id", 1, None)) == [(default, rate)]
        assert altered(carol, 5e6, key="nonsense") == altered(entity(planet="x"), 5e6) == Kafka.INVALID_REQUEST
        assert altered(carol, None) == altered(default, None) == Kafka.NONE
        assert described(("user", 0, "carol")) == []
        topics = {"topic_partitions": [{"topic": "mine", "partitions": [0, 9]}], "timeout_ms": 1}
        (elected,) = root.call("ElectLeaders", topics, 2)["replica_election_results"]
        codes = [p["error_code"] for p in elected["partition_result"]]
        assert codes == [Kafka.ELECTION_NOT_NEEDED, Kafka.UNKNOWN_TOPIC_OR_PARTITION]
        assert (
            root.call("ElectLeaders", {"topic_partitions": None, "timeout_ms": 1}, 2)["replica_election_results"] == []
        )
        assert root.call("ListPartitionReassignments", {"topics": None}, 0)["topics"] == []
        for replicas, code in (
            ([], Kafka.INVALID_REPLICA_ASSIGNMENT),
            ([0, 1], Kafka.INVALID_REPLICATION_FACTOR),
            ([0], Kafka.NONE),
            (None, Kafka.NO_REASSIGNMENT_IN_PROGRESS),
        ):
            move = {"name": "mine", "partitions": [{"partition_index": 0, "replicas": replicas}]}
            body = {"topics": [move], "allow_replication_factor_change": False}
            (moved,) = root.call("AlterPartitionReassignments", body, 1)["responses"]
            assert [p["error_code"] for p in moved["partitions"]] == [code], replicas
        answer = root.call("AlterPartitionReassignments", {"topics": [move, move]}, 1)
        assert list(codes_in(answer)) == [Kafka.NONE, Kafka.INVALID_REQUEST, Kafka.INVALID_REQUEST]


def test_a_client_without_permissions_gets_the_same_answers_about_existing_and_missing_names(
    secure: SecureGateway,
) -> None:
    """The denial matrix: each API, with empty caches and after another client has filled them."""
    assert set(REQUESTS_ABOUT) == set(HANDLERS) - BEFORE_ALL
    furnish(secure)
    with RawClient(secure, "mallory") as mallory, RawClient(secure, "root") as root, ExitStack() as stack:
        cold = {api: answers(mallory, api, EXISTING, MISSING) for api in REQUESTS_ABOUT}
        names = warm_up(root)
        missing = MISSING._replace(member="m" * len(names.member))
        for api in REQUESTS_ABOUT:
            about_existing = answers(mallory, api, names, missing)
            fresh = stack.enter_context(RawClient(secure, "mallory"))
            assert about_existing == answers(mallory, api, missing, missing), f"{api}: existence shows"
            assert about_existing == answers(fresh, api, names, missing), f"{api}: the session shows"
            cold_answers = [answer.replace(MISSING.member.encode(), b"") for answer in cold[api]]
            warm_answers = [answer.replace(missing.member.encode(), b"") for answer in about_existing]
            assert api == "Metadata" or [len(a) for a in cold_answers] == [len(a) for a in warm_answers], api
            assert all(b"salary" not in answer for answer in about_existing)
        assert root.call("Heartbeat", REQUESTS_ABOUT["Heartbeat"][0](names), 2)["error_code"] == 0, "a change"
