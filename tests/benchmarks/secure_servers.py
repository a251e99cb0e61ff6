"""A broker of ours and one of Kafka with the same certificate, user and ACLs, and three listeners each: without
security, with TLS, and with TLS, SCRAM-SHA-256 and ACLs.

Each listener of ours is TCP: no Unix socket, and no files that clients map, for they would go around what is measured.
Both have an authorizer; the user has what it needs through ACLs, whoever has not authenticated is a super user.
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparklog import Admin
from sparklog.client.local import LocalBroker, start_broker
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.authority import Authority
from sparklog.security.principals import user
from sparklog.security.sasl import SCRAM_SHA_256

from .context import ADMIN_TIMEOUT_MS, Context
from .kafka import KafkaInstallation, KafkaServer, free_ports

PLAIN, TLS, SCRAM_ACL = "PLAINTEXT", "SSL", "SASL_SSL"
"""The listeners, by their `security.protocol`."""
USER = "bench"
PASSWORD = "correct-horse-battery"
ITERATIONS = 4096
GROUP_PREFIX = "perf-consumer"
"""How kafka-consumer-perf-test begins the names of its groups."""
TOPIC_PREFIX = "t"
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_HOSTS = ("localhost", "127.0.0.1")
_DAYS = 2


class Certificates(NamedTuple):
    """Files: the authority that both trust, and the brokers' key with its certificate (P-256)."""

    authority: Path
    broker: Path


def make_certificates(directory: Path) -> Certificates:
    """New ones, in files of `directory`."""
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority("sparklog benchmarks", now)
    broker = authority.issue("broker", _HOSTS, now, _DAYS, broker=True)
    directory.mkdir(parents=True, exist_ok=True)
    made = Certificates(directory / "ca.pem", directory / "broker.pem")
    made.authority.write_text(authority.identity.certificate)
    made.broker.write_text(broker.key.reveal() + broker.certificate)
    return made


def certificates(context: Context) -> Certificates:
    """Those of the campaign."""
    return context.once("certificates", lambda: make_certificates(context.scratch / "certificates"))


# -- ours


def sparklog_settings(certificates: Certificates, ports: Mapping[str, int]) -> dict[str, Any]:
    """Of the broker; `ports`: by listener."""
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "sasl.enabled.mechanisms": SCRAM_SHA_256,
        "ssl.keystore.location": str(certificates.broker),
        "local.socket.enabled": False,
        "local.read.enabled": False,
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
    }


class SecureSparklog:
    """A running broker of ours."""

    def __init__(self, certificates: Certificates, directory: Path) -> None:
        """Starts it."""
        self._certificates = certificates
        ports = dict(zip((PLAIN, TLS, SCRAM_ACL), free_ports(3), strict=True))
        self._addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.broker: LocalBroker = start_broker(directory, listen=None, settings=sparklog_settings(certificates, ports))
        with Admin(self.address(PLAIN)) as admin:
            admin.set_user_password(USER, PASSWORD, [SCRAM_SHA_256], iterations=ITERATIONS)
            admin.create_acls(_acl(*acl) for acl in _ACLS)

    @property
    def pid(self) -> int:
        return self.broker.pid

    def address(self, listener: str) -> str:
        return self._addresses[listener]

    def client(self, listener: str) -> dict[str, Any]:
        """Arguments of a `Producer` or `Consumer`, without its addresses."""
        if listener == PLAIN:
            return {}
        settings = {"security.protocol": listener, "ssl.ca.location": str(self._certificates.authority)}
        if listener == SCRAM_ACL:
            settings |= {"sasl.mechanism": SCRAM_SHA_256, "sasl.username": USER, "sasl.password": PASSWORD}
        return {"security": settings}

    def create_topic(self, partitions: int) -> str:
        """A new one; its name."""
        name = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:12]}"
        with Admin(self.address(PLAIN), request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            admin.create_topic(name, partitions=partitions)
        return name

    @contextlib.contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """A new topic for the time of the block."""
        name = self.create_topic(partitions)
        try:
            yield name
        finally:
            with Admin(self.address(PLAIN), request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
                admin.delete_topic(name)

    def stop(self) -> None:
        self.broker.stop()


def secure_sparklog(context: Context) -> SecureSparklog:
    """The campaign's."""

    def make() -> SecureSparklog:
        made = SecureSparklog(certificates(context), context.scratch / "secure-sparklog")
        context.stack.callback(made.stop)
        return made

    return context.once("secure sparklog", make)


_ACLS = (
    (ResourceType.TOPIC, TOPIC_PREFIX, Operation.READ),
    (ResourceType.TOPIC, TOPIC_PREFIX, Operation.WRITE),
    (ResourceType.TOPIC, TOPIC_PREFIX, Operation.DESCRIBE),
    (ResourceType.GROUP, GROUP_PREFIX, Operation.READ),
)
"""What USER may do, with everything whose name begins so."""


def _acl(kind: ResourceType, prefix: str, operation: Operation) -> Acl:
    return Acl(kind, PatternType.PREFIXED, prefix, user(USER), "*", operation, Permission.ALLOW)


# -- Kafka


def kafka_settings(certificates: Certificates) -> dict[str, str]:
    """Of the broker, beside its listeners."""
    protocols = ",".join(f"{name}:{name}" for name in (PLAIN, TLS, SCRAM_ACL))
    return {
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocols}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "sasl.enabled.mechanisms": SCRAM_SHA_256,
        f"listener.name.sasl_ssl.{SCRAM_SHA_256.lower()}.sasl.jaas.config": f"{_LOGIN_MODULE} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


class SecureKafka(KafkaServer):
    """As `KafkaServer`, which has the listener without security, with the other two."""

    def __init__(self, installation: KafkaInstallation, certificates: Certificates, directory: Path) -> None:
        self._certificates = certificates
        ports = dict(zip((TLS, SCRAM_ACL), free_ports(2), strict=True))
        super().__init__(installation, directory, listeners=ports, settings=kafka_settings(certificates))
        self._addresses = {PLAIN: self.bootstrap_servers}
        self._addresses |= {name: f"127.0.0.1:{port}" for name, port in ports.items()}

    def start(self) -> float:
        taken_s = super().start()
        import confluent_kafka.admin

        api: Any = confluent_kafka.admin
        info = api.ScramCredentialInfo(api.ScramMechanism.SCRAM_SHA_256, ITERATIONS)
        changes = [api.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
        acls = [
            api.AclBinding(
                api.ResourceType[kind.name],
                prefix,
                api.ResourcePatternType.PREFIXED,
                f"User:{USER}",
                "*",
                api.AclOperation[operation.name],
                api.AclPermissionType.ALLOW,
            )
            for kind, prefix, operation in _ACLS
        ]
        made = [*self.admin().alter_user_scram_credentials(changes).values(), *self.admin().create_acls(acls).values()]
        for future in made:
            future.result(60)
        return taken_s

    def address(self, listener: str) -> str:
        return self._addresses[listener]

    def client(self, listener: str) -> dict[str, str]:
        """Settings of a client in Java."""
        settings = {"bootstrap.servers": self.address(listener), "security.protocol": listener}
        if listener == PLAIN:
            return settings
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._certificates.authority)}
        if listener == SCRAM_ACL:
            login = f'{_LOGIN_MODULE} required username="{USER}" password="{PASSWORD}";'
            settings |= {"sasl.mechanism": SCRAM_SHA_256, "sasl.jaas.config": login}
        return settings


def secure_kafka(context: Context) -> SecureKafka:
    """The campaign's."""

    def make() -> SecureKafka:
        made = SecureKafka(
            context.installation,
            certificates(context),
            Path(tempfile.mkdtemp(prefix="secure-kafka-", dir=context.scratch)),
        )
        try:
            made.start()
        except BaseException:
            made.kill()  # the next row begins with another one
            raise
        context.stack.callback(made.stop)
        return made

    return context.once("secure kafka", make)
