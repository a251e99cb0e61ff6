"""A stand-in for Docker's client of Python, which starts a sparklog broker with a gateway in place of a Kafka image.

aiokafka's tests import this module under Docker's name. They start a container for their certificates and one for
Kafka, and run Kafka's scripts in the latter: kafka-acls.sh and kafka-configs.sh are carried out through the gateway.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from confluent_kafka import admin as confluent_admin

import sparklog

kafka: Any = confluent_admin
"""The administration of librdkafka, whose types are incomplete."""
PASSWORD = "test"
"""Name and password of the user that the tests expect."""
PORTS = {
    "PLAINTEXT": "ADVERTISED_PORT",
    "SSL": "ADVERTISED_SSL_PORT",
    "SASL_PLAINTEXT": "ADVERTISED_SASL_PLAINTEXT_PORT",
    "SASL_SSL": "ADVERTISED_SASL_SSL_PORT",
}
MOUNT = "/ssl_cert"
_RESOURCES = {"--topic": "TOPIC", "--group": "GROUP", "--transactional-id": "TRANSACTIONAL_ID", "--cluster": "BROKER"}
_SCRAM_PASSWORD = re.compile(r"SCRAM-SHA-256=\[password=([^\]]+)\]")
ALL_ACLS = kafka.AclBindingFilter(
    kafka.ResourceType.ANY,
    None,
    kafka.ResourcePatternType.ANY,
    None,
    None,
    kafka.AclOperation.ANY,
    kafka.AclPermissionType.ANY,
)
Result = tuple[int, bytes]


class Container:
    """A directory in which scripts are run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def exec_run(self, command: Sequence[str], **_: Any) -> Result:
        """Run a script of the host in the directory."""
        script = Path(command[-1].removeprefix("/")).resolve()
        ran = subprocess.run([*command[:-1], str(script)], cwd=self._directory, capture_output=True, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    def stop(self) -> None:
        """Do nothing: the script has ended."""


class Server:
    """A broker with a gateway in the place of a container with Kafka."""

    def __init__(self, environment: Mapping[str, Any], certificates: Path) -> None:
        listeners = [f"{name}://127.0.0.1:{environment[port]}" for name, port in PORTS.items()]
        settings = {
            "kafka.listeners": ",".join(listeners),
            "num.partitions": environment["NUM_PARTITIONS"],
            "authorizer": "acl",
            "allow.everyone.if.no.acl.found": True,
            "super.users": "User:ANONYMOUS",
            "ssl.certificate.location": str(certificates / "server.crt"),
            "ssl.key.location": str(certificates / "server.key"),
            "ssl.ca.location": str(certificates / "ca.crt"),
        }
        self._broker = sparklog.start_local(tempfile.mkdtemp(), kafka=True, settings=settings)
        with sparklog.Admin(self._broker.bootstrap_servers) as admin:
            admin.set_user_password(PASSWORD, PASSWORD)
        self._admin = kafka.AdminClient({"bootstrap.servers": listeners[0].partition("://")[2]})

    def exec_run(self, command: str, **_: Any) -> Result:
        """Carry out the command of one of Kafka's scripts."""
        program, *arguments = shlex.split(command)
        if program.endswith("kafka-acls.sh"):
            self._acls(arguments)
        elif program.endswith("kafka-configs.sh"):
            self._add_user(" ".join(arguments), arguments[-1])
        else:
            return 1, f"{program} is no script here".encode()
        return 0, b""

    def _acls(self, arguments: Sequence[str]) -> None:
        if "--list" in arguments:
            self._admin.describe_acls(ALL_ACLS).result()
            return
        options = dict(zip(arguments, [*arguments[1:], ""], strict=True))
        permission = "DENY" if "--deny-principal" in options else "ALLOW"
        (option,) = options.keys() & _RESOURCES.keys()
        fields = (
            kafka.ResourceType[_RESOURCES[option]],
            "kafka-cluster" if option == "--cluster" else options[option],
            kafka.ResourcePatternType.LITERAL,
            options[f"--{permission.lower()}-principal"],
            "*",
            kafka.AclOperation[options["--operation"].upper()],
            kafka.AclPermissionType[permission],
        )
        if "--add" in arguments:
            results = self._admin.create_acls([kafka.AclBinding(*fields)])
        else:
            results = self._admin.delete_acls([kafka.AclBindingFilter(*fields)])
        for result in results.values():
            result.result()

    def _add_user(self, options: str, name: str) -> None:
        info = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_256, 4096)
        (password,) = _SCRAM_PASSWORD.findall(options)
        change = kafka.UserScramCredentialUpsertion(name, info, password.encode())
        for result in self._admin.alter_user_scram_credentials([change]).values():
            result.result()

    def stop(self) -> None:
        """Stop the broker."""
        self._broker.stop()


class _Containers:
    @staticmethod
    def run(*, volumes: Mapping[str, Mapping[str, str]], command: str = "", environment: Any = None, **_: Any) -> Any:
        """Start the server, or with a command a container for scripts."""
        (certificates,) = (path for path, mount in volumes.items() if mount["bind"] == MOUNT)
        return Container(certificates) if command else Server(environment, Path(certificates))


class _Client:
    containers = _Containers()

    def close(self) -> None:
        """Do nothing: there is no connection."""


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))
"""Docker's module of this name."""


def from_env() -> _Client:
    """Return the client of the stand-in."""
    return _Client()
