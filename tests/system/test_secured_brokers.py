"""Three brokers as `--secure-setup` makes them: only brokers get access between them, and certificates change while
they work."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.local import start_broker
from sparklog.client.local_cluster import SECURE, LocalCluster, start_cluster
from sparklog.client.net import tls_stream
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import CoordinationError
from sparklog.metadata.zookeeper import ZooKeeper
from sparklog.security import cluster_setup
from sparklog.security.authority import Authority
from sparklog.security.client_security import client_security
from sparklog.security.secrets import Secret
from sparklog.security.secure_setup import load_authority
from sparklog.settings import flatten
from tests.support.waiting import until_reached
from tests.system.secure_broker import now, write_identity

SETTINGS = {
    "zookeeper.session.timeout.ms": 6_000,
    "replica.lag.time.max.ms": 10_000,
    "replica.fetch.backoff.ms": 100,
    "ssl.reload.interval.ms": 200,
    "connection.failed.authentication.delay.ms": 10,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tls_stream, "RENEWAL_S", 0.1)
        with start_cluster(3, tmp_path_factory.mktemp("secured"), settings=SETTINGS, secure=True) as made:
            until_reached(lambda: len(addresses(made, "CLIENTS")) == 3, "three brokers")
            yield made


def zookeeper(cluster: LocalCluster, password: str | None) -> ZooKeeper:
    login = (cluster_setup.ZOOKEEPER_USER, Secret(password)) if password is not None else None
    return ZooKeeper.connect(cluster.zookeeper_connect.partition("/")[0], login=login)


def password_of(cluster: LocalCluster) -> str:
    return (cluster.data_dir / SECURE / "broker-1" / cluster_setup.PASSWORD_FILE).read_text().strip()


def addresses(cluster: LocalCluster, listener: str) -> dict[int, str]:
    """Return the registered addresses of the live brokers."""
    client = zookeeper(cluster, password_of(cluster))
    try:
        found = {}
        for child in client.children(f"/sparklog{znodes.BROKER_IDS}").result(30):
            node = client.get(f"/sparklog{znodes.BROKER_IDS}/{child}").result(30)
            if node is None:  # it registers anew at this moment
                continue
            (endpoint,) = [e for e in json.loads(node.data)["endpoints"] if e.startswith(f"{listener}://")]
            found[int(child)] = endpoint.partition("://")[2]
        return found
    finally:
        client.close()


def client(cluster: LocalCluster, **more: str) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": str(cluster.data_dir / SECURE / "ca.pem"), **more}


def create(cluster: LocalCluster, topic: str) -> None:
    with Admin(cluster.bootstrap_servers, security=cluster.security) as admin:
        until_reached(lambda: len(admin.describe_cluster().brokers) == 3, "three brokers")
        admin.create_topic(topic, partitions=3, replication_factor=3, configs={"min.insync.replicas": 2})
        until_reached(lambda: all_in_sync(admin, topic), "three in-sync replicas")


def all_in_sync(admin: Admin, topic: str) -> bool:
    return all(len(partition.isr) == 3 for partition in admin.describe_topic(topic).partition_details)


def test_other_users_are_refused_everywhere(cluster: LocalCluster, tmp_path: Path) -> None:
    """At no broker, at neither listener: in plain text, without a certificate, with another authority's, with one that
    is no broker's, with a wrong password."""
    stranger = Authority("sparklog CA", now())
    forged = write_identity(tmp_path, "forged", stranger.issue("broker-1", ["127.0.0.1"], now(), 1, broker=True))
    own = load_authority(cluster.data_dir / SECURE)
    user = write_identity(tmp_path, "user", own.issue("admin", [], now(), 1, broker=False))
    scram = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": "guessed"}
    wrong: dict[str, list[dict[str, str]]] = {
        "INTERNAL": [{}, client(cluster), client(cluster, **forged), client(cluster, **user)],
        "CLIENTS": [{}, client(cluster), client(cluster, **forged)],
    }
    for ways in wrong.values():
        ways.append(client(cluster, **scram) | {"security.protocol": "SASL_SSL"})
    for listener, ways in wrong.items():
        found = addresses(cluster, listener)
        assert sorted(found) == [1, 2, 3]
        for address in found.values():
            for way in ways:
                with (
                    pytest.raises(SparklogError),
                    sparklog.Admin(address, security=way, request_timeout_ms=5_000) as admin,
                ):
                    admin.list_topics()
    good = write_identity(tmp_path, "good", own.issue("broker-9", [], now(), 1, broker=True))
    for address in addresses(cluster, "INTERNAL").values():
        Connection(parse_bootstrap(address)[0], security=client_security(client(cluster, **good))).close()


def test_nodes_in_zookeeper_belong_to_the_brokers_alone(cluster: LocalCluster) -> None:
    create(cluster, "hidden")
    inside, strangers = zookeeper(cluster, password_of(cluster)), [zookeeper(cluster, p) for p in (None, "guessed")]
    try:
        paths = ["/sparklog"]
        for path in paths:
            paths += [f"{path}/{child}" for child in inside.children(path).result(30)]
        assert any(path.endswith("/hidden") or "topics/" in path for path in paths), paths
        for stranger in strangers:
            for path in paths:
                attempts = (
                    stranger.get(path),
                    stranger.children(path),
                    stranger.set_data(path, b""),
                    stranger.create(f"{path}/more", b""),
                )
                for attempt in attempts:
                    with pytest.raises(CoordinationError, match=r"NoAuth|NoChildrenForEphemerals"):
                        attempt.result(30)
            with pytest.raises(CoordinationError, match="NoAuth"):
                stranger.delete(f"/sparklog{znodes.CONTROLLER}").result(30)
    finally:
        for one in (inside, *strangers):
            one.close()


@pytest.mark.nightly
def test_another_broker_leads_when_one_is_gone(cluster: LocalCluster) -> None:
    create(cluster, "failover")
    with Producer(cluster.bootstrap_servers, security=cluster.security) as producer:
        for i in range(30):
            producer.send("failover", b"%d" % i, partition=i % 3)
        producer.flush()
        cluster.brokers[1].kill()
        for i in range(30, 60):
            producer.send("failover", b"%d" % i, partition=i % 3)
        producer.flush()
    cluster.brokers[1].start()
    assert read(cluster, "failover", 60) == {b"%d" % i for i in range(60)}
    with Admin(cluster.bootstrap_servers, security=cluster.security) as admin:
        until_reached(lambda: all_in_sync(admin, "failover"), "all in sync again")


def read(cluster: LocalCluster, topic: str, count: int) -> set[bytes]:
    found: set[bytes] = set()
    with Consumer(cluster.bootstrap_servers, security=cluster.security, consumer_timeout_ms=60_000) as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(3)])
        for record in consumer:
            found.add(record.value)
            if len(found) == count:
                break
    return found


@pytest.mark.nightly
def test_one_more_broker(cluster: LocalCluster, tmp_path: Path) -> None:
    secure = cluster.data_dir / SECURE
    made = cluster_setup.add_broker(secure, 4, cluster_setup.BrokerPlace("127.0.0.1", 0, tmp_path / "data"), now())
    settings = flatten(tomllib.loads((made / "broker.toml").read_text())) | SETTINGS
    data_dir = str(settings.pop("data.dir"))
    assert data_dir == str(tmp_path / "data")
    with pytest.raises(InvalidConfigError, match="certificate renew"):
        cluster_setup.add_broker(secure, 4, cluster_setup.BrokerPlace("127.0.0.1", 0), now())
    with (
        start_broker(data_dir, None, settings=settings) as fourth,
        Admin(fourth.bootstrap_servers, security=cluster.security) as admin,
    ):
        until_reached(
            lambda: {b.broker_id for b in admin.describe_cluster().brokers} == {1, 2, 3, 4}, "the fourth broker"
        )
        admin.create_topic("on-four", partitions=1, replication_factor=4)
        until_reached(lambda: len(admin.describe_topic("on-four").partition_details[0].isr) == 4, "it has a copy")
        admin.delete_topic("on-four")


class Load:
    """Writes and reads all the time, on connections that stay and on new ones."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.sent = 0
        self.connected = 0
        self.failures: list[BaseException] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in (self._write, self._connect)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def _guard(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except BaseException as e:  # noqa: BLE001 (shown by the test)
            self.failures.append(e)

    def _write(self) -> None:
        with Producer(self.cluster.bootstrap_servers, security=self.cluster.security) as producer:
            while not self._ended.wait(0.01):
                producer.send(self.topic, b"%d" % self.sent, partition=self.sent % 3).result(30)
                self.sent += 1

    def _connect(self) -> None:
        while not self._ended.wait(0.05):
            with Admin(self.cluster.bootstrap_servers, security=self.cluster.security) as admin:
                assert self.topic in admin.list_topics()
            self.connected += 1


def issuer_key_of(address: str, authority: Authority) -> bool:
    """Return True if `authority` has signed the broker's certificate."""
    host, port = address.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(
        cadata=authority.identity.certificate.partition("-----END")[0] + "-----END CERTIFICATE-----\n"
    )
    try:
        with socket.create_connection((host, int(port)), 10) as sock, context.wrap_socket(sock):
            return True
    except ssl.SSLCertVerificationError:
        return False


def between_brokers(cluster: LocalCluster) -> set[tuple[str, str]]:
    """TCP connections to the inter-broker listeners that are open: both ends, as the kernel names them."""
    ports = {f"{int(address.rsplit(':', 1)[1]):04X}" for address in addresses(cluster, "INTERNAL").values()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {(row[1], row[2]) for row in rows if row[3] == "01" and row[2].rsplit(":", 1)[1] in ports}


@pytest.mark.nightly
def test_the_authority_is_replaced_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    """As an operator does it: trust both, new certificates one by one, trust the new one alone. Nobody sees an error,
    and at the end nothing that the old authority has signed is in use."""
    create(cluster, "rotated")
    secure = cluster.data_dir / SECURE
    old = load_authority(secure)
    left_over = write_identity(tmp_path, "left-over", old.issue("broker-2", ["127.0.0.1"], now(), 1, broker=True))
    inner = addresses(cluster, "INTERNAL")
    every = [*inner.values(), *addresses(cluster, "CLIENTS").values()]

    def let_in(identity: dict[str, str]) -> bool:
        """At all brokers, or at none."""
        results = set()
        for address in inner.values():
            try:
                # not by the client's cache of contexts: the file of authorities changes as it likes here
                security = client_security(client(cluster, **identity))
                Connection(parse_bootstrap(address)[0], security=security).close()
                results.add(True)
            except InvalidConfigError:
                results.add(False)
        return results == {True}

    load = Load(cluster, "rotated")
    try:
        until_reached(lambda: bool(load.failures) or (load.sent > 20 and load.connected > 2), "load")
        assert load.failures == []
        before = between_brokers(cluster)
        assert before
        cluster_setup.new_authority(secure, now())
        new = load_authority(secure)
        probe = write_identity(tmp_path, "probe", new.issue("broker-9", ["127.0.0.1"], now(), 1, broker=True))
        until_reached(lambda: let_in(probe) and let_in(left_over), "both authorities are trusted by all")
        for broker_id in (1, 2, 3):
            cluster_setup.renew(secure, now(), broker_id)
        until_reached(lambda: all(issuer_key_of(address, new) for address in every), "new certificates everywhere")
        middle = between_brokers(cluster)
        cluster_setup.retire_authority(secure)
        until_reached(lambda: let_in(probe) and not let_in(left_over), "the old authority is trusted by nobody")
        until_reached(lambda: not between_brokers(cluster) & (before | middle), "no connection from before is open")
        sent = load.sent
        until_reached(lambda: bool(load.failures) or load.sent > sent + 20, "load goes on")
    finally:
        load.stop()
    assert load.failures == []
    assert read(cluster, "rotated", load.sent) == {b"%d" % i for i in range(load.sent)}
    with Admin(cluster.bootstrap_servers, security=cluster.security) as admin:
        assert all_in_sync(admin, "rotated")
    with pytest.raises(InvalidConfigError, match="new-authority"):
        cluster_setup.retire_authority(secure)


def test_a_secured_directory_stays_so_and_an_open_one_is_refused(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path / "secured", temporary=False, brokers=2, settings={}, secure=True)
    first.stop()
    again = LocalCluster(tmp_path / "secured", temporary=False, brokers=3, settings={})
    again.stop()
    assert again.security == first.security is not None
    assert (tmp_path / "secured" / SECURE / "broker-3" / "broker.pem").exists()
    LocalCluster(tmp_path / "open", temporary=False, brokers=3, settings={}).stop()
    with pytest.raises(InvalidConfigError, match="not secured"):
        LocalCluster(tmp_path / "open", temporary=False, brokers=3, settings={}, secure=True)
