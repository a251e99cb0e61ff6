"""Two brokers and ZooKeeper: they authenticate to one another, clients are told of their own listener, and users are
known everywhere."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from sparklog import Admin, Consumer, Producer
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.client.net.deadline import Deadline
from sparklog.errors import (
    ClusterAuthorizationFailedError,
    InvalidProducerIdMappingError,
    PolicyViolationError,
    SaslAuthenticationFailedError,
    SparklogError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    error_from_code,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.transaction_messages import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from sparklog.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.authority import Authority
from sparklog.security.client_security import client_security
from sparklog.security.principals import user
from sparklog.security.quotas import Entity
from sparklog.security.scram import credential_text, make_credential
from sparklog.security.secrets import Secret
from sparklog.types import TopicPartition
from tests.support.transactions import plain, rows
from tests.support.waiting import until_reached
from tests.system.broker_process import BrokerProcess
from tests.system.cluster_processes import SETTINGS
from tests.system.secure_broker import now, write_identity

M = TypeVar("M", bound=Message)

MECHANISM = "SCRAM-SHA-512"
PASSWORDS = {"broker": "between-us", "admin": "over-all", "brokers": "to-zookeeper"}
LISTENERS = ("INTERNAL", "CLIENTS")
LIFETIME_MS = 2_000
"""Of a session between the brokers."""


class SecureCluster:
    """Brokers 1 and 2."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = ZooKeeperProcess(directory / "zookeeper")
        self.zookeeper.start()
        authority = Authority("test CA", now())
        self.ca = directory / "ca.pem"
        self.ca.write_text(authority.identity.certificate)
        own = write_identity(
            directory, "broker", authority.issue("broker", ["localhost", "127.0.0.1"], now(), 1, broker=True)
        )
        (directory / "password").write_text(PASSWORDS["broker"] + "\n")
        initial = ";".join(
            f"{name}={MECHANISM}:{credential_text(make_credential(MECHANISM, Secret(password)))}"
            for name, password in PASSWORDS.items()
            if name != "brokers"
        )
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        settings = "\n".join(
            [
                f'zookeeper.connect = "{self.zookeeper.hosts}/sparklog"',
                f'zookeeper.username = "brokers"\nzookeeper.password = "{PASSWORDS["brokers"]}"',
                "zookeeper.set.acl = true",
                'listeners = "INTERNAL://127.0.0.1:0,CLIENTS://127.0.0.1:0"',
                'listener.security.protocol.map = "INTERNAL:SASL_SSL,CLIENTS:SASL_SSL"',
                'inter.broker.listener.name = "INTERNAL"',
                *(f'{name} = "{value}"' for name, value in own.items()),
                f'ssl.ca.location = "{self.ca}"',
                f'sasl.scram.initial.credentials = "{initial}"',
                f'sasl.jaas.config = \'{module} required username="broker" '
                f'password="${{file:{directory / "password"}}}";\'',
                f"listener.name.internal.connections.max.reauth.ms = {LIFETIME_MS}",
                'authorizer = "acl"',
                'super.users = "User:broker;User:admin"',
                SETTINGS,
            ]
        )
        self.brokers: dict[int, BrokerProcess] = {}
        self.addresses: dict[tuple[int, str], str] = {}
        for number in (1, 2):
            work_dir = directory / f"broker-{number}"
            work_dir.mkdir()
            process = self.brokers[number] = BrokerProcess(
                work_dir / "data", settings=f"broker.id = {number}\n{settings}", listen=None, work_dir=work_dir
            )
            assert process.process.stdout is not None
            self.addresses[number, "INTERNAL"] = process.address
            second = process.process.stdout.readline().strip().removeprefix("listening on CLIENTS://")
            self.addresses[number, "CLIENTS"] = second

    def security(self, name: str, password: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca),
        }

    def close(self) -> None:
        codes = [process.stop() for process in self.brokers.values()]
        self.zookeeper.kill()
        assert set(codes) == {0}, [process.stderr[-2000:] for process in self.brokers.values()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    made = SecureCluster(tmp_path_factory.mktemp("secure-cluster"))
    yield made
    made.close()


def test_records_are_copied_and_read(cluster: SecureCluster) -> None:
    admin_security = cluster.security("admin", PASSWORDS["admin"])
    bootstrap = cluster.addresses[1, "CLIENTS"]
    with Admin(bootstrap, security=admin_security) as admin:
        until_reached(lambda: len(admin.describe_cluster().brokers) == 2, "two brokers")
        told = {f"{broker.host}:{broker.port}" for broker in admin.describe_cluster().brokers}
        assert told == {cluster.addresses[n, "CLIENTS"] for n in (1, 2)}
        admin.create_topic("t", partitions=4, replication_factor=2, configs={"min.insync.replicas": 2})
    values = [b"%d" % i * 100 for i in range(200)]
    with Producer(bootstrap, security=admin_security) as producer:
        for i, value in enumerate(values):
            producer.send("t", value, partition=i % 4)
    with Consumer(bootstrap, security=admin_security, group_id="g", consumer_timeout_ms=60_000) as consumer:
        consumer.subscribe(["t"])
        found = [record.value for record in itertools.islice(consumer, len(values))]
    assert sorted(found) == sorted(values)


@pytest.mark.nightly
def test_sessions_between_brokers_are_renewed_without_disturbance(cluster: SecureCluster) -> None:
    """While it is written all the time, longer than two of their lifetimes: no fetch of a follower is interrupted."""
    security = cluster.security("admin", PASSWORDS["admin"])
    bootstrap = cluster.addresses[1, "CLIENTS"]
    with Admin(bootstrap, security=security) as admin, Producer(bootstrap, security=security) as producer:
        until_reached(lambda: len(admin.describe_cluster().brokers) == 2, "two brokers")
        admin.create_topic("renewed", partitions=2, replication_factor=2, configs={"min.insync.replicas": 2})
        first = between_brokers(cluster)
        seen = set(first)
        deadline = time.monotonic() + 60
        while len(seen - first) < 2 * len(first) or not first:
            assert time.monotonic() < deadline, (first, seen)
            for partition in (0, 1):
                producer.send("renewed", b"x", partition=partition).result(30)
            first = first or between_brokers(cluster)
            seen |= between_brokers(cluster)
        assert all(len(p.isr) == 2 for p in admin.describe_topic("renewed").partition_details)
    for process in cluster.brokers.values():
        failed = [line for line in process.stderr.splitlines() if "replica_fetcher" in line and "no connection" in line]
        assert failed == []


def between_brokers(cluster: SecureCluster) -> set[str]:
    """Open TCP connections to the inter-broker listeners, by the ends that connected."""
    ports = {f"{int(cluster.addresses[n, 'INTERNAL'].rsplit(':', 1)[1]):04X}" for n in cluster.brokers}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "01" and row[2].rsplit(":", 1)[1] in ports}


def test_a_user_exists_at_all_brokers_until_its_removal(cluster: SecureCluster) -> None:
    admin_security = cluster.security("admin", PASSWORDS["admin"])
    alice = client_security(cluster.security("alice", "wonder"))
    second = parse_bootstrap(cluster.addresses[2, "CLIENTS"])[0]

    def log_in() -> Connection | None:
        try:
            return Connection(second, timeout_ms=60_000, security=alice)
        except SaslAuthenticationFailedError:
            return None

    with Admin(cluster.addresses[1, "CLIENTS"], security=admin_security) as admin:
        assert log_in() is None
        admin.set_user_password("alice", "wonder", only_new=True)
        found: list[Connection] = []
        until_reached(lambda: (one := log_in()) is not None and not found.append(one), "alice at broker 2")
        with (
            Admin(cluster.addresses[2, "CLIENTS"], security=alice) as hers,
            pytest.raises(ClusterAuthorizationFailedError),
        ):
            hers.set_user_password("alice", "admin-too")
        admin.remove_user("alice")
    until_reached(lambda: not found[0].is_idle(), "the end of alice's connection to broker 2")
    found[0].close()
    assert log_in() is None


def test_nodes_in_zookeeper_are_for_the_brokers_alone(cluster: SecureCluster) -> None:
    from sparklog.metadata.coordination import CoordinationError
    from sparklog.metadata.zookeeper import ZooKeeper

    for login in (None, ("brokers", Secret("guessed"))):
        stranger = ZooKeeper.connect(cluster.zookeeper.hosts, login=login)
        try:
            for path in ("/sparklog", "/sparklog/topics", "/sparklog/controller", "/sparklog/brokers/ids"):
                with pytest.raises(CoordinationError, match="NoAuth"):
                    stranger.get(path).result(60)
                with pytest.raises(CoordinationError, match="NoAuth"):
                    stranger.set_data(path, b"").result(60)
        finally:
            stranger.close()


def test_no_stranger_connects_between_the_brokers(cluster: SecureCluster) -> None:
    inner = parse_bootstrap(cluster.addresses[1, "INTERNAL"])[0]
    with pytest.raises(SaslAuthenticationFailedError):
        Connection(inner, security=client_security(cluster.security("broker", "guessed")))
    for process in cluster.brokers.values():
        assert not any(password in process.stderr for password in (*PASSWORDS.values(), "guessed", "wonder"))


def test_topics_of_a_user_are_counted_at_every_broker(cluster: SecureCluster) -> None:
    """One of the two brokers is the controller, the other hands on whose request it is."""
    admin_security = cluster.security("admin", PASSWORDS["admin"])
    with Admin(cluster.addresses[1, "CLIENTS"], security=admin_security) as admin:
        admin.set_user_password("carol", "sings", only_new=True)
        create = Acl(
            ResourceType.CLUSTER,
            PatternType.LITERAL,
            CLUSTER_NAME,
            user("carol"),
            "*",
            Operation.CREATE,
            Permission.ALLOW,
        )
        delete = Acl(
            ResourceType.TOPIC, PatternType.PREFIXED, "carols-", user("carol"), "*", Operation.DELETE, Permission.ALLOW
        )
        alter = Acl(
            ResourceType.TOPIC, PatternType.PREFIXED, "carols-", user("carol"), "*", Operation.ALTER, Permission.ALLOW
        )
        admin.create_acls([create, delete, alter])
        admin.alter_client_quotas(Entity("carol"), {"max_topics": 2.0, "max_partitions": 5.0})

        def used() -> dict[str, int]:
            return admin.describe_client_quotas().used[Entity("carol")]

        security = cluster.security("carol", "sings")
        with contextlib.ExitStack() as stack:
            hers = [
                stack.enter_context(Admin(cluster.addresses[number, "CLIENTS"], security=security)) for number in (1, 2)
            ]
            for number, one in enumerate(hers):
                until_done(partial(one.create_topic, f"carols-{number}", partitions=2))
            until_reached(lambda: used() == {"max_topics": 2, "max_partitions": 4}, "both are hers")
            for one in hers:
                with pytest.raises(PolicyViolationError, match="max_topics"):
                    one.create_topic("carols-third")
                with pytest.raises(PolicyViolationError, match="max_partitions"):
                    one.add_partitions("carols-0", 4)
            hers[0].delete_topic("carols-0")
            until_reached(lambda: used() == {"max_topics": 1, "max_partitions": 2}, "her room is back")
            hers[1].create_topic("carols-third", partitions=3)


def until_done(act: Callable[[], object]) -> None:
    """Until a broker that the change of users and ACLs has reached does it."""

    def is_done() -> bool:
        try:
            act()
        except (SaslAuthenticationFailedError, TopicAuthorizationFailedError):
            return False
        return True

    until_reached(is_done, "the users and ACLs are known")


@pytest.mark.nightly
def test_producer_ids_and_transactions_are_their_owners_after_a_failover(cluster: SecureCluster) -> None:
    wrong_mapping, no_right = InvalidProducerIdMappingError.code, TransactionalIdAuthorizationFailedError.code
    admin_security = cluster.security("admin", PASSWORDS["admin"])
    own = {name: client_security(cluster.security(name, f"{name}-password")) for name in ("alice", "mallory")}

    def ask(broker: int, who: str, api: Api, message: Message, response: type[M], payload: bytes = b"") -> M:
        """Tried again while the broker has not heard of its part, or the user, yet."""
        deadline = Deadline(60_000)
        while True:
            endpoint = parse_bootstrap(cluster.addresses[broker, "CLIENTS"])[0]
            try:
                with closing(Connection(endpoint, timeout_ms=60_000, security=own[who])) as connection:
                    return connection.request(api, message, response, [payload])[0]
            except SparklogError as e:
                if deadline.is_over or not (e.retriable or isinstance(e, SaslAuthenticationFailedError)):
                    raise

    def coordinator() -> int:
        find = FindCoordinatorRequest("till-alice", key_type=1)
        return ask(first, "alice", Api.FIND_COORDINATOR, find, FindCoordinatorResponse).broker_id

    def write(
        broker: int, who: str, identity: tuple[int, int], sequence: int, transactional_id: str | None = None
    ) -> int:
        """The partition's error, if trying again does not help."""
        data = rows(b"%d" % sequence, identity, sequence)
        if transactional_id is None:
            data = plain(data)
        request = ProduceRequest(-1, 20_000, [ProducePartition("owned", 0, len(data))], transactional_id)
        code = 0

        def settled() -> bool:
            nonlocal code
            try:
                code = ask(broker, who, Api.PRODUCE, request, ProduceResponse, data).results[0].error_code
            except TransactionalIdAuthorizationFailedError as e:  # of the whole request
                code = e.code
            return not (code and error_from_code(code, "").retriable)

        until_reached(settled, "an answer that stays")
        return code

    with Admin(cluster.addresses[1, "CLIENTS"], security=admin_security) as admin:
        admin.create_topic("owned", partitions=1, replication_factor=2, configs={"min.insync.replicas": 1})
        for name in own:
            admin.set_user_password(name, f"{name}-password", only_new=True)
            needs = [
                Acl(kind, PatternType.LITERAL, about, user(name), "*", Operation.WRITE, Permission.ALLOW)
                for kind, about in ((ResourceType.TOPIC, "owned"), (ResourceType.TRANSACTIONAL_ID, f"till-{name}"))
            ]
            admin.create_acls(needs)
        until_reached(lambda: len(admin.describe_topic("owned").partition_details[0].isr) == 2, "both replicas in sync")
        first = admin.describe_topic("owned").partition_details[0].leader
    other = 3 - first
    gave = ask(first, "alice", Api.INIT_PRODUCER_ID, InitProducerIdRequest(), InitProducerIdResponse)
    unused = ask(other, "alice", Api.INIT_PRODUCER_ID, InitProducerIdRequest(), InitProducerIdResponse)
    alices = gave.producer_id, gave.producer_epoch
    assert write(first, "alice", alices, 0) == 0
    assert write(first, "mallory", alices, 1) == wrong_mapping
    assert write(first, "mallory", (unused.producer_id, 0), 0) == wrong_mapping, "an id of the other broker"

    began = ask(
        coordinator(), "alice", Api.INIT_PRODUCER_ID, InitProducerIdRequest("till-alice"), InitProducerIdResponse
    )
    opened = began.producer_id, began.producer_epoch
    assert write(first, "alice", opened, 0, "till-alice") == 0

    killed = cluster.brokers.pop(first)
    killed.process.kill()
    killed.wait()
    assert write(other, "mallory", alices, 1) == wrong_mapping
    assert write(other, "mallory", (unused.producer_id, 0), 0) == wrong_mapping
    assert write(other, "alice", alices, 1) == 0
    assert write(other, "alice", (unused.producer_id, 0), 0) == 0
    assert write(other, "mallory", opened, 1) == wrong_mapping
    assert write(other, "mallory", opened, 1, "till-alice") == no_right
    assert write(other, "mallory", opened, 1, "till-mallory") == wrong_mapping
    for name, error in (
        ("till-alice", TransactionalIdAuthorizationFailedError),
        ("till-mallory", InvalidProducerIdMappingError),
    ):
        with pytest.raises(error):
            ask(other, "mallory", Api.END_TXN, EndTxnRequest(name, *opened, False), EndTxnResponse)
    assert write(other, "alice", opened, 1, "till-alice") == 0
    ask(other, "alice", Api.END_TXN, EndTxnRequest("till-alice", *opened, True), EndTxnResponse)
    with Consumer(
        cluster.addresses[other, "CLIENTS"],
        security=admin_security,
        isolation_level="read_committed",
        consumer_timeout_ms=60_000,
    ) as consumer:
        consumer.assign([TopicPartition("owned", 0)])
        consumer.seek_to_beginning()
        assert [record.value for record in itertools.islice(consumer, 5)] == [b"0", b"0", b"1", b"0", b"1"]
