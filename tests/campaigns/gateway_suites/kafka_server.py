"""A sparklog broker with a gateway in the place of Kafka's server, for test suites that start a Kafka of their own.

    kafka-storage.sh format -c PROPERTIES --add-scram 'SCRAM-SHA-256=[name=N,password=P]'
    kafka-run-class.sh kafka.Kafka PROPERTIES

`install` writes scripts of these names, which run this module with Kafka's arguments. The server reads the properties
of Kafka that the suites set: listeners, partitions, stores of keys. It prints the lines that the suites wait for.
"""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import sparklog
from sparklog.client.local import start_broker
from tests.support.kafka import KafkaInstallation

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests.campaigns.gateway_suites.kafka_server"
USERS = "users"
"""File beside the properties with the users of SCRAM, `NAME PASSWORD` in a line."""
_SCRAM_USER = re.compile(r"\[name=([^,]+),password=([^\]]+)\]")


def install(directory: Path) -> Path:
    """Write the scripts of a Kafka installation into `directory`/bin, and return the directory."""
    scripts = directory / "bin"
    scripts.mkdir(parents=True)
    own = f"PYTHONPATH={shlex.quote(str(ROOT))}:$PYTHONPATH exec {shlex.quote(sys.executable)} -m {MODULE}"
    installation = KafkaInstallation()
    installation.install()
    commands = {
        "kafka-run-class.sh": own,
        "kafka-storage.sh": f"{own} storage",
        "kafka-topics.sh": f"exec {shlex.join(installation.java(TOPIC_COMMAND))}",
    }
    for name, command in commands.items():
        script = scripts / name
        script.write_text(f'#!/bin/sh\n{command} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return directory


def properties_of(text: str) -> dict[str, str]:
    """The properties of a file in Java's form, without escapes and continued lines."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def settings_of(properties: Mapping[str, str], scratch: Path) -> dict[str, object]:
    """The broker's settings for Kafka's properties; `scratch` takes the certificate in PEM."""
    listener = properties["listeners"].partition(",")[0]
    own = f"PLAINTEXT://127.0.0.1:{_free_port()}"
    settings: dict[str, object] = {
        "broker.id": int(properties["node.id"]),
        "listeners": own,
        "advertised.listeners": own,
        "kafka.listeners": listener,
        "num.partitions": int(properties.get("num.partitions", "1")),
        "super.users": "User:ANONYMOUS",
    }
    if "authorizer.class.name" in properties:
        settings |= {"authorizer": "acl", "allow.everyone.if.no.acl.found": True}
    if "sasl.enabled.mechanisms" in properties:
        settings["sasl.enabled.mechanisms"] = properties["sasl.enabled.mechanisms"]
    if "ssl.keystore.location" in properties:
        pem = scratch / "server.pem"
        password = properties["ssl.keystore.password"]
        command = ["openssl", "pkcs12", "-in", properties["ssl.keystore.location"], "-nodes", "-out", str(pem)]
        subprocess.run([*command, "-passin", f"pass:{password}"], check=True, stderr=subprocess.PIPE)
        settings |= {"ssl.certificate.location": str(pem), "ssl.key.location": str(pem)}
    return settings


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def serve(path: Path) -> None:
    """Run the broker of the properties in `path` until SIGTERM."""
    properties = properties_of(path.read_text(encoding="utf-8"))
    users = path.parent / USERS
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    settings = settings_of(properties, path.parent)
    with start_broker(path.parent / "broker", listen=None, kafka=True, settings=settings) as broker:
        if users.exists():
            with sparklog.Admin(broker.bootstrap_servers) as admin:
                for line in users.read_text(encoding="utf-8").splitlines():
                    name, password = line.split()
                    admin.set_user_password(name, password)
                    print(f"Replayed UserScramCredentialRecord creating new entry for {name}", flush=True)
        print(f"[KafkaRaftServer nodeId={properties['node.id']}] Kafka Server started", flush=True)
        stopped.wait()


def add_users(arguments: list[str]) -> None:
    """Keep the users of `--add-scram` beside the properties."""
    path = Path(arguments[arguments.index("-c") + 1])
    users = _SCRAM_USER.findall(" ".join(arguments))
    (path.parent / USERS).write_text("".join(f"{name} {password}\n" for name, password in users), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "storage":
        add_users(sys.argv[2:])
    else:
        serve(Path(sys.argv[2]))
