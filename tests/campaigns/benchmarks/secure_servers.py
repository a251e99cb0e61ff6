"""A broker of sparklog and one of Kafka with the same certificate, user and ACLs, and three listeners each: without
security, with TLS, and with TLS, SCRAM-SHA-256 and ACLs.

Each listener of sparklog is TCP: a Unix socket and mapped files would go around the measured transport. Both brokers
have an authorizer: ACLs permit the user, and clients without authentication are super users.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.client.local import start_broker
from sparklog.environment.ports import free_ports
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.authority import Authority
from sparklog.security.principals import user
from sparklog.security.sasl import SCRAM_SHA_256
from tests.support.kafka import KafkaInstallation, KafkaServer

from .servers import TOPIC_PREFIX, SparklogServer

PLAIN, TLS, SCRAM_ACL = LISTENERS = ("PLAINTEXT", "SSL", "SASL_SSL")
"""The listeners, by their `security.protocol`."""
USER = "bench"
PASSWORD = "correct-horse-battery"
ITERATIONS = 4096
GROUP_PREFIX = "perf-consumer"
"""The beginning of the group names of kafka-consumer-perf-test."""
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_ACLS = (
    (ResourceType.TOPIC, TOPIC_PREFIX, Operation.READ),
    (ResourceType.TOPIC, TOPIC_PREFIX, Operation.WRITE),
    (ResourceType.TOPIC, TOPIC_PREFIX, Operation.DESCRIBE),
    (ResourceType.GROUP, GROUP_PREFIX, Operation.READ),
)
"""The rights of USER, for all names with the prefix."""


class Certificates(NamedTuple):
    """Files: the authority that both systems trust, and the brokers' key with its certificate (P-256)."""

    authority: Path
    broker: Path


def make_certificates(directory: Path) -> Certificates:
    """New certificates, in files of `directory`."""
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority("sparklog benchmarks", now)
    broker = authority.issue("broker", ("localhost", "127.0.0.1"), now, 2, broker=True)
    directory.mkdir(parents=True, exist_ok=True)
    made = Certificates(directory / "ca.pem", directory / "broker.pem")
    made.authority.write_text(authority.identity.certificate)
    made.broker.write_text(broker.key.reveal() + broker.certificate)
    return made


def sparklog_settings(certificates: Certificates, ports: Mapping[str, int]) -> dict[str, Any]:
    """Settings of sparklog's broker; `ports` by listener."""
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "sasl.enabled.mechanisms": SCRAM_SHA_256,
        "ssl.keystore.location": str(certificates.broker),
        "local.socket.enabled": False,
        "local.read.enabled": False,
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
    }


def kafka_settings(certificates: Certificates) -> dict[str, str]:
    """Settings of Kafka's broker, beside its listeners."""
    protocols = ",".join(f"{name}:{name}" for name in LISTENERS)
    return {
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocols}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "sasl.enabled.mechanisms": SCRAM_SHA_256,
        f"listener.name.sasl_ssl.{SCRAM_SHA_256.lower()}.sasl.jaas.config": f"{_LOGIN_MODULE} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def start_sparklog(certificates: Certificates, directory: Path) -> SparklogServer:
    """Start a secured broker with its user and ACLs."""
    ports = dict(zip(LISTENERS, free_ports(3), strict=True))
    tls = {"security.protocol": TLS, "ssl.ca.location": str(certificates.authority)}
    login = {"sasl.mechanism": SCRAM_SHA_256, "sasl.username": USER, "sasl.password": PASSWORD}
    server = SparklogServer(
        start_broker(directory, listen=None, settings=sparklog_settings(certificates, ports)),
        addresses={name: f"127.0.0.1:{port}" for name, port in ports.items()},
        security={TLS: tls, SCRAM_ACL: tls | login | {"security.protocol": SCRAM_ACL}},
    )
    with server.admin() as admin:
        admin.set_user_password(USER, PASSWORD, [SCRAM_SHA_256], iterations=ITERATIONS)
        admin.create_acls(
            Acl(kind, PatternType.PREFIXED, prefix, user(USER), "*", operation, Permission.ALLOW)
            for kind, prefix, operation in _ACLS
        )
    return server


def start_kafka(installation: KafkaInstallation, certificates: Certificates, directory: Path) -> KafkaServer:
    """Start a secured broker of Kafka with its user and ACLs."""
    tls = {
        "security.protocol": TLS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
    }
    jaas = f'{_LOGIN_MODULE} required username="{USER}" password="{PASSWORD}";'
    login = {"security.protocol": SCRAM_ACL, "sasl.mechanism": SCRAM_SHA_256, "sasl.jaas.config": jaas}
    server = KafkaServer(
        installation,
        directory,
        listeners=dict(zip((TLS, SCRAM_ACL), free_ports(2), strict=True)),
        settings=kafka_settings(certificates),
        security={TLS: tls, SCRAM_ACL: tls | login},
    )
    try:
        server.start()
        _permit(server.admin())
    except BaseException:
        server.stop(kill=True)  # the next row starts another one
        raise
    return server


def _permit(admin: Any) -> None:
    """Create Kafka's user and ACLs."""
    import confluent_kafka.admin

    api: Any = confluent_kafka.admin
    info = api.ScramCredentialInfo(api.ScramMechanism.SCRAM_SHA_256, ITERATIONS)
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
    users = admin.alter_user_scram_credentials([api.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())])
    for future in (*users.values(), *admin.create_acls(acls).values()):
        future.result(60)
