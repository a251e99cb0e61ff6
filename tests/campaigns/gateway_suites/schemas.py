"""Clients with schemas, unchanged, against a broker with a gateway and its registry.

Each client registers a schema with its own registry client, which makes a typed topic, and writes rows into it with its
own serializers. Each client reads the topics of all clients. The rows that it prints, and the columns of the topics,
are compared with the rows that were written. A client whose toolchain is missing is left out, with a line about it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import sparklog
from sparklog.client.local import LocalBroker
from tests.campaigns.gateway_suites.verdict import Verdict, judge
from tests.support.kafka import KafkaInstallation

HERE = Path(__file__).parent / "schema_clients"
NEEDS = ()
"""Programs without which the suite does not run; a client of its own names the others."""
TIMEOUT_S = 300
PROTOC = (sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.")
FORMATS = ("avro", "protobuf", "json-schema")
APICURIO_VERSION, FLINK_VERSION = "3.1.7", "2.0.0"
SERDE_JARS = tuple(
    ("io.apicurio", f"apicurio-registry-{form}-serde-kafka", APICURIO_VERSION)
    for form in ("avro", "protobuf", "jsonschema")
)
REGISTRY_JARS = (("org.apache.flink", "flink-sql-avro-confluent-registry", FLINK_VERSION),)
"""A jar with Confluent's own client of the registry, which is not in Maven Central by itself."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
JSON_COLUMNS = (
    "id BIGINT, zone STRING, minutes DOUBLE, good BOOLEAN, note STRING, level STRING, tags ARRAY<STRING>, "
    "counts MAP<STRING, BIGINT>, at BIGINT, raw STRING, place STRUCT<name: STRING, lat: FLOAT>"
)


class Client(NamedTuple):
    """A program that writes and reads rows."""

    name: str
    needs: tuple[str, ...]
    build: Callable[[Path], list[str]]
    """Builds the program from a copy of its sources, and returns its command."""
    writes: tuple[str, ...] = FORMATS
    reads: tuple[str, ...] = FORMATS


def _python(sources: Path) -> list[str]:
    return [sys.executable, str(sources / "python_client.py")]


def _spark(sources: Path) -> list[str]:
    return [sys.executable, str(sources / "spark_reader.py")]


def _go(sources: Path) -> list[str]:
    _run(["go", "mod", "tidy"], sources)
    _run(["go", "build", "-o", "go-client", "."], sources)
    return [str(sources / "go-client")]


def _javascript(sources: Path) -> list[str]:
    _run(["npm", "install", "--silent", "--no-audit", "--ignore-scripts"], sources)
    return ["node", str(sources / "client.js")]


def _java(sources: Path) -> list[str]:
    installation = KafkaInstallation()
    serdes = installation.classes(f"apicurio-serdes-{APICURIO_VERSION}", SERDE_JARS, transitive=True)
    registry = installation.classes(f"confluent-registry-{FLINK_VERSION}", REGISTRY_JARS, transitive=False)
    path = os.pathsep.join([str(sources), serdes, registry])
    _run(["javac", "-cp", path, "-d", str(sources), "SchemaClient.java"], sources)
    return ["java", "-Xmx512m", "-cp", path, "SchemaClient", str(sources)]


CLIENTS = (
    Client("confluent-kafka", (), _python),
    Client("apicurio", ("java", "javac", "mvn"), _java),
    Client("franz-go", ("go",), _go),
    Client("kafkajs", ("node", "npm"), _javascript),
    Client("spark", ("java",), _spark, writes=(), reads=("avro",)),
)
SHORT = "^(confluent-kafka|franz-go|apicurio|kafkajs)$"


def listed() -> dict[str, Any]:
    """Return the regular expression of the nightly run's clients."""
    return {"short": SHORT}


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows with each type, and with values at the ends of their ranges."""
    return [
        {
            "id": (i - 1) * 2**50 if i < 3 else i,
            "zone": ("", "Zürich", "x" * 300, "\U0001f680")[i % 4],
            "minutes": (0.5, -0.25, 1e300, 0.1)[i % 4] * (i + 1 if i % 4 != 2 else 1),
            "good": i % 2 == 0,
            "note": None if i % 3 else f"note {i}",
            "level": ("LOW", "HIGH")[i % 2],
            "tags": [f"t{j}" for j in range(i % 4)],
            "counts": {f"k{j}": j * i for j in range(i % 3)},
            "at": 1_800_000_000_123 + i * 1000,
            "raw": ("", "AAEC/w==")[i % 2],
            "place": {"name": f"p{i}", "lat": i / 4},
        }
        for i in range(count)
    ]


def normal(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a client in the form of `rows`: JSON of Protobuf has long numbers as texts, and no nulls."""
    return row | {
        "id": int(row["id"]),
        "at": int(row["at"]),
        "counts": {key: int(value) for key, value in row["counts"].items()},
        "note": row.get("note"),
    }


def verify(scratch: Path, records: int, pattern: str | None, source: Path | None = None) -> tuple[Verdict, str]:
    """Return the verdict on all pairs of clients whose names match `pattern` (None: all), and the faults.

    Args:
        records: Unused: a client writes a few rows.
    """
    sources = scratch / "clients"
    shutil.copytree(HERE, sources)
    _run([*PROTOC, "--descriptor_set_out=trip.desc", "trip.proto"], sources)
    commands = dict(_built(sources, pattern))
    cases: dict[str, str] = {}
    settings = {"auto.create.typed.topics": True}
    with sparklog.start_local(scratch / "data", kafka=True, settings=settings) as broker:
        for form in FORMATS:
            cases |= _try_format(broker, form, commands, sources)
    passed = {name for name, fault in cases.items() if not fault}
    faults = "\n".join(f"==== {name}\n{fault}" for name, fault in cases.items() if fault)
    return judge(passed, cases.keys() - passed, ()), faults


def _built(sources: Path, pattern: str | None) -> Iterator[tuple[Client, list[str]]]:
    for client in CLIENTS:
        if not re.search(pattern or "", client.name):
            continue
        missing = [need for need in client.needs if shutil.which(need) is None]
        if missing:
            print(f"{client.name} is left out: {', '.join(missing)} is not installed", flush=True)
            continue
        yield client, client.build(sources)


def _try_format(broker: LocalBroker, form: str, commands: dict[Client, list[str]], sources: Path) -> dict[str, str]:
    """Let each client write, and each client read; return the faults, "" for none, by case."""
    cases: dict[str, str] = {}
    expected = rows(24)
    addresses = [broker.kafka_bootstrap_servers, broker.schema_registry_url, form]
    topics = {}
    for client, command in commands.items():
        if form in client.writes:
            name, topic = f"{form}: {client.name} writes", f"{form}-{client.name}"
            if form == "json-schema":
                with sparklog.Admin(broker.bootstrap_servers) as admin:
                    admin.create_topic(topic, schema=JSON_COLUMNS, configs={"kafka.value.format": form})
            lines = "".join(f"{json.dumps(row)}\n" for row in expected)
            _, fault = _call([*command, *addresses, "write", topic], sources, lines)
            cases[name] = fault or _differences(_columns(broker, topic), expected)
            if not cases[name]:
                topics[topic] = client.name
            print(f"{name}: {'failed' if cases[name] else 'passed'}", flush=True)
    for client, command in commands.items():
        if form not in client.reads or not topics:
            continue
        output, fault = _call([*command, *addresses, "read", str(len(expected)), *topics], sources)
        read = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for topic, writer in topics.items():
            name = f"{form}: {client.name} reads rows of {writer}"
            cases[name] = fault or _differences([one["row"] for one in read if one["topic"] == topic], expected)
            print(f"{name}: {'failed' if cases[name] else 'passed'}", flush=True)
    return cases


def _columns(broker: LocalBroker, topic: str) -> list[dict[str, Any]]:
    """Return the rows of a topic's columns in the form of `rows`."""
    table = sparklog.read_table(broker.bootstrap_servers, topic).select(list(rows(1)[0]))
    converted = []
    for row in table.to_pylist():
        if isinstance(row["at"], datetime):
            row["at"] = round((row["at"] - EPOCH).total_seconds() * 1000)
        if isinstance(row["raw"], bytes):
            row["raw"] = base64.b64encode(row["raw"]).decode()
        converted.append(row | {"counts": dict(row["counts"] or ())})
    return converted


def _differences(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """Return the first difference; "" for equal rows."""
    if len(found) != len(expected):
        return f"{len(found)} rows instead of {len(expected)}"
    by_id = {row["id"]: row for row in map(normal, found)}
    for row in expected:
        if by_id.get(row["id"]) != row:
            return f"row {row}\nis   {by_id.get(row['id'])}"
    return ""


def _call(command: list[str], directory: Path, lines: str = "") -> tuple[str, str]:
    """Return the output of a client, and its fault."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            input=lines,
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        return "", f"no end within {TIMEOUT_S} s\n{e.stderr!r:.4000}"
    return done.stdout, "" if done.returncode == 0 else f"exit {done.returncode}\n{done.stderr[-4000:]}"


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL)
