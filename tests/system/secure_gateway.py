"""A real broker with a gateway whose listeners need passwords or certificates, and ACLs for its users."""

from __future__ import annotations

from typing import Any

from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import user
from tests.system.secure_broker import PASSWORD, SecureBroker

KAFKA = ("SASL", "MUTUAL", "BOTH")


class SecureGateway(SecureBroker):
    """A broker with a gateway that has listeners with passwords, with certificates, and with both."""

    def __init__(self, directory: Any) -> None:
        super().__init__(
            directory,
            more='authorizer = "acl"\nsuper.users = "User:ANONYMOUS;User:CN=root"\naudit.log.file = "audit.log"\n'
            'sasl.enabled.mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"\n'
            'listener.name.sasl.sasl.enabled.mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256"\n'
            "connection.failed.authentication.delay.ms = 10\n"
            f'kafka.listeners = "{",".join(f"{name}://127.0.0.1:0" for name in KAFKA)}"',
        )
        stdout = self.process.process.stdout
        assert stdout is not None
        self.kafka: dict[str, str] = {}
        for _ in KAFKA:
            name, _, address = stdout.readline().strip().removeprefix("listening on kafka.").partition("://")
            self.kafka[name] = address

    def settings(self, listener: str, **more: Any) -> dict[str, Any]:
        """Settings of a client of librdkafka."""
        found: dict[str, Any] = {"bootstrap.servers": self.kafka[listener], "log_level": 0}
        protocol = {"SASL": "SASL_PLAINTEXT", "MUTUAL": "SSL", "BOTH": "SASL_SSL"}[listener]
        found["security.protocol"] = protocol
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.ca)
        if protocol.startswith("SASL"):
            found |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": PASSWORD}
        return found | {name.replace("_", "."): value for name, value in more.items()}


def allow(name: str, kind: ResourceType, resource: str, *operations: Operation) -> list[Acl]:
    """ACLs for a user from this host alone: the broker sees the client's address, not the gateway's."""
    return [
        Acl(kind, PatternType.LITERAL, resource, user(name), "127.0.0.1", operation, Permission.ALLOW)
        for operation in operations
    ]
